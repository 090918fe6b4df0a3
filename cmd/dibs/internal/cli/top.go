package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
)

// A topCommand is dibs top: it shows, again and again, the consumers that are furthest behind, and
// queues.
type topCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category that the consumers and queues read. Defaults to all."`
	Every    time.Duration         `default:"2s" placeholder:"TIME" help:"Look this often, at least every 100ms. Defaults to ${default}."`
	Times    int                   `placeholder:"N" help:"End after so many looks. Defaults to none: until it is interrupted."`
	Lines    bound                 `default:"40" placeholder:"N" help:"Print the N consumers that are furthest behind, and N queues. Defaults to ${default}."`
}

// A standing is a consumer at a look.
type standing struct {
	consumers.Status

	behind  time.Duration
	change  *float64 // of the lag in a second, since the last look
	gone    int      // replicas
	running int      // the others
	failing int      // messages
}

func (c *topCommand) Run(ctx context.Context, a *app) error {
	switch {
	case c.Every < 100*time.Millisecond:
		return usage("--every=%v: must be at least 100ms", c.Every)
	case c.Times < 0:
		return usage("--times=%d: must be at least 1", c.Times)
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		last := map[[2]string]standing{}
		var lastAt time.Time
		for look := 1; ; look++ {
			all, err := standings(ctx, store, c.Category)
			if err != nil {
				return err
			}
			if look == 1 && len(all) == 0 {
				if err := operate.RequireCategory(ctx, store, c.Category); err != nil {
					return err
				}
			}
			now := time.Now()
			for i := range all {
				s := &all[i]
				key := [2]string{string(s.Category), s.Name}
				if before, ok := last[key]; ok && now.After(lastAt) {
					change := float64(s.Lag-before.Lag) / now.Sub(lastAt).Seconds()
					s.change = &change
				}
				last[key] = *s
			}
			lastAt = now
			queues, err := queuesOf(ctx, store, c.Category)
			if err != nil {
				return err
			}
			queues = slices.DeleteFunc(queues, func(s queue.Status) bool { return s.Parked }) // the consumers tell of them
			if err := c.print(ctx, a, store, all, queues, now); err != nil {
				return err
			}
			if err := a.out.flush(); err != nil || look == c.Times {
				return err
			}
			select {
			case <-time.After(c.Every):
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// queuesOf returns the queues of a category, or all: those with most dead items first, and then those whose oldest item has
// waited longest.
func queuesOf(ctx context.Context, store *messagestore.Store, category messagestore.Category) ([]queue.Status, error) {
	all, err := queue.All(ctx, store)
	if errors.Is(err, messagestore.ErrNotSupported) {
		return nil, nil
	}
	all = slices.DeleteFunc(all, func(s queue.Status) bool { return category != "" && s.Category != category })
	slices.SortStableFunc(all, func(a, b queue.Status) int {
		if a.Oldest.IsZero() != b.Oldest.IsZero() {
			return cmp.Or(cmp.Compare(b.Dead, a.Dead), b.Oldest.Compare(a.Oldest))
		}
		return cmp.Or(cmp.Compare(b.Dead, a.Dead), a.Oldest.Compare(b.Oldest))
	})
	return all, err
}

// standings returns all consumers, the furthest behind first.
func standings(ctx context.Context, store *messagestore.Store, category messagestore.Category) (all []standing, err error) {
	consumers, err := statuses(ctx, store, category)
	for _, s := range consumers {
		st := standing{Status: s, behind: behind(s, time.Now()), failing: len(s.Failing) + s.MoreFailing}
		st.Err = cmp.Or(s.Err, s.PositionErr)
		for _, r := range s.Replicas {
			if r.Gone {
				st.gone++
			}
		}
		st.running = len(s.Replicas) - st.gone
		all = append(all, st)
	}
	slices.SortStableFunc(all, func(a, b standing) int {
		return cmp.Or(cmp.Compare(b.behind, a.behind), cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Parked, a.Parked))
	})
	return all, err
}

func (c *topCommand) print(ctx context.Context, a *app, store *messagestore.Store, all []standing, queues []queue.Status, now time.Time) error {
	if !a.JSON {
		a.out.clear()
	}
	parked, failing := 0, 0
	for _, s := range all {
		parked += s.Parked
		failing += s.failing
	}
	a.out.line("%s  %s, %s parked, %d failing", text.Time(now)[:19]+"Z", text.Number(len(all), "consumer"), text.Number(parked, "message"), failing)
	a.out.table("category", "consumer", ">lag", ">change/s", ">behind", ">parked", ">failing", "processes")
	shown := all[:min(int(c.Lines), len(all))]
	for _, s := range shown {
		object := fields{
			"time", now, "category", s.Category, "consumer", s.Name, "lag", s.Lag, "lagIsAtLeast?", s.AtLeast, "lagChangePerSecond?", s.change,
			"lagSeconds", s.behind.Seconds(), "parked", s.Parked, "processes", s.running, "gone?", s.gone, "pausedAt?", s.PausedAt, "error?", s.Err,
		}
		a.out.row(append(object, failingFields(s.Status)...), s.cells()...)
		if len(s.Failing) > 0 {
			first := s.Failing[0]
			a.out.row(nil, s.Category, in(bold, s.Name), in(red, failingText(first, a.out.cause(first.Error))))
		}
	}
	a.out.header()
	if more := len(all) - len(shown); more > 0 {
		a.out.line("and %d more, which are less behind: --lines", more)
	}
	if len(queues) > 0 {
		a.out.line("")
	}
	a.queueTable()
	for _, s := range queues[:min(int(c.Lines), len(queues))] {
		if err := a.printQueue(ctx, store, s, append(fields{"time", now}, queueFields(s)...)); err != nil {
			return err
		}
	}
	return nil
}

func (s *standing) cells() []any {
	change := in(plain, "-")
	if s.change != nil {
		change.text = fmt.Sprintf("%+.0f", *s.change)
		switch {
		case *s.change >= 0.5:
			change.style = yellow
		case *s.change <= -0.5:
			change.style = green
		default:
			change.text = "0"
		}
	}
	note := in(plain, strconv.Itoa(s.running))
	switch {
	case s.Foreign:
		note.text = "foreign"
	case s.gone > 0:
		note = in(red, fmt.Sprintf("%d, and %d gone", s.running, s.gone))
	case s.running == 0:
		note.text = "none"
	}
	if !s.PausedAt.IsZero() {
		note = in(yellow, note.text+", paused")
	}
	if s.Err != nil {
		note = in(red, s.Err.Error())
	}
	return []any{s.Category, in(bold, s.Name), atLeast(s.Lag, s.AtLeast), change, ageText(s.behind), alarming(s.Parked), alarming(s.failing), note}
}
