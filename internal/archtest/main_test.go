// Package archtest has the tests of the repository as a whole: what each package may import, that
// the pages show code that is tested, and what all packages do alike.
package archtest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests in the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
