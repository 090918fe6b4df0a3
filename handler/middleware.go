package handler

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A Middleware wraps the handling of every message, except messages that the mux ignores. A wrapper
// around the mux itself would hide its types, its checks and its mistakes from a consumer.
type Middleware func(next HandlerFunc) HandlerFunc

// Use puts middleware around all functions of the mux, registered before or after, and around the
// error for a message of a type without a function. The first middleware is the outermost. A nil
// middleware is a mistake, and so is a call of Use after the mux was used.
func (mux *Mux) Use(middleware ...Middleware) {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	for _, m := range middleware {
		switch {
		case m == nil:
			mux.mistake(invalid("middleware", "must not be nil"))
		case mux.sealed:
			mux.mistake(invalid("middleware", "must be registered before the mux is used"))
		default:
			mux.middleware = append(mux.middleware, m)
		}
	}
}

// Log returns a middleware that logs one debug event for each message: type, stream, position, how
// long it took, and the error if there was one.
func Log(log logger.Logger) Middleware {
	return func(next HandlerFunc) HandlerFunc {
		return func(ctx context.Context, m *messagestore.Message) error {
			start := time.Now()
			err := next(ctx, m)
			event := log.Debug().Str("type", m.Type).Str("stream", string(m.Stream)).Int64("position", int64(m.Position)).
				Dur("took", time.Since(start))
			if err != nil {
				event.Str("error", text.Log(err))
			}
			event.Msg("handle")
			return err
		}
	}
}

// Timeout returns a middleware that ends a function's context after d, which must be more than 0.
// If a function ignores its context, it goes on: a message is never in flight twice at once.
func Timeout(d time.Duration) Middleware {
	return func(next HandlerFunc) HandlerFunc {
		return func(ctx context.Context, m *messagestore.Message) error {
			if d <= 0 {
				return invalid("timeout", fmt.Sprintf("must be more than 0s, and is %v", d))
			}
			limited, cancel := context.WithTimeout(ctx, d)
			defer cancel()
			err := next(limited, m)
			if err != nil && limited.Err() != nil && ctx.Err() == nil {
				return fmt.Errorf("timeout of %v: %w", d, err)
			}
			return err
		}
	}
}

func wrapped(wrap Middleware, next HandlerFunc) (f HandlerFunc, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: %w", invalid("middleware", "must not panic when it wraps a handler"), calling.Recovered(value))
		}
	}()
	if f = wrap(next); f == nil {
		err = invalid("middleware", "must not return nil")
	}
	return f, err
}
