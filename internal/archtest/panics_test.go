package archtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/upcast"
)

// theBrokenFunction does not return: it panics, or ends its goroutine.
func theBrokenFunction(exits bool) {
	if exits {
		runtime.Goexit()
	}
	panic("broken")
}

// A stackLog has the stacks that were logged.
type stackLog struct {
	mu     sync.Mutex
	stacks []string
}

func (l *stackLog) Write(line []byte) (int, error) {
	var event struct{ Stack string }
	if err := json.Unmarshal(line, &event); err != nil {
		return 0, err
	}
	if event.Stack != "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stacks = append(l.stacks, event.Stack)
	}
	return len(line), nil
}

func (l *stackLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stacks
}

// aHeldBefore is an older form of held.
type aHeldBefore struct{}

func (aHeldBefore) MessageType() string { return "HeldBefore" }

type room struct{}

var errNoRoom = errors.New("there is no room")

type aSink func()

func (s aSink) Send(context.Context, *outbox.Message) error {
	s()
	return nil
}

type manyAtOnce struct{ aSink }

func (s manyAtOnce) SendAll(_ context.Context, messages []*outbox.Message) []error {
	s.aSink()
	return make([]error, len(messages))
}

// Wherever a function of the caller does not return, the place is in the log, though it is called in a goroutine of the
// library's.
func TestAFunctionThatDoesNotReturnIsLoggedWithItsPlace(t *testing.T) {
	t.Parallel()
	handled := func(store *messagestore.Store, log logger.Logger, mux *handler.Mux) func(context.Context) error {
		return testkit.Must(consumer.New(store, seats, "seats", mux, &consumer.Config{Logger: log})).Run
	}
	one := func(of *saga.Step[hold, hold]) saga.Steps { return saga.Steps{of} }
	run := func(of *saga.Step[hold, hold]) func(*saga.Run, hold) (hold, error) {
		return func(r *saga.Run, in hold) (hold, error) {
			if _, err := of.Do(r, in); err != nil {
				return in, err
			}
			return in, errNoRoom
		}
	}
	begun := func(
		t *testing.T, store *messagestore.Store, log logger.Logger, f func(*saga.Run, hold) (hold, error), steps saga.Steps,
	) func(context.Context) error {
		t.Helper()
		s, err := saga.New(store, "hold", f, steps, &saga.Config{Logger: log})
		require.NoError(t, err)
		_, err = s.Begin(t.Context(), "7", hold{})
		require.NoError(t, err)
		return s.Run
	}
	pass := func(context.Context, hold) (hold, error) { return hold{}, nil }
	for name, start := range map[string]func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error{
		"a handler": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			mux := handler.New()
			handler.On(mux, func(context.Context, handler.Message[held]) error { breaks(); return nil })
			return handled(store, log, mux)
		},
		"a handler of a queue": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			mux := handler.New()
			handler.On(mux, func(context.Context, handler.Message[held]) error { breaks(); return nil })
			q := testkit.Must(queue.New(store, seats, &queue.Config{Logger: log}))
			return func(ctx context.Context) error { return q.Work(ctx, mux, nil) }
		},
		"a middleware": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			mux := handler.New()
			handler.On(mux, func(context.Context, handler.Message[held]) error { return nil })
			mux.Use(handler.Log(log), func(handler.HandlerFunc) handler.HandlerFunc {
				return func(context.Context, *messagestore.Message) error { breaks(); return nil }
			})
			return handled(store, log, mux)
		},
		"an older form": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			mux := handler.New()
			handler.On(mux, func(context.Context, handler.Message[held]) error { return nil },
				upcast.From(func(aHeldBefore) held { breaks(); return held{} }))
			return handled(store, log, mux)
		},
		"a projection": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			p := entity.NewProjection[room]()
			entity.On(p, func(r room, _ held) room { breaks(); return r })
			rooms := testkit.Must(entity.New(store, seats, p, nil))
			mux := handler.New()
			handler.On(mux, func(ctx context.Context, _ handler.Message[held]) error {
				_, _, err := rooms.Get(ctx, "1")
				return err
			})
			return handled(store, log, mux)
		},
		"a key function": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			mux := handler.New()
			once := testkit.Must(reservation.New(store, "seats", nil))
			key := func(held) string { breaks(); return "1" }
			handler.Register(mux, reservation.Inline(once, key, func(context.Context, handler.Message[held]) ([]messagestore.StreamWrite, error) {
				return nil, nil
			}))
			return handled(store, log, mux)
		},
		"an inbox": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			u, err := inbox.New(transactional(t, store), seats, nil)
			require.NoError(t, err)
			mux := handler.New()
			handler.On(mux, func(ctx context.Context, m handler.Message[held]) error {
				_, err := u.Receive(ctx, inbox.Request{ID: m.ID.String()}, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
					breaks()
					return nil, nil
				})
				return err
			})
			return handled(store, log, mux)
		},
		"the work of an intent": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			intents, err := intent.New(store, "seat:intent", &intent.Config{Logger: log})
			require.NoError(t, err)
			mux := handler.New()
			handler.On(mux, func(ctx context.Context, _ handler.Message[held]) error {
				_, err := intents.Do(ctx, intent.Request{Key: "1", Session: "1", Content: "1"}, func(context.Context, *intent.Lease) (any, error) {
					breaks()
					return "", nil
				})
				return err
			})
			return handled(store, log, mux)
		},
		"a sink": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			return testkit.Must(outbox.New(store, seats, "seats", aSink(breaks), &outbox.Config{Logger: log})).Run
		},
		"a sink of many": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			return testkit.Must(outbox.New(store, seats, "seats", manyAtOnce{aSink(breaks)}, &outbox.Config{Logger: log})).Run
		},
		"the topic of a relay": func(_ *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			return testkit.Must(outbox.New(store, seats, "seats", aSink(func() {}), &outbox.Config{
				Logger: log, Topic: func(*messagestore.Message) string { breaks(); return "" },
			})).Run
		},
		"a saga": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			return begun(t, store, log, func(_ *saga.Run, in hold) (hold, error) { breaks(); return in, nil }, nil)
		},
		"a value of a saga": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			return begun(t, store, log, func(r *saga.Run, in hold) (hold, error) {
				_, err := saga.Value(r, "day", func() int { breaks(); return 1 })
				return in, err
			}, nil)
		},
		"a step": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			step := saga.NewStep("held", func(context.Context, hold) (hold, error) { breaks(); return hold{}, nil }, nil, nil)
			return begun(t, store, log, run(step), one(step))
		},
		"the undo of a step": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			step := saga.NewStep("held", pass, func(context.Context, hold, *hold) error { breaks(); return nil }, nil)
			return begun(t, store, log, run(step), one(step))
		},
		"a transaction of a saga": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			step := saga.NewTxStep("held", transactional(t, store), func(context.Context, *sql.Tx, hold) (hold, error) {
				breaks()
				return hold{}, nil
			}, func(context.Context, *sql.Tx, hold, *hold) error { return nil }, nil)
			return begun(t, store, log, func(r *saga.Run, in hold) (hold, error) { return step.Do(r, in) }, saga.Steps{step})
		},
		"the undo of a transaction": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			step := saga.NewTxStep("held", transactional(t, store), func(context.Context, *sql.Tx, hold) (hold, error) {
				return hold{}, nil
			}, func(context.Context, *sql.Tx, hold, *hold) error { breaks(); return nil }, nil)
			return begun(t, store, log, func(r *saga.Run, in hold) (hold, error) {
				_, _ = step.Do(r, in)
				return in, errNoRoom
			}, saga.Steps{step})
		},
		"the command of a saga": func(t *testing.T, store *messagestore.Store, log logger.Logger, breaks func()) func(context.Context) error {
			t.Helper()
			ask := saga.NewAsk[hold, hold]("held", func(context.Context, hold) (messagestore.StreamWrite, error) {
				breaks()
				return messagestore.StreamWrite{}, nil
			}, nil, nil)
			return begun(t, store, log, func(r *saga.Run, in hold) (hold, error) { return ask.Do(r, in) }, saga.Steps{ask})
		},
	} {
		for end, exits := range map[string]bool{"panics": false, "ends its goroutine": true} {
			t.Run(name+" "+end, func(t *testing.T) {
				t.Parallel()
				store, err := dibs.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "store.db"), nil)
				require.NoError(t, err)
				defer store.Close()
				body := messagestore.Body(held{})
				if name == "an older form" {
					body = aHeldBefore{}
				}
				write(t, store, "seat-1", body)
				log := &stackLog{}
				run := start(t, store, logger.Zerolog(zerolog.New(log)), func() { theBrokenFunction(exits) })
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- run(ctx) }()

				testkit.Await(t, "the place in the log", func() (bool, any) {
					stacks := log.all()
					return slices.ContainsFunc(stacks, func(stack string) bool { return strings.Contains(stack, "archtest.theBrokenFunction(") }), stacks
				})
				stop()
				require.NoError(t, testkit.Receive(t, "the end", ended))
			})
		}
	}
}

func transactional(t *testing.T, store *messagestore.Store) *messagestore.TxStore[*sql.Tx] {
	t.Helper()
	txs, err := messagestore.Transactional[*sql.Tx](store)
	require.NoError(t, err)
	return txs
}

func TestAMiddlewareThatPanicsAsItIsPutAroundIsNamedWithThePlace(t *testing.T) {
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[held]) error { return nil })
	mux.Use(func(handler.HandlerFunc) handler.HandlerFunc { theBrokenFunction(false); return nil })

	err := mux.Handle(t.Context(), write(t, newStore(), "seat-1", held{}))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "must not panic when it wraps a handler: panic: broken")
	var panicked *calling.PanicError
	require.ErrorAs(t, err, &panicked)
	require.Contains(t, string(panicked.Stack), "archtest.theBrokenFunction(")
}
