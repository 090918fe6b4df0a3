package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// InsertOpts change how an item is inserted. A nil *InsertOpts is a good one.
type InsertOpts struct {
	// ID is the message's. An item that is inserted again with the same ID, Key or Unique name, type and data is the same item,
	// whose date and metadata stand; with others the error matches [messagestore.ErrIDConflict].
	//
	// Defaults to a new version 7 identifier.
	ID uuid.UUID

	// Key is whose items are delivered one at a time, in the order of insertion: any text, which is escaped. The item
	// is in the stream of that name in the queue's category, and the stream's name has at most 255 bytes.
	//
	// Defaults to none: the item has a stream of its own.
	Key string

	// Unique is a name that one item has until the time that UniqueUntil says. A second item with the name and the same
	// type and data is a duplicate of the first, whose date, ID and metadata stand; with another type or other data the
	// error is a [*KeyReusedError]. A name that has a period in it, as "report 2026-11", is for one item a period.
	// An item has a Key or a Unique name, not both.
	//
	// Defaults to none.
	Unique string

	// UniqueUntil says until when an item has its Unique name. Items that have had the same name are delivered one at a
	// time, in order, as items with one Key are. Values other than UntilForgotten are for [Queue.Insert] and [Queue.InsertTx]; of a
	// queue over a transaction of the caller's the error of Insert matches [messagestore.ErrNotSupported] if an item has had the name. The workers of the
	// queue free the name: a producer has the Name of the workers' queue in its [Config]. If no worker has taken from the queue of that
	// name, and workers have from others of the category, a warning is logged.
	//
	// Defaults to UntilForgotten.
	UniqueUntil UniqueUntil

	// ScheduledAt is the time before which the item is not delivered, by the store's clock: of a year from 1 to
	// 9999. An item with a Key is waited for by those behind it.
	//
	// Defaults to now.
	ScheduledAt time.Time

	// Metadata is the message's. A body that is a [messagestore.Envelope] has its own.
	//
	// Defaults to none.
	Metadata messagestore.Metadata
}

// UniqueUntil says until when an item has its unique name.
type UniqueUntil int

const (
	// UntilForgotten is for as long as the item's message is kept: see dibs forget.
	UntilForgotten UniqueUntil = iota

	// UntilFinished is until the queue has finished the item, or it is dead. A caller that writes something while a
	// handler works on the item, and inserts it again, gets a duplicate, and the handler may have missed what it wrote.
	UntilFinished

	// UntilDelivered is until a worker has the item, and again while it waits to be delivered again. What a caller
	// wrote before it inserted an item, a later delivery sees: of its item, or of the item that it is a duplicate of.
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

// has reports whether an item in a state has its unique name still.
func (u UniqueUntil) has(state State) bool {
	switch u {
	case UntilFinished:
		return state != Finished && state != Dead
	case UntilDelivered:
		return state == Waiting || state == Later || state == Held
	}
	return true
}

// An Inserted says where an item is.
type Inserted struct {
	ID     uuid.UUID
	Stream messagestore.StreamName

	// Position names the item to [Queue.Item] and the like. Of several items with one key in a batch, only the last is
	// told its position; the others have 0.
	Position messagestore.GlobalPosition

	// Duplicate says that the item had been inserted before, with the same ID or Unique name, and that nothing was.
	Duplicate bool
}

// An Entry is an item to insert: see [Queue.InsertMany].
type Entry struct {
	Body messagestore.Body
	Opts *InsertOpts
}

// Insert adds an item. A store over a transaction of the caller's ([postgres.New] of a pgx.Tx) inserts with that
// transaction; then later items of the category wait for its end, which they do not for [Queue.InsertTx].
//
// Invalid input is a [*messagestore.InvalidError], before anything is sent. An error that matches
// [messagestore.ErrOutcomeUnknown] is resolved by [messagestore.Store.Resolve], or by inserting again with the same ID.
func (q *Queue) Insert(ctx context.Context, body messagestore.Body, opts *InsertOpts) (Inserted, error) {
	if err := q.use(ctx); err != nil {
		return Inserted{}, err
	}
	w, err := q.write(body, opts)
	if err != nil {
		return Inserted{}, err
	}
	if opts != nil && opts.Unique != "" {
		inserted, err := q.insertUnique(ctx, w, opts)
		return inserted, q.fail("insert", err)
	}
	writes := []messagestore.StreamWrite{w}
	written, err := q.store.Write(ctx, w.Stream, w.Expected, w.Bodies...)
	if err != nil && q.firstStands(ctx, writes, err) {
		written, err = q.store.Write(ctx, w.Stream, w.Expected, writes[0].Bodies...)
	}
	if err != nil {
		return Inserted{}, q.fail("insert", err)
	}
	return Inserted{ID: written.IDs[0], Stream: w.Stream, Position: written.GlobalPosition, Duplicate: written.Duplicate}, nil
}

// InsertTx adds an item if a transaction of the caller's on the queue's database is committed: a pgx.Tx, or on SQLite a *sql.Tx, or
// the transaction of a function of [messagestore.TxStore.Transact], with that function's context. See
// [messagestore.Store.Stage]: no other item waits for the transaction, and the position is not known yet.
//
// An item whose ID or Unique name is taken, by the time of the commit, by an item of the same content is left out. It is a
// Duplicate if its Unique name is known to be taken already; that an ID is, is not told. A Unique name that is known to be
// another content's is a [*KeyReusedError]; what only COMMIT meets fails it, and there the date and the metadata are of the content.
// A name that is free again, by [InsertOpts].UniqueUntil, is for one item of the transaction: a second one fails COMMIT, as does
// another transaction that takes the name first. Other errors are those of Stage; after an
// error roll back. What the transaction appends at once behind the item to the same stream, by [Queue.Insert] say, would come before it, and
// on PostgreSQL is a [*messagestore.InvalidError].
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

// behind has a write expect the last item of its unique name, unless that item has the name still, which is then told.
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

// firstStands reports whether the failure of a write is an item of it that was inserted before with another date or other metadata.
// Those of the first stand: the item gets them, so that the store knows it again.
func (q *Queue) firstStands(ctx context.Context, writes []messagestore.StreamWrite, failure error) bool {
	conflict, is := errors.AsType[*messagestore.IDConflictError](failure)
	if !is {
		return false
	}
	for _, w := range writes {
		for i, body := range w.Bodies {
			envelope, is := body.(messagestore.Envelope)
			if !is || envelope.ID != conflict.ID || w.Stream != conflict.Stream {
				continue
			}
			first := q.messageAt(ctx, conflict)
			if first == nil {
				return false
			}
			if same, err := isSame(body, first); !same || err != nil {
				return false
			}
			envelope.Metadata = first.Metadata
			w.Bodies[i] = envelope
			return true
		}
	}
	return false
}

// messageAt returns the message that has an id, or nil.
func (q *Queue) messageAt(ctx context.Context, at *messagestore.IDConflictError) *messagestore.Message {
	for m, err := range q.store.ReadStream(ctx, at.Stream, at.Position) {
		if err == nil && m.ID == at.ID {
			return m
		}
		break
	}
	return nil
}

// sayUnworked warns, once a minute at most, where no worker frees the queue's unique names and workers have taken from other queues of its
// category.
func (q *Queue) sayUnworked(ctx context.Context) {
	before, now := q.looked.Load(), time.Now().UnixNano()
	if before != 0 && now-before < int64(time.Minute) || !q.looked.CompareAndSwap(before, now) {
		return
	}
	all, err := q.driver.Queues(ctx)
	if err != nil {
		return // what is asked next tells of the failure
	}
	var others []string
	for _, s := range all {
		if s.Queue == q.of {
			q.looked.Store(math.MaxInt64)
			return
		}
		if s.Category == q.of.Category {
			others = append(others, s.Name)
		}
	}
	if len(others) > 0 {
		q.config.Logger.Warn().Str("queue", q.of.Name).Str("category", string(q.of.Category)).Strs("others", others).
			Msg("no worker has taken from this queue, so its unique names are not freed: is it one of the others?")
	}
}

// duplicate tells that a unique name is taken.
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

// insertUnique writes an item unless another has its name. Where the last item of the name has it no more, the write expects
// that item to be the last still, so that of two callers that saw it one gets the name.
func (q *Queue) insertUnique(ctx context.Context, w messagestore.StreamWrite, opts *InsertOpts) (Inserted, error) {
	if opts.UniqueUntil != UntilForgotten {
		q.sayUnworked(ctx)
	}
	for {
		written, met, err := q.store.TryWrite(ctx, w.Stream, w.Expected, w.Bodies...)
		switch {
		case err != nil && q.firstStands(ctx, []messagestore.StreamWrite{w}, err):
			continue
		case err != nil:
			return Inserted{}, err
		case met == nil:
			return Inserted{ID: written.IDs[0], Stream: w.Stream, Position: written.GlobalPosition, Duplicate: written.Duplicate}, nil
		}
		last := met.Last[0]
		if last == nil {
			return Inserted{}, fmt.Errorf("unique key %.80q: %w, and no message was met", opts.Unique, messagestore.ErrVersionConflict)
		}
		if inserted, has, err := q.behind(ctx, &w, last, opts); has || err != nil {
			return inserted, err
		}
	}
}

// envelopeOf returns the body of a write of [Queue.Write], which has its ID.
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

// InsertMany adds items, 1 to 1,000, in steps of up to 100 streams, each whole, and returns where they are. After an error
// it returns those of the steps before. To insert all again with the same IDs changes nothing.
// Items with Unique names go by [Queue.Insert].
func (q *Queue) InsertMany(ctx context.Context, entries ...Entry) ([]Inserted, error) {
	if err := q.use(ctx); err != nil {
		return nil, err
	}
	writes, at, err := q.writes(entries)
	if err != nil {
		return nil, q.fail("insert", err)
	}
	inserted := make([]Inserted, 0, len(entries))
	all := make([]Inserted, len(entries))
	done := make([]bool, len(entries))
	for begin := 0; begin < len(writes); begin += messagestore.MaxWriteStreams {
		end := min(begin+messagestore.MaxWriteStreams, len(writes))
		written, err := q.store.WriteStreams(ctx, writes[begin:end]...)
		for err != nil && q.firstStands(ctx, writes[begin:end], err) {
			written, err = q.store.WriteStreams(ctx, writes[begin:end]...)
		}
		if err != nil {
			for i, one := range all {
				if done[i] {
					inserted = append(inserted, one)
				}
			}
			return inserted, q.fail("insert", err)
		}
		for n, w := range written {
			for k, index := range at[begin+n] {
				all[index] = Inserted{ID: w.IDs[k], Stream: w.Stream, Duplicate: w.Duplicate}
				if k == len(w.IDs)-1 {
					all[index].Position = w.GlobalPosition
				}
				done[index] = true
			}
		}
	}
	return all, nil
}

// writes gathers the items of each stream into one write, and says which entries each has.
func (q *Queue) writes(entries []Entry) (writes []messagestore.StreamWrite, at [][]int, err error) {
	if len(entries) < 1 || len(entries) > queuing.MaxItems {
		return nil, nil, messagestore.NewInvalidError("items", len(entries), fmt.Sprintf("they are 1 to %d", queuing.MaxItems))
	}
	by := map[messagestore.StreamName]int{}
	ids := map[uuid.UUID]bool{}
	for i, e := range entries {
		w, err := q.Write(e.Body, e.Opts)
		if err == nil && e.Opts != nil && e.Opts.Unique != "" {
			err = messagestore.NewInvalidError("Unique", e.Opts.Unique, "an item of a batch has none: call Insert")
		}
		if err == nil && e.Opts != nil && e.Opts.ID != uuid.Nil && ids[e.Opts.ID] {
			err = messagestore.NewInvalidError("ID", e.Opts.ID, "two items have it")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("item %d: %w", i, err)
		}
		if e.Opts != nil {
			ids[e.Opts.ID] = true
		}
		n, ok := by[w.Stream]
		if !ok {
			n = len(writes)
			by[w.Stream] = n
			writes, at = append(writes, w), append(at, nil)
		} else {
			writes[n].Bodies = append(writes[n].Bodies, w.Bodies...)
		}
		at[n] = append(at[n], i)
	}
	return writes, at, nil
}

// Write returns the write of an item, which goes beside others: in [messagestore.Store.WriteStreams], in a handler
// of package reservation, with an inbox, or as a confirmation. With a Unique name it expects no stream, and where
// the name is taken the whole write meets a version conflict.
func (q *Queue) Write(body messagestore.Body, opts *InsertOpts) (messagestore.StreamWrite, error) {
	w, err := q.write(body, opts)
	if err == nil && opts != nil && opts.UniqueUntil != UntilForgotten {
		err = q.fail("write", messagestore.NewInvalidError("UniqueUntil", opts.UniqueUntil, "Insert and InsertTx alone know it"))
		w = messagestore.StreamWrite{}
	}
	return w, err
}

func (q *Queue) write(body messagestore.Body, opts *InsertOpts) (messagestore.StreamWrite, error) {
	if q == nil || q.driver == nil {
		return messagestore.StreamWrite{}, messagestore.NewInvalidError("queue", nil, "it is not one of New")
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
			wrong = append(wrong, messagestore.NewInvalidError("Metadata", nil, "the body is an Envelope, which has its own"))
		}
	}
	if envelope.Body == nil {
		wrong = append(wrong, messagestore.NewInvalidError("body", nil, "it is nil"))
	}
	if envelope.ID == uuid.Nil {
		id, err := uuid.NewV7()
		wrong = append(wrong, err)
		envelope.ID = id
	}
	if at := opts.ScheduledAt; !at.IsZero() {
		if year := at.UTC().Year(); year < 1 || year > 9999 {
			wrong = append(wrong, messagestore.NewInvalidError("ScheduledAt", at, "it is of a year from 1 to 9999"))
		} else {
			extra := maps.Clone(envelope.Metadata.Extra)
			if extra == nil {
				extra = map[string]json.RawMessage{}
			}
			extra[queuing.DueField] = json.RawMessage(strconv.FormatInt(max(at.UnixMicro(), 0), 10)) // before 1970 is now
			envelope.Metadata.Extra = extra
		}
	}
	stream, expected := q.of.Category.Stream(envelope.ID.String()), messagestore.AnyVersion
	field, name := "Key", opts.Key
	switch {
	case opts.Key != "" && opts.Unique != "":
		wrong = append(wrong, messagestore.NewInvalidError("Unique", opts.Unique, "an item has a Key or a Unique name, not both"))
	case opts.Key != "":
		stream = q.of.Category.Stream(opts.Key)
	case opts.Unique == "" && opts.UniqueUntil != UntilForgotten:
		wrong = append(wrong, messagestore.NewInvalidError("UniqueUntil", opts.UniqueUntil, "an item without a Unique name has none"))
	case opts.UniqueUntil < UntilForgotten || opts.UniqueUntil > UntilDelivered:
		wrong = append(wrong, messagestore.NewInvalidError("UniqueUntil", opts.UniqueUntil, "it is UntilForgotten, UntilFinished or UntilDelivered"))
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
