package consumer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Config changes how a [Consumer] works. A nil *Config is a good one. [New] refuses
// what is out of bounds.
type Config struct {
	// Types are the message types to read. A type that is added later is read from
	// where the consumer is by then, not from the start.
	//
	// Defaults to all.
	Types []string

	// Correlation reads only what has a correlation stream of this category.
	//
	// Defaults to everything.
	Correlation messagestore.Category

	// GroupSize splits the category among so many members of a group, up to
	// [messagestore.MaxGroupSize], by cardinal id. All members have one name and one
	// size, and each its own GroupMember, from 0. When the size changes, the members
	// go on from the position of the one that was furthest behind, and those that
	// still run with the old size stop with [ErrConsumerFenced].
	//
	// Defaults to 0, no group, which is the same as a group of 1.
	GroupSize int

	// GroupMember is which member of the group this is, from 0.
	//
	// Defaults to 0.
	GroupMember int

	// Concurrency is how many messages may be in hand at a time: 1 to 1024. Messages
	// with one cardinal id never are together.
	//
	// Defaults to 1, which handles the category in order.
	Concurrency int

	// BatchSize is how many messages one read asks for: 1 to
	// [messagestore.MaxReadMessages]. Where messages are large it asks for fewer, so that
	// those of one read have about 4 MiB of data. The consumer holds at most two batches,
	// and reads the second while the first is handled.
	//
	// Defaults to 1000.
	BatchSize int

	// PollInterval is the longest wait for a message that another process wrote: 1 ms
	// to 1 h. A message that was written through the same store wakes the consumer at
	// once, and so does one of another process that the store's driver hears of. The
	// consumers of a store that wait are polled for together.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// PositionInterval is after how many messages the position is recorded: at least
	// 1. It is recorded too when the consumer has nothing to do, and when it stops.
	// After a crash, at most PositionInterval and BatchSize together are handed over
	// again: less of them is less to do twice, and costs a write more often.
	//
	// Defaults to 1000.
	PositionInterval int

	// PositionEvery is the longest that a position waits to be recorded: 1 ms to 1 h.
	//
	// Defaults to 1 s.
	PositionEvery time.Duration

	// RedriveInterval is the longest wait until the consumer finds that it was asked,
	// with [RequestRedrive], to redrive what it has parked: 1 ms to 1 h. It looks too
	// when it starts.
	//
	// Defaults to 5 s.
	RedriveInterval time.Duration

	// Grace is how long the messages in hand may go on after the consumer is told to
	// stop: 1 ms to 1 h. Then their context is cancelled, and they have 1 s more to
	// notice.
	//
	// Defaults to 10 s.
	Grace time.Duration

	// Errors decides what becomes of a message whose handler fails.
	//
	// Defaults to three retries, and then to stop.
	Errors ErrorPolicy

	// Logger receives the start, the stop, every failure and every parked message,
	// with names and numbers and the text of errors, never with content.
	//
	// Defaults to silence.
	Logger logger.Logger
}

// An ErrorPolicy decides what becomes of a message whose handler fails.
type ErrorPolicy struct {
	// Retries is how often a message is tried again, after the first time: up to
	// 1000, or -1 for never.
	//
	// Defaults to 3.
	Retries int

	// MinBackoff is about the wait before the first retry, 1 ms to 1 h. It doubles
	// from one to the next and varies by up to a half, so that what failed together
	// does not come back together.
	//
	// Defaults to 100 ms.
	MinBackoff time.Duration

	// MaxBackoff bounds the wait: MinBackoff to 24 h.
	//
	// Defaults to 10 s, or to MinBackoff if that is longer.
	MaxBackoff time.Duration

	// Then is what happens when there are no retries left.
	//
	// Defaults to Stop.
	Then Action
}

// An Action is what an [ErrorPolicy] ends with.
type Action int

const (
	// Stop ends Run and CatchUp with a [*MessageError]. The position stays before
	// the message.
	Stop Action = iota

	// Park writes the message to a dead-letter stream, where [Consumer.Parked] lists
	// it and [Consumer.Redrive] takes it up again, and goes on.
	//
	// The message gives up its place: later ones of its stream are handled before it.
	// A handler that knows an old message by its position, which is not above the
	// highest that it has seen, takes a redriven one for old and ignores it. Such a
	// handler stops instead, or writes what it does under an id derived from the
	// message's, as reservation.DeriveID makes one.
	Park
)

// String returns the action's name.
func (a Action) String() string {
	switch a {
	case Stop:
		return "stop"
	case Park:
		return "park"
	}
	return fmt.Sprintf("action %d", int(a))
}

const maxRetries = 1000

func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	d.Types = slices.Clone(d.Types)
	d.Concurrency = cmp.Or(d.Concurrency, 1)
	d.BatchSize = cmp.Or(d.BatchSize, 1000)
	d.PollInterval = cmp.Or(d.PollInterval, 100*time.Millisecond)
	d.PositionInterval = cmp.Or(d.PositionInterval, 1000)
	d.PositionEvery = cmp.Or(d.PositionEvery, time.Second)
	d.RedriveInterval = cmp.Or(d.RedriveInterval, 5*time.Second)
	d.Grace = cmp.Or(d.Grace, 10*time.Second)
	d.Errors.Retries = cmp.Or(d.Errors.Retries, 3)
	d.Errors.MinBackoff = cmp.Or(d.Errors.MinBackoff, 100*time.Millisecond)
	d.Errors.MaxBackoff = cmp.Or(d.Errors.MaxBackoff, max(10*time.Second, d.Errors.MinBackoff))
	return d
}

func (c *Config) validate() error {
	if err := c.filter().Validate(); err != nil {
		return err
	}
	for _, n := range []struct {
		field        string
		value, least int
		most         int
	}{
		{"concurrency", c.Concurrency, 1, 1024},
		{"batch size", c.BatchSize, 1, messagestore.MaxReadMessages},
		{"position interval", c.PositionInterval, 1, 1_000_000},
		{"retries", c.Errors.Retries, -1, maxRetries},
	} {
		if n.value < n.least || n.value > n.most {
			return invalid(n.field, n.value, fmt.Sprintf("it is between %d and %d", n.least, n.most))
		}
	}
	for _, d := range []struct {
		field       string
		value       time.Duration
		least, most time.Duration
	}{
		{"poll interval", c.PollInterval, time.Millisecond, time.Hour},
		{"position every", c.PositionEvery, time.Millisecond, time.Hour},
		{"redrive interval", c.RedriveInterval, time.Millisecond, time.Hour},
		{"grace", c.Grace, time.Millisecond, time.Hour},
		{"minimum back-off", c.Errors.MinBackoff, time.Millisecond, time.Hour},
		{"maximum back-off", c.Errors.MaxBackoff, c.Errors.MinBackoff, 24 * time.Hour},
	} {
		if d.value < d.least || d.value > d.most {
			return invalid(d.field, d.value, fmt.Sprintf("it is between %v and %v", d.least, d.most))
		}
	}
	if c.Errors.Then != Stop && c.Errors.Then != Park {
		return invalid("errors then", int(c.Errors.Then), "it is Stop or Park")
	}
	return nil
}

// filter returns what the consumer reads of its category. A group of 1 reads like
// none.
func (c *Config) filter() messagestore.Filter {
	return messagestore.Filter{Types: c.Types, Correlation: c.Correlation, GroupSize: c.GroupSize, GroupMember: c.GroupMember}
}

// groupSize is the size under which positions are kept.
func (c *Config) groupSize() int { return max(c.GroupSize, 1) }

// backoff returns how long to wait before a message's next attempt.
func (p *ErrorPolicy) backoff(failures int) time.Duration {
	return backoff(p.MinBackoff, p.MaxBackoff, failures)
}

func invalid(field string, value any, rule string) error {
	return messagestore.NewInvalidError(field, value, rule)
}
