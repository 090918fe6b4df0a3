// Package tier divides the tests into the ones that run for every change and the long tier, which
// takes minutes. The long tier runs with DIBS_LONG=1, as in make ci/long: for a change of the
// store's or the consumer's core, and before a release.
package tier

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
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

// Changed reports whether the tests run of a part that seldom changes: scripts/changed runs them when
// it has, and the long tier always.
func Changed() bool { return Long() || os.Getenv("DIBS_CHANGED") != "" }

// NeedsChange skips a test of such a part where [Changed] is false.
func NeedsChange(t testing.TB) {
	t.Helper()
	if !Changed() {
		t.Skip("it runs when what it tests has changed: make test/changed")
	}
}

// Turn returns the number of today's turn out of so many, from 0 on: another each day, for a test
// that has too many cases for every change. The long tier has them all.
func Turn(turns int) int {
	return int(time.Now().Unix() / (24 * 60 * 60) % int64(turns))
}

// TakesTurns skips the test unless it is its turn today, one out of so many, from 0 on. The long
// tier runs it each day.
func TakesTurns(t testing.TB, turn, turns int) {
	t.Helper()
	if today := Turn(turns); !Long() && today != turn {
		t.Skipf("it is the turn of others today: %d of %d; this one is %d, and runs with DIBS_LONG=1, too", today, turns, turn)
	}
}

// FewerCases has rapid check 25 random cases where the long tier does not run, and not 100. TestMain
// calls it before the flags are read, so that -rapid.checks on the command line counts.
func FewerCases() {
	if Long() {
		return
	}
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err) // the tests do not import rapid
	}
}

// ManyAtOnce has at least eight tests run at a time, for a package whose tests mostly wait: for a server,
// another process, or a lease. TestMain calls it before the flags are read, so that -parallel on the
// command line counts.
func ManyAtOnce() {
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err) // testing.Init registers it
	}
}
