package consumer

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A consumer removes its own old checkpoints: after every trimEvery of them all but the last
// keptCheckpoints. Replicas write to one stream, and the replica that writes the trimEvery-th
// checkpoint trims it.
const (
	trimEvery       = 1000
	keptCheckpoints = 1000
)

// trim removes old checkpoints of a stream at the given version, if it is time. A failure does no
// harm, because trim will be called again.
func (r *run) trim(ctx context.Context, stream messagestore.StreamName, version messagestore.Version) {
	if version < keptCheckpoints || version%trimEvery != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
	defer cancel()
	removed, err := r.store.TrimCheckpoints(ctx, stream, keptCheckpoints)
	switch {
	case err != nil && !errors.Is(err, messagestore.ErrNotSupported) && ctx.Err() == nil:
		r.config.Logger.Debug().Str("error", text.Log(err)).Str("stream", string(stream)).Msg("old checkpoints stay")
	case removed > 0:
		r.config.Logger.Debug().Str("stream", string(stream)).Int64("removed", removed).Msg("old checkpoints removed")
	}
}
