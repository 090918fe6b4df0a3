package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue/cron"
)

// A cronCommand is dibs cron: it shows, sets, removes and runs schedules.
type cronCommand struct {
	Ls     cronLsCommand     `cmd:"" default:"withargs" help:"Print the schedules: the last tick of each, and the next."`
	Show   cronShowCommand   `cmd:"" help:"Print one schedule, its message, and its next ticks."`
	Set    cronSetCommand    `cmd:"" help:"Add a schedule, or change the one of its name."`
	Remove cronRemoveCommand `cmd:"" help:"Remove a schedule."`
	Run    cronRunCommand    `cmd:"" help:"Run schedules: insert each item at its time."`
}

// aSchedule names one.
type aSchedule struct {
	Category messagestore.Category `arg:"" help:"The category of the items, as reports."`
	Name     string                `arg:"" help:"The schedule's name, which is the key of its items."`
}

// withCron calls f with the schedules of the category.
func (a *app) withCron(ctx context.Context, category messagestore.Category, f func(store *messagestore.Store, c *cron.Cron) error) error {
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		c, err := cron.New(store, category, &cron.Config{Logger: a.logger()})
		if err != nil {
			return err
		}
		return f(store, c)
	})
}

// logger logs warnings and errors to the standard error.
func (a *app) logger() logger.Logger {
	return logger.Zerolog(zerolog.New(warnings{a}).Level(zerolog.WarnLevel).With().Timestamp().Logger())
}

type warnings struct{ a *app }

func (w warnings) Write(line []byte) (int, error) {
	w.a.say(w.a.redact(string(line)))
	return len(line), nil
}

// status returns the schedule.
func (c aSchedule) status(ctx context.Context, kept *cron.Cron) (cron.Status, error) {
	all, err := kept.Status(ctx, c.Name)
	if err == nil && len(all) == 0 {
		err = hinted(notFound("%s has no schedule %.80q", c.Category, c.Name), "list the schedules with: dibs cron ls")
	}
	if err != nil {
		return cron.Status{}, err
	}
	return all[0], nil
}

// scheduleFields are how a schedule is printed as JSON.
func scheduleFields(category messagestore.Category, s cron.Status, next []time.Time, now time.Time) fields {
	f := fields{"category", category, "name", s.Name, "spec", s.Spec, "zone", zoneOf(s), "catchUp", s.CatchUp.String()}
	if s.Overlap == cron.Skip {
		f = append(f, "overlap", s.Overlap.String(), "queue", skipsFor(category, s), "item?", s.Item, "skips?", s.Skips, "skipped?", s.Skipped)
	}
	ticks := []string{}
	for _, at := range next {
		ticks = append(ticks, text.Time(at))
	}
	return append(f, "from", s.From, "last?", s.Last, "next", ticks, "late?", operate.Late(s, now), "type", s.Body.MessageType(), "data", dataOf(s))
}

// dataOf is the data of the items' messages.
func dataOf(s cron.Status) any {
	if raw, is := s.Body.(messagestore.Raw); is {
		return raw.Data
	}
	return nil
}

// skipsFor is the queue of a schedule whose ticks are skipped.
func skipsFor(category messagestore.Category, s cron.Status) string {
	return cmp.Or(s.Queue, string(category))
}

func zoneOf(s cron.Status) string { return cmp.Or(s.Zone, "UTC") }

// ticksOf returns the next n ticks of a schedule.
func ticksOf(s cron.Status, n int) ([]time.Time, error) {
	if s.Next.IsZero() {
		return nil, nil
	}
	if n == 1 {
		return []time.Time{s.Next}, nil
	}
	more, err := cron.Next(s.Spec, s.Zone, s.Next, n-1)
	return append([]time.Time{s.Next}, more...), err
}

type cronLsCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category of the items. Defaults to all."`
}

func (c *cronLsCommand) Run(ctx context.Context, a *app) error {
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		categories, err := sideOf(ctx, store, c.Category, "schedule")
		if err != nil {
			return err
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		a.out.table("category", "name", "spec", "zone", "catch-up", "last", "next", "type", "")
		printed := 0
		var wrong error
		for _, category := range categories {
			kept, err := cron.New(store, category, &cron.Config{Logger: logger.Silent()}) // the error names what is corrupt
			if err != nil {
				return err
			}
			all, err := kept.Status(ctx)
			if err != nil && !errors.Is(err, cron.ErrCorrupt) {
				return err
			}
			wrong = errors.Join(wrong, err)
			for _, s := range all {
				printed++
				next, err := ticksOf(s, 1)
				if err != nil {
					return err
				}
				note := cell{}
				if s.Skips > 0 {
					note = in(yellow, fmt.Sprintf("%d skipped", s.Skips))
				}
				if operate.Late(s, now) {
					note = in(red, strings.TrimSuffix("late, "+note.text, ", "))
				}
				a.out.row(scheduleFields(category, s, next, now), category, in(bold, shorten(visible(s.Name))), s.Spec, zoneOf(s), s.CatchUp, s.Last,
					cmp.Or(timeOrNone(s.Next), "never"), s.Body.MessageType(), note)
			}
		}
		if printed == 0 && wrong == nil {
			a.nothing("no schedule is set")
		}
		return wrong
	})
}

type cronShowCommand struct {
	aSchedule

	Next few `default:"5" placeholder:"N" help:"Print the next N ticks, 1 to 1000. Defaults to 5."`
}

func (c *cronShowCommand) Run(ctx context.Context, a *app) error {
	return a.withCron(ctx, c.Category, func(store *messagestore.Store, kept *cron.Cron) error {
		s, err := c.status(ctx, kept)
		if err != nil {
			return err
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		return a.printSchedule(c.Category, s, int(c.Next), now)
	})
}

func (a *app) printSchedule(category messagestore.Category, s cron.Status, n int, now time.Time) error {
	next, err := ticksOf(s, n)
	if err != nil {
		return err
	}
	a.out.object(scheduleFields(category, s, next, now))
	a.out.title(s.Name + " of " + string(category))
	overlap, skipped, behind := "", "", ""
	if s.Overlap == cron.Skip {
		overlap = fmt.Sprintf("skip, while an item of queue %s is not finished", skipsFor(category, s))
	}
	if s.Skips > 0 {
		skipped = fmt.Sprintf("%d, the last %s", s.Skips, timeOrNone(s.Skipped))
	}
	if s.Skips > 0 && s.Skipped.After(s.Last) && s.Item > 0 {
		behind = fmt.Sprintf("item %d: dibs queue show %s %d", s.Item, skipsFor(category, s), s.Item)
	}
	data, _ := dataOf(s).(json.RawMessage)
	a.out.facts("spec", s.Spec, "zone", zoneOf(s), "catch-up", s.CatchUp.String(), "overlap", overlap, "set", text.Time(s.From),
		"last", cmp.Or(timeOrNone(s.Last), "-"), "type", s.Body.MessageType(), "data", dataText(data), "skipped", skipped, "behind", behind)
	zone, err := time.LoadLocation(zoneOf(s))
	if err != nil {
		return err
	}
	for i, at := range next {
		label, note := "", cell{}
		if i == 0 {
			label = "next"
		}
		if i == 0 && operate.Late(s, now) {
			note = in(red, "late")
		}
		a.out.row(nil, in(dim, label), text.Time(at), at.In(zone).Format("Mon 2006-01-02 15:04:05 MST"), note)
	}
	return nil
}

type cronSetCommand struct {
	aSchedule

	Spec    string `arg:"" help:"When items come: five fields as in a crontab, or @yearly, @monthly, @weekly, @daily, @hourly or \"@every 90s\"."`
	Type    string `arg:"" help:"Type of the items' messages, like Report."`
	Data    string `arg:"" optional:"" help:"Their data, a JSON object; - reads it from the standard input. Defaults to {}."`
	Zone    string `placeholder:"ZONE" help:"The time zone of the fields, like Europe/Prague. Defaults to UTC."`
	CatchUp string `enum:"last,none,all" default:"last" placeholder:"WHICH" help:"Of the ticks for which no process was there the last comes, none or all. Defaults to last."`
	Overlap string `enum:"allow,skip" default:"allow" placeholder:"WHICH" help:"A tick that comes while the item of the one before it is not finished is allowed, or skipped. Defaults to allow."`
	Queue   string `placeholder:"QUEUE" help:"The queue whose item that is, with --overlap skip. Defaults to the category's."`
	New     bool   `help:"Change no schedule that there is: exit with 3 if there is another of the name."`
}

func (c *cronSetCommand) Run(ctx context.Context, a *app) error {
	// A mistake in the times is told before anything else is asked for.
	if _, err := cron.Next(c.Spec, c.Zone, time.Now(), 1); err != nil {
		return err
	}
	w := writeCommand{Type: c.Type, Data: c.Data}
	m, err := w.message(ctx, a)
	if err != nil {
		return err
	}
	s := cron.Schedule{Name: c.Name, Spec: c.Spec, Zone: c.Zone, CatchUp: map[string]cron.CatchUp{"none": cron.None, "all": cron.All}[c.CatchUp], Queue: c.Queue, Body: m.Body}
	if c.Overlap == cron.Skip.String() {
		s.Overlap = cron.Skip
	}
	return a.withCron(ctx, c.Category, func(_ *messagestore.Store, kept *cron.Cron) error {
		set := kept.Set
		if c.New {
			set = kept.Add
		}
		if err := set(ctx, s); err != nil {
			return err
		}
		is, err := c.status(ctx, kept)
		if err != nil {
			return err
		}
		return a.printSchedule(c.Category, is, 3, is.From)
	})
}

type cronRemoveCommand struct{ aSchedule }

func (c *cronRemoveCommand) Run(ctx context.Context, a *app) error {
	return a.withCron(ctx, c.Category, func(_ *messagestore.Store, kept *cron.Cron) error {
		err := kept.Remove(ctx, c.Name)
		if errors.Is(err, messagestore.ErrNotFound) {
			_, err = c.status(ctx, kept)
		}
		if err != nil {
			return err
		}
		return a.out.tell(fields{"category", c.Category, "name", c.Name, "removed", true}, "removed %s of %s", c.Name, c.Category)
	})
}

type cronRunCommand struct {
	Categories []messagestore.Category `arg:"" optional:"" help:"Run the schedules of these categories. Defaults to all, also schedules that are set later."`
}

// lookEvery is how often cron run looks for categories with a first schedule.
const lookEvery = 5 * time.Second

func (c *cronRunCommand) Run(ctx context.Context, a *app) error {
	for _, category := range c.Categories {
		if err := category.Validate(); err != nil {
			return err
		}
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		r := &cronRunner{app: a, store: store, running: map[messagestore.Category]bool{}, ended: make(chan error, 1)}
		ctx, cancel := context.WithCancel(ctx)
		defer r.group.Wait()
		defer cancel()
		if len(c.Categories) > 0 {
			if _, err := store.Now(ctx); err != nil {
				return err
			}
			if err := r.begin(ctx, c.Categories); err != nil {
				return err
			}
			return r.wait(ctx, nil)
		}
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for first := true; ; first = false {
			found, err := sideOf(ctx, store, "", "schedule")
			switch {
			case err != nil && first: // a store that cannot be read at the start is a mistake
				return err
			case err != nil && ctx.Err() == nil:
				a.warn("dibs: %s; it goes on", a.redact(oneLineOf(err.Error())))
			case err == nil:
				if err := r.begin(ctx, found); err != nil {
					return err
				}
			}
			if err := r.wait(ctx, look.C); err != nil || ctx.Err() != nil {
				return err
			}
		}
	})
}

// A cronRunner runs the schedules of categories.
type cronRunner struct {
	app     *app
	store   *messagestore.Store
	running map[messagestore.Category]bool
	group   sync.WaitGroup
	ended   chan error // the first error that lasts
}

// begin runs the schedules of the categories that do not run yet.
func (r *cronRunner) begin(ctx context.Context, categories []messagestore.Category) error {
	for _, category := range slices.Compact(slices.Sorted(slices.Values(categories))) {
		if r.running[category] {
			continue
		}
		r.running[category] = true
		c, err := cron.New(r.store, category, &cron.Config{Logger: r.app.logger()})
		if err == nil {
			err = r.app.out.tell(fields{"category", category, "runs", true}, "runs the schedules of %s", category)
		}
		if err == nil {
			err = r.app.out.flush()
		}
		if err != nil {
			return err
		}
		r.group.Go(func() {
			if err := c.Run(ctx); err != nil {
				select {
				case r.ended <- err:
				default:
				}
			}
		})
	}
	return nil
}

// wait returns at the next look, at the end of ctx, or with an error that lasts.
func (r *cronRunner) wait(ctx context.Context, look <-chan time.Time) error {
	select {
	case err := <-r.ended:
		return err
	case <-ctx.Done():
		return nil
	case <-look:
		return nil
	}
}
