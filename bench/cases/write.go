package cases

import (
	"context"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/messagestore"
)

// The charts that cases are points of.
var (
	latencySeries = &measure.Series{
		File: "latency", Title: "Write to one hot category: latency against load", XLabel: "callers", Metric: measure.P50, Dashed: measure.P99, LogX: true,
	}
	rowsSeries = &measure.Series{
		File: "rows", Title: "Write to 32 categories, 256 callers: rate against rows present", XLabel: "million rows present", Metric: measure.Rate,
	}
)

// Write returns the cases of writing at an expected version to an empty table.
func Write() []measure.Case {
	oneCategory := func(callers int, goals ...measure.Goal) measure.Case {
		return measure.Case{
			Name:       "write/1-category/" + strings.ReplaceAll(plural(callers, "caller"), " ", "-"),
			Shows:      fmt.Sprintf("Write at an expected version, one hot category, %s", plural(callers, "caller")),
			Contenders: writers(fast, 1, callers, openDibs, openMessageDB, openCopy),
			Goals:      goals,
			Series:     latencySeries, X: float64(callers),
		}
	}
	many := func(callers int, goals ...measure.Goal) measure.Case {
		return measure.Case{
			Name:       fmt.Sprintf("write/32-categories/%d-callers", callers),
			Shows:      fmt.Sprintf("Write at an expected version, 32 categories, %d callers", callers),
			Contenders: writers(fast, 32, callers, openDibs, openMessageDB, openCopy),
			Goals:      goals,
		}
	}
	lone := oneCategory(1, measure.Goal{Metric: measure.P50, Of: dibs, To: messageDB, AtMost: 1})
	four, sixteen := oneCategory(4), oneCategory(16)
	four.LongOnly, sixteen.LongOnly = true, true
	empty := many(256,
		measure.Goal{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 8},
		measure.Goal{Metric: measure.Rate, Of: dibs, To: copying, AtLeast: 0.8})
	empty.Series = rowsSeries
	return []measure.Case{
		lone, four, sixteen,
		oneCategory(64,
			measure.Goal{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 13},
			measure.Goal{Metric: measure.Rate, Of: dibs, To: copying, AtLeast: 0.8},
			measure.Goal{Metric: measure.ServerCPU, Of: dibs, To: messageDB, AtMost: 1.0 / 8}),
		oneCategory(256,
			measure.Goal{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 20},
			measure.Goal{Metric: measure.Rate, Of: dibs, To: copying, AtLeast: 0.85},
			measure.Goal{Metric: measure.ServerCPU, Of: dibs, To: messageDB, AtMost: 1.0 / 8}),
		many(64), empty,
		{
			Name:       "write/slow-disk/256-callers",
			Shows:      "Write to one category, 256 callers, on a disk that takes 1 ms more to sync",
			Contenders: writers(slow, 1, 256, openDibs, openMessageDB),
			Goals:      []measure.Goal{{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 35}},
		},
	}
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// The disks that a server is to be had on.
var (
	fast = (*server.Set).Postgres
	slow = (*server.Set).SlowPostgres
)

type disk func(*server.Set, context.Context) (*server.Postgres, error)

// writers have as many callers write one message after the other, each to streams of
// its own, to a database of their own that is empty.
func writers(on disk, inCategories, callers int, openers ...opener) []measure.Contender {
	contenders := make([]measure.Contender, len(openers))
	for i, o := range openers {
		contenders[i] = measure.Contender{Name: o.name, Run: func(ctx context.Context, cell *measure.Cell) error {
			p, err := on(cell.Servers, ctx)
			if err != nil {
				return err
			}
			url, err := cell.Database(ctx, p, o.template)
			if err != nil {
				return err
			}
			return write(ctx, cell, o, url, inCategories, callers)
		}}
	}
	return contenders
}

// write has callers write to a database, and checks that their messages are there.
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
	done, err := writeOn(ctx, cell, s, categories(inCategories), callers)
	if err != nil {
		return err
	}
	after, err := s.count(ctx)
	if err != nil {
		return err
	}
	return cell.Check("messages in the table", after-before, done)
}

// writeOn has callers write, each to one of the categories, and returns how many
// messages they wrote.
func writeOn(ctx context.Context, cell *measure.Cell, s store, to []messagestore.Category, callers int) (int64, error) {
	of := make([]*writer, callers)
	for i := range of {
		of[i] = newWriter(to[i%len(to)])
	}
	return cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
		return 1, of[caller].write(ctx, s)
	})
}

// categories are as many names as are asked for.
func categories(n int) []messagestore.Category {
	names := make([]messagestore.Category, n)
	for i := range names {
		names[i] = messagestore.Category(fmt.Sprintf("account%d", i))
	}
	return names
}
