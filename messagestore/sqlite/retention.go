package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Trim removes the first messages of a stream, like package messagestore/postgres/admin. The last
// message always stays, and so does the version; the remaining messages keep their positions.
// Messages of type dibs:Trimmed record it: for account-123 in account:retention-123.
//
// Trim does not remove a reservation. A message that a queue has not finished, or that a consumer
// has parked, stays with all messages behind it. Each transaction removes at most 10,000 messages,
// and writers wait meanwhile. If Trim returns an error, a part may be done; it is safe to call it
// again.
func (d *Driver) Trim(ctx context.Context, stream messagestore.StreamName, options *retention.TrimOptions) (retention.Trimmed, error) {
	trimmed := retention.Trimmed{Stream: stream, First: messagestore.NoStream, Version: messagestore.NoStream}
	err := removal.CheckName(stream)
	if err == nil {
		err = options.Validate()
	}
	for more := true; more && err == nil; {
		var next retention.Trimmed
		err = d.change(ctx, "trim", func(ctx context.Context, db queryer) (err error) {
			next, more, err = trim(ctx, db, stream, options)
			return err
		})
		if err != nil {
			break
		}
		next.Removed += trimmed.Removed
		if options.OnProgress != nil && next.Removed > trimmed.Removed && !options.DryRun {
			options.OnProgress(next.Removed - trimmed.Removed)
		}
		trimmed = next
	}
	if err != nil {
		return trimmed, fmt.Errorf("trim %.80q: %w", string(stream), err)
	}
	return trimmed, nil
}

// trim is one transaction of Trim.
func trim(ctx context.Context, db queryer, stream messagestore.StreamName, o *retention.TrimOptions) (t retention.Trimmed, more bool, err error) {
	t = retention.Trimmed{Stream: stream, First: messagestore.NoStream, Version: messagestore.NoStream}
	first, last, there, err := endsOf(ctx, db, stream)
	if err != nil || !there {
		return t, false, err
	}
	t.First, t.Version = first, last
	cut := last - messagestore.Version(max(o.Keep, 1)) + 1
	if retentionStream(stream) == "" {
		var own messagestore.Version
		if _, err := scanOne(ctx, db, ownLastSQL, []any{string(stream)}, &own); err != nil {
			return t, false, err
		}
		if own >= 0 {
			cut = min(cut, own)
		}
	}
	upTo := max(cut, first)
	if !o.DryRun {
		upTo = min(upTo, first+maxRemoved)
	}
	more = upTo < cut
	if spared := spare(o); !spared.IsZero() || o.Below > 0 {
		micro := func(t time.Time) int64 {
			if t.IsZero() {
				return math.MaxInt64
			}
			return t.UnixMicro()
		}
		var position messagestore.Version
		var micros, global int64
		below := cmp.Or(int64(o.Below), math.MaxInt64)
		found, err := scanOne(ctx, db, youngSQL, []any{string(stream), int64(first), int64(upTo), micro(spared), below}, &position, &micros, &global)
		if err != nil {
			return t, false, err
		}
		if found {
			upTo, more = position, false
			t.Recent = micros < micro(o.Before) && global < below
		}
	}
	head, err := query(ctx, db, streamSQL, string(stream), int64(first), 1)
	if err != nil || len(head) == 0 {
		return t, false, err
	}
	if upTo > first && reservationOf(head[0].metadata) != nil {
		t.Reservation, t.Recent = true, false
		return t, false, nil
	}
	open, queue, err := openItem(ctx, db, stream, first, upTo, false)
	if err != nil {
		return t, false, err
	}
	if queue != "" {
		upTo, more, t.Queue, t.Recent = open, false, queue, false
	}
	if upTo == first {
		return t, false, nil
	}
	t.Removed, t.First = int64(upTo-first), upTo
	if o.DryRun {
		return t, false, nil
	}
	if t.Removed, err = removeBelow(ctx, db, stream, upTo); err != nil {
		return t, false, err
	}
	_, err = recordTrim(ctx, db, stream, trimRecord{Stream: stream, Removed: t.Removed, From: first, UpTo: upTo - 1, Reason: o.Reason})
	return t, more, err
}

// spare returns the time since which messages stay.
func spare(o *retention.TrimOptions) time.Time {
	age := o.MinAge
	switch age {
	case 0:
		age = removal.DefaultMinAge
	case retention.AnyAge:
		return o.Before
	}
	young := clock(nil).now().Add(-age)
	if !o.Before.IsZero() && o.Before.Before(young) {
		return o.Before
	}
	return young
}

// reservationOf returns the properties that a tombstone keeps if the message made a reservation,
// else nil.
func reservationOf(metadata json.RawMessage) map[string]json.RawMessage {
	var m struct {
		Local map[string]json.RawMessage `json:"localProperties"`
	}
	if len(metadata) == 0 || json.Unmarshal(metadata, &m) != nil || !strings.HasPrefix(string(m.Local["reservedDigest"]), `"`) {
		return nil
	}
	kept := map[string]json.RawMessage{}
	for _, name := range []string{"reservedBy", "reservedDigest", "reservedFor", "reservedHandled", "reservedKey"} {
		if value, ok := m.Local[name]; ok {
			kept[name] = value
		}
	}
	return kept
}

// TrimCategory calls [Driver.Trim] for every stream of a category, in order of their names,
// including streams that are written while it runs, and yields each result. It ends after an error.
func (d *Driver) TrimCategory(ctx context.Context, category messagestore.Category, options *retention.TrimOptions) iter.Seq2[retention.Trimmed, error] {
	const page = 1000

	return func(yield func(retention.Trimmed, error) bool) {
		err := options.Validate()
		if err == nil {
			err = category.Validate()
		}
		for after := ""; err == nil; {
			var names []string
			names, err = d.streams(ctx, category, after, page)
			for _, name := range names {
				trimmed, err := d.Trim(ctx, messagestore.StreamName(name), options)
				if !yield(trimmed, err) || err != nil {
					return
				}
			}
			if err == nil && len(names) < page {
				return
			}
			if len(names) > 0 {
				after = names[len(names)-1]
			}
		}
		yield(retention.Trimmed{}, fmt.Errorf("trim category %.80q: %w", string(category), err))
	}
}

func (d *Driver) streams(ctx context.Context, category messagestore.Category, after string, limit int) (names []string, err error) {
	err = d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		names = nil
		rows, err := db.QueryContext(ctx, streamsSQL, string(category), after, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return err
			}
			names = append(names, name)
		}
		return rows.Err()
	})
	return names, explain(err)
}

// Delete puts a tombstone at the end of a stream, if the stream is at the expected version, and
// removes everything before it, in one transaction: see [removal.Tombstone]. The version goes on
// from there. The tombstone keeps the digest of a reservation, so its key stays taken.
//
// The error matches
//
//   - [messagestore.ErrVersionConflict] if the stream is at another version
//   - [messagestore.ErrNotFound] if it has no messages
//   - [retention.ErrOpenItem] if a queue has not finished one of its messages
//   - [messagestore.ErrInvalid] if the stream has the records of removals, or if the input is
//     invalid
//   - [messagestore.ErrNotSupported] with EraseName: on SQLite the name stays
func (d *Driver) Delete(
	ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *retention.DeleteOptions,
) (retention.Deleted, error) {
	if options == nil {
		options = &retention.DeleteOptions{}
	}
	var deleted retention.Deleted
	err := removal.CheckName(stream)
	if err == nil && expected < 0 && expected != messagestore.AnyVersion {
		err = messagestore.NewInvalidError("expected version", int64(expected), "must be a position from 0, or AnyVersion (-2)")
	}
	if err == nil {
		err = removal.CheckReason(options.Reason)
	}
	if err == nil && options.EraseName {
		err = fmt.Errorf("erase the name on SQLite: %w", messagestore.ErrNotSupported)
	}
	if err == nil {
		err = d.change(ctx, "delete", func(ctx context.Context, db queryer) (err error) {
			deleted, err = remove(ctx, db, stream, expected, options)
			return err
		})
	}
	if err != nil {
		return retention.Deleted{Stream: stream}, fmt.Errorf("delete %.80q: %w", string(stream), err)
	}
	return deleted, nil
}

func remove(ctx context.Context, db queryer, stream messagestore.StreamName, expected messagestore.Version, o *retention.DeleteOptions) (retention.Deleted, error) {
	d := retention.Deleted{Stream: stream, Tombstone: stream}
	if err := refuseRecords(ctx, db, stream); err != nil {
		return d, err
	}
	first, last, there, err := endsOf(ctx, db, stream)
	if err != nil {
		return d, err
	}
	if !there {
		return d, fmt.Errorf("%w: the stream has none", messagestore.ErrNotFound)
	}
	head, err := query(ctx, db, streamSQL, string(stream), int64(first), 1)
	if err != nil {
		return d, err
	}
	tail, err := query(ctx, db, streamSQL, string(stream), int64(last), 1)
	if err != nil {
		return d, err
	}
	stands := tail[0].IsTombstone()
	if expected != messagestore.AnyVersion && expected != last && (!stands || expected != last-1) {
		return d, &messagestore.VersionConflictError{Stream: stream, Expected: expected, Actual: last}
	}
	if stands && first == last {
		var stone removal.Tombstone
		_ = json.Unmarshal(tail[0].Data, &stone) // it may be of a later release
		d.Already, d.Version, d.Messages = true, last, stone.Messages
		return d, nil
	}
	switch _, queue, err := openItem(ctx, db, stream, first, last+1, true); {
	case err != nil:
		return d, err
	case queue != "":
		return d, fmt.Errorf("%w: finish, drop or cancel it first", retention.ErrOpenItem)
	}
	d.Version, d.Messages = last+1, int64(last-first)+1
	if head[0].IsTombstone() {
		d.Messages--
	}
	if o.DryRun {
		return d, nil
	}
	data, err := json.Marshal(removal.Tombstone{Messages: d.Messages, UpTo: last, Reason: o.Reason})
	if err != nil {
		return d, err
	}
	var metadata []byte
	if kept := reservationOf(head[0].metadata); kept != nil {
		if metadata, err = json.Marshal(map[string]any{"localProperties": kept}); err != nil {
			return d, err
		}
	}
	if err := appendOwn(ctx, db, stream, removal.TombstoneType, data, metadata); err != nil {
		return d, err
	}
	_, err = removeBelow(ctx, db, stream, d.Version)
	return d, err
}

// Verify checks the whole store, at one moment, and reports violations of these rules of
// [retention.Violation]: indexes (by PRAGMA integrity_check), dense, order, derived, json,
// sequence, reservation, consumer and queue. Writers go on meanwhile, and cause no false alarms. It
// reads every message. If a category has no message, the error matches [messagestore.ErrNotFound].
func (d *Driver) Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error) {
	err := config.Validate()
	if err == nil && config != nil && config.Amcheck {
		err = fmt.Errorf("amcheck needs PostgreSQL: %w", messagestore.ErrNotSupported)
	}
	var v *verifier
	if err == nil {
		err = explain(d.reads.read(ctx, func(ctx context.Context, db queryer) error {
			v = &verifier{most: config.Most(), listed: map[string]int{}, trims: map[messagestore.StreamName][]messagestore.Version{}, heads: map[messagestore.Category]messagestore.GlobalPosition{}, ledgers: map[messagestore.StreamName]bool{}, seen: map[messagestore.Category]bool{}}
			if config != nil {
				v.only = config.Categories
				if config.OnProgress != nil {
					config.OnProgress("", 0, 0)
				}
			}
			return v.run(ctx, db)
		}))
	}
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return &v.found, nil
}

// A verifier goes through all messages once, stream by stream.
type verifier struct {
	only   []messagestore.Category // none for all
	most   int
	listed map[string]int // violations by rule and category
	found  retention.Verification

	seen    map[messagestore.Category]bool
	ledgers map[messagestore.StreamName]bool // the streams with the consumers' generations
	heads   map[messagestore.Category]messagestore.GlobalPosition
	trims   map[messagestore.StreamName][]messagestore.Version // the first positions of streams, by their records
	late    []placed                                           // streams that do not begin at 0

	positions []recordedPosition
	last      placed // the message before, of the same stream or another
	greatest  messagestore.GlobalPosition
}

type placed struct {
	stream messagestore.StreamName
	at     messagestore.Version
	global messagestore.GlobalPosition
}

type recordedPosition struct {
	placed
	position messagestore.GlobalPosition
}

func (v *verifier) violation(rule string, m placed, expected, found string) {
	category := m.stream.Category()
	if !v.counts(rule + " " + string(category)) {
		return
	}
	v.found.Violations = append(v.found.Violations, retention.Violation{
		Rule: rule, Category: category, Stream: m.stream, Position: m.at, GlobalPosition: m.global, Expected: expected, Found: found,
	})
}

func (v *verifier) run(ctx context.Context, db queryer) error {
	rows, err := db.QueryContext(ctx, "PRAGMA integrity_check(100)")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var answer string
		if err := rows.Scan(&answer); err != nil {
			return err
		}
		if answer != "ok" {
			v.found.Violations = append(v.found.Violations, retention.Violation{Rule: "indexes", Expected: "a sound file", Found: answer})
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := v.scan(ctx, db); err != nil {
		return err
	}
	for _, category := range v.only {
		if !v.seen[category] {
			return fmt.Errorf("category %s: %w", category, messagestore.ErrNotFound)
		}
	}
	v.judge()
	if err := v.queues(ctx, db); err != nil {
		return err
	}
	var drawn messagestore.GlobalPosition
	if _, err := scanOne(ctx, db, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'dibs_messages'", nil, &drawn); err != nil {
		return err
	}
	if drawn < v.greatest {
		v.found.Violations = append(v.found.Violations, retention.Violation{
			Rule: "sequence", GlobalPosition: v.greatest, Expected: "a sequence at this global position or after", Found: fmt.Sprintf("a sequence at %d", drawn),
		})
	}
	v.found.NotChecked = append(v.found.NotChecked,
		"what was removed by hand from the end of a stream, or all of one: what is left looks whole",
		"effects that should have been written once under one id, and were written under two")
	return nil
}

func (v *verifier) scan(ctx context.Context, db queryer) error {
	rows, err := db.QueryContext(ctx, allSQL)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var m placed
		var category, messageType string
		var data, metadata []byte
		var hash int64
		var correlation *string
		if err := rows.Scan(&m.global, &m.stream, &category, &m.at, &messageType, &data, &metadata, &hash, &correlation); err != nil {
			return err
		}
		v.greatest = max(v.greatest, m.global)
		v.heads[messagestore.Category(category)] = max(v.heads[messagestore.Category(category)], m.global)
		if messageType == trimmedType {
			v.trimmed(data)
		}
		if !v.looksAt(messagestore.Category(category)) {
			continue
		}
		v.message(m, category, messageType, data, metadata, hash, correlation)
	}
	return rows.Err()
}

func (v *verifier) trimmed(data []byte) {
	var r trimRecord
	if json.Unmarshal(data, &r) == nil {
		v.trims[r.Stream] = append(v.trims[r.Stream], r.UpTo+1)
	}
}

func (v *verifier) message(m placed, category, messageType string, data, metadata []byte, hash int64, correlation *string) {
	c := &v.found.Checked
	c.Messages++
	if !v.seen[messagestore.Category(category)] {
		v.seen[messagestore.Category(category)] = true
		c.Categories++
	}
	initial := m.stream != v.last.stream
	switch {
	case initial:
		c.Streams++
		if m.at != 0 && messageType != removal.TombstoneType && !isOfType(messagestore.Category(category), "retention") {
			v.late = append(v.late, m)
		}
	case m.at != v.last.at+1:
		v.violation("dense", m, fmt.Sprintf("position %d", v.last.at+1), fmt.Sprintf("position %d", m.at))
	case m.global <= v.last.global:
		v.violation("order", m, fmt.Sprintf("a global position after %d", v.last.global), fmt.Sprint(m.global))
	}
	v.last = m

	if want := string(m.stream.Category()); category != want {
		v.violation("derived", m, "category "+want, category)
	}
	if want := m.stream.GroupHash(); hash != want {
		v.violation("derived", m, fmt.Sprintf("group_hash %d", want), fmt.Sprint(hash))
	}
	parsed := messagestore.ParseMetadata(metadata)
	found := ""
	if correlation != nil {
		found = *correlation
	}
	if want := string(parsed.CorrelationStream.Category()); found != want {
		v.violation("derived", m, "correlation_category "+want, found)
	}
	if len(data) > 0 && !json.Valid(data) || len(metadata) > 0 && !json.Valid(metadata) {
		v.violation("json", m, "data and metadata that are JSON", "others")
	}
	if reservationOf(metadata) != nil && messageType != removal.TombstoneType {
		c.Reservations++
		if !initial && parsed.CausationStream != "" {
			v.violation("reservation", m, "one winner, the first message of its stream", "a copy at a later position")
		}
	}
	if isOfType(messagestore.Category(category), "position") && messageType == "Started" && !v.ledgers[m.stream] {
		v.ledgers[m.stream] = true // a consumer's, of its generations
		c.Consumers++
	}
	if isOfType(messagestore.Category(category), "position") && messageType == removal.CheckpointType {
		var body struct {
			Position messagestore.GlobalPosition `json:"position"`
		}
		if json.Unmarshal(data, &body) == nil {
			c.Positions++
			v.positions = append(v.positions, recordedPosition{m, body.Position})
			if n := len(v.positions); n > 1 && v.positions[n-2].stream == m.stream { // the last of each stream is enough
				v.positions = slices.Delete(v.positions, n-2, n-1)
			}
		}
	}
}

// judge checks the rules that need the whole store.
func (v *verifier) judge() {
	for _, m := range v.late {
		if !slices.Contains(v.trims[m.stream], m.at) {
			v.violation("dense", m, "position 0, or a record of what was removed", fmt.Sprintf("position %d", m.at))
		}
	}
	for _, p := range v.positions {
		category := ofPositions(p.stream.Category())
		if head, known := v.heads[category]; known && p.position > head.Next() {
			v.violation("consumer", p.placed, fmt.Sprintf("a position up to %d", head.Next()), fmt.Sprint(p.position))
		}
	}
}

// queues checks the state of the queues.
func (v *verifier) queues(ctx context.Context, db queryer) error {
	all, err := rowsOf(ctx, db, queueAllSQL, nil, func(rows *sql.Rows) (category messagestore.Category, err error) {
		return category, rows.Scan(new(int64), new(string), (*string)(&category))
	})
	if err != nil {
		return err
	}
	for _, category := range all {
		if v.looksAt(category) {
			v.found.Checked.Queues++
		}
	}
	broken, err := rowsOf(ctx, db, verifyQueuesSQL, nil, func(rows *sql.Rows) (b retention.Violation, err error) {
		return b, rows.Scan((*string)(&b.Category), (*string)(&b.Stream), (*int64)(&b.Position), (*int64)(&b.GlobalPosition), &b.Expected, &b.Found)
	})
	for _, b := range broken {
		if !v.looksAt(b.Category) {
			continue
		}
		b.Rule = "queue"
		if v.counts("queue " + string(b.Category)) {
			v.found.Violations = append(v.found.Violations, b)
		}
	}
	return err
}

func (v *verifier) looksAt(category messagestore.Category) bool {
	return len(v.only) == 0 || slices.Contains(v.only, category)
}

// counts reports whether to list another violation of a rule and category.
func (v *verifier) counts(key string) bool {
	v.listed[key]++
	v.found.More = v.found.More || v.listed[key] > v.most
	return v.listed[key] <= v.most
}

// ofPositions returns the category of the consumers that keep their positions in positions.
func ofPositions(positions messagestore.Category) messagestore.Category {
	name := string(positions)
	return messagestore.Category(name[:len(name)-len(":position")])
}
