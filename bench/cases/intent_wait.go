package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/intent"
)

// lapsingTTL is the TTL of a lease that no holder extends.
const lapsingTTL = 200 * time.Millisecond

// The processes of the holder and the waiter.
const (
	oneStore  = "Dibs, one store"
	twoStores = "Dibs, two stores"
)

// intentWaiting returns the cases of a waiter: how soon it has the lease that it waits for.
func intentWaiting() []measure.Case {
	contenders := func(end func(ctx context.Context, l *intent.Lease) error, ttl time.Duration) []measure.Contender {
		return []measure.Contender{
			{Name: oneStore, Run: waitFor(openOneStore, ttl, end)},
			{Name: twoStores, Run: waitFor(openTwoStores, ttl, end)},
			{Name: dibsOnRedis, Run: waitFor(openRedisPair, ttl, end)},
		}
	}
	release := func(ctx context.Context, l *intent.Lease) error { return l.Release(ctx, "") }
	lapse := func(context.Context, *intent.Lease) error { return nil }
	return []measure.Case{{
		Name:       "intent/wake-up",
		Shows:      "From before a release to the lease of the session that waits for it, in a process where another waits too (Redis is polled)",
		Contenders: contenders(release, intentTTL),
		Goals: []measure.Goal{
			{Metric: measure.P99, Of: oneStore, AtMost: 0.005},
			{Metric: measure.P99, Of: twoStores, AtMost: 0.005},
		},
	}, {
		Name:       "intent/takeover",
		Shows:      "From the grant of a lease of 200 ms, which is not extended, to the lease of the session that waits for it",
		Contenders: contenders(lapse, lapsingTTL),
		Goals: []measure.Goal{
			{Metric: measure.P99, Of: oneStore, AtMost: (lapsingTTL + 500*time.Millisecond).Seconds()},
			{Metric: measure.P99, Of: twoStores, AtMost: (lapsingTTL + 500*time.Millisecond).Seconds()},
		},
	}}
}

// An openPair opens the managers of a holder and of a waiter.
type openPair func(ctx context.Context, cell *measure.Cell) (holder, waiter managed, closePair func(), err error)

func openOneStore(ctx context.Context, cell *measure.Cell) (holder, waiter managed, closePair func(), err error) {
	opened, err := openDibsIntents(ctx, cell)
	if err != nil {
		return managed{}, managed{}, nil, err
	}
	s := opened.(*dibsIntents) //nolint:errcheck,forcetypeassert // it is one
	return s.managed, s.managed, s.close, nil
}

// openTwoStores has the waiter hear of the release as another process does, by LISTEN.
func openTwoStores(ctx context.Context, cell *measure.Cell) (holder, waiter managed, closePair func(), err error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return managed{}, managed{}, nil, err
	}
	one, closeOne, err := openNotifying(ctx, url, true)
	if err != nil {
		return managed{}, managed{}, nil, err
	}
	other, closeOther, err := openNotifying(ctx, url, true)
	if err != nil {
		closeOne()
		return managed{}, managed{}, nil, err
	}
	holder, holderErr := manage(one)
	waiter, waiterErr := manage(other)
	return holder, waiter, func() {
		closeOther()
		closeOne()
	}, errors.Join(holderErr, waiterErr)
}

func openRedisPair(ctx context.Context, cell *measure.Cell) (holder, waiter managed, closePair func(), err error) {
	opened, err := openDibsOnRedis(ctx, cell)
	if err != nil {
		return managed{}, managed{}, nil, err
	}
	s := opened.(*dibsOnRedisStore) //nolint:errcheck,forcetypeassert // it is one
	return s.managed, s.managed, s.close, nil
}

// waitFor measures how long a waiter has to wait, for one lease after the other: from before the
// step that ends the lease, or from before its grant if no step does.
func waitFor(open openPair, ttl time.Duration, end func(ctx context.Context, l *intent.Lease) error) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		holder, waiter, closePair, err := open(ctx, cell)
		if err != nil {
			return err
		}
		defer closePair()
		leave, err := waitBeside(ctx, holder, waiter)
		if err != nil {
			return err
		}
		defer leave()
		leases := size[int64](cell, 5, 100, 1000)
		if ttl == lapsingTTL {
			leases = size[int64](cell, 2, 5, 25)
		}
		var waited int64
		err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
			for range leases {
				took, err := waitOnce(ctx, holder, waiter, ttl, end)
				if err != nil {
					return waited, err
				}
				cell.Observe(took)
				waited++
			}
			return waited, nil
		})
		return errors.Join(err, cell.Check("leases that were waited for", waited, leases))
	}
}

// waitBeside has another session wait for another intent until leave is called, as there is one in a
// process that is busy: the category is read all the time.
func waitBeside(ctx context.Context, holder, waiter managed) (leave func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	key := newID().String()
	request := intent.Request{Key: key, Content: paymentOf(key), TTL: intentTTL}
	_, err = holder.Reserve(ctx, request)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		request.Wait = intentTTL
		_, _ = waiter.Reserve(ctx, request) // it ends with the context
	}()
	leave = func() {
		cancel()
		<-ended
	}
	if err == nil {
		err = untilLine(ctx, holder, key)
	}
	if err != nil {
		leave()
	}
	return leave, err
}

// untilLine waits until a session stands in the line of an intent.
func untilLine(ctx context.Context, m managed, key string) error {
	return until(ctx, "a session stands in the line", func() (bool, any, error) {
		i, err := m.Lookup(ctx, "", key)
		return len(i.Line) > 0, i, err
	})
}

func waitOnce(ctx context.Context, holder, waiter managed, ttl time.Duration, end func(ctx context.Context, l *intent.Lease) error) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := newID().String()
	request := intent.Request{Key: key, Content: paymentOf(key), TTL: ttl}
	from := time.Now()
	held, err := holder.Reserve(ctx, request)
	if err != nil {
		return 0, err
	}
	type granted struct {
		answer intent.Answer
		at     time.Time
		err    error
	}
	next := make(chan granted, 1)
	go func() {
		request.Wait = time.Minute
		a, err := waiter.Reserve(ctx, request)
		next <- granted{a, time.Now(), err}
	}()
	if ttl != lapsingTTL {
		err = untilLine(ctx, holder, key)
		from = time.Now()
	}
	if err == nil {
		err = end(ctx, held.Lease)
	}
	if err != nil {
		return 0, err
	}
	got := <-next
	if got.err == nil && (got.answer.Outcome != intent.Reserved || got.answer.Lease.Attempt() != 2) {
		got.err = fmt.Errorf("intent %s: the waiter was told %v", key, got.answer.Outcome)
	}
	return got.at.Sub(from), got.err
}
