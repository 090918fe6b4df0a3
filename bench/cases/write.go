package cases

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// Write returns the cases of writing at an expected version.
func Write() []measure.Case {
	return []measure.Case{{
		Name:       "write/1-category/64-callers",
		Shows:      "Write at an expected version, one hot category, 64 callers",
		Contenders: writers(1, 64, openDibs, openMessageDB, openCopy),
		Goals: []measure.Goal{
			{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 13},
			{Metric: measure.Rate, Of: dibs, To: copying, AtLeast: 0.8},
			{Metric: measure.ServerCPU, Of: dibs, To: messageDB, AtMost: 1.0 / 8},
		},
		Series: "write/1-category", X: 64,
	}}
}

// categories are as many names as are asked for.
func categories(n int) []messagestore.Category {
	names := make([]messagestore.Category, n)
	for i := range names {
		names[i] = messagestore.Category(fmt.Sprintf("account%d", i))
	}
	return names
}

// writers have as many callers write one message after the other, each to streams of
// its own, to a database of their own that is empty.
func writers(inCategories, callers int, openers ...opener) []measure.Contender {
	var contenders []measure.Contender
	for _, o := range openers {
		contenders = append(contenders, measure.Contender{Name: o.name, Run: func(ctx context.Context, cell *measure.Cell) error {
			p, err := cell.Servers.Postgres(ctx)
			if err != nil {
				return err
			}
			url, err := cell.Database(ctx, p, o.template)
			if err != nil {
				return err
			}
			return write(ctx, cell, o, url, inCategories, callers)
		}})
	}
	return contenders
}

func write(ctx context.Context, cell *measure.Cell, o opener, url string, inCategories, callers int) error {
	s, err := o.open(ctx, url)
	if err != nil {
		return err
	}
	defer s.close()
	before, err := s.count(ctx)
	if err != nil {
		return err
	}
	names := categories(inCategories)
	of := make([]*writer, callers)
	for i := range of {
		of[i] = newWriter(names[i%inCategories])
	}
	done, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
		w := of[caller]
		m := w.next()
		wrote, err := s.write(ctx, w.stream, w.version, m)
		if err == nil && !wrote {
			err = fmt.Errorf("%s: a conflict where nobody else writes", w.stream)
		}
		return 1, err
	})
	if err != nil {
		return err
	}
	after, err := s.count(ctx)
	if err != nil {
		return err
	}
	return cell.Check("messages in the table", after-before, done)
}
