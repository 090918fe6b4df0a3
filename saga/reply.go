package saga

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// Reply returns the write of a reply to an [Ask] of a saga, for you to write together with your own
// messages. The output has the type of the step's output. The first reply counts, and only until
// the step's timeout. If a reply comes early, the step finds it when it begins. Later replies
// change nothing. A reply goes to the attempt that waits when it is written, unless it names
// another one: [Answer] names the attempt that sent the command.
//
// The write is a version conflict if the saga does not exist. If the id, the step or the output is
// invalid, the store refuses the write with an error that matches [messagestore.ErrInvalid].
func (s *Saga[In, Out]) Reply(id, step string, output any) messagestore.StreamWrite {
	replied, err := s.core.reply(step, output)
	return s.core.from(id, replied, err)
}

// Refuse returns the write of a refusal instead of a reply: the step has failed for good, because
// of reason. See [Saga.Reply].
func (s *Saga[In, Out]) Refuse(id, step, reason string) messagestore.StreamWrite {
	_, err := s.core.ask(step)
	if reason == "" {
		reason = "refused"
	}
	return s.core.from(id, repliedEvent{Step: step, Error: shorten(reason)}, err)
}

// An asking is an [Ask] of any type.
type asking interface{ check(output any) error }

func (c *core) ask(step string) (asking, error) {
	ask, is := c.stepOf(step).(asking)
	if !is {
		return nil, invalid("step", step, "must be an Ask of the saga")
	}
	return ask, nil
}

func (c *core) reply(step string, output any) (repliedEvent, error) {
	ask, err := c.ask(step)
	if err == nil {
		err = ask.check(output)
	}
	if err != nil {
		return repliedEvent{}, err
	}
	raw, err := encode("reply", output)
	return repliedEvent{Step: step, Output: raw}, err
}

// An answered is a [*Saga] of any types.
type answered interface{ answered() *core }

func (s *Saga[In, Out]) answered() *core {
	if s == nil {
		return nil
	}
	return s.core
}

// Answer returns a handler that replies to an [Ask] of the given [*Saga] for each message that is
// correlated with a saga, as all messages are that follow the saga's command. Use it in a consumer
// of the category to which the command's handler writes, with the saga's category as its
// Correlation. Messages of other sagas and steps are skipped. If f returns an error of
// handler.Refuse, the step is refused. The consumer treats other dispositions as package handler
// says, and after an error without one it delivers the message again. A reply to a saga that does
// not exist is parked.
func Answer[T messagestore.Body, Out any](
	to answered, step string, f func(ctx context.Context, m handler.Message[T]) (Out, error),
) handler.Handler[T] {
	var c *core
	if to != nil {
		c = to.answered()
	}
	var wrong error
	switch {
	case c == nil:
		wrong = invalid("Answer's saga", nil, "must not be nil")
	case f == nil:
		wrong = invalid("Answer's function", nil, "must not be nil")
	default:
		var zero Out
		_, wrong = c.reply(step, zero)
	}
	return handler.NewHandler(func(ctx context.Context, m handler.Message[T]) error {
		stream := m.Metadata.CorrelationStream
		named := m.Metadata.Properties.Get(stepProperty)
		if stream.Category() != c.category || stream.ID() == "" || named != "" && baseOf(named) != step {
			return handler.Skip(fmt.Sprintf("it is no reply to %s of %s", step, c.category))
		}
		asked := cmp.Or(named, step) // with its key
		attempt := 1
		if number, err := strconv.Atoi(m.Metadata.Properties.Get(attemptProperty)); err == nil {
			attempt = number
		}
		var replied repliedEvent
		out, err := f(ctx, m)
		switch {
		case err == nil:
			replied, err = c.reply(asked, out)
		case calling.DispositionOf(err).Asks(calling.Refuse):
			replied, err = repliedEvent{Step: asked, Error: textOf(err)}, nil
		}
		if err != nil {
			return err
		}
		replied.Attempt = attempt
		reply := messagestore.Follow(m.Message, replied)
		reply.ID = reservation.DeriveID(m.Message, "saga reply to "+step)
		err = c.outside(ctx, c.from(stream.CardinalID(), reply, nil))
		switch {
		case errors.Is(err, messagestore.ErrIDConflict):
			return nil // an earlier delivery has replied
		case errors.Is(err, messagestore.ErrVersionConflict):
			return handler.Park(err)
		}
		return err
	}, nil, wrong)
}
