package cases

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/bench/measure"
)

// database makes a database for a cell, on the real disk, and returns its URL.
func database(ctx context.Context, cell *measure.Cell, template string) (string, error) {
	p, err := cell.Servers.Postgres(ctx)
	if err != nil {
		return "", err
	}
	return cell.Database(ctx, p, template)
}

// inStore runs a cell over a store in a new database.
func inStore(ctx context.Context, cell *measure.Cell, o opener, run func(s store, url string) error) error {
	url, err := database(ctx, cell, o.template)
	if err != nil {
		return err
	}
	s, err := o.open(ctx, url)
	if err != nil {
		return err
	}
	defer s.close()
	return run(s, url)
}

// inDibs is inStore for Dibs.
func inDibs(ctx context.Context, cell *measure.Cell, run func(s *dibsStore) error) error {
	return inStore(ctx, cell, openDibs, func(s store, _ string) error { return run(s.(*dibsStore)) }) //nolint:errcheck,forcetypeassert // it is one
}

// checkCount checks that as many messages are in a store as were written.
func checkCount(ctx context.Context, cell *measure.Cell, s store, want int64, err error) error {
	if err != nil {
		return err
	}
	count, err := s.count(ctx)
	return errors.Join(err, cell.Check("messages in the table", count, want))
}

// onServer makes the cell measure the server that keeps its databases for the whole run.
func onServer(ctx context.Context, cell *measure.Cell) error {
	p, err := cell.Servers.Postgres(ctx)
	if err != nil {
		return err
	}
	return cell.MeasurePostgres(ctx, p)
}

// size returns the size that fits the length of the run.
func size[T any](cell *measure.Cell, smoke, short, long T) T {
	switch {
	case cell.Smoke:
		return smoke
	case cell.Long:
		return long
	}
	return short
}

// randoms returns a source of numbers for each caller.
func randoms(cell *measure.Cell, callers int) []*rand.Rand {
	sources := make([]*rand.Rand, callers)
	for i := range sources {
		sources[i] = cell.Rand(i)
	}
	return sources
}

// atOnce makes concurrent callers do n things in total.
func atOnce(callers, n int, do func(i int) error) error {
	var next atomic.Int64
	var all errgroup.Group
	for range callers {
		all.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := do(i); err != nil {
					return err
				}
			}
		})
	}
	return all.Wait()
}

// mostWaited is how long until waits at most.
const mostWaited = time.Minute

// until waits until so returns true, for at most a minute, in work that is not measured. After a
// minute its error names the condition and the last state.
func until(ctx context.Context, what string, so func() (yes bool, state any, err error)) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(mostWaited); ; {
		yes, state, err := so()
		if yes || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("it was not so within %s: %s: %v", mostWaited, what, state)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
