package inbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// A process of the kill test is this program, with these variables.
const (
	kindVariable  = "UNIT_TEST_KIND"
	placeVariable = "UNIT_TEST_PLACE"
	tableVariable = "UNIT_TEST_TABLE"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(kindVariable); kind != "" {
		if err := work(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

type Deposit struct {
	Key    string `json:"key"`
	Amount int    `json:"amount"`
}

func (Deposit) MessageType() string { return "Deposit" }

type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

type accepted struct {
	Row string `json:"row"`
}

// A doneWith is what a function returns: an answer, nil for none, and its writes.
type doneWith struct {
	Answer any
	Writes []messagestore.StreamWrite
}

func writesOf(d doneWith, err error) ([]messagestore.StreamWrite, error) {
	if d.Answer == nil {
		return d.Writes, err
	}
	return append([]messagestore.StreamWrite{reservation.Answer(d.Answer)}, d.Writes...), err
}

// A desk is an inbox with a table beside it, with transactions of any type.
type desk struct {
	store *messagestore.Store
	name  string // of the inbox and of the table

	// receive carries out a request whose function inserts a row for its key. The function then
	// calls work.
	receive func(ctx context.Context, m inbox.Request, work func() (doneWith, error)) (reservation.Result, error)
	// undo undoes a request, by a function that inserts a row for "undone" and its key.
	undo   func(ctx context.Context, m inbox.Request, work func() (doneWith, error)) (reservation.Result, error)
	refuse func(ctx context.Context, m inbox.Request, reason error) error
	// carry calls Receive with a function that is given the transaction, or nil for none.
	carry func(ctx context.Context, m inbox.Request, f func(ctx context.Context, tx any) (doneWith, error)) (reservation.Result, error)
	// handle returns the handler of deposits, whose function inserts a row and calls work.
	handle  func(once *reservation.Reserver, work func(m handler.Message[Deposit]) (doneWith, error)) *handler.Mux
	results chan reservation.Result
	rows    func(ctx context.Context, key string) (int, error)
	faults  *faults
}

// Faults are the fates of transactions, by turns.
type faults struct {
	next     func() fate
	noFind   bool
	noAppend bool
}

type fate int

const (
	works      fate = iota
	losesWrite      // nothing is committed, and the answer is lost
	losesReply      // it is committed, and the answer is lost
)

var errLost = errors.New("the connection was lost")

// A faulty driver has a fate for each transaction.
type faulty[Tx any] struct {
	messagestore.TransactDriver[Tx]
	*faults
}

func (d faulty[Tx]) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) ([]messagestore.Written, error) {
	what := works
	if f != nil && d.next != nil {
		what = d.next()
	}
	refused := false
	written, err := d.TransactDriver.Transact(ctx, first, map[bool]func(context.Context, Tx, *messagestore.Message) ([]messagestore.Append, error){
		false: f,
		true: func(ctx context.Context, tx Tx, begun *messagestore.Message) ([]messagestore.Append, error) {
			appends, err := f(ctx, tx, begun)
			if refused = err != nil; err == nil && what == losesWrite {
				err = errLost
			}
			return appends, err
		},
	}[f != nil && what != works])
	if what == losesReply && err == nil || what == losesWrite && !refused {
		return nil, &messagestore.OutcomeUnknownError{Cause: errLost}
	}
	return written, err
}

func (d faulty[Tx]) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	if d.noFind {
		return nil, errLost
	}
	return d.TransactDriver.Find(ctx, stream, ids)
}

func (d faulty[Tx]) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	if d.noAppend {
		return messagestore.Written{}, errLost
	}
	return d.TransactDriver.Append(ctx, a)
}

func newDesk[Tx any](
	driver messagestore.TransactDriver[Tx], name string, insert func(ctx context.Context, tx Tx, key string) error,
	count func(ctx context.Context, tx Tx, key string) (int, error),
) (*desk, error) {
	d := &desk{name: name, results: make(chan reservation.Result, 1000), faults: &faults{}}
	txs, err := messagestore.Transactional[Tx](testkit.Must(messagestore.New(faulty[Tx]{driver, d.faults}, nil)))
	if err != nil {
		return nil, err
	}
	d.store = txs.Store
	u, err := inbox.New(txs, messagestore.Category(name), &inbox.Config{OnResult: func(_ context.Context, result reservation.Result) { d.results <- result }})
	if err != nil {
		return nil, err
	}
	d.receive = func(ctx context.Context, m inbox.Request, work func() (doneWith, error)) (reservation.Result, error) {
		return u.Receive(ctx, m, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			if err := insert(ctx, tx, m.ID); err != nil {
				return nil, err
			}
			return writesOf(work())
		})
	}
	d.refuse = u.Refuse
	d.undo = func(ctx context.Context, m inbox.Request, work func() (doneWith, error)) (reservation.Result, error) {
		return u.Undo(ctx, m, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			if err := insert(ctx, tx, "undone "+m.ID); err != nil {
				return nil, err
			}
			return writesOf(work())
		})
	}
	d.carry = func(ctx context.Context, m inbox.Request, f func(ctx context.Context, tx any) (doneWith, error)) (reservation.Result, error) {
		if f == nil {
			result, err := u.Receive(ctx, m, nil)
			_, undoErr := u.Undo(ctx, m, nil)
			return result, errors.Join(err, undoErr)
		}
		return u.Receive(ctx, m, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			if err := insert(ctx, tx, m.ID); err != nil {
				return nil, err
			}
			return writesOf(f(ctx, tx))
		})
	}
	d.handle = func(once *reservation.Reserver, work func(m handler.Message[Deposit]) (doneWith, error)) *handler.Mux {
		mux := handler.New()
		handler.Register(mux, reservation.Transact(txs, once, func(d Deposit) string { return d.Key },
			func(ctx context.Context, tx Tx, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
				if err := insert(ctx, tx, m.Body.Key); err != nil {
					return nil, err
				}
				return writesOf(work(m))
			}))
		return mux
	}
	d.rows = func(ctx context.Context, key string) (n int, err error) {
		_, err = driver.Transact(ctx, "", func(ctx context.Context, tx Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			n, err = count(ctx, tx, key)
			return nil, err
		})
		return n, err
	}
	return d, nil
}

// openDesk opens a desk of one of the kinds. Its table is there.
func openDesk(ctx context.Context, kind, place, name string) (_ *desk, end func(), err error) {
	pgxInsert := func(ctx context.Context, tx pgx.Tx, key string) error {
		_, err := tx.Exec(ctx, "insert into "+name+" values ($1)", key)
		return err
	}
	pgxCount := func(ctx context.Context, tx pgx.Tx, key string) (n int, err error) {
		return n, tx.QueryRow(ctx, "select count(*) from "+name+" where key = $1 or $1 = ''", key).Scan(&n)
	}
	sqlInsert := func(ctx context.Context, tx *sql.Tx, key string) error {
		_, err := tx.ExecContext(ctx, "insert into "+name+" values ($1)", key)
		return err
	}
	sqlCount := func(ctx context.Context, tx *sql.Tx, key string) (n int, err error) {
		return n, tx.QueryRowContext(ctx, "select count(*) from "+name+" where key = $1 or $1 = ''", key).Scan(&n)
	}
	var d *desk
	switch kind {
	case "pgx":
		pool, poolErr := pgxpool.New(ctx, place)
		if poolErr != nil {
			return nil, nil, poolErr
		}
		end = pool.Close
		d, err = newDesk(testkit.Must(postgres.New(pool, nil)), name, pgxInsert, pgxCount)
	case "database/sql":
		db, openErr := sql.Open("pgx", place)
		if openErr != nil {
			return nil, nil, openErr
		}
		end = func() { _ = db.Close() }
		d, err = newDesk(testkit.Must(postgres.NewSQL(db, nil)), name, sqlInsert, sqlCount)
	default:
		driver, openErr := sqlite.Open(ctx, place, nil)
		if openErr != nil {
			return nil, nil, openErr
		}
		end = func() { _ = driver.Close() }
		d, err = newDesk(driver, name, sqlInsert, sqlCount)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return d, end, nil
}

// prepare makes the table of a desk, and returns the place.
func prepare(t *testing.T, kind, name string) (place string) {
	t.Helper()
	create := "create table " + name + " (key text)"
	if kind != "SQLite" {
		pool := pgtest.Pool(t)
		_, err := pool.Exec(t.Context(), create)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "drop table "+name) })
		return pool.Config().ConnString()
	}
	place = filepath.Join(t.TempDir(), "inbox.db")
	driver, err := sqlite.Open(t.Context(), place, nil)
	require.NoError(t, err)
	defer driver.Close()
	_, err = driver.Transact(t.Context(), "", func(ctx context.Context, tx *sql.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		_, err := tx.ExecContext(ctx, create)
		return nil, err
	})
	require.NoError(t, err)
	return place
}

func eachDesk(t *testing.T, test func(t *testing.T, d *desk)) {
	t.Helper()
	for _, kind := range []string{"SQLite", "pgx", "database/sql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := newName()
			d, end, err := openDesk(t.Context(), kind, prepare(t, kind, name), name)
			require.NoError(t, err)
			t.Cleanup(end)
			test(t, d)
		})
	}
}

// result returns the next result that OnResult was called with.
func (d *desk) result(t *testing.T) reservation.Result {
	t.Helper()
	return testkit.Receive(t, "a result", d.results)
}

func newName() string { return "inbox" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12] }

func (d *desk) requireRows(t *testing.T, key string, want int) {
	t.Helper()
	n, err := d.rows(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, want, n, "rows of %s", key)
}

// commands is the category of the deposits.
func (d *desk) commands() messagestore.Category {
	return messagestore.Category(d.name + ":command")
}

func (d *desk) send(t *testing.T, body messagestore.Body) *messagestore.Message {
	t.Helper()
	stream := d.commands().Stream("1")
	_, err := d.store.Write(t.Context(), stream, messagestore.AnyVersion, body)
	require.NoError(t, err)
	m, err := d.store.Last(t.Context(), stream)
	require.NoError(t, err)
	return m
}

// deposited writes an event and answers.
func (d *desk) deposited(m handler.Message[Deposit]) (doneWith, error) {
	event := messagestore.To(messagestore.Category(d.name).Stream("1"), messagestore.AnyVersion, messagestore.Follow(m.Message, Deposited{m.Body.Amount}))
	return doneWith{Answer: accepted{m.Body.Key}, Writes: []messagestore.StreamWrite{event}}, nil
}

// work receives the requests that are named on standard input, and prints each that is done.
func work(kind string) error {
	ctx := context.Background()
	d, end, err := openDesk(ctx, kind, os.Getenv(placeVariable), os.Getenv(tableVariable))
	if err != nil {
		return err
	}
	defer end()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		key := in.Text()
		result, err := d.receive(ctx, inbox.Request{ID: key, Source: "test", Data: []byte(`{}`)}, func() (doneWith, error) {
			event := messagestore.To(messagestore.Category(d.name).Stream(key), messagestore.NoStream, Deposited{1})
			return doneWith{Answer: accepted{key}, Writes: []messagestore.StreamWrite{event}}, nil
		})
		if err != nil {
			return err
		}
		if _, err := io.WriteString(os.Stdout, key+" "+result.Outcome.String()+" "+string(result.Answer)+"\n"); err != nil {
			return err
		}
	}
	return in.Err()
}

// reserver returns a reserver over the store of the desk, whose outcomes are among the results.
func (d *desk) reserver() *reservation.Reserver {
	return testkit.Must(reservation.New(d.store, "accounts", &reservation.Config{
		OnOutcome: func(_ context.Context, _ *messagestore.Message, result reservation.Result) { d.results <- result },
	}))
}
