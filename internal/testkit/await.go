package testkit

import (
	"testing"
	"time"
)

// WaitLimit bounds each wait. It is far above the time that a wait takes even on a busy machine: if
// a test's result depends on the machine's speed, the test is wrong, and a longer limit does not
// help.
const WaitLimit = time.Minute

const (
	firstPause = time.Millisecond
	mostPause  = 20 * time.Millisecond
)

// Await calls check, at growing intervals of at most 20 ms, until it reports true. After [WaitLimit]
// the test fails with the name of the condition and the last state. A test that waits in another way
// may wait for ever, without an explanation. Checks run in the test's own goroutine, so they may end
// the test.
func Await(t testing.TB, what string, check func() (is bool, state any)) {
	t.Helper()
	begun := time.Now()
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		is, state := check()
		if is {
			return
		}
		if waited := time.Since(begun); waited > WaitLimit {
			t.Fatalf("waited %v for this: %s\nit is so by now: %+v", waited.Round(time.Second), what, state)
		}
		<-time.After(pause)
	}
}

// AwaitTrue is [Await] for a check without a state.
func AwaitTrue(t testing.TB, what string, check func() bool) {
	t.Helper()
	Await(t, what, func() (bool, any) { return check(), "not so" })
}

// AwaitEqual waits until get returns want.
func AwaitEqual[T comparable](t testing.TB, what string, want T, get func() T) {
	t.Helper()
	Await(t, what, func() (bool, any) {
		got := get()
		return got == want, struct{ Want, Got T }{want, got}
	})
}

// Receive returns the next value of a channel, or the zero value once it is closed.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(WaitLimit):
		t.Fatalf("waited %v for this: %s\nnothing has come", WaitLimit, what)
		panic("not reached")
	}
}

// Go starts f, and returns the channel that receives its result: see [Receive].
func Go[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

// Close makes the test call a function at its end that waits until nothing is in use any more, such
// as a pool's Close. If a handler keeps a connection, the test fails instead of hanging.
func Close(t testing.TB, what string, end func()) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			end()
		}()
		Receive(t, what, ended)
	})
}
