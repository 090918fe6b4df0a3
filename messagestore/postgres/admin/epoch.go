package admin

import (
	"context"
	"fmt"
)

// RaiseEpoch tells all readers that the store may have lost committed messages, where
// nothing else tells them: the server's files were restored and have the timeline that they
// had. It returns the store's new epoch, which differs from all before. Running consumers
// begin again at their checkpoints within 10 s and redeliver the messages since; so raising
// the epoch where nothing is lost does no harm. Raise it before consumers reach the server:
// a checkpoint of theirs in between stays.
//
// After an error the epoch may have been raised. To call again is safe.
func (a *Admin) RaiseEpoch(ctx context.Context) (epoch string, err error) {
	if err := a.change(ctx, a.queries.raiseEpoch, nil, &epoch); err != nil {
		return "", fmt.Errorf("raise epoch: %w", err)
	}
	return epoch, nil
}
