package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/reservation"
)

type explainCommand struct {
	Target   string   `arg:"" name:"stream" help:"Name of a stream, or with --category an idempotence key."`
	Category string   `placeholder:"CATEGORY" help:"Search all of this category for streams reserved with the key. In a category of intents or sagas, or an inbox, the one with the key; in one of a queue, the item at a position."`
	Scope    string   `placeholder:"SCOPE" help:"The scope of an intent's key. Defaults to none."`
	In       []string `sep:"none" placeholder:"CATEGORY" help:"Search all of this category too for messages that followed. May be repeated."`
}

// Help is printed below the command's usage.
func (explainCommand) Help() string {
	return `It shows the writer of the first message, the duplicates with the same content, those that reuse the key with other content, the ones that consumers parked, and the messages that followed in the entity's own stream: those with the first message, or one that follows it, as their cause.

An intent is told from its grant to its end: each lease, how often it was extended and until when, the line, leases that lapsed (no message says so) and were taken over, the release or the result, and the messages that followed. Requests that were refused wrote nothing.

An item of a queue is named by its position and its category, or by its stream: told are the message that it was inserted for, the item of its key before it, each delivery that did not finish it, with its session and reason, its state, and the messages that followed.

A request in an inbox is told with the messages of its transaction, its undo, and the requests that were refused because they reused its key.

A saga is told message by message, in words: the steps, each attempt and its end, replies, signals, waits, the undos, and what an operator did; then how far it is, and the turns of its item that failed. A story that leads to the start of a saga goes on with the saga. Messages that its steps wrote to other streams are found in the categories of --in.

Examples:

    dibs explain account:command+reservation+accounts-123+AAA
    dibs explain AAA --category account:command --in account:transaction
    dibs explain 29401/1998-12 --category payment:intent --scope acme
    dibs explain order-17 --category payments:inbox
    dibs explain 7 --category booking:saga --in car:command --in car
    dibs explain 4711 --category mail --in account`
}

// Run tells the story.
func (c *explainCommand) Run(ctx context.Context, a *app) error {
	var in []messagestore.Category
	for _, name := range c.In {
		category, err := toCategory(name)
		if err != nil {
			return err
		}
		in = append(in, category)
	}
	if c.Category != "" {
		category, err := toCategory(c.Category)
		if err != nil {
			return err
		}
		if rule := keys.Rule(c.Target); rule != "" {
			return keys.Invalid("idempotence key", c.Target, rule)
		}
		if c.Scope != "" {
			if _, err := intentStream(category, c.Scope, c.Target); err != nil {
				return err
			}
		}
		return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
			return c.explainKey(ctx, &explainer{app: a, store: store, in: in}, category)
		})
	}
	if c.Scope != "" {
		return usage("--scope is of an intent's key: give its --category too")
	}
	stream, err := toStream(c.Target)
	if err != nil {
		return usage("%w; to look for a key, give its --category", err)
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		return (&explainer{app: a, store: store, in: in}).explain(ctx, stream)
	})
}

// explainKey looks for the streams that are reserved with the key, and explains
// each: a key means something within one entity.
func (c *explainCommand) explainKey(ctx context.Context, e *explainer, category messagestore.Category) error {
	for _, one := range keyedParts {
		stream, err := one.streamOf(ctx, e, c, category)
		if err != nil {
			return err
		}
		if stream != "" {
			e.key = c.Target
			return e.explain(ctx, stream)
		}
	}
	if item, err := e.itemAt(ctx, category, c.Target); err != nil || item != nil {
		if err != nil {
			return err
		}
		return e.ask(ctx, item.Stream, item)
	}
	e.key = c.Target
	var streams []messagestore.StreamName
	var commands []*messagestore.Message
	categories, err := e.reservationsOf(ctx, category)
	if err != nil {
		return err
	}
	for _, in := range append([]messagestore.Category{category}, categories...) {
		_, reservations := removal.CommandsOf(in)
		var refused error
		err := e.scan(ctx, in, messagestore.Filter{}, func(m *messagestore.Message) {
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
		if err := requireCategory(ctx, e.store, category); err != nil {
			return err
		}
		return notFound("no stream of %s is reserved with the key %.80q", category, c.Target)
	}
	for i, stream := range streams {
		if i > 0 && !e.app.JSON {
			if err := e.app.out.line(""); err != nil {
				return err
			}
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

// The relations of a message to the stream that is explained.
const (
	firstWrite = "firstWrite" // the stream's first message
	winner     = "winner"     // the message that made the reservation, ahead of the others
	cause      = "cause"      // the message that a stream without a key was begun for
	unreserved = "unreserved" // a command with the key, which is not reserved yet
	duplicate  = "duplicate"  // came second, with the same content
	sameKey    = "sameKey"    // has the key in it, and other content; the handler knows which fields count
	received   = "received"   // a request that an inbox has
	undone     = "undone"     // the undo of a request
	wrote      = "wrote"      // was committed with a message of an inbox
	deleted    = "deleted"    // the tombstone that stands for the stream's messages
	inserted   = "inserted"   // an item of a queue
	followed   = "followed"   // has one of the first two, or a message that follows them, as its cause

	// Of an intent.
	reserved  = "reserved"  // a session was granted the lease
	takenOver = "takenOver" // another session was granted the lease that was over
	extended  = "extended"  // the holder extended the lease, several times in a row
	waiting   = "waiting"   // a session came to the line, or left it
	lapsed    = "lapsed"    // the lease was over by time; no message says so
	released  = "released"  // the lease ended without a result
	confirmed = "confirmed" // the intent was carried out

	// Of a saga; received, waiting, undone and deleted are too.
	started         = "started"
	began           = "began" // an attempt at a step
	done            = "done"  // a step
	failed          = "failed"
	valued          = "valued"
	compensating    = "compensating"
	undoFailed      = "undoFailed"
	suspended       = "suspended"
	completed       = "completed"
	compensated     = "compensated"
	replied         = "replied"
	signalled       = "signalled"
	cancelRequested = "cancelRequested"
	resumed         = "resumed"
	resolved        = "resolved"
	setBack         = "setBack"
	unknown         = "unknown" // of a later release, or of no saga
)

var roles = map[string]struct {
	label string
	style style
}{
	firstWrite: {"first write", green},
	winner:     {"winner", green},
	cause:      {"caused by", plain},
	unreserved: {"command", yellow},
	duplicate:  {"duplicate", yellow},
	sameKey:    {"same key", red},
	received:   {"received", green},
	undone:     {"undone", yellow},
	wrote:      {"wrote", plain},
	deleted:    {"deleted", red},
	inserted:   {"inserted", green},
	followed:   {"followed", plain},

	reserved:  {"reserved", green},
	takenOver: {"taken over", yellow},
	extended:  {"extended", plain},
	waiting:   {"waiting", plain},
	lapsed:    {"lapsed", red},
	released:  {"released", yellow},
	confirmed: {"confirmed", green},

	started:         {"started", green},
	began:           {"began", plain},
	done:            {"done", green},
	failed:          {"failed", red},
	valued:          {"valued", plain},
	compensating:    {"compensating", yellow},
	undoFailed:      {"undo failed", red},
	suspended:       {"suspended", red},
	completed:       {"completed", green},
	compensated:     {"compensated", yellow},
	replied:         {"replied", plain},
	signalled:       {"signalled", plain},
	cancelRequested: {"cancelled", yellow},
	resumed:         {"resumed", green},
	resolved:        {"resolved", yellow},
	setBack:         {"clock set back", yellow},
	unknown:         {"unknown", red},
}

// An event is how a part of the story is printed as JSON.
type event struct {
	Event   string                  `json:"event"`
	Of      messagestore.StreamName `json:"of"`
	Key     string                  `json:"key,omitempty"`
	Message record                  `json:"message"`
}

// A part of a story is told by one system: what it knows of the stream that is explained, if the stream is its own, or
// of the messages that were told so far. It adds to the story's roots the messages that others may have as their cause.
type part interface {
	tell(ctx context.Context, e *explainer, s *story) error
}

// parts are told in this order. A stream that no other system knows is told as one of reservations.
var parts = []part{intentsPart{}, inboxesPart{}, sagasPart{}, queuesPart{}, reservationsPart{}, itemsPart{}, followersPart{}}

// A keyedPart is of a system that has categories of its own, with a stream for each key.
type keyedPart interface {
	part

	// streamOf returns the stream of the key that is asked for, or "" for a category that is not the system's.
	streamOf(ctx context.Context, e *explainer, c *explainCommand, category messagestore.Category) (messagestore.StreamName, error)
}

var keyedParts = []keyedPart{intentsPart{}, inboxesPart{}, sagasPart{}}

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
	s := &story{app: e.app, of: stream, first: first}
	for _, one := range parts {
		if err := one.tell(ctx, e, s); err != nil {
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
		s := story{app: e.app, of: stream}
		if isStep(m) || isTrimmedSaga(m) {
			return e.ask(ctx, stream, m)
		}
		if !m.IsTombstone() {
			return notFound("%s begins at position %d: its first message was trimmed", visible(string(stream)), m.Position)
		}
		if err := s.title(); err != nil {
			return err
		}
		note := "it stays taken"
		if t, err := messagestore.Decode[removal.Tombstone](m); err == nil {
			note = fmt.Sprintf("%s, by %s; it stays taken", number(t.Messages, "message", "messages"), visible(t.By))
			if t.Reason != "" {
				note += ": " + visible(t.Reason)
			}
		}
		return s.tell(deleted, m, note)
	}
	if yes, err := e.unreserved(ctx, stream); yes || err != nil {
		return err
	}
	return notFound("%s has no messages, so it is not reserved", visible(string(stream)))
}

// followersPart tells the messages that have one of the roots as their cause, or the cause of their cause, and so on.
type followersPart struct{}

func (followersPart) tell(ctx context.Context, e *explainer, s *story) error {
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
			if err := e.scan(ctx, category, messagestore.Filter{}, look); err != nil {
				return err
			}
		}
	}
	slices.SortStableFunc(found, func(a, b *messagestore.Message) int { return a.Time.Compare(b.Time) })
	none := true
	for _, m := range found {
		var err error
		switch {
		case s.knows(m.Stream, m.Position):
			continue
		case startsSaga(m):
			err = e.saga(ctx, s, m.Stream)
		default:
			err = s.tell(followed, m, followedText(m))
		}
		if none = false; err == nil {
			err = e.items(ctx, s, m, true)
		}
		if err != nil {
			return err
		}
	}
	if none {
		names := make([]string, 0, len(streams)+len(e.in))
		for _, stream := range streams {
			names = append(names, visible(string(stream)))
		}
		for _, category := range e.in {
			names = append(names, visible(string(category)))
		}
		s.note("followed", "nothing yet", "in "+strings.Join(names, ", ")+"; look in another category with --in")
	}
	return nil
}

// entityOf returns the entity's own stream of a stream.
func entityOf(stream messagestore.StreamName) messagestore.StreamName {
	return messagestore.Category(stream.Category().Entity()).Stream(stream.CardinalID())
}

// scan reads all of a category, and tells a person how far it is.
func (e *explainer) scan(ctx context.Context, category messagestore.Category, filter messagestore.Filter, look func(*messagestore.Message)) error {
	progress := progress{every: 2 * time.Second, now: time.Now}
	progress.start()
	n := 0
	for m, err := range e.store.ReadCategory(ctx, category, 0, filter) {
		if err != nil {
			return err
		}
		look(m)
		if n++; progress.due() && !e.app.JSON {
			e.app.warn("dibs: looked at %d messages of %s\n", n, category)
		}
	}
	return nil
}

// A ref names a message by its place.
type ref struct {
	stream   messagestore.StreamName
	position messagestore.Version
}

func refOf(m *messagestore.Message) ref { return ref{m.Stream, m.Position} }

// A story is told message by message.
type story struct {
	app        *app
	of         messagestore.StreamName
	key        string
	what       string // what the stream is, for the title, where no key says so
	told       map[ref]bool
	messages   []*messagestore.Message // that were told
	duplicates int

	first   *messagestore.Message
	begun   bool                      // a system has told the stream
	roots   []*messagestore.Message   // that others may have as their cause
	places  []ref                     // more that others may have: of what was told already, or is not in the store
	streams []messagestore.StreamName // that a system names, to look for them there
	ending  [][3]string               // the last notes
}

// begin tells the first write.
func (s *story) begin(first *messagestore.Message) error {
	if err := s.title(); err != nil {
		return err
	}
	return s.tell(firstWrite, first, dataText(first.Data))
}

func (s *story) title() error {
	s.told, s.begun = map[ref]bool{}, true
	if s.app.JSON {
		return nil
	}
	title := visible(string(s.of)) + s.what
	if s.what == "" && s.key != "" {
		title += " is reserved with the key " + shorten(visible(s.key))
	}
	return s.app.out.line("%s", s.app.out.styled(title, bold))
}

// knows reports whether the message at a place was told of.
func (s *story) knows(stream messagestore.StreamName, position messagestore.Version) bool {
	return s.told[ref{stream, position}]
}

func (s *story) tell(role string, m *messagestore.Message, note string) error {
	return s.tellAt(role, m, place(m), note)
}

func (s *story) tellAt(role string, m *messagestore.Message, at, note string) error {
	s.told[refOf(m)] = true
	s.messages = append(s.messages, m)
	if s.app.JSON {
		return s.app.out.object(event{role, s.of, s.key, toRecord(m)})
	}
	r := roles[role]
	return s.app.out.row(
		cell{text: r.label, style: r.style},
		cell{text: timeText(m.Time), style: dim},
		cell{text: at},
		cell{text: visible(m.Type), style: bold},
		cell{text: note})
}

// note adds a line that is about no message.
func (s *story) note(label, place, text string) {
	if !s.app.JSON {
		s.app.out.row(cell{text: label}, cell{text: ""}, cell{text: place}, cell{text: text}) //nolint:errcheck // the next row or the flush returns it
	}
}
