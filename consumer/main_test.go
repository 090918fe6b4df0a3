package consumer_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/tier"
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
	flag.Parse()
	if !tier.Long() && !given("rapid.checks") {
		_ = flag.Set("rapid.checks", "25") // a hundred in the long tier
	}
	goleak.VerifyTestMain(m)
}

// given reports whether a flag was set by the caller.
func given(name string) (is bool) {
	flag.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}
