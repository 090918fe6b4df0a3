package memory

import (
	"context"
	"slices"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
)

// maxTrimmed is how many messages one call removes at most.
const maxTrimmed = 10_000

// TrimCheckpoints implements [messagestore.Driver].
func (d *Driver) TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (removed int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()

	all := d.streams[stream]
	n := min(max(0, len(all)-keep), maxTrimmed)
	if slices.ContainsFunc(all[:n], func(m *message) bool { return m.recorded.Type != removal.CheckpointType }) {
		return 0, removal.NotCheckpoints(stream)
	}
	gone := map[*message]bool{}
	for _, m := range all[:n] {
		gone[m] = true
		delete(d.ids, m.recorded.ID)
	}
	d.streams[stream] = slices.Clone(all[n:])
	category := stream.Category()
	d.categories[category] = slices.DeleteFunc(slices.Clone(d.categories[category]), func(m *message) bool { return gone[m] })
	return int64(n), nil
}

// at returns the index in a stream of the first message at or after position.
func at(all []*message, position messagestore.Version) int {
	if len(all) == 0 {
		return 0
	}
	first := all[0].recorded.Position
	return int(min(max(0, position-first), messagestore.Version(len(all))))
}
