package testkit

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// Long reports whether the long tier runs: the tests that take minutes. It runs with DIBS_LONG=1, as
// in make ci/long: after a change in the core of the store or the consumer, and before a release.
func Long() bool { return os.Getenv("DIBS_LONG") != "" }

// NeedsLong skips the test if the long tier does not run.
func NeedsLong(t testing.TB) {
	t.Helper()
	if !Long() {
		t.Skip("a test of the long tier: it runs with DIBS_LONG=1, as in make ci/long")
	}
}

// Changed reports whether the tests of a rarely changed part run: scripts/changed runs them after a
// change of the part, and the long tier always runs them.
func Changed() bool { return Long() || os.Getenv("DIBS_CHANGED") != "" }

// NeedsChange skips the test of such a part if [Changed] is false.
func NeedsChange(t testing.TB) {
	t.Helper()
	if !Changed() {
		t.Skip("it runs when what it tests has changed: make test/changed")
	}
}

// Turn returns the number of today's turn, from 0 to turns-1: a different one each day, for a test
// with too many cases for every change. The long tier runs all of them.
func Turn(turns int) int {
	return int(time.Now().Unix() / (24 * 60 * 60) % int64(turns))
}

// TakesTurns skips the test unless today is its turn, a number from 0 to turns-1. The long tier
// runs it each day.
func TakesTurns(t testing.TB, turn, turns int) {
	t.Helper()
	if today := Turn(turns); !Long() && today != turn {
		t.Skipf("it is the turn of others today: %d of %d; this one is %d, and runs with DIBS_LONG=1, too", today, turns, turn)
	}
}

// FewerCases makes rapid check 25 random cases instead of 100 if the long tier does not run.
// TestMain calls it before the flags are parsed, so that -rapid.checks on the command line takes
// precedence.
func FewerCases() {
	if Long() {
		return
	}
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err) // the tests do not import rapid
	}
}

// ManyAtOnce lets at least eight tests run at a time, for a package with tests that mostly wait for
// a server, another process, or a lease. TestMain calls it before the flags are parsed, so that
// -parallel on the command line takes precedence.
func ManyAtOnce() {
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err) // testing.Init registers it
	}
}
