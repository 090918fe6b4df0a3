package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/dibs-go/dibs/alarm"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/known"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/wakeups"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// Store has the methods of a [messagestore.Store] that a saga needs. It is safe for concurrent use.
type Store interface {
	consumer.Store
	WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error)
}

// Versions are the functions of earlier versions of a definition. Each has the type of the present one.
type Versions map[int]any

// Config changes how a saga works. Nil means all defaults. [New] reports values that are out of bounds.
type Config struct {
	// Version is the version of the function. A saga keeps the version that it was started with. It
	// is raised with a function that does not do, for the same input, what the one before did.
	//
	// Defaults to 1.
	Version int

	// Earlier are the functions that sagas of earlier versions run.
	//
	// Defaults to none: such a saga is parked.
	Earlier Versions

	// Deadline is how long after its start a saga is undone if it has neither ended nor passed a pivot: 1 ms to
	// 10 years.
	//
	// Defaults to 0: there is none.
	Deadline time.Duration

	// Concurrency is how many sagas go on at a time: 1 to 1024. A saga that waits does not count.
	//
	// Defaults to 64.
	Concurrency int

	// PollInterval is the longest wait for a message that another process wrote, and for an alarm: 1 ms to 1 s.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// Lease is how long the sagas of a process that was killed wait for another process. See
	// [consumer.Config].
	//
	// Defaults to 10 s.
	Lease time.Duration

	// Logger receives a warning for each saga that is parked, for each function that panicked or ended its goroutine,
	// with its stack, and for each failure of the store, of names and numbers, never of content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Saga is the definition of a process over several steps. Its methods are safe for concurrent use. There is
// nothing to close.
type Saga[In, Out any] struct {
	core     *core
	consumer *consumer.Consumer
}

// core has the parts of a definition without its types.
type core struct {
	store     Store
	name      string
	category  messagestore.Category
	clock     *alarm.Clock
	wakeups   *wakeups.Wakeups // by the messages with which a saga ends or is parked
	defined   map[string]AnyStep
	functions map[int]func(r *Run, input json.RawMessage) (json.RawMessage, error)
	config    Config
}

// New returns the saga of a name, whose streams are in the category name:saga, and whose alarms in name:saga+alarm.
// The function f is run once for each step that begins, and more often: it does nothing but call steps, and
// compute. All steps that it and the earlier functions call, and all steps whose undo may be needed, are among
// steps. The error names all mistakes and matches [messagestore.ErrInvalid].
func New[In, Out any](store Store, name string, f func(r *Run, in In) (Out, error), steps Steps, config *Config) (*Saga[In, Out], error) {
	c := &core{
		store: store, name: name, category: messagestore.Category(name).WithType("saga"), defined: map[string]AnyStep{},
		functions: map[int]func(r *Run, input json.RawMessage) (json.RawMessage, error){},
	}
	if config != nil {
		c.config = *config
	}
	c.defaults()
	// The clock has the saga's store, category and bounds, so New reports a wrong value of these itself.
	clock, err := alarm.New(store, c.category, &alarm.Config{
		Concurrency: c.config.Concurrency, PollInterval: c.config.PollInterval, Lease: c.config.Lease, Logger: c.config.Logger,
	})
	var wrong []error
	if err != nil {
		wrong = append(wrong, err)
	}
	c.clock = clock
	wrong = append(wrong, c.check()...)
	if f == nil {
		wrong = append(wrong, invalid("function", nil, "it is nil"))
	}
	c.functions[c.config.Version] = erase(f)
	for version, g := range c.config.Earlier {
		switch earlier, is := g.(func(r *Run, in In) (Out, error)); {
		case version < 1 || version >= c.config.Version:
			wrong = append(wrong, invalid("Earlier", version, "its versions are from 1 and below Version"))
		case !is || earlier == nil:
			wrong = append(wrong, invalid("Earlier", fmt.Sprintf("%d: %T", version, g), fmt.Sprintf("its functions are of the type %T", f)))
		default:
			c.functions[version] = erase(earlier)
		}
	}
	wrong = append(wrong, c.define(steps)...)
	if len(wrong) == 0 {
		c.wakeups = wakeups.New(store, c.category, []string{event.TypeCompleted, event.TypeCompensated, event.TypeParked}, c.config.PollInterval, c.config.Logger)
		runner, err := consumer.New(store, c.category, "runner", known.Handler{Known: append([]string{event.TypeStarted}, event.Outside...), Func: c.handle, Owner: true}, &consumer.Config{
			OnlyKnown: true, Concurrency: c.config.Concurrency, BatchSize: messagestore.MaxReadMessages,
			PollInterval: c.config.PollInterval, Lease: c.config.Lease, Start: consumer.FromStart(), Logger: c.config.Logger,
			Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}},
		})
		if err == nil {
			return &Saga[In, Out]{c, runner}, nil
		}
		wrong = append(wrong, err)
	}
	return nil, fmt.Errorf("saga %.80q: %w", name, errors.Join(wrong...))
}

func (c *core) defaults() {
	f := &c.config
	if f.Version == 0 {
		f.Version = 1
	}
	if f.Concurrency == 0 {
		f.Concurrency = 64
	}
	if f.PollInterval == 0 {
		f.PollInterval = 100 * time.Millisecond
	}
}

func (c *core) check() (wrong []error) {
	f := &c.config
	if f.Version < 1 {
		wrong = append(wrong, invalid("Version", f.Version, "it is at least 1"))
	}
	if f.Deadline != 0 && (f.Deadline < time.Millisecond || f.Deadline > maxWait) {
		wrong = append(wrong, invalid("Deadline", f.Deadline.String(), fmt.Sprintf("it is from 1ms to %v, or 0 for none", maxWait)))
	}
	return wrong
}

// define keeps the steps, each by its name.
func (c *core) define(steps Steps) (wrong []error) {
	for i, s := range steps {
		if v := reflect.ValueOf(s); s == nil || v.IsNil() {
			wrong = append(wrong, invalid("step", i, "it is nil"))
			continue
		}
		of := s.definition()
		if of.invalid != nil {
			wrong = append(wrong, of.invalid)
		}
		if c.defined[of.name] != nil {
			wrong = append(wrong, invalid("step", of.name, "two steps have this name"))
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
			return nil, park(event.WhyInvalid, "", fmt.Errorf("the saga's input: %w", err))
		}
		out, err := f(r, in)
		if err != nil || r.stop != nil {
			return nil, err
		}
		raw, err := encode("output of the saga", out)
		if err != nil {
			return nil, park(event.WhyInvalid, "", err)
		}
		return raw, nil
	}
}

// Category returns the category of the sagas.
func (s *Saga[In, Out]) Category() messagestore.Category { return s.core.category }

// Stats are the counts of the consumer that goes on with sagas.
func (s *Saga[In, Out]) Stats() consumer.Stats { return s.consumer.Stats() }

// Run goes on with the sagas of the category, and rings their alarms, until ctx is done; then it returns nil. Each
// replica of a service runs it: they share the sagas. It returns earlier for the reasons for which
// [consumer.Consumer.Run] does.
func (s *Saga[In, Out]) Run(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("sagas of %s: %w", s.core.category, invalid("context", nil, "it is nil"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	for _, part := range []func(context.Context) error{s.consumer.Run, s.core.clock.Run} {
		go func() {
			defer cancel() // the parts end together
			ended <- part(ctx)
		}()
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		return fmt.Errorf("sagas of %s: %w", s.core.category, err)
	}
	return nil
}

// fencedPause is after how long a process looks at a saga again with which another one went on.
const fencedPause = time.Second

// handle goes on with the saga of a message.
func (c *core) handle(ctx context.Context, m *messagestore.Message) error {
	err := c.goOn(ctx, m)
	malformed, is := errors.AsType[*malformedError](err)
	switch {
	case is:
		return handler.Skip(text.Log(malformed))
	case errors.Is(err, errFenced):
		return handler.RetryAfter(fencedPause, err)
	}
	return err
}
