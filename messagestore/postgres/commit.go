package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// The parameters of the statements that append.
var (
	sharedOIDs = []uint32{
		pgtype.TextOID, pgtype.Int8OID, pgtype.UUIDOID, pgtype.TextOID, pgtype.JSONOID, pgtype.JSONOID, pgtype.Int8OID, pgtype.BoolOID,
	}
	transactOIDs = []uint32{
		pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.UUIDArrayOID, pgtype.TextArrayOID,
		pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.Int8ArrayOID, pgtype.TextOID, pgtype.UUIDArrayOID,
	}
)

// commit appends and commits in one round trip. If an append fails, the server skips COMMIT.
func (t *transaction) commit(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	for t.fences.inDoubt(appends) {
		if err := t.learn(ctx, appends); err != nil {
			return nil, err
		}
	}
	answers := make([]answer, len(appends))
	statements := []pglink.Statement{{SQL: transactEndSQL}}
	if len(appends) > 0 {
		statements = t.writes(appends, answers)
	}
	commit := len(statements)
	statements = append(statements, pglink.Statement{SQL: "commit"})
	if t.notify && len(appends) > 0 {
		statements = append(statements, pglink.Statement{SQL: t.queries.ring, OIDs: headsOIDs, Parameters: categoriesOf(appends), Often: true})
	}
	var tags []string
	err := pglink.Replicated(t.conn, func() (err error) {
		tags, err = t.link.Pipeline(ctx, t.conn, statements...)
		if len(tags) > commit {
			return nil // the server has answered to COMMIT; a reader without a wake-up polls
		}
		return err
	})
	switch {
	case err != nil && !pglink.Definite(err):
		return nil, unknownOutcome(pglink.Safe(err), appends)
	case err != nil:
		return t.notCommitted(ctx, err, appends)
	case tags[commit] != "COMMIT":
		return nil, errAborted
	case len(appends) == 0:
		return nil, nil
	case slices.ContainsFunc(answers, func(a answer) bool { return a.outcome == "" }):
		return nil, unknownOutcome(errNoAnswer, appends)
	}
	t.fences.mark(appends)
	written, _, err := outcome(answers, appends)
	return written, err
}

// writes returns the statements that append and fill in the answers: one for each stream, in the
// order of names, which is the order of locking. It returns one statement for all appends if
// otherwise the messages of a category were out of the given order, or if a stream is named twice,
// which that statement refuses.
func (t *transaction) writes(appends []messagestore.Append, answers []answer) []pglink.Statement {
	fences, marked := t.fences.of(appends), t.fences.marked(appends)
	order := make([]int, len(appends))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(appends[i].Stream, appends[j].Stream) })
	for n, i := range order[1:] {
		before := order[n]
		if i < before && appends[i].Stream.Category() == appends[before].Stream.Category() || appends[i].Stream == appends[before].Stream {
			return []pglink.Statement{t.writeAll(appends, fences, answers)}
		}
	}
	statements := make([]pglink.Statement, 0, len(appends)+2)
	for _, i := range order {
		if a := appends[i]; len(a.Records) == 1 && !a.Conditional() {
			statements = append(statements, t.writeShared(a, fences[i], marked[i], &answers[i]))
		} else {
			statements = append(statements, t.writeAll(appends[i:i+1], fences[i:i+1], answers[i:i+1]))
		}
	}
	return statements
}

// writeShared returns the statement that appends one message.
func (t *transaction) writeShared(a messagestore.Append, fence int64, marked bool, to *answer) pglink.Statement {
	r := &a.Records[0]
	e := pglink.Encoder{Buffer: make([]byte, 0, 17)}
	e.Next()
	e.Int8(int64(a.Expected))
	e.Next()
	e.Int8(fence)
	e.Next()
	e.Bool(marked)
	numbers := e.Parameters()
	parameters := [][]byte{[]byte(a.Stream), numbers[0], r.ID[:], []byte(r.Type), r.Data, nil, numbers[1], numbers[2]}
	if len(r.Metadata) > 0 {
		parameters[5] = r.Metadata
	}
	return pglink.Statement{SQL: t.queries.appendShared, OIDs: sharedOIDs, Parameters: parameters, Often: true, Read: func(columns [][]byte) (err error) {
		*to, err = readShared(columns)
		to.stream = string(a.Stream)
		return err
	}}
}

// writeAll returns the statement of the function append, for several messages, for conditions other
// than the version, and for checks, which have no message.
func (t *transaction) writeAll(appends []messagestore.Append, fences []int64, to []answer) pglink.Statement {
	n := 0
	return pglink.Statement{SQL: t.queries.transactAppend, OIDs: transactOIDs, Parameters: transactParameters(appends, fences), Often: true, Read: func(columns [][]byte) (err error) {
		if n == len(to) {
			return errNoAnswer
		}
		to[n], err = placed(columns)
		to[n].stream = string(appends[n].Stream)
		n++
		return err
	}}
}

// categoriesOf returns the categories of appends as parameters.
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

// ask calls append for its answer, and rolls its work back.
func (t *transaction) ask(ctx context.Context, appends []messagestore.Append, before, after []string) (answers []answer, err error) {
	statements := make([]pglink.Statement, 0, len(before)+1+len(after))
	for _, sql := range before {
		statements = append(statements, pglink.Statement{SQL: sql})
	}
	statements = append(statements, pglink.Statement{
		SQL: t.queries.transactAsk, OIDs: transactOIDs, Parameters: transactParameters(appends, t.fences.of(appends)),
		Read: func(columns [][]byte) error {
			a, err := readAsked(columns)
			answers = append(answers, a)
			return err
		},
	})
	for _, sql := range after {
		statements = append(statements, pglink.Statement{SQL: sql})
	}
	_, err = t.link.Pipeline(ctx, t.conn, statements...)
	return answers, err
}

// learn reads the fence if a Find of this driver has raised it. Otherwise the append after f would
// carry an old fence and be refused, and f would run again.
func (t *transaction) learn(ctx context.Context, appends []messagestore.Append) error {
	fences := &t.fences
	answers, err := t.ask(ctx, appends, []string{"savepoint dibs_fence"}, []string{"rollback to savepoint dibs_fence"})
	switch {
	case err == nil && !fences.raised(answers):
		fences.trust(appends)
		return nil
	case pglink.Retryable(err):
		return &calling.RetryableError{Cause: failed(err)}
	}
	return failed(err)
}

// notCommitted returns the result of an append and COMMIT that definitely failed.
func (t *transaction) notCommitted(ctx context.Context, err error, appends []messagestore.Append) ([]messagestore.Written, error) {
	t.fences.unmark(appends)
	e, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case e == nil:
	case isRaised(e, "dibs:ended"):
		return nil, messagestore.ErrTransactionEnded
	case isRaised(e, "dibs:refused") || e.Code == "DB003" || e.Code == "23505" && (e.ConstraintName == "messages_id" || e.ConstraintName == "messages_stream"):
		return t.reason(ctx, appends)
	case pglink.Retryable(err) || pglink.Stale(err):
		return nil, &calling.RetryableError{Cause: failed(err)}
	}
	return nil, refused(err, appends)
}

// isRaised reports whether a statement failed on purpose: it casts the text, which is in the
// server's message in every language.
func isRaised(e *pgconn.PgError, text string) bool {
	return e.Code == "22P02" && strings.Contains(e.Message, text)
}

var errReasonGone = errors.New("the messages were refused, and the reason was gone when it was asked for")

// reason rolls back and returns why the messages are not written. The reason may be gone, if a
// message that was under way has been rolled back since.
func (t *transaction) reason(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	answers, err := t.ask(ctx, appends, []string{rollBackSQL, beginSQL}, []string{rollBackSQL})
	switch {
	case err != nil && (pglink.Retryable(err) || pglink.Stale(err)):
		return nil, &calling.RetryableError{Cause: failed(err)}
	case err != nil:
		return nil, refused(fmt.Errorf("the messages were not written, and finding the reason failed: %w", err), appends)
	case t.fences.raised(answers):
		return nil, &calling.RetryableError{Cause: errors.New("a fence was raised")}
	case len(answers) > 0 && answers[0].outcome == "written":
		return nil, &calling.RetryableError{Cause: errReasonGone}
	}
	written, _, err := outcome(answers, appends)
	return written, err
}
