package consumer_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/messagestore"
)

// The test binary is also the process that crash_test.go kills.
func TestMain(m *testing.M) {
	if url := os.Getenv(crashStore); url != "" {
		os.Exit(crashChild(url, messagestore.Category(os.Getenv(crashCategory))))
	}
	goleak.VerifyTestMain(m)
}
