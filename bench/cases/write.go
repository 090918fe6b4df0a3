package cases

import (
	"context"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// Write returns the cases of writing at an expected version to an empty table.
func Write() []measure.Case {
	oneCategory := func(callers int, goals ...measure.Goal) measure.Case {
		return measure.Case{
			Name:       "write/1-category/" + strings.ReplaceAll(plural(callers, "caller"), " ", "-"),
			Shows:      fmt.Sprintf("Write at an expected version, one hot category, %s", plural(callers, "caller")),
			Contenders: writers(1, callers, openDibs, openMessageDB),
			Goals:      goals,
		}
	}
	many := func(callers int, goals ...measure.Goal) measure.Case {
		return measure.Case{
			Name:       fmt.Sprintf("write/32-categories/%d-callers", callers),
			Shows:      fmt.Sprintf("Write at an expected version, 32 categories, %d callers", callers),
			Contenders: writers(32, callers, openDibs, openMessageDB),
			Goals:      goals,
		}
	}
	lone := oneCategory(1, measure.Goal{Metric: measure.P50, Of: dibs, To: messageDB, AtMost: 1})
	four, sixteen := oneCategory(4), oneCategory(16)
	four.LongOnly, sixteen.LongOnly = true, true
	atLeast := func(times float64) measure.Goal {
		return measure.Goal{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: times}
	}
	cheap := measure.Goal{Metric: measure.ServerCPU, Of: dibs, To: messageDB, AtMost: 1.0 / 8}
	return []measure.Case{
		lone, four, sixteen, oneCategory(64, atLeast(13), cheap), oneCategory(256, atLeast(20), cheap), many(64), many(256, atLeast(8)),
	}
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// writers makes this many callers write one message after the other, each to its own streams, to a
// new, empty database.
func writers(inCategories, callers int, openers ...opener) []measure.Contender {
	contenders := make([]measure.Contender, len(openers))
	for i, o := range openers {
		contenders[i] = measure.Contender{Name: o.name, Run: func(ctx context.Context, cell *measure.Cell) error {
			return inStore(ctx, cell, o, func(s store, _ string) error {
				done, err := writeOn(ctx, cell, s, categories(inCategories), callers)
				return checkCount(ctx, cell, s, done, err)
			})
		}}
	}
	return contenders
}

// writeOn makes callers write, each to a category of to, and returns how many messages they wrote.
func writeOn(ctx context.Context, cell *measure.Cell, s store, to []messagestore.Category, callers int) (int64, error) {
	of := make([]*writer, callers)
	for i := range of {
		of[i] = newWriter(to[i%len(to)])
	}
	return cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
		return 1, of[caller].write(ctx, s)
	})
}

// categories returns n names.
func categories(n int) []messagestore.Category {
	names := make([]messagestore.Category, n)
	for i := range names {
		names[i] = messagestore.Category(fmt.Sprintf("account%d", i))
	}
	return names
}
