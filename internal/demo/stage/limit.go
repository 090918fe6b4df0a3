package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrNotDone is matched by the error of a run whose limit ended before its work was done, and whose books agree on the
// part that was.
var ErrNotDone = errors.New("not done")

// ErrNotSettled is matched too if what was sent was not settled in its time either.
var ErrNotSettled = errors.New("nor settled")

// verdictLimit is how long the books may be read: of a store that stands still they cannot be.
const verdictLimit = 10 * time.Minute

// leastPreparing is how long the preparation of a run may take at least.
const leastPreparing = 2 * time.Minute

// A Limit is how long a run may take. It is a part of a demo's command.
type Limit struct {
	Limit  time.Duration `default:"30m" placeholder:"TIME" help:"Send nothing more after this time, and compare the books of what was sent. The exit code is then 3 if they agree. Defaults to ${default}."`
	Settle time.Duration `default:"2m" placeholder:"TIME" help:"Wait so long for what was sent by then. Defaults to ${default}."`
}

// Within returns a context that ends at the limit.
func (l Limit) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, l.Limit, fmt.Errorf("%w after %v", ErrNotDone, l.Limit))
}

// Preparing returns a context for what comes before the work, such as the migrations: a limit that is short is
// the work's.
func (l Limit) Preparing(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.Limit < leastPreparing {
		return context.WithTimeoutCause(ctx, leastPreparing, fmt.Errorf("not prepared after %v", leastPreparing))
	}
	return l.Within(ctx)
}

// Settling returns a context for what a process has begun when ctx ends: it ends the time to settle later.
func Settling(ctx context.Context, settle time.Duration) (context.Context, context.CancelFunc) {
	settling, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(settle, func() { cut(context.Cause(ctx)) }) })
	return settling, func() {
		stop()
		cut(nil)
	}
}

// A Work is a run's, in its parts. The processes are started before it begins.
type Work struct {
	// Do does the work. Its context ends at the limit.
	Do func(context.Context) error
	// Settle ends the senders when the limit has ended, and waits for what they have sent.
	Settle func(context.Context) error
	// Stop ends the processes.
	Stop func() error
	// Verdict compares the books. If late is not nil, it does so for the part that was done, and says first
	// how much that is.
	Verdict func(ctx context.Context, late error) error
}

// Run does the work within the limit, and has the verdict made on it, or on the part that was done. The
// error of a verdict goes before the error of the limit, which matches ErrNotDone.
func (l Limit) Run(ctx context.Context, screen *Screen, w Work) error {
	late, err := l.do(ctx, screen, w)
	if err != nil {
		return err
	}
	stopped := w.Stop()
	if stopped != nil && late == nil {
		return stopped
	}
	screen.Done()
	judging, cancel := context.WithTimeoutCause(ctx, verdictLimit, fmt.Errorf("the books cannot be read in %v", verdictLimit))
	defer cancel()
	if err := w.Verdict(judging, late); err != nil {
		return errors.Join(Cause(judging, err), stopped)
	}
	return errors.Join(late, stopped)
}

func (l Limit) do(ctx context.Context, screen *Screen, w Work) (late, err error) {
	working, cancel := l.Within(ctx)
	defer cancel()
	err = w.Do(working)
	if err == nil {
		return nil, nil
	}
	if late = Cause(working, err); !errors.Is(late, ErrNotDone) {
		return nil, late
	}
	screen.Say(fmt.Sprintf("%v: nothing more is sent, and what was sent is settled", late))
	settling, cancel := context.WithTimeoutCause(ctx, l.Settle, fmt.Errorf("%w, %w %v later", late, ErrNotSettled, l.Settle))
	defer cancel()
	if err := w.Settle(settling); err != nil {
		if err = Cause(settling, err); !errors.Is(err, ErrNotDone) {
			return nil, err
		}
		late = err
	}
	return late, nil
}

// PrintPart says which part of the work a verdict is on, if it was not done.
func PrintPart(out io.Writer, late error, done, of int, what string) {
	if late != nil {
		fmt.Fprintf(out, "\nThis verdict is on %s of %s %s: %v.\n", Count(done), Count(of), what, late)
	}
}
