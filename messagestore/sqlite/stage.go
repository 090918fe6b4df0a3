package sqlite

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// errNoTransaction refuses to stage a message that no COMMIT of the caller's would store.
var errNoTransaction = fmt.Errorf("%w: the store is over no transaction of the caller's (sqlite.New(tx))", messagestore.ErrNotSupported)

// Stage implements [messagestore.Driver]. It appends the message at once, because the transaction
// holds the write lock anyway.
func (d *Driver) Stage(ctx context.Context, a messagestore.Append) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if d.transactions != nil {
		return errNoTransaction
	}
	_, met, err := d.TryAppend(ctx, []messagestore.Append{a})
	if err != nil || met == nil {
		return err
	}
	conflict := &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected, Actual: messagestore.NoStream}
	if last := met.Last[0]; last != nil {
		conflict.Actual = last.Position
	}
	if a.Expected != messagestore.NoStream {
		return conflict
	}
	first, err := d.ReadStream(ctx, messagestore.StreamQuery{Stream: a.Stream, Limit: 1})
	if err != nil {
		return err
	}
	if len(first) == 1 && first[0].Position == 0 && first[0].Type == a.Records[0].Type && exactjson.Equal(first[0].Data, a.Records[0].Data) {
		return nil
	}
	return conflict
}
