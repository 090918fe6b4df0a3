// Package intentlog has the messages of intents and the states that they describe. Package intent
// writes them, and the command shows and verifies them.
package intentlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/messagestore"
)

// The types of an intent's messages. An intent's state is its last message: every message contains
// all of it.
const (
	TypeReserved  = "Reserved"
	TypeExtended  = "Extended"
	TypeWaiting   = "Waiting"
	TypeReleased  = "Released"
	TypeConfirmed = "Confirmed"
)

// A Grant is the part that all messages of an intent have: the lease that was last granted.
type Grant struct {
	Session string   `json:"session"`        // the holder
	Attempt int      `json:"attempt"`        // counts the grants, from 1
	TTL     int64    `json:"ttl"`            // of the lease, in milliseconds
	Content string   `json:"content"`        // a digest of the request's content
	Line    []string `json:"line,omitempty"` // the sessions that wait, in their order
}

// Reserved says that a session was granted the lease. It does not contain the fencing token: Token
// computes that from the message and the time at which the store wrote it.
type Reserved struct {
	Grant
	After int64 `json:"after"` // the token of the previous grant, 0 if there was none
}

// MessageType returns "Reserved".
func (Reserved) MessageType() string { return TypeReserved }

// Extended says that the holder still works: the lease ends its TTL after this message.
type Extended struct {
	Grant
	Token int64 `json:"token"`
}

// MessageType returns "Extended".
func (Extended) MessageType() string { return TypeExtended }

// Waiting says that a session has joined or left the line, or that the store's clock was ahead when
// the lease began. Otherwise the lease is unchanged.
type Waiting struct {
	Grant
	Token int64 `json:"token"`

	// At is the time at which the lease begins, in microseconds since 1970: the time of the last
	// Reserved, Extended or Released, or an earlier time if the clock was ahead then.
	At int64 `json:"at"`

	// Of is the position of that message.
	Of messagestore.Version `json:"of"`

	// Released says that the lease is released, and only the line keeps others from the intent.
	Released bool   `json:"released,omitempty"`
	By       string `json:"by,omitempty"`     // see Released
	Reason   string `json:"reason,omitempty"` // see Released
}

// MessageType returns "Waiting".
func (Waiting) MessageType() string { return TypeWaiting }

// Released says that the lease ended without a result.
type Released struct {
	Grant
	Token  int64  `json:"token"`
	By     string `json:"by,omitempty"` // the operator, or "" for the holder
	Reason string `json:"reason,omitempty"`
}

// MessageType returns "Released".
func (Released) MessageType() string { return TypeReleased }

// Confirmed says that the intent was carried out, for ever: no message follows it.
type Confirmed struct {
	Grant
	Token  int64           `json:"token"`
	Result json.RawMessage `json:"result,omitempty"`

	// NotKept says why the work's result could not be stored, if it had one.
	NotKept string `json:"notKept,omitempty"`
}

// MessageType returns "Confirmed".
func (Confirmed) MessageType() string { return TypeConfirmed }

// Token returns the fencing token of a grant that the store wrote at the given time: the
// microseconds of that time since 1970, or one more than the previous token, if that is greater.
func (r Reserved) Token(written time.Time) int64 { return max(r.After+1, written.UnixMicro()) }

// Bounds of the fields of a message. No clock gives a token beyond the year 9999.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour

	MaxToken   = 253_402_300_799_999_999
	MaxSession = 128
	MaxLine    = 100
)

// A State is the state of an intent in one of its messages. Since each message has the whole state,
// a stream is valid if each pair of consecutive messages is: see [State.Violations].
type State struct {
	Grant // zero for a tombstone

	Type     string
	Place    messagestore.Mark    // of the message
	Token    int64                // the fencing token of the lease
	After    int64                // for Reserved: the previous token, 0 if there was none
	Since    time.Time            // when the lease begins; if it was released, when it became free
	Of       messagestore.Version // the message of that time
	Released bool                 // the lease was released, and not taken since
	By       string               // the operator who released it, or "" for the holder
	Reason   string               // why it was released
	Result   json.RawMessage      // of the confirmation
	NotKept  string               // why there is no result, if the work had one
	Deleted  bool                 // the message is the tombstone of a stream
	Lapsed   bool                 // it is not held any more; set where that was checked

	// Metadata is copied from message to message of a grant.
	Metadata messagestore.Metadata
}

// Done reports whether no message may follow.
func (s *State) Done() bool { return s.Deleted || s.Type == TypeConfirmed }

// Lasts returns how long the lease lasts without an extension.
func (s *State) Lasts() time.Duration { return time.Duration(s.TTL) * time.Millisecond }

// Until returns when the lease is over, by the store's clock.
func (s *State) Until() time.Time {
	if s.Released {
		return s.Since
	}
	return s.Since.Add(s.Lasts())
}

// Held reports whether the lease is live at now, by the store's clock.
func (s *State) Held(now time.Time) bool {
	return !s.Done() && !s.Released && now.Before(s.Until())
}

// MayTake returns when session may take the intent: after the turns of all sessions before it in
// the line.
func (s *State) MayTake(session string, turn time.Duration) time.Time {
	return s.Until().Add(time.Duration(s.Before(session)) * turn)
}

// MayBeTaken reports whether session may take the intent at now. A released intent is free for the
// first session in its line, even if the clock was set back since.
func (s *State) MayBeTaken(session string, now time.Time, turn time.Duration) bool {
	return s.Released && s.Before(session) == 0 || !now.Before(s.MayTake(session, turn))
}

// Before returns how many sessions in the line come before session.
func (s *State) Before(session string) int {
	if i := slices.Index(s.Line, session); i >= 0 {
		return i
	}
	return len(s.Line)
}

// Granted returns the state right after body was written.
func Granted(body messagestore.Body, written messagestore.Written, metadata messagestore.Metadata) State {
	s := State{Type: body.MessageType(), Since: written.Time, Of: written.Version, Metadata: metadata, Place: messagestore.Mark{
		Stream: written.Stream, Position: written.Version, GlobalPosition: written.GlobalPosition, Time: written.Time,
	}}
	if len(written.IDs) > 0 {
		s.Place.ID = written.IDs[0]
	}
	switch b := body.(type) {
	case Reserved:
		s.Grant, s.Token, s.After = b.Grant, b.Token(written.Time), b.After
	case Extended:
		s.Grant, s.Token = b.Grant, b.Token
	case Waiting:
		s.Grant, s.Token, s.Since = b.Grant, b.Token, time.UnixMicro(b.At).UTC()
		s.Of, s.Released, s.By, s.Reason = b.Of, b.Released, b.By, b.Reason
	case Released:
		s.Grant, s.Token, s.Released, s.By, s.Reason = b.Grant, b.Token, true, b.By, b.Reason
	case Confirmed:
		s.Grant, s.Token, s.Result, s.NotKept = b.Grant, b.Token, b.Result, b.NotKept
	}
	return s
}

// Read returns the state in m. If m does not belong to an intent, the error is a [*CorruptError],
// and the state has m's type and place.
func Read(m *messagestore.Message) (*State, error) {
	corrupt := func(rule string, args ...any) (*State, error) {
		return &State{Type: m.Type, Place: m.Mark(), Since: m.Time, Of: m.Position}, &CorruptError{m.Stream, m.Position, fmt.Sprintf(rule, args...)}
	}
	written := messagestore.Written{Stream: m.Stream, Version: m.Position, GlobalPosition: m.GlobalPosition, Time: m.Time}
	if m.IsTombstone() {
		return &State{Type: m.Type, Deleted: true, Since: m.Time, Place: m.Mark()}, nil
	}
	var body messagestore.Body
	var err error
	switch m.Type {
	case TypeReserved:
		body, err = decode[Reserved](m)
	case TypeExtended:
		body, err = decode[Extended](m)
	case TypeWaiting:
		body, err = decode[Waiting](m)
	case TypeReleased:
		body, err = decode[Released](m)
	case TypeConfirmed:
		body, err = decode[Confirmed](m)
	default:
		return corrupt("a message of the type %.80q is none of an intent's", m.Type)
	}
	if err != nil {
		return corrupt("%v", err)
	}
	if r, ok := body.(Reserved); ok && (r.After < 0 || r.After >= MaxToken) {
		return corrupt("after: %d is no fencing token", r.After)
	}
	if w, ok := body.(Waiting); ok {
		if w.At > MaxToken || w.At < -MaxToken {
			return corrupt("at: %d is no time", w.At)
		}
		if w.Of < 0 || w.Of >= m.Position {
			return corrupt("of: %d is no position before it", int64(w.Of))
		}
	}
	s := Granted(body, written, m.Metadata)
	s.Place.ID = m.ID
	switch {
	case SessionRule(s.Session) != "":
		return corrupt("session: %s", SessionRule(s.Session))
	case s.Token < 1 || s.Token > MaxToken:
		return corrupt("token: %d is no fencing token", s.Token)
	case s.Attempt < 1:
		return corrupt("attempt: %d is less than 1", s.Attempt)
	case s.TTL < MinTTL.Milliseconds() || s.TTL > MaxTTL.Milliseconds():
		return corrupt("ttl: %d ms is not between %v and %v", s.TTL, MinTTL, MaxTTL)
	case s.Content == "":
		return corrupt("content: there is none")
	case len(s.Line) > MaxLine:
		return corrupt("line: %d sessions are more than %d", len(s.Line), MaxLine)
	}
	return &s, nil
}

func decode[T messagestore.Body](m *messagestore.Message) (messagestore.Body, error) {
	body, err := messagestore.Decode[T](m)
	return body, err
}

// SessionRule returns the rule that a session breaks, or "".
func SessionRule(session string) string {
	switch {
	case session == "":
		return "must not be empty"
	case len(session) > MaxSession:
		return fmt.Sprintf("must be at most %d bytes, and is %d", MaxSession, len(session))
	}
	return TextRule(session)
}

// TextRule returns the rule that a text for operators breaks, or "".
func TextRule(text string) string {
	if !utf8.ValidString(text) {
		return "must be valid UTF-8"
	}
	for i, r := range text {
		if r < ' ' || r >= 0x7F && r < 0xA0 || r == '\u2028' || r == '\u2029' {
			return fmt.Sprintf("must not contain a control character, and has %U at byte %d", r, i)
		}
	}
	return ""
}

// ScopeAndKey returns the scope and the key of the intent in stream. If the key was too long for a
// name, it returns the hash of the key.
func ScopeAndKey(stream messagestore.StreamName) (scope, key string) {
	switch ids := stream.IDs(); len(ids) {
	case 0:
		return "", ""
	case 1:
		return "", ids[0]
	default:
		return ids[0], ids[1]
	}
}

// ErrCorrupt is matched by a [CorruptError].
var ErrCorrupt = errors.New("corrupt intent")

// A CorruptError names a message that does not belong to an intent, and the rule that it breaks.
type CorruptError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version
	Rule     string
}

// Error names the message's place and the rule.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt intent: %s@%d: %s", e.Stream, e.Position, e.Rule)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
