// Package tier tells the tests that run for every change from those of the long tier, which take
// minutes. The long tier runs with DIBS_LONG=1, as in make ci/long: for a change of the store's
// or the consumer's core, and before a release.
package tier

import (
	"os"
	"testing"
)

// Long reports whether the long tier runs.
func Long() bool { return os.Getenv("DIBS_LONG") != "" }

// NeedsLong skips the test where the long tier does not run.
func NeedsLong(t testing.TB) {
	t.Helper()
	if !Long() {
		t.Skip("a test of the long tier: it runs with DIBS_LONG=1, as in make ci/long")
	}
}
