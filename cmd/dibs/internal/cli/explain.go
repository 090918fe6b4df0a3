package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/reservation"
)

// An explainCommand is dibs explain: it tells the story of a stream, from its first message to the
// messages that followed from it.
type explainCommand struct {
	Target   string                  `arg:"" name:"stream" help:"Name of a stream, or with --category an idempotence key."`
	Category messagestore.Category   `placeholder:"CATEGORY" help:"Search all of this category for streams reserved with the key. In a category of intents or sagas, or an inbox, the one with the key; in one of a queue, the item at a position."`
	Scope    string                  `placeholder:"SCOPE" help:"The scope of an intent's key. Defaults to none."`
	In       []messagestore.Category `sep:"none" placeholder:"CATEGORY" help:"Search all of this category too for messages that followed. May be repeated."`
}

func (c *explainCommand) Run(ctx context.Context, a *app) error {
	for _, category := range c.In {
		if err := category.Validate(); err != nil {
			return err
		}
	}
	stream := messagestore.StreamName(c.Target)
	rule := keys.Rule(c.Target)
	switch {
	case c.Category != "" && rule != "":
		return keys.Invalid("idempotence key", c.Target, rule)
	case c.Category != "":
	case c.Scope != "":
		return usage("--scope is of an intent's key: give its --category too")
	default:
		if err := stream.Validate(); err != nil {
			return usage("%w; to look for a key, give its --category", err)
		}
	}
	return a.tried(ctx, func(store *messagestore.Store, dry bool) error {
		e := &explainer{app: a, store: store, in: c.In}
		switch {
		case dry && c.Scope != "":
			_, err := intentOf(ctx, e, c)
			return err
		case dry:
			return nil
		case c.Category != "":
			return c.explainKey(ctx, e)
		}
		return e.explain(ctx, stream)
	})
}

// explainKey finds the streams that are reserved with the key, and explains each. There may be
// several, because a key has a meaning within one entity.
func (c *explainCommand) explainKey(ctx context.Context, e *explainer) error {
	for _, streamOf := range []func(context.Context, *explainer, *explainCommand) (messagestore.StreamName, error){intentOf, requestOf, sagaOf} {
		stream, err := streamOf(ctx, e, c)
		if err != nil {
			return err
		}
		if stream != "" {
			e.key = c.Target
			return e.explain(ctx, stream)
		}
	}
	item, err := e.itemAt(ctx, c.Category, c.Target)
	if err != nil {
		return err
	}
	if item != nil {
		return e.ask(ctx, item.Stream, item)
	}
	e.key = c.Target
	var streams []messagestore.StreamName
	var commands []*messagestore.Message
	categories, err := e.reservationsOf(ctx, c.Category)
	if err != nil {
		return err
	}
	for _, in := range append([]messagestore.Category{c.Category}, categories...) {
		_, reservations := removal.CommandsOf(in)
		var refused error
		err := e.app.scan(ctx, e.store, in, func(m *messagestore.Message) {
			yes, err := e.reservedWith(m, c.Target)
			if yes {
				streams = append(streams, m.Stream)
			} else if !reservations && holds(m.Data, c.Target) {
				commands = append(commands, m)
			}
			refused = err
		})
		if err = errors.Join(err, refused); err != nil {
			return err
		}
	}
	if len(streams) == 0 && len(commands) > 0 {
		return e.notReserved(ctx, commands[0].Stream, c.Target, commands)
	}
	if len(streams) == 0 {
		return notFoundIn(ctx, e.store, c.Category, notFound("no stream of %s is reserved with the key %.80q", c.Category, c.Target))
	}
	for i, stream := range streams {
		if i > 0 {
			e.app.out.line("")
		}
		if err := e.explain(ctx, stream); err != nil {
			return err
		}
	}
	return nil
}

// An explainer traces the effects of a stream's first message.
type explainer struct {
	app   *app
	store *messagestore.Store
	in    []messagestore.Category
	key   string // that was asked for

	queues map[messagestore.Category][]queue.Status // nil until they were asked for
}

// labels are of roles of messages in a story that are printed as other words. A role is the event's name in JSON.
var labels = map[string]string{
	"firstWrite": "first write", "cause": "caused by", "unreserved": "command", "sameKey": "same key", "takenOver": "taken over",
	"undoFailed": "undo failed", "cancelRequested": "cancelled", "setBack": "clock set back",
}

var roleStyles = map[string]style{
	"firstWrite": green, "winner": green, "received": green, "inserted": green, "reserved": green, "confirmed": green, "started": green,
	"done": green, "completed": green, "resumed": green,
	"unreserved": yellow, "duplicate": yellow, "undone": yellow, "takenOver": yellow, "released": yellow, "compensating": yellow,
	"compensated": yellow, "cancelRequested": yellow, "resolved": yellow, "setBack": yellow,
	"sameKey": red, "deleted": red, "lapsed": red, "failed": red, "undoFailed": red, "suspended": red, "unknown": red,
}

// parts of a story are told in this order, each by one system: what it knows of the stream that is explained, if the stream is
// its own, or of the messages that were told so far. It adds to the story's roots the messages that others may have as their
// cause. A stream that no other system knows is told as one of reservations.
func (e *explainer) parts() []func(context.Context, *story) error {
	return []func(context.Context, *story) error{e.intent, e.requests, e.sagas, e.insertion, e.reservation, e.deliveries, e.followers}
}

func (e *explainer) explain(ctx context.Context, stream messagestore.StreamName) error {
	first, err := messageAt(ctx, e.store, stream, 0)
	if errors.Is(err, messagestore.ErrNotFound) {
		return e.removed(ctx, stream)
	}
	if err != nil {
		return err
	}
	return e.ask(ctx, stream, first)
}

// ask has each part told of the story of a stream that begins with first.
func (e *explainer) ask(ctx context.Context, stream messagestore.StreamName, first *messagestore.Message) error {
	s := &story{out: e.app.out, of: stream, first: first}
	for _, tell := range e.parts() {
		if err := tell(ctx, s); err != nil {
			return err
		}
	}
	for _, last := range s.ending {
		s.note(last[0], last[1], last[2])
	}
	return nil
}

// removed tells of a stream without a first message: that it was deleted or trimmed, if it
// was.
func (e *explainer) removed(ctx context.Context, stream messagestore.StreamName) error {
	for m, err := range e.store.ReadStream(ctx, stream, 0) {
		if err != nil {
			return err
		}
		if isStep(m) || isTrimmedSaga(m) {
			return e.ask(ctx, stream, m)
		}
		if !m.IsTombstone() {
			return notFound("%s begins at position %d: its first message was trimmed", stream, m.Position)
		}
		note := "it stays taken"
		if t, err := messagestore.Decode[removal.Tombstone](m); err == nil {
			note = fmt.Sprintf("%s, by %s; it stays taken", number(t.Messages, "message"), t.By)
			if t.Reason != "" {
				note += ": " + t.Reason
			}
		}
		s := story{out: e.app.out, of: stream}
		s.title("")
		s.tell("deleted", m, note)
		return nil
	}
	if yes, err := e.unreserved(ctx, stream); yes || err != nil {
		return err
	}
	return notFound("%s has no messages, so it is not reserved", stream)
}

// followers tells the messages that have one of the roots as their cause, or the cause of their cause, and so on.
func (e *explainer) followers(ctx context.Context, s *story) error {
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
			for m, err := range e.store.ReadStream(ctx, stream, 0) {
				if err != nil {
					return err
				}
				look(m)
			}
		}
		for _, category := range e.in {
			if err := e.app.scan(ctx, e.store, category, look); err != nil {
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
			if err := e.saga(ctx, s, m.Stream); err != nil {
				return err
			}
		} else {
			s.tell("followed", m, followedText(m))
		}
		if err := e.items(ctx, s, m, true); err != nil {
			return err
		}
	}
	if none {
		names := make([]string, 0, len(streams)+len(e.in))
		for _, stream := range streams {
			names = append(names, string(stream))
		}
		for _, category := range e.in {
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

// A story is told message by message.
type story struct {
	out        *printer
	of         messagestore.StreamName
	scope, key string
	told       map[ref]bool
	messages   []*messagestore.Message // that were told

	first   *messagestore.Message
	begun   bool                      // a system has told the stream
	roots   []*messagestore.Message   // that others may have as their cause
	places  []ref                     // more that others may have: of what was told already, or is not in the store
	streams []messagestore.StreamName // that a system names, to look for them there
	ending  [][3]string               // the last notes
}

// title begins the story, with what the stream is.
func (s *story) title(what string) {
	s.told, s.begun = map[ref]bool{}, true
	if what == "" && s.key != "" {
		what = " is reserved with the key " + shorten(visible(s.key))
	}
	s.out.title(string(s.of) + what)
}

// event is how a part of the story is printed as JSON.
func (s *story) event(role string, more ...any) fields {
	return append(fields{"event", role, "of", s.of, "scope?", s.scope, "key?", s.key}, more...)
}

// tell tells a message, with a note, and more of it in JSON.
func (s *story) tell(role string, m *messagestore.Message, note string, more ...any) {
	s.told[refOf(m)] = true
	s.messages = append(s.messages, m)
	s.row(role, append(more, "message", recordOf(m)), timeText(m.Time), place(m), m.Type, note)
}

func (s *story) row(role string, object fields, when, where, what, note string) {
	s.out.row(s.event(role, object...), in(roleStyles[role], cmp.Or(labels[role], role)), in(dim, when), where, in(bold, what), note)
}

// note adds a line that is about no message, and is not in JSON.
func (s *story) note(label, place, text string) { s.out.row(nil, label, "", place, text) }

// trimmed notes that messages before the first one are gone.
func (s *story) trimmed(first *messagestore.Message) {
	s.note("trimmed", placeOf(s.of, 0), number(first.Position, "message")+", of which nothing is known")
}

// causeOf returns the message that another one was written for, or nil if it names none. That the store does not have it is noted.
func (e *explainer) causeOf(ctx context.Context, s *story, role string, m *messagestore.Message) (*messagestore.Message, error) {
	stream, position := m.Metadata.CausationStream, m.Metadata.CausationPosition
	if stream == "" {
		return nil, nil
	}
	source, err := messageAt(ctx, e.store, stream, position)
	if errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid) {
		// Removed, in another store, or named by another client. What followed it may be here.
		s.note(cmp.Or(labels[role], role), placeOf(stream, position), "not in this store")
		return nil, nil
	}
	return source, err
}

// tellCause tells that message.
func (e *explainer) tellCause(ctx context.Context, s *story, m *messagestore.Message) error {
	source, err := e.causeOf(ctx, s, "cause", m)
	if source != nil {
		s.tell("cause", source, dataText(source.Data))
	}
	return err
}
