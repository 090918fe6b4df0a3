package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// reservation tells the first message of a stream, the winner, and the duplicates of it.
func (t *teller) reservation(ctx context.Context, s *story) error {
	if s.begun {
		return nil
	}
	first := s.first
	s.key = t.keyOf(first)
	s.title("")
	s.tell(Event{Role: FirstWrite, Message: first, Data: first.Data})
	role := CausedBy
	if s.key != "" || first.Metadata.Local.Get(digestProperty) != "" {
		role = Winner
	}
	s.roots = []*messagestore.Message{first}
	source, err := t.causeOf(ctx, s, role, first)
	if source == nil {
		s.places = append(s.places, ref{first.Metadata.CausationStream, first.Metadata.CausationPosition})
		return err
	}
	s.roots = append(s.roots, source)
	s.tell(Event{Role: role, Message: source, Text: "id " + source.ID.String()})
	return t.seconds(ctx, s, source)
}

// The local properties of a reservation's first message.
const (
	keyProperty    = "reservedKey"    // of a copy: the key, as it is in the stream's name
	digestProperty = "reservedDigest" // of a copy, and of the first message of a stream that was initiated
	nameProperty   = "reservedFor"    // of a copy: the name of the reserver
)

// reservationsOf returns the categories in which reservers have reserved the keys of commands in category.
func (t *teller) reservationsOf(ctx context.Context, category messagestore.Category) ([]messagestore.Category, error) {
	all, err := t.store.Categories(ctx, string(category.WithType("reservation"))+"+")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c messagestore.Category) bool {
		commands, is := removal.CommandsOf(c)
		return !is || commands != category
	}), nil
}

// reservedWith reports whether m is the first message of a stream that is reserved
// with the key.
func (t *teller) reservedWith(m *messagestore.Message, key string) (bool, error) {
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
	reserver, err := reservation.New(t.store, m.Metadata.Local.Get(nameProperty), nil)
	var stream messagestore.StreamName
	if err == nil { // else no reserver has this name: another client wrote it
		stream, err = reserver.Stream(cause, key)
	}
	if errors.Is(err, reservation.ErrInvalidKey) {
		return false, err
	}
	return err == nil && stream == m.Stream, nil
}

// keyOf returns the key with which stream is reserved. It returns "" if it is not reserved, or if
// the key is too long to be in the name.
func (t *teller) keyOf(first *messagestore.Message) string {
	if t.key != "" {
		return t.key
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

// unreserved tells the commands that a reservation stream without messages may be of, and reports
// whether there are any: those with the key in them, in the stream that its name is made of.
func (t *teller) unreserved(ctx context.Context, stream messagestore.StreamName) (yes bool, err error) {
	key, ok := reservation.KeyOf(stream)
	category, is := removal.CommandsOf(stream.Category())
	id := stream.ID()
	last := strings.LastIndexByte(id, '+')
	if !ok || !is || last < 0 {
		return false, nil
	}
	var commands []*messagestore.Message
	for m, err := range t.store.ReadStream(ctx, messagestore.StreamName(string(category)+"-"+id[:last]), 0) {
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
	return true, t.notReserved(ctx, stream, key, commands)
}

// notReserved tells of commands without a reservation: where their consumers are, and which
// commands were parked.
func (t *teller) notReserved(ctx context.Context, of messagestore.StreamName, key string, commands []*messagestore.Message) error {
	s := &story{yield: t.yield, of: of, told: map[ref]bool{}}
	s.event(Event{Role: Title, Text: fmt.Sprintf("no command with the key %s is reserved yet in %s", text.Cut(72, key), of)})
	for _, m := range commands {
		s.tell(Event{Role: Unreserved, Message: m, Text: "id " + m.ID.String()})
	}
	s.roots = commands
	if err := t.deliveries(ctx, s); err != nil {
		return err
	}
	first := commands[0]
	all, err := consumers.Consumers(ctx, t.store, first.Stream.Category())
	if err != nil {
		return err
	}
	if len(all) == 0 {
		s.note("consumer", "none", "no consumer of "+string(first.Stream.Category())+" has stored a checkpoint")
	}
	for _, c := range all {
		if c.Err != nil {
			continue
		}
		note := fmt.Sprintf("has finished all before %d", c.Position)
		if c.Position <= first.GlobalPosition {
			note += ": " + notFinished(c, first)
		}
		s.note("consumer", c.Name, note)
	}
	return nil
}

// notFinished tells why a consumer has not finished a message.
func notFinished(c consumers.Status, m *messagestore.Message) string {
	note := fmt.Sprintf("message %d waits", m.GlobalPosition)
	i := slices.IndexFunc(c.Failing, func(f consumers.Failure) bool { return f.ID == m.ID })
	switch {
	case i >= 0:
		f := c.Failing[i]
		note = fmt.Sprintf("message %d fails, attempt %d since %s: %s", m.GlobalPosition, f.Attempts, text.Time(f.FirstFailedAt), f.Error)
	case c.PausedAt.IsZero():
		return note + " behind another, or has failed for less than a second: dibs consumers lists failing messages"
	}
	if !c.PausedAt.IsZero() {
		note += fmt.Sprintf("; the consumer is paused since %s: dibs consumers resume %s %s", text.Time(c.PausedAt), c.Category, c.Name)
	}
	return note
}

// seconds tells which messages of the winner's stream came second.
func (t *teller) seconds(ctx context.Context, s *story, source *messagestore.Message) error {
	for m, err := range t.store.ReadStream(ctx, source.Stream, 0) {
		if err != nil {
			return err
		}
		switch {
		case m.Position == source.Position || m.Stream == s.of || s.told[refOf(m)]:
		case m.Type == source.Type && exactjson.Equal(m.Data, source.Data):
			s.tell(Event{Role: Duplicate, Message: m, Text: "the same content, id " + m.ID.String()})
		case s.key != "" && holds(m.Data, s.key):
			s.tell(Event{Role: SameKey, Message: m, Text: "other content, id " + m.ID.String()})
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
