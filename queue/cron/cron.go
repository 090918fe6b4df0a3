// Package cron adds items to a queue at set times, without a leader: each process that runs the
// schedules writes each tick, and the first write wins.
//
//	c, err := cron.New(store, "reports", nil)
//	err = c.Set(ctx, cron.Schedule{Name: "daily", Spec: "0 6 * * *", Zone: "Europe/Prague", Body: Report{}})
//	...
//	go c.Run(ctx)                              // in any number of processes
//	reports, err := queue.New(store, "reports", nil)
//	err = reports.Work(ctx, mux, nil)
//
// A tick is the item itself: a message of the queue's category, in the stream named after the
// schedule, at the version after the previous tick, with an id made from the stream and the time.
// So two processes write it once, in order, and a process that comes back knows the last tick. The
// schedules are in the store too, in reports:schedule, so any process can add, change or remove a
// schedule, and all others follow.
//
// A tick that was removed from the store never comes again. If the stream was forgotten (dibs
// forget, from a day on), the last tick is not known any more, and no tick older than a day before
// that comes. After a deletion or a trim, no tick older than the remaining ones comes.
//
// If a clock was ahead, or is set back, a schedule goes on from the time that the clock then shows.
// Ticks that came stay, and do not come again.
package cron

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Config changes how a [Cron] works. Nil means all defaults.
type Config struct {
	// Now returns the time by which ticks come.
	//
	// Defaults to the store's clock.
	Now func(ctx context.Context) (time.Time, error)

	// Workers is how many ticks a process writes at a time, 1 to 100.
	//
	// Defaults to 4.
	Workers int

	// PollInterval is how often a process looks for ticks and for changed schedules, 10 ms to a
	// minute.
	//
	// Defaults to a second.
	PollInterval time.Duration

	// Logger receives the warnings and outages of [Cron.Run]: up to ten warnings at once for
	// schedules that cannot be read, then one with the number of the others; and the outages of the
	// store.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Cron keeps the schedules for the items of one category, and runs them. It is safe for
// concurrent use. There is nothing to close.
type Cron struct {
	store    *messagestore.Store
	queues   queuing.Driver // nil for a store without queues
	category messagestore.Category
	config   Config
}

// New returns a Cron for the schedules of a queue's category. The error names all mistakes, and
// matches [messagestore.ErrInvalid]. New makes no round trip.
func New(store *messagestore.Store, category messagestore.Category, config *Config) (*Cron, error) {
	c := &Cron{store: store, category: category}
	if config != nil {
		c.config = *config
	}
	if c.config.Now == nil {
		c.config.Now = store.Now
	}
	if c.config.Workers == 0 {
		c.config.Workers = 4
	}
	if c.config.PollInterval == 0 {
		c.config.PollInterval = time.Second
	}
	driver, err := store.Driver()
	c.queues, _ = driver.(queuing.Driver)
	wrong := []error{err, category.Validate(), c.schedules().Validate()}
	if c.config.Workers < 1 || c.config.Workers > 100 {
		wrong = append(wrong, messagestore.NewInvalidError("Workers", c.config.Workers, "must be between 1 and 100"))
	}
	if d := c.config.PollInterval; d < 10*time.Millisecond || d > time.Minute {
		wrong = append(wrong, messagestore.NewInvalidError("PollInterval", d, "must be between 10ms and 1m0s"))
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	return c, nil
}

func (c *Cron) schedules() messagestore.Category { return c.category.WithType("schedule") }

// Scheduled is the body of the message that adds or changes a schedule.
type Scheduled struct {
	Name    string          `json:"name"`
	Spec    string          `json:"spec"`
	Zone    string          `json:"zone,omitempty"`
	CatchUp string          `json:"catchUp,omitempty"`
	Overlap string          `json:"overlap,omitempty"` // skip, or none
	Queue   string          `json:"queue,omitempty"`   // of Overlap
	From    time.Time       `json:"from"`              // ticks come after this time
	Begin   time.Time       `json:"begin,omitzero"`    // ticks of @every come at whole multiples after this time; zero means From
	Type    string          `json:"type"`
	Data    json.RawMessage `json:"data"`
}

// MessageType implements [messagestore.Body].
func (Scheduled) MessageType() string { return "Scheduled" }

// Unscheduled is the body of the message that removes a schedule.
type Unscheduled struct {
	Name string `json:"name"`
}

// MessageType implements [messagestore.Body].
func (Unscheduled) MessageType() string { return "Unscheduled" }

// Skipped is the body of the message that records a skipped tick: see [Skip]. It is in
// reports:skipped, in the stream named after the schedule.
type Skipped struct {
	At     time.Time                   `json:"at"`     // the tick
	Behind messagestore.GlobalPosition `json:"behind"` // the item that was not finished
}

// MessageType implements [messagestore.Body].
func (Skipped) MessageType() string { return "Skipped" }

// Set adds a schedule, or changes the schedule with its name. Setting the same schedule again
// writes nothing, even if the body's JSON is spelled differently. Ticks come from then on. If ticks
// of the previous schedule are due, Set first writes them, with the previous body.
//
// Any number of processes may set a schedule at once: if they set the same one, it is written once,
// and otherwise the last one stays. If the spec, the zone or the body is invalid, the error matches
// [messagestore.ErrInvalid] and nothing is sent.
func (c *Cron) Set(ctx context.Context, s Schedule) error { return c.put(ctx, s, "set", false) }

// Add is Set for a name without a schedule. If the name has a different schedule, nothing is
// written, and the error matches [messagestore.ErrVersionConflict]. You may add the same schedule
// again.
func (c *Cron) Add(ctx context.Context, s Schedule) error { return c.put(ctx, s, "add", true) }

func (c *Cron) put(ctx context.Context, s Schedule, what string, isNew bool) error {
	if err := c.use(); err != nil {
		return err
	}
	err := c.set(ctx, s, isNew)
	if err != nil {
		return fmt.Errorf("cron %s: %s %.80q: %w", c.category, what, s.Name, err)
	}
	return nil
}

func (c *Cron) set(ctx context.Context, s Schedule, isNew bool) error {
	p, err := parse(s.Spec, s.Zone)
	wrong := []error{err, c.stream(s.Name).Validate(), c.definition(s.Name).Validate()}
	if s.CatchUp < Last || s.CatchUp > All {
		wrong = append(wrong, messagestore.NewInvalidError("CatchUp", int(s.CatchUp), "must be Last, None or All"))
	}
	scheduled := Scheduled{Name: s.Name, Spec: s.Spec, Zone: s.Zone, CatchUp: s.CatchUp.String(), Queue: s.Queue}
	switch {
	case s.Overlap == Skip:
		scheduled.Overlap = s.Overlap.String()
		wrong = append(wrong, c.checkQueue(s.Queue))
	case s.Overlap != Allow:
		wrong = append(wrong, messagestore.NewInvalidError("Overlap", int(s.Overlap), "must be Allow or Skip"))
	case s.Queue != "":
		wrong = append(wrong, messagestore.NewInvalidError("Queue", s.Queue, "must be empty unless Overlap is Skip"))
	}
	if s.Body == nil {
		wrong = append(wrong, messagestore.NewInvalidError("body", nil, "must not be nil"))
	} else {
		wrong = append(wrong, scheduled.encode(s.Body))
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	for { // a write that is overtaken meets another's, so one of those that race has come to its end
		version, same, err := c.prepare(ctx, &scheduled, p, isNew)
		if err != nil || same {
			return err
		}
		_, err = c.store.Write(ctx, c.definition(s.Name), version, scheduled)
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return err
		}
	}
}

// prepare decides when the ticks of a schedule begin, unless the schedule is unchanged, and returns
// the version of its stream. It first writes the due ticks of the schedule that it replaces.
func (c *Cron) prepare(ctx context.Context, s *Scheduled, p *plan, isNew bool) (version messagestore.Version, same bool, err error) {
	version = messagestore.NoStream
	var old *schedule
	last, err := c.store.Last(ctx, c.definition(s.Name))
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
	case err != nil:
		return 0, false, err
	default:
		version = last.Position
		was, is := readScheduled(last)
		if is && was.sameAs(*s) {
			return version, true, nil
		}
		if is && isNew {
			return 0, false, &messagestore.VersionConflictError{Stream: last.Stream, Expected: messagestore.NoStream, Actual: version}
		}
		if is {
			old, _ = c.scheduleOf(last) // one that cannot be read has no ticks
		}
	}
	asked := time.Now()
	now, err := c.config.Now(ctx)
	if err != nil {
		return 0, false, err
	}
	s.From, s.Begin = now.UTC().Truncate(time.Second), time.Time{}
	if old == nil {
		return version, false, nil
	}
	if p.every > 0 && p.every == old.plan.every {
		s.Begin = old.plan.from
	}
	return version, false, c.tick(ctx, old, now, asked)
}

// queueOf returns the queue that [Skip] checks.
func (c *Cron) queueOf(name string) queuing.Queue {
	return queuing.Queue{Name: cmp.Or(name, string(c.category)), Category: c.category}
}

// checkQueue refuses a queue for [Skip] that the store cannot have.
func (c *Cron) checkQueue(name string) error {
	if c.queues == nil {
		return fmt.Errorf("%w: the store's driver keeps no queues, so no tick can be skipped", messagestore.ErrNotSupported)
	}
	return queuing.ValidateQueue(c.queueOf(name))
}

// encode stores the body in the form that each item will have.
func (s *Scheduled) encode(body messagestore.Body) error {
	s.Type = body.MessageType()
	if raw, is := body.(messagestore.Raw); is {
		s.Data = raw.Data
	} else {
		data, err := json.Marshal(body)
		if err != nil {
			return messagestore.NewInvalidError("body", s.Type, "must encode as JSON: "+text.Log(err))
		}
		s.Data = data
	}
	return s.validate()
}

// validate reports whether the store takes the items.
func (s *Scheduled) validate() error {
	if rule := text.TypeRule(s.Type); rule != "" {
		return messagestore.NewInvalidError("message type", s.Type, rule)
	}
	if !json.Valid(s.Data) || bytes.TrimLeft(s.Data, " \t\r\n")[0] != '{' {
		return messagestore.NewInvalidError("body", string(s.Data), "must be a JSON object")
	}
	return nil
}

// sameAs reports whether two schedules have the same ticks and the same body. It ignores their
// start.
func (s Scheduled) sameAs(other Scheduled) bool {
	const utc = "UTC"
	return s.Spec == other.Spec && cmp.Or(s.Zone, utc) == cmp.Or(other.Zone, utc) && s.CatchUp == other.CatchUp && s.Overlap == other.Overlap &&
		s.Queue == other.Queue && s.Type == other.Type && exactjson.Equal(s.Data, other.Data)
}

func readScheduled(m *messagestore.Message) (s Scheduled, is bool) {
	if m.Type != s.MessageType() {
		return s, false
	}
	s, err := messagestore.Decode[Scheduled](m)
	return s, err == nil
}

// Remove removes a schedule, even if it is changed meanwhile. Once Remove has returned and the
// other processes have noticed it, within their poll interval, no tick comes, not even a due one.
// The error matches [messagestore.ErrNotFound] if the name had no schedule when Remove was called.
func (c *Cron) Remove(ctx context.Context, name string) error {
	err := c.use()
	if err == nil {
		err = c.remove(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("cron: remove %.80q: %w", name, err)
	}
	return nil
}

func (c *Cron) remove(ctx context.Context, name string) error {
	if err := c.definition(name).Validate(); err != nil {
		return err
	}
	for met := false; ; met = true {
		last, err := c.store.Last(ctx, c.definition(name))
		if err == nil && last.Type != (Scheduled{}).MessageType() {
			err = messagestore.ErrNotFound
		}
		if met && errors.Is(err, messagestore.ErrNotFound) {
			return nil // another call has removed it
		}
		if err != nil {
			return err
		}
		_, err = c.store.Write(ctx, c.definition(name), last.Position, Unscheduled{name})
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return err
		}
	}
}

// List returns the schedules, in order of their names. It handles a schedule that cannot be read as
// [Cron.Status] does.
func (c *Cron) List(ctx context.Context) ([]Schedule, error) {
	if err := c.use(); err != nil {
		return nil, err
	}
	f := c.follow()
	if err := f.read(ctx); err != nil {
		return nil, fmt.Errorf("cron %s: list: %w", c.category, err)
	}
	var all []Schedule
	for _, s := range f.known {
		all = append(all, s.Schedule)
	}
	slices.SortFunc(all, func(a, b Schedule) int { return cmp.Compare(a.Name, b.Name) })
	if err := f.wrong(nil); err != nil {
		return all, fmt.Errorf("cron %s: list: %w", c.category, err)
	}
	return all, nil
}

// wrong returns the errors of the first ten corrupt schedules with the given names, or of all names
// if there are none.
func (f *follower) wrong(names []string) error {
	var streams []messagestore.StreamName
	for stream := range f.corrupt {
		if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool { return f.cron.definition(name) == stream }) {
			streams = append(streams, stream)
		}
	}
	slices.Sort(streams)
	var all []error
	for i, stream := range streams {
		if i == namedSchedules {
			all = append(all, fmt.Errorf("and %d more", len(streams)-i))
			break
		}
		all = append(all, f.corrupt[stream])
	}
	return errors.Join(all...)
}

// namedSchedules is how many corrupt schedules an error names, and how many warnings are logged at
// once.
const namedSchedules = 10

// ErrCorrupt is returned for a schedule that cannot be read: see [Cron.Status].
var ErrCorrupt = errors.New("corrupt schedule")

// A corruptError names a stored message that is not a valid schedule although it is in a schedule's
// stream. It matches [ErrCorrupt].
type corruptError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version // of the message in the stream
	Reason   string

	cause error
}

// Error names the message and its fault.
func (e *corruptError) Error() string {
	return fmt.Sprintf("corrupt schedule: %s@%d: %s", e.Stream, e.Position, e.Reason)
}

// Is reports whether target is [ErrCorrupt].
func (e *corruptError) Is(target error) bool { return target == ErrCorrupt }

// A Status is the state of a schedule: see [Cron.Status].
type Status struct {
	Schedule

	From time.Time // ticks come after this time: the schedule was set then
	Last time.Time // the last tick that came; the zero time if none is known

	// Item is the item of the last tick; 0 if none is known.
	Item messagestore.GlobalPosition

	// Skips is how many ticks were skipped since the first tick (see [Skip]), and Skipped is the
	// time of the last of them.
	Skips   int64
	Skipped time.Time

	// Next is the next tick. It is in the past if no process has run the schedules since, and the
	// zero time if no tick comes.
	Next time.Time
}

// Status returns the state of the schedules with the given names, or of all schedules without
// names, in order of their names. It leaves out names without a schedule. It reads the last tick of
// each. If a schedule cannot be read, Status still returns the others, with an error that matches
// [ErrCorrupt] and names the first ten such schedules.
func (c *Cron) Status(ctx context.Context, names ...string) ([]Status, error) {
	if err := c.use(); err != nil {
		return nil, err
	}
	all, err := c.status(ctx, names)
	if err != nil {
		return all, fmt.Errorf("cron %s: status: %w", c.category, err)
	}
	return all, nil
}

func (c *Cron) status(ctx context.Context, names []string) ([]Status, error) {
	f := c.follow()
	if err := f.read(ctx); err != nil {
		return nil, err
	}
	now, err := c.config.Now(ctx)
	if err != nil {
		return nil, err
	}
	var all []Status
	for _, s := range f.known {
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		if err := c.learn(ctx, s); err != nil {
			return nil, err
		}
		s.follow(now)
		status := Status{
			Schedule: s.Schedule, From: s.from, Last: s.last, Item: s.item, Skips: s.skips, Skipped: s.skipped,
			Next: s.plan.next(later(s.base(), now)),
		}
		if due := s.plan.due(s.base(), now, s.CatchUp); len(due) > 0 {
			status.Next = due[0]
		}
		all = append(all, status)
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return all, f.wrong(names)
}

func (c *Cron) use() error {
	if c == nil || c.store == nil {
		return messagestore.NewInvalidError("cron", nil, "must be made by New")
	}
	return nil
}

func (c *Cron) stream(name string) messagestore.StreamName { return c.category.Stream(name) }
func (c *Cron) skipStream(name string) messagestore.StreamName {
	return c.category.WithType("skipped").Stream(name)
}
func (c *Cron) definition(name string) messagestore.StreamName { return c.schedules().Stream(name) }

// tickField is the field of a tick's metadata with its time, in microseconds since 1970.
const tickField = "tickAt"

// TickOf returns the time of an item's tick, and false if the item is not a tick.
func TickOf(m *messagestore.Message) (time.Time, bool) {
	if m == nil {
		return time.Time{}, false
	}
	micros, err := strconv.ParseInt(string(m.Metadata.Extra[tickField]), 10, 64)
	return time.UnixMicro(micros).UTC(), err == nil
}

// A schedule is a schedule that a process runs.
type schedule struct {
	Schedule
	plan *plan
	from time.Time
	set  time.Time // when it was written, by the store's clock
	next time.Time // zero for never
	by   time.Time // the time by which next was computed
	back time.Time // if the clock was ahead: the time, or the tick since, after which ticks are due; zero otherwise
	low  time.Time // the earliest time that the clock has shown since the schedule was met, or since the clock went back

	known   bool // of the stream
	version messagestore.Version
	last    time.Time // tick; zero if not known
	item    messagestore.GlobalPosition
	since   time.Time // up to this time there may have been ticks that are no longer in the store

	// Only for Skip.
	skips   int64
	skipped time.Time // the last
}

// A follower knows the store's schedules.
type follower struct {
	cron  *Cron
	at    messagestore.GlobalPosition
	known map[messagestore.StreamName]*schedule

	corrupt map[messagestore.StreamName]*corruptError // streams with a last message that is not a valid schedule
	unsaid  map[messagestore.StreamName]bool          // those that may have become corrupt since the last warning
}

func (c *Cron) follow() *follower {
	return &follower{cron: c, known: map[messagestore.StreamName]*schedule{}, corrupt: map[messagestore.StreamName]*corruptError{}, unsaid: map[messagestore.StreamName]bool{}}
}

// read reads the messages since the last read.
func (f *follower) read(ctx context.Context) error {
	for {
		page, err := f.cron.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: f.cron.schedules(), From: f.at, Limit: 1000})
		if err != nil {
			return err
		}
		for _, m := range page.Messages {
			f.take(m)
		}
		f.at = page.Next
		if !page.More {
			return nil
		}
	}
}

func (f *follower) take(m *messagestore.Message) {
	delete(f.known, m.Stream)
	delete(f.corrupt, m.Stream)
	if m.IsTombstone() || m.Type == (Unscheduled{}).MessageType() {
		return
	}
	s, err := f.cron.scheduleOf(m)
	if err != nil {
		f.corrupt[m.Stream] = &corruptError{Stream: m.Stream, Position: m.Position, Reason: text.Of(err), cause: err}
		f.unsaid[m.Stream] = true
		return
	}
	f.known[m.Stream] = s
}

// warn logs the schedules that have become corrupt since the last call. It bounds the warnings,
// because any writer may make any number of corrupt schedules.
func (f *follower) warn() {
	said, more := 0, 0
	for _, stream := range slices.Sorted(maps.Keys(f.unsaid)) {
		corrupt, is := f.corrupt[stream]
		switch {
		case !is: // it was set again since
		case said == namedSchedules:
			more++
		default:
			said++
			f.cron.config.Logger.Warn().Str("stream", string(stream)).Str("error", text.Log(corrupt.cause)).Msg("schedule cannot be read")
		}
	}
	clear(f.unsaid)
	if more > 0 {
		f.cron.config.Logger.Warn().Str("category", string(f.cron.schedules())).Int("schedules", more).Msg("more schedules cannot be read")
	}
}

// scheduleOf returns the schedule in a message, without the facts from its stream.
func (c *Cron) scheduleOf(m *messagestore.Message) (*schedule, error) {
	if m.Type != (Scheduled{}).MessageType() {
		return nil, fmt.Errorf("a message of the type %.80q is no schedule's", m.Type)
	}
	scheduled, err := messagestore.Decode[Scheduled](m)
	if err != nil {
		return nil, err
	}
	p, err := parse(scheduled.Spec, scheduled.Zone)
	if err = errors.Join(err, scheduled.validate()); err == nil && (scheduled.From.IsZero() || c.definition(scheduled.Name) != m.Stream) {
		err = messagestore.NewInvalidError("schedule", scheduled.Name, "must have its stream's name, and a time from which its ticks come")
	}
	overlap := Overlap(max(0, slices.Index(overlaps, scheduled.Overlap)))
	if err == nil && overlap == Skip {
		err = c.checkQueue(scheduled.Queue)
	}
	if err != nil {
		return nil, err
	}
	if p.from = scheduled.From; !scheduled.Begin.IsZero() {
		p.from = scheduled.Begin
	}
	return &schedule{plan: p, from: scheduled.From, set: m.Time, next: p.next(scheduled.From), Schedule: Schedule{
		Name: scheduled.Name, Spec: scheduled.Spec, Zone: scheduled.Zone, CatchUp: CatchUp(max(0, slices.Index(catchUps, scheduled.CatchUp))),
		Overlap: overlap, Queue: scheduled.Queue, Body: messagestore.Raw{Type: scheduled.Type, Data: scheduled.Data},
	}}, nil
}

// Run makes the ticks come until ctx ends, and then returns nil. It may run in any number of
// processes; each tick comes once. It returns an error that lasts, such as
// [messagestore.ErrNotPermitted].
func (c *Cron) Run(ctx context.Context) error {
	if err := c.use(); err != nil {
		return err
	}
	f := c.follow()
	bell, stop := c.store.Watch(c.schedules(), c.config.PollInterval)
	defer stop()
	key := outage.Key{By: "cron " + string(c.category), To: "tick"}
	defer outage.Of(c.store).Ends(key.By)
	for failures := 0; ctx.Err() == nil; {
		pause, err := c.round(ctx, f)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, messagestore.ErrClosed), errors.Is(err, messagestore.ErrNotPermitted), errors.Is(err, messagestore.ErrNotSupported), errors.Is(err, messagestore.ErrInvalid):
			return fmt.Errorf("cron %s: %w", c.category, err)
		case err != nil:
			failures++
			pause = outage.Pause(failures, 50*time.Millisecond, time.Second)
			outage.Of(c.store).Failed(key, c.config.Logger, "category", string(c.category), "failures", failures, "wait", pause, "error", text.Log(err))
		default:
			failures = 0
			outage.Of(c.store).Works(key)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-bell:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// round writes the due ticks, and returns how long no other tick is due.
func (c *Cron) round(ctx context.Context, f *follower) (time.Duration, error) {
	if err := f.read(ctx); err != nil {
		return 0, err
	}
	f.warn()
	asked := time.Now()
	now, err := c.config.Now(ctx)
	if err != nil {
		return 0, err
	}
	due := make(chan *schedule)
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range c.config.Workers {
		group.Go(func() {
			for s := range due {
				if err := calling.Call(func() error { return c.tick(ctx, s, now, asked) }); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	pause := c.config.PollInterval
	for _, s := range slices.SortedFunc(maps.Values(f.known), func(a, b *schedule) int { return a.next.Compare(b.next) }) {
		if s.low.IsZero() || now.Before(s.low) || now.Before(s.by.Add(-queuing.ClockTolerance)) {
			s.low = now
		}
		if (!s.next.IsZero() && !s.next.After(now) || s.isAhead(now)) && ctx.Err() == nil {
			due <- s
		}
	}
	close(due)
	group.Wait()
	for _, s := range f.known {
		if !s.next.IsZero() {
			pause = min(pause, max(s.next.Sub(now), time.Millisecond))
		}
	}
	return pause, failed
}

// tick writes the due ticks of a schedule, unless another process did. The clock showed now when it
// was read, at asked or later.
func (c *Cron) tick(ctx context.Context, s *schedule, now, asked time.Time) error {
	if !s.known {
		if err := c.learn(ctx, s); err != nil {
			return err
		}
	}
	s.follow(now)
	for due := s.plan.due(s.base(), now, s.CatchUp); len(due) > 0; due = due[1:] {
		at := due[0]
		if s.CatchUp == None && at.Before(now.Add(time.Since(asked)-lateness)) {
			continue // the process was stopped meanwhile, or the round takes long
		}
		overlaps, err := c.write(ctx, s, at)
		if err != nil {
			return err
		}
		if !overlaps {
			continue
		}
		switch err := c.skip(ctx, s, due); {
		case err == nil:
			due = due[len(due)-1:]
		case errors.Is(err, messagestore.ErrIDConflict): // another process was first with one of them, whose item may be finished
			if err := c.learn(ctx, s); err != nil {
				return err
			}
		default:
			return err
		}
	}
	s.next, s.by = s.plan.next(later(s.base(), now)), now
	return nil
}

// base is the time after which ticks are due.
func (s *schedule) base() time.Time {
	if !s.back.IsZero() {
		return s.back
	}
	return s.latest()
}

// latest is the latest time known for the schedule.
func (s *schedule) latest() time.Time {
	return later(later(s.from, s.since), later(s.last, s.skipped))
}

// isAhead reports whether the known times of the schedule come from a clock that was ahead.
func (s *schedule) isAhead(now time.Time) bool {
	now = now.Add(queuing.ClockTolerance)
	return s.by.After(now) || s.base().After(now)
}

// follow lets the schedule go on from a time that its clock shows.
func (s *schedule) follow(now time.Time) {
	switch {
	case !s.latest().After(now.Add(queuing.ClockTolerance)):
		s.back = time.Time{}
	case s.back.IsZero() || s.back.After(now):
		s.back = now
		if !s.low.IsZero() && s.low.Before(now) {
			s.back = s.low
		}
	}
}

// came records a tick that has come.
func (s *schedule) came(at time.Time) {
	if s.last = at; !s.back.IsZero() {
		s.back = at
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// forgettable is the least age at which a tick may be forgotten.
const forgettable = 24 * time.Hour

// learn finds the last tick of a schedule, or else the time up to which ticks may have come and
// gone.
func (c *Cron) learn(ctx context.Context, s *schedule) error {
	s.version, s.last, s.item, s.since = messagestore.NoStream, time.Time{}, 0, time.Time{}
	const most = 100 // messages of others in the stream
	var oldest *messagestore.Message
	n := 0
	for m, err := range c.store.ReadStreamBackwards(ctx, c.stream(s.Name), messagestore.EndOfStream) {
		if err != nil {
			return err
		}
		if n == 0 {
			s.version = m.Position
		}
		n, oldest = n+1, m
		if at, is := TickOf(m); is {
			s.last, s.item = at, m.GlobalPosition
			break
		}
		if n == most {
			break
		}
	}
	if oldest == nil {
		if err := c.forgotten(ctx, s); err != nil {
			return err
		}
	} else if s.last.IsZero() && oldest.Position > 0 { // of others, a tombstone, or what a trim has left
		s.since = oldest.Time
	}
	if err := c.learnSkips(ctx, s); err != nil {
		return err
	}
	s.known = true
	return nil
}

// learnSkips finds the last skipped tick of a schedule.
func (c *Cron) learnSkips(ctx context.Context, s *schedule) error {
	s.skips, s.skipped = 0, time.Time{}
	if s.Overlap != Skip {
		return nil
	}
	last, err := c.store.Last(ctx, c.skipStream(s.Name))
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	s.skips = int64(last.Position) + 1
	if skipped, err := messagestore.Decode[Skipped](last); err == nil { // else it is a tombstone, or of another client
		s.skipped = skipped.At
	}
	return nil
}

// forgotten finds the time up to which ticks of a schedule without a stream were forgotten.
func (c *Cron) forgotten(ctx context.Context, s *schedule) error {
	record, err := c.store.Last(ctx, c.category.WithType("forgotten").Stream("1"))
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	if until := record.Time.Add(-forgettable); until.After(s.set) {
		s.since = until
	}
	return nil
}

// write writes one tick, at the version after the previous tick, or reports that it has to be
// skipped.
func (c *Cron) write(ctx context.Context, s *schedule, at time.Time) (overlaps bool, err error) {
	for attempt := 1; ; attempt++ {
		if !s.base().Before(at) {
			return false, nil // another process was first
		}
		// If the stream is at the version expected below, no unfinished item can be behind this
		// one.
		if overlaps, err := c.overlaps(ctx, s); overlaps || err != nil {
			return overlaps, err
		}
		stream := c.stream(s.Name)
		written, err := c.store.Write(ctx, stream, s.version, messagestore.Envelope{
			ID: idOf(stream, at), Body: s.Body,
			Metadata: messagestore.Metadata{Extra: map[string]json.RawMessage{tickField: json.RawMessage(strconv.FormatInt(at.UnixMicro(), 10))}},
		})
		switch {
		case err == nil:
			s.version, s.item = written.Version, written.GlobalPosition
			s.came(at)
			return false, nil
		case errors.Is(err, messagestore.ErrIDConflict): // it was skipped, or is there, of a schedule that was changed since
			s.came(at)
			return false, c.learn(ctx, s)
		case !errors.Is(err, messagestore.ErrVersionConflict) || attempt == 5:
			s.known = false
			return false, err
		}
		if err := c.learn(ctx, s); err != nil {
			return false, err
		}
	}
}

// overlaps reports whether a schedule uses [Skip] and the item of its last tick is not finished.
func (c *Cron) overlaps(ctx context.Context, s *schedule) (bool, error) {
	if s.Overlap != Skip || s.item == 0 {
		return false, nil
	}
	item, err := c.queues.QueueItem(ctx, c.queueOf(s.Queue), s.item)
	if errors.Is(err, messagestore.ErrNotFound) { // it was forgotten, or deleted
		return false, nil
	}
	return err == nil && item.State != queuing.Finished && item.State != queuing.Dead, err
}

// skip records that ticks are skipped. Each record has the id of its tick, so the store takes
// either the tick or its record, whichever comes first.
func (c *Cron) skip(ctx context.Context, s *schedule, ticks []time.Time) error {
	var records []messagestore.Body
	for _, at := range ticks {
		if s.base().Before(at) {
			records = append(records, messagestore.Envelope{ID: idOf(c.stream(s.Name), at), Body: Skipped{At: at.UTC(), Behind: s.item}})
		}
	}
	if len(records) == 0 {
		return nil
	}
	written, err := c.store.Write(ctx, c.skipStream(s.Name), messagestore.AnyVersion, records...)
	if err != nil {
		s.known = false
		return err
	}
	s.skips, s.skipped = max(s.skips, int64(written.Version)+1), later(s.skipped, ticks[len(ticks)-1])
	if !written.Duplicate {
		c.config.Logger.Info().Str("category", string(c.category)).Str("schedule", s.Name).Time("tick", s.skipped).Int("ticks", len(records)).
			Int64("behind", int64(s.item)).Msg("tick skipped: the item of the tick before is not finished")
	}
	return nil
}

// idOf returns the id of a tick: version 7 by its time, with a hash of the stream's name and the
// time.
func idOf(stream messagestore.StreamName, at time.Time) (id uuid.UUID) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", stream, at.UnixMicro()))
	copy(id[:], sum[:])
	var millis [8]byte
	binary.BigEndian.PutUint64(millis[:], uint64(max(at.UnixMilli(), 0)))
	copy(id[:6], millis[2:])
	id[6], id[8] = id[6]&0x0F|0x70, id[8]&0x3F|0x80
	return id
}
