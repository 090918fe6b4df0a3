package cases

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// Processes returns the case of several processes that write to one category.
func Processes() []measure.Case {
	return []measure.Case{{
		Name:       "write/4-processes/16-callers",
		Shows:      "Four processes of 16 callers each write to one category",
		Contenders: []measure.Contender{processes(openDibs, 4, 16), processes(openMessageDB, 4, 16)},
		Goals:      []measure.Goal{{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 10}},
	}}
}

const writeChild = "write"

// A writeTask is the task of one of several writing processes.
type writeTask struct {
	Store, URL string
	Category   messagestore.Category
	Callers    int
}

func init() {
	measure.RegisterChild(writeChild, func(ctx context.Context, cell *measure.Cell, args json.RawMessage) error {
		var task writeTask
		if err := json.Unmarshal(args, &task); err != nil {
			return err
		}
		for _, o := range []opener{openDibs, openMessageDB} {
			if o.name != task.Store {
				continue
			}
			s, err := o.open(ctx, task.URL)
			if err != nil {
				return err
			}
			defer s.close()
			_, err = writeOn(ctx, cell, s, []messagestore.Category{task.Category}, task.Callers)
			return err
		}
		return fmt.Errorf("there is no store %q", task.Store)
	})
}

func processes(o opener, n, callers int) measure.Contender {
	return measure.Contender{Name: o.name, Run: func(ctx context.Context, cell *measure.Cell) error {
		return inStore(ctx, cell, o, func(s store, url string) error {
			const category messagestore.Category = "account"
			tasks := make([]any, n)
			for i := range tasks {
				tasks[i] = writeTask{o.name, url, category, callers}
			}
			tallies, err := cell.Processes(ctx, writeChild, tasks, nil)
			if err != nil {
				return err
			}
			var written int64
			for _, t := range tallies {
				written += t.All
			}
			return checkCount(ctx, cell, s, written, nil)
		})
	}}
}
