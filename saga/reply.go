package saga

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// Reply returns the write of a reply to an [Ask] of a saga, for the caller to write with the messages that
// it belongs to. The output has the type of the step's output. The first reply counts, and only until the
// step's timeout. A step that begins later finds a reply that came early. A second reply changes nothing,
// nor does a reply after the end of the step. It is to the attempt that waits when it is written: [Answer] names the
// attempt whose command it answers.
//
// The write is a version conflict if there is no such saga. If the id, the step or the output is invalid, the
// write is refused with an error that matches [messagestore.ErrInvalid].
func (s *Saga[In, Out]) Reply(id, step string, output any) messagestore.StreamWrite {
	replied, err := s.core.reply(step, output)
	return s.core.from(id, replied, err)
}

// Refuse returns the write of a refusal in place of a reply: the step has failed for good, because of reason. See
// [Saga.Reply].
func (s *Saga[In, Out]) Refuse(id, step, reason string) messagestore.StreamWrite {
	_, err := s.core.ask(step)
	if reason == "" {
		reason = "refused"
	}
	return s.core.from(id, event.Replied{Step: step, Error: shorten(reason)}, err)
}

// An asking is an [Ask] of any type.
type asking interface{ check(output any) error }

func (c *core) ask(step string) (asking, error) {
	ask, is := c.stepOf(step).(asking)
	if !is {
		return nil, invalid("step", step, "the saga has no Ask of this name")
	}
	return ask, nil
}

func (c *core) reply(step string, output any) (event.Replied, error) {
	ask, err := c.ask(step)
	if err == nil {
		err = ask.check(output)
	}
	if err != nil {
		return event.Replied{}, err
	}
	raw, err := encode("reply", output)
	return event.Replied{Step: step, Output: raw}, err
}

// An answered is a [*Saga] of any types.
type answered interface{ answered() *core }

func (s *Saga[In, Out]) answered() *core {
	if s == nil {
		return nil
	}
	return s.core
}

// Answer returns a handler that makes a reply to an [Ask] of the given [*Saga] out of each message that is correlated with a
// saga, as every message is that follows the saga's command. It is for a consumer of the category in which
// the command's handler writes, with the Correlation of the saga's category. Messages of other sagas and
// steps are skipped. An error of f by handler.Refuse refuses the step, and with any other disposition the
// consumer does as package handler says; after another error the message is delivered again. A reply to a
// saga that is not there is parked.
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
		wrong = invalid("Answer's saga", nil, "it is nil")
	case f == nil:
		wrong = invalid("Answer's function", nil, "it is nil")
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
		var replied event.Replied
		out, err := f(ctx, m)
		switch {
		case err == nil:
			replied, err = c.reply(asked, out)
		case failure.DispositionOf(err).Asks(failure.Refuse):
			replied, err = event.Replied{Step: asked, Error: textOf(err)}, nil
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
