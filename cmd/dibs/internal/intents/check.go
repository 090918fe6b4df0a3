package intents

import (
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation/intent"
)

// The rules of a history.
const (
	RuleMessage    = "message"    // a message is an intent's
	RuleTransition = "transition" // a step may follow the one before it; nothing follows a result
	RuleToken      = "token"      // the tokens of a key rise, and a grant keeps its own
	RuleAttempt    = "attempt"    // grants are counted from 1
	RuleGrant      = "grant"      // session, content and TTL are the same from a grant to its end
	RuleLine       = "line"       // a lease that is taken leaves the rest of the line in its order
)

// A Violation is a message that breaks a rule.
type Violation struct {
	Rule     string
	Place    messagestore.Mark
	Expected string
	Found    string
}

// A Checker checks the intents of a category, told its messages in their order. It keeps the last
// step of each intent, and of one that is done the token alone.
type Checker struct {
	// Found is called with each violation.
	Found func(Violation)

	Messages int64

	// Early counts the leases that were taken before their end by the messages' times. That is no
	// violation: a store's clock may have been set back, and a waiter trusts its own.
	Early int64

	open map[messagestore.StreamName]*Step
	done map[messagestore.StreamName]int64 // the tokens; 0 for a tombstone
}

// Intents returns how many intents there are.
func (c *Checker) Intents() int64 { return int64(len(c.open) + len(c.done)) }

// Done returns how many of them are confirmed, or deleted.
func (c *Checker) Done() int64 { return int64(len(c.done)) }

// Next checks the next message of the category.
func (c *Checker) Next(m *messagestore.Message) {
	if c.open == nil {
		c.open, c.done = map[messagestore.StreamName]*Step{}, map[messagestore.StreamName]int64{}
	}
	c.Messages++
	token, done := c.done[m.Stream]
	before := c.open[m.Stream]
	s, err := Read(m)
	switch {
	case done && m.Position != 0 && !s.Deleted:
		c.violation(RuleTransition, s.Place, "nothing after the result", s.Type)
		return // a later message is compared with the result too
	case err != nil:
		c.violation(RuleMessage, s.Place, "a message of an intent", err.Error())
		if before == nil {
			c.open[m.Stream] = &Step{}
		}
		return
	case done && s.Token <= token && !s.Deleted: // it was removed, key and all, while the category was read
		c.violation(RuleToken, s.Place, fmt.Sprintf("a token above %d", token), fmt.Sprint(s.Token))
	case done || before == nil:
		c.first(&s)
	case before.Type == "", s.Deleted: // the message before it is no intent's
	case s.Place.Position != before.Place.Position+1: // messages before it were trimmed while the category was read
		if s.Token < before.Token || s.Attempt < before.Attempt {
			c.violation(RuleToken, s.Place, fmt.Sprintf("a token from %d on", before.Token), fmt.Sprint(s.Token))
		}
	case s.Type == intent.TypeReserved:
		c.granted(before, &s)
	default:
		c.same(before, &s)
	}
	if s.Done() {
		delete(c.open, m.Stream)
		c.done[m.Stream] = s.Token
		return
	}
	delete(c.done, m.Stream)
	s.Result, s.Reason, s.By = nil, "", ""
	c.open[m.Stream] = &s
}

func (c *Checker) violation(rule string, at messagestore.Mark, expected, found string) {
	c.Found(Violation{rule, at, expected, found})
}

// first checks the first message of an intent. Of one whose beginning was trimmed there is nothing
// to compare.
func (c *Checker) first(s *Step) {
	if s.Place.Position != 0 || s.Deleted {
		return
	}
	switch {
	case s.Type != intent.TypeReserved:
		c.violation(RuleTransition, s.Place, "Reserved at the beginning", s.Type)
	case s.Attempt != 1:
		c.violation(RuleAttempt, s.Place, "attempt 1", fmt.Sprint(s.Attempt))
	case s.After != 0:
		c.violation(RuleToken, s.Place, "no token before the first", fmt.Sprint(s.After))
	case len(s.Line) > 0:
		c.violation(RuleLine, s.Place, "no line", fmt.Sprintf("%q", s.Line))
	}
}

// granted checks a lease that came after another.
func (c *Checker) granted(before, s *Step) {
	if s.Token <= before.Token || s.After != before.Token {
		c.violation(RuleToken, s.Place, fmt.Sprintf("a token above %d, and granted after it", before.Token), fmt.Sprintf("%d, granted after %d", s.Token, s.After))
	}
	if s.Attempt != before.Attempt+1 {
		c.violation(RuleAttempt, s.Place, fmt.Sprintf("attempt %d", before.Attempt+1), fmt.Sprint(s.Attempt))
	}
	if !before.Free && s.Content != before.Content {
		c.violation(RuleGrant, s.Place, "the content of a lease that nobody released, "+before.Content, s.Content)
	}
	var rest []string
	if i := slices.Index(before.Line, s.Session); i >= 0 {
		rest = before.Line[i+1:]
	}
	if !slices.Equal(s.Line, rest) {
		c.violation(RuleLine, s.Place, fmt.Sprintf("the line after %.80q, %q", s.Session, rest), fmt.Sprintf("%q", s.Line))
	}
	if s.Place.Time.Before(before.Until()) {
		c.Early++
	}
}

// same checks a step of the lease that was there.
func (c *Checker) same(before, s *Step) {
	if before.Free && s.Type != intent.TypeWaiting {
		c.violation(RuleTransition, s.Place, "Reserved or Waiting after a release", s.Type)
	}
	if s.Token != before.Token {
		c.violation(RuleToken, s.Place, fmt.Sprint(before.Token), fmt.Sprint(s.Token))
	}
	if s.Attempt != before.Attempt {
		c.violation(RuleAttempt, s.Place, fmt.Sprintf("attempt %d", before.Attempt), fmt.Sprint(s.Attempt))
	}
	if s.Session != before.Session || s.Content != before.Content || s.TTL != before.TTL {
		c.violation(RuleGrant, s.Place, grantText(before), grantText(s))
	}
	switch s.Type {
	case intent.TypeWaiting:
		if s.Free != before.Free || s.Of != before.Of || !s.Since.Equal(before.Since.Truncate(time.Microsecond)) {
			c.violation(RuleTransition, s.Place, leaseText(before), leaseText(s))
		}
		if !stood(before.Line, s.Line) {
			c.violation(RuleLine, s.Place, fmt.Sprintf("one session more at the end of %q, or one less", before.Line), fmt.Sprintf("%q", s.Line))
		}
	case intent.TypeConfirmed:
		if len(s.Line) > 0 {
			c.violation(RuleLine, s.Place, "no line", fmt.Sprintf("%q", s.Line))
		}
	default:
		if !slices.Equal(s.Line, before.Line) {
			c.violation(RuleLine, s.Place, fmt.Sprintf("%q", before.Line), fmt.Sprintf("%q", s.Line))
		}
	}
}

func grantText(s *Step) string {
	return fmt.Sprintf("session %.80q, content %s, TTL %v", s.Session, s.Content, s.Lease())
}

func leaseText(s *Step) string {
	text := "a lease from "
	if s.Free {
		text = "released at "
	}
	return fmt.Sprintf("%s%s, position %d", text, s.Since.UTC().Format("2006-01-02T15:04:05.000000Z"), s.Of)
}

// stood reports whether a session came to the end of a line, or one left it.
func stood(before, after []string) bool {
	if len(after) == len(before)+1 {
		return slices.Equal(before, after[:len(before)])
	}
	if len(after) != len(before)-1 {
		return false
	}
	for i := range before {
		if i == len(after) || before[i] != after[i] {
			return slices.Equal(before[i+1:], after[i:])
		}
	}
	return false
}
