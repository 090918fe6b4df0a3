package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/internal/queuing"
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

// Parked returns the queue of the consumer's parked messages. A queue's name is unique in a store,
// and contains no plus sign.
func (c Consumer) Parked() queuing.Queue {
	return queuing.Queue{Name: queuing.ParkedPrefix(c.Category) + c.Name, Category: c.Category}
}

// ByOperator begins the error of a message that was parked at an operator's request.
const ByOperator = "parked by an operator: "

// Positions returns the category in which the consumers of category keep their positions.
func Positions(category messagestore.Category) messagestore.Category {
	return category.WithType("position")
}

// Wrap names the consumer in an error.
func (c Consumer) Wrap(err error) error {
	return fmt.Errorf("consumer %s of %s: %w", Shown(c.Name), Shown(string(c.Category)), err)
}

// Shown returns the name of a consumer or a category for errors: unchanged if it is valid,
// otherwise quoted and shortened.
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
		return "must not be empty"
	}
	if strings.ContainsAny(c.Name, "-+:") {
		return "must not contain a dash, plus sign or colon"
	}
	// A name without those characters follows the rules for a category.
	if err := messagestore.Category(c.Name).Validate(); err != nil {
		if wrong, ok := errors.AsType[*messagestore.InvalidError](err); ok {
			return strings.Replace(wrong.Rule, "the category must not contain", "must not contain", 1)
		}
		return err.Error()
	}
	return ""
}

// roomRule returns a rule if the consumer's streams, or the queue of its parked messages, would
// have names that are too long, and otherwise "".
func (c Consumer) roomRule() string {
	if n := max(len(c.Checkpoints(math.MaxInt64)), len(c.Parked().Name)) - text.MaxNameBytes; n > 0 {
		return fmt.Sprintf("must be %d bytes shorter, for the streams of category %s that are named after it", n, c.Category)
	}
	return ""
}
