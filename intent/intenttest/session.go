package intenttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of sessions: what calls with one session find when one of them ends their lease.
var sessionTests = []test{
	{"Session/EndOfOneCallIsTheOthersLoss", endsOfTheOther, 0},
	{"Session/WorkEndsWithTheOthersRelease", releasedByTheOther, 0},
	{"Session/WorkEndsWithTheOthersConfirmation", confirmedByTheOther, 0},
	{"Session/EndOfOneOfSeveralKeys", endOfOneKey, several | direct},
	{"Session/OneOfManyCallsIsConfirmed", oneCallIsConfirmed, 0},
}

// beat is the heartbeat of sub-tests that wait for one. An extension that takes half of it is
// aborted, which costs the connection.
const beat = time.Second

// beating returns the manager of a separate process. Its leases outlive the sub-test, and soon show
// their holder that they have ended.
func (f *fixture) beating(t *testing.T) *intent.Manager {
	t.Helper()
	return f.manager(t, &intent.Config{TTL: longTTL, Turn: longTurn, Heartbeat: beat})
}

// endsOfTheOther lets two processes ask with one session, so that they share a lease. If one of
// them ends the lease, it is lost for the other, for every step, even after a third session has
// taken the intent. Only the same step again succeeds.
func endsOfTheOther(t *testing.T, f *fixture) {
	ends := map[string]func(l *intent.Lease) error{
		"Release": func(l *intent.Lease) error { return l.Release(t.Context(), "") },
		"Confirm": func(l *intent.Lease) error { return l.Confirm(t.Context(), "result") },
	}
	for name, end := range ends {
		for _, taken := range []bool{false, true} {
			for kind, step := range steps {
				r := request("A")
				r.Key = fmt.Sprintf("%s %v %s", name, taken, kind)
				first, second := lease(t, f.m, r), lease(t, f.hasty, r)
				require.Equal(t, first.Token(), second.Token())
				require.NoError(t, end(first))
				by := "A"
				if taken && name == "Release" {
					next := r
					next.Session, by = "B", "B"
					lease(t, f.m, next)
				}

				err := step(t.Context(), second)

				if by == "A" && name == kind { // it is as good as its own
					require.NoError(t, err, r.Key)
					require.ErrorIs(t, second.Err(), intent.ErrLeaseLost, r.Key)
					continue
				}
				require.ErrorIs(t, err, intent.ErrLeaseLost, r.Key)
				requireLost(t, err, by)
				require.ErrorIs(t, second.Err(), intent.ErrLeaseLost, r.Key)
				if by == "A" {
					require.NoError(t, end(first), "again, by the same call: %s", r.Key)
				}
			}
		}
	}
}

// A call is a call of [intent.Manager.Do] that has begun its work.
type call struct {
	ended <-chan outcome
	cause <-chan error // why the work's context ended
	end   func(result any, err error)
}

type outcome struct {
	answer intent.Answer
	err    error
}

// begin calls Do in the background, and returns once its work has begun. The work ends with its
// context, or when end is called.
func begin(t *testing.T, m *intent.Manager, r intent.Request) call {
	t.Helper()
	type returned struct {
		result any
		err    error
	}
	ended, cause, began, returns := make(chan outcome, 1), make(chan error, 1), make(chan struct{}), make(chan returned, 1)
	go func() {
		answer, err := m.Do(t.Context(), r, func(ctx context.Context, _ *intent.Lease) (any, error) {
			close(began)
			select {
			case with := <-returns:
				return with.result, with.err
			case <-ctx.Done():
				cause <- context.Cause(ctx)
				return r.Session + "'s, late", nil
			}
		})
		ended <- outcome{answer, err}
	}()
	testkit.Receive(t, "the work begins", began)
	return call{ended, cause, func(result any, err error) { returns <- returned{result, err} }}
}

var errWork = errors.New("the work failed")

// releasedByTheOther makes the first of two calls with one session fail, and so release the lease
// that both have. The context of the second ends, and Do reports that it confirmed nothing.
func releasedByTheOther(t *testing.T, f *fixture) {
	for name, second := range map[string]struct {
		heeds bool
		with  error
		taken bool
	}{
		"heeds its context":                       {heeds: true},
		"heeds its context, and the key is taken": {heeds: true, taken: true},
		"returns before it ends":                  {},
		"returns after the key is taken":          {taken: true},
		"fails":                                   {with: errWork},
	} {
		r := request("A")
		r.Key = name
		m := f.m // whose heartbeat does not come
		if second.heeds {
			m = f.beating(t)
		}
		one, other := begin(t, f.hasty, r), begin(t, m, r)
		one.end(nil, errWork)
		require.ErrorIs(t, testkit.Receive(t, "the first call ends", one.ended).err, errWork)
		if second.taken {
			next := r
			next.Session = "B"
			require.NoError(t, lease(t, f.m, next).Confirm(t.Context(), "B's"))
		}
		if second.heeds {
			require.ErrorIs(t, testkit.Receive(t, "the second call's work is told", other.cause), intent.ErrLeaseLost, name)
		} else {
			other.end("A's", second.with)
		}

		got := testkit.Receive(t, "the second call ends", other.ended)

		if second.with != nil { // it has nothing to lose, and what it wanted has happened
			require.ErrorIs(t, got.err, second.with)
			require.Equal(t, intent.Free, got.answer.Intent.Status)
			continue
		}
		require.ErrorIs(t, got.err, intent.ErrLeaseLost, name)
		i, err := f.m.Lookup(t.Context(), "", name)
		require.NoError(t, err)
		require.NotContains(t, string(i.Result), "A's")
		if !second.heeds || !second.taken { // else it may have been told before the key was taken
			require.Equal(t, i.Status, got.answer.Intent.Status, name)
			require.Equal(t, i.Session, got.answer.Intent.Session, name)
			require.Equal(t, i.Result, got.answer.Intent.Result, name)
		}
	}
}

// confirmedByTheOther lets the first of two calls with one session confirm. The second gets an
// error, even if its own result would be the same: nobody knows whether its work was needed.
func confirmedByTheOther(t *testing.T, f *fixture) {
	for name, second := range map[string]struct {
		heeds  bool
		first  any
		result any
		with   error
	}{
		"heeds its context":             {heeds: true, first: "first's"},
		"returns another result":        {first: "first's", result: "second's"},
		"returns the same result":       {first: "the same", result: "the same"},
		"returns none, as the first":    {},
		"fails":                         {first: "first's", with: errWork},
		"fails by an unknown outcome":   {first: "first's", with: messagestore.ErrOutcomeUnknown},
		"fails, and nothing is to tell": {with: errWork},
	} {
		if f.options.Over != nil && !second.heeds && second.with == nil && second.first == second.result {
			continue // a service does not know which of them has confirmed it
		}
		r := request("A")
		r.Key = name
		m := f.m // whose heartbeat does not come
		if second.heeds {
			m = f.beating(t)
		}
		one, other := begin(t, f.hasty, r), begin(t, m, r)
		one.end(second.first, nil)
		confirmed := testkit.Receive(t, "the first call ends", one.ended)
		require.NoError(t, confirmed.err)
		require.Equal(t, intent.Done, confirmed.answer.Intent.Status)
		if second.heeds {
			require.ErrorIs(t, testkit.Receive(t, "the second call's work is told", other.cause), intent.ErrLeaseLost, name)
		} else {
			other.end(second.result, second.with)
		}

		got := testkit.Receive(t, "the second call ends", other.ended)

		require.ErrorIs(t, got.err, intent.ErrLeaseLost, name)
		if second.with != nil {
			require.ErrorIs(t, got.err, second.with, name)
		}
		require.Equal(t, intent.Done, got.answer.Intent.Status, name)
		require.Equal(t, confirmed.answer.Intent.Result, got.answer.Intent.Result, "the result that stands: %s", name)
	}
}

// endOfOneKey lets a call end one of the two keys of another call with the same session.
func endOfOneKey(t *testing.T, f *fixture) {
	for end, first := range steps {
		if end == "Extend" {
			continue
		}
		for name, second := range steps {
			both := with("A", end+name+"1", end+name+"2")
			one := both
			one.With = nil
			l := lease(t, f.m, both)
			require.NoError(t, first(t.Context(), lease(t, f.hasty, one)))

			requireLost(t, second(t.Context(), l), "A")

			require.ErrorIs(t, l.Err(), intent.ErrLeaseLost)
			i, err := f.m.Lookup(t.Context(), "", both.With[0])
			require.NoError(t, err)
			require.Equal(t, intent.Held, i.Status, "no step was taken on a part of the keys")
		}
	}
}

// oneCallIsConfirmed lets several processes carry out the same intents at once, with few different
// sessions, and fail at random. For each key at most one call reports that it confirmed, and its
// result stays.
func oneCallIsConfirmed(t *testing.T, f *fixture) {
	const workers, keys, sessions = 6, 10, 2
	var mu sync.Mutex
	told := map[string]string{}
	shared := 0
	var all sync.WaitGroup
	for w := range workers {
		m, random := f.manager(t, &intent.Config{TTL: longTTL, Turn: longTurn}), rand.New(rand.NewPCG(1, uint64(w))) //nolint:gosec // a few
		all.Go(func() {
			for i := 0; i < 3*keys && t.Context().Err() == nil; i++ {
				r := request(fmt.Sprint("s", random.IntN(sessions)))
				r.Key = fmt.Sprint(i % keys)
				mine := fmt.Sprintf("%d/%d", w, i)
				fails, lasts := random.IntN(3) > 0, time.Duration(random.Int64N(int64(shortTTL/10)))
				a, err := m.Do(t.Context(), r, func(ctx context.Context, _ *intent.Lease) (any, error) {
					pause(t, lasts)
					if fails {
						return nil, errWork
					}
					return mine, nil
				})
				lost := errors.Is(err, intent.ErrLeaseLost)
				mu.Lock()
				switch {
				case err != nil && !lost && !errors.Is(err, errWork):
					t.Errorf("%s: %v", r.Key, err)
				case lost && a.Intent.Token == a.Lease.Token():
					shared++
				case err == nil && a.Outcome == intent.Reserved && told[r.Key] != "":
					t.Errorf("key %s: %s is told that it confirmed, as %s was", r.Key, mine, told[r.Key])
				case err == nil && a.Outcome == intent.Reserved:
					told[r.Key] = mine
				}
				mu.Unlock()
			}
		})
	}
	untilEnd(t, "the calls end", &all)
	for key, result := range told {
		i, err := f.m.Lookup(t.Context(), "", key)
		require.NoError(t, err)
		require.JSONEq(t, `"`+result+`"`, string(i.Result), key)
	}
	require.Positive(t, shared, "the test is worth nothing without a lease that another call has ended")
}
