package reservation_test

import (
	"bytes"
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/reservation"
)

// forms are the functions that package reservation makes, over a reserver. An effect of a handler is a call of effect.
var forms = map[string]func(r *reservation.Reserver, effect func()) handler.Handler[Deposit]{
	"Copy": func(r *reservation.Reserver, effect func()) handler.Handler[Deposit] {
		return reservation.Copy(r, Deposit.Key, func(context.Context, handler.Message[Deposit]) error {
			effect()
			return nil
		})
	},
	"Inline": func(r *reservation.Reserver, effect func()) handler.Handler[Deposit] {
		return reservation.Inline(r, Deposit.Key, func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			effect()
			return nil, nil
		})
	},
	"Initiate": func(r *reservation.Reserver, effect func()) handler.Handler[Deposit] {
		return reservation.Initiate(r, func(handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
			effect()
			return "accountTransaction-AAA", Deposited{1}
		})
	},
}

func muxOf(f handler.Handler[Deposit]) *handler.Mux {
	mux := handler.New()
	handler.Register(mux, f)
	return mux
}

// catchUpAs is a process that runs a consumer of the commands.
func catchUpAs(t *testing.T, store consumer.Store, name string, h consumer.Handler) (*consumer.Consumer, error) {
	t.Helper()
	c := testkit.Must(consumer.New(store, commands, name, h, &consumer.Config{Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Then: consumer.ParkMessage}}))
	return c, c.CatchUp(t.Context())
}

// The second consumer would find each key taken, and have no effect.
func TestASecondConsumerWithAReserverOfTheSameNameIsStopped(t *testing.T) {
	t.Parallel()
	for first, of := range forms {
		for second, then := range forms {
			if first != second && (first == "Initiate" || second == "Initiate") {
				continue // they do not meet
			}
			t.Run(first+" "+second, func(t *testing.T) {
				t.Parallel()
				store, effects := newStore(), 0
				send(t, store, command, Deposit{"AAA", 10})
				_, err := catchUpAs(t, store, "accounts", muxOf(of(newReserver(t, store, nil), func() {})))
				require.NoError(t, err)

				c, err := catchUpAs(t, store, "receipts", muxOf(then(newReserver(t, store, nil), func() { effects++ })))

				require.ErrorContains(t, err, `reserver "accounts" of consumer receipts has the name of a reserver of consumer accounts, which made the reservation account`, "%d effects", effects)
				require.Zero(t, c.Stats().Parked)
				require.Zero(t, c.Stats().Position)
			})
		}
	}
}

// The consumer that is renamed starts from the beginning, and finds what it has done under its other name.
func TestAConsumerThatIsRenamedFindsItsReservations(t *testing.T) {
	t.Parallel()
	for form, of := range forms {
		store, effects := newStore(), 0
		send(t, store, command, Deposit{"AAA", 10})
		config := &reservation.Config{Consumers: []string{"accounts"}}
		effect := func() { effects++ }
		_, err := catchUpAs(t, store, "accounts", muxOf(of(newReserver(t, store, nil), effect)))
		require.NoError(t, err, form)
		before := effects

		_, err = catchUpAs(t, store, "ledger", muxOf(of(newReserver(t, store, config), effect)))

		require.NoError(t, err, form)
		if form == "Inline" {
			require.Equal(t, before, effects, form)
		}
	}
	_, err := reservation.New(newStore(), "accounts", &reservation.Config{Consumers: []string{""}})
	require.ErrorContains(t, err, `invalid consumers ""`)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

// audited wraps a function, as a user does.
func audited(next handler.Func[Deposit]) handler.Func[Deposit] {
	return func(ctx context.Context, m handler.Message[Deposit]) error { return next(ctx, m) }
}

// wrapped hides what the mux tells.
func wrapped(mux *handler.Mux) consumer.Handler { return handler.HandlerFunc(mux.Handle) }

// There is no message yet: the consumer is refused before one comes, also if a wrapper is around the handler and a
// middleware around the mux. Behind a handler that hides the mux, it is at the first message.
func TestAReserverOverAnotherStoreIsRefusedWhenTheConsumerStarts(t *testing.T) {
	t.Parallel()
	for form, of := range forms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, effects := newStore(), 0
				h := of(newReserver(t, newStore(), nil), func() { effects++ })
				mux, around := muxOf(h), muxOf(h.Wrap(audited))
				around.Use(handler.Timeout(time.Minute))
				requireRefused := func(c *consumer.Consumer) {
					t.Helper()
					before := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
					defer cancel()
					err := c.Run(ctx)
					require.ErrorContains(t, err, "it is another store than that of consumer accounts")
					require.ErrorIs(t, err, messagestore.ErrInvalid)
					require.Zero(t, time.Since(before))
					require.Zero(t, effects)
				}
				config := &consumer.Config{Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Then: consumer.ParkMessage}}

				requireRefused(testkit.Must(consumer.New(store, commands, "accounts", mux, config)))
				requireRefused(testkit.Must(consumer.New(store, commands, "accounts", around, config)))
				positions, err := operate.Consumers(t.Context(), store, commands)
				require.NoError(t, err)
				require.Len(t, positions, 1)
				require.Empty(t, positions[0].Replicas, "it has left its group")

				send(t, store, command, Deposit{"AAA", 10})
				c := testkit.Must(consumer.New(store, commands, "accounts", wrapped(mux), config))
				requireRefused(c)
				require.EqualValues(t, 1, c.Stats().Failed)
				require.Zero(t, c.Stats().Parked)
			})
		})
	}
}

// A store that is decorated is the same store.
func TestAReserverOverADecoratedStoreIsNoOther(t *testing.T) {
	t.Parallel()
	store, effects := newStore(), 0
	type decorated struct{ *messagestore.Store }
	send(t, store, command, Deposit{"AAA", 10})

	_, err := catchUpAs(t, decorated{store}, "accounts", muxOf(forms["Inline"](newReserver(t, store, nil), func() { effects++ })))

	require.NoError(t, err)
	require.Equal(t, 1, effects)
}

// A journal is the log of a consumer.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *journal) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *journal) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// The copies wait in the category for a consumer that has them handled.
func TestACategoryOfCopiesThatNoConsumerReadsIsNamedOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		form string
		read bool
		want int
	}{
		"no consumer": {"Copy", false, 1}, "a consumer": {"Copy", true, 0}, "no copies": {"Inline", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log journal
			store := newStore()
			for _, key := range []string{"AAA", "BBB"} {
				send(t, store, command, Deposit{key, 10})
			}
			once := newReserver(t, store, &reservation.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&log)))})
			mux := muxOf(forms[test.form](once, func() {}))
			if test.read {
				c := testkit.Must(consumer.New(store, once.Category(commands), "accounts", mux, &consumer.Config{Logger: logger.Silent()}))
				require.NoError(t, c.CatchUp(t.Context()))
			}

			c := testkit.Must(consumer.New(store, commands, "accounts", mux, &consumer.Config{Logger: logger.Silent()}))
			require.NoError(t, c.CatchUp(t.Context()))

			require.Equal(t, test.want, log.count("no consumer has read the category of the copies yet"))
			require.Equal(t, test.want, log.count(`"copies":"account:command+reservation+accounts"`))
		})
	}
}

// A function that panics has failed, in every form: what it panics with is no disposition, its message is parked by the
// policy with the place of the panic, and no key is taken.
func TestAPanicIsNoDispositionInAnyForm(t *testing.T) {
	t.Parallel()
	no := func() { panic(handler.Skip("not mine")) }
	for name, of := range map[string]func(t *testing.T, store *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit]{
		"Copy": func(_ *testing.T, _ *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			return forms["Copy"](r, no)
		},
		"Inline": func(_ *testing.T, _ *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			return forms["Inline"](r, no)
		},
		"Initiate": func(_ *testing.T, _ *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			return forms["Initiate"](r, no)
		},
		"Transact": func(t *testing.T, store *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			t.Helper()
			txs, err := messagestore.Transactional[*sql.Tx](store)
			require.NoError(t, err)
			return reservation.Transact(txs, r, Deposit.Key, func(context.Context, *sql.Tx, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
				no()
				return nil, nil
			})
		},
		"intent.Do": func(_ *testing.T, store *messagestore.Store, _ *reservation.Reserver) handler.Handler[Deposit] {
			m := testkit.Must(intent.New(store, "account:intent", &intent.Config{Logger: logger.Silent()}))
			return handler.NewHandler(func(ctx context.Context, d handler.Message[Deposit]) error {
				_, _, err := intent.Do(ctx, m, intent.Request{Key: d.Body.DepositID, Content: d.Body}, func(context.Context, *intent.Lease) (int, error) {
					no()
					return 0, nil
				})
				return err
			}, nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := keptBySQLite(t)
			r := newReserver(t, k.Store, &reservation.Config{Logger: logger.Silent()})
			mux, category := muxOf(of(t, k.Store, r)), commands
			send(t, k.Store, command, Deposit{"AAA", 10})
			run := func(category messagestore.Category) consumer.Stats {
				c := testkit.Must(consumer.New(k.Store, category, "accounts", mux, &consumer.Config{
					Start: consumer.FromStart(), Logger: logger.Silent(),
					Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
				}))
				require.NoError(t, c.CatchUp(t.Context()))
				return c.Stats()
			}
			stats := run(category)
			if name == "Copy" { // its function is called with the copy
				require.Equal(t, int64(1), stats.Handled)
				category = r.Category(commands)
				stats = run(category)
			} else {
				require.False(t, k.isTaken(t, command, "AAA"))
			}

			require.Equal(t, [3]int64{1, 1, 0}, [3]int64{stats.Failed, stats.Parked, stats.Skipped})
			parked := parkedOf(t, k.Store, category, "accounts")
			require.Len(t, parked, 1)
			require.Contains(t, parked[0].Error, "panic: not mine")
			require.Contains(t, parked[0].Error, "TestAPanicIsNoDispositionInAnyForm")
		})
	}
}

// parkedOf returns what a consumer has parked.
func parkedOf(t *testing.T, store *messagestore.Store, category messagestore.Category, name string) []queue.Item {
	t.Helper()
	parked, err := testkit.Must(operate.Consumer(store, category, name).Parked()).Items(t.Context(), queue.Dead, 0, 1000)
	require.NoError(t, err)
	return parked
}
