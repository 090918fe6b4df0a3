package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue/cron"
)

type cronCommand struct {
	Ls     cronLsCommand     `cmd:"" default:"withargs" help:"Print the schedules: the last tick of each, and the next."`
	Show   cronShowCommand   `cmd:"" help:"Print one schedule, its message, and its next ticks."`
	Set    cronSetCommand    `cmd:"" help:"Add a schedule, or change the one of its name."`
	Remove cronRemoveCommand `cmd:"" help:"Remove a schedule."`
	Run    cronRunCommand    `cmd:"" help:"Run schedules: insert each item at its time."`
}

// withCron calls f with the schedules of a category.
func (a *app) withCron(ctx context.Context, name string, f func(store *messagestore.Store, c *cron.Cron) error) error {
	category, err := toCategory(name)
	if err != nil {
		return err
	}
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
	w.a.warn("%s", w.a.redact(string(line)))
	return len(line), nil
}

// scheduled returns the schedule of a name.
func scheduled(ctx context.Context, c *cron.Cron, category, name string) (cron.Status, error) {
	all, err := c.Status(ctx, name)
	if err != nil {
		return cron.Status{}, err
	}
	if len(all) == 0 {
		return cron.Status{}, &hintedError{notFound("%s has no schedule %.80q", visible(category), name), "list the schedules with: dibs cron ls"}
	}
	return all[0], nil
}

// A scheduleLine is how a schedule is printed as JSON.
type scheduleLine struct {
	Category messagestore.Category `json:"category"`
	Name     string                `json:"name"`
	Spec     string                `json:"spec"`
	Zone     string                `json:"zone"`
	CatchUp  string                `json:"catchUp"`
	Overlap  string                `json:"overlap,omitempty"`
	Queue    string                `json:"queue,omitempty"`
	From     string                `json:"from"`
	Last     string                `json:"last,omitempty"`
	Item     int64                 `json:"item,omitempty"`
	Skips    int64                 `json:"skips,omitempty"`
	Skipped  string                `json:"skipped,omitempty"`
	Next     []string              `json:"next"`
	Late     bool                  `json:"late,omitempty"`
	Type     string                `json:"type"`
	Data     any                   `json:"data"`
}

// lateAfter is for how long a tick may be over before it is called late.
const lateAfter = 10 * time.Second

// isLate reports whether no process runs a schedule: its next tick is over.
func isLate(s cron.Status, now time.Time) bool {
	return !s.Next.IsZero() && s.Next.Before(now.Add(-lateAfter))
}

func toScheduleLine(category messagestore.Category, s cron.Status, next []time.Time, now time.Time) scheduleLine {
	l := scheduleLine{
		Category: category, Name: s.Name, Spec: s.Spec, Zone: zoneOf(s.Schedule), CatchUp: s.CatchUp.String(), From: timeText(s.From),
		Last: timeOrNone(s.Last, ""), Next: []string{}, Late: isLate(s, now), Type: s.Body.MessageType(),
	}
	if s.Overlap == cron.Skip {
		l.Overlap, l.Queue, l.Skips, l.Skipped, l.Item = s.Overlap.String(), queueOf(category, s), s.Skips, timeOrNone(s.Skipped, ""), int64(s.Item)
	}
	for _, at := range next {
		l.Next = append(l.Next, timeText(at))
	}
	if raw, is := s.Body.(messagestore.Raw); is {
		l.Data = raw.Data
	}
	return l
}

// queueOf is the queue of a schedule whose ticks are skipped.
func queueOf(category messagestore.Category, s cron.Status) string {
	return cmp.Or(s.Queue, string(category))
}

func zoneOf(s cron.Schedule) string {
	if s.Zone == "" {
		return "UTC"
	}
	return s.Zone
}

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
	Category string `arg:"" optional:"" help:"The category of the items. Defaults to all."`
}

// Help is printed below the command's usage.
func (cronLsCommand) Help() string {
	return `A line for each schedule: the category of its items, its name, which is their key, its times, their zone, which of the ticks come for which no process was there, the last tick that came, the next one, and how many were skipped since the item of the one before was not finished. A next tick that is over is late: no process runs the schedules of the category. A schedule that cannot be read is named on the standard error after the others, and the exit code is 1.

Examples:

    dibs cron ls
    dibs cron ls reports --json`
}

// Run prints them.
func (c *cronLsCommand) Run(ctx context.Context, a *app) error {
	var categories []messagestore.Category
	if c.Category != "" {
		category, err := toCategory(c.Category)
		if err != nil {
			return err
		}
		categories = append(categories, category)
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		if c.Category == "" {
			var err error
			if categories, err = withSideCategory(ctx, store, "schedule"); err != nil {
				return err
			}
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
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
				if err := c.print(a, category, s, now, printed == 0); err != nil {
					return err
				}
				printed++
			}
		}
		if printed == 0 && wrong == nil {
			a.nothing("no schedule is set")
		}
		return wrong
	})
}

func (c *cronLsCommand) print(a *app, category messagestore.Category, s cron.Status, now time.Time, first bool) error {
	if a.JSON {
		next, err := ticksOf(s, 1)
		if err != nil {
			return err
		}
		return a.out.object(toScheduleLine(category, s, next, now))
	}
	if first {
		if err := a.out.row(cell{text: "category"}, cell{text: "name"}, cell{text: "spec"}, cell{text: "zone"}, cell{text: "catch-up"},
			cell{text: "last"}, cell{text: "next"}, cell{text: "type"}, cell{text: ""}); err != nil {
			return err
		}
	}
	return a.out.row(cell{text: visible(string(category))}, cell{text: shorten(visible(s.Name)), style: bold}, cell{text: visible(s.Spec)}, cell{text: visible(zoneOf(s.Schedule))},
		cell{text: s.CatchUp.String()}, cell{text: timeOrNone(s.Last, "-"), style: dim}, cell{text: timeOrNone(s.Next, "never")}, cell{text: visible(s.Body.MessageType())},
		noteCell(s, now))
}

func noteCell(s cron.Status, now time.Time) cell {
	var c cell
	if s.Skips > 0 {
		c = cell{text: fmt.Sprintf("%d skipped", s.Skips), style: yellow}
	}
	if isLate(s, now) {
		c = cell{text: strings.TrimSuffix("late, "+c.text, ", "), style: red}
	}
	return c
}

// A namedSchedule names the schedule that a command is about.
type namedSchedule struct {
	Category string `arg:"" help:"The category of the items, as reports."`
	Name     string `arg:"" help:"The schedule's name, which is the key of its items."`
}

type cronShowCommand struct {
	namedSchedule

	Next int `default:"5" placeholder:"N" help:"Print the next N ticks, 1 to 1000. Defaults to 5."`
}

// Help is printed below the command's usage.
func (cronShowCommand) Help() string {
	return `The next ticks are printed in UTC and as the clocks of the schedule's zone show them, so a change of the clocks is seen before it comes.

Example:

    dibs cron show reports daily --next 10`
}

// Run prints it.
func (c *cronShowCommand) Run(ctx context.Context, a *app) error {
	if c.Next < 1 || c.Next > 1000 {
		return usage("--next=%d: it is 1 to 1000", c.Next)
	}
	return a.withCron(ctx, c.Category, func(store *messagestore.Store, kept *cron.Cron) error {
		s, err := scheduled(ctx, kept, c.Category, c.Name)
		if err != nil {
			return err
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		return printSchedule(a, messagestore.Category(c.Category), s, c.Next, now)
	})
}

func printSchedule(a *app, category messagestore.Category, s cron.Status, n int, now time.Time) error {
	next, err := ticksOf(s, n)
	if err != nil {
		return err
	}
	line := toScheduleLine(category, s, next, now)
	if a.JSON {
		return a.out.object(line)
	}
	if err := a.out.line("%s", a.out.styled(visible(s.Name)+" of "+visible(string(category)), bold)); err != nil {
		return err
	}
	data := ""
	if raw, is := s.Body.(messagestore.Raw); is {
		data = dataText(raw.Data)
	}
	rows := [][2]string{
		{"spec", visible(s.Spec)},
		{"zone", visible(line.Zone)},
		{"catch-up", line.CatchUp},
		{"set", line.From},
		{"last", timeOrNone(s.Last, "-")},
		{"type", visible(line.Type)},
		{"data", data},
	}
	if s.Overlap == cron.Skip {
		rows = slices.Insert(rows, 3, [2]string{"overlap", fmt.Sprintf("skip, while an item of queue %s is not finished", visible(line.Queue))})
	}
	if s.Skips > 0 {
		rows = append(rows, [2]string{"skipped", fmt.Sprintf("%d, the last %s", s.Skips, line.Skipped)})
	}
	if s.Skips > 0 && s.Skipped.After(s.Last) && s.Item > 0 {
		rows = append(rows, [2]string{"behind", fmt.Sprintf("item %d: dibs queue show %s %d", s.Item, visible(line.Queue), s.Item)})
	}
	for _, row := range rows {
		if err := a.out.row(cell{text: row[0], style: dim}, cell{text: row[1]}); err != nil {
			return err
		}
	}
	zone, err := time.LoadLocation(line.Zone)
	if err != nil {
		return err
	}
	for i, at := range next {
		label, note := "", cell{}
		if i == 0 {
			label, note = "next", cell{}
			if isLate(s, now) {
				note = cell{text: "late", style: red}
			}
		}
		if err := a.out.row(cell{text: label, style: dim}, cell{text: timeText(at)}, cell{text: at.In(zone).Format("Mon 2006-01-02 15:04:05 MST")}, note); err != nil {
			return err
		}
	}
	return nil
}

type cronSetCommand struct {
	namedSchedule

	Spec    string `arg:"" help:"When items come: five fields as in a crontab, or @yearly, @monthly, @weekly, @daily, @hourly or \"@every 90s\"."`
	Type    string `arg:"" help:"Type of the items' messages, like Report."`
	Data    string `arg:"" optional:"" help:"Their data, a JSON object; - reads it from the standard input. Defaults to {}."`
	Zone    string `placeholder:"ZONE" help:"The time zone of the fields, like Europe/Prague. Defaults to UTC."`
	CatchUp string `enum:"last,none,all" default:"last" placeholder:"WHICH" help:"Of the ticks for which no process was there the last comes, none or all. Defaults to last."`
	Overlap string `enum:"allow,skip" default:"allow" placeholder:"WHICH" help:"A tick that comes while the item of the one before it is not finished is allowed, or skipped. Defaults to allow."`
	Queue   string `placeholder:"QUEUE" help:"The queue whose item that is, with --overlap skip. Defaults to the category's."`
	New     bool   `help:"Change no schedule that there is: exit with 3 if there is another of the name."`
}

// Help is printed below the command's usage.
func (cronSetCommand) Help() string {
	return `The five fields are minute, hour, day of the month, month and day of the week. Ticks come from now on. What is due of a schedule that is changed comes first, with the data that it had. Setting the same again changes nothing. Processes that run the schedules follow within a second. In the end the schedule is printed with its next ticks.

Examples:

    dibs cron set reports daily '0 6 * * *' Report --zone Europe/Prague
    dibs cron set mail digest '@every 90s' Digest --catch-up none --new
    dibs cron set mail rebuild '@hourly' Rebuild --overlap skip`
}

// Run sets it.
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
	return a.withCron(ctx, c.Category, func(store *messagestore.Store, kept *cron.Cron) error {
		set := kept.Set
		if c.New {
			set = kept.Add
		}
		if err := set(ctx, s); err != nil {
			return err
		}
		is, err := scheduled(ctx, kept, c.Category, c.Name)
		if err != nil {
			return err
		}
		return printSchedule(a, messagestore.Category(c.Category), is, 3, is.From)
	})
}

type cronRemoveCommand struct{ namedSchedule }

// Help is printed below the command's usage.
func (cronRemoveCommand) Help() string {
	return `No tick comes from a second later on. Items that came before stay in their queues.

Example:

    dibs cron remove reports daily`
}

// Run removes it.
func (c *cronRemoveCommand) Run(ctx context.Context, a *app) error {
	return a.withCron(ctx, c.Category, func(_ *messagestore.Store, kept *cron.Cron) error {
		err := kept.Remove(ctx, c.Name)
		if errors.Is(err, messagestore.ErrNotFound) {
			_, err = scheduled(ctx, kept, c.Category, c.Name)
		}
		if err != nil {
			return err
		}
		if a.JSON {
			return a.out.object(map[string]any{"category": c.Category, "name": c.Name, "removed": true})
		}
		return a.out.line("removed %s of %s", visible(c.Name), visible(c.Category))
	})
}

type cronRunCommand struct {
	Categories []string `arg:"" optional:"" help:"Run the schedules of these categories. Defaults to all, also schedules that are set later."`
}

// Help is printed below the command's usage.
func (cronRunCommand) Help() string {
	return `It inserts the items of schedules at their times, until it is interrupted. Any number of processes may run the same schedules, of this command and of programs: each tick comes once, and if a process ends, the others go on. It needs the role dibs_writer. Outages of the store are logged to the standard error, and waited for. The items wait in their category for a worker.

Examples:

    dibs cron run
    dibs cron run reports mail`
}

// lookEvery is how often cron run looks for categories with a first schedule.
const lookEvery = 5 * time.Second

// Run runs them.
func (c *cronRunCommand) Run(ctx context.Context, a *app) error {
	var categories []messagestore.Category
	for _, name := range c.Categories {
		category, err := toCategory(name)
		if err != nil {
			return err
		}
		categories = append(categories, category)
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		r := &cronRunner{app: a, store: store, running: map[messagestore.Category]bool{}, ended: make(chan error, 1)}
		ctx, cancel := context.WithCancel(ctx)
		defer r.group.Wait()
		defer cancel()
		if len(categories) > 0 {
			if _, err := store.Now(ctx); err != nil {
				return err
			}
			if err := r.begin(ctx, categories); err != nil {
				return err
			}
			return r.wait(ctx, nil)
		}
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for first := true; ; first = false {
			found, err := withSideCategory(ctx, store, "schedule")
			switch {
			case err != nil && first: // a store that cannot be read at the start is a mistake
				return err
			case err != nil && ctx.Err() == nil:
				a.warn("dibs: %s; it goes on\n", a.redact(visible(oneLineOf(err.Error()))))
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
		if err != nil {
			return err
		}
		if r.app.JSON {
			err = r.app.out.object(map[string]any{"category": category, "runs": true})
		} else {
			err = r.app.out.line("runs the schedules of %s", visible(string(category)))
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
