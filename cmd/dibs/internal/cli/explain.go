package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

type explainCommand struct {
	Target   string   `arg:"" name:"stream" help:"Name of a stream, or with --category an idempotence key."`
	Category string   `placeholder:"CATEGORY" help:"Search all of this category for streams reserved with the key. In a category of intents, the one with the key."`
	Scope    string   `placeholder:"SCOPE" help:"The scope of an intent's key. Defaults to none."`
	In       []string `sep:"none" placeholder:"CATEGORY" help:"Search all of this category too for messages that followed. May be repeated."`
}

// Help is printed below the command's usage.
func (explainCommand) Help() string {
	return `It shows the writer of the first message, the duplicates with the same content, those that reuse the key with other content, the ones that consumers parked, and the messages that followed in the entity's own stream: those with the first message, or one that follows it, as their cause.

An intent is told from its grant to its end: each lease, how often it was extended and until when, the line, leases that lapsed (no message says so) and were taken over, the release or the result, and the messages that followed. Requests that were refused wrote nothing.

Examples:

    dibs explain account:command-123+AAA
    dibs explain AAA --category account:command --in account:transaction
    dibs explain 29401/1998-12 --category payment:intent --scope acme`
}

// Run tells the story.
func (c *explainCommand) Run(ctx context.Context, a *app) error {
	var in []messagestore.Category
	for _, name := range c.In {
		category, err := messagestore.ParseCategory(name)
		if err != nil {
			return err
		}
		in = append(in, category)
	}
	if c.Category != "" {
		category, err := messagestore.ParseCategory(c.Category)
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
	stream, err := messagestore.ParseStreamName(c.Target)
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
	if yes, err := c.isIntents(ctx, e.store, category); err != nil || yes {
		if err == nil {
			err = c.explainIntent(ctx, e, category)
		}
		return err
	}
	e.key = c.Target
	var streams []messagestore.StreamName
	var commands []*messagestore.Message
	var refused error
	err := e.scan(ctx, category, messagestore.Filter{}, func(m *messagestore.Message) {
		yes, err := e.reservedWith(m, c.Target)
		if yes {
			streams = append(streams, m.Stream)
		} else if !reservation.IsCopy(m) && holds(m.Data, c.Target) {
			commands = append(commands, m)
		}
		refused = err
	})
	if err = errors.Join(err, refused); err != nil {
		return err
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
}

// The local properties of a reservation's first message.
const (
	keyProperty    = "reservedKey"    // of a copy: the key, as it is in the stream's name
	digestProperty = "reservedDigest" // of a copy, and of the first message of a stream that was initiated
	nameProperty   = "reservedFor"    // of a copy: the name of the reserver

	expiredProperty = "reservedExpired" // of a copy: the time of the reservation before it, which had expired
)

// reservedWith reports whether m is the first message of a stream that is reserved
// with the key.
func (e *explainer) reservedWith(m *messagestore.Message, key string) (bool, error) {
	cause := m.Metadata.CausationStream
	if m.IsTombstone() && m.Metadata.Local.Get(digestProperty) != "" {
		reserved, ok := reservation.KeyOf(m.Stream)
		return ok && reserved == key, nil
	}
	if m.Position != 0 || cause == "" {
		return false, nil
	}
	if m.Metadata.Local.Get(keyProperty) == "" {
		return m.Metadata.Local.Get(digestProperty) != "" && m.Stream.ID() == key, nil
	}
	config := &reservation.Config{}
	if cause.Category() != m.Stream.Category() {
		config.Category = m.Stream.Category()
	}
	stream, err := reservation.New(e.store, m.Metadata.Local.Get(nameProperty), config).Stream(cause, key)
	if errors.Is(err, reservation.ErrInvalidKey) {
		return false, err
	}
	return err == nil && stream == m.Stream, nil
}

// keyOf returns the key that stream is reserved with, or "" if it is not, or if the
// key is too long to be in the name.
func (e *explainer) keyOf(first *messagestore.Message) string {
	if e.key != "" {
		return e.key
	}
	local, cause := first.Metadata.Local, first.Metadata.CausationStream
	part := local.Get(keyProperty)
	if part == "" {
		// As other clients name reservations.
		var ok bool
		if part, ok = strings.CutPrefix(string(first.Stream), string(cause)+"+"); !ok || cause == "" {
			part = ""
		}
	}
	if key, ok := reservation.KeyOf(first.Stream); part != "" && ok {
		return key
	}
	if local.Get(digestProperty) != "" && part == "" {
		return first.Stream.ID()
	}
	return ""
}

// The relations of a message to the stream that is explained.
const (
	firstWrite = "firstWrite" // the stream's first message
	winner     = "winner"     // the message that made the reservation, ahead of the others
	expired    = "expired"    // the reservation that came after one that had expired
	cause      = "cause"      // the message that a stream without a key was begun for
	unreserved = "unreserved" // a command with the key, of which no reservation was made yet
	duplicate  = "duplicate"  // came second, with the same content
	sameKey    = "sameKey"    // has the key in it, and other content; the handler knows which fields count
	deadLetter = "deadLetter" // was parked by a consumer
	redriven   = "redriven"   // was delivered again, and its dead letter is closed
	dropped    = "dropped"    // an operator closed its dead letter without handling it
	deleted    = "deleted"    // the tombstone that stands for the stream's messages
	followed   = "followed"   // has one of the first two, or a message that follows them, as its cause

	// Of an intent.
	reserved  = "reserved"  // a session was granted the lease
	takenOver = "takenOver" // another session was granted the lease that was over
	extended  = "extended"  // the holder extended the lease, several times in a row
	waiting   = "waiting"   // a session came to the line, or left it
	lapsed    = "lapsed"    // the lease was over by time; no message says so
	released  = "released"  // the lease ended without a result
	confirmed = "confirmed" // the intent was carried out
)

var roles = map[string]struct {
	label string
	style style
}{
	firstWrite: {"first write", green},
	winner:     {"winner", green},
	expired:    {"reserved anew", yellow},
	cause:      {"caused by", plain},
	unreserved: {"command", yellow},
	duplicate:  {"duplicate", yellow},
	sameKey:    {"same key", red},
	deadLetter: {"dead letter", red},
	redriven:   {"redriven", green},
	dropped:    {"dropped", yellow},
	deleted:    {"deleted", red},
	followed:   {"followed", plain},

	reserved:  {"reserved", green},
	takenOver: {"taken over", yellow},
	extended:  {"extended", plain},
	waiting:   {"waiting", plain},
	lapsed:    {"lapsed", red},
	released:  {"released", yellow},
	confirmed: {"confirmed", green},
}

// An event is how a part of the story is printed as JSON.
type event struct {
	Event   string                  `json:"event"`
	Of      messagestore.StreamName `json:"of"`
	Key     string                  `json:"key,omitempty"`
	Message record                  `json:"message"`
}

func (e *explainer) explain(ctx context.Context, stream messagestore.StreamName) error {
	first, err := messageAt(ctx, e.store, stream, 0)
	if errors.Is(err, messagestore.ErrNotFound) {
		return e.removed(ctx, stream)
	}
	if err != nil {
		return err
	}
	if isStep(first) {
		return e.intent(ctx, stream)
	}
	s := story{app: e.app, of: stream, key: e.keyOf(first)}
	if err := s.begin(first); err != nil {
		return err
	}
	role := cause
	if s.key != "" || first.Metadata.Local.Get(digestProperty) != "" {
		role = winner
	}
	roots := []*messagestore.Message{first}
	if stream := first.Metadata.CausationStream; stream != "" {
		source, err := messageAt(ctx, e.store, stream, first.Metadata.CausationPosition)
		switch {
		case errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid):
			// In another store, or named by another client.
			s.note(roles[role].label, placeOf(stream, first.Metadata.CausationPosition), "not in this store")
		case err != nil:
			return err
		default:
			roots = append(roots, source)
			if err := s.tell(role, source, "id "+source.ID.String()); err != nil {
				return err
			}
			later, err := e.later(ctx, &s)
			if err != nil {
				return err
			}
			roots = append(roots, later...)
			if err := e.seconds(ctx, &s, source); err != nil {
				return err
			}
		}
	}
	if err := e.deadLetters(ctx, &s, roots); err != nil {
		return err
	}
	return e.followers(ctx, &s, roots)
}

// removed tells of a stream without a first message: that it was deleted or trimmed, if it
// was.
func (e *explainer) removed(ctx context.Context, stream messagestore.StreamName) error {
	for m, err := range e.store.ReadStream(ctx, stream, 0) {
		if err != nil {
			return err
		}
		s := story{app: e.app, of: stream}
		if isStep(m) {
			return e.intent(ctx, stream)
		}
		if !m.IsTombstone() {
			return notFound("%s begins at position %d: its first message was trimmed", visible(string(stream)), m.Position)
		}
		if err := s.title(); err != nil {
			return err
		}
		note := "it stays taken"
		if t, err := messagestore.Decode[messagestore.Tombstone](m); err == nil {
			note = fmt.Sprintf("%s, by %s; it stays taken", number(t.Messages, "message", "messages"), visible(t.By))
			if t.Reason != "" {
				note += ": " + visible(t.Reason)
			}
		}
		return s.tell(deleted, m, note)
	}
	if yes, err := e.commandsOf(ctx, stream); yes || err != nil {
		return err
	}
	return notFound("%s has no messages, so it is not reserved", visible(string(stream)))
}

// commandsOf tells the commands that a reservation stream without messages may be of, and reports
// whether there are any: those with the key in them, in the stream that its name begins with.
func (e *explainer) commandsOf(ctx context.Context, stream messagestore.StreamName) (yes bool, err error) {
	key, ok := reservation.KeyOf(stream)
	parts := strings.Split(string(stream), "+")
	if !ok || len(parts) < 3 {
		return false, nil
	}
	var commands []*messagestore.Message
	for m, err := range e.store.ReadStream(ctx, messagestore.StreamName(strings.Join(parts[:len(parts)-2], "+")), 0) {
		if err != nil {
			return false, err
		}
		if holds(m.Data, key) {
			commands = append(commands, m)
		}
	}
	if len(commands) == 0 {
		return false, nil
	}
	return true, e.notReserved(ctx, stream, key, commands)
}

// notReserved tells of commands of which none was reserved: where their consumers are, and which of
// them were parked.
func (e *explainer) notReserved(ctx context.Context, of messagestore.StreamName, key string, commands []*messagestore.Message) error {
	s := story{app: e.app, of: of, told: map[ref]bool{}}
	if !e.app.JSON {
		title := fmt.Sprintf("no command with the key %s is reserved yet in %s", shorten(visible(key)), visible(string(of)))
		if err := e.app.out.line("%s", e.app.out.styled(title, bold)); err != nil {
			return err
		}
	}
	for _, m := range commands {
		if err := s.tell(unreserved, m, "id "+m.ID.String()); err != nil {
			return err
		}
	}
	if err := e.deadLetters(ctx, &s, commands); err != nil || e.app.JSON {
		return err
	}
	consumers, err := operate.Consumers(ctx, e.store, commands[0].Stream.Category())
	if err != nil {
		return err
	}
	if len(consumers) == 0 {
		s.note("consumer", "none", "no consumer of "+visible(string(commands[0].Stream.Category()))+" has stored a checkpoint")
	}
	for _, c := range consumers {
		if c.Err != nil {
			continue
		}
		text := fmt.Sprintf("has finished all before %d", c.Position)
		if first := commands[0]; c.Position <= first.GlobalPosition {
			text += ": " + notFinished(c, first)
		}
		s.note("consumer", visible(c.Name), text)
	}
	return nil
}

// notFinished tells why a consumer has not finished a message.
func notFinished(c operate.Status, m *messagestore.Message) string {
	text := fmt.Sprintf("message %d waits", m.GlobalPosition)
	i := slices.IndexFunc(c.Failing, func(f operate.Failure) bool { return f.ID == m.ID })
	switch {
	case i >= 0:
		f := c.Failing[i]
		text = fmt.Sprintf("message %d fails, attempt %d since %s: %s", m.GlobalPosition, f.Attempts, timeText(f.FirstFailedAt), visible(f.Error))
	case c.PausedAt.IsZero():
		return text + " behind another, or has failed for less than a second: dibs consumers lists failing messages"
	}
	if !c.PausedAt.IsZero() {
		text += fmt.Sprintf("; the consumer is paused since %s: dibs consumers resume %s %s", timeText(c.PausedAt), visible(string(c.Category)), visible(c.Name))
	}
	return text
}

// later tells the reservations that came after those that had expired, and their winners, and
// returns them.
func (e *explainer) later(ctx context.Context, s *story) (roots []*messagestore.Message, err error) {
	for m, err := range e.store.ReadStream(ctx, s.of, 1) {
		if err != nil {
			return nil, err
		}
		before := m.Metadata.Local.Get(expiredProperty)
		if before == "" {
			continue
		}
		if err := s.tell(expired, m, "the reservation of "+visible(before)+" had expired"); err != nil {
			return nil, err
		}
		roots = append(roots, m)
		if m.Metadata.CausationStream == "" {
			continue
		}
		source, err := messageAt(ctx, e.store, m.Metadata.CausationStream, m.Metadata.CausationPosition)
		switch {
		case errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid):
			s.note(roles[winner].label, placeOf(m.Metadata.CausationStream, m.Metadata.CausationPosition), "not in this store")
			continue
		case err != nil:
			return nil, err
		}
		roots = append(roots, source)
		if err := s.tell(winner, source, "id "+source.ID.String()); err != nil {
			return nil, err
		}
	}
	return roots, nil
}

// seconds tells which messages of the winner's stream came second.
func (e *explainer) seconds(ctx context.Context, s *story, source *messagestore.Message) error {
	for m, err := range e.store.ReadStream(ctx, source.Stream, 0) {
		if err != nil {
			return err
		}
		same := m.Type == source.Type && exactjson.Equal(m.Data, source.Data)
		switch {
		case m.Position == source.Position || m.Stream == s.of || s.knows(m.Stream, m.Position):
		case same:
			err = s.tell(duplicate, m, "the same content, id "+m.ID.String())
			s.duplicates++
		case s.key != "" && holds(m.Data, s.key):
			err = s.tell(sameKey, m, "other content, id "+m.ID.String())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// holds reports whether a value in data, however deep, is the key.
func holds(data json.RawMessage, key string) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var value any
	if d.Decode(&value) != nil {
		return false
	}
	var walk func(any) bool
	walk = func(value any) bool {
		switch v := value.(type) {
		case string:
			return v == key
		case json.Number:
			return string(v) == key
		case []any:
			return slices.ContainsFunc(v, walk)
		case map[string]any:
			for _, element := range v {
				if walk(element) {
					return true
				}
			}
		}
		return false
	}
	return walk(value)
}

// A parked message is the content of a consumer's dead letter, or of its end.
type parked struct {
	Stream   messagestore.StreamName `json:"stream"`
	Position messagestore.Version    `json:"position"`
	Consumer string                  `json:"consumer"`
	Error    string                  `json:"error"`

	// Of a letter that is closed.
	Attempts int    `json:"attempts"`
	Dropped  string `json:"dropped"` // an operator's reason
	Skipped  string `json:"skipped"` // the handler's reason
	Deleted  bool   `json:"deleted"`
}

// closedText says how a dead letter was closed.
func (p parked) closedText() string {
	switch {
	case p.Dropped != "":
		return "by an operator: " + p.Dropped
	case p.Deleted:
		return "its stream was deleted, and it was not delivered"
	case p.Skipped != "":
		return fmt.Sprintf("skipped at attempt %d: %s", p.Attempts, p.Skipped)
	}
	return fmt.Sprintf("handled at attempt %d", p.Attempts)
}

// deadLetters tells which messages of the story consumers parked.
func (e *explainer) deadLetters(ctx context.Context, s *story, roots []*messagestore.Message) error {
	var categories []messagestore.Category
	for _, m := range roots {
		if category := m.Stream.Category(); !slices.Contains(categories, category) {
			categories = append(categories, category)
		}
	}
	for _, category := range categories {
		letters := category.WithType("deadLetter")
		if letters.Validate() != nil {
			continue // so no consumer could have written there
		}
		var told error
		err := e.scan(ctx, letters, messagestore.Filter{Types: []string{"Parked", "Redriven"}}, func(m *messagestore.Message) {
			var p parked
			if json.Unmarshal(m.Data, &p) != nil || told != nil {
				return
			}
			if cause := m.Metadata; m.Type == "Redriven" {
				if !s.knows(cause.CausationStream, cause.CausationPosition) {
					return
				}
				role := redriven
				if p.Dropped != "" {
					role = dropped
				}
				told = s.tellAt(role, m, placeOf(cause.CausationStream, cause.CausationPosition),
					visible(fmt.Sprintf("of %s, %s", m.Stream.CardinalID(), p.closedText())))
				return
			}
			if !s.knows(p.Stream, p.Position) {
				return
			}
			// Its own name is long, and says nothing that these do not.
			told = s.tellAt(deadLetter, m, placeOf(p.Stream, p.Position), visible(fmt.Sprintf("by %s: %s", p.Consumer, p.Error)))
		})
		if err = errors.Join(err, told); err != nil {
			return err
		}
	}
	return nil
}

// followers tells the messages that have one of the roots as their cause, or the cause of
// their cause, and so on.
func (e *explainer) followers(ctx context.Context, s *story, roots []*messagestore.Message) error {
	chain := map[ref]bool{}
	for _, m := range roots {
		chain[refOf(m)] = true
	}
	streams := []messagestore.StreamName{messagestore.Category(s.of.Category().Entity()).Stream(s.of.CardinalID())}
	for _, root := range roots {
		for _, stream := range reservation.WrittenWith(root) {
			if !slices.Contains(streams, stream) {
				streams = append(streams, stream)
			}
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
	for _, m := range found {
		if err := s.tell(followed, m, dataText(m.Data)); err != nil {
			return err
		}
	}
	if len(found) == 0 {
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
	told       map[ref]bool
	duplicates int
}

// begin tells the first write.
func (s *story) begin(first *messagestore.Message) error {
	if err := s.title(); err != nil {
		return err
	}
	return s.tell(firstWrite, first, dataText(first.Data))
}

func (s *story) title() error {
	s.told = map[ref]bool{}
	if s.app.JSON {
		return nil
	}
	title := visible(string(s.of))
	if s.key != "" {
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
