package reservation

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
)

// attempts bounds how often Inline calls decide for one delivery.
const attempts = 5

// Inline returns a handler that handles each key's command once. It writes the streams that decide
// returns together with the reservation, all or nothing. This needs no second hop, and writes no
// effect twice.
//
// decide is not called if the key is taken. If another command takes the key while decide runs, the
// writes of this one are dropped. If a stream that decide wrote to has changed meanwhile, decide is
// called again, up to five times, and must read again; then the version conflict is returned. An
// error of decide is returned, unless another command has taken the reservation by then: then its
// outcome is returned instead. Other effects of decide may happen more than once. If decide returns
// no writes, the command is finished. The writes may include an [Answer].
//
// The reservation is a copy of the command, like the one that [Copy] makes, but says that it was
// handled, so that a handler of Copy skips it. A handler may change from Inline to Copy at any
// time, and from Copy to Inline once all copies are handled.
func Inline[T messagestore.Body](
	r *Reserver, key func(T) string,
	decide func(ctx context.Context, m handler.Message[T]) ([]messagestore.StreamWrite, error),
) handler.Handler[T] {
	err := missing("Inline", r, key == nil, "function", decide == nil) // a mistake that the mux reports
	return handler.NewHandler(func(ctx context.Context, m handler.Message[T]) error {
		c, todo, err := claimOf(ctx, r, m, key)
		if !todo || err != nil {
			return err
		}
		result, err := r.inline(ctx, c, func() ([]messagestore.StreamWrite, error) { return decide(ctx, m) })
		if err != nil {
			return err
		}
		return result.Err()
	}, r.check, err)
}

func (r *Reserver) inline(ctx context.Context, plain claim, decide func() ([]messagestore.StreamWrite, error)) (Result, error) {
	for attempt := 1; ; attempt++ {
		if result, taken, err := r.taken(ctx, plain); taken || err != nil {
			return result, err
		}
		c, writes, err := decided(plain, decide)
		if err != nil {
			if result, taken, lookErr := r.taken(ctx, plain); taken && lookErr == nil {
				return result, nil
			}
			return Result{}, err
		}
		write := r.store.TryWriteStreams
		if attempt == attempts {
			write = r.writeStreams // whose conflict is returned
		}
		written, met, err := write(ctx, writes...)
		switch {
		case met != nil && met.Last[0] != nil:
			return r.lost(ctx, c, met.Last[0])
		case met != nil:
			continue // another stream has moved on
		case err == nil:
			return r.won(ctx, c, written[0]), nil
		}
		moved, ok := errors.AsType[*messagestore.VersionConflictError](err)
		if !ok || moved.Stream == c.stream {
			return r.refused(ctx, c, err)
		}
		if attempt == attempts {
			return Result{}, fmt.Errorf("reserve %s: decided %d times: %w", c.stream, attempts, err)
		}
	}
}

// decided returns the claim of one attempt, with its writes.
func decided(c claim, decide func() ([]messagestore.StreamWrite, error)) (claim, []messagestore.StreamWrite, error) {
	writes, err := decide()
	if err != nil {
		return claim{}, nil, err
	}
	answer, writes, err := keys.Split(writes)
	if err != nil {
		return claim{}, nil, fmt.Errorf("reserve %s: %w", c.stream, err)
	}
	c = c.with(answer, writes)
	return c, append([]messagestore.StreamWrite{c.write()}, writes...), nil
}

// taken returns the outcome of a claim if its stream already exists.
func (r *Reserver) taken(ctx context.Context, c claim) (result Result, taken bool, err error) {
	winner, err := r.begin(ctx, c.stream)
	if err != nil {
		return Result{}, false, fmt.Errorf("reserve %s: %w", c.stream, err)
	}
	if winner == nil {
		return Result{}, false, nil
	}
	result, err = r.compare(ctx, c, winner)
	return result, err == nil, err
}
