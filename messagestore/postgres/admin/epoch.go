package admin

import (
	"context"
	"fmt"
)

// RaiseEpoch tells all readers that the store may have lost committed messages. Call it when
// nothing else shows the loss: the server's files were restored and have the same timeline as
// before. It returns the store's new epoch, which differs from all earlier ones. Running consumers
// begin again at their checkpoints within 10 s and redeliver the messages since, so it does no harm
// if nothing was lost. Raise the epoch before consumers reach the server: a checkpoint that they
// store before it stays.
//
// After an error the epoch may have been raised. It is safe to call RaiseEpoch again.
func (a *Admin) RaiseEpoch(ctx context.Context) (epoch string, err error) {
	if err := a.change(ctx, a.queries.raiseEpoch, nil, &epoch); err != nil {
		return "", fmt.Errorf("raise epoch: %w", err)
	}
	return epoch, nil
}
