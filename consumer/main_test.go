package consumer_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The test binary is also the processes that the tests kill.
func TestMain(m *testing.M) {
	if url := os.Getenv(crashStore); url != "" {
		os.Exit(crashChild(url, messagestore.Category(os.Getenv(crashCategory))))
	}
	if url := os.Getenv(redriveStore); url != "" {
		os.Exit(redriveChild(url, messagestore.Category(os.Getenv(redriveCategory)), os.Getenv(redriveHangs) != ""))
	}
	testkit.FewerCases()
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}
