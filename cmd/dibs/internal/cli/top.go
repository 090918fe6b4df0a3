package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

type topCommand struct {
	Category string        `arg:"" optional:"" help:"The category that the consumers and queues read. Defaults to all."`
	Every    time.Duration `default:"2s" placeholder:"TIME" help:"Look this often, at least every 100ms. Defaults to ${default}."`
	Times    int           `placeholder:"N" help:"End after so many looks. Defaults to none: until it is interrupted."`
	Lines    int           `default:"40" placeholder:"N" help:"Print the N consumers that are furthest behind, and N queues. Defaults to ${default}."`
}

// Help is printed below the command's usage.
func (topCommand) Help() string {
	return `A line for each consumer, the furthest behind first: its lag in messages, how the lag changed since the last look, the age of the oldest of these messages, the number of parked messages, that of messages whose handler fails, and the processes that run it. Below it is the message that has failed for longest: its place, the attempt, since when it fails, and the error. Below the consumers is a line for each queue, as dibs queue ls has it: those with most dead items first, and then those whose oldest item has waited longest. Ctrl-C ends it.

On a terminal the lines are drawn in place; otherwise one look follows the other.

Examples:

    dibs top
    dibs top account:command --every 500ms
    dibs top --times 1 --json`
}

// A standing is a consumer at a look.
type standing struct {
	operate.Status

	behind time.Duration
	change *float64 // of the lag in a second, since the last look
	gone   int      // replicas
}

// A topLine is how a consumer is printed as JSON.
type topLine struct {
	Time       string                `json:"time"`
	Category   messagestore.Category `json:"category"`
	Consumer   string                `json:"consumer"`
	Lag        int64                 `json:"lag"`
	AtLeast    bool                  `json:"lagIsAtLeast,omitempty"`
	Change     *float64              `json:"lagChangePerSecond,omitempty"`
	LagSeconds float64               `json:"lagSeconds"`
	Parked     int                   `json:"parked"`
	Processes  int                   `json:"processes"`
	Gone       int                   `json:"gone,omitempty"`
	PausedAt   string                `json:"pausedAt,omitempty"`
	Error      string                `json:"error,omitempty"`
	failingLines
}

// Run looks until it is interrupted.
func (c *topCommand) Run(ctx context.Context, a *app) error {
	var category messagestore.Category
	if c.Category != "" {
		var err error
		if category, err = toCategory(c.Category); err != nil {
			return err
		}
	}
	switch {
	case c.Every < 100*time.Millisecond:
		return usage("--every %v: it is at least 100ms", c.Every)
	case c.Times < 0:
		return usage("--times %d: it is at least 1", c.Times)
	case c.Lines < 1:
		return usage("--lines %d: it is at least 1", c.Lines)
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		var last map[string]standing
		var lastAt time.Time
		for look := 1; ; look++ {
			all, err := standings(ctx, store, category)
			if err != nil {
				return err
			}
			if look == 1 && len(all) == 0 && category != "" {
				if err := requireCategory(ctx, store, category); err != nil {
					return err
				}
			}
			now := time.Now()
			known := map[string]standing{}
			for i := range all {
				s := &all[i]
				key := string(s.Category) + "\n" + s.Name
				if before, ok := last[key]; ok && now.After(lastAt) {
					change := float64(s.Lag-before.Lag) / now.Sub(lastAt).Seconds()
					s.change = &change
				}
				known[key] = *s
			}
			queues, err := queuesOf(ctx, store, category)
			queues = slices.DeleteFunc(queues, func(s queue.Status) bool { return s.Parked }) // the consumers tell of them
			if err != nil {
				return err
			}
			if err := c.print(a, all, queues, now); err != nil {
				return err
			}
			if look == c.Times {
				return nil
			}
			last, lastAt = known, now
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
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s queue.Status) bool { return category != "" && s.Category != category })
	slices.SortStableFunc(all, func(a, b queue.Status) int {
		if a.Oldest.IsZero() != b.Oldest.IsZero() {
			return cmp.Or(cmp.Compare(b.Dead, a.Dead), b.Oldest.Compare(a.Oldest))
		}
		return cmp.Or(cmp.Compare(b.Dead, a.Dead), a.Oldest.Compare(b.Oldest))
	})
	return all, nil
}

// A topQueueLine is how a queue is printed as JSON.
type topQueueLine struct {
	Time string `json:"time"`
	queueLine
}

// printQueues prints the queues below the consumers.
func (c *topCommand) printQueues(a *app, queues []queue.Status, now time.Time) error {
	if len(queues) > 0 && !a.JSON {
		if err := a.out.line(""); err != nil {
			return err
		}
		a.out.widths = nil // another table
	}
	return a.printQueues(queues[:min(c.Lines, len(queues))], func(s queue.Status) any { return topQueueLine{timeText(now), toQueueLine(s)} })
}

// standings returns all consumers, the furthest behind first.
func standings(ctx context.Context, store *messagestore.Store, category messagestore.Category) (all []standing, err error) {
	categories := []messagestore.Category{category}
	if category == "" {
		if categories, err = withSideCategory(ctx, store, "position"); err != nil {
			return nil, err
		}
	}
	for _, category := range categories {
		consumers, err := operate.Consumers(ctx, store, category)
		if err != nil {
			return nil, err
		}
		for _, s := range consumers {
			all = append(all, standingOf(s, time.Now()))
		}
	}
	slices.SortStableFunc(all, func(a, b standing) int {
		return cmp.Or(cmp.Compare(b.behind, a.behind), cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Parked, a.Parked))
	})
	return all, nil
}

func standingOf(s operate.Status, now time.Time) standing {
	st := standing{Status: s, behind: behind(s, now)}
	st.Err = cmp.Or(s.Err, s.PositionErr)
	for _, r := range s.Replicas {
		if r.Gone {
			st.gone++
		}
	}
	return st
}

// failing returns how many messages fail.
func (s *standing) failing() int { return len(s.Failing) + s.MoreFailing }

// processes returns how many processes are known to run the consumer.
func (s *standing) processes() int { return len(s.Replicas) - s.gone }

func (s *standing) processText() string {
	switch {
	case s.Foreign:
		return "foreign"
	case s.gone > 0:
		return fmt.Sprintf("%d, and %d gone", s.processes(), s.gone)
	case s.processes() == 0:
		return "none"
	}
	return strconv.Itoa(s.processes())
}

func (c *topCommand) print(a *app, all []standing, queues []queue.Status, now time.Time) error {
	if a.JSON {
		for _, s := range all[:min(c.Lines, len(all))] {
			err := a.out.object(topLine{
				Time: timeText(now), Category: s.Category, Consumer: s.Name, Lag: s.Lag, AtLeast: s.AtLeast, Change: s.change,
				LagSeconds: s.behind.Seconds(), Parked: s.Parked, Processes: s.processes(), Gone: s.gone, PausedAt: timeOrNone(s.PausedAt, ""), Error: errorText(s.Err),
				failingLines: toFailingLines(s.Status),
			})
			if err != nil {
				return err
			}
		}
		if err := c.printQueues(a, queues, now); err != nil {
			return err
		}
		return a.out.flush()
	}
	a.out.clear()
	parked, failing := 0, 0
	for _, s := range all {
		parked += s.Parked
		failing += s.failing()
	}
	if err := a.out.line("%s  %s, %s parked, %d failing", timeText(now)[:19]+"Z", count(len(all), "consumer"), count(parked, "message"), failing); err != nil {
		return err
	}
	if err := a.out.row(topHeader...); err != nil {
		return err
	}
	for i, s := range all {
		if i == c.Lines {
			if err := a.out.line("and %d more, which are less behind: --lines", len(all)-c.Lines); err != nil {
				return err
			}
			break
		}
		if err := a.out.row(s.cells()...); err != nil {
			return err
		}
		if len(s.Failing) == 0 {
			continue
		}
		first := s.Failing[0]
		if err := a.out.row(cell{text: visible(string(s.Category))}, cell{text: visible(s.Name), style: bold}, failingCell(first, shorten(first.Error))); err != nil {
			return err
		}
	}
	if err := c.printQueues(a, queues, now); err != nil {
		return err
	}
	return a.out.flush()
}

var topHeader = []cell{
	{text: "category"},
	{text: "consumer"},
	{text: "lag", right: true},
	{text: "change/s", right: true},
	{text: "behind", right: true},
	{text: "parked", right: true},
	{text: "failing", right: true},
	{text: "processes"},
}

func (s *standing) cells() []cell {
	lag, change := cell{text: strconv.FormatInt(s.Lag, 10), right: true}, cell{text: "-", right: true}
	if s.AtLeast {
		lag.text = ">" + lag.text
	}
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
	parked := cell{text: strconv.Itoa(s.Parked), right: true}
	if s.Parked > 0 {
		parked.style = red
	}
	failing := cell{text: strconv.Itoa(s.failing()), right: true}
	if s.failing() > 0 {
		failing.style = red
	}
	note := cell{text: s.processText()}
	if !s.PausedAt.IsZero() {
		note = cell{text: note.text + ", paused", style: yellow}
	}
	if s.gone > 0 {
		note.style = red
	}
	if s.Err != nil {
		note = cell{text: visible(s.Err.Error()), style: red}
	}
	return []cell{
		{text: visible(string(s.Category))},
		{text: visible(s.Name), style: bold},
		lag, change,
		{text: ageText(s.behind), right: true},
		parked, failing, note,
	}
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
