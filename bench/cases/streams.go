package cases

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// The names of writes of one stream and of several.
const (
	oneStream       = "Dibs, one stream"
	twoStreams      = "Dibs, two streams"
	twoCategories   = "Dibs, two categories"
	oppositeOrders  = "Dibs, two categories in opposite orders"
	hotStreams      = "Dibs, one of ten hot streams"
	hotStreamsCount = 10
)

// Streams returns the cases of writes to two streams, all or nothing, beside writes to one.
func Streams() []measure.Case {
	many := func(callers int, atLeast float64) measure.Case {
		return measure.Case{
			Name:       fmt.Sprintf("write/two-streams/%d-callers", callers),
			Shows:      fmt.Sprintf("Write to two streams, all or nothing, %d callers", callers),
			Contenders: streamWriters(callers),
			Goals:      []measure.Goal{{Metric: measure.Rate, Of: twoStreams, To: oneStream, AtLeast: atLeast}},
		}
	}
	return []measure.Case{many(64, 0.55), many(256, 0.42)}
}

// A pairOf makes a caller's function that writes one unit of two messages.
type pairOf func(s *dibsStore, caller int) func(context.Context) error

func streamWriters(callers int) []measure.Contender {
	const first, second messagestore.Category = "account0", "account1"
	contender := func(name string, messages int64, pair pairOf) measure.Contender {
		return measure.Contender{Name: name, Run: func(ctx context.Context, cell *measure.Cell) error {
			url, err := database(ctx, cell, openDibs.template)
			if err != nil {
				return err
			}
			s, err := openDibsStore(ctx, url)
			if err != nil {
				return err
			}
			defer s.close()
			writes := make([]func(context.Context) error, callers)
			for i := range writes {
				writes[i] = pair(s, i)
			}
			done, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) { return 1, writes[caller](ctx) })
			if err != nil {
				return err
			}
			count, err := s.count(ctx)
			if err != nil {
				return err
			}
			return cell.Check("messages in the table", count, messages*done)
		}}
	}
	// each writes the next message of a stream in each of two categories, in this order.
	each := func(order func(caller int) (a, b messagestore.Category)) pairOf {
		return func(s *dibsStore, caller int) func(context.Context) error {
			a, b := order(caller)
			one, other := newWriter(a), newWriter(b)
			return func(ctx context.Context) error {
				m, n := one.next(), other.next()
				_, err := s.WriteStreams(ctx, messagestore.To(one.stream, one.version, m), messagestore.To(other.stream, other.version, n))
				return err
			}
		}
	}
	return []measure.Contender{
		contender(oneStream, 1, func(s *dibsStore, _ int) func(context.Context) error {
			w := newWriter(first)
			return func(ctx context.Context) error { return w.write(ctx, s) }
		}),
		contender(twoStreams, 2, each(func(int) (a, b messagestore.Category) { return first, first })),
		contender(twoCategories, 2, each(func(int) (a, b messagestore.Category) { return first, second })),
		contender(oppositeOrders, 2, each(func(caller int) (a, b messagestore.Category) {
			if caller%2 == 0 {
				return first, second
			}
			return second, first
		})),
		contender(hotStreams, 2, func(s *dibsStore, caller int) func(context.Context) error {
			w, hot := newWriter(first), first.Stream(fmt.Sprintf("hot%d", caller%hotStreamsCount))
			return func(ctx context.Context) error {
				m := w.next()
				_, err := s.WriteStreams(ctx, messagestore.To(w.stream, w.version, m), messagestore.To(hot, messagestore.AnyVersion, message(w.id, w.written)))
				return err
			}
		}),
	}
}
