package sqlite_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
)

// The test binary is also the other processes of the tests that need some: see
// process_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role))
	}
	testkit.FewerCases()
	goleak.VerifyTestMain(m)
}
