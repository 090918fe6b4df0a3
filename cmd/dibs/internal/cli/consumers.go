package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

type consumersCommand struct {
	List   consumersListCommand   `cmd:"" default:"withargs" help:"Print the position and the lag of each consumer."`
	Reset  consumersResetCommand  `cmd:"" help:"Move a consumer to another position."`
	Pause  consumersPauseCommand  `cmd:"" help:"Have a consumer take no messages until it is resumed."`
	Resume consumersResumeCommand `cmd:"" help:"Have a paused consumer go on."`
	Park   consumersParkCommand   `cmd:"" help:"Have a consumer park the message that it is stuck at."`
}

type consumersListCommand struct {
	Category string `arg:"" optional:"" help:"The category that the consumers read. Defaults to all."`
}

// Help is printed below the command's usage.
func (consumersListCommand) Help() string {
	return `A line for each consumer, and for each of its replicas: its position, its lag in messages of the category (above 100000 it says so), the age of the oldest of these, the time of the checkpoint, and the number of parked messages. A consumer that reads only some types may have less to do. A message whose handler fails has a line: its place, the attempt, since when it fails, and the error. The 10 that began first are printed, and the number of the others. A replica has its slots of 32 at the end of the line, and is gone if it has been silent for longer than its lease. Positions of Eventide's consumers are printed too, as foreign.

Examples:

    dibs consumers
    dibs consumers list account:command
    dibs consumers reset account:command accounts --start --dry-run`
}

// Run prints them.
func (c *consumersListCommand) Run(ctx context.Context, a *app) error {
	var category messagestore.Category
	if c.Category != "" {
		var err error
		if category, err = toCategory(c.Category); err != nil {
			return err
		}
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		categories := []messagestore.Category{category}
		if category == "" {
			var err error
			if categories, err = withSideCategory(ctx, store, "position"); err != nil {
				return err
			}
		}
		printed := false
		for _, category := range categories {
			all, err := operate.Consumers(ctx, store, category)
			if err != nil {
				return err
			}
			for _, s := range all {
				if !printed && !a.JSON {
					if err := a.out.row(consumersHeader...); err != nil {
						return err
					}
				}
				printed = true
				if err := a.printConsumer(s, time.Now()); err != nil {
					return err
				}
			}
		}
		switch {
		case printed:
		case c.Category != "":
			if err := requireCategory(ctx, store, category); err != nil {
				return err
			}
			a.nothing("no consumer of %s has recorded a position", visible(c.Category))
		default:
			a.nothing("no consumer has recorded a position")
		}
		return nil
	})
}

// withSideCategory returns the categories for which consumers keep something in a
// category of its own, such as positions.
func withSideCategory(ctx context.Context, store *messagestore.Store, side string) ([]messagestore.Category, error) {
	found, err := store.Categories(ctx, side)
	if err != nil {
		return nil, err
	}
	var categories []messagestore.Category
	for _, category := range found {
		for _, separator := range []string{":", "+"} {
			of, ok := strings.CutSuffix(string(category), separator+side)
			base := messagestore.Category(of)
			// Another client may have any name there.
			if ok && base.Validate() == nil && base.WithType(side) == category {
				categories = append(categories, base)
			}
		}
	}
	slices.Sort(categories)
	return categories, nil
}

var consumersHeader = []cell{
	{text: "category"},
	{text: "consumer"},
	{text: "replica"},
	{text: "position", right: true},
	{text: "lag", right: true},
	{text: "behind", right: true},
	{text: "recorded"},
	{text: "parked", right: true},
	{text: ""},
}

// A consumerLine is how a consumer is printed as JSON.
type consumerLine struct {
	Category   messagestore.Category `json:"category"`
	Consumer   string                `json:"consumer"`
	Foreign    bool                  `json:"foreign,omitempty"`
	Generation *messagestore.Version `json:"generation,omitempty"`
	StartedAt  string                `json:"startedAt,omitempty"`
	PausedAt   string                `json:"pausedAt,omitempty"`

	Position   *messagestore.GlobalPosition `json:"position,omitempty"` // unless it is corrupt
	RecordedAt string                       `json:"recordedAt,omitempty"`
	Lag        *int64                       `json:"lag,omitempty"` // unless there is an error
	AtLeast    bool                         `json:"lagIsAtLeast,omitempty"`
	LagSeconds *float64                     `json:"lagSeconds,omitempty"`
	Oldest     string                       `json:"oldest,omitempty"`

	Parked    int           `json:"parked"`
	Replicas  []replicaLine `json:"replicas,omitempty"`
	FreeSlots int           `json:"freeSlots,omitempty"`
	failingLines
	Error string `json:"error,omitempty"`
}

type replicaLine struct {
	ID            string                      `json:"id"`
	Process       string                      `json:"process"`
	Slots         int                         `json:"slots"` // of 32
	Position      messagestore.GlobalPosition `json:"position"`
	Lag           int64                       `json:"lag"`
	AtLeast       bool                        `json:"lagIsAtLeast,omitempty"`
	SilentSeconds float64                     `json:"silentSeconds"`
	Gone          bool                        `json:"gone,omitempty"`
	Alone         bool                        `json:"alone,omitempty"`
}

func toConsumerLine(s operate.Status, now time.Time) consumerLine {
	l := consumerLine{
		Category: s.Category, Consumer: s.Name, Foreign: s.Foreign, Parked: s.Parked,
		StartedAt: timeOrNone(s.StartedAt, ""), PausedAt: timeOrNone(s.PausedAt, ""), RecordedAt: timeOrNone(s.RecordedAt, ""),
		AtLeast: s.AtLeast, Oldest: timeOrNone(s.Oldest, ""), Error: errorText(cmp.Or(s.Err, s.PositionErr)),
	}
	if !s.Foreign {
		l.Generation = &s.Generation
	}
	if s.Err == nil && !errors.Is(s.PositionErr, consumer.ErrPositionCorrupt) {
		l.Position = &s.Position
	}
	if s.Err == nil && s.PositionErr == nil {
		seconds := behind(s, now).Seconds()
		l.Lag, l.LagSeconds = &s.Lag, &seconds
	}
	l.FreeSlots = s.Free
	l.failingLines = toFailingLines(s)
	for _, r := range s.Replicas {
		l.Replicas = append(l.Replicas, replicaLine{
			ID: r.ID.String(), Process: r.Process, Slots: r.Slots, Position: r.Position, Lag: r.Lag, AtLeast: r.AtLeast,
			SilentSeconds: r.Silent.Truncate(time.Millisecond).Seconds(), Gone: r.Gone, Alone: r.Resting,
		})
	}
	return l
}

// printReplicas prints a line for each process of a consumer.
func (a *app) printReplicas(s operate.Status, name cell) error {
	for _, r := range s.Replicas {
		position, lag := strconv.FormatInt(int64(r.Position), 10), strconv.FormatInt(r.Lag, 10)
		if r.AtLeast {
			lag = ">" + lag
		}
		if r.Slots == 0 {
			position, lag = "-", "-"
		}
		note := cell{text: fmt.Sprintf("%d of %d slots, silent for %s", r.Slots, operate.Slots, ageText(r.Silent))}
		switch {
		case r.Gone:
			note.text, note.style = "gone: "+note.text, red
		case r.Resting:
			note.text = "alone"
		case r.Slots == 0:
			note.text = "stands by, silent for " + ageText(r.Silent)
		}
		err := a.out.row(cell{text: visible(string(s.Category))}, name, cell{text: visible(r.Process)},
			cell{text: position, right: true}, cell{text: lag, right: true}, cell{text: "-", right: true}, cell{text: "-", style: dim}, cell{right: true}, note)
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printConsumer(s operate.Status, now time.Time) error {
	if a.JSON {
		return a.out.object(toConsumerLine(s, now))
	}
	name := cell{text: visible(s.Name), style: bold}
	if name.text == "" {
		name.text = "-"
	}
	if s.Err != nil {
		return a.out.row(cell{text: visible(string(s.Category))}, name, cell{text: "-"}, cell{text: "-", right: true}, cell{text: "-", right: true},
			cell{text: "-", right: true}, cell{text: "-"}, cell{text: strconv.Itoa(s.Parked), right: true}, cell{text: visible(s.Err.Error()), style: red})
	}
	parked, note := strconv.Itoa(s.Parked), cell{}
	switch {
	case s.Foreign:
		parked, note.text = "-", "foreign"
	case !s.PausedAt.IsZero():
		note = cell{text: "paused since " + timeText(s.PausedAt), style: yellow}
	}
	position, lag, waited := strconv.FormatInt(int64(s.Position), 10), strconv.FormatInt(s.Lag, 10), ageText(behind(s, now))
	if errors.Is(s.PositionErr, consumer.ErrPositionCorrupt) {
		position = "-"
	}
	if s.AtLeast {
		lag = ">" + lag
	}
	if s.PositionErr != nil {
		if note.text != "" {
			note.text += ": "
		}
		lag, waited, note = "-", "-", cell{text: note.text + visible(s.PositionErr.Error()), style: red}
	}
	err := a.out.row(cell{text: visible(string(s.Category))}, name, cell{text: "-"},
		cell{text: position, right: true}, cell{text: lag, right: true}, cell{text: waited, right: true},
		cell{text: timeOrNone(s.RecordedAt, "-"), style: dim}, cell{text: parked, right: true}, note)
	if err != nil {
		return err
	}
	if err := a.printReplicas(s, name); err != nil {
		return err
	}
	return a.printFailing(s, name)
}

// behind returns how long the oldest message has waited, by two clocks.
func behind(s operate.Status, now time.Time) time.Duration {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Oldest).Truncate(time.Millisecond))
}

// ageText returns d in full seconds.
func ageText(d time.Duration) string { return d.Truncate(time.Second).String() }

func timeOrNone(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return timeText(t)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type consumersResetCommand struct {
	Category string `arg:"" help:"The category that the consumer reads."`
	Name     string `arg:"" help:"The consumer's name."`
	Position *int64 `placeholder:"P" help:"Read from this global position: every message before it counts as handled."`
	Time     string `placeholder:"TIME" help:"Read from the first message written then or later, like 2026-11-21T10:00:00Z."`
	Start    bool   `help:"Handle everything again."`
	End      bool   `help:"Handle only messages written from now on."`
	New      bool   `help:"The consumer has never started: let it begin there."`
	DryRun   bool   `help:"Print the effect, and do nothing."`
	Yes      bool   `help:"Do it."`
}

// Help is printed below the command's usage.
func (consumersResetCommand) Help() string {
	return `All members of the consumer's group move to the same position. Running members are superseded: each starts over at the new position within 10 s, and its process goes on. A checkpoint that it writes in between does not count, but until then it handles messages. Pause the consumer first, and no message is handled from the old position after the reset.

With --new a consumer that has never started begins at the position, whatever its Config.Start says.

Examples:

    dibs consumers reset account mail --end --new --yes

    dibs consumers reset account:command accounts --time 2026-11-21T10:00:00Z
    dibs consumers reset account:command accounts --position 1200 --yes`
}

// Run resets.
func (c *consumersResetCommand) Run(ctx context.Context, a *app) error {
	category, err := parseConsumer(c.Category, c.Name)
	if err != nil {
		return err
	}
	position, err := c.where()
	if err != nil {
		return err
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		to, err := position(ctx, store, category)
		if err != nil {
			return err
		}
		before, err := statusOf(ctx, store, category, c.Name)
		switch {
		case c.New && err == nil:
			return &operate.KnownConsumerError{Category: category, Name: c.Name}
		case c.New && isUnknownConsumer(err):
			before = operate.Status{}
		case isUnknownConsumer(err):
			return fmt.Errorf("%w; --new lets one begin that has never started", err)
		case err != nil:
			return err
		}
		end, err := store.End(ctx, category)
		if err != nil {
			return err
		}
		if to > end { // which a dry run has to say too
			return &operate.BeyondEndError{Category: category, Position: to, End: end}
		}
		r := resetLine{Category: category, Consumer: c.Name, Position: to, DryRun: !c.Yes || c.DryRun}
		if target := operate.Consumer(store, category, c.Name); !r.DryRun {
			move := operate.Move{From: before.Position} // of a new consumer to the first generation
			if c.New {
				err = target.Create(ctx, to)
			} else {
				move, err = target.Reset(ctx, to)
			}
			if err != nil {
				return err
			}
			r.Generation, before.Position, before.PositionErr = &move.Generation, move.From, move.FromErr
		}
		if err := r.measure(ctx, store, before); err != nil {
			return err
		}
		if err := a.printReset(r); err != nil {
			return err
		}
		if !c.Yes && !c.DryRun {
			return &usageError{errors.New("nothing was changed: say --yes to do it"), "see dibs consumers reset --help"}
		}
		return nil
	})
}

// where returns a function that finds the new position.
func (c *consumersResetCommand) where() (func(context.Context, *messagestore.Store, messagestore.Category) (messagestore.GlobalPosition, error), error) {
	given := 0
	for _, is := range []bool{c.Position != nil, c.Time != "", c.Start, c.End} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, usage("give the new position: one of --position, --time, --start and --end")
	}
	to := messagestore.GlobalPosition(0)
	if c.Position != nil {
		if to = messagestore.GlobalPosition(*c.Position); to < 0 {
			return nil, usage("--position=%d: it is at least 0", to)
		}
	}
	if c.Time != "" {
		at, err := time.Parse(time.RFC3339Nano, c.Time)
		if err != nil {
			return nil, usage("--time=%s: it is like 2026-11-21T10:00:00Z, or 2026-11-21T11:00:00+01:00", visible(c.Time))
		}
		return func(ctx context.Context, store *messagestore.Store, category messagestore.Category) (messagestore.GlobalPosition, error) {
			return store.PositionAt(ctx, category, at)
		}, nil
	}
	if c.End {
		return func(ctx context.Context, store *messagestore.Store, category messagestore.Category) (messagestore.GlobalPosition, error) {
			return store.End(ctx, category)
		}, nil
	}
	return func(context.Context, *messagestore.Store, messagestore.Category) (messagestore.GlobalPosition, error) {
		return to, nil
	}, nil
}

// parseConsumer returns the category of a consumer, unless that or the name is none.
func parseConsumer(category, name string) (messagestore.Category, error) {
	c, err := toCategory(category)
	if err == nil {
		err = operate.CheckConsumer(c, name)
	}
	return c, err
}

// statusOf returns where one consumer is.
func statusOf(ctx context.Context, store *messagestore.Store, category messagestore.Category, name string) (operate.Status, error) {
	all, err := operate.Consumers(ctx, store, category)
	if err != nil {
		return operate.Status{}, err
	}
	unknown, foreign := &operate.UnknownConsumerError{Category: category, Name: name}, false
	for _, s := range all {
		switch {
		case s.Foreign && s.Name == name:
			foreign = true
		case s.Foreign:
		case s.Name == name:
			return s, s.Err
		default:
			unknown.Known = append(unknown.Known, s.Name)
		}
	}
	if foreign {
		return operate.Status{}, usage("consumer %s of %s is another client's, which Dibs neither moves nor pauses: it writes its positions by itself", visible(name), visible(string(category)))
	}
	return operate.Status{}, unknown
}

// A resetLine is how a reset is printed as JSON.
type resetLine struct {
	Category   messagestore.Category       `json:"category"`
	Consumer   string                      `json:"consumer"`
	Position   messagestore.GlobalPosition `json:"position"`
	Generation *messagestore.Version       `json:"generation,omitempty"`
	DryRun     bool                        `json:"dryRun,omitempty"`
	From       messagestore.GlobalPosition `json:"from"`
	Again      int64                       `json:"again"`  // messages that are handled again
	Passed     int64                       `json:"passed"` // messages that are passed over
	AtLeast    bool                        `json:"isAtLeast,omitempty"`
	Error      string                      `json:"error,omitempty"` // why from is not the real position
}

// measure fills in where the consumer was before, and counts the messages that it handles again, or not at all.
func (r *resetLine) measure(ctx context.Context, store *messagestore.Store, before operate.Status) error {
	r.From, r.Error = before.Position, errorText(before.PositionErr)
	if before.PositionErr != nil {
		return nil //nolint:nilerr // it is in the line
	}
	q := messagestore.CategoryQuery{Category: r.Category, From: min(r.From, r.Position), Limit: operate.MaxLag + 1}
	all, err := store.Count(ctx, q)
	if err != nil {
		return err
	}
	q.From = max(r.From, r.Position)
	rest, err := store.Count(ctx, q)
	if err != nil {
		return err
	}
	r.AtLeast = all > operate.MaxLag
	if r.Position < r.From {
		r.Again = all - rest
	} else {
		r.Passed = all - rest
	}
	return nil
}

func (a *app) printReset(r resetLine) error {
	if a.JSON {
		return a.out.object(r)
	}
	does := "goes"
	if r.DryRun {
		does = "would go"
	}
	what := "which changes nothing for it"
	some := func(n int64) string {
		text := counted(n, "message")
		if r.AtLeast {
			text = "at least " + text
		}
		return text
	}
	switch {
	case r.Error != "":
		what = "with an unknown effect (" + visible(r.Error) + ")"
	case r.Again > 0 || r.Position < r.From && r.AtLeast:
		what = "handling " + some(r.Again) + " again"
	case r.Passed > 0 || r.Position > r.From && r.AtLeast:
		what = "passing over " + some(r.Passed)
	}
	err := a.out.line("%s of %s %s from %d to %d, %s", visible(r.Consumer), visible(string(r.Category)), does, r.From, r.Position, what)
	if err != nil || r.DryRun {
		return err
	}
	return a.out.line("members that run find out within 10 s, and start over there")
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
