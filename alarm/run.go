package alarm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/known"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	// ahead is how long before it begins a minute is given to a process. The clocks of the processes may
	// differ by as much.
	ahead = time.Minute

	// leastNoted is how often a clock notes which minutes have begun, if there are no alarms. A process
	// that starts looks at the minutes since.
	leastNoted = time.Hour

	minuteLanes = 16 // minutes at a time: two, and more after an outage
)

// ErrRunning is returned by [Clock.Run] while the same clock runs.
var ErrRunning = errors.New("the clock is running")

// Noted is the message by which a clock notes that all minutes up to one have been begun.
type noted struct {
	Minute int64 `json:"minute"` // microseconds since 1970
}

// MessageType implements [messagestore.Body].
func (noted) MessageType() string { return "Noted" }

// Run rings the alarms of the category until ctx is done, and then returns nil. Each replica of a service
// runs it; of two that ring the same alarm, as after a pause, one writes. It returns earlier for the
// reasons for which [consumer.Consumer.Run] does, and [ErrRunning] if the clock runs already.
func (c *Clock) Run(ctx context.Context) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "it is nil")
	}
	if !c.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer c.running.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	minutes, err := c.minutes(ctx)
	if err != nil {
		return err
	}
	sets, err := c.sets()
	if err != nil {
		return err
	}
	parts := []func(context.Context) error{minutes.Run, sets.Run, c.begin}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	var all []error
	for range parts {
		if err := <-ended; err != nil {
			all = append(all, err)
		}
		cancel() // the parts end together
	}
	if len(all) > 0 {
		return fmt.Errorf("alarms of %s: %w", c.category, errors.Join(all...))
	}
	return nil
}

// forever is the policy of both consumers: an alarm is late rather than lost.
var forever = consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}}

// minutes is the consumer of the minutes that have begun. A handler has its minute for as long as it
// lasts; it leaves it when run is done.
func (c *Clock) minutes(run context.Context) (*consumer.Consumer, error) {
	ring := func(ctx context.Context, m *messagestore.Message) error { return c.ring(ctx, run, m) }
	return consumer.New(c.store, c.category, "minutes", known.Handler{Known: []string{typeDue}, Func: ring, Owner: true, Slow: true}, &consumer.Config{
		OnlyKnown: true, Concurrency: minuteLanes, PollInterval: c.config.PollInterval, Lease: c.config.Lease,
		Grace: time.Second, Errors: forever, Start: consumer.FromStart(), Logger: c.config.Logger,
	})
}

// sets is the consumer of the alarms that are set in minutes that have begun.
func (c *Clock) sets() (*consumer.Consumer, error) {
	return consumer.New(c.store, c.category, "sets", known.Handler{Known: []string{typeSet, typeClosed}, Func: c.see, Owner: true}, &consumer.Config{
		OnlyKnown: true, Concurrency: c.config.Concurrency, PollInterval: c.config.PollInterval, Lease: c.config.Lease,
		Grace: time.Second, Errors: forever, Start: consumer.FromStart(), Logger: c.config.Logger,
	})
}

// A beginning is how far a clock has begun the minutes.
type beginning struct {
	*Clock
	last, noted time.Time // minutes
}

// begin adds Due to each minute that has alarms, some time before the minute begins.
func (c *Clock) begin(ctx context.Context) error {
	key := outage.Key{By: "clock of " + string(c.category), To: "begin a minute of alarms"}
	fails := outage.Of(c.store)
	defer fails.Ends(key.By)
	b := beginning{Clock: c}
	for failures := 0; ctx.Err() == nil; {
		err := b.catchUp(ctx)
		pause := time.Until(b.last.Add(time.Minute - ahead))
		switch {
		case errors.Is(err, messagestore.ErrInvalid), errors.Is(err, messagestore.ErrNotSupported), errors.Is(err, messagestore.ErrClosed):
			return err
		case err != nil && ctx.Err() == nil:
			failures++
			c.failures.Add(1)
			fails.Failed(key, c.config.Logger, "category", string(c.category), "to", key.To, "failures", failures, "error", text.Log(err))
			pause = backoff.After(failures, 20*time.Millisecond, time.Second)
		default:
			failures = 0
			fails.Works(key)
		}
		_ = backoff.Wait(ctx, max(pause, time.Millisecond)) // the loop looks whether ctx is done
	}
	return nil
}

// catchUp begins the minutes since the last that was begun.
func (b *beginning) catchUp(ctx context.Context) (err error) {
	if b.last.IsZero() {
		if b.last, err = b.lastNoted(ctx); err != nil {
			return err
		}
		b.noted = b.last
	}
	for next := b.last.Add(time.Minute); !next.After(minuteOf(time.Now().Add(ahead))); next = next.Add(time.Minute) {
		begun, err := b.beginMinute(ctx, next)
		if err != nil {
			return err
		}
		b.last = next
		if !begun && next.Sub(b.noted) < leastNoted {
			continue
		}
		if _, err := b.store.Write(ctx, b.notes(), messagestore.AnyVersion, noted{next.UnixMicro()}); err != nil {
			return err
		}
		b.noted = next
	}
	return nil
}

// notes is the stream in which clocks note how far they are.
func (c *Clock) notes() messagestore.StreamName { return c.category.Stream("clock") }

// noteFirst notes where the first process of a category began. An alarm is left to its minute only behind
// such a note: a process that starts after that minute looks at the minutes since.
func (c *Clock) noteFirst(ctx context.Context) error {
	if c.hasNote.Load() {
		return nil
	}
	_, err := c.store.Write(ctx, c.notes(), messagestore.NoStream, noted{minuteOf(time.Now()).Add(-time.Minute).UnixMicro()})
	if err != nil && !errors.Is(err, messagestore.ErrVersionConflict) {
		return err
	}
	c.hasNote.Store(true)
	return nil
}

// lastNoted returns the last minute that was begun for certain. Before the first process there was none:
// the consumer of sets begins the minutes of the alarms that it finds.
func (c *Clock) lastNoted(ctx context.Context) (time.Time, error) {
	now := minuteOf(time.Now()).Add(-time.Minute)
	last, err := c.store.Last(ctx, c.notes())
	if errors.Is(err, messagestore.ErrNotFound) {
		return now, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	n, err := messagestore.Decode[noted](last)
	if err != nil {
		return time.Time{}, err
	}
	at := minuteOf(time.UnixMicro(n.Minute))
	if at.After(now) {
		at = now // noted by a process whose clock is ahead
	}
	return at, nil
}

func (c *Clock) beginMinute(ctx context.Context, minute time.Time) (begun bool, err error) {
	stream := c.stream(minute)
	version, err := c.store.Version(ctx, stream)
	if err != nil || version == messagestore.NoStream {
		return false, err
	}
	return true, c.due(ctx, stream)
}

// due adds Due to the stream of a minute, once, whichever process is first.
func (c *Clock) due(ctx context.Context, stream messagestore.StreamName) error {
	_, err := c.store.Write(ctx, stream, messagestore.AnyVersion, messagestore.Envelope{
		ID: uuid.NewSHA1(uuid.NameSpaceOID, []byte("dibs alarm due "+stream)), Body: messageDue{},
	})
	return err
}

// A minute is known to the consumer of sets.
type minute struct {
	closed messagestore.Version // the position of the last Closed, or NoStream
	due    bool
}

// mostKnown bounds the minutes that are remembered: the others are looked up.
const mostKnown = 10_000

// see handles Set and Closed. The messages of a minute come one after the other.
func (c *Clock) see(ctx context.Context, m *messagestore.Message) error {
	begin, err := begins(m.Stream)
	if err != nil {
		return handler.Skip(err.Error()) // another program writes to the category
	}
	known, err := c.know(ctx, m)
	if err != nil || m.Type == typeClosed {
		return err
	}
	switch {
	case m.Position < known.closed:
		return nil
	case known.closed != messagestore.NoStream:
		return c.ringOne(ctx, m)
	case known.due:
		return nil
	case begin.After(time.Now().Add(2 * ahead)):
		// Another minute of it, so that no process takes the minute as begun while this one does not.
		return c.noteFirst(ctx)
	}
	if err := c.due(ctx, m.Stream); err != nil {
		return err
	}
	known.due = true
	c.remember(m.Stream, known)
	return nil
}

func (c *Clock) know(ctx context.Context, m *messagestore.Message) (minute, error) {
	c.mu.Lock()
	known, is := c.closed[m.Stream]
	c.mu.Unlock()
	switch {
	case m.Type == typeClosed:
		known.closed = max(known.closed, m.Position)
	case is:
		return known, nil
	default:
		known.closed = messagestore.NoStream
		switch last, err := c.store.LastOfType(ctx, m.Stream, typeClosed); {
		case err == nil:
			known.closed = last.Position
		case !errors.Is(err, messagestore.ErrNotFound):
			return known, err
		}
	}
	c.remember(m.Stream, known)
	return known, nil
}

func (c *Clock) remember(stream messagestore.StreamName, known minute) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.closed) >= mostKnown {
		clear(c.closed)
	}
	c.closed[stream] = known
}
