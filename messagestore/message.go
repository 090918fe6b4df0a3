package messagestore

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
)

// A Body is the content of a message. MessageType names it in the store, so it
// stays the same when the Go type is renamed. A body is encoded with
// encoding/json and must come out as a JSON object.
type Body interface {
	MessageType() string
}

// An Envelope is a body with an id and metadata of the caller's choice. Most writes do not need
// one: [Store.Write] takes a bare body and makes the envelope. An Envelope is itself a Body, so you
// can mix both.
type Envelope struct {
	// ID makes a repeated write recognisable: writing the same message with the same id again
	// changes nothing and returns the result of the first write. The zero value asks for a new
	// version 7 identifier.
	ID uuid.UUID

	Body     Body
	Metadata Metadata
}

// MessageType returns the body's type.
func (m Envelope) MessageType() string {
	if m.Body == nil {
		return ""
	}
	return m.Body.MessageType()
}

// envelope returns body if it is an Envelope, else a new Envelope around it.
func envelope(body Body) Envelope {
	if m, ok := isMessage(body); ok {
		return m
	}
	return Envelope{Body: body}
}

func isMessage(body Body) (Envelope, bool) {
	switch m := body.(type) {
	case Envelope:
		return m, true
	case *Envelope:
		if m != nil {
			return *m, true
		}
	}
	return Envelope{}, false
}

// Raw is a body that is JSON already, under any type's name.
type Raw struct {
	Type string
	Data json.RawMessage
}

// MessageType returns r.Type.
func (r Raw) MessageType() string { return r.Type }

// A Message is a message in the store. It is read-only: other readers may share it.
type Message struct {
	ID             uuid.UUID
	Stream         StreamName
	Position       Version        // in its stream, from 0
	GlobalPosition GlobalPosition // in its category
	Time           time.Time      // when the store wrote it, UTC, to the microsecond
	Type           string
	Data           json.RawMessage // nil where another client wrote none
	Metadata       Metadata
}

// Body returns r's content as a body of the same type, byte for byte. Missing data and the data
// null, which other clients may write, become an empty object.
func (r *Message) Body() Raw {
	data := r.Data
	if trimmed := bytes.TrimSpace(data); len(trimmed) == 0 || string(trimmed) == "null" {
		data = json.RawMessage("{}")
	}
	return Raw{Type: r.Type, Data: data}
}

// Mark returns r's mark.
func (r *Message) Mark() Mark { return Mark{r.ID, r.Stream, r.Position, r.GlobalPosition, r.Time} }

// String names r by type, stream and position: "Deposit account:command-123@0". A name that this
// package does not allow, but other clients may write, is shortened and quoted.
func (r *Message) String() string {
	return fmt.Sprintf("%s %s@%d", quoteName(r.Type), quoteName(r.Stream), r.Position)
}

// Decode returns the body of r. The error matches [ErrInvalid] if r is nil or not of T's message
// type, or if a number does not fit T's fields. Missing data and the data null decode as an empty
// object: T's zero value or, if T is a pointer, a pointer to a zero value, never nil.
func Decode[T Body](r *Message) (T, error) {
	var body T
	if r == nil {
		return body, fmt.Errorf("decode: %w", NewInvalidError("message", nil, "must not be nil"))
	}
	if want := body.MessageType(); r.Type != want {
		return body, fmt.Errorf("decode %s: %w", r, NewInvalidError("message type", r.Type, "must be "+want))
	}
	var into any = &body
	if t := reflect.TypeFor[T](); t.Kind() == reflect.Pointer {
		body = reflect.New(t.Elem()).Interface().(T) //nolint:errcheck // it was made as one
		into = body
	}
	if len(r.Data) == 0 {
		return body, nil
	}
	if err := json.Unmarshal(r.Data, into); err != nil {
		return body, fmt.Errorf("decode %s: %w", r, &unfitError{err})
	}
	return body, nil
}

// An unfitError is an error of encoding/json, as a short line. The original text holds the number
// or the time that does not fit, however long that is.
type unfitError struct{ cause error }

func (e *unfitError) Error() string {
	const most = 200
	text := e.cause.Error()
	cut := len(text) > most
	if cut {
		text = text[:most]
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if cut {
		text += "…"
	}
	return text
}

// WithoutValue returns the text for a log.
func (e *unfitError) WithoutValue() string { return text.Log(e.cause) }

// Unwrap returns the cause and [calling.Refused], so that a consumer does not retry the message.
func (e *unfitError) Unwrap() []error { return []error{e.cause, calling.Refused} }

// Follow puts body in an envelope that records prev as its cause.
//
// The new message gets prev's stream, position and global position as its cause. It gets prev's
// correlation stream and reply stream. If prev has no such stream, the one of body's own envelope
// stays. It also gets deep copies of prev's properties, unless body's own envelope has a property of
// the same name. It does not get prev's id, local properties, schema version, causation, or metadata of
// other clients that this package does not know. If prev is nil, the write refuses the envelope.
func Follow(prev *Message, body Body) Envelope {
	if prev == nil {
		return Envelope{Body: refusedBody{body, NewInvalidError("cause", nil, "the message given to Follow must not be nil")}}
	}
	m := envelope(body)
	m.Metadata.CausationStream = prev.Stream
	m.Metadata.CausationPosition = prev.Position
	m.Metadata.CausationGlobalPosition = prev.GlobalPosition
	m.Metadata.CorrelationStream = cmp.Or(prev.Metadata.CorrelationStream, m.Metadata.CorrelationStream)
	m.Metadata.ReplyStream = cmp.Or(prev.Metadata.ReplyStream, m.Metadata.ReplyStream)
	m.Metadata.Properties = merge(prev.Metadata.Properties, m.Metadata.Properties)
	return m
}

// A refusedBody makes the write fail.
type refusedBody struct {
	Body
	err error
}

// Follows reports whether m records prev as its cause and carries on its
// correlation and reply streams. Properties do not count.
func (m Metadata) Follows(prev *Message) bool {
	return m.CausationStream != "" &&
		m.CausationStream == prev.Stream &&
		m.CausationPosition == prev.Position &&
		m.CausationGlobalPosition == prev.GlobalPosition &&
		(prev.Metadata.CorrelationStream == "" || m.CorrelationStream == prev.Metadata.CorrelationStream) &&
		(prev.Metadata.ReplyStream == "" || m.ReplyStream == prev.Metadata.ReplyStream)
}
