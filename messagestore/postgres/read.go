package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// A reader reads, each call by itself.
type reader struct{ *database }

func (r reader) readStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	call := &reading{sql: r.queries.readStream, args: []any{string(q.Stream), int64(q.From), q.Limit, q.Backwards}}
	if err := r.readMessages(ctx, call); err != nil {
		return nil, err
	}
	return call.found.Messages, nil
}

// readMessages calls the function. Outside a transaction it decodes the rows from the connection's
// buffers. In a transaction pgx reads them, because only pgx knows whether the transaction has
// ended.
func (r reader) readMessages(ctx context.Context, call *reading) error {
	return r.reads(ctx, func(db DB) error {
		conn := pglink.Conn(db)
		if conn != nil && !r.link.InTransaction(db) {
			return failed(r.link.Exec(ctx, conn, call.sql, nil, binaryParameters(call.args), call.take))
		}
		return failed(r.link.Read(ctx, db, call.sql, call.args, func(rows pgx.Rows) error {
			m, more, err := call.rows.row(rows)
			if err == nil {
				err = call.add(m, more)
			}
			return err
		}))
	})
}

// ReadCategory implements [messagestore.Driver]. With a filter, one call looks at 10,000 messages
// at most, so a page may be empty and not the last. A page ends before it holds more than 16 MiB of
// data.
func (r reader) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	types, correlation, size, member := filterArgs(q.Filter)
	call := &reading{
		sql: r.queries.readCategory, args: []any{string(q.Category), int64(q.From), q.Limit, types, correlation, size, member},
		category: true,
	}
	if err := r.readMessages(ctx, call); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return call.found, nil
}

// filterArgs returns f as the functions take it, with null for an unset field. It leaves out a
// group of size 1, which filters nothing, because a read without a filter is faster.
func filterArgs(f messagestore.Filter) (types []string, correlation *string, size, member *int) {
	if len(f.Types) > 0 {
		types = f.Types
	}
	if f.GroupSize > 1 {
		size, member = &f.GroupSize, &f.GroupMember
	}
	return types, pglink.OrNull(f.Correlation), size, member
}

// Last implements [messagestore.Driver].
func (r reader) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	var ofType *string
	if messageType != "" {
		ofType = &messageType
	}
	call := &reading{sql: r.queries.last, args: []any{string(stream), ofType}}
	if err := r.readMessages(ctx, call); err != nil {
		return nil, err
	}
	if len(call.found.Messages) == 0 {
		return nil, messagestore.ErrNotFound
	}
	return call.found.Messages[0], nil
}

// Version implements [messagestore.Driver].
func (r reader) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	version := messagestore.NoStream
	err := r.query(ctx, r.queries.version, []any{string(stream)}, func(rows pgx.Rows) error {
		return rows.Scan((*int64)(&version))
	})
	return version, err
}

// Find implements [messagestore.Driver]. Over a pool it uses another connection than the write
// whose answer was lost.
func (r reader) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	wanted := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		wanted[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	var found []*messagestore.Message
	err := r.with(ctx, func(db DB) error {
		if r.link.InTransaction(db) {
			return failed(r.link.Read(ctx, db, r.queries.find, []any{string(stream), wanted}, into(&found)))
		}
		// This sets READ COMMITTED even if the user's default is a higher level, at which Find
		// would not see the writes that it waited for.
		tx, err := pglink.Begin(ctx, db)
		if err != nil {
			return failed(err)
		}
		defer pglink.RollBack(ctx, tx)
		if err := r.link.Read(ctx, tx, r.queries.find, []any{string(stream), wanted}, into(&found)); err != nil {
			return failed(err)
		}
		// Until the fence is committed, a write that is on its way may still arrive.
		return failed(pglink.Replicated(db, func() error { return tx.Commit(ctx) }))
	})
	if err != nil {
		return nil, err
	}
	if len(found) < len(ids) {
		r.fences.doubt(stream.Category())
	}
	return found, nil
}

func into(found *[]*messagestore.Message) func(pgx.Rows) error {
	var r rowReader
	return func(rows pgx.Rows) error {
		m, _, err := r.row(rows)
		*found = append(*found, m)
		return err
	}
}

// Heads implements [messagestore.Driver]. It is supported over a pool only: a connection or a
// transaction has its own user.
func (r reader) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if r.link.Pool() == nil {
		return nil, fmt.Errorf("heads of categories: %w", messagestore.ErrNotSupported)
	}
	size := 20
	for _, category := range categories {
		size += 4 + len(category)
	}
	e := pglink.Encoder{Buffer: make([]byte, 0, size)}
	e.Array(pgtype.TextOID, len(categories))
	for _, category := range categories {
		pglink.Element(&e, category)
	}
	var heads []messagestore.GlobalPosition
	err := r.with(ctx, func(db DB) error {
		return failed(r.link.Exec(ctx, pglink.Conn(db), r.queries.heads, headsOIDs, e.Parameters(), func(columns [][]byte) error {
			found, err := pglink.Int8s(columns[0])
			heads = make([]messagestore.GlobalPosition, len(found))
			for i, head := range found {
				heads[i] = messagestore.GlobalPosition(head)
			}
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return heads, nil
}
