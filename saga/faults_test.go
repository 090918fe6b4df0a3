package saga_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/saga"
)

// standing is how the queue of the sagas stands.
func standing(t testing.TB, store *messagestore.Store) queuing.Status {
	t.Helper()
	driver, err := store.Driver()
	require.NoError(t, err)
	queues, is := driver.(queuing.Driver)
	require.True(t, is)
	all, err := queues.Queues(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

// Of 3,000 sagas one has a command that meets another version, for ever. It is suspended and seen, and no other notices.
func TestASagaThatCannotGoOnDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		_, err := store.Write(t.Context(), "car:command-1500", messagestore.NoStream, rent{"taken"})
		require.NoError(t, err)
		car := saga.NewAsk[trip, rented]("car", func(ctx context.Context, in trip) (messagestore.StreamWrite, error) {
			if in.To == "1500" {
				_ = w.call(ctx, "command", "")
			}
			return messagestore.To(messagestore.Category("car:command").Stream(in.To), messagestore.NoStream, rent{in.To}), nil
		}, nil, &saga.StepConfig{Timeout: time.Minute, Suspend: true})
		s := newSaga(t, store, func(r *saga.Run, in trip) (string, error) {
			_, err := car.Do(r, in)
			if failed, is := errors.AsType[*saga.StepError](err); is && failed.Reason == "none" {
				return "without", nil
			}
			return "with", err
		}, saga.Steps{car}, nil)
		const sagas = 3000
		for i := range sagas {
			begin(t, s, fmt.Sprint(i), trip{fmt.Sprint(i)})
			if i != 1500 {
				write(t, store, s.Refuse(fmt.Sprint(i), "car", "none"))
			}
		}
		defer running(t, s)()

		for i := range sagas {
			status := waitFor(t, s, fmt.Sprint(i))
			if i == 1500 {
				require.Equal(t, saga.StateSuspended, status.State)
				require.Contains(t, status.Reason, "version conflict")
				require.Contains(t, status.Steps[0].Error, "version conflict")
				continue
			}
			require.Equal(t, "without", status.Out, i)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		require.Equal(t, 5, w.calls["command"])
		now := standing(t, store)
		require.Equal(t, int64(1), now.Suspended)
		require.Zero(t, now.Out+now.Later)
	})
}

// A definite error of the database, in whatever part of a transaction it comes, is a failed attempt. What was done before
// is not done again, and no other saga notices.
func TestADefiniteErrorOfATransactionIsAnAttemptOnPostgreSQL(t *testing.T) {
	t.Parallel()
	exec := func(query string) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, query)
			return err
		}
	}
	for name, fault := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a deferred constraint": exec("insert into room values (7)"),
		"a trigger of COMMIT":   exec("insert into denied values (1)"),
		"an error passed over": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		},
		"a commit as text": exec("insert into seats values (1); commit"),
	} {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " undo ", undo), func(t *testing.T) {
				t.Parallel()
				th := onPgx(t)
				th.transact(t, exec(`create table hotel (id int primary key);
					create table room (hotel int references hotel deferrable initially deferred);
					create table denied (id int);
					create function deny() returns trigger language plpgsql as $$ begin raise exception 'not you' using errcode = '42501'; end $$;
					create constraint trigger deny after insert on denied deferrable initially deferred for each row execute function deny()`))
				do, back := fault, func(context.Context, pgx.Tx) error { return nil }
				if undo {
					do, back = back, do
				}
				hotel := saga.NewTxStep("hotel", th.txs,
					func(ctx context.Context, tx pgx.Tx, _ trip) (int, error) {
						return 1, errors.Join(th.w.call(ctx, "take", ""), do(ctx, tx))
					},
					func(ctx context.Context, tx pgx.Tx, _ trip, _ *int) error {
						return errors.Join(th.w.call(ctx, "give back", ""), back(ctx, tx))
					},
					&saga.StepConfig{Retry: saga.Retry{MaxAttempts: 3, MaxBackoff: time.Millisecond}, Undo: saga.Retry{MaxAttempts: 4, MaxBackoff: time.Millisecond}})
				flight, car := th.w.step("flight", nil), th.w.step("car", nil)
				th.w.fails("book car", 9, refusal("none"))
				s := newSaga(t, th.txs.Store, func(r *saga.Run, in trip) (int, error) {
					if _, err := flight.Do(r, in); err != nil || in.To == "OPO" {
						return 0, err
					}
					if _, err := hotel.Do(r, in); err != nil {
						return 0, err
					}
					_, err := car.Do(r, in)
					return 1, err
				}, saga.Steps{flight, hotel, car}, nil)
				defer running(t, s)()

				begin(t, s, "7", trip{"LIS"})
				status := waitInTime(t, s, "7")

				if undo {
					require.Equal(t, saga.StateSuspended, status.State, "%+v", status)
					require.Equal(t, "undo failed", status.Suspended)
					require.Equal(t, 4, th.w.calls["give back"])
				} else {
					require.Equal(t, saga.StateCompensated, status.State, "%+v", status)
					require.Equal(t, 3, th.w.calls["take"])
					require.Equal(t, 1, th.w.calls["cancel flight"])
				}
				require.Equal(t, 1, th.w.calls["book flight"], "it succeeded, and is recorded")
				begin(t, s, "8", trip{"OPO"})
				require.Equal(t, saga.StateCompleted, waitInTime(t, s, "8").State)
			})
		}
	}
}

// A gone error is that of a server that shuts down.
type gone struct{}

func (gone) Error() string    { return "terminating connection due to administrator command" }
func (gone) SQLState() string { return "57P01" }

// An outage of the database in a transaction is no failed attempt, and what was done before is not done again.
func TestAnOutageIsNoAttempt(t *testing.T) {
	t.Parallel()
	th := onSQLite(t)
	th.w.fails("take", 3, gone{})
	seats, flight := th.seats(), th.w.step("flight", nil)
	s := newSaga(t, th.txs.Store, func(r *saga.Run, in trip) (int, error) {
		if _, err := flight.Do(r, in); err != nil {
			return 0, err
		}
		return seats.Do(r, in)
	}, saga.Steps{seats, flight}, nil)
	defer running(t, s)()
	begin(t, s, "7", trip{"LIS"})

	status := waitInTime(t, s, "7")
	require.Equal(t, saga.StateCompleted, status.State, "%+v", status)
	require.Equal(t, "book flight, take, take, take, take", th.w.did())
	require.Equal(t, []string{"Started", "Began flight", "Done flight", "Began seats", "Done seats", "Completed"}, events(t, th.txs, "7"))
}

// What looks like an outage and is a saga's own, since the store takes all else, suspends the saga in the end.
func TestASagaThatMeetsAnOutageAloneIsSuspended(t *testing.T) {
	t.Parallel()
	th := onSQLite(t)
	th.w.fails("take", 100, gone{})
	seats := th.seats()
	s := newSaga(t, th.txs.Store, func(r *saga.Run, in trip) (int, error) { return seats.Do(r, in) }, saga.Steps{seats}, nil)
	begin(t, s, "7", trip{"LIS"})
	started, err := th.txs.Last(t.Context(), s.Category().Stream("7"))
	require.NoError(t, err)

	for range 99 {
		err := s.Turn(t.Context(), started, 0)
		require.ErrorIs(t, err, gone{})
		require.LessOrEqual(t, saga.PauseOf(err), 2*time.Second, "a deadline may end in it")
		require.Positive(t, saga.PauseOf(err))
	}
	status, err := s.Status(t.Context(), "7")
	require.NoError(t, err)
	require.Equal(t, saga.StateRunning, status.State)
	require.ErrorContains(t, s.Turn(t.Context(), started, 0), "terminating connection")

	status = waitInTime(t, s, "7")
	require.Equal(t, saga.StateSuspended, status.State)
	require.Equal(t, "failed", status.Suspended)
	require.Contains(t, status.Reason, "terminating connection")
	_, err = s.Resume(t.Context(), "7", "mended")
	require.NoError(t, err)
	defer running(t, s)()
	testkit.AwaitEqual(t, "the state of the saga", saga.StateCompleted, func() saga.State { return testkit.Must(s.Status(t.Context(), "7")).State })
}

// A transaction that waits for its connection for longer than the step's time is no attempt: nothing was called.
func TestAWaitForAConnectionIsNoAttempt(t *testing.T) {
	t.Parallel()
	th := onSQLite(t)
	seats := saga.NewTxStep[*sql.Tx, trip, int]("seats", th.txs, func(context.Context, *sql.Tx, trip) (int, error) { return 1, th.w.call(t.Context(), "take", "") }, nil,
		&saga.StepConfig{Timeout: 50 * time.Millisecond, Retry: saga.Retry{MaxAttempts: 1}})
	s := newSaga(t, th.txs.Store, func(r *saga.Run, in trip) (int, error) { return seats.Do(r, in) }, saga.Steps{seats}, nil)
	begin(t, s, "7", trip{"LIS"})
	started, err := th.txs.Last(t.Context(), s.Category().Stream("7"))
	require.NoError(t, err)
	th.transact(t, func(context.Context, *sql.Tx) error {
		require.ErrorIs(t, s.Turn(t.Context(), started, 0), context.DeadlineExceeded)
		return nil
	})
	require.Equal(t, []string{"Started"}, events(t, th.txs, "7"))
	require.Empty(t, th.w.did())
	defer running(t, s)()
	require.Equal(t, saga.StateCompleted, waitInTime(t, s, "7").State)
}

// Functions that never return are left to themselves. They hold up their own saga alone, and only for a time.
func TestAFunctionThatNeverReturnsHoldsItsSagaForATimeOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hangs     string
		state     saga.State
		did       string
		abandoned int64
	}{
		"a step":       {"book hotel", saga.StateCompensated, "book flight, book hotel, book hotel, cancel hotel?, cancel flight", 2},
		"an undo":      {"cancel hotel", saga.StateSuspended, "book flight, book hotel, cancel hotel?, cancel hotel?", 2},
		"the function": {"compute", saga.StateSuspended, "book flight, compute", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				end := make(chan struct{})
				defer close(end)
				hang := func(context.Context, int) error { <-end; return nil }
				w.on(test.hangs, hang)
				if test.hangs == "cancel hotel" {
					w.fails("book hotel", 9, refusal("full"))
				}
				policy := &saga.StepConfig{Timeout: time.Second, Retry: saga.Retry{MaxAttempts: 2}, Undo: saga.Retry{MaxAttempts: 2}}
				flight, hotel := w.step("flight", policy), w.step("hotel", policy)
				s := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) {
					out, err := flight.Do(r, in)
					if err != nil || in.To == "OPO" {
						return out, err
					}
					if test.hangs == "compute" {
						_ = w.call(r.Context(), "compute", "")
					}
					return hotel.Do(r, in)
				}, saga.Steps{flight, hotel}, &saga.Config{Concurrency: 2})
				defer running(t, s)()

				begin(t, s, "7", trip{"LIS"})
				time.Sleep(100 * time.Millisecond)
				began := time.Now()
				for i := range 100 {
					begin(t, s, fmt.Sprint("other ", i), trip{"OPO"})
				}
				for i := range 100 {
					require.Equal(t, saga.StateCompleted, waitFor(t, s, fmt.Sprint("other ", i)).State)
				}
				require.Less(t, time.Since(began), time.Second, "the others go on beside it")
				status := waitFor(t, s, "7")
				require.Equal(t, test.state, status.State)
				require.Less(t, time.Since(began), time.Minute)
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, what := range []string{"book flight", "book hotel", "cancel hotel", "cancel flight"} {
					require.LessOrEqual(t, w.calls[what], 102, what)
				}
				require.Equal(t, test.abandoned, s.Stats().Abandoned)
			})
		})
	}
}

// A saga that is held up by a step that does not return is cancelled, and undone by its deadline.
func TestASagaWhoseStepNeverReturnsIsCancelled(t *testing.T) {
	t.Parallel()
	for _, deadline := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			end := make(chan struct{})
			defer close(end)
			w.on("book hotel", func(context.Context, int) error { <-end; return nil })
			config := &saga.Config{}
			if deadline {
				config.Deadline = 5 * time.Second
			}
			s := travelWith(t, store, w, config, &saga.StepConfig{Timeout: time.Second, Retry: saga.Retry{MaxAttempts: 1000}})
			defer running(t, s)()
			begin(t, s, "7", trip{"LIS"})
			time.Sleep(time.Second)
			if !deadline {
				_, err := s.Cancel(t.Context(), "7", "the customer called")
				require.NoError(t, err)
			}
			began := time.Now()
			require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
			require.Less(t, time.Since(began), 20*time.Second)
			require.Equal(t, "book flight, book hotel, cancel hotel?, cancel flight", w.did())
		})
	}
}

// A time comes once and not early by the clock of the store, whatever the clocks of processes say, and whether one runs.
func TestTimesAreOfTheStoresClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} { // of the store's clock
		for _, runs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, a process runs: %v", ahead, runs), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					clock := func() time.Time { return time.Now().Add(ahead) }
					store, w := testkit.Must(messagestore.New(memory.NewWithClock(clock), nil)), newWorld()
					w.fails("book flight", 1, errDown)
					flight := w.step("flight", nil)
					var woke, slept atomic.Int64
					make := func() *saga.Saga[trip, int] {
						return newSaga(t, store, func(r *saga.Run, in trip) (int, error) {
							slept.CompareAndSwap(0, clock().UnixMicro())
							if err := r.Sleep("night", 10*time.Minute); err != nil {
								return 0, err
							}
							woke.CompareAndSwap(0, clock().UnixMicro())
							_, err := flight.Do(r, in)
							return 1, err
						}, saga.Steps{flight}, nil)
					}
					s := make()
					begin(t, s, "7", trip{"LIS"})
					stop := running(t, s)
					time.Sleep(time.Minute)
					if !runs {
						stop()
						time.Sleep(time.Hour)
						s = make()
						stop = running(t, s)
					}
					before := clock()
					require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
					stop()
					took := time.Duration(woke.Load()-slept.Load()) * time.Microsecond
					require.GreaterOrEqual(t, took, 10*time.Minute)
					if runs {
						require.Less(t, took, 10*time.Minute+200*time.Millisecond)
					} else {
						require.Less(t, clock().Sub(before), 3*time.Second, "it had passed")
					}
					require.Equal(t, "book flight, book flight", w.did())
				})
			})
		}
	}
}

// No step begins behind the deadline, though nothing has happened to the saga since its turn began.
func TestNoStepBeginsBehindTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.on("book hotel", func(context.Context, int) error { time.Sleep(5 * time.Second); return nil })
		s := travel(t, store, w, &saga.Config{Deadline: 3 * time.Second})
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		require.Equal(t, "the deadline is over", waitFor(t, s, "7").Reason)
		require.Equal(t, "book flight, book hotel, cancel hotel, cancel flight", w.did())
	})
}

// The stream of a saga that has not ended keeps its messages, whatever is trimmed.
func TestNothingOfAnOpenSagaIsTrimmed(t *testing.T) {
	t.Parallel()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	store, w := testkit.Must(messagestore.New(driver, nil)), newWorld()
	s := withCar(t, store, w, nil)
	stop := running(t, s)
	defer func() { stop() }()
	begin(t, s, "7", trip{"LIS"})
	begin(t, s, "8", trip{"OPO"})
	testkit.AwaitEqual(t, "the command", 1, func() int { return len(commands(t, store, "LIS")) })
	write(t, store, s.Reply("8", "car", rented{"a car"}))
	require.Equal(t, saga.StateCompleted, waitInTime(t, s, "8").State)
	testkit.AwaitEqual(t, "open sagas that wait, and turns", [2]int64{1, 0}, func() [2]int64 { // the turn of one that ends is reported behind its end
		is := standing(t, store)
		return [2]int64{is.Later, is.Out}
	})

	for _, err := range driver.TrimCategory(t.Context(), "booking:saga", &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}) {
		require.NoError(t, err)
	}
	require.Equal(t, []string{"Started", "Began car"}, events(t, store, "7"))
	require.Equal(t, []string{"Completed"}, events(t, store, "8"))
	_, err = driver.Delete(t.Context(), "booking:saga-7", messagestore.AnyVersion, nil)
	require.ErrorIs(t, err, retention.ErrOpenItem)
	write(t, store, s.Reply("7", "car", rented{"a car"}))
	require.Equal(t, saga.StateCompleted, waitInTime(t, s, "7").State)
}

// A person looks at a refused Ask, mends what was wrong, and resumes: the command is sent again, and its answer counts.
func TestARefusedAskIsAskedAgainAfterAResume(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{false, true} { // the refusal comes before the step
		synctest.Test(t, func(t *testing.T) { refusedAndAskedAgain(t, early) })
	}
}

func refusedAndAskedAgain(t *testing.T, early bool) {
	t.Helper()
	store := newStore()
	car := rental(nil)
	s := newSaga(t, store, func(r *saga.Run, in trip) (rented, error) {
		out, err := car.Do(r, in)
		if _, is := errors.AsType[*saga.StepError](err); is {
			return out, handler.Park(err)
		}
		return out, err
	}, saga.Steps{car}, nil)
	begin(t, s, "7", trip{"LIS"})
	refuse := func() { write(t, store, s.Refuse("7", "car", "no such customer")) }
	if early {
		refuse()
	}
	defer running(t, s)()
	if synctest.Wait(); !early {
		refuse()
	}
	require.Equal(t, saga.StateSuspended, waitFor(t, s, "7").State)
	write(t, store, s.Reply("7", "car", rented{"to the first"}))

	_, err := s.Resume(t.Context(), "7", "the customer is known now")
	require.NoError(t, err)
	time.Sleep(time.Second)
	status, err := s.Status(t.Context(), "7")
	require.NoError(t, err)
	require.Equal(t, saga.StateRunning, status.State)
	require.Len(t, commands(t, store, "LIS"), 2)
	again := testkit.Must(store.Last(t.Context(), "car:command-LIS"))
	require.Equal(t, "2", again.Metadata.Properties.Get("sagaAttempt"))
	write(t, store, messagestore.To("booking:saga-7", messagestore.StreamExists, saga.RepliedEvent{Step: "car", Attempt: 1, Output: []byte(`{"car":"late"}`)}))
	time.Sleep(time.Second)
	write(t, store, s.Reply("7", "car", rented{"a red one"}))
	require.Equal(t, "a red one", waitFor(t, s, "7").Out.Car)
}

// What was recorded stays so, through a function that diverges, a resume, and the function that was put back.
func TestARecordedFailureStaysThroughADivergence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book flight", 1, refusal("sold out"))
		flight, train := w.step("flight", nil), w.step("train", nil)
		steps := saga.Steps{flight, train}
		good := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) {
			out, err := flight.Do(r, in)
			if _, is := errors.AsType[*saga.StepError](err); !is {
				return out, err
			}
			if err := r.Sleep("night", time.Hour); err != nil {
				return out, err
			}
			return train.Do(r, in)
		}, steps, nil)
		stop := running(t, good)
		begin(t, good, "7", trip{"LIS"})
		time.Sleep(time.Minute)
		stop()
		bad := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) { return train.Do(r, in) }, steps, nil)
		stop = running(t, bad)
		time.Sleep(time.Hour)
		status := waitFor(t, bad, "7")
		require.Equal(t, "diverged", status.Suspended)
		require.Equal(t, "flight", status.Step)
		stop()

		defer running(t, good)()
		_, err := good.Resume(t.Context(), "7", "put back")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, ticket{"train to LIS"}, waitFor(t, good, "7").Out)
		require.Equal(t, "book flight, book train", w.did())
	})
}

// A loop does a step for each of several things, and each is undone in reverse, by its own record.
func TestAStepIsDoneForEachKey(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			w.on("book hotel", func(ctx context.Context, _ int) error {
				if saga.Key(ctx) == "booking:saga-7+hotel+c%2Bd" && full {
					return refusal("full")
				}
				return nil
			})
			hotel, car := w.step("hotel", nil), rental(nil)
			s := newSaga(t, store, func(r *saga.Run, in trip) (cars []string, err error) {
				for _, key := range []string{"a", "b", "c+d"} {
					c, err := car.For(key).Do(r, in)
					if err != nil {
						return nil, err
					}
					cars = append(cars, c.Car)
					if _, err := hotel.For(key).Do(r, in); err != nil {
						return nil, err
					}
				}
				return cars, nil
			}, saga.Steps{hotel, car}, nil)
			defer running(t, s)()
			answers := handler.New()
			handler.Register(answers, saga.Answer(s, "car", func(_ context.Context, m handler.Message[rent]) (rented, error) {
				return rented{m.Metadata.Properties.Get("sagaStep")}, nil
			}))
			handler.On(answers, func(context.Context, handler.Message[giveBack]) error { return nil })
			defer running(t, testkit.Must(consumer.New(store, "car:command", "cars", answers, &consumer.Config{Logger: silent, Start: consumer.FromStart()})))()
			begin(t, s, "7", trip{"LIS"})
			status := waitFor(t, s, "7")
			if !full {
				require.Equal(t, []string{"car+a", "car+b", "car+c%2Bd"}, status.Out)
				return
			}
			require.Equal(t, saga.StateCompensated, status.State)
			require.Equal(t, "hotel+c%2Bd: full", status.Reason)
			checkEvents(t, events(t, store, "7"), "compensated")
			require.Equal(t, 3, w.keysOf("cancel hotel"))
			require.Len(t, commands(t, store, "LIS"), 6)
		})
	}
}

// A step without a command waits for a value from outside.
func TestASagaWaitsForAValueFromOutside(t *testing.T) {
	t.Parallel()
	for _, in := range []time.Duration{time.Hour, 48 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			approved := saga.NewAsk[trip, bool]("approved", func(context.Context, trip) (messagestore.StreamWrite, error) {
				return messagestore.StreamWrite{}, nil
			}, nil, &saga.StepConfig{Timeout: 24 * time.Hour})
			s := newSaga(t, store, approved.Do, saga.Steps{approved}, &saga.Config{PollInterval: time.Second})
			defer running(t, s)()
			begin(t, s, "7", trip{"LIS"})
			began := time.Now()
			time.Sleep(in)
			write(t, store, s.Reply("7", "approved", true))
			status := waitFor(t, s, "7")
			if in > 24*time.Hour {
				require.Equal(t, "approved: no reply came in time", status.Reason)
				return
			}
			require.True(t, status.Out)
			require.Less(t, time.Since(began), in+time.Second)
		})
	}
}

// A step may be there once for a key.
func TestAKeyThatIsNoneSuspends(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{{""}, {"a", "a"}, {"\x00"}, {strings.Repeat("x", 200)}} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			hotel := w.step("hotel", nil)
			s := newSaga(t, store, func(r *saga.Run, in trip) (out ticket, err error) {
				for _, key := range keys {
					if out, err = hotel.For(key).Do(r, in); err != nil {
						return out, err
					}
				}
				return out, nil
			}, saga.Steps{hotel}, nil)
			defer running(t, s)()
			begin(t, s, "7", trip{"LIS"})
			require.Equal(t, "invalid", waitFor(t, s, "7").Suspended)
		})
	}
}

// Behind a pivot a person ends a saga that cannot go on.
func TestAPersonEndsASagaBehindAPivot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book mail", 9, refusal("no such address"))
		pay, mail := w.step("pay", &saga.StepConfig{Pivot: true}), w.step("mail", nil)
		s := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) {
			if out, err := pay.Do(r, in); err != nil {
				return out, err
			}
			return mail.Do(r, in)
		}, saga.Steps{pay, mail}, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		require.Equal(t, saga.StateSuspended, waitFor(t, s, "7").State)

		was, err := s.Resolve(t.Context(), "7", "sent by hand")
		require.NoError(t, err)
		require.Equal(t, saga.StateSuspended, was.State)
		status := waitFor(t, s, "7")
		require.Equal(t, saga.StateResolved, status.State)
		require.True(t, status.IsOver())
		time.Sleep(time.Second)
		require.Zero(t, standing(t, store).Suspended)
		require.Equal(t, "book pay, book mail", w.did())
		_, err = operator(t, store).Resolve(t.Context(), "7", "again")
		refusedBy(t, err, "it has ended")
	})
}

// A saga that can be undone is cancelled, and not resolved.
func TestASagaThatCanBeUndoneIsNotResolved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book hotel", 9, puzzle("what hotel?"))
		s := travel(t, store, w, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		require.Equal(t, saga.StateSuspended, waitFor(t, s, "7").State)
		_, err := operator(t, store).Resolve(t.Context(), "7", "why")
		refusedBy(t, err, "it can be undone")
		_, err = s.Resolve(t.Context(), "7", "why")
		require.NoError(t, err)
		require.NotContains(t, events(t, store, "7"), "Resolved")
	})
}

// A step in transactions of another store would be recorded apart from them.
func TestATransactionOfAnotherStoreIsRefused(t *testing.T) {
	t.Parallel()
	th, other := onSQLite(t), onSQLite(t)
	seats := th.seats()
	_, err := saga.New(other.txs.Store, "booking", seats.Do, saga.Steps{seats}, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, `step "seats": must have transactions of the saga's store`)
	_, err = saga.New(th.txs.Store, "booking", seats.Do, saga.Steps{seats}, nil)
	require.NoError(t, err)
}

// A counting store counts the pages that are read of a category.
type counting struct {
	*messagestore.Store
	pages atomic.Int64
}

func (c *counting) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	c.pages.Add(1)
	return c.Store.ReadCategoryPage(ctx, q)
}

// Callers that wait have one reader in their process, however many they are.
func TestManyThatWaitCostOneReader(t *testing.T) {
	t.Parallel()
	pages := map[int]int64{}
	for _, waiters := range []int{1, 500} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			s := withCar(t, store, newWorld(), &saga.StepConfig{Timeout: time.Hour})
			counted := &counting{Store: store}
			here := withCar(t, counted, newWorld(), nil)
			stop := running(t, s)
			ended := make(chan saga.State)
			begin(t, s, "7", trip{"LIS"})
			for range waiters {
				go func() {
					status, _ := here.Wait(context.Background(), "7")
					ended <- status.State
				}()
			}
			time.Sleep(10 * time.Minute)
			write(t, store, s.Reply("7", "car", rented{"one"}))
			for range waiters {
				require.Equal(t, saga.StateCompleted, <-ended)
			}
			pages[waiters] = counted.pages.Load()
			stop()
		})
	}
	require.LessOrEqual(t, pages[500], pages[1]+2, pages)
}

// The process in which a saga ends tells its own callers at once.
func TestAProcessTellsItsOwnWaitersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		deaf := &deafStore{Store: store}
		s := withCar(t, deaf, newWorld(), nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		synctest.Wait()
		time.Sleep(time.Minute)
		go func() {
			time.Sleep(time.Minute)
			_, _ = store.WriteStreams(context.Background(), s.Reply("7", "car", rented{"one"}))
		}()
		require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
	})
}

// A deafStore reads no page of a category.
type deafStore struct{ *messagestore.Store }

func (deafStore) ReadCategoryPage(context.Context, messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	return messagestore.CategoryPage{}, errDown
}
