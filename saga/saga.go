package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A store has the methods of a [messagestore.Store] that a saga needs.
type store interface {
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error)
	Now(ctx context.Context) (time.Time, error)
	Watch(category messagestore.Category, interval time.Duration) (wakeups <-chan messagestore.GlobalPosition, stop func())
	Driver() (messagestore.Driver, error)
}

// Config changes how a saga works. Nil means all defaults. [New] reports values that are out of
// bounds.
type Config struct {
	// Version is the version of the function. A saga keeps the version with which it was started.
	// Raise it when the new function may do something else than the previous one for the same
	// input.
	//
	// Defaults to 1.
	Version int

	// Earlier has, by version, the function for sagas that were started with an earlier version.
	// Each has the type of the current one.
	//
	// Defaults to none: sagas of earlier versions are suspended.
	Earlier map[int]any

	// Deadline is how long after its start a saga is undone if it has neither ended nor passed a
	// pivot: 1 ms to 10 years.
	//
	// Defaults to 0: no deadline.
	Deadline time.Duration

	// Concurrency is how many sagas a process works on at a time: 1 to 1000. A saga that waits does
	// not count.
	//
	// Defaults to 64.
	Concurrency int

	// PollInterval is the longest time until a message that another process wrote is noticed: 1 ms
	// to 1 s.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// Lease is how long the sagas of a killed process wait before another process goes on with
	// them: 1 s to 1 h.
	//
	// Defaults to 10 s.
	Lease time.Duration

	// Logger receives a warning for each saga that is suspended, for each function that panicked or
	// ended its goroutine, with its stack, and for each failure of the store. Its entries have
	// names and numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Saga is the definition of a process over several steps. Its methods are safe for concurrent
// use. There is nothing to close.
type Saga[In, Out any] struct{ core *core }

// core has the parts of a definition without its types.
type core struct {
	store     store
	name      string
	category  messagestore.Category
	source    work.Source        // the queue of the sagas' streams
	wakeups   *waiting.Wakeups   // by the messages with which a saga ends or is suspended
	defined   map[string]anyStep // the steps
	functions map[int]func(r *Run, input json.RawMessage) (json.RawMessage, error)
	config    Config

	kept     *kept
	running  atomic.Bool
	outages  streaks // of turns that met an outage
	laters   streaks // of turns that left the saga to a later release
	counts   work.Counts
	endings  atomic.Int64
	suspends atomic.Int64
	sample   atomic.Pointer[sample] // of the store's clock, the last
	lasts    atomic.Int64           // a turn, about
}

// queueOf returns the queue of the sagas of a category. A queue of streams is separate from any
// queue of items with the same name.
func queueOf(category messagestore.Category) queuing.Queue {
	return queuing.Queue{Name: string(category), Category: category}
}

// New returns the saga with this name. Its streams are in the category name:saga. The function f
// runs at least once for each step that begins, so it only calls steps and computes. The argument
// steps has every step that f and the earlier functions call, and every step that may have to be
// undone; each [TxStep] uses the saga's store. The error names all mistakes and matches
// [messagestore.ErrInvalid]; it matches [messagestore.ErrNotSupported] if the store's driver keeps
// no queues. New makes no round trip.
func New[In, Out any](store *messagestore.Store, name string, f func(r *Run, in In) (Out, error), steps Steps, config *Config) (*Saga[In, Out], error) {
	return newSaga(store, name, f, steps, config)
}

func newSaga[In, Out any](store store, name string, f func(r *Run, in In) (Out, error), steps Steps, config *Config) (*Saga[In, Out], error) {
	c := &core{
		store: store, name: name, category: messagestore.Category(name).WithType("saga"), defined: map[string]anyStep{},
		functions: map[int]func(r *Run, input json.RawMessage) (json.RawMessage, error){},
	}
	if config != nil {
		c.config = *config
	}
	c.defaults()
	driver, wrong := c.check()
	if f == nil {
		wrong = append(wrong, invalid("function", nil, "must not be nil"))
	}
	c.functions[c.config.Version] = erase(f)
	for version, g := range c.config.Earlier {
		switch earlier, is := g.(func(r *Run, in In) (Out, error)); {
		case version < 1 || version >= c.config.Version:
			wrong = append(wrong, invalid("Earlier", version, "must have versions from 1 on and below Version"))
		case !is || earlier == nil:
			wrong = append(wrong, invalid("Earlier", fmt.Sprintf("%d: %T", version, g), fmt.Sprintf("must have functions of the type %T", f)))
		default:
			c.functions[version] = erase(earlier)
		}
	}
	wrong = append(wrong, c.define(steps, driver)...)
	if len(wrong) > 0 {
		return nil, fmt.Errorf("saga %.80q: %w", name, errors.Join(wrong...))
	}
	keeps, err := queuing.Of(store)
	if err != nil {
		return nil, fmt.Errorf("saga %.80q: %w", name, err)
	}
	c.source = work.Source{
		Watch: store.Watch, Outage: outage.Of(store), Driver: keeps, Queue: queueOf(c.category), Policy: work.Always(queuing.Policy{MaxFailures: maxFailures}),
		Logger: c.config.Logger, Wakes: wakeTypes, Pokes: work.NewPokes(),
	}
	c.kept = newKept()
	c.wakeups = waiting.NewWakeups(store, c.category, []string{typeCompleted, typeCompensated, typeResolved, typeSuspended}, c.config.PollInterval, c.config.Logger).Paced(c.tailPause)
	return &Saga[In, Out]{c}, nil
}

// tailPause is how long the end of a saga may go unnoticed if another process ended it. While this
// process has a runner, that runner reports most ends itself, after a turn.
func (c *core) tailPause() time.Duration {
	if c.running.Load() {
		return min(max(10*time.Millisecond, 2*time.Duration(c.lasts.Load())), max(c.config.PollInterval, 10*time.Millisecond))
	}
	return 0
}

// lasted records how long a turn took: it moves lasts an eighth of the way there, and all the way
// for the first turn.
func (c *core) lasted(turn time.Duration) {
	before := c.lasts.Load()
	if before > 0 {
		turn = time.Duration(before) + (turn-time.Duration(before))/8
	}
	c.lasts.Store(int64(turn))
}

func (c *core) defaults() {
	f := &c.config
	f.Version = cmp.Or(f.Version, 1)
	f.Concurrency = cmp.Or(f.Concurrency, 64)
	f.PollInterval = cmp.Or(f.PollInterval, 100*time.Millisecond)
	f.Lease = cmp.Or(f.Lease, 10*time.Second)
}

// check returns the driver, nil if the store has none, and the mistakes.
func (c *core) check() (driver messagestore.Driver, wrong []error) {
	f := &c.config
	if v := reflect.ValueOf(c.store); c.store == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		wrong = append(wrong, invalid("store", nil, "must not be nil"))
	} else if used, err := c.store.Driver(); err != nil {
		wrong = append(wrong, err)
	} else {
		driver = used
	}
	if err := c.category.Validate(); err != nil {
		wrong = append(wrong, err)
	}
	if f.Version < 1 {
		wrong = append(wrong, invalid("Version", f.Version, "must be at least 1"))
	}
	if f.Deadline != 0 && (f.Deadline < time.Millisecond || f.Deadline > maxWait) {
		wrong = append(wrong, invalid("Deadline", f.Deadline.String(), fmt.Sprintf("must be between 1ms and %v, or 0 for none", maxWait)))
	}
	if f.Concurrency < 1 || f.Concurrency > queuing.MaxItems {
		wrong = append(wrong, invalid("Concurrency", f.Concurrency, fmt.Sprintf("must be between 1 and %d", queuing.MaxItems)))
	}
	if f.PollInterval < time.Millisecond || f.PollInterval > time.Second {
		wrong = append(wrong, invalid("PollInterval", f.PollInterval.String(), "must be between 1ms and 1s"))
	}
	if f.Lease < time.Second || f.Lease > time.Hour {
		wrong = append(wrong, invalid("Lease", f.Lease.String(), "must be between 1s and 1h"))
	}
	return driver, wrong
}

// define keeps the steps, each by its name.
func (c *core) define(steps Steps, driver messagestore.Driver) (wrong []error) {
	for i, s := range steps {
		if v := reflect.ValueOf(s); s == nil || v.IsNil() {
			wrong = append(wrong, invalid("step", i, "must not be nil"))
			continue
		}
		of := s.definition()
		if of.invalid != nil {
			wrong = append(wrong, of.invalid)
		}
		if c.defined[of.name] != nil {
			wrong = append(wrong, invalid("step", of.name, "must have a name of its own: two steps have this one"))
		}
		if driver != nil && !s.isOf(driver) {
			wrong = append(wrong, invalid("step", of.name, "must have transactions of the saga's store"))
		}
		c.defined[of.name] = s
	}
	return wrong
}

// erase returns f over JSON.
func erase[In, Out any](f func(r *Run, in In) (Out, error)) func(r *Run, input json.RawMessage) (json.RawMessage, error) {
	return func(r *Run, input json.RawMessage) (json.RawMessage, error) {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, suspend(whyInvalid, "", fmt.Errorf("the saga's input: %w", err))
		}
		out, err := f(r, in)
		if err != nil || r.stop != nil {
			return nil, err
		}
		raw, err := encode("output of the saga", out)
		if err != nil {
			return nil, suspend(whyInvalid, "", err)
		}
		return raw, nil
	}
}

// Category returns the category of the sagas.
func (s *Saga[In, Out]) Category() messagestore.Category { return s.core.category }
