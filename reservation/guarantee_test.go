package reservation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// onEachDriver runs a test of a promise on every driver that there is.
func onEachDriver(t *testing.T, test func(t *testing.T, driver messagestore.Driver)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, memory.New())
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "dibs.db"), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, driver.Close()) })
		test(t, driver)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		pool, schema := pgtest.Schema(t)
		test(t, testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema})))
	})
}

// R1 and R2: for any number of concurrent, repeated and crashed attempts there is
// exactly one message in a reservation's stream, at position 0, as soon as one
// attempt was answered; and each answer names the same command as the winner.
func TestOneOfManyAttemptsReserves(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, driver messagestore.Driver) {
		const keys, sources, workers = 4, 4, 3
		var random sync.Mutex
		chance := rand.New(rand.NewPCG(1, 2))
		plain := testkit.Must(messagestore.New(driver, nil))
		broken := newFaulty(&faulty{
			Driver: driver,
			next: func() fault {
				random.Lock()
				defer random.Unlock()
				return fault(chance.IntN(8)) // of which four work
			},
			reads: func() error {
				random.Lock()
				defer random.Unlock()
				if chance.IntN(4) == 0 {
					return errLost
				}
				return nil
			},
		})

		type attempt struct {
			source  *messagestore.Message
			key     string
			outcome reservation.Outcome
		}
		var mu sync.Mutex
		var acked []attempt
		var group sync.WaitGroup
		for key := range keys {
			for range sources {
				name := fmt.Sprint("key ", key)
				source := send(t, plain, commands.Stream("123"), Deposit{name, 10})
				for range workers {
					group.Go(func() {
						r := testkit.Must(reservation.New(broken, "accounts", nil))
						for range 6 { // then it crashes
							result, err := r.Reserve(context.Background(), source, name)
							if err != nil {
								continue
							}
							mu.Lock()
							acked = append(acked, attempt{source, name, result.Outcome})
							mu.Unlock()
						}
					})
				}
			}
		}
		group.Wait()

		winners := map[string]*messagestore.Message{}
		reservedNow := map[string]int{}
		require.NotEmpty(t, acked)
		for _, a := range acked {
			reserved := all(t, plain, place(command, "accounts").With(a.key))
			require.Len(t, reserved, 1, "acknowledged, so there, and once")
			require.Equal(t, messagestore.Version(0), reserved[0].Position)
			wins := reserved[0].Metadata.CausationPosition == a.source.Position
			require.Equal(t, wins, a.outcome == reservation.Reserved || a.outcome == reservation.Redelivered)
			require.Equal(t, !wins, a.outcome == reservation.Duplicate)
			if wins {
				winners[a.key] = a.source
			}
			if a.outcome == reservation.Reserved {
				reservedNow[a.key]++
			}
		}
		for key, n := range reservedNow {
			require.Equal(t, 1, n, "attempts at %s that have reserved it now", key)
		}
		require.LessOrEqual(t, len(winners), keys)
	})
}

// R4: the effect of a command is written once for its key, however often it is
// issued and delivered, by however many consumers at once, with answers lost on the
// way.
func TestAnEffectIsWrittenOnceForItsKey(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(t *testing.T, store *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit]{
		"copy, with an id": func(_ *testing.T, store *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			return reservation.Copy(r, Deposit.Key, func(ctx context.Context, m handler.Message[Deposit]) error {
				_, err := store.Write(ctx, messagestore.StreamName("account-"+m.Stream.CardinalID()), messagestore.AnyVersion, messagestore.Envelope{
					ID: reservation.DeriveID(m.Message, "deposited"), Body: Deposited{m.Body.Amount},
				})
				return err
			})
		},
		"copy, with a look at the entity": func(_ *testing.T, store *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			return reservation.Copy(r, Deposit.Key, func(ctx context.Context, m handler.Message[Deposit]) error {
				stream, version := messagestore.StreamName("account-"+m.Stream.CardinalID()), messagestore.NoStream
				for event, err := range store.ReadStream(ctx, stream, 0) {
					if err != nil {
						return err
					}
					if event.Metadata.CausationStream == m.Stream {
						return nil // it is done
					}
					version = event.Position
				}
				_, err := store.Write(ctx, stream, version, messagestore.Follow(m.Message, Deposited{m.Body.Amount}))
				return err
			})
		},
		"inline": func(t *testing.T, store *messagestore.Store, r *reservation.Reserver) handler.Handler[Deposit] {
			t.Helper()
			return reservation.Inline(r, Deposit.Key, depositing(store))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachDriver(t, func(t *testing.T, driver messagestore.Driver) {
				const keys, issues, accounts, deliverers = 6, 3, 2, 3
				var random sync.Mutex
				chance := rand.New(rand.NewPCG(3, 4))
				plain := testkit.Must(messagestore.New(driver, nil))
				broken := newFaulty(&faulty{Driver: driver, next: func() fault {
					random.Lock()
					defer random.Unlock()
					if chance.IntN(5) == 0 {
						return losesReply
					}
					return works
				}})
				mux := handler.New()
				handler.Register(mux, build(t, broken, newReserver(t, broken, nil)))
				for range issues {
					for key := range keys {
						send(t, plain, commands.Stream(fmt.Sprint(key%accounts)), Deposit{fmt.Sprint("k", key), 10})
					}
				}

				// Several that know nothing of each other deliver everything, twice.
				var group sync.WaitGroup
				for range deliverers {
					group.Go(func() {
						for range 2 {
							if err := deliver(plain, mux); err != nil {
								t.Error(err)
							}
						}
					})
				}
				group.Wait()

				for account := range accounts {
					require.Len(t, all(t, plain, messagestore.StreamName(fmt.Sprint("account-", account))), keys/accounts)
				}
			})
		})
	}
}

// deliver hands every command to mux until it is handled, and then every copy.
func deliver(store *messagestore.Store, mux *handler.Mux) error {
	return errors.Join(deliverAll(store, mux, commands), deliverAll(store, mux, place(command, "accounts").Category()))
}

func deliverAll(store *messagestore.Store, mux *handler.Mux, category messagestore.Category) error {
	for m, err := range store.ReadCategory(context.Background(), category, 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		attempts := 0
		for err = mux.Handle(context.Background(), m); err != nil && attempts < 100; attempts++ {
			err = mux.Handle(context.Background(), m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// R3, under any race: each of two commands with one key and different content
// is handled or parked.
func TestOfTwoDifferentCommandsWithOneKeyNoneIsLost(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, driver messagestore.Driver) {
		store := testkit.Must(messagestore.New(driver, nil))
		var mu sync.Mutex
		var handled, reused []int
		mux := handler.New()
		handler.Register(mux, reservation.Copy(newReserver(t, store, nil), Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) error {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, m.Body.Amount)
			return nil
		}))
		var group sync.WaitGroup
		for key := range 10 {
			for amount := range 2 {
				m := send(t, store, commands.Stream("1"), Deposit{fmt.Sprint("k", key), 2*key + amount})
				group.Go(func() {
					switch err := mux.Handle(context.Background(), m); {
					case isKeyReused(err):
						mu.Lock()
						defer mu.Unlock()
						reused = append(reused, 2*key+amount)
					case err != nil:
						t.Error(err)
					}
				})
			}
		}
		group.Wait()

		require.NoError(t, catchUp(t, store, mux, nil))

		require.Len(t, handled, 10)
		parked := parkedOf(t, store, commands, "accounts")
		require.Len(t, parked, 10)
		for _, p := range parked {
			require.Contains(t, p.Error, "idempotence key reused")
		}
		each := slices.Concat(handled, reused)
		slices.Sort(each)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, each)
	})
}
