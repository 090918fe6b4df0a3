package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A Handler is given the messages of a category. It may be given one again, and so
// does for the second time what it may do twice. With [Config.Concurrency] above 1
// it is called from several goroutines. A message is read-only. The context lives on
// through [Config.Grace] when the consumer is told to stop; an error that comes after
// it is done is not held against the message.
//
// A handler that has a method Validate() error is asked by [New].
type Handler interface {
	Handle(ctx context.Context, m *messagestore.Message) error
}

// HandlerFunc lets a function be a [Handler].
type HandlerFunc func(ctx context.Context, m *messagestore.Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m *messagestore.Message) error { return f(ctx, m) }

// A Store is what a consumer needs of a [messagestore.Store]. It is safe for
// concurrent use.
type Store interface {
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	LastOfType(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error)
	Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error)
	Watch(category messagestore.Category, interval time.Duration) (bell <-chan messagestore.GlobalPosition, stop func())
}

// A Consumer reads one category for one handler. Its methods are safe for
// concurrent use, but it runs once at a time. There is nothing to close.
type Consumer struct {
	store    Store
	category messagestore.Category
	name     string
	handler  Handler
	config   Config

	running atomic.Bool

	mu     sync.Mutex
	stats  Stats
	inHand int // handlers that have not returned
}

// New returns a consumer that reads category of store under a name, which is its
// identity: it goes on where the last one of that name left off. Two consumers of
// one category that do different things have different names.
//
// The name is not empty and has no dash, plus sign, colon, white space or hidden
// character, and is short enough for the streams that are named after it (see
// [messagestore.MaxNameBytes]). Nothing is read or written until the consumer runs.
// What is refused is an error that matches [messagestore.ErrInvalid], or what the
// handler's Validate returns.
func New(store Store, category messagestore.Category, name string, h Handler, config *Config) (*Consumer, error) {
	c := &Consumer{store: store, category: category, name: name, handler: h, config: config.withDefaults()}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("new consumer: %w", err)
	}
	return c, nil
}

func (c *Consumer) validate() error {
	switch {
	case isNil(c.store):
		return invalid("store", nil, "there is none")
	case isNil(c.handler):
		return invalid("handler", nil, "there is none")
	}
	if err := c.category.Validate(); err != nil {
		return err
	}
	if rule := c.nameRule(); rule != "" {
		return invalid("consumer name", c.name, rule)
	}
	if err := c.config.validate(); err != nil {
		return err
	}
	if v, ok := c.handler.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
	}
	return nil
}

// nameRule returns the rule that the name breaks, or "".
func (c *Consumer) nameRule() string {
	if c.name == "" {
		return "it is empty"
	}
	if strings.ContainsAny(c.name, "-+:") {
		return "it holds a dash, plus sign or colon"
	}
	// Without those, a name is right where a category is.
	if err := messagestore.Category(c.name).Validate(); err != nil {
		if wrong, ok := errors.AsType[*messagestore.InvalidError](err); ok {
			return strings.Replace(wrong.Rule, "the category holds", "it holds", 1)
		}
		return err.Error()
	}
	for _, longest := range []messagestore.StreamName{
		c.deadLetter(uuid.Max),
		c.positionStream(messagestore.EndOfStream, messagestore.MaxGroupSize-1),
	} {
		if n := len(longest) - messagestore.MaxNameBytes; n > 0 {
			return fmt.Sprintf("%d bytes too long for the streams of category %s that are named after it", n, c.category)
		}
	}
	return ""
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

// Run handles messages until ctx is done. Then it takes no more, lets those in hand
// finish within [Config.Grace], records the position and returns nil. It returns
// earlier, or something else, only with the error that stopped it: see the package
// comment. A position that could not be recorded at the end is an error too, and
// says that messages will be handed over again.
//
// No goroutine outlives it, but for a handler that would not stop
// ([ErrGraceExceeded]). It may be called again afterwards; while it runs, that is
// [ErrRunning].
func (c *Consumer) Run(ctx context.Context) error { return c.run(ctx, false) }

// CatchUp handles messages until none are left, those that handlers write meanwhile
// among them, and returns nil. Tests and batch jobs use it where a service uses Run.
// It stops as Run does, but returns ctx's error if ctx is done first, and any error
// of the store.
func (c *Consumer) CatchUp(ctx context.Context) error { return c.run(ctx, true) }

func (c *Consumer) run(ctx context.Context, catchUp bool) error {
	if ctx == nil {
		return c.wrap(invalid("context", nil, "there is none"))
	}
	if !c.running.CompareAndSwap(false, true) {
		return c.wrap(ErrRunning)
	}
	defer c.running.Store(false)

	r, err := c.runOnce(ctx, catchUp, nil)
	for !ofHandler(err) && errors.Is(err, errEpoch) && ctx.Err() == nil && !errors.Is(err, ErrGraceExceeded) {
		c.config.Logger.Warn().Str("consumer", c.name).Str("category", string(c.category)).Str("error", errorText(err)).Msg("consumer starts again")
		r, err = c.runOnce(ctx, catchUp, r)
	}
	if err == nil && catchUp {
		err = ctx.Err()
	}
	if err != nil {
		c.config.Logger.Error().Str("consumer", c.name).Str("category", string(c.category)).Str("error", errorText(err)).Msg("consumer stopped")
		return c.wrap(err)
	}
	c.config.Logger.Info().Str("consumer", c.name).Str("category", string(c.category)).Msg("consumer stopped")
	return nil
}

// runOnce runs in one epoch of the store, after a run in the one before it, nil for none.
func (c *Consumer) runOnce(ctx context.Context, catchUp bool, before *run) (*run, error) {
	c.mu.Lock()
	inHand := c.inHand
	c.mu.Unlock()
	if inHand > 0 {
		return nil, fmt.Errorf("%w: a handler of the run before has not returned", ErrRunning)
	}
	p, err := c.start(ctx, catchUp, before)
	if err != nil || p == nil {
		return nil, err
	}
	r := newRun(c, p, catchUp)
	return r, r.loop(ctx)
}

// start finds where to go on. It returns no place if ctx is done first.
func (c *Consumer) start(ctx context.Context, catchUp bool, before *run) (*place, error) {
	for failures := 1; ctx.Err() == nil; failures++ {
		p, err := c.resume(ctx, before)
		switch {
		case err == nil:
			c.config.Logger.Info().Str("consumer", c.name).Str("category", string(c.category)).
				Str("positions", string(p.stream)).Int64("position", int64(p.Position)).Msg("consumer started")
			c.count(func(s *Stats) { s.Position = p.Position })
			return p, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // to be stopped is no error
		case catchUp || !heals(err):
			return nil, err
		}
		wait := time.NewTimer(c.storeFailed(err, failures))
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
	return nil, nil
}

// How long the consumer waits after an error of the store. A server that was killed is
// back within a second, so the longest wait is what a consumer is idle after that; and one
// that stays away is asked at most twice a second by each consumer.
const (
	minStoreBackoff = 50 * time.Millisecond
	maxStoreBackoff = time.Second
)

// storeFailed logs and counts an error that may heal, and returns how long to wait.
func (c *Consumer) storeFailed(err error, failures int) time.Duration {
	wait := backoff(minStoreBackoff, maxStoreBackoff, failures)
	c.count(func(s *Stats) { s.StoreErrors++ })
	c.config.Logger.Warn().Str("consumer", c.name).Str("category", string(c.category)).
		Int("failures", failures).Dur("wait", wait).Str("error", errorText(err)).Msg("store failed")
	return wait
}

type nameKey struct{}

func (c *Consumer) named(ctx context.Context) context.Context {
	return context.WithValue(ctx, nameKey{}, c.name)
}

// Name returns the name of the consumer that called a handler with ctx, or "". It is
// for what keeps the work of several consumers apart, as package reservation does.
func Name(ctx context.Context) string {
	name, _ := ctx.Value(nameKey{}).(string)
	return name
}

func (c *Consumer) wrap(err error) error {
	return fmt.Errorf("consumer %s of %s: %w", c.name, c.category, err)
}

// Stats are a consumer's counts since [New].
type Stats struct {
	Handled     int64 // messages whose handler returned nil
	Failed      int64 // calls of the handler that failed
	Retried     int64 // calls of the handler that were not the first for their message
	Parked      int64 // messages given up on
	Tombstones  int64 // of deleted streams, passed without the handler; and parked messages that were deleted
	StoreErrors int64 // errors of the store that the consumer went on after

	// Position is the last that was recorded: everything before it is finished. Head
	// is the position of the last message that the consumer saw in the category, 0 if
	// none.
	Position messagestore.GlobalPosition
	Head     messagestore.GlobalPosition
}

// Stats returns the counts of this moment.
func (c *Consumer) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Consumer) count(change func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.stats)
}
