// Package intents reads the histories of intents for operators, and checks them. It shares no
// code with package intent, which writes them, but the types of the messages.
package intents

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation/intent"
)

// A Step is one message of an intent. It has the intent's whole state.
type Step struct {
	intent.Grant

	Type    string
	Place   messagestore.Mark
	Token   int64
	After   int64                // of Reserved: the token before
	Since   time.Time            // from when the lease counts; of one that was released, from when it is free
	Of      messagestore.Version // the message of that time
	Free    bool                 // it was released, and not taken since
	By      string               // the operator that released it
	Reason  string               // for which it was released
	Result  json.RawMessage      // that it was confirmed with
	Deleted bool                 // the message is the tombstone of a stream
}

// Bounds of an intent's messages.
const (
	maxToken   = 253_402_300_799_999_999 // the year 9999, in microseconds
	maxSession = 128
	maxLine    = 100
	minTTL     = 100 * time.Millisecond
	maxTTL     = 24 * time.Hour
)

// Read returns the step that m is. The error says why it is none.
func Read(m *messagestore.Message) (Step, error) {
	s := Step{Type: m.Type, Place: m.Mark(), Since: m.Time, Of: m.Position}
	if m.IsTombstone() {
		s.Deleted = true
		return s, nil
	}
	if err := s.decode(m); err != nil {
		return s, err
	}
	ttl := s.TTL > maxTTL.Milliseconds() || s.TTL < minTTL.Milliseconds()
	switch {
	case s.Session == "" || len(s.Session) > maxSession:
		return s, fmt.Errorf("a session of %d bytes", len(s.Session))
	case s.Attempt < 1:
		return s, fmt.Errorf("attempt %d", s.Attempt)
	case ttl:
		return s, fmt.Errorf("a TTL of %d ms", s.TTL)
	case s.Content == "":
		return s, fmt.Errorf("no digest of a content")
	case s.Token < 1 || s.Token > maxToken:
		return s, fmt.Errorf("token %d", s.Token)
	case len(s.Line) > maxLine:
		return s, fmt.Errorf("%d sessions in the line", len(s.Line))
	}
	return s, nil
}

func (s *Step) decode(m *messagestore.Message) error {
	switch m.Type {
	case intent.TypeReserved:
		b, err := messagestore.Decode[intent.ReservedMessage](m)
		s.Grant, s.After = b.Grant, b.After
		if s.After < 0 || s.After >= maxToken {
			return fmt.Errorf("after token %d", s.After)
		}
		s.Token = b.Token(m.Time)
		return err
	case intent.TypeExtended:
		b, err := messagestore.Decode[intent.Extended](m)
		s.Grant, s.Token = b.Grant, b.Token
		return err
	case intent.TypeWaiting:
		b, err := messagestore.Decode[intent.Waiting](m)
		s.Grant, s.Token, s.Of, s.Free, s.By, s.Reason = b.Grant, b.Token, b.Of, b.Released, b.By, b.Reason
		if b.At < -maxToken || b.At > maxToken {
			return fmt.Errorf("a lease from %d µs on", b.At)
		}
		if b.Of < 0 || b.Of >= m.Position {
			return fmt.Errorf("a lease from position %d on", b.Of)
		}
		s.Since = time.UnixMicro(b.At).UTC()
		return err
	case intent.TypeReleased:
		b, err := messagestore.Decode[intent.Released](m)
		s.Grant, s.Token, s.Free, s.By, s.Reason = b.Grant, b.Token, true, b.By, b.Reason
		return err
	case intent.TypeConfirmed:
		b, err := messagestore.Decode[intent.Confirmed](m)
		s.Grant, s.Token, s.Result = b.Grant, b.Token, b.Result
		return err
	}
	return fmt.Errorf("the type %.80q", m.Type)
}

// Done reports whether nothing may follow the step.
func (s *Step) Done() bool { return s.Deleted || s.Type == intent.TypeConfirmed }

// Lease returns how long a lease lasts without an extension.
func (s *Step) Lease() time.Duration { return time.Duration(s.TTL) * time.Millisecond }

// Until returns when the lease is over, by the store's clock.
func (s *Step) Until() time.Time {
	if s.Free {
		return s.Since
	}
	return s.Since.Add(s.Lease())
}

// ScopeAndKey returns the scope and the key that the intent in stream has. Instead of one that was
// too long for a name it returns the hash that is in its place.
func ScopeAndKey(stream messagestore.StreamName) (scope, key string) {
	readable := func(part string) string {
		if key, ok := keys.Decode(part); ok {
			return key
		}
		return part
	}
	first, second, scoped := strings.Cut(stream.ID(), "+")
	if !scoped {
		return "", readable(first)
	}
	return readable(first), readable(second)
}
