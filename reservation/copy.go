package reservation

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// Copy returns a handler that handles each key's command once, with next.
//
// A command is copied to the stream of its key: a reserver named "accounts" copies a command with
// key AAA in "account:command-123" to "account:command+reservation+accounts-123+AAA". The copies
// have their own category ([Reserver.Category]). Run a consumer for it with the same name and mux
// as the commands' consumer: it calls next with each copy. If no consumer has ever read the
// category, the commands' consumer logs a warning at its first copy:
//
//	consumer.New(store, commands, "accounts", mux, nil)
//	consumer.New(store, once.Category(commands), "accounts", mux, nil)
//
// A second command with the same key is a duplicate and needs no handling; a command with other
// content is a [*KeyReusedError]. Commands are compared as a whole, or by their method
// ReservationContent: see [New].
//
// Like every message, the copy is delivered at least once; the package comment says how next makes
// its effect repeatable. Copies with one cardinal id are delivered in their own order, and not in
// the order of commands without a copy.
//
// If a message among the copies is not a copy, it is parked with a [*NoReservationError].
func Copy[T messagestore.Body](r *Reserver, key func(T) string, next handler.Func[T]) handler.Handler[T] {
	err := missing("Copy", r, key == nil, "function", next == nil) // a mistake that the mux reports
	return handler.NewHandler(func(ctx context.Context, m handler.Message[T]) error {
		if err := r.serves(ctx, m.Message); err != nil {
			return err
		}
		if r.has(m.Stream.Category()) {
			switch {
			case !r.isCopy(m.Message):
				return &NoReservationError{m.Stream, m.Message}
			case isHandled(m.Message): // by Inline, before the handler changed to Copy
				return r.ofOther(ctx, m.Message)
			}
			return next(ctx, m)
		}
		c, err := r.copyOf(ctx, m.Message, key(m.Body), digestOf(m))
		if err != nil {
			return fmt.Errorf("reserve for %s: %w", m, err)
		}
		c.body.Metadata.Local[handledProperty] = false
		result, err := r.initial(ctx, c)
		if err != nil {
			return err
		}
		r.readBy(ctx, c.stream.Category())
		return result.Err()
	}, r.check, err)
}

// missing returns the error for a nil or invalid argument of a function that makes handlers, or
// nil.
func missing(name string, r *Reserver, noKey bool, function string, noFunction bool) error {
	var wrong []error
	add := func(field string) { wrong = append(wrong, messagestore.NewInvalidError(field, nil, "must not be nil")) }
	if r == nil {
		add(name + "'s reserver")
	} else if err := r.made(); err != nil {
		wrong = append(wrong, err)
	}
	if noKey {
		add(name + "'s key")
	}
	if noFunction {
		add(name + "'s " + function)
	}
	return errors.Join(wrong...)
}
