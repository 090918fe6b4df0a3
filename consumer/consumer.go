package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Handler handles the messages of a category. A message may be delivered more than once, so
// handling it twice must have the effect of handling it once. With [Config.Concurrency] above 1
// Handle is called from several goroutines. A message is read-only.
//
// Handle returns nil when the message is handled. After any other error [ErrorPolicy] decides,
// unless the error has a disposition: handler.Park, RetryAfter, Skip or Refuse. After the consumer
// begins to stop, the context is cancelled when [Config.Grace] is over; an error that comes then
// does not count.
//
// A handler.Mux implements Handler, and so does handler.HandlerFunc, a function for messages of
// every type.
//
// A consumer calls more methods of a mux than Handle, so add middleware with the mux's method Use
// instead of wrapping the mux. [New] calls Validate() error, and so do Run and CatchUp when they
// begin. Run and CatchUp also make the checks that Checks() []func(context.Context,
// *messagestore.Message) error returns. Types() []string returns the message types that the handler
// knows, for [Config.OnlyKnown]. Any handler may have these methods.
type Handler interface {
	Handle(ctx context.Context, m *messagestore.Message) error
}

// A Store has the methods of a [messagestore.Store] that a consumer needs. It is safe for
// concurrent use.
type Store interface {
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error)
	Now(ctx context.Context) (time.Time, error)
	End(ctx context.Context, category messagestore.Category) (messagestore.GlobalPosition, error)
	PositionAt(ctx context.Context, category messagestore.Category, t time.Time) (messagestore.GlobalPosition, error)
	Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error)
	Epoch(ctx context.Context) (string, error)
	TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (removed int64, err error)
	Connections() int
	Driver() (messagestore.Driver, error)
	Watch(category messagestore.Category, interval time.Duration) (wakeups <-chan messagestore.GlobalPosition, stop func())
}

// A Consumer reads one category for one handler. Its methods are safe for concurrent use,
// but it runs once at a time. There is nothing to close.
type Consumer struct {
	store   Store
	id      checkpoint.Consumer
	handler Handler
	config  Config

	running atomic.Bool
	lanes   *lanes[delivery] // of the last run
	counts  counts
	outage  *outage.Outage // of the store
	probe   probe
	said    said
}

// New returns a consumer that reads category of store. The name is its identity: it goes on where
// the last consumer of that name stopped. Two consumers of one category that do different things
// need different names.
//
// The name is not empty, has no dash, plus sign, colon, white space or hidden character,
// and leaves room for the names of the consumer's streams (see
// [text.MaxNameBytes]).
//
// The error has all mistakes in the arguments together: errors that match
// [messagestore.ErrInvalid], and the error of the handler's own Validate, if it has that method.
// New does not call the store.
func New(store Store, category messagestore.Category, name string, h Handler, config *Config) (*Consumer, error) {
	id := checkpoint.Consumer{Category: category, Name: name}
	c := &Consumer{
		store: store, id: id, handler: h, config: config.withDefaults(), outage: outage.Of(store),
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// validate also finds a mistake that was made in the handler since New, such as a function that was
// registered twice.
func (c *Consumer) validate() error {
	var all []error
	if isNil(c.store) {
		all = append(all, invalid("store", nil, "must not be nil"))
	}
	if isNil(c.handler) {
		all = append(all, invalid("handler", nil, "must not be nil"))
	} else if v, ok := c.handler.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			all = append(all, fmt.Errorf("handler: %w", err))
		}
	}
	if err := c.id.Validate(); err != nil {
		all = append(all, err)
	}
	if all = append(all, c.config.mistakes(c.known())...); len(all) > 0 {
		return fmt.Errorf("invalid consumer: %w", errors.Join(all...))
	}
	return nil
}

// check makes the handler's checks, each with a message from the consumer's store, after joining.
func (c *Consumer) check(ctx context.Context) error {
	h, has := c.handler.(interface {
		Checks() []func(context.Context, *messagestore.Message) error
	})
	if !has {
		return nil
	}
	checks := h.Checks()
	if len(checks) == 0 {
		return nil
	}
	m, err := c.store.Last(calling.Upkeep(ctx), c.id.Ledger())
	if err != nil {
		return fmt.Errorf("read generation: %w", err)
	}
	var all []error
	for _, check := range checks {
		all = append(all, check(c.forHandlers(ctx), m))
	}
	return errors.Join(all...)
}

// forHandlers returns the context for handlers.
func (c *Consumer) forHandlers(ctx context.Context) context.Context {
	return calling.WithCaller(ctx, func(caller *calling.Caller) {
		caller.Consumer, caller.Category, caller.Upkeep = c.id.Name, string(c.id.Category), false
	})
}

// known returns the message types that the handler knows, if the consumer reads no others. It
// returns nil if the handler does not report its types.
func (c *Consumer) known() []string {
	if h, tells := c.handler.(interface{ Types() []string }); tells && c.config.OnlyKnown && !isNil(c.handler) {
		return h.Types()
	}
	return nil
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Interface:
		return r.IsNil()
	}
	return false
}

// Run delivers messages until ctx is done. Then it takes no more, waits up to
// [Config.Grace] for those in flight, writes a checkpoint and returns nil. It returns
// another error, or returns earlier, only because of an error that stopped it: see the
// package comment. A last checkpoint that could not be written is an error, too: messages
// will be redelivered.
//
// No goroutine outlives Run, except for a handler that did not return ([GraceExceededError]). Run
// may be called again afterwards. A call while the consumer runs returns [ErrRunning].
func (c *Consumer) Run(ctx context.Context) error { return c.run(ctx, false) }

// CatchUp delivers messages until none are left, and returns nil. It also delivers the messages
// that handlers write meanwhile, and requested redrives. Tests and batch jobs use it where a
// service uses Run. It stops as Run does, but returns ctx's error if ctx is done first, [ErrPaused]
// if an operator has paused the consumer, and any error of the store.
func (c *Consumer) CatchUp(ctx context.Context) error { return c.run(ctx, true) }

func (c *Consumer) run(ctx context.Context, catchUp bool) error {
	if err := c.validate(); err != nil {
		return err
	}
	if !c.running.CompareAndSwap(false, true) {
		return c.id.Wrap(ErrRunning)
	}
	defer c.running.Store(false)
	defer c.outage.Ends(c.by())

	c.sayFewConnections()
	me := c.newMember(catchUp)
	r, err := c.runOnce(ctx, catchUp, nil, me)
	for c.goesOn(ctx, err) {
		if !errors.Is(err, errUnfair) {
			c.config.Logger.Warn().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Str("error", text.Log(err)).Msg("consumer starts again")
		}
		if startsOver(err) {
			me = c.newMember(catchUp) // the group has gone on without the member that this process was
		}
		r, err = c.runOnce(ctx, catchUp, r, me)
	}
	switch {
	case err == nil && catchUp:
		err = ctx.Err()
	case !catchUp && ctx.Err() != nil && startsOver(err):
		err = nil // it was told to stop
	}
	if err != nil {
		event := c.config.Logger.Error().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Str("error", text.Log(err))
		if e, is := errors.AsType[*MessageError](err); is {
			event.Str("id", e.ID.String()).Int64("globalPosition", int64(e.GlobalPosition)).Str("park", c.parkCommand(e.GlobalPosition))
			logStack(event, e.Err)
		}
		event.Msg("consumer stopped")
		return c.id.Wrap(err)
	}
	c.config.Logger.Info().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Msg("consumer stopped")
	return nil
}

// newMember returns a member that has not joined its group.
func (c *Consumer) newMember(catchUp bool) checkpoint.Member {
	return checkpoint.NewMember(process(), c.config.Lease, catchUp || c.config.Concurrency == 1)
}

// process names this process for operators.
var process = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return text.Shorten(fmt.Sprintf("%s/%d", host, os.Getpid()))
})

// startsOver reports whether a run has ended because its lease was over and another member has its
// slots now, or because an operator has reset the consumer.
func startsOver(err error) bool {
	if ofHandler(err) || graceExceeded(err) {
		return false
	}
	fenced, is := errors.AsType[*checkpoint.FencedError](err)
	return is && fenced.StartsOver()
}

// goesOn reports whether the consumer begins again after a run that ended with err.
func (c *Consumer) goesOn(ctx context.Context, err error) bool {
	switch {
	case err == nil || ofHandler(err) || graceExceeded(err):
		return false
	case errors.Is(err, errUnfair):
		return true // also to leave the group
	case ctx.Err() != nil:
		return false
	}
	return errors.Is(err, checkpoint.ErrEpoch) || startsOver(err)
}

func graceExceeded(err error) bool {
	_, is := errors.AsType[*GraceExceededError](err)
	return is
}

// runOnce runs in one epoch of the store. The argument before is the run in the previous epoch, or
// nil.
func (c *Consumer) runOnce(ctx context.Context, catchUp bool, before *run, me checkpoint.Member) (*run, error) {
	if c.lanes != nil && c.lanes.Working() > 0 {
		return nil, fmt.Errorf("%w: a handler of an earlier run has not returned", ErrRunning)
	}
	p, err := c.start(ctx, catchUp, before, me)
	if err != nil || p == nil {
		return nil, err
	}
	r := newRun(c, p, catchUp)
	c.lanes = r.lanes
	return r, r.loop(ctx)
}

// start finds the place to go on from, and waits until there is something to handle. It returns nil
// if ctx is done first.
func (c *Consumer) start(ctx context.Context, catchUp bool, before *run, me checkpoint.Member) (*checkpoint.Place, error) {
	var stream messagestore.StreamName
	var read messagestore.Mark
	if before != nil {
		stream, read = before.checkpoints.place.Stream, before.reader.mark
	}
	log := checkpoint.Log{Store: c.store, Consumer: c.id, First: c.locate}
	standby := standby{Consumer: c}
	defer standby.stop()
	met := before != nil // the store has answered
	checked := before != nil
	for failures := 1; ctx.Err() == nil; failures++ {
		p, err := log.Join(calling.Upkeep(ctx), me, catchUp, stream, read)
		if err == nil {
			c.storeWorks(starting)
			met = true
			if p.First {
				c.sayNew(ctx, p, catchUp)
			}
			if !checked {
				err = c.check(ctx)
				checked = err == nil
			}
		}
		switch {
		case err == nil && !p.Ready():
			failures = 0
			standby.wait(ctx, p)
			continue
		case err == nil:
			c.logStarted(p)
			c.counts.position.Store(int64(p.Position))
			return p, nil
		case ctx.Err() != nil:
			continue
		case catchUp || !heals(err) || !met && refused(err):
			c.leaveSeat(ctx, p, standby.place, before)
			return nil, err
		}
		if outage.Wait(ctx, c.storeFailed(starting, err, failures)) != nil {
			break
		}
	}
	c.leaveSeat(ctx, nil, standby.place, before) // the context is done, and to be stopped is not an error
	return nil, nil                              //nolint:nilnil // there is nothing to go on from
}

// leaveSeat leaves the group by the seat that the member took last: now, while it stood by, or in
// the run before.
func (c *Consumer) leaveSeat(ctx context.Context, now, stoodBy *checkpoint.Place, before *run) {
	switch {
	case now != nil:
		c.leaveGroup(ctx, now)
	case stoodBy != nil:
		c.leaveGroup(ctx, stoodBy)
	case before != nil:
		c.leaveGroup(ctx, before.checkpoints.place)
	}
}

func (c *Consumer) logStarted(p *checkpoint.Place) {
	event := c.config.Logger.Info().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).
		Str("positions", string(p.Stream)).Int64("position", int64(p.Position))
	if p.Leased() {
		event.Int("size", p.View(time.Now()).Members).Str("member", p.Member().String()).Int("slots", p.SlotCount())
	}
	if c.config.OnlyKnown {
		event.Strs("types", c.known())
	}
	event.Msg("consumer started")
}

// Stats are a consumer's counts since [New].
type Stats struct {
	Handled     int64 // messages whose handler returned nil
	Failed      int64 // deliveries that failed, other than for an outage of the store
	Retried     int64 // deliveries that were not the first of their message in a run
	Parked      int64 // messages that were parked
	Skipped     int64 // messages whose handler returned handler.Skip
	Tombstones  int64 // of deleted streams; they are not delivered
	StoreErrors int64 // errors of the store after which the consumer went on

	// Position is the last checkpoint: everything before it is finished. Head is the
	// position of the last message that the consumer saw in the category, 0 if none.
	Position messagestore.GlobalPosition
	Head     messagestore.GlobalPosition
}

// counts are the fields of Stats.
type counts struct {
	handled, failed, retried, parked, skipped, tombstones, storeErrors, position, head atomic.Int64
}

// Stats returns the counts of this moment.
func (c *Consumer) Stats() Stats {
	return Stats{
		Handled:     c.counts.handled.Load(),
		Failed:      c.counts.failed.Load(),
		Retried:     c.counts.retried.Load(),
		Parked:      c.counts.parked.Load(),
		Skipped:     c.counts.skipped.Load(),
		Tombstones:  c.counts.tombstones.Load(),
		StoreErrors: c.counts.storeErrors.Load(),
		Position:    messagestore.GlobalPosition(c.counts.position.Load()),
		Head:        messagestore.GlobalPosition(c.counts.head.Load()),
	}
}
