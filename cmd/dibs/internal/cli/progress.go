package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"
)

// progress says when it is time to tell a person how far it is.
type progress struct {
	app   *app
	every time.Duration
	now   func() time.Time
	last  time.Time
}

func (a *app) progress() *progress {
	p := &progress{app: a, every: 2 * time.Second, now: time.Now}
	p.start()
	return p
}

func (p *progress) start() { p.last = p.now() }

func (p *progress) due() bool {
	if p.now().Sub(p.last) < p.every {
		return false
	}
	p.last = p.now()
	return true
}

// tell tells it, if it is time.
func (p *progress) tell(format string, args ...any) {
	if p.due() {
		p.app.nothing("dibs: "+format, args...)
	}
}

// patiently runs f, and tells a person from time to time that it goes on.
func (a *app) patiently(what string, f func() error) error {
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		start := time.Now()
		tick := time.NewTicker(cmp.Or(a.patience, 10*time.Second))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				a.nothing("dibs: still %s, for %v", what, time.Since(start).Round(time.Second))
			}
		}
	})
	err := f()
	close(done)
	telling.Wait()
	return err
}

// canAsk returns an error if there is nobody to ask, and yes is not said.
func (a *app) canAsk(yes bool, instead string) error {
	if yes || isTerminal(a.stdin) {
		return nil
	}
	return usage("there is no terminal to confirm on: %s", instead)
}

// confirm asks the operator, unless yes is said, and takes only a full answer; any other is the refusal.
func (a *app) confirm(ctx context.Context, yes bool, question, refusal string) error {
	if yes {
		return nil
	}
	a.say(visible(question) + " Type yes: ")
	text, err := promptly(ctx, func() (string, error) { return bufio.NewReader(a.stdin).ReadString('\n') })
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(text) != "yes" {
		return errors.New(refusal)
	}
	return nil
}

// promptly returns what read returns, or when ctx ends, even while read waits for a person to type.
func promptly[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		value, err := read()
		ended <- result{value, err}
	}()
	select {
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	case r := <-ended:
		return r.value, r.err
	}
}
