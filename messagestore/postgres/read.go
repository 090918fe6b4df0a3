package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// ReadStream implements [messagestore.Driver].
func (d *Driver) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	if d.gathers(ctx) {
		return d.readGathered(ctx, q)
	}
	return d.readStream(ctx, q)
}

func (d *Driver) readStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	r := &reading{sql: d.queries.readStream, args: []any{string(q.Stream), int64(q.From), q.Limit, q.Backwards}}
	if err := d.readMessages(ctx, r); err != nil {
		return nil, err
	}
	return r.found.Messages, nil
}

// maxPageBytes is roughly how much data a page holds, unless a single message has more. The limit
// of a query counts messages, which may be large.
const maxPageBytes = 16 << 20

// ReadCategory implements [messagestore.Driver]. With a filter, one call looks at 10,000 messages
// at most, so a page may be empty and not the last. A page ends before it holds more than 16 MiB of
// data.
func (d *Driver) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	types, correlation, size, member := filterArgs(q.Filter)
	r := &reading{
		sql: d.queries.readCategory, args: []any{string(q.Category), int64(q.From), q.Limit, types, correlation, size, member},
		category: true,
	}
	if err := d.readMessages(ctx, r); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return r.found, nil
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
func (d *Driver) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	var ofType *string
	if messageType != "" {
		ofType = &messageType
	}
	r := &reading{sql: d.queries.last, args: []any{string(stream), ofType}}
	if err := d.readMessages(ctx, r); err != nil {
		return nil, err
	}
	if len(r.found.Messages) == 0 {
		return nil, messagestore.ErrNotFound
	}
	return r.found.Messages[0], nil
}

// Version implements [messagestore.Driver].
func (d *Driver) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	version := messagestore.NoStream
	err := d.query(ctx, d.queries.version, []any{string(stream)}, func(rows pgx.Rows) error {
		return rows.Scan((*int64)(&version))
	})
	return version, err
}

// Find implements [messagestore.Driver]. Over a pool it uses another connection than the write
// whose answer was lost.
func (d *Driver) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	wanted := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		wanted[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	var found []*messagestore.Message
	err := d.with(ctx, func(db DB) error {
		if d.link.InTransaction(db) {
			return failed(d.link.Read(ctx, db, d.queries.find, []any{string(stream), wanted}, into(&found)))
		}
		// This sets READ COMMITTED even if the user's default is a higher level, at which Find
		// would not see the writes that it waited for.
		tx, err := pglink.Begin(ctx, db)
		if err != nil {
			return failed(err)
		}
		defer pglink.RollBack(ctx, tx)
		if err := d.link.Read(ctx, tx, d.queries.find, []any{string(stream), wanted}, into(&found)); err != nil {
			return failed(err)
		}
		// Until the fence is committed, a write that is on its way may still arrive.
		return failed(pglink.Replicated(db, func() error { return tx.Commit(ctx) }))
	})
	if err != nil {
		return nil, err
	}
	if len(found) < len(ids) {
		d.fences.doubt(stream.Category())
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

func (d *Driver) query(ctx context.Context, sql string, args []any, each func(pgx.Rows) error) error {
	return d.reads(ctx, func(db DB) error {
		return failed(d.link.Read(ctx, db, sql, args, each))
	})
}
