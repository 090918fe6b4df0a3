package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/consumer"
	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// A consumersCommand is dibs consumers: it shows where consumers are, resets, pauses and resumes
// them, and has one park a message.
type consumersCommand struct {
	List   consumersListCommand   `cmd:"" default:"withargs" help:"Print the position and the lag of each consumer."`
	Reset  consumersResetCommand  `cmd:"" help:"Move a consumer to another position."`
	Pause  consumersPauseCommand  `cmd:"" help:"Have a consumer take no messages until it is resumed."`
	Resume consumersResumeCommand `cmd:"" help:"Have a paused consumer go on."`
	Park   consumersParkCommand   `cmd:"" help:"Have a consumer park the message that it is stuck at."`
}

// aConsumer names one.
type aConsumer struct {
	Category messagestore.Category `arg:"" help:"The category that the consumer reads."`
	Name     string                `arg:"" help:"The consumer's name."`
}

// withConsumer calls f with a consumer that there may be.
func (a *app) withConsumer(ctx context.Context, c aConsumer, f func(store *messagestore.Store, target *consumers.Target) error) error {
	if err := consumers.CheckConsumer(c.Category, c.Name); err != nil {
		return err
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		return f(store, consumers.Consumer(store, c.Category, c.Name))
	})
}

// status returns where the consumer is.
func (c aConsumer) status(ctx context.Context, store *messagestore.Store) (consumers.Status, error) {
	all, err := consumers.Consumers(ctx, store, c.Category)
	if err != nil {
		return consumers.Status{}, err
	}
	unknown, foreign := &consumers.UnknownConsumerError{Category: c.Category, Name: c.Name}, false
	for _, s := range all {
		switch {
		case s.Foreign && s.Name == c.Name:
			foreign = true
		case s.Foreign:
		case s.Name == c.Name:
			return s, s.Err
		default:
			unknown.Known = append(unknown.Known, s.Name)
		}
	}
	if foreign {
		return consumers.Status{}, usage("consumer %s of %s is another client's, which Dibs neither moves nor pauses: it writes its positions by itself", c.Name, c.Category)
	}
	return consumers.Status{}, unknown
}

// statuses returns where the consumers are, of one category or of all.
func statuses(ctx context.Context, store *messagestore.Store, only messagestore.Category) ([]consumers.Status, error) {
	if only != "" {
		return consumers.Consumers(ctx, store, only)
	}
	return operate.Consumers(ctx, store)
}

type consumersListCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category that the consumers read. Defaults to all."`
}

func (c *consumersListCommand) Run(ctx context.Context, a *app) error {
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		all, err := statuses(ctx, store, c.Category)
		if err != nil {
			return err
		}
		a.out.table("category", "consumer", "replica", ">position", ">lag", ">behind", "recorded", ">parked", "")
		for _, s := range all {
			a.printConsumer(s, time.Now())
		}
		if len(all) > 0 {
			return nil
		}
		if err := operate.RequireCategory(ctx, store, c.Category); err != nil {
			return err
		}
		of := ""
		if c.Category != "" {
			of = " of " + string(c.Category)
		}
		a.nothing("no consumer%s has recorded a position", of)
		return nil
	})
}

// consumerFields are how a consumer is printed as JSON.
func consumerFields(s consumers.Status, now time.Time) fields {
	var replicas []fields
	for _, r := range s.Replicas {
		replicas = append(replicas, fields{
			"id", r.ID, "process", r.Process, "slots", r.Slots, "position", r.Position, "lag", r.Lag, "lagIsAtLeast?", r.AtLeast,
			"silentSeconds", r.Silent.Truncate(time.Millisecond).Seconds(), "gone?", r.Gone, "alone?", r.Resting,
		})
	}
	isKnown := s.Err == nil && s.PositionErr == nil
	l := fields{
		"category", s.Category, "consumer", s.Name, "foreign?", s.Foreign, "generation?", known(!s.Foreign, s.Generation),
		"startedAt?", s.StartedAt, "pausedAt?", s.PausedAt,
		"position?", known(s.Err == nil && !errors.Is(s.PositionErr, consumer.ErrPositionCorrupt), s.Position), "recordedAt?", s.RecordedAt,
		"lag?", known(isKnown, s.Lag), "lagIsAtLeast?", s.AtLeast, "lagSeconds?", known(isKnown, behind(s, now).Seconds()), "oldest?", s.Oldest,
		"parked", s.Parked, "replicas?", replicas, "freeSlots?", s.Free,
	}
	return append(append(l, failingFields(s)...), "error?", cmp.Or(s.Err, s.PositionErr))
}

// failingFields are the failing messages of a consumer.
func failingFields(s consumers.Status) fields {
	var failing []fields
	for _, f := range s.Failing {
		failing = append(failing, fields{
			"id", f.ID, "type", f.Type, "stream", f.Stream, "position", f.Position, "globalPosition", f.GlobalPosition,
			"attempts", f.Attempts, "firstFailedAt", f.FirstFailedAt, "error", f.Error,
		})
	}
	return fields{"failing?", failing, "moreFailing?", s.MoreFailing}
}

// failingText tells of a failing message, with the text of its error.
func failingText(f consumers.Failure, says string) string {
	return fmt.Sprintf("fails at %d, %s %s: attempt %d since %s: %s", f.GlobalPosition, f.Type, placeOf(f.Stream, f.Position), f.Attempts, text.Time(f.FirstFailedAt), says)
}

// atLeast returns a count that may have been cut.
func atLeast(n int64, more bool) cell {
	c := toCell(n)
	if more {
		c.text = ">" + c.text
	}
	return c
}

// printConsumer prints a line for a consumer, for each of its processes, and for each message that fails.
func (a *app) printConsumer(s consumers.Status, now time.Time) {
	if a.JSON {
		a.out.object(consumerFields(s, now))
		return
	}
	name := in(bold, cmp.Or(s.Name, "-"))
	var position, lag, waited, parked, note any = s.Position, atLeast(s.Lag, s.AtLeast), ageText(behind(s, now)), s.Parked, ""
	foreign := ""
	switch {
	case s.Foreign:
		parked, note, foreign = "", "foreign", "foreign: "
	case !s.PausedAt.IsZero():
		note = in(yellow, "paused since "+text.Time(s.PausedAt))
	}
	if s.Err != nil || errors.Is(s.PositionErr, consumer.ErrPositionCorrupt) {
		position = ""
	}
	if err := cmp.Or(s.Err, s.PositionErr); err != nil {
		lag, waited, note = "", "", in(red, foreign+err.Error())
	}
	a.out.row(nil, s.Category, name, "", position, lag, waited, s.RecordedAt, parked, note)
	for _, r := range s.Replicas {
		var position, lag any = r.Position, atLeast(r.Lag, r.AtLeast)
		if r.Slots == 0 {
			position, lag = "", ""
		}
		note := in(plain, fmt.Sprintf("%d of %d slots, silent for %s", r.Slots, consumers.Slots, ageText(r.Silent)))
		switch {
		case r.Gone:
			note = in(red, "gone: "+note.text)
		case r.Resting:
			note.text = "alone"
		case r.Slots == 0:
			note.text = "stands by, silent for " + ageText(r.Silent)
		}
		a.out.row(nil, s.Category, name, r.Process, position, lag, "", "", "", note)
	}
	for _, f := range s.Failing {
		a.out.row(nil, s.Category, name, in(red, failingText(f, f.Error)))
	}
	if s.MoreFailing > 0 {
		a.out.row(nil, s.Category, name, in(red, fmt.Sprintf("and %s that fail", text.Number(s.MoreFailing, "more message"))))
	}
}

// behind returns how long the oldest message has waited, by two clocks.
func behind(s consumers.Status, now time.Time) time.Duration {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Oldest).Truncate(time.Millisecond))
}

// ageText returns d in full seconds.
func ageText(d time.Duration) string { return d.Truncate(time.Second).String() }

type consumersResetCommand struct {
	aConsumer
	Position *messagestore.GlobalPosition `placeholder:"P" help:"Read from this global position: every message before it counts as handled."`
	Time     moment                       `placeholder:"TIME" help:"Read from the first message written then or later, like 2026-11-21T10:00:00Z."`
	Start    bool                         `help:"Handle everything again."`
	End      bool                         `help:"Handle only messages written from now on."`
	New      bool                         `help:"The consumer has never started: let it begin there."`
	DryRun   bool                         `help:"Print the effect, and do nothing."`
	Yes      bool                         `help:"Do it."`
}

func (c *consumersResetCommand) Run(ctx context.Context, a *app) error {
	given := 0
	for _, is := range []bool{c.Position != nil, !c.Time.IsZero(), c.Start, c.End} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return usage("give the new position: one of --position, --time, --start and --end")
	case c.Position != nil && *c.Position < 0:
		return usage("--position=%d: must be at least 0", *c.Position)
	}
	return a.withConsumer(ctx, c.aConsumer, func(store *messagestore.Store, target *consumers.Target) error {
		end, err := store.End(ctx, c.Category)
		if err != nil {
			return err
		}
		to := messagestore.GlobalPosition(0)
		switch {
		case c.Position != nil:
			to = *c.Position
		case c.End:
			to = end
		case !c.Start:
			if to, err = store.PositionAt(ctx, c.Category, c.Time.Time); err != nil {
				return err
			}
		}
		before, err := c.status(ctx, store)
		unknown := is[*consumers.UnknownConsumerError](err)
		switch {
		case c.New && err == nil:
			return &consumers.KnownConsumerError{Category: c.Category, Name: c.Name}
		case unknown && !c.New:
			return fmt.Errorf("%w; --new lets one begin that has never started", err)
		case err != nil && !unknown:
			return err
		}
		if to > end { // which a dry run has to say too
			return &consumers.BeyondEndError{Category: c.Category, Position: to, End: end}
		}
		var generation any
		dry := !c.Yes || c.DryRun
		if !dry {
			move := consumers.Move{From: before.Position} // of a new consumer to the first generation
			if c.New {
				err = target.Create(ctx, to)
			} else {
				move, err = target.Reset(ctx, to)
			}
			if err != nil {
				return err
			}
			generation, before.Position, before.PositionErr = &move.Generation, move.From, move.FromErr
		}
		again, passed, cut, err := c.measure(ctx, store, before, to)
		if err != nil {
			return err
		}
		does := "goes"
		if dry {
			does = "would go"
		}
		object := fields{
			"category", c.Category, "consumer", c.Name, "position", to, "generation?", generation, "dryRun?", dry, "from", before.Position,
			"again", again, "passed", passed, "isAtLeast?", cut, "error?", before.PositionErr,
		}
		err = a.out.tell(object, "%s of %s %s from %d to %d, %s", c.Name, c.Category, does, before.Position, to, effectText(before, to, again, passed, cut))
		switch {
		case !dry:
			a.out.line("members that run find out within 10 s, and start over there")
		case !c.DryRun:
			return hinted(usage("nothing was changed: say --yes to do it"), "see dibs consumers reset --help")
		}
		return err
	})
}

// measure counts the messages that a consumer handles again, or that it passes over, when it goes to a position.
func (c *consumersResetCommand) measure(ctx context.Context, store *messagestore.Store, before consumers.Status, to messagestore.GlobalPosition) (again, passed int64, cut bool, err error) {
	if before.PositionErr != nil {
		return 0, 0, false, nil //nolint:nilerr // it is told of
	}
	q := messagestore.CategoryQuery{Category: c.Category, From: min(before.Position, to), Limit: consumers.MaxLag + 1}
	all, err := store.Count(ctx, q)
	if err != nil {
		return 0, 0, false, err
	}
	q.From = max(before.Position, to)
	rest, err := store.Count(ctx, q)
	if to < before.Position {
		return all - rest, 0, all > consumers.MaxLag, err
	}
	return 0, all - rest, all > consumers.MaxLag, err
}

func effectText(before consumers.Status, to messagestore.GlobalPosition, again, passed int64, cut bool) string {
	least := ""
	if cut {
		least = "at least "
	}
	switch {
	case before.PositionErr != nil:
		return "with an unknown effect (" + before.PositionErr.Error() + ")"
	case again > 0 || to < before.Position && cut:
		return "handling " + least + text.Number(again, "message") + " again"
	case passed > 0 || to > before.Position && cut:
		return "passing over " + least + text.Number(passed, "message")
	}
	return "which changes nothing for it"
}

type consumersPauseCommand struct{ aConsumer }

func (c *consumersPauseCommand) Run(ctx context.Context, a *app) error {
	return a.setConsumerPaused(ctx, c.aConsumer, (*consumers.Target).Pause, "paused", "was paused before")
}

type consumersResumeCommand struct{ aConsumer }

func (c *consumersResumeCommand) Run(ctx context.Context, a *app) error {
	return a.setConsumerPaused(ctx, c.aConsumer, (*consumers.Target).Resume, "resumed", "was not paused")
}

func (a *app) setConsumerPaused(ctx context.Context, c aConsumer, do func(*consumers.Target, context.Context) (bool, error), did, before string) error {
	return a.withConsumer(ctx, c, func(store *messagestore.Store, target *consumers.Target) error {
		if _, err := c.status(ctx, store); err != nil {
			return err
		}
		changed, err := do(target, ctx)
		if err != nil {
			return err
		}
		now, err := c.status(ctx, store)
		if err != nil {
			return err
		}
		says := fmt.Sprintf("%s of %s is %s: members that run find out within 10 s", c.Name, c.Category, did)
		if !changed {
			says = fmt.Sprintf("%s of %s %s: nothing was changed", c.Name, c.Category, before)
		}
		return a.out.tell(fields{"category", c.Category, "consumer", c.Name, "changed", changed, "pausedAt?", now.PausedAt}, "%s", says)
	})
}

type consumersParkCommand struct {
	aConsumer
	Reason   string                       `required:"" placeholder:"TEXT" help:"The reason, which its item keeps: up to 255 bytes of visible text."`
	Position *messagestore.GlobalPosition `placeholder:"P" help:"The message's global position. Defaults to the first message that is not finished."`
	DryRun   bool                         `help:"Print the message, and do nothing."`
}

func (c *consumersParkCommand) Run(ctx context.Context, a *app) error {
	return a.withConsumer(ctx, c.aConsumer, func(store *messagestore.Store, target *consumers.Target) error {
		if _, err := c.status(ctx, store); err != nil {
			return err
		}
		m, err := c.which(ctx, a, store, target)
		if err != nil || m == nil {
			return err
		}
		requested, what := true, "would ask "+c.Name+" to park"
		if !c.DryRun {
			what = "asked " + c.Name + " to park"
			if requested, err = target.Park(ctx, m, c.Reason); err != nil {
				return err
			}
		}
		if !requested {
			what = "parked, or asked for, already:"
		}
		object := fields{"category", c.Category, "consumer", c.Name, "reason", c.Reason, "requested", requested, "dryRun?", c.DryRun, "message", headOf(m)}
		return a.out.tell(object, "%s %s %s, %s, at %d of %s", what, m.Type, place(m), m.ID, m.GlobalPosition, c.Category)
	})
}

// which returns the message to park. It is nil if there is none, which was said.
func (c *consumersParkCommand) which(ctx context.Context, a *app, store *messagestore.Store, target *consumers.Target) (*messagestore.Message, error) {
	if c.Position != nil {
		page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: c.Category, From: *c.Position, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(page.Messages) == 0 || page.Messages[0].GlobalPosition != *c.Position {
			return nil, usage("--position=%d: category %s has no message there", *c.Position, c.Category)
		}
		return page.Messages[0], nil
	}
	next, err := target.Next(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(next) == 1:
		return next[0], nil
	case len(next) == 0:
		a.nothing("%s of %s has handled every message", c.Name, c.Category)
		return nil, nil
	}
	for _, m := range next {
		a.out.line("%d  %s  %s", m.GlobalPosition, place(m), m.Type)
	}
	return nil, usage("%s of %s is at %d messages: give the --position of one", c.Name, c.Category, len(next))
}
