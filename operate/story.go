package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/reservation"
)

// A Question asks [Story] for a stream, or for what has a key in a category.
type Question struct {
	// ID is the name of a stream. With a Category it is an idempotence key, the id of a saga, the
	// key of an intent or of a request, or the position of an item.
	ID string

	// Category is read as a whole for streams that are reserved with the key, unless its intents,
	// its sagas or its requests can be found by their names.
	Category messagestore.Category

	Scope string // of an intent's key

	// In are more categories that are read as a whole for messages that followed.
	In []messagestore.Category

	// Progress is called with how many messages of a category were read so far.
	//
	// Defaults to nil.
	Progress func(category messagestore.Category, read int)
}

// Check returns an error that matches [messagestore.ErrInvalid] if no store can answer the
// question.
func (q *Question) Check() error {
	for _, category := range q.In {
		if err := category.Validate(); err != nil {
			return err
		}
	}
	if q.Category == "" {
		return messagestore.StreamName(q.ID).Validate()
	}
	if rule := keys.Rule(q.ID); rule != "" {
		return keys.Invalid("idempotence key", q.ID, rule)
	}
	if rule := keys.Rule(q.Scope); q.Scope != "" && rule != "" {
		return keys.Invalid("scope", q.Scope, rule)
	}
	return q.Category.Validate()
}

// A Role says what an event was.
type Role string

// The roles that are not the type of a message of an intent or of a saga, as its name is in JSON.
const (
	Title      Role = "title"      // begins a story; its Text says what the stream is
	Note       Role = "note"       // is about no message; its Label says of what it is
	CausedBy   Role = "cause"      // the message for which the first one was written
	FirstWrite Role = "firstWrite" // the first message of the stream
	Winner     Role = "winner"     // the message for which the stream was reserved
	Duplicate  Role = "duplicate"  // came second, with the winner's content
	SameKey    Role = "sameKey"    // came second, with the winner's key and other content
	Unreserved Role = "unreserved" // a command whose key is not reserved yet
	Wrote      Role = "wrote"      // was committed with a request
	Inserted   Role = "inserted"   // is an item of a queue
	Delivery   Role = "delivery"   // an entry of an item's log
	AnItem     Role = "item"       // where the item is now
	ASaga      Role = "saga"       // where the saga is now
	Lapsed     Role = "lapsed"     // a lease ended by time, which no message says
	Extended   Role = "extended"   // extensions of a lease, one or several in a row
	Followed   Role = "followed"   // has a message of the story as its cause
	Deleted    Role = "deleted"    // a tombstone
	Unknown    Role = "unknown"    // a message of a later release, or a malformed one
)

// An Event is a line of a story.
type Event struct {
	Role  Role
	Label string // of a note

	Of         messagestore.StreamName // that the story is of
	Scope, Key string                  // with which it is reserved, "" if it is not, or the key is not known

	Time  time.Time // zero for what is now
	Place string    // such as account-123@4
	What  string    // the type of the message, what a log's entry tells, or a state
	Text  string    // more, in words
	Data  json.RawMessage

	Message *messagestore.Message // nil for a note, and where a lease has lapsed

	Step     string // of a saga
	Attempt  int    // of the step
	Lease    *Lease
	Times    int    // how many extensions
	Queue    string // of which Item and Delivery are
	Parked   bool   // the items of Queue are messages that a consumer gave up on
	Item     *queue.Item
	Delivery *queue.LogEntry
	Saga     *Saga
	Now      time.Time // by the store's clock, of Saga
}

// QueueText names the queue of a delivery or an item.
func (e Event) QueueText() string {
	if e.Parked {
		return "parked by " + e.Queue[strings.LastIndexByte(e.Queue, ':')+1:]
	}
	return "queue " + e.Queue
}

// A Lease is that of an intent after an event.
type Lease struct {
	Session string
	Token   int64
	Attempt int
	Until   time.Time // zero if it is over
}

// Story tells what the store knows of a stream, from its first message to the messages that
// followed from it: what it was reserved for and the duplicates, the steps of an intent or a saga,
// the deliveries of items. It reads while you range over it. If a key is reserved in several
// streams, it tells the story of each, and each begins with a [Title].
//
// The error is a [*NotFoundError] if the store has nothing of that name. The sequence ends after
// an error.
func Story(ctx context.Context, store *messagestore.Store, q Question) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := false
		t := &teller{store: store, question: q, yield: func(e Event) {
			if !ended && !yield(e, nil) {
				ended = true
				cancel() // so that nothing is read any more
			}
		}}
		err := q.Check()
		if err == nil {
			err = t.answer(ctx)
		}
		if err != nil && !ended {
			yield(Event{}, err)
		}
	}
}

// A teller tells the stories that answer a question.
type teller struct {
	store    *messagestore.Store
	question Question
	yield    func(Event)
	key      string // that was asked for

	queues map[messagestore.Category][]queue.Status // nil until they were asked for
}

func (t *teller) answer(ctx context.Context) error {
	if t.question.Category == "" {
		return t.explain(ctx, messagestore.StreamName(t.question.ID))
	}
	return t.explainKey(ctx)
}

// scan calls look with each message of a category.
func (t *teller) scan(ctx context.Context, category messagestore.Category, look func(*messagestore.Message)) error {
	n := 0
	for m, err := range t.store.ReadCategory(ctx, category, 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		look(m)
		if n++; t.question.Progress != nil {
			t.question.Progress(category, n)
		}
	}
	return nil
}

// explainKey finds the streams that are reserved with the key, and explains each. There may be
// several, because a key has a meaning within one entity.
func (t *teller) explainKey(ctx context.Context) error {
	category, key := t.question.Category, t.question.ID
	for _, streamOf := range []func(context.Context) (messagestore.StreamName, error){t.intentOf, t.requestOf, t.sagaOf} {
		stream, err := streamOf(ctx)
		if err != nil {
			return err
		}
		if stream != "" {
			t.key = key
			return t.explain(ctx, stream)
		}
	}
	item, err := t.itemAt(ctx, category, key)
	if err != nil {
		return err
	}
	if item != nil {
		return t.ask(ctx, item.Stream, item)
	}
	t.key = key
	var streams []messagestore.StreamName
	var commands []*messagestore.Message
	categories, err := t.reservationsOf(ctx, category)
	if err != nil {
		return err
	}
	for _, in := range append([]messagestore.Category{category}, categories...) {
		_, reservations := removal.CommandsOf(in)
		var refused error
		err := t.scan(ctx, in, func(m *messagestore.Message) {
			yes, err := t.reservedWith(m, key)
			if yes {
				streams = append(streams, m.Stream)
			} else if !reservations && holds(m.Data, key) {
				commands = append(commands, m)
			}
			refused = err
		})
		if err = errors.Join(err, refused); err != nil {
			return err
		}
	}
	if len(streams) == 0 && len(commands) > 0 {
		return t.notReserved(ctx, commands[0].Stream, key, commands)
	}
	if len(streams) == 0 {
		return t.notFound(ctx, "", "no stream of %s is reserved with the key %.80q", category, key)
	}
	for _, stream := range streams {
		if err := t.explain(ctx, stream); err != nil {
			return err
		}
	}
	return nil
}

// notFound says that the category does not have what was asked for, or that there is no such category.
func (t *teller) notFound(ctx context.Context, hint, format string, args ...any) error {
	if err := RequireCategory(ctx, t.store, t.question.Category); err != nil {
		return err
	}
	return &NotFoundError{fmt.Sprintf(format, args...), hint}
}

// parts of a story are told in this order, each by one system: what it knows of the stream that is
// explained, if the stream is its own, or of the messages that were told so far. It adds to the
// story's roots the messages that others may have as their cause. A stream that no other system
// knows is told as one of reservations.
func (t *teller) parts() []func(context.Context, *story) error {
	return []func(context.Context, *story) error{t.intent, t.requests, t.sagas, t.insertion, t.reservation, t.deliveries, t.followers}
}

func (t *teller) explain(ctx context.Context, stream messagestore.StreamName) error {
	first, err := messageAt(ctx, t.store, stream, 0)
	if errors.Is(err, messagestore.ErrNotFound) {
		return t.removed(ctx, stream)
	}
	if err != nil {
		return err
	}
	return t.ask(ctx, stream, first)
}

// ask has each part told of the story of a stream that begins with first.
func (t *teller) ask(ctx context.Context, stream messagestore.StreamName, first *messagestore.Message) error {
	s := &story{yield: t.yield, of: stream, first: first}
	for _, tell := range t.parts() {
		if err := tell(ctx, s); err != nil {
			return err
		}
	}
	for _, last := range s.ending {
		s.event(last)
	}
	return nil
}

// removed tells of a stream without a first message: that it was deleted or trimmed, if it was.
func (t *teller) removed(ctx context.Context, stream messagestore.StreamName) error {
	for m, err := range t.store.ReadStream(ctx, stream, 0) {
		if err != nil {
			return err
		}
		if isStep(m) || isTrimmedSaga(m) {
			return t.ask(ctx, stream, m)
		}
		if !m.IsTombstone() {
			return &NotFoundError{Text: fmt.Sprintf("%s begins at position %d: its first message was trimmed", stream, m.Position)}
		}
		note := "it stays taken"
		if t, err := messagestore.Decode[removal.Tombstone](m); err == nil {
			note = fmt.Sprintf("%s, by %s; it stays taken", text.Number(t.Messages, "message"), t.By)
			if t.Reason != "" {
				note += ": " + t.Reason
			}
		}
		s := story{yield: t.yield, of: stream}
		s.title("")
		s.tell(Event{Role: Deleted, Message: m, Text: note})
		return nil
	}
	if yes, err := t.unreserved(ctx, stream); yes || err != nil {
		return err
	}
	return &NotFoundError{Text: fmt.Sprintf("%s has no messages, so it is not reserved", stream)}
}

// followers tells the messages that have one of the roots as their cause, or the cause of their cause, and so on.
func (t *teller) followers(ctx context.Context, s *story) error {
	chain := map[ref]bool{}
	for _, m := range s.roots {
		chain[refOf(m)] = true
	}
	for _, place := range s.places {
		chain[place] = true
	}
	named := append([]messagestore.StreamName{entityOf(s.of)}, s.streams...)
	for _, root := range s.roots {
		named = append(named, reservation.WrittenWith(root)...)
	}
	var streams []messagestore.StreamName
	for _, stream := range named {
		if !slices.Contains(streams, stream) {
			streams = append(streams, stream)
		}
	}
	var found []*messagestore.Message
	// A message may stand before the one it follows, in a category that is read
	// earlier, so they are all read until nothing new turns up.
	for more := true; more; {
		more = false
		look := func(m *messagestore.Message) {
			cause := ref{m.Metadata.CausationStream, m.Metadata.CausationPosition}
			if chain[cause] && !chain[refOf(m)] {
				chain[refOf(m)] = true
				found, more = append(found, m), true
				if startsSaga(m) {
					streams = append(streams, m.Stream, entityOf(m.Stream))
				}
			}
		}
		for _, stream := range streams {
			for m, err := range t.store.ReadStream(ctx, stream, 0) {
				if err != nil {
					return err
				}
				look(m)
			}
		}
		for _, category := range t.question.In {
			if err := t.scan(ctx, category, look); err != nil {
				return err
			}
		}
	}
	slices.SortStableFunc(found, func(a, b *messagestore.Message) int { return a.Time.Compare(b.Time) })
	none := true
	for _, m := range found {
		if s.told[refOf(m)] {
			continue
		}
		none = false
		if startsSaga(m) {
			if err := t.saga(ctx, s, m.Stream); err != nil {
				return err
			}
		} else {
			s.tell(Event{Role: Followed, Message: m, Text: stepOf(m), Data: m.Data})
		}
		if err := t.items(ctx, s, m, true); err != nil {
			return err
		}
	}
	if none {
		names := make([]string, 0, len(streams)+len(t.question.In))
		for _, stream := range streams {
			names = append(names, string(stream))
		}
		for _, category := range t.question.In {
			names = append(names, string(category))
		}
		s.note("followed", "nothing yet", "in "+strings.Join(names, ", ")+"; look in another category with --in")
	}
	return nil
}

// entityOf returns the entity's own stream of a stream.
func entityOf(stream messagestore.StreamName) messagestore.StreamName {
	return messagestore.Category(stream.Category().Entity()).Stream(stream.CardinalID())
}

// A ref names a message by its place.
type ref struct {
	stream   messagestore.StreamName
	position messagestore.Version
}

func refOf(m *messagestore.Message) ref { return ref{m.Stream, m.Position} }

func (r ref) String() string { return fmt.Sprintf("%s@%d", r.stream, r.position) }

// A story is told message by message.
type story struct {
	yield      func(Event)
	of         messagestore.StreamName
	scope, key string
	told       map[ref]bool
	messages   []*messagestore.Message // that were told

	first   *messagestore.Message
	begun   bool                      // a system has told the stream
	roots   []*messagestore.Message   // that others may have as their cause
	places  []ref                     // more that others may have: of what was told already, or is not in the store
	streams []messagestore.StreamName // that a system names, to look for them there
	ending  []Event                   // the last notes
}

// title begins the story, with what the stream is.
func (s *story) title(what string) {
	s.told, s.begun = map[ref]bool{}, true
	if what == "" && s.key != "" {
		what = " is reserved with the key " + text.Cut(72, s.key)
	}
	s.event(Event{Role: Title, Text: string(s.of) + what})
}

// event tells an event of the story.
func (s *story) event(e Event) {
	e.Of, e.Scope, e.Key = s.of, s.scope, s.key
	s.yield(e)
}

// tell tells the event of a message.
func (s *story) tell(e Event) {
	m := e.Message
	s.told[refOf(m)] = true
	s.messages = append(s.messages, m)
	e.Time, e.Place, e.What = m.Time, refOf(m).String(), m.Type
	s.event(e)
}

// note tells what is about no message.
func (s *story) note(label, place, text string) {
	s.event(Event{Role: Note, Label: label, Place: place, Text: text})
}

// trimmed notes that messages before the first one are gone.
func (s *story) trimmed(first *messagestore.Message) {
	s.note("trimmed", ref{s.of, 0}.String(), text.Number(first.Position, "message")+", of which nothing is known")
}

// causeOf returns the message that another one was written for, or nil if it names none. That the store does not have it is noted.
func (t *teller) causeOf(ctx context.Context, s *story, role Role, m *messagestore.Message) (*messagestore.Message, error) {
	stream, position := m.Metadata.CausationStream, m.Metadata.CausationPosition
	if stream == "" {
		return nil, nil
	}
	source, err := messageAt(ctx, t.store, stream, position)
	if errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid) {
		// Removed, in another store, or named by another client. What followed it may be here.
		s.note(string(role), ref{stream, position}.String(), "not in this store")
		return nil, nil
	}
	return source, err
}

// tellCause tells that message.
func (t *teller) tellCause(ctx context.Context, s *story, m *messagestore.Message) error {
	source, err := t.causeOf(ctx, s, CausedBy, m)
	if source != nil {
		s.tell(Event{Role: CausedBy, Message: source, Data: source.Data})
	}
	return err
}

func messageAt(ctx context.Context, store *messagestore.Store, stream messagestore.StreamName, position messagestore.Version) (*messagestore.Message, error) {
	for m, err := range store.ReadStream(ctx, stream, position) {
		if err != nil {
			return nil, err
		}
		if m.Position == position {
			return m, nil
		}
		break
	}
	return nil, fmt.Errorf("%v: %w", ref{stream, position}, messagestore.ErrNotFound)
}

// A NotFoundError says what the store does not have. It matches [messagestore.ErrNotFound].
type NotFoundError struct {
	Text string
	Hint string // a command that shows what there is, "" for none
}

func (e *NotFoundError) Error() string { return e.Text }

// Is reports whether target is [messagestore.ErrNotFound].
func (e *NotFoundError) Is(target error) bool { return target == messagestore.ErrNotFound }

// RequireCategory returns a [*NotFoundError] if no stream of the store is of the category: its name
// is wrong, or nothing was written to it yet. It returns nil for no category.
func RequireCategory(ctx context.Context, store *messagestore.Store, category messagestore.Category) error {
	if category == "" {
		return nil
	}
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, Limit: 1})
	if err == nil && len(page.Messages) == 0 && !page.More {
		return &NotFoundError{
			fmt.Sprintf("there is no category %s in this store: no stream is of it", text.Cut(72, string(category))),
			"is the name right? See those that there are with: dibs report categories",
		}
	}
	return err
}

// hasType reports whether the last type in the name of a category is one, as saga.
func hasType(category messagestore.Category, of string) bool {
	types := category.Types()
	return category.Validate() == nil && len(types) > 0 && types[len(types)-1] == of
}
