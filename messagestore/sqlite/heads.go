package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// Heads implements [messagestore.Driver]. It is not supported over a transaction, which has one
// user.
func (d *Driver) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if d.close == nil {
		return nil, fmt.Errorf("heads of categories: %w", messagestore.ErrNotSupported)
	}
	if len(categories) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(categories)
	if err != nil {
		return nil, fmt.Errorf("heads of categories: %w", err)
	}
	heads := make([]messagestore.GlobalPosition, len(categories))
	err = d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		rows, err := db.QueryContext(ctx, headsSQL, string(list))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var i int
			var head messagestore.GlobalPosition
			if err := rows.Scan(&i, &head); err != nil {
				return err
			}
			heads[i] = head
		}
		return rows.Err()
	})
	if err != nil {
		return nil, explain(err)
	}
	return heads, nil
}
