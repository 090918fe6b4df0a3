package cases

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// The names of writes of one stream and of several.
const (
	oneStream  = "Dibs, one stream"
	twoStreams = "Dibs, two streams"
)

// Streams returns the cases of writes to two streams, all or nothing, compared with writes to one
// stream.
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
	const first messagestore.Category = "account0"
	contender := func(name string, messages int64, pair pairOf) measure.Contender {
		return measure.Contender{Name: name, Run: func(ctx context.Context, cell *measure.Cell) error {
			return inDibs(ctx, cell, func(s *dibsStore) error {
				writes := make([]func(context.Context) error, callers)
				for i := range writes {
					writes[i] = pair(s, i)
				}
				done, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) { return 1, writes[caller](ctx) })
				return checkCount(ctx, cell, s, messages*done, err)
			})
		}}
	}
	return []measure.Contender{
		contender(oneStream, 1, func(s *dibsStore, _ int) func(context.Context) error {
			w := newWriter(first)
			return func(ctx context.Context) error { return w.write(ctx, s) }
		}),
		contender(twoStreams, 2, func(s *dibsStore, _ int) func(context.Context) error {
			one, other := newWriter(first), newWriter(first)
			return func(ctx context.Context) error {
				m, n := one.next(), other.next()
				_, err := s.WriteStreams(ctx, messagestore.To(one.stream, one.version, m), messagestore.To(other.stream, other.version, n))
				return err
			}
		}),
	}
}
