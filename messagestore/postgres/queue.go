package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// queues change and show queues.
type queues struct{ *database }

// QueueTake implements [queuing.Driver].
func (qs queues) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	var taken queuing.Taken
	err := qs.changeQueue(ctx, qs.queries.queueTake, takeArguments(t), func(rows pgx.Rows) error {
		taken = queuing.Taken{}
		return scanTaken(rows.Scan, &taken)
	})
	if err == nil {
		err = checkTaken(taken, t)
	}
	if err != nil {
		return queuing.Taken{}, err
	}
	return taken, nil
}

// checkTaken returns an error if the answer is malformed.
func checkTaken(taken queuing.Taken, t queuing.Take) error {
	if len(taken.Endings) != len(t.Finishes) {
		return fmt.Errorf("malformed reply to queue_take: %d endings of %d deliveries", len(taken.Endings), len(t.Finishes))
	}
	return nil
}

func takeArguments(t queuing.Take) []any {
	n := len(t.Finishes)
	kinds, delays, reasons := make([]byte, n), make([]int64, n), make([]*string, n)
	var seen []int64 // for a queue of streams
	if len(t.Wakes) > 0 {
		seen = make([]int64, n)
	}
	ended := make([]queuing.Delivery, n)
	for i, f := range t.Finishes {
		ended[i], kinds[i], delays[i], reasons[i] = f.Delivery, byte(f.Kind), f.Delay.Microseconds(), pglink.OrNull(f.Error)
		if seen != nil {
			seen[i] = int64(f.Seen)
		}
	}
	positions, versions := split(ended)
	var others []int64
	var wants []int32
	for _, o := range t.Others {
		others, wants = append(others, o.Session), append(wants, int32(o.Want)) //nolint:gosec // the database refuses values out of bounds
	}
	return []any{
		t.Name, string(t.Category), t.Session, t.Lease.Microseconds(), positions, versions, string(kinds), delays, reasons,
		int32(t.Want), t.Wait.Microseconds(), orNull(t.Ticket), int32(t.MaxFailures), t.Hold, orNull(int32(t.MaxOut)), orNull(t.Rate), orNull(int32(t.Burst)), seen, orNone(t.Wakes), sessionsOf(t), orNull(int64(t.Slots)), orNone(t.Resume), others, wants, //nolint:gosec // the database refuses values out of bounds
	}
}

// orNone returns an argument that is null for an empty list.
func orNone[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// sessionsOf returns nil, which is null, if no delivery names its session.
func sessionsOf(t queuing.Take) []*int64 {
	if !slices.ContainsFunc(t.Finishes, func(f queuing.Finish) bool { return f.Session != 0 }) {
		return nil
	}
	sessions := make([]*int64, len(t.Finishes))
	for i, f := range t.Finishes {
		sessions[i] = orNull(f.Session)
	}
	return sessions
}

func scanTaken(scan func(into ...any) error, taken *queuing.Taken) error {
	var endings pgtype.Text
	var positions, streamPositions, times []int64
	var versions, failures []int32
	var ids []pgtype.UUID
	var streams, types []string
	var data, metadata []*string
	var ticket, wake pgtype.Int8
	if err := scan(&endings, &positions, &versions, &failures, &ids, &streams, &streamPositions, &types, &data, &metadata, &times, &ticket, &taken.More, &wake); err != nil {
		return err
	}
	n := len(positions)
	for _, other := range []int{
		len(versions), len(failures), len(ids), len(streams), len(streamPositions), len(types), len(data), len(metadata), len(times),
	} {
		if other != n {
			return fmt.Errorf("malformed reply to queue_take: columns of %d and %d items", n, other)
		}
	}
	taken.Endings = endingsOf(endings.String)
	taken.Items = make([]queuing.Taking, n)
	for i := range positions {
		taken.Items[i] = queuing.Taking{
			Message: messageOf(ids[i], streams[i], streamPositions[i], positions[i], types[i], data[i], metadata[i], times[i]),
			Version: int(versions[i]), Failures: int(failures[i]),
		}
	}
	taken.Ticket = ticket.Int64
	taken.Wake = wakeOf(wake)
	return nil
}

func endingsOf(letters string) []queuing.Ending {
	endings := make([]queuing.Ending, len(letters))
	for i := range letters {
		endings[i] = queuing.Ending(letters[i])
	}
	return endings
}

func wakeOf(micros pgtype.Int8) time.Duration {
	if !micros.Valid {
		return -1
	}
	return time.Duration(min(micros.Int64, queuing.MaxDelay.Microseconds())) * time.Microsecond
}

func messageOf(id pgtype.UUID, stream string, position, global int64, messageType string, data, metadata *string, micros int64) *messagestore.Message {
	m := &messagestore.Message{
		ID: id.Bytes, Stream: messagestore.StreamName(stream), Position: messagestore.Version(position),
		GlobalPosition: messagestore.GlobalPosition(global), Type: messageType, Time: time.UnixMicro(micros).UTC(),
	}
	if data != nil {
		m.Data = json.RawMessage(*data)
	}
	if metadata != nil {
		m.Metadata = messagestore.ParseMetadata(*metadata)
	}
	return m
}

func split(deliveries []queuing.Delivery) (positions []int64, versions []int32) {
	positions, versions = make([]int64, len(deliveries)), make([]int32, len(deliveries))
	for i, d := range deliveries {
		positions[i], versions[i] = int64(d.Position), int32(d.Version) //nolint:gosec // of a row
	}
	return positions, versions
}

// orNull returns an argument that is null for the zero value.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// changeQueue calls a function that changes a queue, at READ COMMITTED, in a new transaction. If
// the answer is lost, the outcome is unknown.
func (qs queues) changeQueue(ctx context.Context, sql string, args []any, each func(pgx.Rows) error) error {
	return qs.with(ctx, func(db DB) error {
		if qs.link.InTransaction(db) {
			return fmt.Errorf("%w: a queue is changed in a step of its own, not in a transaction of the caller's", messagestore.ErrNotSupported)
		}
		err := qs.link.Read(ctx, db, sql, args, each)
		if pglink.IsUnsupported(err) { // the user's default is another level
			err = atReadCommitted(ctx, db, func(tx DB) error { return qs.link.Read(ctx, tx, sql, args, each) })
		}
		return writeFailed(err, nil)
	})
}

// QueueReady implements [queuing.Driver].
func (qs queues) QueueReady(ctx context.Context, q queuing.Queue) (ready queuing.Ready, err error) {
	err = qs.query(ctx, qs.queries.queueReady, []any{q.Name, string(q.Category)}, func(rows pgx.Rows) error {
		var wake pgtype.Int8
		err := rows.Scan(&ready.Ready, &wake, &ready.Parked, &ready.Asked)
		ready.Wake = wakeOf(wake)
		return err
	})
	return ready, err
}

// QueueExtend implements [queuing.Driver].
func (qs queues) QueueExtend(ctx context.Context, e queuing.Extension) (lost []queuing.Delivery, err error) {
	positions, versions := split(e.Deliveries)
	var gone []int64
	err = qs.changeQueue(ctx, qs.queries.queueExtend, []any{e.Name, string(e.Category), e.Session, e.Lease.Microseconds(), positions, versions, pglink.OrNull(string(e.Notes.JSON())), orNone(e.Sessions)}, func(rows pgx.Rows) error {
		return rows.Scan(&gone)
	})
	if err != nil {
		return nil, err
	}
	is := make(map[int64]bool, len(gone))
	for _, position := range gone {
		is[position] = true
	}
	for _, delivery := range e.Deliveries {
		if is[int64(delivery.Position)] {
			lost = append(lost, delivery)
		}
	}
	return lost, nil
}

// QueueLeave implements [queuing.Driver].
func (qs queues) QueueLeave(ctx context.Context, l queuing.Leave) error {
	positions, versions := split(l.Keep)
	args := []any{l.Name, string(l.Category), l.Session, orNull(l.Next), orNull(l.Lease.Microseconds()), positions, versions}
	return qs.changeQueue(ctx, qs.queries.queueLeave, args, func(pgx.Rows) error { return nil })
}

// QueueFinish implements [queuing.Driver]. With the context of a function of [Driver.Transact] it
// runs in that transaction.
func (qs queues) QueueFinish(ctx context.Context, q queuing.Queue, session int64, deliveries []queuing.Delivery) (endings []queuing.Ending, err error) {
	positions, versions := split(deliveries)
	err = qs.reads(ctx, func(db DB) error {
		own := !qs.link.InTransaction(db)
		err := qs.link.Read(ctx, db, qs.queries.queueFinish, []any{q.Name, string(q.Category), session, positions, versions}, func(rows pgx.Rows) error {
			var letters pgtype.Text
			err := rows.Scan(&letters)
			endings = endingsOf(letters.String)
			return err
		})
		if !own {
			return failed(err)
		}
		return writeFailed(err, nil)
	})
	if err == nil && len(endings) != len(deliveries) {
		err = fmt.Errorf("malformed reply to queue_finish: %d endings of %d deliveries", len(endings), len(deliveries))
	}
	if err != nil {
		return nil, err
	}
	return endings, nil
}

// QueueChange implements [queuing.Driver].
func (qs queues) QueueChange(ctx context.Context, c queuing.Change) (changed []messagestore.GlobalPosition, err error) {
	positions := make([]int64, len(c.Positions))
	for i, position := range c.Positions {
		positions[i] = int64(position)
	}
	var done []int64
	err = qs.changeQueue(ctx, qs.queries.queueChange, []any{c.Name, string(c.Category), string(c.Action), positions, pglink.OrNull(c.Reason)}, func(rows pgx.Rows) error {
		return rows.Scan(&done)
	})
	if err != nil {
		return nil, err
	}
	for _, position := range done {
		changed = append(changed, messagestore.GlobalPosition(position))
	}
	return changed, nil
}

// QueuePark implements [queuing.Driver].
func (qs queues) QueuePark(ctx context.Context, p queuing.Parking) (parked bool, err error) {
	args := []any{p.Name, string(p.Category), int64(p.Position), int32(p.Failures), pglink.OrNull(p.Error), p.Asked, p.Finished} //nolint:gosec // the database refuses values out of bounds
	err = qs.changeQueue(ctx, qs.queries.queuePark, args, func(rows pgx.Rows) error { return rows.Scan(&parked) })
	return parked, err
}

// QueueRemove implements [queuing.Driver]. It needs the role dibs_admin.
func (qs queues) QueueRemove(ctx context.Context, r queuing.Removal) (removed queuing.RemovedQueue, err error) {
	err = qs.changeQueue(ctx, qs.queries.queueRemove, []any{r.Name, string(r.Category), r.Unfinished, r.FreeName}, func(rows pgx.Rows) error {
		return rows.Scan(&removed.Done, &removed.NameKept, &removed.Waiting, &removed.Out, &removed.Later, &removed.Suspended, &removed.Held, &removed.Dead)
	})
	if err != nil {
		return queuing.RemovedQueue{}, err
	}
	return removed, nil
}

// itemStates are the states of rows, by their letters.
var itemStates = map[string]queuing.State{
	"w": queuing.Waiting, "o": queuing.Out, "l": queuing.Later, "s": queuing.Suspended, "h": queuing.Held, "d": queuing.Dead, "k": queuing.Dead, "f": queuing.Finished,
}

// scanItem reads an item, and its log if log is not nil.
func scanItem(rows pgx.Rows, log *[]byte) (queuing.Item, error) {
	var item queuing.Item
	var state string
	var version, failures int32
	var session, until, due, after, streamPosition, at pgtype.Int8
	var failure, note, stream, messageType pgtype.Text
	var id pgtype.UUID
	var data, metadata *string
	into := []any{(*int64)(&item.Position), &state, &version, &failures, &session, &until, &due, &after, &failure, &note, &id, &stream, &streamPosition, &messageType, &data, &metadata, &at}
	if log != nil {
		into = append(into, log)
	}
	if err := rows.Scan(into...); err != nil {
		return item, err
	}
	item.State, item.Closed = itemStates[state], state == "k"
	item.Version, item.Failures, item.Session, item.Error = int(version), int(failures), session.Int64, failure.String
	item.Note = note.String
	item.Behind = messagestore.GlobalPosition(after.Int64)
	if until.Valid {
		item.Until = time.UnixMicro(until.Int64).UTC()
	}
	if due.Valid {
		item.Due = time.UnixMicro(due.Int64).UTC()
	}
	if id.Valid {
		item.Message = messageOf(id, stream.String, streamPosition.Int64, int64(item.Position), messageType.String, data, metadata, at.Int64)
	}
	return item, nil
}

// QueueItem implements [queuing.Driver].
func (qs queues) QueueItem(ctx context.Context, q queuing.Queue, position messagestore.GlobalPosition) (item queuing.Item, err error) {
	found := false
	err = qs.query(ctx, qs.queries.queueItem, []any{q.Name, string(q.Category), int64(position)}, func(rows pgx.Rows) error {
		var log []byte
		var err error
		if item, err = scanItem(rows, &log); err != nil {
			return err
		}
		found = true
		item.Log, err = entriesOf(log)
		return err
	})
	if err == nil && !found {
		err = messagestore.ErrNotFound
	}
	if err != nil {
		return queuing.Item{}, err
	}
	return item, nil
}

func entriesOf(raw []byte) ([]queuing.Entry, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var log []struct {
		Version int
		What    string
		Time    int64
		Session int64
		Text    string
	}
	if err := json.Unmarshal(raw, &log); err != nil {
		return nil, fmt.Errorf("malformed reply to queue_item: %w", err)
	}
	entries := make([]queuing.Entry, len(log))
	for i, e := range log {
		if len(e.What) != 1 {
			return nil, fmt.Errorf("malformed reply to queue_item: an entry of kind %q", e.What)
		}
		entries[i] = queuing.Entry{Version: e.Version, What: queuing.What(e.What[0]), Time: time.UnixMicro(e.Time).UTC(), Session: e.Session, Text: e.Text}
	}
	return entries, nil
}

// QueueItems implements [queuing.Driver].
func (qs queues) QueueItems(ctx context.Context, l queuing.List) (items []queuing.Item, err error) {
	err = qs.query(ctx, qs.queries.queueItems, []any{l.Name, string(l.Category), string(l.State), int64(l.From), int32(l.Limit), int64(queuing.MaxListBytes)}, func(rows pgx.Rows) error { //nolint:gosec // the database refuses more
		item, err := scanItem(rows, nil)
		items = append(items, item)
		return err
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// Queues implements [queuing.Driver].
func (qs queues) Queues(ctx context.Context) ([]queuing.Status, error) {
	return qs.states(ctx, nil, nil)
}

// QueueStatus implements [queuing.Driver].
func (qs queues) QueueStatus(ctx context.Context, q queuing.Queue) (queuing.Status, error) {
	most := int64(queuing.MaxCount)
	found, err := qs.states(ctx, &q.Name, &most)
	if err == nil && (len(found) != 1 || found[0].Queue != q) {
		err = messagestore.ErrNotFound
	}
	if err != nil {
		return queuing.Status{}, err
	}
	return found[0], nil
}

func (qs queues) states(ctx context.Context, name *string, most *int64) (all []queuing.Status, err error) {
	err = qs.query(ctx, qs.queries.queueStates, []any{name, most}, func(rows pgx.Rows) error {
		var s queuing.Status
		var oldest, changed pgtype.Int8
		var at int64
		err := rows.Scan(&s.Name, (*string)(&s.Category), &s.Paused, (*int64)(&s.Cursor), &s.Out, &s.Later, &s.Held, &s.Dead, &s.Waiting, &oldest, &s.Taken, &s.Finished, &s.Back, &s.Buried, &s.Due, &s.Sessions, &at, &s.Suspended, &s.Streams, &changed, &s.Partial)
		s.Parked = s.Cursor == queuing.NoCursor
		s.Time = time.UnixMicro(at).UTC()
		if oldest.Valid {
			s.Oldest = time.UnixMicro(oldest.Int64).UTC()
		}
		if changed.Valid {
			s.Changed = time.UnixMicro(changed.Int64).UTC()
		}
		all = append(all, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
