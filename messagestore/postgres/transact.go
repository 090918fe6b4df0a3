package postgres

import (
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/upkeep"
	"github.com/dibs-go/dibs/messagestore"
)

var _ messagestore.TransactDriver[pgx.Tx] = (*Driver)(nil)

var (
	//go:embed sql/transact_append.sql
	transactAppendSQL string
	//go:embed sql/transact_learn.sql
	transactLearnSQL string
	//go:embed sql/transact_end.sql
	transactEndSQL string
	//go:embed sql/ring.sql
	ringSQL string
)

// The parameters of the statement that appends.
var transactOIDs = []uint32{
	pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.UUIDArrayOID, pgtype.TextArrayOID,
	pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.Int8ArrayOID, pgtype.TextOID, pgtype.UUIDArrayOID,
}

// Transact implements [messagestore.TransactDriver] over a pool or a connection. BEGIN and the
// look at first are one round trip, and so are the append and COMMIT. The transaction is at
// READ COMMITTED. If first is "", f may begin with SET TRANSACTION. Commit and Rollback of tx
// are refused and make the call fail; a savepoint is set by its Begin. A read through the store with
// the context of f is on the transaction's connection, so f has to have read the rows of its own
// queries by then. Every other call with the context of f needs a second connection, and is an error at
// once if the pool has one. Over a transaction the error matches [messagestore.ErrNotSupported].
func (d *Driver) Transact(
	ctx context.Context, first messagestore.StreamName,
	f func(ctx context.Context, tx pgx.Tx, begun *messagestore.Message) ([]messagestore.Append, error),
) (written []messagestore.Written, err error) {
	if d.link.OverTransaction() {
		return nil, messagestore.ErrNotSupported
	}
	if f == nil {
		return nil, nil
	}
	err = d.with(ctx, func(db DB) error {
		conn := pglink.Conn(db)
		if conn == nil || d.link.InTransaction(db) {
			return messagestore.ErrNotSupported
		}
		t := &transaction{driver: d, conn: conn}
		defer t.rollBack(ctx)
		begun, err := t.begin(ctx, first)
		if err != nil {
			return err
		}
		tx := d.link.Begun(ctx, conn, messagestore.ErrTransactionEnded)
		defer tx.Close()
		appends, err := t.call(ctx, func(ctx context.Context) ([]messagestore.Append, error) { return f(ctx, tx, begun) })
		written, err = t.end(ctx, appends, err, tx.Refused())
		return err
	})
	return written, err
}

// A transaction is one of [Driver.Transact].
type transaction struct {
	driver *Driver
	conn   *pgx.Conn

	turn sync.Mutex // of the callers that use the connection
	over bool       // f has returned
}

// transactionKey is the key of a driver's transaction in the context of f.
type transactionKey struct{ driver *Driver }

// call calls f with a context in which the driver reads on the transaction's connection. Otherwise
// each function would need a second one: as many as the pool has would wait for each other, for ever.
func (t *transaction) call(ctx context.Context, f func(ctx context.Context) ([]messagestore.Append, error)) ([]messagestore.Append, error) {
	defer func() {
		t.turn.Lock()
		defer t.turn.Unlock()
		t.over = true
	}()
	return f(context.WithValue(ctx, transactionKey{t.driver}, t))
}

// reads calls f with a connection to read on: the connection of the transaction under way whose
// function ctx belongs to, if there is one.
func (d *Driver) reads(ctx context.Context, f func(db DB) error) error {
	t, is := ctx.Value(transactionKey{d}).(*transaction)
	if !is {
		return d.with(ctx, f)
	}
	t.turn.Lock()
	if t.over {
		t.turn.Unlock()
		return d.with(ctx, f)
	}
	defer t.turn.Unlock()
	return f(t.conn)
}

// onlyConnection reports whether ctx is of a function of [Driver.Transact] that goes on and has the only
// connection: a call that takes a connection of its own would wait for the function, and the function
// for the call. Upkeep has a goroutine and, over a pool, a connection of its own.
func (d *Driver) onlyConnection(ctx context.Context) bool {
	t, is := ctx.Value(transactionKey{d}).(*transaction)
	if !is || upkeep.Is(ctx) || d.link.Connections() != 1 {
		return false
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	return !t.over
}

var errOnlyConnection = errors.New("the transaction of this function has the only connection, and the call needs another: " +
	"return the messages from the function, or give the pool more connections")

// markSQL sets a setting that lasts as long as the transaction. By it the database tells this
// transaction from another that f has begun in its place. It takes no snapshot, so that f may
// still choose the isolation level.
const markSQL = "set local dibs.transaction = 'begun'"

// begin begins the transaction, marks it and reads the first message of a stream, in one round
// trip.
func (t *transaction) begin(ctx context.Context, first messagestore.StreamName) (*messagestore.Message, error) {
	d := t.driver
	prepared := []string{d.queries.readStream, d.queries.transactAppend, d.queries.ring}
	if !d.notify {
		prepared = prepared[:2]
	}
	if err := d.link.Prepare(ctx, t.conn, prepared...); err != nil {
		return nil, d.failed(err)
	}
	statements := []pglink.Statement{{SQL: "begin isolation level read committed"}, {SQL: markSQL}}
	r := &reading{}
	if first != "" {
		statements = append(statements, pglink.Statement{
			SQL: d.queries.readStream, Parameters: binaryParameters([]any{string(first), int64(0), 1, false}), Read: r.take, Often: true,
		})
	}
	_, err := d.link.Pipeline(ctx, t.conn, statements...)
	if pglink.Stale(err) {
		return nil, &messagestore.RetryableError{Cause: d.failed(err)}
	}
	if err != nil || len(r.found.Messages) == 0 {
		return nil, d.failed(err)
	}
	return r.found.Messages[0], nil
}

var (
	errLeftOpen = errors.New("the function left rows of a query open")
	errLost     = errors.New("the connection was lost before COMMIT")
	errAborted  = errors.New("a statement of the function failed, which aborts the transaction, and the function returned no error")
)

// end appends and commits f's work, or returns the reason against it. failed is the error of f,
// and refused whether f called Commit or Rollback. The caller rolls back.
func (t *transaction) end(ctx context.Context, appends []messagestore.Append, failed error, refused bool) ([]messagestore.Written, error) {
	lost, status := t.conn.IsClosed(), t.conn.PgConn().TxStatus()
	ended := refused || !lost && status == 'I'
	switch {
	case ended && failed != nil:
		return nil, fmt.Errorf("%w: %w", messagestore.ErrTransactionEnded, failed)
	case failed != nil && pglink.Retryable(failed):
		return nil, &messagestore.RetryableError{Cause: failed}
	case failed != nil:
		return nil, failed
	case ended:
		return nil, messagestore.ErrTransactionEnded
	case lost:
		return nil, errLost
	case t.conn.PgConn().IsBusy():
		return nil, errLeftOpen
	case status == 'E':
		return nil, errAborted
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return t.commit(ctx, appends)
}

// commit appends and commits in one round trip. If the append fails, the server skips COMMIT.
func (t *transaction) commit(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	d := t.driver
	for d.fences.inDoubt(appends) {
		if err := t.learn(ctx, appends); err != nil {
			return nil, err
		}
	}
	var at placed
	statements := []pglink.Statement{{SQL: transactEndSQL}, {SQL: "commit"}}
	if len(appends) > 0 {
		statements[0] = pglink.Statement{
			SQL: d.queries.transactAppend, OIDs: transactOIDs, Parameters: transactParameters(appends, d.fences.of(appends)), Read: at.read, Often: true,
		}
		if d.notify {
			statements = append(statements, pglink.Statement{SQL: d.queries.ring, OIDs: headsOIDs, Parameters: categoriesOf(appends), Often: true})
		}
	}
	var tags []string
	err := pglink.Replicated(t.conn, func() (err error) {
		tags, err = d.link.Pipeline(ctx, t.conn, statements...)
		if len(tags) > 1 {
			return nil // the server has answered to COMMIT; a reader without a wake-up polls
		}
		return err
	})
	switch {
	case err != nil && !pglink.Definite(err):
		return nil, unknownOutcome(pglink.Safe(err), appends)
	case err != nil:
		return t.refused(err, appends)
	case tags[1] != "COMMIT":
		return nil, errAborted
	case len(appends) == 0:
		return nil, nil
	}
	written, err := at.written(appends)
	if err != nil {
		return nil, unknownOutcome(err, appends)
	}
	return written, nil
}

// placed is where append_unit has put messages: a version, a global position and a time for each
// stream.
type placed struct {
	versions, globalPositions []int64
	times                     []time.Time
}

func (p *placed) read(columns [][]byte) (err error) {
	if len(columns) != 3 {
		return errNoAnswer
	}
	if p.versions, err = pglink.Int8s(columns[0]); err != nil {
		return err
	}
	if p.globalPositions, err = pglink.Int8s(columns[1]); err != nil {
		return err
	}
	p.times, err = readTimes(columns[2])
	return err
}

func (p *placed) written(appends []messagestore.Append) ([]messagestore.Written, error) {
	if len(p.versions) != len(appends) || len(p.globalPositions) != len(appends) || len(p.times) != len(appends) {
		return nil, errNoAnswer
	}
	answers := make([]answer, len(appends))
	for i := range appends {
		answers[i] = answer{
			outcome: "written", stream: string(appends[i].Stream), version: messagestore.Version(p.versions[i]),
			globalPosition: messagestore.GlobalPosition(p.globalPositions[i]), time: p.times[i],
		}
	}
	written, _, err := outcome(answers, appends)
	return written, err
}

// categoriesOf lays out the categories to which appends write.
func categoriesOf(appends []messagestore.Append) [][]byte {
	var categories []messagestore.Category
	for _, a := range appends {
		if c := a.Stream.Category(); len(a.Records) > 0 && !slices.Contains(categories, c) {
			categories = append(categories, c)
		}
	}
	var e pglink.Encoder
	e.Array(pgtype.TextOID, len(categories))
	for _, c := range categories {
		pglink.Element(&e, c)
	}
	return e.Parameters()
}

// learn asks for a fence that a Find of this driver has raised, by an append that it undoes. An
// append that carries another fence would be refused behind f, and f would run again.
func (t *transaction) learn(ctx context.Context, appends []messagestore.Append) error {
	fences := &t.driver.fences
	var refused []answer
	_, err := t.driver.link.Pipeline(ctx, t.conn,
		pglink.Statement{SQL: "savepoint dibs_fence"},
		pglink.Statement{
			SQL: t.driver.queries.transactLearn, OIDs: transactOIDs, Parameters: transactParameters(appends, fences.of(appends)),
			Read: func(columns [][]byte) error {
				if len(columns) == 2 && len(columns[1]) == 8 {
					version := messagestore.Version(binary.BigEndian.Uint64(columns[1])) //nolint:gosec // the same bits
					refused = append(refused, answer{outcome: "fenced", stream: string(columns[0]), version: version})
				}
				return nil
			},
		},
		pglink.Statement{SQL: "rollback to savepoint dibs_fence"},
	)
	switch {
	case err == nil && !fences.raised(refused):
		fences.trust(appends)
		return nil
	case pglink.Retryable(err):
		return &messagestore.RetryableError{Cause: t.driver.failed(err)}
	}
	return t.driver.failed(err)
}

// refused returns the outcome of an append and COMMIT that failed for certain.
func (t *transaction) refused(err error, appends []messagestore.Append) ([]messagestore.Written, error) {
	d := t.driver
	e, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case e == nil:
	case e.Code == "DB004" || e.Code == "22P02" && strings.Contains(e.Message, "dibs:ended"): // in every language
		return nil, messagestore.ErrTransactionEnded
	case e.Code == "DB003":
		answers, err := readAnswers([]byte(e.Detail))
		if err != nil {
			return nil, err
		}
		if d.fences.raised(answers) {
			return nil, &messagestore.RetryableError{Cause: errors.New("a fence was raised")}
		}
		written, _, err := outcome(answers, appends)
		return written, err
	case pglink.Retryable(err) || pglink.Stale(err) || e.Code == "23505" && (e.ConstraintName == "messages_id" || e.ConstraintName == "messages_stream"): // by a message that was under way
		return nil, &messagestore.RetryableError{Cause: d.failed(err)}
	}
	return nil, d.refused(err, appends)
}

func readAnswers(raw []byte) ([]answer, error) {
	var rows []struct {
		Outcome        string
		Stream         string
		Version        messagestore.Version
		GlobalPosition messagestore.GlobalPosition
		ID             uuid.UUID
		Time           *int64
	}
	if err := json.Unmarshal(raw, &rows); err != nil {
		return nil, errNoAnswer
	}
	answers := make([]answer, len(rows))
	for i, r := range rows {
		answers[i] = answer{outcome: r.Outcome, stream: r.Stream, version: r.Version, globalPosition: r.GlobalPosition, id: r.ID}
		if r.Time != nil {
			answers[i].time = time.UnixMicro(*r.Time).UTC()
		}
	}
	return answers, nil
}

// rollBack ends a transaction that is still open. If the server does not answer within a
// second, the connection is closed, and the server rolls back by itself.
func (t *transaction) rollBack(ctx context.Context) {
	if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'I' && !t.conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if t.conn.PgConn().IsBusy() {
		t.conn.Close(ctx)
		return
	}
	if _, err := t.conn.Exec(ctx, "rollback"); err != nil {
		t.conn.Close(ctx)
	}
}

func transactParameters(appends []messagestore.Append, fences []int64) [][]byte {
	messages := 0
	for _, a := range appends {
		messages += len(a.Records)
	}
	var e pglink.Encoder
	each := func(oid uint32, add func(r *messagestore.Encoded)) {
		e.Array(oid, messages)
		for _, a := range appends {
			for i := range a.Records {
				add(&a.Records[i])
			}
		}
	}
	e.Array(pgtype.TextOID, len(appends))
	for _, a := range appends {
		pglink.Element(&e, a.Stream)
	}
	e.Array(pgtype.Int8OID, len(appends))
	for _, a := range appends {
		e.Int8Element(int64(a.Expected))
	}
	e.Array(pgtype.Int4OID, len(appends))
	for _, a := range appends {
		e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 4)
		e.Int4(len(a.Records))
	}
	each(pgtype.UUIDOID, func(r *messagestore.Encoded) { pglink.Element(&e, r.ID[:]) })
	each(pgtype.TextOID, func(r *messagestore.Encoded) { pglink.Element(&e, r.Type) })
	each(pgtype.JSONOID, func(r *messagestore.Encoded) { pglink.Element(&e, r.Data) })
	each(pgtype.JSONOID, func(r *messagestore.Encoded) {
		if len(r.Metadata) > 0 {
			pglink.Element(&e, r.Metadata)
		} else {
			e.Null()
		}
	})
	e.Array(pgtype.Int8OID, len(fences))
	for _, fence := range fences {
		e.Int8Element(fence)
	}
	parameters := append(e.Parameters(), nil, nil)
	if types := past(appends); types != nil {
		parameters[len(parameters)-2] = []byte(*types)
	}
	if ids := after(appends); ids != nil {
		var e pglink.Encoder
		e.Array(pgtype.UUIDOID, len(ids))
		for _, id := range ids {
			if id.Valid {
				pglink.Element(&e, id.Bytes[:])
			} else {
				e.Null()
			}
		}
		parameters[len(parameters)-1] = e.Parameters()[0]
	}
	return parameters
}
