package intent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
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
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// An outageStore loses the answer to a write that was written, and fails every call after it for a time, or once
// and for all as a store that was closed.
type outageStore struct {
	*messagestore.Store

	mu    sync.Mutex
	loses int           // the answer to this write from now on, 1 for the next, 0 for none
	for_  time.Duration // the outage after it
	back  time.Time
	shut  bool
	calls int // that failed
}

// lose has the answer to a write lost: the next is 1.
func (s *outageStore) lose(write int, outage time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loses, s.for_ = write, outage
}

// goAway has every call fail from now on.
func (s *outageStore) goAway(outage time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = time.Now().Add(outage)
}

// shutDown has every call fail from now on, as after Close.
func (s *outageStore) shutDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
}

func (s *outageStore) failed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *outageStore) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.shut:
		s.calls++
		return fmt.Errorf("try: %w", messagestore.ErrClosed)
	case time.Now().Before(s.back):
		s.calls++
		return errBroken
	}
	return nil
}

// answer returns the error of a write that was written.
func (s *outageStore) answer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loses--; s.loses != 0 {
		return nil
	}
	s.back = time.Now().Add(s.for_)
	return &messagestore.OutcomeUnknownError{Cause: errBroken}
}

func (s *outageStore) TryWrite(
	ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body,
) (messagestore.Written, *messagestore.Conflict, error) {
	if err := errors.Join(ctx.Err(), s.err()); err != nil {
		return messagestore.Written{}, nil, err
	}
	written, met, err := s.Store.TryWrite(ctx, stream, expected, bodies...)
	if err == nil && met == nil {
		err = s.answer()
	}
	return written, met, err
}

func (s *outageStore) TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	if err := errors.Join(ctx.Err(), s.err()); err != nil {
		return nil, nil, err
	}
	written, met, err := s.Store.TryWriteStreams(ctx, writes...)
	if err == nil && met == nil {
		err = s.answer()
	}
	return written, met, err
}

func (s *outageStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if err := errors.Join(ctx.Err(), s.err()); err != nil {
		return nil, err
	}
	return s.Store.Last(ctx, stream)
}

func (s *outageStore) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if err := errors.Join(ctx.Err(), s.err()); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

// outaged runs f in a bubble, with a manager over a store that fails, and another over the same messages that
// has no part in it.
func outaged(t *testing.T, f func(t *testing.T, store *outageStore, m, other *intent.Manager, log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		inner := testkit.Must(messagestore.New(memory.New(), nil))
		store := &outageStore{Store: inner}
		var log bytes.Buffer
		m := manager(t, store, &intent.Config{TTL: time.Hour, Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&log)).Level(zerolog.WarnLevel))})
		f(t, store, m, manager(t, inner, nil), &log)
	})
}

// No caller can ask for the lease of a session that Reserve has made, so it does not stay for its TTL.
func TestALeaseThatNobodyWasToldOfIsReleasedWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	several := request("")
	several.With = []string{"l"}
	waits := request("")
	waits.Wait = time.Minute
	do := func(ctx context.Context, m *intent.Manager, r intent.Request) error {
		_, err := m.Do(ctx, r, func(context.Context, *intent.Lease) (any, error) { return nil, errors.New("it was called") })
		return err
	}
	reserve := func(ctx context.Context, m *intent.Manager, r intent.Request) error {
		_, err := m.Reserve(ctx, r)
		return err
	}
	for name, c := range map[string]struct {
		request intent.Request
		call    func(context.Context, *intent.Manager, intent.Request) error
	}{
		"reserved":          {request(""), reserve},
		"of several keys":   {several, reserve},
		"with a wait":       {waits, reserve},
		"for a call of Do":  {request(""), do},
		"of several, by Do": {several, do},
	} {
		for _, outage := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second} {
			for _, later := range []int{0, 1, 2} { // the write after the outage whose answer is lost as well: to have the lease again, or to release it
				t.Run(fmt.Sprint(name, " ", outage, " ", later), func(t *testing.T) {
					t.Parallel()
					outaged(t, func(t *testing.T, store *outageStore, m, other *intent.Manager, log *bytes.Buffer) {
						store.lose(1, outage)
						ctx, cancel := context.WithCancel(t.Context())
						time.AfterFunc(outage/2, cancel) // a caller that has gone changes nothing
						if later > 0 {
							time.AfterFunc(outage, func() { store.lose(later, min(outage/4, 300*time.Millisecond)) })
						}
						began := time.Now()

						err := c.call(ctx, m, c.request)

						require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
						require.LessOrEqual(t, time.Since(began), 5*time.Second+outage)
						for _, key := range append([]string{c.request.Key}, c.request.With...) {
							i, err := other.Lookup(t.Context(), "", key)
							require.NoError(t, err)
							require.Equal(t, intent.Free, i.Status, key)
							require.True(t, i.Released)
						}
						require.Empty(t, log.String())
						cancel()
					})
				})
			}
		}
	}
}

// A store that stays away keeps the caller for five seconds, and then the lease: the log says so.
func TestALeaseThatCannotBeReleasedIsInTheLog(t *testing.T) {
	t.Parallel()
	outaged(t, func(t *testing.T, store *outageStore, m, other *intent.Manager, log *bytes.Buffer) {
		store.lose(1, time.Minute)
		began := time.Now()

		_, err := m.Reserve(t.Context(), request(""))

		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.GreaterOrEqual(t, store.failed(), 10)
		require.Equal(t, intent.Held, lookup(t, other).Status)
		require.Contains(t, log.String(), "it may be held until its TTL is over")
	})
}

// A session whose place in the line was not told to it leaves the line when the store is back.
func TestAWaiterWhoseAnswerIsLostLeavesTheLine(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"", "B"} {
		for _, outage := range []time.Duration{0, 20 * time.Millisecond, time.Second, 3 * time.Second} {
			t.Run(fmt.Sprint(session, outage), func(t *testing.T) {
				t.Parallel()
				outaged(t, func(t *testing.T, store *outageStore, m, other *intent.Manager, _ *bytes.Buffer) {
					lease(t, other, request("A"))
					r := request(session)
					r.Wait = time.Hour
					store.lose(1, outage)

					_, err := m.Reserve(t.Context(), r)

					require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
					require.Empty(t, lookup(t, other).Line)
				})
			})
		}
	}
}

// Where the answer to the confirmation is lost, no later error of the store makes it a confirmation that was not made.
func TestAConfirmationThatMayHaveHappenedIsTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails func(store *outageStore, l *intent.Lease) error // before f returns
		took  time.Duration
		known bool  // that nothing was confirmed
		cause error // the last
	}{
		"the store stays away": {
			func(store *outageStore, _ *intent.Lease) error { store.lose(1, time.Minute); return nil },
			5 * time.Second, false, errBroken,
		},
		"the store is closed after it": {
			func(store *outageStore, _ *intent.Lease) error {
				store.lose(1, time.Minute)
				time.AfterFunc(2*time.Second, store.shutDown)
				return nil
			}, 3 * time.Second, false, messagestore.ErrClosed,
		},
		"a transaction of the work has confirmed": {
			func(store *outageStore, l *intent.Lease) error {
				_, err := store.WriteStreams(context.Background(), l.Confirmation("result")...)
				store.goAway(time.Minute)
				return err
			}, 5 * time.Second, false, errBroken,
		},
		"a transaction has confirmed, and the store is closed": {
			func(store *outageStore, l *intent.Lease) error {
				_, err := store.WriteStreams(context.Background(), l.Confirmation("result")...)
				store.shutDown()
				return err
			}, 0, false, messagestore.ErrClosed,
		},
		"the store was away before": {
			func(store *outageStore, _ *intent.Lease) error { store.goAway(time.Minute); return nil },
			5 * time.Second, true, errBroken,
		},
		"the store was closed before": {
			func(store *outageStore, _ *intent.Lease) error { store.shutDown(); return nil },
			0, true, messagestore.ErrClosed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outaged(t, func(t *testing.T, store *outageStore, m, other *intent.Manager, _ *bytes.Buffer) {
				var began time.Time

				_, _, err := intent.Do(t.Context(), m, request(""), func(_ context.Context, l *intent.Lease) (string, error) {
					began = time.Now()
					return "result", c.fails(store, l)
				})

				require.ErrorIs(t, err, c.cause)
				require.LessOrEqual(t, time.Since(began), c.took)
				require.Equal(t, !c.known, errors.Is(err, messagestore.ErrOutcomeUnknown), "%v", err)
				require.Equal(t, !c.known, lookup(t, other).Status == intent.Done)
			})
		})
	}
}

// A store that was closed stays so: it keeps no caller that waits, and its log has no outage.
func TestAClosedStoreEndsEachWaitAtOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	lines := logger.Zerolog(zerolog.New(zerolog.SyncWriter(&log)).Level(zerolog.WarnLevel))
	file, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "intents.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	store := testkit.Must(messagestore.New(file, &messagestore.Config{Logger: lines}))
	m := manager(t, store, &intent.Config{TTL: time.Hour, Logger: lines})
	held := lease(t, m, request("A"))
	_, stop := held.Keep(t.Context())
	defer stop()
	waits := map[string]func() error{
		"Reserve": func() error {
			r := request("B")
			r.Wait = time.Hour
			_, err := m.Reserve(t.Context(), r)
			return err
		},
		"Reserve of several keys": func() error {
			r := request("")
			r.With, r.Wait = []string{"l"}, time.Hour
			_, err := m.Reserve(t.Context(), r)
			return err
		},
		"Await": func() error {
			_, err := m.Await(t.Context(), "", "k")
			return err
		},
	}
	ended := make(chan error, len(waits))
	for _, wait := range waits {
		go func() { ended <- wait() }()
	}
	testkit.AwaitEqual(t, "a waiter stands in the line", 1, func() int { return len(lookup(t, m).Line) })

	require.NoError(t, store.Close())

	for range waits {
		require.ErrorIs(t, testkit.Receive(t, "the end of a wait", ended), messagestore.ErrClosed)
	}
	require.NotContains(t, log.String(), "store failed")
	require.NotContains(t, log.String(), "store is back")
}
