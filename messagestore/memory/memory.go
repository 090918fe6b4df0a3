// Package memory keeps messages in memory, for tests and for examples. It passes
// the same conformance suite as every other driver.
package memory

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Driver is a [messagestore.Driver]. It is safe for concurrent use. Its messages are lost when the
// process ends.
type Driver struct {
	mu         sync.RWMutex
	last       messagestore.GlobalPosition
	streams    map[messagestore.StreamName][]*message
	categories map[messagestore.Category][]*message
	ids        map[uuid.UUID]*message
	clock      func() time.Time
	queues     map[string]*queue
}

type message struct {
	recorded *messagestore.Message
	metadata []byte // as written
}

var _ messagestore.Driver = (*Driver)(nil)

// New returns an empty driver.
func New() *Driver { return NewWithClock(time.Now) }

// NewWithClock returns an empty driver that reads the time from clock, so that a test can make the
// clock jump. It calls clock once for each write and each Now, one call at a time. nil means
// [time.Now].
func NewWithClock(clock func() time.Time) *Driver {
	if clock == nil {
		clock = time.Now
	}
	return &Driver{
		clock:      clock,
		streams:    map[messagestore.StreamName][]*message{},
		categories: map[messagestore.Category][]*message{},
		ids:        map[uuid.UUID]*message{},
	}
}

// Close implements [messagestore.Driver]. There is nothing to close.
func (*Driver) Close() error { return nil }

// Connections implements [messagestore.Driver]: there are no connections.
func (*Driver) Connections() int { return 0 }

// Forgets implements [messagestore.Driver]: an operator cannot reach the memory of a process.
func (*Driver) Forgets() bool { return false }

// Epoch implements [messagestore.Driver]: messages are lost only with the process.
func (*Driver) Epoch(context.Context) (string, error) { return "", nil }

// Listen implements [messagestore.Driver]: no other process writes here.
func (*Driver) Listen(context.Context, func(messagestore.Category, messagestore.GlobalPosition)) error {
	return messagestore.ErrNotSupported
}

// Over implements [messagestore.Driver]. It is not supported: there are no transactions.
func (*Driver) Over(context.Context, any) (messagestore.Driver, error) {
	return nil, messagestore.ErrNotSupported
}

// Stage implements [messagestore.Driver]. It is not supported: there are no transactions.
func (*Driver) Stage(context.Context, messagestore.Append) error { return messagestore.ErrNotSupported }

// Append implements [messagestore.Driver].
func (d *Driver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	written, err := d.AppendAll(ctx, []messagestore.Append{a})
	if err != nil {
		return messagestore.Written{}, err
	}
	return written[0], nil
}

// AppendAll implements [messagestore.Driver].
func (d *Driver) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.append(appends)
}

// TryAppend implements [messagestore.Driver].
func (d *Driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	written, err := d.append(appends)
	if !errors.Is(err, messagestore.ErrVersionConflict) {
		return written, nil, err
	}
	met := &messagestore.Conflict{Time: d.now(), Last: make([]*messagestore.Message, len(appends))}
	for i, a := range appends {
		if all := d.streams[a.Stream]; len(all) > 0 {
			met.Last[i] = all[len(all)-1].copy()
		}
	}
	return nil, met, nil
}

func (d *Driver) append(appends []messagestore.Append) ([]messagestore.Written, error) {
	if written, err := d.again(appends); written != nil || err != nil {
		return written, err
	}
	for _, a := range appends {
		if !d.expects(a) {
			return nil, &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected, Actual: d.version(a.Stream)}
		}
	}
	written := make([]messagestore.Written, len(appends))
	for i, a := range appends {
		written[i] = d.add(a)
	}
	return written, nil
}

// expects reports whether a's stream meets its conditions: it is at the expected version, or past
// it only by messages of the types in Past, and has the message After.
func (d *Driver) expects(a messagestore.Append) bool {
	actual := d.version(a.Stream)
	if a.After != uuid.Nil {
		all := d.streams[a.Stream]
		if i := at(all, a.Expected); a.Expected > actual || all[i].recorded.Position != a.Expected || all[i].recorded.ID != a.After {
			return false
		}
	}
	if a.Expected == actual || a.Expected == messagestore.AnyVersion {
		return true
	}
	if exists, within := a.Expected.Exists(actual); exists {
		all := d.streams[a.Stream]
		return within && len(all) > 0 && !all[len(all)-1].recorded.IsTombstone()
	}
	if len(a.Past) == 0 || a.Expected > actual {
		return false
	}
	all := d.streams[a.Stream]
	since := all[at(all, a.Expected+1):]
	return since[0].recorded.Position == a.Expected+1 && !slices.ContainsFunc(since, func(m *message) bool {
		return !slices.Contains(a.Past, m.recorded.Type)
	})
}

// Now implements [messagestore.Driver] with the process's clock.
func (d *Driver) Now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now(), nil
}

func (d *Driver) now() time.Time { return d.clock().UTC().Truncate(time.Microsecond) }

// again returns the result of an earlier write with the same ids, or nil.
func (d *Driver) again(appends []messagestore.Append) ([]messagestore.Written, error) {
	var seen, fresh int
	var conflict *messagestore.IDConflictError
	written := make([]messagestore.Written, len(appends))
	for i, a := range appends {
		written[i] = messagestore.Written{Stream: a.Stream, Version: a.Expected, Duplicate: true}
		if exists, _ := a.Expected.Exists(messagestore.NoStream); exists {
			written[i].Version = d.version(a.Stream) // the answer for a check
		}
		for n, r := range a.Records {
			m, ok := d.ids[r.ID]
			if !ok {
				fresh++
				continue
			}
			seen++
			at := m.recorded
			gap := n > 0 && at.Position != written[i].Version+1
			if conflict == nil && (gap || at.Stream != a.Stream || !r.Same(at, m.metadata)) {
				conflict = &messagestore.IDConflictError{ID: r.ID, Stream: at.Stream, Position: at.Position}
			}
			written[i].Version, written[i].GlobalPosition, written[i].Time = at.Position, at.GlobalPosition, at.Time
			written[i].IDs = append(written[i].IDs, r.ID)
		}
	}
	switch {
	case seen == 0:
		return nil, nil
	case conflict != nil:
		return nil, conflict
	case fresh > 0:
		return nil, d.firstRecorded(appends)
	}
	return written, nil
}

func (d *Driver) firstRecorded(appends []messagestore.Append) error {
	for _, a := range appends {
		for _, r := range a.Records {
			if m, ok := d.ids[r.ID]; ok {
				return &messagestore.IDConflictError{ID: r.ID, Stream: m.recorded.Stream, Position: m.recorded.Position}
			}
		}
	}
	return nil
}

func (d *Driver) version(stream messagestore.StreamName) messagestore.Version {
	all := d.streams[stream]
	if len(all) == 0 {
		return messagestore.NoStream
	}
	return all[len(all)-1].recorded.Position
}

func (d *Driver) add(a messagestore.Append) messagestore.Written {
	written := messagestore.Written{Stream: a.Stream, Version: d.version(a.Stream)}
	category := a.Stream.Category()
	now := d.now()
	for _, r := range a.Records {
		d.last++
		written.Version++
		m := &message{
			recorded: &messagestore.Message{
				ID: r.ID, Stream: a.Stream, Position: written.Version, GlobalPosition: d.last, Time: now,
				Type: r.Type, Data: slices.Clone(r.Data), Metadata: messagestore.ParseMetadata(r.Metadata),
			},
			metadata: slices.Clone(r.Metadata),
		}
		d.streams[a.Stream] = append(d.streams[a.Stream], m)
		d.categories[category] = append(d.categories[category], m)
		d.ids[r.ID] = m
		written.GlobalPosition, written.Time = d.last, now
		written.IDs = append(written.IDs, r.ID)
	}
	return written
}

// ReadStream implements [messagestore.Driver].
func (d *Driver) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	all := d.streams[q.Stream]
	var found []*messagestore.Message
	if q.Backwards {
		for i := at(all, min(q.From, messagestore.EndOfStream-1)+1) - 1; i >= 0 && len(found) < q.Limit; i-- {
			found = append(found, all[i].copy())
		}
		return found, nil
	}
	for i := at(all, q.From); i < len(all) && len(found) < q.Limit; i++ {
		found = append(found, all[i].copy())
	}
	return found, nil
}

// ReadCategory implements [messagestore.Driver].
func (d *Driver) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if err := ctx.Err(); err != nil {
		return messagestore.CategoryPage{}, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	all := d.categories[q.Category]
	start := sort.Search(len(all), func(i int) bool { return all[i].recorded.GlobalPosition >= q.From })
	page := messagestore.CategoryPage{Next: q.From}
	for _, m := range all[start:] {
		if len(page.Messages) == q.Limit {
			page.More = true
			break
		}
		if q.Filter.Matches(m.recorded) {
			page.Messages = append(page.Messages, m.copy())
		}
		page.Last = m.recorded.Mark()
		if page.First.IsZero() {
			page.First = page.Last
		}
	}
	if !page.Last.IsZero() {
		page.Next = page.Last.GlobalPosition.Next()
	}
	return page, nil
}

// Heads implements [messagestore.Driver].
func (d *Driver) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	heads := make([]messagestore.GlobalPosition, len(categories))
	for i, category := range categories {
		if all := d.categories[category]; len(all) > 0 {
			heads[i] = all[len(all)-1].recorded.GlobalPosition
		}
	}
	return heads, nil
}

// Last implements [messagestore.Driver].
func (d *Driver) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	for _, m := range slices.Backward(d.streams[stream]) {
		if messageType == "" || m.recorded.Type == messageType {
			return m.copy(), nil
		}
	}
	return nil, messagestore.ErrNotFound
}

// Version implements [messagestore.Driver].
func (d *Driver) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.version(stream), ctx.Err()
}

// Find implements [messagestore.Driver].
func (d *Driver) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	var found []*messagestore.Message
	for _, id := range ids {
		if m, ok := d.ids[id]; ok && m.recorded.Stream == stream {
			found = append(found, m.copy())
		}
	}
	slices.SortFunc(found, func(a, b *messagestore.Message) int { return int(a.Position - b.Position) })
	return found, nil
}

// copy returns a copy for one reader, so that a reader that changes it does not affect others.
func (m *message) copy() *messagestore.Message {
	c := *m.recorded
	c.Data = slices.Clone(c.Data)
	c.Metadata = messagestore.ParseMetadata(m.metadata)
	return &c
}
