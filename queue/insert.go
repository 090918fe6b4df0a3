package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// InsertOpts change how an item is inserted. Nil means all defaults.
type InsertOpts struct {
	// ID is the message's id. If you insert again with the same ID, Key or Unique name, type and
	// data, it is the same item, and its first date and metadata stay. If any of them differs, the
	// error matches [messagestore.ErrIDConflict].
	//
	// Defaults to a new version 7 identifier.
	ID uuid.UUID

	// Key orders items: items with one key are delivered one at a time, in the order of insertion.
	// It is any text; it is escaped to name the item's stream in the queue's category, and the
	// stream's name has at most 255 bytes.
	//
	// Defaults to none: the item has a stream of its own.
	Key string

	// Unique is a name that one item has until the time given by UniqueUntil. A second item with
	// the same name, type and data is a duplicate of the first, and the first one's date, ID and
	// metadata stay. If the type or the data differs, the error is a [*KeyReusedError]. Put a
	// period into the name, such as "report 2026-11", to have one item per period. An item has a
	// Key or a Unique name, not both.
	//
	// Defaults to none.
	Unique string

	// UniqueUntil says how long an item keeps its Unique name. Items that have had the same name
	// are delivered one at a time, in order, like items with one Key. Values other than
	// UntilForgotten do not work with [Queue.Write]; if the queue's store uses
	// a transaction of yours, Insert returns an error that matches [messagestore.ErrNotSupported]
	// if an item has had the name. The queue's workers free the name, so a producer needs the same
	// Name in its [Config] as the workers. If no worker has taken from a queue of that name, but
	// workers have taken from other queues of the category, a warning is logged.
	//
	// Defaults to UntilForgotten.
	UniqueUntil UniqueUntil

	// ScheduledAt is the time before which the item is not delivered, by the store's clock, in a
	// year from 1 to 9999. Later items with the same Key wait for it.
	//
	// Defaults to now.
	ScheduledAt time.Time

	// Metadata is the message's metadata. If the body is a [messagestore.Envelope], the envelope's
	// metadata is used.
	//
	// Defaults to none.
	Metadata messagestore.Metadata
}

// UniqueUntil says how long an item keeps its unique name.
type UniqueUntil int

const (
	// UntilForgotten keeps the name for as long as the item's message is kept: see dibs forget.
	UntilForgotten UniqueUntil = iota

	// UntilFinished keeps the name until the queue has finished the item, or the item is dead. If
	// you write something while a handler works on the item and then insert it again, you get a
	// duplicate, and the handler may have missed your write.
	UntilFinished

	// UntilDelivered keeps the name until a worker has the item, and again while the item waits for
	// another delivery. So whatever you write before an insert is seen by a delivery that begins
	// later: of the new item, or of the item that it duplicates.
	UntilDelivered
)

var uniqueUntils = []string{UntilForgotten: "forgotten", UntilFinished: "finished", UntilDelivered: "delivered"}

// String returns forgotten, finished or delivered.
func (u UniqueUntil) String() string {
	if u < 0 || int(u) >= len(uniqueUntils) {
		return fmt.Sprintf("UniqueUntil(%d)", int(u))
	}
	return uniqueUntils[u]
}

// has reports whether an item in a state still has its unique name.
func (u UniqueUntil) has(state State) bool {
	switch u {
	case UntilFinished:
		return state != Finished && state != Dead
	case UntilDelivered:
		return state == Waiting || state == Later || state == Held
	}
	return true
}

// An Inserted says where an item was inserted.
type Inserted struct {
	ID     uuid.UUID
	Stream messagestore.StreamName

	// Position names the item, for example for [Queue.Item]. If several items of a batch have one
	// key, those before the last are read after the write; if that fails, they have 0.
	Position messagestore.GlobalPosition

	// Duplicate says that nothing was inserted, because the item was inserted before with the same
	// ID or Unique name.
	Duplicate bool

	// Err says why an item of a batch is not known to be inserted: see [Queue.InsertMany].
	Err error
}

// An Entry is an item to insert: see [Queue.InsertMany].
type Entry struct {
	Body messagestore.Body
	Opts *InsertOpts
}

// Insert adds an item. If the store uses a transaction of yours ([postgres.New] of a pgx.Tx),
// Insert adds the item in that transaction, and later items of the category wait until the
// transaction ends. With [Queue.InsertTx] they do not wait.
//
// If the input is invalid, the error is a [*messagestore.InvalidError], and nothing is sent. To
// resolve an error that matches [messagestore.ErrOutcomeUnknown], call
// [messagestore.Store.Resolve], or insert again with the same ID.
func (q *Queue) Insert(ctx context.Context, body messagestore.Body, opts *InsertOpts) (Inserted, error) {
	if err := q.use(ctx); err != nil {
		return Inserted{}, err
	}
	w, err := q.write(body, opts)
	if err != nil {
		return Inserted{}, err
	}
	all := make([]Inserted, 1)
	q.insert(ctx, []insertion{{w, opts, []int{0}}}, all)
	if err := all[0].Err; err != nil {
		return Inserted{}, q.fail("insert", err)
	}
	return all[0], nil
}

// InsertTx adds an item if your transaction on the queue's database commits: a pgx.Tx, or on SQLite
// a *sql.Tx, or the transaction of a function of [messagestore.TxStore.Transact], with that
// function's context. See [messagestore.Store.Stage]: no other item waits for the transaction, and
// the position is not known yet.
//
// If an item of the same type and data already has the Unique name when you call, the result is a
// Duplicate. If an item of another type or with other data has it, the error is a
// [*KeyReusedError]. COMMIT looks again: if another transaction has taken the name since, this item
// is left out if it has the same type and data; otherwise COMMIT fails. If the name was free again,
// by [InsertOpts].UniqueUntil, COMMIT fails whenever another item has taken it, also one of this
// transaction.
//
// An ID is only looked up by COMMIT, so it never makes the result a Duplicate. If the ID is
// recorded in the same stream with the same type, data, date and metadata, the item is left out;
// if anything differs, COMMIT fails. On SQLite the item is written at once, so InsertTx returns the
// error instead of COMMIT.
//
// Other errors are those that Stage returns; after an error roll back. Messages that the
// transaction appends directly to the same stream after InsertTx, for example by [Queue.Insert],
// would come before the item, so on PostgreSQL they are a [*messagestore.InvalidError].
func (q *Queue) InsertTx(ctx context.Context, tx any, body messagestore.Body, opts *InsertOpts) (Inserted, error) {
	if err := q.use(ctx); err != nil {
		return Inserted{}, err
	}
	w, err := q.write(body, opts)
	if err != nil {
		return Inserted{}, err
	}
	inserted, err := q.stage(ctx, tx, w, opts)
	return inserted, q.fail("insert", err)
}

func (q *Queue) stage(ctx context.Context, tx any, w messagestore.StreamWrite, opts *InsertOpts) (Inserted, error) {
	if err := q.errRemote(); err != nil {
		return Inserted{}, err
	}
	over, err := q.store.Over(ctx, tx)
	if err != nil {
		return Inserted{}, err
	}
	if opts != nil && opts.Unique != "" {
		if opts.UniqueUntil != UntilForgotten {
			q.sayUnworked(ctx)
		}
		last, err := over.Last(ctx, w.Stream)
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
			return Inserted{}, err
		}
		if err == nil {
			inserted, has, err := q.behind(ctx, &w, last, opts)
			if has || err != nil {
				return inserted, err
			}
		}
	}
	if err := over.Stage(ctx, w.Stream, w.Expected, w.Bodies[0]); err != nil {
		return Inserted{}, err
	}
	return Inserted{ID: envelopeOf(w).ID, Stream: w.Stream}, nil
}

// behind makes a write expect the last item with its unique name. If that item still has the name,
// behind returns it.
func (q *Queue) behind(ctx context.Context, w *messagestore.StreamWrite, last *messagestore.Message, opts *InsertOpts) (inserted Inserted, has bool, err error) {
	if opts.UniqueUntil == UntilForgotten {
		inserted, err = duplicate(*w, last, opts.Unique)
		return inserted, true, err
	}
	q.sayUnworked(ctx)
	item, err := q.driver.QueueItem(ctx, q.of, last.GlobalPosition)
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		w.Expected = messagestore.NoStream // it was removed meanwhile
		return Inserted{}, false, nil
	case err != nil:
		return Inserted{}, false, err
	case opts.UniqueUntil.has(State(item.State)):
		inserted, err = duplicate(*w, last, opts.Unique)
		return inserted, true, err
	}
	w.Expected = last.Position
	return Inserted{}, false, nil
}

// messageAt returns the message with an id, or nil.
func (q *Queue) messageAt(ctx context.Context, at *messagestore.IDConflictError) *messagestore.Message {
	for m, err := range q.store.ReadStream(ctx, at.Stream, at.Position) {
		if err == nil && m.ID == at.ID {
			return m
		}
		break
	}
	return nil
}

// sayUnworked warns, once a minute at most, if no worker frees the queue's unique names and workers
// have taken from other queues of its category.
func (q *Queue) sayUnworked(ctx context.Context) {
	before, now := q.looked.Load(), time.Now().UnixNano()
	if before != 0 && now-before < int64(time.Minute) || !q.looked.CompareAndSwap(before, now) {
		return
	}
	_, err := q.driver.QueueStatus(ctx, q.of)
	if err == nil {
		q.looked.Store(math.MaxInt64)
		return
	}
	if !errors.Is(err, messagestore.ErrNotFound) {
		return // the next call will report the failure
	}
	all, err := q.driver.Queues(ctx)
	if err != nil {
		return
	}
	var others []string
	for _, s := range all {
		if s.Category == q.of.Category {
			others = append(others, s.Name)
		}
	}
	if len(others) > 0 {
		q.config.Logger.Warn().Str("queue", q.of.Name).Str("category", string(q.of.Category)).Strs("others", others).
			Msg("no worker has taken from this queue, so its unique names are not freed: is it one of the others?")
	}
}

// duplicate returns the answer for a unique name that is taken.
func duplicate(w messagestore.StreamWrite, first *messagestore.Message, name string) (Inserted, error) {
	same, err := isSame(w.Bodies[0], first)
	switch {
	case err != nil:
		return Inserted{}, err
	case !same:
		return Inserted{}, &KeyReusedError{name, first}
	}
	return Inserted{ID: first.ID, Stream: w.Stream, Position: first.GlobalPosition, Duplicate: true}, nil
}

// envelopeOf returns the body of a write of [Queue.Write], with its ID.
func envelopeOf(w messagestore.StreamWrite) messagestore.Envelope {
	envelope, _ := w.Bodies[0].(messagestore.Envelope)
	return envelope
}

func isSame(body messagestore.Body, met *messagestore.Message) (bool, error) {
	envelope, ok := body.(messagestore.Envelope)
	if !ok || envelope.MessageType() != met.Type {
		return false, nil
	}
	data, err := json.Marshal(envelope.Body)
	if raw, is := envelope.Body.(messagestore.Raw); is {
		data, err = raw.Data, nil
	}
	return err == nil && exactjson.Equal(data, met.Data), err
}

// InsertMany adds 1 to 1,000 items, and returns what became of each, in order. Items may have Unique
// names. It writes the items in steps of up to 100 streams, each step as a whole.
//
// An item that is refused, by a [*KeyReusedError] or because its ID is recorded otherwise
// ([messagestore.ErrIDConflict]), keeps no other item out. If a step fails, the items of earlier
// steps are inserted; inserting all of them again with the same IDs or Unique names changes
// nothing. [Inserted].Err has the error of each such item, and the first of them is returned too.
// If an item is invalid, nothing is inserted, and there are no results.
func (q *Queue) InsertMany(ctx context.Context, entries ...Entry) ([]Inserted, error) {
	if err := q.use(ctx); err != nil {
		return nil, err
	}
	some, err := q.insertions(entries)
	if err != nil {
		return nil, q.fail("insert", err)
	}
	all := make([]Inserted, len(entries))
	q.insert(ctx, some, all)
	for i, one := range all {
		if one.Err != nil && err == nil {
			err = fmt.Errorf("item %d: %w", i, one.Err)
		}
	}
	return all, q.fail("insert", err)
}

// An insertion is the write of the items of one stream, in order: of one key, or one item.
type insertion struct {
	w    messagestore.StreamWrite
	opts *InsertOpts
	at   []int // the indexes of the items in the batch
}

func (one *insertion) unique() bool { return one.w.Expected != messagestore.AnyVersion }

// drop takes an item out of the write.
func (one *insertion) drop(k int) {
	one.w.Bodies, one.at = slices.Delete(one.w.Bodies, k, k+1), slices.Delete(one.at, k, k+1)
}

// insertions gathers the items of each key.
func (q *Queue) insertions(entries []Entry) (some []insertion, err error) {
	if err := checkCount("items", len(entries), 1); err != nil {
		return nil, err
	}
	by := map[messagestore.StreamName]int{}
	ids := map[uuid.UUID]bool{}
	for i, e := range entries {
		w, err := q.write(e.Body, e.Opts)
		if err == nil && e.Opts != nil && e.Opts.ID != uuid.Nil && ids[e.Opts.ID] {
			err = messagestore.NewInvalidError("ID", e.Opts.ID, "must not be on two items")
		}
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
		if e.Opts != nil {
			ids[e.Opts.ID] = true
		}
		if n, ok := by[w.Stream]; ok && w.Expected == messagestore.AnyVersion {
			some[n].w.Bodies, some[n].at = append(some[n].w.Bodies, w.Bodies...), append(some[n].at, i)
			continue
		}
		by[w.Stream] = len(some)
		some = append(some, insertion{w, e.Opts, []int{i}})
	}
	return some, nil
}

// insert writes insertions step by step, and sets the result of each item. After a failure of the
// store it writes no more.
func (q *Queue) insert(ctx context.Context, some []insertion, all []Inserted) {
	if q.remote != nil {
		q.insertOver(ctx, some, all)
		return
	}
	for len(some) > 0 {
		var step, rest []insertion
		streams := map[messagestore.StreamName]bool{}
		for _, one := range some {
			if len(step) == messagestore.MaxWriteStreams || streams[one.w.Stream] { // the second of a unique name meets the first
				rest = append(rest, one)
				continue
			}
			streams[one.w.Stream] = true
			step = append(step, one)
		}
		if some = rest; slices.ContainsFunc(step, func(one insertion) bool {
			return one.opts != nil && one.opts.UniqueUntil != UntilForgotten
		}) {
			q.sayUnworked(ctx)
		}
		if left, err := q.insertStep(ctx, step, all); err != nil {
			for _, one := range append(left, rest...) {
				for _, i := range one.at {
					all[i].Err = err
				}
			}
			return
		}
	}
}

// insertOver has the server insert the items.
func (q *Queue) insertOver(ctx context.Context, some []insertion, all []Inserted) {
	items, err := newItems(some, len(all))
	var done []queuing.Inserted
	if err == nil {
		done, err = q.remote.Insert(ctx, items)
	}
	for _, one := range some {
		for _, i := range one.at {
			if i >= len(done) {
				all[i].Err = err
				continue
			}
			is := done[i]
			all[i] = Inserted{ID: is.ID, Stream: one.w.Stream, Position: is.Position, Duplicate: is.Duplicate}
			switch {
			case is.Conflict:
				all[i].Err = fmt.Errorf("%w: %s is recorded with other content or elsewhere", messagestore.ErrIDConflict, items[i].ID)
			case is.Reused:
				met := &messagestore.Message{ID: is.ID, Stream: one.w.Stream, GlobalPosition: is.Position}
				all[i] = Inserted{Err: &KeyReusedError{one.opts.Unique, met}}
			}
		}
	}
}

// newItems encodes the n items of insertions.
func newItems(some []insertion, n int) ([]queuing.NewItem, error) {
	items := make([]queuing.NewItem, n)
	for _, one := range some {
		encoded, err := messagestore.Encode(one.w)
		if err != nil {
			return nil, err
		}
		for k, i := range one.at {
			items[i].Encoded = encoded[0].Records[k]
			if one.opts != nil {
				items[i].Key, items[i].Unique, items[i].Until = one.opts.Key, one.opts.Unique, int(one.opts.UniqueUntil)
			}
		}
	}
	return items, nil
}

// insertStep writes one step. Items that are there already, or whose id or unique name another has,
// are left out, and the rest is written again. It returns what was not written if the store fails.
func (q *Queue) insertStep(ctx context.Context, step []insertion, all []Inserted) ([]insertion, error) {
	for len(step) > 0 {
		written, met, err := q.tryStep(ctx, step)
		switch {
		case err != nil:
			err = q.passRecorded(ctx, step, all, err)
		case met != nil:
			err = q.passNamed(ctx, step, all, met)
		default:
			for n, w := range written {
				q.inserted(ctx, step[n], w, all)
			}
			return nil, nil
		}
		if err != nil {
			return step, err
		}
		step = slices.DeleteFunc(step, func(one insertion) bool { return len(one.at) == 0 })
	}
	return nil, nil
}

func (q *Queue) tryStep(ctx context.Context, step []insertion) ([]messagestore.Written, *messagestore.Conflict, error) {
	writes := make([]messagestore.StreamWrite, len(step))
	for i, one := range step {
		writes[i] = one.w
	}
	if slices.ContainsFunc(step, func(one insertion) bool { return one.unique() }) {
		return q.store.TryWriteStreams(ctx, writes...)
	}
	if len(writes) > 1 {
		written, err := q.store.WriteStreams(ctx, writes...)
		return written, nil, err
	}
	written, err := q.store.Write(ctx, writes[0].Stream, writes[0].Expected, writes[0].Bodies...)
	return []messagestore.Written{written}, nil, err
}

// inserted sets the results of a stream's items.
func (q *Queue) inserted(ctx context.Context, one insertion, w messagestore.Written, all []Inserted) {
	positions := map[uuid.UUID]messagestore.GlobalPosition{}
	if n := messagestore.Version(len(w.IDs)); n > 1 {
		for m, err := range q.store.ReadStream(ctx, w.Stream, w.Version-n+1) {
			if err != nil || m.Position >= w.Version {
				break
			}
			positions[m.ID] = m.GlobalPosition
		}
	}
	positions[w.IDs[len(w.IDs)-1]] = w.GlobalPosition
	for k, i := range one.at {
		all[i] = Inserted{ID: w.IDs[k], Stream: w.Stream, Position: positions[w.IDs[k]], Duplicate: w.Duplicate}
	}
}

// passRecorded leaves out an item whose id is recorded. If it was inserted before, with whatever
// date and metadata, it is a duplicate, and the first ones stay; otherwise it is refused. If the
// failure is another, or the message cannot be read, passRecorded returns the failure.
func (q *Queue) passRecorded(ctx context.Context, step []insertion, all []Inserted, failure error) error {
	conflict, is := errors.AsType[*messagestore.IDConflictError](failure)
	if !is {
		return failure
	}
	for n := range step {
		one := &step[n]
		k := slices.IndexFunc(one.w.Bodies, func(body messagestore.Body) bool {
			envelope, is := body.(messagestore.Envelope)
			return is && envelope.ID == conflict.ID
		})
		if k < 0 {
			continue
		}
		result := Inserted{ID: conflict.ID, Stream: one.w.Stream, Err: failure}
		if conflict.Stream == one.w.Stream {
			first := q.messageAt(ctx, conflict)
			if first == nil {
				return failure
			}
			if same, err := isSame(one.w.Bodies[k], first); same && err == nil {
				result = Inserted{ID: first.ID, Stream: first.Stream, Position: first.GlobalPosition, Duplicate: true}
			}
		}
		all[one.at[k]] = result
		one.drop(k)
		return nil
	}
	return failure
}

// passNamed leaves out the items whose unique names others have. If the last item with the name has
// lost it, the next write expects that item still to be the last one. So if two callers saw the
// same item, only one gets the name.
func (q *Queue) passNamed(ctx context.Context, step []insertion, all []Inserted, met *messagestore.Conflict) error {
	passed := false
	for n := range step {
		one, last := &step[n], met.Last[n]
		switch {
		case !one.unique() || last == nil && one.w.Expected == messagestore.NoStream || last != nil && one.w.Expected == last.Position:
			continue
		case last == nil: // it was removed meanwhile
			one.w.Expected = messagestore.NoStream
		default:
			inserted, has, err := q.behind(ctx, &one.w, last, one.opts)
			if _, reused := errors.AsType[*KeyReusedError](err); err != nil && !reused {
				return err
			}
			if has {
				inserted.Err = err
				all[one.at[0]] = inserted
				one.drop(0)
			}
		}
		passed = true
	}
	if !passed {
		return fmt.Errorf("a unique name: %w, and no message was met", messagestore.ErrVersionConflict)
	}
	return nil
}

// Write returns the write of an item, for you to write together with others: in
// [messagestore.Store.WriteStreams], in a handler of package reservation, with an inbox, or as a
// confirmation. With a Unique name it expects no stream, so the whole write has a version conflict
// if the name is taken.
func (q *Queue) Write(body messagestore.Body, opts *InsertOpts) (messagestore.StreamWrite, error) {
	w, err := q.write(body, opts)
	if err == nil {
		if err = q.fail("write", q.errRemote()); err != nil {
			w = messagestore.StreamWrite{}
		}
	}
	if err == nil && opts != nil && opts.UniqueUntil != UntilForgotten {
		err = q.fail("write", messagestore.NewInvalidError("UniqueUntil", opts.UniqueUntil, "must not be set: only Insert and InsertTx support it"))
		w = messagestore.StreamWrite{}
	}
	return w, err
}

func (q *Queue) write(body messagestore.Body, opts *InsertOpts) (messagestore.StreamWrite, error) {
	if q == nil || q.driver == nil {
		return messagestore.StreamWrite{}, messagestore.NewInvalidError("queue", nil, "must be made by New")
	}
	if opts == nil {
		opts = &InsertOpts{}
	}
	envelope := messagestore.Envelope{ID: opts.ID, Body: body, Metadata: opts.Metadata}
	var wrong []error
	if given, ok := body.(messagestore.Envelope); ok {
		if envelope = given; opts.ID != uuid.Nil {
			envelope.ID = opts.ID
		}
		if !reflect.ValueOf(opts.Metadata).IsZero() {
			wrong = append(wrong, messagestore.NewInvalidError("Metadata", nil, "must be empty if the body is an Envelope, which has its own"))
		}
	}
	if envelope.Body == nil {
		wrong = append(wrong, messagestore.NewInvalidError("body", nil, "must not be nil"))
	}
	if envelope.ID == uuid.Nil {
		id, err := uuid.NewV7()
		wrong = append(wrong, err)
		envelope.ID = id
	}
	if at := opts.ScheduledAt; !at.IsZero() {
		if year := at.UTC().Year(); year < 1 || year > 9999 {
			wrong = append(wrong, messagestore.NewInvalidError("ScheduledAt", at, "must be in a year from 1 to 9999"))
		} else {
			extra := maps.Clone(envelope.Metadata.Extra)
			if extra == nil {
				extra = map[string]json.RawMessage{}
			}
			extra[queuing.DueField] = json.RawMessage(strconv.FormatInt(max(at.UnixMicro(), 0), 10)) // a time before 1970 means now
			envelope.Metadata.Extra = extra
		}
	}
	stream, expected := q.of.Category.Stream(envelope.ID.String()), messagestore.AnyVersion
	field, name := "Key", opts.Key
	switch {
	case opts.Key != "" && opts.Unique != "":
		wrong = append(wrong, messagestore.NewInvalidError("Unique", opts.Unique, "must not be set together with Key"))
	case opts.Key != "":
		stream = q.of.Category.Stream(opts.Key)
	case opts.Unique == "" && opts.UniqueUntil != UntilForgotten:
		wrong = append(wrong, messagestore.NewInvalidError("UniqueUntil", opts.UniqueUntil, "must not be set without Unique"))
	case opts.UniqueUntil < UntilForgotten || opts.UniqueUntil > UntilDelivered:
		wrong = append(wrong, messagestore.NewInvalidError("UniqueUntil", opts.UniqueUntil, "must be UntilForgotten, UntilFinished or UntilDelivered"))
	case opts.Unique != "":
		stream, expected = q.of.Category.Stream(opts.Unique).With("unique"), messagestore.NoStream
		field, name = "Unique", opts.Unique
	}
	if invalid, is := errors.AsType[*messagestore.InvalidError](stream.Validate()); is {
		wrong = append(wrong, messagestore.NewInvalidError(field, name, "in the name of its stream: "+invalid.Rule))
	}
	if err := errors.Join(wrong...); err != nil {
		return messagestore.StreamWrite{}, q.fail("write", err)
	}
	return messagestore.To(stream, expected, envelope), nil
}
