package reservation_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/postgres/postgrestest"
	"github.com/dibs-go/dibs/reservation"
)

const (
	daily    = 24 * time.Hour
	kept     = messagestore.Category("accountTransaction")
	keptName = messagestore.StreamName("accountTransaction-123+accounts+AAA")
)

// An ahead store has a clock that was put forward.
type ahead struct {
	*messagestore.Store
	by time.Duration
}

func (a ahead) Now(ctx context.Context) (time.Time, error) {
	now, err := a.Store.Now(ctx)
	return now.Add(a.by), err
}

// expiring makes handlers of deposits whose keys are kept for a day.
var expiring = map[string]func(r *reservation.Reserver, handled *[]string) handler.Func[Deposit]{
	"Copy": func(r *reservation.Reserver, handled *[]string) handler.Func[Deposit] {
		return reservation.Copy(r, Deposit.Key, counting[Deposit](handled))
	},
	"Inline": func(r *reservation.Reserver, handled *[]string) handler.Func[Deposit] {
		return reservation.Inline(r, Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			*handled = append(*handled, m.String())
			return []messagestore.StreamWrite{messagestore.To("account-123", messagestore.AnyVersion, messagestore.Follow(m.Message, Deposited{m.Body.Amount}))}, nil
		})
	},
}

func TestAKeyIsFreeAfterItsRetentionAndNotBefore(t *testing.T) {
	t.Parallel()
	for name, f := range expiring {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var results []reservation.Result
				var handled []string
				store := newStore()
				r := newReserver(t, store, &reservation.Config{Category: kept, Retention: daily, OnOutcome: func(_ context.Context, _ *messagestore.Message, result reservation.Result) {
					results = append(results, result)
				}})
				mux := handler.New()
				handler.On(mux, f(r, &handled))
				again := func() reservation.Result {
					send(t, store, command, Deposit{"AAA", 10})
					catchUpAll(t, store, mux, commands, kept)
					return results[len(results)-1]
				}

				first := again()
				time.Sleep(daily - time.Microsecond)
				early := again()
				time.Sleep(time.Microsecond)
				late := again()
				after := again()

				require.Len(t, handled, 2)
				require.Equal(t, []reservation.Outcome{reservation.Reserved, reservation.Duplicate, reservation.Reserved, reservation.Duplicate},
					[]reservation.Outcome{first.Outcome, early.Outcome, late.Outcome, after.Outcome})
				require.Equal(t, []bool{false, false, true, true}, []bool{first.Expired, early.Expired, late.Expired, after.Expired})
				require.Equal(t, messagestore.Version(1), late.Winner.Position)
				require.Equal(t, late.Winner.ID, after.Winner.ID)

				// It is on record: both reservations are there, and the second tells the time of the first.
				reservations := all(t, store, keptName)
				require.Len(t, reservations, 2)
				require.Equal(t, reservations[0].Time.Format(time.RFC3339Nano), reservations[1].Metadata.Local.Get("reservedExpired"))
				require.Empty(t, reservations[0].Metadata.Local.Get("reservedExpired"))
			})
		})
	}
}

// A command with other content reuses the key within the retention, and is like any other after it.
func TestAReusedKeyIsParkedUntilItsRetentionIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		r := newReserver(t, store, &reservation.Config{Category: kept, Retention: daily})
		reserve := func(amount int) reservation.Result {
			result, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", amount}), "AAA")
			require.NoError(t, err)
			return result
		}

		require.Equal(t, reservation.Reserved, reserve(10).Outcome)
		require.Equal(t, reservation.KeyReused, reserve(11).Outcome)
		time.Sleep(daily)
		require.Equal(t, reservation.Reserved, reserve(11).Outcome)
		require.Equal(t, reservation.KeyReused, reserve(10).Outcome)
		time.Sleep(daily)
		third := reserve(10)
		require.Equal(t, reservation.Reserved, third.Outcome)
		require.Equal(t, messagestore.Version(2), third.Winner.Position)
	})
}

// The reservation of a command itself is its own, at any age, and behind others too.
func TestACommandThatIsRedeliveredLateMeetsItsOwnReservation(t *testing.T) {
	t.Parallel()
	for name, f := range expiring {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var handled []string
				store := newStore()
				mux := handler.New()
				handler.On(mux, f(newReserver(t, store, &reservation.Config{Category: kept, Retention: daily}), &handled))
				deliver := func(m *messagestore.Message) {
					require.NoError(t, mux.Handle(t.Context(), m))
				}
				first, second := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})

				deliver(first)
				time.Sleep(10 * daily)
				deliver(first)
				require.Len(t, all(t, store, keptName), 1, "its own, at any age")
				deliver(second)
				require.Len(t, all(t, store, keptName), 2)
				deliver(first)
				time.Sleep(daily)
				deliver(first)
				deliver(second)
				require.Len(t, all(t, store, keptName), 2, "their own, behind others too")
				deliver(send(t, store, command, Deposit{"AAA", 11}))
				deliver(first) // and is not taken for one that reuses the key
				deliver(second)
				require.Len(t, all(t, store, keptName), 3)
			})
		})
	}
}

// A slowClock has all racers know that a key has expired before the first of them writes.
type slowClock struct{ *memory.Driver }

func (d *slowClock) Now(ctx context.Context) (time.Time, error) {
	time.Sleep(time.Second)
	return d.Driver.Now(ctx)
}

func TestOfManyThatRaceForAnExpiredKeyOneWins(t *testing.T) {
	t.Parallel()
	for name, f := range expiring {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const racers = 20
				var told outcomes
				store := messagestore.New(&slowClock{memory.New()}, nil)
				first := newReserver(t, store, &reservation.Config{Category: kept, Retention: daily})
				_, err := first.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
				require.NoError(t, err)
				time.Sleep(daily)
				var commands []*messagestore.Message
				for range racers {
					commands = append(commands, send(t, store, command, Deposit{"AAA", 10}))
				}

				var group sync.WaitGroup
				for _, m := range commands { // each in a process of its own
					mux := handler.New()
					handler.On(mux, f(newReserver(t, store, &reservation.Config{Category: kept, Retention: daily, OnOutcome: told.on}), new([]string)))
					group.Go(func() {
						if err := mux.Handle(t.Context(), m); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()

				require.Equal(t, 1, told.count(reservation.Reserved))
				require.Equal(t, racers-1, told.count(reservation.Duplicate))
				require.Len(t, all(t, store, keptName), 2)
			})
		})
	}
}

func TestAnExpiredKeyIsToldAsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var handled []string
		store := newStore()
		r := newReserver(t, store, &reservation.Config{Category: kept, Retention: daily})
		mux := handler.New()
		handler.On(mux, expiring["Inline"](r, &handled))
		require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))
		effect, err := r.Outcome(t.Context(), command, "AAA")
		require.NoError(t, err)
		require.Equal(t, []any{true, false, 1}, []any{effect.Done, effect.Expired, len(effect.Events)})
		time.Sleep(daily)

		_, err = r.Lookup(t.Context(), command, "AAA")
		require.ErrorIs(t, err, messagestore.ErrNotFound)
		require.ErrorContains(t, err, "look up reservation accountTransaction-123+accounts+AAA: the reservation Deposit accountTransaction-123+accounts+AAA@0 of 2000-01-01T00:00:00Z has expired after 24h0m0s")
		effect, err = r.Outcome(t.Context(), command, "AAA")
		require.NoError(t, err)
		require.Equal(t, []any{false, true, true}, []any{effect.Done, effect.Expired, effect.Winner == nil})

		// Await waits for the command that has the key next, and returns its events alone.
		awaited := make(chan reservation.Effect, 1)
		go func() {
			effect, err := r.Await(t.Context(), command, "AAA")
			if err != nil {
				t.Error(err)
			}
			awaited <- effect
		}()
		synctest.Wait()
		require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))
		effect = <-awaited
		require.Equal(t, []any{true, true, 1}, []any{effect.Done, effect.Expired, len(effect.Events)})
		require.Equal(t, messagestore.Version(1), effect.Events[0].Position)
		require.NoError(t, store.Close())
	})
}

func TestAMessageThatIsNoReservationIsNotOvertakenByExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		r := newReserver(t, store, &reservation.Config{Category: kept, Retention: daily})
		send(t, store, keptName, Deposited{1})
		time.Sleep(daily)

		_, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")

		requireNoReservation(t, err, keptName)
	})
}

// A store that cannot tell the time.
type timeless struct{ reservation.Store }

func TestARetentionThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	least := reservation.New(newStore(), "accounts", &reservation.Config{Category: kept, Retention: reservation.MinRetention})
	require.NoError(t, least.Validate())
	all := reservation.New(timeless{newStore()}, "accounts", &reservation.Config{Retention: 1})
	for want, r := range map[string]*reservation.Reserver{
		`invalid retention "-1ns": it is at least 1m0s, or 0 for ever`:                   reservation.New(newStore(), "accounts", &reservation.Config{Category: kept, Retention: -1}),
		`invalid retention "59.999999999s": it is at least 1m0s`:                         reservation.New(newStore(), "accounts", &reservation.Config{Category: kept, Retention: reservation.MinRetention - 1}),
		`invalid retention "1ns": it is at least 1m0s`:                                   all,
		`invalid retention "1ns": it takes a Category`:                                   all,
		`invalid store: it does not tell the time, by`:                                   all,
		`invalid retention "24h0m0s": it takes a Category: keys that expire have one of`: reservation.New(newStore(), "accounts", &reservation.Config{Retention: daily}),
		"invalid store: it does not tell the time, by which keys expire":                 reservation.New(timeless{newStore()}, "accounts", &reservation.Config{Category: kept, Retention: daily}),
	} {
		require.ErrorIs(t, r.Validate(), messagestore.ErrInvalid)
		require.ErrorContains(t, r.Validate(), want)
	}
	mux := handler.New()
	handler.On(mux, reservation.Initiate(newReserver(t, newStore(), &reservation.Config{Category: kept, Retention: daily}),
		func(handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
			return "other-1", Deposited{1}
		}))
	require.ErrorContains(t, mux.Validate(), "invalid Initiate's reserver: its keys expire, and a stream that was started does not")
}

// A reserver on a driver without meetings reads the reservation that it has conflicted with.
func TestAKeyExpiresOnADriverThatTellsNoMeeting(t *testing.T) {
	t.Parallel()
	for name, f := range expiring {
		synctest.Test(t, func(t *testing.T) {
			var told outcomes
			store := messagestore.New(&unmeetingMemory{memory.New()}, nil)
			mux := handler.New()
			handler.On(mux, f(newReserver(t, store, &reservation.Config{Category: kept, Retention: daily, OnOutcome: told.on}), new([]string)))
			for range 3 {
				require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})), name)
				time.Sleep(daily)
			}
			require.Equal(t, 3, told.count(reservation.Reserved), name)
		})
	}
}

// unmeetingMemory hides the meetings of a driver.
type unmeetingMemory struct{ messagestore.AtomicDriver }

// The clock is the store's, and nothing that dibs verify looks at is violated.
func TestAKeyExpiresByTheClockOfPostgreSQL(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Pool(t, nil)
	store := messagestore.New(postgres.New(pool, nil), nil)
	for position, after := range []time.Duration{0, daily, 2 * daily} {
		for _, want := range []reservation.Outcome{reservation.Reserved, reservation.Duplicate} {
			at := ahead{store, after} // the reservation before was made a day ago by it
			if want == reservation.Duplicate {
				at.by = 0
			}
			r := newReserver(t, at, &reservation.Config{Category: kept, Retention: daily})

			result, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")

			require.NoError(t, err)
			require.Equal(t, want, result.Outcome)
			require.EqualValues(t, position, result.Winner.Position)
		}
	}

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	checked, err := admin.New(conn.Conn(), nil).Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, checked.Violations)
	require.EqualValues(t, 3, checked.Checked.Reservations)
}
