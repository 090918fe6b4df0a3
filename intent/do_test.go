package intent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

var errWork = errors.New("the bank is closed")

func lookup(t *testing.T, m *intent.Manager) intent.Intent {
	t.Helper()
	i, err := m.Lookup(t.Context(), "", "k")
	require.NoError(t, err)
	return i
}

func TestDoConfirmsTheResultOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		work := func(context.Context, *intent.Lease) (any, error) {
			time.Sleep(58 * time.Second)
			return receipt{"R1"}, nil
		}

		first, err := m.Do(t.Context(), request(""), work)
		require.NoError(t, err)
		second, err := m.Do(t.Context(), request(""), func(context.Context, *intent.Lease) (any, error) {
			t.Error("done twice")
			return nil, nil
		})
		require.NoError(t, err)

		require.Equal(t, intent.Reserved, first.Outcome)
		require.Equal(t, intent.Done, second.Outcome)
		for _, a := range []intent.Answer{first, second} {
			require.Equal(t, intent.Done, a.Intent.Status)
			r, err := intent.Result[receipt](a)
			require.NoError(t, err)
			require.Equal(t, receipt{"R1"}, r)
		}
		all := types(t, store, first.Intent.Stream)
		require.Equal(t, "Confirmed", all[len(all)-1])
		require.Len(t, all, 1+11+1, "a beat every 5 seconds")
	})
}

// A loose result is not the same after JSON.
type loose struct {
	Number string
	Any    any
	At     time.Time
	hidden string
}

func TestTypedDoReturnsTheStoredResult(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		calls := 0
		work := func(context.Context, *intent.Lease) (loose, error) {
			calls++
			return loose{"R1", 1, time.Now(), "gone"}, nil
		}
		at := time.Now().Round(0)

		first, a, err := intent.Do(t.Context(), m, request(""), work)
		require.NoError(t, err)
		second, b, err := intent.Do(t.Context(), m, request(""), work)
		require.NoError(t, err)

		require.Equal(t, []intent.Outcome{intent.Reserved, intent.Done}, []intent.Outcome{a.Outcome, b.Outcome})
		require.Equal(t, 1, calls)
		require.True(t, at.Equal(first.At))
		require.Equal(t, loose{"R1", 1.0, first.At, ""}, first)
		require.Equal(t, first, second)
		require.Equal(t, a.Intent.Result, b.Intent.Result)
	})
}

func TestTypedDoReturnsNoResultOfAnotherRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		work := func(context.Context, *intent.Lease) (receipt, error) {
			t.Error("done twice")
			return receipt{"R2"}, nil
		}
		l := lease(t, m, request("A"))

		r, a, err := intent.Do(t.Context(), m, request("B"), work)
		require.NoError(t, err)
		require.Equal(t, intent.Held, a.Outcome)
		require.Zero(t, r)

		require.NoError(t, l.Confirm(t.Context(), receipt{"R1"}))
		other := request("B")
		other.Content = order{200}
		r, a, err = intent.Do(t.Context(), m, other, work)
		require.NoError(t, err)
		require.Equal(t, intent.KeyReused, a.Outcome)
		require.Zero(t, r)
		require.JSONEq(t, `{"number":"R1"}`, string(a.Intent.Result))
		r, err = intent.Result[receipt](a)
		require.NoError(t, err)
		require.Zero(t, r)
		_, _, err = intent.Do(t.Context(), m, other, func(context.Context, *intent.Lease) (int, error) { return 0, nil })
		require.NoError(t, err, "there is nothing to decode")
	})
}

// A oneWay type does not decode from its own JSON.
type oneWay struct{}

func (oneWay) MarshalJSON() ([]byte, error) { return []byte(`"there"`), nil }

func (*oneWay) UnmarshalJSON([]byte) error { return errors.New(strings.Repeat("no way back, ", 1000)) }

func TestAResultOfAnotherTypeIsToldAndStaysDone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		require.NoError(t, lease(t, m, request("A")).Confirm(t.Context(), map[string]int{"number": 1}))

		r, a, err := intent.Do(t.Context(), m, request("B"), func(context.Context, *intent.Lease) (receipt, error) {
			t.Error("done twice")
			return receipt{}, nil
		})

		require.ErrorIs(t, err, intent.ErrResult)
		require.ErrorContains(t, err, "payment:intent-k: the result cannot be read: it does not decode into intent_test.receipt: json: ")
		_, isJSON := errors.AsType[*json.UnmarshalTypeError](err)
		require.True(t, isJSON)
		require.Zero(t, r)
		require.Equal(t, intent.Done, a.Outcome)
		_, err = intent.Result[receipt](a)
		require.ErrorIs(t, err, intent.ErrResult)

		mine := request("B")
		mine.Key = "mine"
		_, a, err = intent.Do(t.Context(), m, mine, func(context.Context, *intent.Lease) (oneWay, error) { return oneWay{}, nil })
		require.ErrorIs(t, err, intent.ErrResult)
		require.Less(t, len(err.Error()), 400)
		require.Equal(t, []intent.Outcome{intent.Reserved, intent.Done}, []intent.Outcome{a.Outcome, a.Intent.Status})
	})
}

func TestTypedDoFailsAsDoDoes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		r, a, err := intent.Do(t.Context(), m, request("A"), func(context.Context, *intent.Lease) (receipt, error) { return receipt{"R1"}, errWork })
		require.ErrorIs(t, err, errWork)
		require.Zero(t, r)
		require.Equal(t, intent.Free, a.Intent.Status)

		p, a, err := intent.Do(t.Context(), m, request("A"), func(ctx context.Context, l *intent.Lease) (*receipt, error) {
			return &receipt{"dropped"}, l.Confirm(ctx, nil)
		})
		require.NoError(t, err)
		require.Nil(t, p, "nil is its result")
		require.Equal(t, intent.Done, a.Intent.Status)

		_, _, err = intent.Do[receipt](t.Context(), m, request("A"), nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "function")
		_, _, err = intent.Do(t.Context(), nil, request("A"), func(context.Context, *intent.Lease) (receipt, error) { return receipt{}, nil })
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "manager")
	})
}

// Work that has confirmed by itself may go on, to send its answer for one.
func TestWorkThatConfirmedByItselfIsNotEnded(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		answer, err := m.Do(t.Context(), request(""), func(ctx context.Context, l *intent.Lease) (any, error) {
			require.NoError(t, l.Confirm(ctx, receipt{"R1"}))
			time.Sleep(time.Minute)
			return nil, context.Cause(ctx)
		})

		require.NoError(t, err)
		require.Equal(t, intent.Done, answer.Intent.Status)
	})
}

func TestFailedWorkReleases(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		a, err := m.Do(t.Context(), request("A"), func(context.Context, *intent.Lease) (any, error) { return nil, errWork })

		require.ErrorIs(t, err, errWork)
		require.Equal(t, intent.Free, a.Intent.Status)
		require.Equal(t, errWork.Error(), lookup(t, m).Reason)

		panicked := panicOf(func() { _, _ = m.Do(t.Context(), request("A"), fallsOver) })
		require.Equal(t, "oh", panicked.Value)
		require.Contains(t, string(panicked.Stack), "intent_test.fallsOver")
		require.Contains(t, panicked.Error(), "oh\n\n")
		require.Contains(t, panicked.Error(), "intent_test.fallsOver", "it is what the runtime and net/http print")
		require.Equal(t, "the work panicked", lookup(t, m).Reason)

		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = m.Do(t.Context(), request("A"), func(context.Context, *intent.Lease) (any, error) {
				runtime.Goexit()
				return nil, nil
			})
			t.Error("Goexit did not go on")
		}()
		<-left
		require.Equal(t, "the work ended its goroutine", lookup(t, m).Reason)
	})
}

func TestWorkIsDoneOnceAlsoIfItsResultCannotBeStored(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		result any
		rule   string
	}{
		"too large":          {strings.Repeat("x", 512<<10), "must be at most 524288 bytes"},
		"not a number":       {math.NaN(), "it must encode as JSON"},
		"not UTF-8":          {[]string{"\xff"}, "it must encode as JSON"},
		"a channel":          {make(chan int), "it must encode as JSON"},
		"nested too deep":    {json.RawMessage(strings.Repeat("[", 600) + strings.Repeat("]", 600)), "must not be nested more than 512 deep"},
		"with U+0000":        {"a\x00b", "U+0000"},
		"a half pair":        {json.RawMessage(`"\ud800"`), "must not contain half of a surrogate pair"},
		"a number too large": {json.RawMessage("1e999999"), "must not contain a number out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
				calls := 0
				pay := func(context.Context, *intent.Lease) (any, error) {
					calls++
					return of.result, nil
				}

				first, err := m.Do(t.Context(), request(""), pay)
				require.NoError(t, err)
				second, err := m.Do(t.Context(), request(""), pay)
				require.NoError(t, err)
				_, third, typed := intent.Do(t.Context(), m, request(""), func(context.Context, *intent.Lease) (receipt, error) {
					calls++
					return receipt{}, nil
				})

				require.Equal(t, 1, calls)
				require.Equal(t, intent.Reserved, first.Outcome)
				require.Equal(t, []intent.Outcome{intent.Done, intent.Done}, []intent.Outcome{second.Outcome, third.Outcome})
				require.ErrorIs(t, typed, intent.ErrResult)
				for _, a := range []intent.Answer{first, second, third} {
					require.Equal(t, intent.Done, a.Intent.Status)
					require.Contains(t, a.Intent.NotKept, of.rule)
					require.Empty(t, a.Intent.Result)
					_, err := intent.Result[receipt](a)
					require.ErrorIs(t, err, intent.ErrResult)
					require.ErrorContains(t, err, of.rule)
				}
			})
		})
	}
}

// A request of several keys is done with each of them.
func TestEachKeyIsDoneIfTheResultCannotBeStored(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		r := request("")
		r.With = []string{"other"}

		_, err := m.Do(t.Context(), r, func(context.Context, *intent.Lease) (any, error) { return math.Inf(1), nil })
		require.NoError(t, err)

		other, err := m.Lookup(t.Context(), "", "other")
		require.NoError(t, err)
		for _, i := range []intent.Intent{lookup(t, m), other} {
			require.Equal(t, intent.Done, i.Status)
			require.Contains(t, i.NotKept, "it must encode as JSON")
		}
	})
}

func fallsOver(context.Context, *intent.Lease) (any, error) { panic("oh") }

func panicOf(f func()) (panicked *intent.PanicError) {
	defer func() { panicked, _ = recover().(*intent.PanicError) }()
	f()
	return nil
}

// Also where Do has given the work up, and nobody meets its panic.
func TestAPanicIsInTheLog(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"in time": 0, "after Do has returned": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				store := testkit.Must(messagestore.New(memory.New(), nil))
				defer store.Close()
				m, err := intent.New(store, "payment:intent", &intent.Config{Grace: time.Second, Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&log)))})
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()

				panicked := panicOf(func() {
					_, err = m.Do(ctx, request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
						time.Sleep(takes)
						return fallsOver(ctx, l)
					})
				})

				require.Equal(t, takes == 0, panicked != nil)
				if takes > 0 {
					require.ErrorIs(t, err, intent.ErrGraceExceeded)
				}
				time.Sleep(takes)
				synctest.Wait()
				require.Contains(t, log.String(), `"panic":"oh"`)
				require.Contains(t, log.String(), "intent_test.fallsOver")
			})
		})
	}
}

func TestResultIsConfirmedThoughTheCallerHasGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		ctx, cancel := context.WithCancel(t.Context())

		a, err := m.Do(ctx, request("A"), func(ctx context.Context, _ *intent.Lease) (any, error) {
			cancel()
			<-ctx.Done()
			return receipt{"R1"}, nil
		})

		require.NoError(t, err)
		require.Equal(t, intent.Done, a.Intent.Status)
		require.Equal(t, intent.Done, lookup(t, m).Status)
	})
}

// A brokenStore fails the steps after the first while it is told to.
type brokenStore struct {
	*messagestore.Store
	broken atomic.Bool
	calls  atomic.Int64
}

var errBroken = errors.New("the database is away")

func (s *brokenStore) TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	s.calls.Add(1)
	if s.broken.Load() {
		return messagestore.Written{}, nil, errBroken
	}
	return s.Store.TryWrite(ctx, stream, expected, bodies...)
}

func TestContextEndsATenthBeforeAnybodyMayTakeTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		m := manager(t, store, nil)
		began := time.Now()

		a, err := m.Do(t.Context(), request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
			time.Sleep(time.Second)
			store.broken.Store(true)
			<-ctx.Done()
			require.Equal(t, 13500*time.Millisecond, time.Since(began))
			require.ErrorIs(t, context.Cause(ctx), intent.ErrLeaseLost)
			require.ErrorIs(t, l.Err(), intent.ErrLeaseLost)
			require.Zero(t, l.Left())
			require.Greater(t, store.calls.Load(), int64(4), "extensions that fail are tried again")
			store.broken.Store(false)
			return receipt{"R1"}, nil
		})

		require.NoError(t, err, "the version decides")
		require.Equal(t, intent.Done, a.Intent.Status)
	})
}

// An outage that outlasts all leases has one beginning and one end, and each lease that is lost is named once.
func TestAnOutageOfLeasesIsSaidAndEachLeaseThatIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		var log bytes.Buffer
		m := manager(t, store, &intent.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&log)).Level(zerolog.WarnLevel))})
		var working sync.WaitGroup
		for i := range 3 {
			r := request("A")
			r.Key, r.TTL = fmt.Sprint(i), time.Duration(1+10*i)*time.Second
			working.Go(func() {
				_, err := m.Do(t.Context(), r, func(ctx context.Context, _ *intent.Lease) (any, error) {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				})
				require.ErrorIs(t, err, intent.ErrLeaseLost)
			})
		}
		time.Sleep(100 * time.Millisecond)
		store.broken.Store(true)
		working.Wait()
		store.broken.Store(false)
		lease(t, m, request("B"))

		require.Equal(t, 1, strings.Count(log.String(), `"message":"store failed: trying again"`), log.String())
		require.Equal(t, 3, strings.Count(log.String(), `"message":"lease lost"`), log.String())
		require.Equal(t, 1, strings.Count(log.String(), `"message":"store is back"`), log.String())
		require.Equal(t, 5, strings.Count(log.String(), "\n"), log.String())
	})
}

func TestExtensionThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		m := manager(t, store, nil)

		_, err := m.Do(t.Context(), request("A"), func(ctx context.Context, _ *intent.Lease) (any, error) {
			for range 10 {
				store.broken.Store(true)
				time.Sleep(6 * time.Second)
				store.broken.Store(false)
				time.Sleep(6 * time.Second)
				require.NoError(t, ctx.Err())
			}
			return nil, nil
		})

		require.NoError(t, err)
	})
}

func TestContextEndsAtOnceWhenTheLeaseIsTaken(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		began := time.Now()
		a, err := m.Do(t.Context(), request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
			require.NoError(t, m.ForceRelease(ctx, "", "k", "it hangs"))
			next := lease(t, m, request("B"))
			<-ctx.Done()
			require.Equal(t, 5*time.Second, time.Since(began), "at the next beat")
			require.ErrorIs(t, context.Cause(ctx), intent.ErrLeaseLost)
			require.NoError(t, next.Confirm(t.Context(), receipt{"B's"}))
			return receipt{"A's"}, nil
		})

		require.ErrorIs(t, err, intent.ErrLeaseLost)
		r, err := intent.Result[receipt](a)
		require.NoError(t, err)
		require.Equal(t, receipt{"B's"}, r)
		require.Equal(t, "B", a.Intent.Session)
	})
}

func TestWorkThatDoesNotStopIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
		m := manager(t, store, nil)
		began := time.Now()
		stop := make(chan struct{})
		defer close(stop)

		_, err := m.Do(t.Context(), request("A"), func(context.Context, *intent.Lease) (any, error) {
			store.broken.Store(true)
			<-stop
			return nil, nil
		})

		require.ErrorIs(t, err, intent.ErrGraceExceeded)
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.Equal(t, 13500*time.Millisecond+5*time.Second, time.Since(began))
	})
}

func TestALeaseIsNotKeptForACallerThatHasGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		stop := make(chan struct{})
		defer close(stop)

		_, err := m.Do(ctx, request("A"), func(context.Context, *intent.Lease) (any, error) {
			time.Sleep(6 * time.Second) // it was extended at 5 s
			cancel()
			<-stop
			return nil, nil
		})

		require.ErrorIs(t, err, intent.ErrGraceExceeded)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, (5+13+5)*time.Second+500*time.Millisecond, time.Since(began))
		require.Equal(t, []string{"Reserved", "Extended"}, types(t, store, "payment:intent-k"))
	})
}

func TestWorkMayConfirmOrReleaseByItself(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		a, err := m.Do(t.Context(), request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
			return receipt{"other"}, l.Release(ctx, "not today")
		})
		require.ErrorIs(t, err, intent.ErrReleased)
		require.Equal(t, intent.Free, a.Intent.Status)
		paid, _, err := intent.Do(t.Context(), m, request("A"), func(ctx context.Context, l *intent.Lease) (receipt, error) {
			return receipt{"other"}, l.Release(ctx, "not today")
		})
		require.ErrorIs(t, err, intent.ErrReleased)
		require.Zero(t, paid)

		a, err = m.Do(t.Context(), request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
			_, err := store.WriteStreams(ctx, l.Confirmation(receipt{"R1"})...)
			return nil, errors.Join(err, messagestore.ErrOutcomeUnknown)
		})
		require.NoError(t, err, "the intent says that it was committed")
		require.Equal(t, intent.Reserved, a.Outcome)
		r, err := intent.Result[receipt](a)
		require.NoError(t, err)
		require.Equal(t, receipt{"R1"}, r)
	})
}

// A wild result is encoded by code that does not return.
type wild struct{ encode func() }

func (w wild) MarshalJSON() ([]byte, error) {
	w.encode()
	return nil, nil
}

func TestWorkIsDoneOnceAlsoIfItsResultDoesNotReturnFromEncoding(t *testing.T) {
	t.Parallel()
	for name, encode := range map[string]func(){"Panic": func() { panic("wild") }, "Exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
				a, err := m.Do(t.Context(), request("A"), func(context.Context, *intent.Lease) (any, error) { return wild{encode}, nil })

				require.NoError(t, err)
				require.Equal(t, intent.Reserved, a.Outcome)
				require.Equal(t, intent.Done, lookup(t, m).Status)
				require.Contains(t, lookup(t, m).NotKept, "it must encode as JSON")
			})
		})
	}
}

// The store refuses the work of the other call by the version, and does not say why.
func TestWorkWhoseSessionHasReleasedIsLost(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		released := make(chan error, 1)
		go func() {
			_, err := m.Do(t.Context(), request("A"), func(context.Context, *intent.Lease) (any, error) {
				time.Sleep(time.Millisecond)
				return nil, errWork
			})
			released <- err
		}()

		a, err := m.Do(t.Context(), request("A"), func(ctx context.Context, l *intent.Lease) (any, error) {
			require.ErrorIs(t, <-released, errWork)
			_, err := store.WriteStreams(ctx, l.Confirmation(receipt{"R1"})...)
			return nil, err
		})

		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.Equal(t, intent.Free, a.Intent.Status)
	})
}
