package cases

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	dibsUnique = "Dibs, no duplicates"

	// takenStreams is how many streams the duplicates are sent to.
	takenStreams = 10_000
)

// Refuse returns the cases of writes that another write was before.
func Refuse() []measure.Case {
	unique := mixer(openDibs, 64, 0)
	unique.Name = dibsUnique
	return []measure.Case{
		{
			Name:       "refuse/1-caller",
			Shows:      "An initial write to a stream that is there, one caller",
			Contenders: []measure.Contender{mixer(openDibs, 1, 1), mixer(openMessageDB, 1, 1)},
			Goals:      []measure.Goal{{Metric: measure.P50, Of: dibs, To: messageDB, AtMost: 1}},
		},
		{
			Name:       "refuse/64-callers",
			Shows:      "Duplicates refused, one category, 64 callers",
			Contenders: []measure.Contender{mixer(openDibs, 64, 1), mixer(openMessageDB, 64, 1)},
			Goals:      []measure.Goal{{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 7}},
		},
		{
			Name:       "refuse/10-percent/64-callers",
			Shows:      "One write in ten is a duplicate, one category, 64 callers",
			Contenders: []measure.Contender{mixer(openDibs, 64, 10), unique},
			Goals:      []measure.Goal{{Metric: measure.Rate, Of: dibs, To: dibsUnique, AtLeast: 0.9}},
		},
	}
}

// mixer has callers write one message after the other to streams of their own; but one
// in so many is the first message of a stream that has one. 0 is for none, and 1 for
// all.
func mixer(o opener, callers, oneIn int) measure.Contender {
	return measure.Contender{Name: o.name, Run: func(ctx context.Context, cell *measure.Cell) error {
		p, err := cell.Servers.Postgres(ctx)
		if err != nil {
			return err
		}
		url, err := cell.Database(ctx, p, o.template)
		if err != nil {
			return err
		}
		const category messagestore.Category = "account"
		streams, err := taken(ctx, url, o, category, takenStreams)
		if err != nil {
			return err
		}
		s, err := o.open(ctx, url)
		if err != nil {
			return err
		}
		defer s.close()

		var refused atomic.Int64
		of := make([]*writer, callers)
		for i := range of {
			of[i] = newWriter(category)
		}
		turns, randoms := make([]int, callers), make([]func(int) int, callers)
		for i := range randoms {
			turns[i], randoms[i] = i, cell.Rand(i).IntN
		}
		done, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
			if turns[caller]++; oneIn == 0 || turns[caller]%oneIn > 0 {
				return 1, of[caller].write(ctx, s)
			}
			stream := streams[randoms[caller](len(streams))]
			wrote, err := s.write(ctx, stream, messagestore.NoStream, message(uuid.NewString(), refused.Add(1)))
			if err == nil && wrote {
				err = fmt.Errorf("%s: written although it was there", stream)
			}
			return 1, err
		})
		if err != nil {
			return err
		}
		n, err := s.count(ctx)
		if err != nil {
			return err
		}
		return cell.Check("writes that are in the table or were refused", n-takenStreams+refused.Load(), done)
	}}
}
