package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
	"github.com/dibs-go/dibs/saga"
)

// A Kind says what works on a store.
type Kind string

// The kinds.
const (
	AConsumer Kind = "consumer"
	AQueue    Kind = "queue" // of workers, or of a relay
	Runner    Kind = "sagas" // of one category
	ASchedule Kind = "schedule"
)

// A Health says how a consumer, a queue, the sagas of a category or a schedule are doing.
type Health struct {
	Kind     Kind
	Category messagestore.Category
	Name     string // of sagas, the name of their queue
	Says     string // how it is doing, in a line
	Causes   []Cause

	Consumer *consumers.Status // of a consumer
	Queue    *queue.Status     // of a queue and of sagas
	Schedule *cron.Status      // of a schedule
}

// A Cause is a thing that is wrong.
type Cause struct {
	// What is broken, paused, stopped, failing, parked, dead, suspended, retrying, clock or late.
	What string

	Fails   bool // it cannot go on; or else it is in want of a person, or slow
	Says    string
	Advice  string // what to do about it, "" if its Says is enough
	Count   int64  // of items, messages or sagas, 0 if it is not about several
	AtLeast bool   // there are more than Count

	// Groups are the first 1,000 of them by their error.
	Groups []Group

	// Acts mend it. One with a Like is for each of the Groups: see [Act.For].
	Acts []Act
}

// looked is how many items, or sagas, of one cause are looked at.
const looked = 1000

// outAfter is how many different items have failed when the sink of a relay counts as out.
const outAfter = 8

// Healths returns how each consumer, queue and schedule of a store is doing, and the sagas of each
// category. Those with causes come first. It reads at most 1,000 items or sagas of one cause.
//
// With an error it returns what it has found before. The error matches
// [messagestore.ErrNotSupported] only if the driver keeps neither queues nor positions.
func Healths(ctx context.Context, store *messagestore.Store) (all []Health, err error) {
	now, err := store.Now(ctx)
	if err != nil {
		return nil, err
	}
	found, err := Consumers(ctx, store)
	for _, s := range found {
		if !s.Foreign {
			all = append(all, consumerHealth(ctx, store, s))
		}
	}
	if err != nil {
		return all, err
	}
	queues, err := queue.All(ctx, store)
	if err != nil && !errors.Is(err, messagestore.ErrNotSupported) {
		return all, err
	}
	for _, s := range queues {
		if s.Parked {
			continue // its consumer tells of it
		}
		h, err := queueHealth(ctx, store, s)
		if err != nil {
			return all, err
		}
		all = append(all, h)
	}
	schedules, err := scheduleHealths(ctx, store, now)
	all = append(all, schedules...)
	slices.SortStableFunc(all, func(a, b Health) int { return cmp.Compare(b.severity(), a.severity()) })
	return all, err
}

// severity is 2 for what cannot go on, 1 for what has another cause, and 0 for what is well.
func (h Health) severity() int {
	if slices.ContainsFunc(h.Causes, func(c Cause) bool { return c.Fails }) {
		return 2
	}
	return min(len(h.Causes), 1)
}

// Consumers returns the consumers of all categories.
func Consumers(ctx context.Context, store *messagestore.Store) (all []consumers.Status, err error) {
	categories, err := SideOf(ctx, store, "position")
	for _, category := range categories {
		found, err := consumers.Consumers(ctx, store, category)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, err
}

// SideOf returns the categories for which something is kept in a category of its own, such as the
// positions of consumers in account:position.
func SideOf(ctx context.Context, store *messagestore.Store, side string) ([]messagestore.Category, error) {
	found, err := store.Categories(ctx, side)
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
	return categories, err
}

func consumerHealth(ctx context.Context, store *messagestore.Store, s consumers.Status) Health {
	h := Health{Kind: AConsumer, Category: s.Category, Name: s.Name, Consumer: &s}
	named := text.Word(string(s.Category)) + " " + text.Word(s.Name)
	act := func(do string) Act { return Act{Do: do, On: OnConsumer, Category: s.Category, Name: s.Name} }
	lag := text.Number(s.Lag, "message is|messages are") + " behind it"
	if s.AtLeast {
		lag = "more than " + lag
	}
	gone := 0
	for _, r := range s.Replicas {
		if r.Gone {
			gone++
		}
	}
	switch err := cmp.Or(s.Err, s.PositionErr); {
	case err != nil:
		h.add(Cause{What: "broken", Fails: true, Says: "cannot go on: " + err.Error()})
	case !s.PausedAt.IsZero():
		h.add(Cause{What: "paused", Says: "is paused since " + text.Time(s.PausedAt), Advice: "dibs consumers resume " + named + " ends the pause", Acts: []Act{act("resume")}})
	case len(s.Replicas) == 0 && s.Lag > 0:
		h.add(Cause{What: "stopped", Says: "has stopped: no process runs it, and " + lag, Advice: "its log says why; start it again"})
	case len(s.Replicas) == 0:
		h.Says = "has handled all, and no process runs it"
	case gone == len(s.Replicas):
		h.add(Cause{
			What: "stopped", Says: fmt.Sprintf("is run by no process any more: %s, and %s", text.Number(gone, "replica is gone|replicas are gone"), lag),
			Advice: "start one again: it goes on at the checkpoint when their lease is over",
		})
	default:
		h.Says = fmt.Sprintf("is run by %s, and %s", text.Number(len(s.Replicas)-gone, "process|processes"), lag)
	}
	if s.Parked > 0 {
		c := Cause{
			What: "parked", Says: "has parked " + text.Number(s.Parked, "message"), Advice: "see them with dibs parked list " + named, Count: int64(s.Parked),
			Acts: []Act{
				{Do: "redrive", On: OnParked, Category: s.Category, Name: s.Name, State: queue.Dead},
				{Do: "drop", On: OnParked, Category: s.Category, Name: s.Name, State: queue.Dead},
			},
		}
		if q, err := consumers.Consumer(store, s.Category, s.Name).Parked(); err == nil {
			c.look(q.Items(ctx, queue.Dead, 0, looked))
		}
		h.add(c)
	}
	if n := len(s.Failing) + s.MoreFailing; n > 0 {
		c := Cause{What: "failing", Says: text.Number(n, "message fails|messages fail"), Count: int64(n)}
		for _, f := range s.Failing {
			c.Groups = append(c.Groups, Group{Error: f.Error, Count: 1, Oldest: f.FirstFailedAt, Newest: f.FirstFailedAt, Position: f.GlobalPosition})
		}
		park := act("park")
		park.Position = s.Failing[0].GlobalPosition
		c.Acts = []Act{park}
		h.add(c)
	}
	return h
}

// add adds a cause.
func (h *Health) add(c Cause) { h.Causes = append(h.Causes, c) }

// look groups items by their error.
func (c *Cause) look(items []queue.Item, err error) {
	if err == nil {
		c.Groups, _ = Groups(each(items)) // which has no error
	}
}

func each(items []queue.Item) iter.Seq2[queue.Item, error] {
	return func(yield func(queue.Item, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

func queueHealth(ctx context.Context, store *messagestore.Store, s queue.Status) (Health, error) {
	h := Health{Kind: AQueue, Category: s.Category, Name: s.Name, Queue: &s, Says: "has " + text.Number(s.Dead, "dead item")}
	if s.Streams {
		h.Kind = Runner
	}
	if !s.Oldest.IsZero() {
		h.Says += ", and its oldest item that is not finished is of " + text.Time(s.Oldest)
	}
	q, err := queueOf(store, s)
	if err != nil {
		return h, err
	}
	name := text.Word(s.Name)
	act := func(do string, state queue.State) Act {
		return Act{Do: do, On: OnQueue, Category: s.Category, Name: s.Name, State: state}
	}
	switch {
	case s.Streams && s.Dead+s.Suspended > 0:
		if err := h.suspended(ctx, store, s); err != nil {
			return h, err
		}
	case s.Dead > 0:
		c := Cause{
			What: "dead", Count: s.Dead, Advice: fmt.Sprintf("see them with dibs queue jobs %s --state dead, and have them offered again, or drop them", name),
			Acts: []Act{act("retry", queue.Dead), act("drop", queue.Dead)},
		}
		c.look(q.Items(ctx, queue.Dead, 0, looked))
		h.add(c)
	}
	if s.Suspended > 0 && !s.Streams {
		h.add(Cause{
			What: "suspended", Count: s.Suspended, Says: text.Number(s.Suspended, "item is suspended|items are suspended"),
			Advice: fmt.Sprintf("see why with dibs queue jobs %s --state suspended", name), Acts: []Act{act("retry", queue.Suspended)},
		})
	}
	if s.Later > 0 && !s.Streams { // a saga waits there for its next turn
		if err := h.retrying(ctx, q, act("retry", queue.Later)); err != nil {
			return h, err
		}
	}
	if s.Paused {
		h.add(Cause{What: "paused", Says: "is paused", Advice: "dibs queue resume " + name + " ends the pause", Acts: []Act{act("resume", "")}})
	}
	if clock := ClockText(s); clock != "" {
		h.add(Cause{What: "clock", Says: clock, Advice: "see to the clock of the store's server; the next worker that looks has delays and leases count from then on"})
	}
	if waiting := s.Waiting || s.Due > 0; waiting && s.Sessions == 0 && !s.Paused {
		h.add(Cause{
			What: "stopped", Says: "items wait, and no process works on them",
			Advice: "is a worker running? Its log says why it is not; dibs queue blocked " + name + " tells more",
		})
	}
	return h, nil
}

// suspended adds the sagas that are suspended, or whose turns have failed too often.
func (h *Health) suspended(ctx context.Context, store *messagestore.Store, s queue.Status) error {
	o, err := saga.NewOperator(store, s.Category, "operate")
	if err != nil {
		return err
	}
	n := 0
	groups, err := SagaGroups(func(yield func(Saga, error) bool) {
		for one, err := range Sagas(ctx, o, SagaFilter{State: saga.StateSuspended}) {
			if err != nil {
				continue // a stream that does not hold a saga: dibs verify tells of it
			}
			if n++; n > looked || !yield(one, nil) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	category := text.Word(string(s.Category))
	act := func(do string) Act {
		return Act{Do: do, On: OnSaga, Category: s.Category, SagaState: saga.StateSuspended}
	}
	h.add(Cause{
		What: "suspended", Count: s.Dead + s.Suspended, Groups: groups, Says: text.Number(s.Suspended, "suspended saga"),
		Advice: fmt.Sprintf("see why with dibs saga ls %s --state suspended, and resume, cancel or resolve them", category),
		Acts:   []Act{act("resume"), act("cancel")},
	})
	return nil
}

// retrying adds the items that were tried and wait for another attempt.
func (h *Health) retrying(ctx context.Context, q *queue.Queue, retry Act) error {
	later, err := q.Items(ctx, queue.Later, 0, looked)
	if err != nil {
		return err
	}
	tried := slices.DeleteFunc(later, func(i queue.Item) bool { return i.Version == 0 }) // others have a date
	i := slices.IndexFunc(tried, func(i queue.Item) bool { return i.Failures > 0 })
	if i < 0 {
		return nil
	}
	says := fmt.Sprintf("%s for another attempt, such as %d: %s", text.Number(len(tried), "item waits|items wait"), tried[i].Position, text.Cut(200, tried[i].Error))
	if len(tried) >= outAfter {
		says += "; if it is a relay, its sink is out"
	}
	c := Cause{
		What: "retrying", Count: int64(len(tried)), AtLeast: len(later) == looked, Says: says,
		Advice: fmt.Sprintf("see the errors with dibs queue jobs %s --state later", text.Word(q.Name())), Acts: []Act{retry},
	}
	c.look(tried, nil)
	h.add(c)
	return nil
}

// ClockText says by how much the store's clock is behind the times in a queue, "" if it is not: it
// was ahead then, or was set back since.
func ClockText(s queue.Status) string {
	by := ClockBehind(s)
	if by == 0 {
		return ""
	}
	return fmt.Sprintf("the store's clock is %v behind the times in the queue: it was ahead, or was set back", by.Round(time.Second))
}

// ClockBehind returns by how much the store's clock is behind the times in a queue, 0 if it is not.
func ClockBehind(s queue.Status) time.Duration {
	latest := s.Changed
	if s.Oldest.After(latest) {
		latest = s.Oldest
	}
	if by := latest.Sub(s.Time); by > queuing.ClockTolerance {
		return by
	}
	return 0
}

// lateAfter is for how long a tick may be over before it is late.
const lateAfter = 10 * time.Second

// Late reports whether no process runs a schedule: its next tick is over.
func Late(s cron.Status, now time.Time) bool {
	return !s.Next.IsZero() && s.Next.Before(now.Add(-lateAfter))
}

// scheduleHealths returns how the schedules are doing.
func scheduleHealths(ctx context.Context, store *messagestore.Store, now time.Time) (all []Health, err error) {
	categories, err := SideOf(ctx, store, "schedule")
	for _, category := range categories {
		kept, err := cron.New(store, category, &cron.Config{Logger: logger.Silent()}) // the error names what is corrupt
		if err != nil {
			return all, err
		}
		found, err := kept.Status(ctx)
		for _, s := range found {
			h := Health{Kind: ASchedule, Category: category, Name: s.Name, Schedule: &s}
			switch {
			case s.Next.IsZero():
				h.Says = "has no tick any more"
			case Late(s, now):
				h.add(Cause{What: "late", Says: "its tick of " + text.Time(s.Next) + " has not come: no process runs it", Advice: "start a process that runs the schedules of " + text.Word(string(category))})
			default:
				h.Says = "ticks next at " + text.Time(s.Next)
			}
			all = append(all, h)
		}
		if err != nil {
			all = append(all, Health{Kind: ASchedule, Category: category, Causes: []Cause{{What: "broken", Fails: true, Says: err.Error()}}})
		}
	}
	return all, err
}
