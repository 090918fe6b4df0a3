package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// Heads implements [messagestore.HeadsDriver]. Over a transaction, which has one user,
// it is not supported.
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
	var heads []messagestore.GlobalPosition
	err = d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		heads = nil
		rows, err := db.QueryContext(ctx, headsSQL, string(list))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var head messagestore.GlobalPosition
			if err := rows.Scan(&head); err != nil {
				return err
			}
			heads = append(heads, head)
		}
		return rows.Err()
	})
	return heads, explain(err)
}
