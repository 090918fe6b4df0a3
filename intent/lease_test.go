package intent_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestRefusedResultLeavesTheLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		type cycle struct{ Next *cycle }
		round := &cycle{}
		round.Next = round
		l := lease(t, m, request("A"))
		for name, result := range map[string]any{
			"NaN":            math.NaN(),
			"cycle":          round,
			"channel":        make(chan int),
			"513 KiB":        strings.Repeat("x", 513<<10),
			"U+0000":         "a\x00b",
			"lone surrogate": raw(`"\ud800"`),
		} {
			err := l.Confirm(t.Context(), result)
			require.ErrorIs(t, err, messagestore.ErrInvalid, name)
			require.NotErrorIs(t, err, intent.ErrLeaseLost, name)
			require.Less(t, len(err.Error()), 500, name)
			require.NoError(t, l.Err(), name)
			_, err = store.WriteStreams(t.Context(), l.Confirmation(result)...)
			require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		}
		require.ErrorIs(t, l.Release(t.Context(), strings.Repeat("r", 501)), messagestore.ErrInvalid)
		require.ErrorIs(t, l.Release(t.Context(), "a\nb"), messagestore.ErrInvalid)
		require.NoError(t, l.Confirm(t.Context(), strings.Repeat("x", 511<<10)))
	})
}

func TestResultIsReadAsItWasConfirmed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		for name, result := range map[string]any{"none": nil, "text": "<a & b>", "number": 12345678901234567} {
			r := request("A")
			r.Key = name
			require.NoError(t, lease(t, m, r).Confirm(t.Context(), result))
		}
		read := func(key string) intent.Answer {
			r := request("B")
			r.Key = key
			return reserve(t, m, r)
		}
		none, err := intent.Result[*receipt](read("none"))
		require.NoError(t, err)
		require.Nil(t, none)
		text, err := intent.Result[string](read("text"))
		require.NoError(t, err)
		require.Equal(t, "<a & b>", text)
		number, err := intent.Result[int64](read("number"))
		require.NoError(t, err)
		require.Equal(t, int64(12345678901234567), number)
		_, err = intent.Result[receipt](read("number"))
		require.ErrorContains(t, err, "payment:intent-number")
	})
}

func TestAnswersAreToldBeforeReserveReturns(t *testing.T) {
	t.Parallel()
	var told []intent.Outcome
	m := manager(t, testkit.Must(messagestore.New(memory.New(), nil)), &intent.Config{OnAnswer: func(_ context.Context, r intent.Request, a intent.Answer) {
		require.Equal(t, "k", r.Key)
		require.NotEmpty(t, r.Session)
		told = append(told, a.Outcome)
	}})
	l := lease(t, m, request(""))
	reserve(t, m, request(""))
	require.NoError(t, l.Confirm(t.Context(), nil))
	reserve(t, m, request(""))
	reserve(t, m, intent.Request{Key: "k", Content: "other"})
	require.Equal(t, []intent.Outcome{intent.Reserved, intent.Held, intent.Done, intent.KeyReused}, told)
}

func TestSessionsTellTheirProgram(t *testing.T) {
	t.Parallel()
	m := manager(t, testkit.Must(messagestore.New(memory.New(), nil)), &intent.Config{Name: "payments-7"})
	l := lease(t, m, request(""))
	require.Regexp(t, `^payments-7/[0-9a-f-]{36}$`, l.Session())
	require.NotEqual(t, l.Session(), lease(t, m, intent.Request{Key: "other", Content: "x"}).Session())
}

func TestHeartbeatIsHalfOfTheLeaseAtMost(t *testing.T) {
	t.Parallel()
	m := manager(t, testkit.Must(messagestore.New(memory.New(), nil)), &intent.Config{Heartbeat: 7 * time.Second})
	r := request("A")
	r.TTL = 13 * time.Second
	_, err := m.Reserve(t.Context(), r)
	require.ErrorIs(t, err, intent.ErrInvalidConfig)
	r.TTL = 14 * time.Second
	lease(t, m, r)
}

// After a rollback of the store it has less of a lease than the holder.
func TestHolderOfALeaseThatTheStoreLostIsTold(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		l := lease(t, m, request("A"))
		require.NoError(t, l.Extend(t.Context()))
		restored := testkit.Must(messagestore.New(memory.New(), nil))
		empty := &switchedStore{Store: store}
		m2 := manager(t, empty, nil)
		resumed, err := m2.Resume(t.Context(), "", "k", "A", l.Token())
		require.NoError(t, err)
		empty.Store = restored

		err = resumed.Confirm(t.Context(), nil)

		require.ErrorIs(t, err, intent.ErrLeaseLost)
		lost, ok := errors.AsType[*intent.LeaseLostError](err)
		require.True(t, ok)
		require.Nil(t, lost.By)
		<-time.After(time.Microsecond)
		next := lease(t, m2, request("B"))
		require.Greater(t, next.Token(), l.Token())
	})
}

type switchedStore struct{ *messagestore.Store }

func TestAReleasedIntentIsTakenAtOnceByItsWaiter(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		counted := &brokenStore{Store: store}
		waiting := manager(t, counted, nil)
		l := lease(t, m, request("A"))
		got := make(chan *intent.Lease)
		go func() {
			r := request("W")
			r.Wait = time.Hour
			a, err := waiting.Reserve(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			got <- a.Lease
		}()
		synctest.Wait()
		calls := counted.calls.Load()
		require.EqualValues(t, 2, calls, "a look, and a place in the line")
		released := time.Now()
		require.NoError(t, l.Release(t.Context(), ""))

		next := <-got

		require.Equal(t, released, time.Now())
		require.Equal(t, calls+1, counted.calls.Load(), "the wake-up tells the state")
		require.Equal(t, "W", next.Session())
	})
}

// A crowd of callers waits, some in the stored line and the others behind them, and each of them is
// served or waits until its time is over.
func TestACrowdIsServedInTheOrderOfComing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counted := &brokenStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		m := manager(t, counted, &intent.Config{TTL: time.Hour})
		l := lease(t, m, request("A"))
		const callers = 130
		var want, served []string
		var all sync.WaitGroup
		for i := range callers {
			r := request(fmt.Sprint("w", i))
			r.Wait = time.Hour
			if i == 50 || i == 3 {
				r.Wait = time.Second
			} else {
				want = append(want, r.Session)
			}
			began := time.Now()
			all.Go(func() {
				a, err := m.Reserve(t.Context(), r)
				switch {
				case err != nil:
					t.Error(err)
				case r.Wait == time.Second:
					if a.Outcome != intent.Held || time.Since(began) != time.Second {
						t.Error(r.Session, a.Outcome, time.Since(began))
					}
				case a.Outcome != intent.Reserved:
					t.Error(r.Session, a.Outcome)
				default:
					served = append(served, r.Session) // the lease is the lock
					if err := a.Lease.Release(t.Context(), ""); err != nil {
						t.Error(err)
					}
				}
			})
			synctest.Wait()
		}
		require.Equal(t, want[:3], lookup(t, m).Line[:3])
		require.Len(t, lookup(t, m).Line, 8)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, lookup(t, m).Line, 8, "for each that has left another has come")
		calls := counted.calls.Load()
		require.LessOrEqual(t, calls, int64(callers+50), "those behind make one look")
		released := time.Now()

		require.NoError(t, l.Release(t.Context(), ""))

		all.Wait()
		require.Equal(t, want, served)
		require.Equal(t, released, time.Now(), "no turn was lost")
		require.LessOrEqual(t, counted.calls.Load()-calls, int64(20*callers), "some for each, and not one for each of the others")
		require.Empty(t, lookup(t, m).Line)
	})
}

// Those behind the first are told a result, too, and none of them asks the store for it.
func TestACrowdIsToldTheResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counted := &brokenStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		m := manager(t, counted, &intent.Config{TTL: time.Hour})
		l := lease(t, m, request("A"))
		var all sync.WaitGroup
		for i := range 130 {
			all.Go(func() {
				r := request(fmt.Sprint("w", i))
				r.Wait = time.Hour
				if a, err := m.Reserve(t.Context(), r); err != nil || a.Outcome != intent.Done {
					t.Error(a.Outcome, err)
				}
			})
		}
		synctest.Wait()
		calls, began := counted.calls.Load(), time.Now()

		require.NoError(t, l.Confirm(t.Context(), "paid"))

		all.Wait()
		require.Equal(t, began, time.Now())
		require.LessOrEqual(t, counted.calls.Load()-calls, int64(1+8+20))
	})
}

// The line holds 100 sessions of all processes. Who finds it full waits for room.
func TestAFullLineIsWaitedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		l := lease(t, manager(t, store, &intent.Config{TTL: time.Hour}), request("A"))
		var all sync.WaitGroup
		for p := range 13 {
			process := manager(t, store, nil)
			for i := range 10 {
				all.Go(func() {
					r := request(fmt.Sprint(p, "/", i))
					r.Wait = time.Hour
					a, err := process.Reserve(t.Context(), r)
					if err != nil || a.Outcome != intent.Reserved {
						t.Error(a.Outcome, err)
						return
					}
					if err := a.Lease.Release(t.Context(), ""); err != nil {
						t.Error(err)
					}
				})
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, lookup(t, m).Line, 100)
		r := request("late")
		r.Wait = time.Second
		began := time.Now()
		require.Equal(t, intent.Held, reserve(t, m, r).Outcome)
		require.Equal(t, time.Second, time.Since(began))

		require.NoError(t, l.Release(t.Context(), ""))

		all.Wait()
		require.Empty(t, lookup(t, m).Line)
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

func TestAConfirmationLeavesTheLineAway(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		l := lease(t, m, request("A"))
		var all sync.WaitGroup
		all.Go(func() {
			r := request("last")
			r.Wait = time.Hour
			_, _ = m.Reserve(t.Context(), r)
		})
		synctest.Wait()
		require.NoError(t, l.Confirm(t.Context(), nil))
		all.Wait()
		require.Empty(t, lookup(t, m).Line)
	})
}

// A handler asks its lease for writes while the heartbeat extends it. Only the race detector sees
// a failure.
func TestAHandlerUsesItsLeaseBesideTheHeartbeat(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	l := lease(t, manager(t, store, nil), request("A"))
	extended := make(chan error)
	go func() {
		var err error
		for range 100 {
			err = errors.Join(err, l.Extend(t.Context()))
		}
		extended <- err
	}()
	for running := true; running; {
		select {
		case err := <-extended:
			require.NoError(t, err)
			running = false
		default:
			require.Len(t, l.Guarded(), 1)
			require.Len(t, l.Confirmation("paid"), 1)
			require.Positive(t, l.Left())
			require.NotZero(t, l.Until())
			require.NoError(t, l.Err())
			require.NotZero(t, l.Token())
			require.Equal(t, 1, l.Attempt())
			require.NotEmpty(t, l.Stream())
			l.Cause()
		}
	}
	_, err := store.WriteStreams(t.Context(), l.Confirmation("paid")...)
	require.NoError(t, err)
}
