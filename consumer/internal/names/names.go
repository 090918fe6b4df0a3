// Package names derives the streams of a consumer from its category and name, and checks
// that they have room.
package names

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Consumer is the identity of a consumer: the category that it reads, and its name.
type Consumer struct {
	Category messagestore.Category
	Name     string
}

// Ledger returns the stream of the consumer's generations.
func (c Consumer) Ledger() messagestore.StreamName {
	return Positions(c.Category).Stream(c.Name)
}

// Checkpoints returns the stream of the checkpoints of one generation.
func (c Consumer) Checkpoints(generation messagestore.Version) messagestore.StreamName {
	return c.Ledger().With(strconv.FormatInt(int64(generation), 10))
}

// DeadLetter returns the stream of the dead letter for the message with an id.
func (c Consumer) DeadLetter(id uuid.UUID) messagestore.StreamName {
	return DeadLetters(c.Category).Stream(c.Name).With(id.String())
}

// Requests returns the stream of the requests to redrive.
func (c Consumer) Requests() messagestore.StreamName {
	return DeadLetters(c.Category).Stream(c.Name).With("requests")
}

// Positions returns the category in which the consumers of category keep their positions.
func Positions(category messagestore.Category) messagestore.Category {
	return category.WithType("position")
}

// DeadLetters returns the category of the dead letters of the consumers of category.
func DeadLetters(category messagestore.Category) messagestore.Category {
	return category.WithType("deadLetter")
}

// Wrap names the consumer in an error.
func (c Consumer) Wrap(err error) error {
	return fmt.Errorf("consumer %s of %s: %w", Shown(c.Name), Shown(string(c.Category)), err)
}

// Shown returns the name of a consumer or a category as errors show it: as it is, or quoted and shortened if it is not
// a valid one.
func Shown(name string) string {
	if messagestore.Category(name).Validate() == nil {
		return name
	}
	return fmt.Sprintf("%.80q", name)
}

// Validate returns an error that matches [messagestore.ErrInvalid] for each rule that the
// category or the name breaks.
func (c Consumer) Validate() error {
	wrong := c.Category.Validate()
	rule := c.nameRule()
	if rule == "" && wrong == nil {
		rule = c.roomRule()
	}
	if rule != "" {
		wrong = errors.Join(wrong, messagestore.NewInvalidError("consumer name", c.Name, rule))
	}
	return wrong
}

// nameRule returns the rule that the name breaks, or "".
func (c Consumer) nameRule() string {
	if c.Name == "" {
		return "it is empty"
	}
	if strings.ContainsAny(c.Name, "-+:") {
		return "it holds a dash, plus sign or colon"
	}
	// A name without those characters follows the rules of a category.
	if err := messagestore.Category(c.Name).Validate(); err != nil {
		if wrong, ok := errors.AsType[*messagestore.InvalidError](err); ok {
			return strings.Replace(wrong.Rule, "the category holds", "it holds", 1)
		}
		return err.Error()
	}
	return ""
}

// roomRule returns that the streams of the consumer have no room, or "". The name of a dead letter's stream is the
// longest of them.
func (c Consumer) roomRule() string {
	if n := len(c.DeadLetter(uuid.Max)) - text.MaxNameBytes; n > 0 {
		return fmt.Sprintf("%d bytes too long for the streams of category %s that are named after it", n, c.Category)
	}
	return ""
}
