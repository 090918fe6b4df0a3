package intentlog

import (
	"fmt"

	"github.com/dibs-go/dibs/messagestore"
)

// A Checker checks the intents of a category, told its messages in their order. It keeps the last
// step of each intent, and of a done intent the token alone.
type Checker struct {
	// Found is called with each violation, and the place of the message that breaks the rule.
	Found func(v Violation, at messagestore.Mark)

	Messages int64

	// Early counts the leases that were taken before their end by the messages' times. That is no
	// violation: a store's clock may have been set back, and a waiter trusts its own.
	Early int64

	open map[messagestore.StreamName]*State
	done map[messagestore.StreamName]int64 // the tokens; 0 for a tombstone
}

// Intents returns how many intents there are.
func (c *Checker) Intents() int64 { return int64(len(c.open) + len(c.done)) }

// Done returns how many of them are confirmed, or deleted.
func (c *Checker) Done() int64 { return int64(len(c.done)) }

// Next checks the next message of the category.
func (c *Checker) Next(m *messagestore.Message) {
	if c.open == nil {
		c.open, c.done = map[messagestore.StreamName]*State{}, map[messagestore.StreamName]int64{}
	}
	c.Messages++
	token, done := c.done[m.Stream]
	before := c.open[m.Stream]
	s, err := Read(m)
	switch {
	case done && m.Position != 0 && !s.Deleted:
		c.violation(s, Violation{Rule: "transition", Expected: "nothing after the result", Found: s.Type})
		return // a later message is compared with the result too
	case err != nil:
		c.violation(s, Violation{Rule: "message", Expected: "a message of an intent", Found: err.Error()})
		if before == nil {
			c.open[m.Stream] = &State{}
		}
		return
	case done && s.Token <= token && !s.Deleted: // it was removed, key and all, while the category was read
		c.violation(s, Violation{Rule: "token", Expected: fmt.Sprintf("a token above %d", token), Found: fmt.Sprint(s.Token)})
	case done || before == nil:
		c.violation(s, s.Violations(nil)...)
	case before.Type == "": // the message before it is no intent's
	case !s.Deleted && s.Place.Position != before.Place.Position+1: // messages before it were trimmed while the category was read
		if s.Token < before.Token || s.Attempt < before.Attempt {
			c.violation(s, Violation{Rule: "token", Expected: fmt.Sprintf("a token from %d on", before.Token), Found: fmt.Sprint(s.Token)})
		}
	default:
		c.violation(s, s.Violations(before)...)
		if s.TookEarly(before) {
			c.Early++
		}
	}
	if s.Done() {
		delete(c.open, m.Stream)
		c.done[m.Stream] = s.Token
		return
	}
	delete(c.done, m.Stream)
	s.Result, s.Reason, s.By = nil, "", ""
	c.open[m.Stream] = s
}

func (c *Checker) violation(at *State, all ...Violation) {
	for _, v := range all {
		c.Found(v, at.Place)
	}
}
