package intent

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// The types of an intent's messages. Its state is its last message: every message carries all
// of it.
const (
	TypeReserved  = "Reserved"
	TypeExtended  = "Extended"
	TypeWaiting   = "Waiting"
	TypeReleased  = "Released"
	TypeConfirmed = "Confirmed"
)

// A Grant is the part that all messages of an intent have: the lease that was granted last.
type Grant struct {
	Session string   `json:"session"`        // the holder
	Attempt int      `json:"attempt"`        // counts the grants, from 1
	TTL     int64    `json:"ttl"`            // of the lease, in milliseconds
	Content string   `json:"content"`        // a digest of the request's content
	Line    []string `json:"line,omitempty"` // the sessions that wait, in their order
}

// A ReservedMessage is the message Reserved: a session is granted the lease. It has the long
// name since [Reserved] is the outcome. Its fencing token is not in it: [Token] computes it from
// the message and the time at which the store wrote it.
type ReservedMessage struct {
	Grant
	After int64 `json:"after"` // the token of the grant before, 0 for none
}

// MessageType returns "Reserved".
func (ReservedMessage) MessageType() string { return TypeReserved }

// Extended says that the holder still works: the lease ends its TTL after this message.
type Extended struct {
	Grant
	Token int64 `json:"token"`
}

// MessageType returns "Extended".
func (Extended) MessageType() string { return TypeExtended }

// Waiting says that a session has entered the line, or left it, or that the store's clock was ahead of the time from which the
// lease counts. The lease is as it was but for that.
type Waiting struct {
	Grant
	Token int64 `json:"token"`

	// At is the time from which the lease counts, in microseconds since 1970: the time of the last
	// Reserved, Extended or Released, or an earlier one if the clock was ahead then.
	At int64 `json:"at"`

	// Of is the position of that message.
	Of messagestore.Version `json:"of"`

	// Released says that the lease is released, and only the line keeps others from the intent.
	Released bool   `json:"released,omitempty"`
	By       string `json:"by,omitempty"`     // as in Released
	Reason   string `json:"reason,omitempty"` // as in Released
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

	// NotKept says why there is no result though the work had one: it could not be stored.
	NotKept string `json:"notKept,omitempty"`
}

// MessageType returns "Confirmed".
func (Confirmed) MessageType() string { return TypeConfirmed }

// Token returns the fencing token of the grant, which the store wrote at the given time: the
// microseconds of that time since 1970, or one more than the token before, if that is greater.
func (r ReservedMessage) Token(written time.Time) int64 { return max(r.After+1, written.UnixMicro()) }

// Bounds of the fields of a message. No clock gives a token beyond the year 9999.
const (
	maxToken   = 253_402_300_799_999_999
	maxSession = 128
	maxLine    = 100
	maxReason  = 500
	maxResult  = 512 << 10
)

// A state is an intent as its last message has it.
type state struct {
	Grant
	kind     string
	token    int64
	after    int64                // of Reserved: the token before
	since    time.Time            // from when the lease counts; if it is released, from when it is free
	of       messagestore.Version // of the message of that time
	released bool
	by       string
	reason   string
	result   json.RawMessage
	notKept  string
	gone     bool // there is only a tombstone
	lapsed   bool // it is not held, or no longer; set where that was asked

	at messagestore.Mark // the message

	// metadata goes from message to message of a grant.
	metadata messagestore.Metadata
}

func (s *state) done() bool { return s.gone || s.kind == TypeConfirmed }

func (s *state) ttl() time.Duration { return time.Duration(s.TTL) * time.Millisecond }

// free returns when the lease is over, by the store's clock.
func (s *state) free() time.Time {
	if s.released {
		return s.since
	}
	return s.since.Add(s.ttl())
}

// held reports whether the lease lives at now, by the store's clock.
func (s *state) held(now time.Time) bool {
	return !s.done() && !s.released && now.Before(s.free())
}

// mayTake returns when session may take the intent: after the turns of all sessions before it in
// the line.
func (s *state) mayTake(session string, turn time.Duration) time.Time {
	return s.free().Add(time.Duration(s.before(session)) * turn)
}

// mayBeTaken reports whether session may take the intent at now. A released intent is free for the
// first session in its line, though the clock was put back since.
func (s *state) mayBeTaken(session string, now time.Time, turn time.Duration) bool {
	return s.released && s.before(session) == 0 || !now.Before(s.mayTake(session, turn))
}

// before returns how many sessions in the line come before session.
func (s *state) before(session string) int {
	if i := slices.Index(s.Line, session); i >= 0 {
		return i
	}
	return len(s.Line)
}

// granted returns the state right after body was written.
func granted(body messagestore.Body, written messagestore.Written, metadata messagestore.Metadata) state {
	s := state{kind: body.MessageType(), since: written.Time, of: written.Version, metadata: metadata, at: messagestore.Mark{
		Stream: written.Stream, Position: written.Version, GlobalPosition: written.GlobalPosition, Time: written.Time,
	}}
	if len(written.IDs) > 0 {
		s.at.ID = written.IDs[0]
	}
	switch b := body.(type) {
	case ReservedMessage:
		s.Grant, s.token, s.after = b.Grant, b.Token(written.Time), b.After
	case Extended:
		s.Grant, s.token = b.Grant, b.Token
	case Waiting:
		s.Grant, s.token, s.since = b.Grant, b.Token, time.UnixMicro(b.At).UTC()
		s.of, s.released, s.by, s.reason = b.Of, b.Released, b.By, b.Reason
	case Released:
		s.Grant, s.token, s.released, s.by, s.reason = b.Grant, b.Token, true, b.By, b.Reason
	case Confirmed:
		s.Grant, s.token, s.result, s.notKept = b.Grant, b.Token, b.Result, b.NotKept
	}
	return s
}

// read returns the state that m is the last message of.
func read(m *messagestore.Message) (*state, error) {
	corrupt := func(rule string, args ...any) error {
		return &corruptError{m.Stream, m.Position, fmt.Sprintf(rule, args...)}
	}
	written := messagestore.Written{Stream: m.Stream, Version: m.Position, GlobalPosition: m.GlobalPosition, Time: m.Time}
	if m.IsTombstone() {
		return &state{kind: m.Type, gone: true, since: m.Time, at: m.Mark()}, nil
	}
	var body messagestore.Body
	var err error
	switch m.Type {
	case TypeReserved:
		body, err = decode[ReservedMessage](m)
	case TypeExtended:
		body, err = decode[Extended](m)
	case TypeWaiting:
		body, err = decode[Waiting](m)
	case TypeReleased:
		body, err = decode[Released](m)
	case TypeConfirmed:
		body, err = decode[Confirmed](m)
	default:
		return nil, corrupt("a message of the type %.80q is none of an intent's", m.Type)
	}
	if err != nil {
		return nil, corrupt("%v", err)
	}
	if r, ok := body.(ReservedMessage); ok && (r.After < 0 || r.After >= maxToken) {
		return nil, corrupt("after: %d is no fencing token", r.After)
	}
	if w, ok := body.(Waiting); ok {
		if w.At > maxToken || w.At < -maxToken {
			return nil, corrupt("at: %d is no time", w.At)
		}
		if w.Of < 0 || w.Of >= m.Position {
			return nil, corrupt("of: %d is no position before it", int64(w.Of))
		}
	}
	s := granted(body, written, m.Metadata)
	s.at.ID = m.ID
	switch {
	case sessionRule(s.Session) != "":
		return nil, corrupt("session: %s", sessionRule(s.Session))
	case s.token < 1 || s.token > maxToken:
		return nil, corrupt("token: %d is no fencing token", s.token)
	case s.Attempt < 1:
		return nil, corrupt("attempt: %d is less than 1", s.Attempt)
	case s.TTL < minTTL.Milliseconds() || s.TTL > maxTTL.Milliseconds():
		return nil, corrupt("ttl: %d ms is not between %v and %v", s.TTL, minTTL, maxTTL)
	case s.Content == "":
		return nil, corrupt("content: there is none")
	case len(s.Line) > maxLine:
		return nil, corrupt("line: %d sessions are more than %d", len(s.Line), maxLine)
	}
	return &s, nil
}

func decode[T messagestore.Body](m *messagestore.Message) (messagestore.Body, error) {
	body, err := messagestore.Decode[T](m)
	return body, err
}

// sessionRule returns the rule that a session breaks, or "".
func sessionRule(session string) string {
	switch {
	case session == "":
		return "it is empty"
	case len(session) > maxSession:
		return fmt.Sprintf("%d bytes are too long: at most %d", len(session), maxSession)
	}
	return textRule(session)
}

// textRule returns the rule that a text breaks which operators will read, or "".
func textRule(text string) string {
	if !utf8.ValidString(text) {
		return "not valid UTF-8"
	}
	for i, r := range text {
		if r < ' ' || r >= 0x7F && r < 0xA0 || r == '\u2028' || r == '\u2029' {
			return fmt.Sprintf("control character %U at byte %d", r, i)
		}
	}
	return ""
}

// encodeResult returns result as JSON, nil for none.
func encodeResult(result any) (json.RawMessage, error) {
	if result == nil {
		return nil, nil
	}
	raw, err := exactjson.Marshal(result)
	if err != nil {
		return nil, messagestore.NewInvalidError("result", nil, fmt.Sprintf("it does not encode: %v", err))
	}
	if len(raw) > maxResult {
		return nil, messagestore.NewInvalidError("result", raw, fmt.Sprintf("at most %d bytes", maxResult))
	}
	if string(raw) == "null" {
		return nil, nil
	}
	return raw, nil
}
