package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
)

// A Start says where a consumer without a checkpoint begins. The zero value starts like
// [FromStart], but the consumer logs a warning about the messages that it finds there.
type Start struct {
	kind startKind
	at   time.Time
}

type startKind int

const (
	startUnset startKind = iota
	startFirst
	startEnd
	startAt
)

// FromStart begins at the first message of the category.
func FromStart() Start { return Start{kind: startFirst} }

// FromEnd begins with the messages that are written after the consumer's first start. Use it if the
// handler must not be called for the past, for example because it sends mail.
func FromEnd() Start { return Start{kind: startEnd} }

// From begins at the first message that was written at t or later, by the store's clock: see
// [messagestore.Store.PositionAt]. It finds the place by bisection and reads few messages.
func From(t time.Time) Start { return Start{kind: startAt, at: t} }

// String returns "the beginning", "the end" or the time.
func (s Start) String() string {
	switch s.kind {
	case startEnd:
		return "the end"
	case startAt:
		return s.at.UTC().Format(time.RFC3339Nano)
	default:
		return "the beginning"
	}
}

// mistake returns an error if no message can have the time.
func (s Start) mistake() error {
	if s.kind == startAt && s.at.IsZero() {
		return invalid("start", s.at, "must be a time, or FromStart")
	}
	return nil
}

// maxStartCount bounds the messages of a category that are counted for the log.
const maxStartCount = 1000

// locate finds the position of a consumer without a checkpoint. The first member that writes it
// decides for all.
func (c *Consumer) locate(ctx context.Context) (messagestore.GlobalPosition, error) {
	switch c.config.Start.kind {
	case startEnd:
		return c.store.End(ctx, c.id.Category)
	case startAt:
		return c.store.PositionAt(ctx, c.id.Category, c.config.Start.at)
	default:
		return 0, nil
	}
}

// sayNew logs where a new consumer begins. It ignores an error of the store, because the run will
// get it again.
func (c *Consumer) sayNew(ctx context.Context, p *checkpoint.Place, catchUp bool) {
	ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
	defer cancel()
	left, err := c.store.Count(ctx, messagestore.CategoryQuery{Category: c.id.Category, From: p.Position, Limit: maxStartCount + 1})
	if err != nil {
		return
	}
	event := c.config.Logger.Info()
	if left > 0 && c.config.Start.kind == startUnset && !catchUp {
		event = c.config.Logger.Warn() // its handler may send mail
	}
	messages := "1 message"
	if left != 1 {
		messages = fmt.Sprintf("%d messages", left)
	}
	if left > maxStartCount {
		messages = fmt.Sprintf("more than %d messages", maxStartCount)
		if end, err := c.store.End(ctx, c.id.Category); err == nil {
			event.Int64("head", int64(end-1))
		}
	}
	event.Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Int64("position", int64(p.Position)).
		Msgf("new consumer starts from %s, with %s to handle: see Config.Start", c.config.Start, messages)
}
