package saga_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/saga"
)

// A theatre has a table of seats in the database of its store.
type theatre[Tx any] struct {
	txs  *messagestore.TxStore[Tx]
	w    *world
	exec func(ctx context.Context, tx Tx, query string, args ...any) error
	row  func(ctx context.Context, tx Tx, query string, to ...any) error
}

func newTheatre[Tx any](
	t *testing.T, driver messagestore.TransactDriver[Tx], exec, row func(ctx context.Context, tx Tx, query string, args ...any) error,
) *theatre[Tx] {
	t.Helper()
	txs, err := messagestore.Transactional[Tx](testkit.Must(messagestore.New(driver, nil)))
	require.NoError(t, err)
	th := &theatre[Tx]{txs: txs, w: newWorld(), exec: exec, row: row}
	th.transact(t, func(ctx context.Context, tx Tx) error {
		return exec(ctx, tx, "create table seats (saga text, change int)")
	})
	return th
}

func execSQL(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}

func rowSQL(ctx context.Context, tx *sql.Tx, query string, to ...any) error {
	return tx.QueryRowContext(ctx, query).Scan(to...)
}

func onSQLite(t *testing.T) *theatre[*sql.Tx] {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "theatre.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return newTheatre(t, driver, execSQL, rowSQL)
}

func onDatabaseSQL(t *testing.T) *theatre[*sql.Tx] {
	t.Helper()
	db, err := sql.Open("pgx", pgtest.Migrated(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return newTheatre(t, testkit.Must(postgres.NewSQL(db, nil)), execSQL, rowSQL)
}

func onPgx(t *testing.T) *theatre[pgx.Tx] {
	t.Helper()
	return newTheatre(t, testkit.Must(postgres.New(pgtest.Connect(t, pgtest.Migrated(t)), nil)),
		func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		},
		func(ctx context.Context, tx pgx.Tx, query string, to ...any) error {
			return tx.QueryRow(ctx, query).Scan(to...)
		})
}

func (th *theatre[Tx]) transact(t require.TestingT, f func(ctx context.Context, tx Tx) error) {
	_, err := th.txs.Transact(context.Background(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		return nil, f(ctx, tx)
	})
	require.NoError(t, err)
}

// taken returns the number of rows and the seats that are taken.
func (th *theatre[Tx]) taken(t require.TestingT) (rows, seats int) {
	th.transact(t, func(ctx context.Context, tx Tx) error {
		return th.row(ctx, tx, "select count(*), coalesce(sum(change), 0) from seats", &rows, &seats)
	})
	return rows, seats
}

func (th *theatre[Tx]) seats() *saga.TxStep[Tx, trip, int] {
	return saga.NewTxStep("seats", th.txs,
		func(ctx context.Context, tx Tx, _ trip) (int, error) {
			if err := th.exec(ctx, tx, "insert into seats values ($1, 2)", saga.Key(ctx)); err != nil {
				return 0, err
			}
			return 2, th.w.call(ctx, "take", "")
		},
		func(ctx context.Context, tx Tx, _ trip, out *int) error {
			if err := th.exec(ctx, tx, "insert into seats values ($1, $2)", saga.Key(ctx), -*out); err != nil {
				return err
			}
			return th.w.call(ctx, "give back", "")
		}, &saga.StepConfig{Retry: saga.Retry{MaxAttempts: 3, MaxBackoff: time.Millisecond}, Undo: saga.Retry{MaxBackoff: time.Millisecond}})
}

func (th *theatre[Tx]) saga(t require.TestingT) *saga.Saga[trip, int] {
	seats, flight := th.seats(), th.w.step("flight", nil)
	return newSaga(t, th.txs.Store, func(s *saga.Run, in trip) (int, error) {
		n, err := seats.Do(s, in)
		if err != nil {
			return 0, err
		}
		_, err = flight.Do(s, in)
		return n, err
	}, saga.Steps{seats, flight}, nil)
}

func TestATransactionOfAStepIsCommittedOnce(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); committedOnce(t, onSQLite) })
	t.Run("pgx", func(t *testing.T) { t.Parallel(); committedOnce(t, onPgx) })
	t.Run("database/sql", func(t *testing.T) { t.Parallel(); committedOnce(t, onDatabaseSQL) })
}

func committedOnce[Tx any](t *testing.T, open func(t *testing.T) *theatre[Tx]) {
	t.Helper()
	for name, test := range map[string]struct {
		prepare     func(w *world)
		state       saga.State
		rows, seats int
	}{
		"done":                  {func(*world) {}, saga.StateCompleted, 1, 2},
		"fails twice":           {func(w *world) { w.fails("take", 2, errDown) }, saga.StateCompleted, 1, 2},
		"fails for good":        {func(w *world) { w.fails("take", 99, errDown) }, saga.StateCompensated, 0, 0},
		"is refused":            {func(w *world) { w.fails("take", 99, refusal("sold out")) }, saga.StateCompensated, 0, 0},
		"undone":                {func(w *world) { w.fails("book flight", 99, refusal("none")) }, saga.StateCompensated, 2, 0},
		"undone in the end":     {func(w *world) { w.fails("book flight", 99, refusal("none")); w.fails("give back", 3, errDown) }, saga.StateCompensated, 2, 0},
		"asks to suspend, once": {func(w *world) { w.fails("take", 1, puzzle("where?")) }, saga.StateSuspended, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			th := open(t)
			test.prepare(th.w)
			s := th.saga(t)
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			status := waitInTime(t, s, "7")

			require.Equal(t, test.state, status.State)
			rows, seats := th.taken(t)
			require.Equal(t, []int{test.rows, test.seats}, []int{rows, seats}, events(t, th.txs.Store, "7"))
			if test.rows == 0 {
				require.Zero(t, th.w.calls["give back"], "what was not committed is not undone")
			}
		})
	}
}

// A process that is too late with a transaction has its SQL rolled back, going on and going back.
func TestTheTransactionOfALateProcessIsRolledBack(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); lateIsRolledBack(t, onSQLite) })
	t.Run("pgx", func(t *testing.T) { t.Parallel(); lateIsRolledBack(t, onPgx) })
	t.Run("database/sql", func(t *testing.T) { t.Parallel(); lateIsRolledBack(t, onDatabaseSQL) })
}

func lateIsRolledBack[Tx any](t *testing.T, open func(t *testing.T) *theatre[Tx]) {
	t.Helper()
	for _, undo := range []bool{false, true} {
		t.Run(fmt.Sprintf("undo %v", undo), func(t *testing.T) {
			t.Parallel()
			th := open(t)
			what := "take"
			if undo {
				what = "give back"
				th.w.fails("book flight", 99, refusal("none"))
			}
			// On SQLite the other process waits for the transaction; on PostgreSQL the first to write wins.
			paused, late := make(chan struct{}), make(chan struct{})
			pause := sync.OnceFunc(func() { close(paused) })
			seats, flight := th.seats(), th.w.step("flight", nil)
			gate := saga.NewTxStep("seats", th.txs,
				func(ctx context.Context, tx Tx, _ trip) (int, error) {
					if !undo {
						pause()
						<-late
					}
					return 2, th.exec(ctx, tx, "insert into seats values ($1, 2)", "late")
				},
				func(ctx context.Context, tx Tx, _ trip, _ *int) error {
					pause()
					<-late
					return th.exec(ctx, tx, "insert into seats values ($1, -2)", "late")
				}, nil)
			book := func(step *saga.TxStep[Tx, trip, int]) func(*saga.Run, trip) (int, error) {
				return func(s *saga.Run, in trip) (int, error) {
					n, err := step.Do(s, in)
					if err != nil {
						return 0, err
					}
					_, err = flight.Do(s, in)
					return n, err
				}
			}
			one := newSaga(t, th.txs.Store, book(gate), saga.Steps{gate, flight}, nil)
			two := newSaga(t, th.txs.Store, book(seats), saga.Steps{seats, flight}, nil)
			begin(t, one, "7", trip{"LIS"})
			started := first(t, th.txs.Store, "booking:saga-7")
			ended := make(chan error, 1)
			go func() { ended <- saga.GoOn(t.Context(), one, started) }()
			testkit.Receive(t, "the first process is in its transaction", paused)
			other := make(chan error, 1)
			go func() { other <- saga.GoOn(t.Context(), two, started) }()
			close(late)

			errs := []error{testkit.Receive(t, "the end of the first process", ended), testkit.Receive(t, "the end of the second process", other)}
			status := waitInTime(t, two, "7")
			rows, n := th.taken(t)
			if undo {
				require.Equal(t, saga.StateCompensated, status.State, errs)
				require.Equal(t, []int{2, 0}, []int{rows, n}, "%s: %v", what, errs)
			} else {
				require.Equal(t, saga.StateCompleted, status.State, errs)
				require.Equal(t, []int{1, 2}, []int{rows, n}, "%s: %v", what, errs)
			}
		})
	}
}

type seatsTaken struct {
	Taken int `json:"taken"`
}

func (seatsTaken) MessageType() string { return "SeatsTaken" }

// Messages that the function of a step adds are committed with its SQL: those of an attempt that fails, and of one that is
// rolled back, are nowhere.
func TestWritesOfAStepAreCommittedWithItsSQL(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); writesAreCommitted(t, onSQLite) })
	t.Run("pgx", func(t *testing.T) { t.Parallel(); writesAreCommitted(t, onPgx) })
	t.Run("database/sql", func(t *testing.T) { t.Parallel(); writesAreCommitted(t, onDatabaseSQL) })
}

func writesAreCommitted[Tx any](t *testing.T, open func(t *testing.T) *theatre[Tx]) {
	t.Helper()
	const hall = messagestore.StreamName("hall-1")
	event := func(n int) messagestore.StreamWrite {
		return messagestore.To(hall, messagestore.AnyVersion, seatsTaken{n})
	}
	for name, test := range map[string]struct {
		prepare func(w *world)
		state   saga.State
		taken   []int
	}{
		"done":        {func(*world) {}, saga.StateCompleted, []int{2, 3}},
		"fails twice": {func(w *world) { w.fails("take", 2, errDown) }, saga.StateCompleted, []int{2, 3}},
		"is refused":  {func(w *world) { w.fails("take", 99, refusal("sold out")) }, saga.StateCompensated, nil},
		"panics once": {func(w *world) {
			w.on("take", func(_ context.Context, call int) error {
				if call == 1 {
					panic("no seats")
				}
				return nil
			})
		}, saga.StateCompleted, []int{2, 3}},
		"undone": {func(w *world) { w.fails("book flight", 99, refusal("none")) }, saga.StateCompensated, []int{2, 3, -5}},
		"undone in the end": {func(w *world) {
			w.fails("book flight", 99, refusal("none"))
			w.fails("give back", 3, errDown)
		}, saga.StateCompensated, []int{2, 3, -5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			th := open(t)
			test.prepare(th.w)
			seats := saga.NewTxStep("seats", th.txs,
				func(ctx context.Context, tx Tx, _ trip) (int, error) {
					if err := errors.Join(saga.Write(ctx, event(2)), saga.Write(ctx, event(3))); err != nil {
						return 0, err
					}
					return 5, errors.Join(th.exec(ctx, tx, "insert into seats values ($1, 5)", saga.Key(ctx)), th.w.call(ctx, "take", ""))
				},
				func(ctx context.Context, tx Tx, _ trip, out *int) error {
					if err := saga.Write(ctx, event(-*out)); err != nil {
						return err
					}
					return errors.Join(th.exec(ctx, tx, "insert into seats values ($1, $2)", saga.Key(ctx), -*out), th.w.call(ctx, "give back", ""))
				}, &saga.StepConfig{Retry: saga.Retry{MaxAttempts: 3, MaxBackoff: time.Millisecond}, Undo: saga.Retry{MaxBackoff: time.Millisecond}})
			s := th.ofSeats(t, seats)
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			status := waitInTime(t, s, "7")

			require.Equal(t, test.state, status.State)
			var taken []int
			sum := 0
			for m, err := range th.txs.ReadStream(t.Context(), hall, 0) {
				require.NoError(t, err)
				body, err := messagestore.Decode[seatsTaken](m)
				require.NoError(t, err)
				taken = append(taken, body.Taken)
				sum += body.Taken
				require.Equal(t, messagestore.StreamName("booking:saga-7"), m.Metadata.CorrelationStream)
				require.Equal(t, "seats", m.Metadata.Properties.Get("sagaStep"))
			}
			require.Equal(t, test.taken, taken, events(t, th.txs.Store, "7"))
			_, n := th.taken(t)
			require.Equal(t, sum, n, "the rows and the messages are one")
		})
	}
}

// ofSeats returns a saga of a step of seats, and a flight.
func (th *theatre[Tx]) ofSeats(t require.TestingT, seats *saga.TxStep[Tx, trip, int]) *saga.Saga[trip, int] {
	flight := th.w.step("flight", nil)
	return newSaga(t, th.txs.Store, func(s *saga.Run, in trip) (int, error) {
		n, err := seats.Do(s, in)
		if err != nil {
			return 0, err
		}
		_, err = flight.Do(s, in)
		return n, err
	}, saga.Steps{seats, flight}, nil)
}

// A message that no store takes suspends the saga, and a version that never fits is a failure of the step.
func TestWritesThatAreRefusedEndTheSaga(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		write messagestore.StreamWrite
		state saga.State
		calls int
	}{
		"invalid":  {messagestore.To("hall-1", messagestore.AnyVersion, refused{}), saga.StateSuspended, 1},
		"conflict": {messagestore.To("hall-1", 7, seatsTaken{2}), saga.StateCompensated, 2 * 5},
		"conflict with another write": {
			messagestore.To("twice-1", messagestore.NoStream, seatsTaken{2}), saga.StateSuspended, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			th := onSQLite(t)
			seats := saga.NewTxStep("seats", th.txs,
				func(ctx context.Context, tx *sql.Tx, _ trip) (int, error) {
					err := errors.Join(saga.Write(ctx, test.write, messagestore.To("twice-1", messagestore.AnyVersion, seatsTaken{1})), th.w.call(ctx, "take", ""))
					return 2, errors.Join(err, th.exec(ctx, tx, "insert into seats values ('7', 2)"))
				}, nil, &saga.StepConfig{Retry: saga.Retry{MaxAttempts: 2, MaxBackoff: time.Millisecond}})
			s := th.ofSeats(t, seats)
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			status := waitInTime(t, s, "7")

			require.Equal(t, test.state, status.State)
			require.Equal(t, test.calls, th.w.calls["take"])
			if test.state == saga.StateSuspended {
				require.Equal(t, "invalid", status.Suspended)
			}
			rows, _ := th.taken(t)
			require.Zero(t, rows)
		})
	}
}

type refused struct{}

func (refused) MessageType() string { return "" }

// Write refuses what cannot be in the transaction of a step, before anything is added.
func TestWriteRefusesWhatIsNoPartOfAStep(t *testing.T) {
	t.Parallel()
	good := messagestore.To("hall-1", messagestore.AnyVersion, seatsTaken{2})
	requireRefused := func(err error, field string) {
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		invalid, is := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, is)
		require.Equal(t, field, invalid.Field)
	}
	requireRefused(saga.Write(t.Context(), good), "context")

	th := onSQLite(t)
	var kept context.Context
	seats := saga.NewTxStep("seats", th.txs,
		func(ctx context.Context, _ *sql.Tx, _ trip) (int, error) {
			kept = ctx //nolint:fatcontext // it is kept to see that it is of no use
			requireRefused(saga.Write(ctx, good, messagestore.To("booking:saga-7", messagestore.AnyVersion, saga.DoneEvent{Step: "seats"})), "stream")
			requireRefused(saga.Write(ctx, good, messagestore.To("", messagestore.AnyVersion, seatsTaken{2})), "stream name")
			return 2, saga.Write(ctx)
		}, nil, nil)
	flight := saga.NewStep("flight", func(ctx context.Context, _ trip) (int, error) {
		requireRefused(saga.Write(ctx, good), "context")
		return 0, nil
	}, nil, nil)
	s := newSaga(t, th.txs.Store, func(s *saga.Run, in trip) (int, error) {
		if _, err := seats.Do(s, in); err != nil {
			return 0, err
		}
		return flight.Do(s, in)
	}, saga.Steps{seats, flight}, nil)
	defer running(t, s)()
	begin(t, s, "7", trip{"LIS"})

	require.Equal(t, saga.StateCompleted, waitInTime(t, s, "7").State)
	requireRefused(saga.Write(kept, good), "context")
	version, err := th.txs.Version(t.Context(), "hall-1")
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version, "nothing was added")
}
