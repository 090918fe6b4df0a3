package intentlog

import (
	"fmt"
	"slices"
	"time"
)

// TookEarly reports whether the step grants an intent before the lease in before was over, by the
// times at which the store wrote them. That is not an error if the store's clock was set back, or
// if a waiter had seen no sign of the holder for the whole TTL.
func (s *State) TookEarly(before *State) bool {
	return s.Type == TypeReserved && !before.Done() && s.Place.Time.Before(before.Until())
}

const (
	ruleTransition = "transition"
	ruleToken      = "token"
	ruleAttempt    = "attempt"
	ruleGrant      = "grant"
	ruleLine       = "line"
)

// A Violation is a rule that a step breaks.
type Violation struct {
	// Rule is the name of the broken rule:
	//
	//	message     a message is an intent's: see [Read]
	//	transition  a step may follow the one before it; nothing follows a result
	//	token       the tokens of a key rise, and a grant keeps its own
	//	attempt     grants are counted from 1
	//	grant       session, content and TTL are the same from a grant to its end
	//	line        a lease that is taken leaves the rest of the line in its order
	Rule string

	Expected string
	Found    string
}

// Violations returns the rules that s breaks as the step after before. Before is nil for the first
// message in the stream: if the beginning was trimmed there is nothing to compare. Violations uses
// no clock: see [State.TookEarly].
func (s *State) Violations(before *State) []Violation {
	c := comparison{before: before, step: s}
	switch {
	case before != nil && before.Done() && !s.Deleted:
		c.broken(ruleTransition, "nothing after the result", s.Type)
	case s.Deleted || before == nil && s.Place.Position != 0:
	case before == nil:
		c.first()
	case s.Type == TypeReserved:
		c.granted()
	default:
		c.continued()
	}
	return c.found
}

// A comparison finds the rules that a step breaks.
type comparison struct {
	before, step *State
	found        []Violation
}

func (c *comparison) broken(rule, expected, found string) {
	c.found = append(c.found, Violation{rule, expected, found})
}

func (c *comparison) first() {
	s := c.step
	switch {
	case s.Type != TypeReserved:
		c.broken(ruleTransition, "Reserved at the beginning", s.Type)
	case s.Attempt != 1:
		c.broken(ruleAttempt, "attempt 1", fmt.Sprint(s.Attempt))
	case s.After != 0:
		c.broken(ruleToken, "no token before the first", fmt.Sprint(s.After))
	case len(s.Line) > 0:
		c.broken(ruleLine, "no line", fmt.Sprintf("%q", s.Line))
	}
}

// granted compares a lease with the one before it.
func (c *comparison) granted() {
	before, s := c.before, c.step
	if s.Token <= before.Token || s.After != before.Token {
		c.broken(ruleToken, fmt.Sprintf("a token above %d, and granted after it", before.Token), fmt.Sprintf("%d, granted after %d", s.Token, s.After))
	}
	if s.Attempt != before.Attempt+1 {
		c.broken(ruleAttempt, fmt.Sprintf("attempt %d", before.Attempt+1), fmt.Sprint(s.Attempt))
	}
	if !before.Released && s.Content != before.Content {
		c.broken(ruleGrant, "the content of a lease that was not released, "+before.Content, s.Content)
	}
	var rest []string
	if i := slices.Index(before.Line, s.Session); i >= 0 {
		rest = before.Line[i+1:]
	}
	if !slices.Equal(s.Line, rest) {
		c.broken(ruleLine, fmt.Sprintf("the line after %.80q, %q", s.Session, rest), fmt.Sprintf("%q", s.Line))
	}
}

// continued compares a step of the existing lease.
func (c *comparison) continued() {
	before, s := c.before, c.step
	if before.Released && s.Type != TypeWaiting {
		c.broken(ruleTransition, "Reserved or Waiting after a release", s.Type)
	}
	if s.Token != before.Token {
		c.broken(ruleToken, fmt.Sprint(before.Token), fmt.Sprint(s.Token))
	}
	if s.Attempt != before.Attempt {
		c.broken(ruleAttempt, fmt.Sprintf("attempt %d", before.Attempt), fmt.Sprint(s.Attempt))
	}
	if s.Session != before.Session || s.Content != before.Content || s.TTL != before.TTL {
		c.broken(ruleGrant, grantText(before), grantText(s))
	}
	switch s.Type {
	case TypeWaiting:
		since := before.Since.Truncate(time.Microsecond)
		isSetBack := s.Since.Before(since) // the clock was ahead
		if s.Released != before.Released || s.Of != before.Of || s.Since.After(since) {
			c.broken(ruleTransition, leaseText(before), leaseText(s))
		}
		if !stood(before.Line, s.Line) && (!isSetBack || !slices.Equal(before.Line, s.Line)) {
			c.broken(ruleLine, fmt.Sprintf("one session more at the end of %q, or fewer in that order", before.Line), fmt.Sprintf("%q", s.Line))
		}
	case TypeConfirmed:
		if len(s.Line) > 0 {
			c.broken(ruleLine, "no line", fmt.Sprintf("%q", s.Line))
		}
	default:
		if !slices.Equal(s.Line, before.Line) {
			c.broken(ruleLine, fmt.Sprintf("%q", before.Line), fmt.Sprintf("%q", s.Line))
		}
	}
}

func grantText(s *State) string {
	return fmt.Sprintf("session %.80q, content %s, TTL %v", s.Session, s.Content, s.Lasts())
}

func leaseText(s *State) string {
	text := "a lease from "
	if s.Released {
		text = "released at "
	}
	return fmt.Sprintf("%s%s, position %d", text, s.Since.UTC().Format("2006-01-02T15:04:05.000000Z"), s.Of)
}

// stood reports whether a session joined the end of a line, or some sessions left it.
func stood(before, after []string) bool {
	if len(after) == len(before)+1 {
		return slices.Equal(before, after[:len(before)])
	}
	stay := after
	for _, session := range before {
		if len(stay) > 0 && stay[0] == session {
			stay = stay[1:]
		}
	}
	return len(after) < len(before) && len(stay) == 0
}
