package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// Processes returns the case of several processes that write to one category, while a
// reader follows it.
func Processes() []measure.Case {
	return []measure.Case{{
		Name:       "write/4-processes/16-callers",
		Shows:      "Four processes of 16 callers each write to one category, and a reader that follows skips nothing",
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
		p, err := cell.Servers.Postgres(ctx)
		if err != nil {
			return err
		}
		url, err := cell.Database(ctx, p, o.template)
		if err != nil {
			return err
		}
		s, err := o.open(ctx, url)
		if err != nil {
			return err
		}
		defer s.close()

		const category messagestore.Category = "account"
		tasks := make([]any, n)
		for i := range tasks {
			tasks[i] = writeTask{o.name, url, category, callers}
		}
		var seen, next int64
		follow := func(ctx context.Context) error { return follow(ctx, s, category, &seen, &next) }
		tallies, err := cell.Processes(ctx, writeChild, tasks, follow)
		if err != nil {
			return err
		}
		var written int64
		for _, t := range tallies {
			written += t.All
		}
		count, err := s.count(ctx)
		if err != nil {
			return err
		}
		// The reader will not see again any message that it has passed over: the rest
		// has to make it whole.
		for {
			n, to, err := s.page(ctx, category, next)
			if err != nil {
				return err
			}
			if seen, next = seen+n, to; n == 0 {
				break
			}
		}
		return errors.Join(cell.Check("messages in the table", count, written), cell.Check("messages that the reader saw", seen, written))
	}}
}

// follow reads a category until the context ends, and adds the messages before next to
// seen.
func follow(ctx context.Context, s store, category messagestore.Category, seen, next *int64) error {
	const pause = 5 * time.Millisecond
	for ctx.Err() == nil {
		n, to, err := s.page(ctx, category, *next)
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case err != nil:
			return nil //nolint:nilerr // what this page has is read again
		}
		if *seen, *next = *seen+n, to; n > 0 {
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}
