package testkit_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

// A recorder is the test that a wait fails.
type recorder struct {
	testing.TB
	said string
}

func (*recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// Cleanup is the end of the test.
func (*recorder) Cleanup(f func()) { f() }

// failed returns what a wait says that fails, and how long it took.
func failed(wait func(t testing.TB)) (said string, took time.Duration) {
	r, ended, begun := &recorder{}, make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		wait(r)
	}()
	<-ended
	return r.said, time.Since(begun)
}

func TestAWaitEndsAtTheLimitAndSaysWhy(t *testing.T) {
	for name, test := range map[string]struct {
		wait func(t testing.TB)
		says []string
	}{
		"Await": {
			func(t testing.TB) { testkit.Await(t, "three rows", func() (bool, any) { return false, []int{1, 2} }) },
			[]string{"three rows", "[1 2]"},
		},
		"AwaitTrue": {
			func(t testing.TB) { testkit.AwaitTrue(t, "the writer waits", func() bool { return false }) },
			[]string{"the writer waits", "not so"},
		},
		"AwaitEqual": {
			func(t testing.TB) { testkit.AwaitEqual(t, "all handled", 3, func() int { return 2 }) },
			[]string{"all handled", "Want:3 Got:2"},
		},
		"Receive": {
			func(t testing.TB) { testkit.Receive(t, "the run ends", make(chan int)) },
			[]string{"the run ends", "nothing has come"},
		},
		"Close": {
			func(t testing.TB) {
				testkit.Close(t, "the pool is closed", func() { time.Sleep(2 * testkit.WaitLimit) })
			},
			[]string{"the pool is closed", "nothing has come"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				said, took := failed(test.wait)
				for _, word := range test.says {
					require.Contains(t, said, word)
				}
				require.InDelta(t, testkit.WaitLimit, took, float64(time.Second))
				time.Sleep(2 * testkit.WaitLimit) // until the function of Close returns
			})
		})
	}
}

func TestAWaitEndsOnceItIsSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		testkit.Await(t, "a second has passed", func() (bool, any) { return time.Since(begun) >= time.Second, time.Since(begun) })
		testkit.AwaitEqual(t, "it is", true, func() bool { return true })
		require.Less(t, time.Since(begun), 1100*time.Millisecond)

		values := make(chan int, 1)
		values <- 7
		require.Equal(t, 7, testkit.Receive(t, "a value", values))
		close(values)
		require.Zero(t, testkit.Receive(t, "the end", values))
	})
}
