package sqlite

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// scanLimit is how many messages of a category one filtered page looks at, which bounds the time of
// a read that finds few.
const scanLimit = messagestore.MaxReadMessages

// ReadStream implements [messagestore.Driver].
func (d *Driver) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	statement := streamSQL
	if q.Backwards {
		statement = streamBackwardsSQL
	}
	return d.query(ctx, statement, string(q.Stream), int64(q.From), q.Limit)
}

// ReadCategory implements [messagestore.Driver]. A filtered page looks at 10,000
// messages at most.
func (d *Driver) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if q.Filter.IsZero() {
		return d.readWholeCategory(ctx, q)
	}
	page := messagestore.CategoryPage{Next: q.From}
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		first, horizon, beyond, err := ends(ctx, db, q)
		if err != nil || horizon.IsZero() {
			return err
		}
		types, correlation, size, member := filterArgs(q.Filter)
		found, err := query(ctx, db, categoryFilteredSQL,
			string(q.Category), int64(q.From), int64(horizon.GlobalPosition), types, correlation, size, member, q.Limit)
		if err != nil {
			return err
		}
		page.Messages, page.First, page.Last, page.More = recorded(found), first, horizon, beyond
		if len(found) == q.Limit {
			page.Last = found[len(found)-1].Mark()
			page.More = beyond || page.Last.GlobalPosition < horizon.GlobalPosition
		}
		page.Next = page.Last.GlobalPosition.Next()
		return nil
	})
	return page, explain(err)
}

// ends returns the first and the last message that a filtered page looks at, and whether
// there is more beyond.
func ends(ctx context.Context, db queryer, q messagestore.CategoryQuery) (first, horizon messagestore.Mark, beyond bool, err error) {
	rows, err := db.QueryContext(ctx, categoryHorizonSQL, string(q.Category), int64(q.From), scanLimit)
	if err != nil {
		return first, horizon, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var m messagestore.Mark
		var id []byte
		var micros int64
		if err := rows.Scan(&id, &m.Stream, &m.Position, &m.GlobalPosition, &micros, &beyond); err != nil {
			return first, horizon, false, err
		}
		if m.ID, err = uuid.FromBytes(id); err != nil {
			return first, horizon, false, err
		}
		m.Time = time.UnixMicro(micros).UTC()
		if first.IsZero() || m.GlobalPosition < first.GlobalPosition {
			first = m
		}
		if m.GlobalPosition > horizon.GlobalPosition {
			horizon = m
		}
	}
	return first, horizon, beyond, rows.Err()
}

func (d *Driver) readWholeCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page := messagestore.CategoryPage{Next: q.From}
	var err error
	page.Messages, err = d.query(ctx, categorySQL, string(q.Category), int64(q.From), q.Limit+1)
	if err != nil {
		return messagestore.CategoryPage{Next: q.From}, err
	}
	if len(page.Messages) > q.Limit {
		page.Messages, page.More = page.Messages[:q.Limit], true
	}
	if n := len(page.Messages); n > 0 {
		page.Next = page.Messages[n-1].GlobalPosition.Next()
	}
	return page, nil
}

// filterArgs returns f as the arguments of category_filtered.sql.
func filterArgs(f messagestore.Filter) (types, correlation, size, member any) {
	if len(f.Types) > 0 {
		list, err := json.Marshal(f.Types)
		if err == nil { // strings always encode
			types = string(list)
		}
	}
	correlation = text(f.Correlation)
	if f.GroupSize > 1 {
		size, member = f.GroupSize, f.GroupMember
	}
	return types, correlation, size, member
}

// Last implements [messagestore.Driver].
func (d *Driver) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	var found []*messagestore.Message
	var err error
	if messageType == "" {
		found, err = d.query(ctx, streamBackwardsSQL, string(stream), int64(messagestore.EndOfStream), 1)
	} else {
		found, err = d.query(ctx, lastOfTypeSQL, string(stream), messageType)
	}
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, messagestore.ErrNotFound
	}
	return found[0], nil
}

// Version implements [messagestore.Driver].
func (d *Driver) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	var v messagestore.Version
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) (err error) {
		v, err = version(ctx, db, stream)
		return err
	})
	return v, explain(err)
}

func (d *Driver) query(ctx context.Context, statement string, args ...any) ([]*messagestore.Message, error) {
	var found []message
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) (err error) {
		found, err = query(ctx, db, statement, args...)
		return err
	})
	return recorded(found), explain(err)
}
