package alarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// The types of the messages in the stream of a minute.
const (
	typeSet    = "Set"
	typeDue    = "Due"
	typeClosed = "Closed"
)

// A messageSet is the message that sets an alarm.
type messageSet struct {
	At       int64                   `json:"at"` // microseconds since 1970
	Stream   messagestore.StreamName `json:"stream"`
	Expected messagestore.Version    `json:"expected"` // of the stream, when the alarm rings
	Type     string                  `json:"type"`
	Data     json.RawMessage         `json:"data"`
	Metadata *messagestore.Metadata  `json:"metadata,omitempty"`
}

// MessageType implements [messagestore.Body].
func (messageSet) MessageType() string { return typeSet }

// A messageDue says that a minute has begun.
type messageDue struct{}

// MessageType implements [messagestore.Body].
func (messageDue) MessageType() string { return typeDue }

// A messageClosed says that the time of all alarms before it has come, and that each was tried.
type messageClosed struct {
	Alarms int `json:"alarms"`
}

// MessageType implements [messagestore.Body].
func (messageClosed) MessageType() string { return typeClosed }

// Config changes how a clock works. Nil means all defaults. [New] refuses values that are
// out of bounds.
type Config struct {
	// Concurrency is how many alarms ring at a time: 1 to 1024.
	//
	// Defaults to 32.
	Concurrency int

	// PollInterval is the longest wait for an alarm that another process has set: 1 ms to 1 s.
	//
	// Defaults to 100 ms.
	PollInterval time.Duration

	// Lease is the consumers' lease: so long after a process was killed, another rings its alarms: 1 s to
	// 1 h. See [consumer.Config].
	//
	// Defaults to 10 s.
	Lease time.Duration

	// Logger receives a warning for each failure, of names and numbers, never of content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// Store has the methods of a [messagestore.Store] that a clock needs. It is safe for concurrent use.
type Store interface {
	consumer.Store
	WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error)
}

// A Clock sets and rings alarms. Its methods are safe for concurrent use. There is nothing to close.
type Clock struct {
	store    Store
	category messagestore.Category // of the minutes
	config   Config
	running  atomic.Bool
	hasNote  atomic.Bool // the stream of notes is not empty

	rung, late, failures atomic.Int64

	mu     sync.Mutex
	closed map[messagestore.StreamName]minute // by the consumer of sets, of minutes that it has seen
}

// New returns the clock of a category, whose alarms are in the category of that name with the type
// alarm: booking:saga+alarm for booking:saga. The error has all
// mistakes in the arguments, and matches [messagestore.ErrInvalid].
func New(store Store, category messagestore.Category, config *Config) (*Clock, error) {
	c := &Clock{store: store, closed: map[messagestore.StreamName]minute{}}
	if config != nil {
		c.config = *config
	}
	f := &c.config
	if f.Concurrency == 0 {
		f.Concurrency = 32
	}
	if f.PollInterval == 0 {
		f.PollInterval = 100 * time.Millisecond
	}
	if f.Lease == 0 {
		f.Lease = 10 * time.Second
	}
	if err := c.validate(category); err != nil {
		return nil, err
	}
	c.category = category.WithType("alarm")
	return c, nil
}

func (c *Clock) validate(category messagestore.Category) error {
	var all []error
	v := reflect.ValueOf(c.store)
	noStore := c.store == nil || v.Kind() == reflect.Pointer && v.IsNil()
	if noStore {
		all = append(all, messagestore.NewInvalidError("store", nil, "it is required"))
	}
	switch err := category.Validate(); {
	case err != nil:
		all = append(all, err)
	case !noStore: // its consumer with the longer name says whether the category leaves room for it
		named := &Clock{store: c.store, category: category.WithType("alarm")}
		_, err := named.minutes(context.Background())
		all = append(all, err)
	}
	if n := c.config.Concurrency; n < 1 || n > 1024 {
		all = append(all, messagestore.NewInvalidError("Concurrency", n, "it is from 1 to 1024"))
	}
	if d := c.config.PollInterval; d < time.Millisecond || d > time.Second {
		all = append(all, messagestore.NewInvalidError("PollInterval", d.String(), "it is from 1ms to 1s"))
	}
	if d := c.config.Lease; d < time.Second || d > time.Hour {
		all = append(all, messagestore.NewInvalidError("Lease", d.String(), "it is from 1s to 1h"))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("alarms of %.80q: %w", category, err)
	}
	return nil
}

// Category returns the category of the alarms.
func (c *Clock) Category() messagestore.Category { return c.category }

// Stats are the counts of a clock since [New].
type Stats struct {
	Rung   int64 // alarms whose message was written by this process
	Late   int64 // alarms whose stream had moved on, so that nothing was written
	Failed int64 // attempts to ring that failed, and were repeated, and alarms that the store refuses
}

// Stats returns the counts of this moment.
func (c *Clock) Stats() Stats { return Stats{c.rung.Load(), c.late.Load(), c.failures.Load()} }

// At returns the write that sets an alarm: at t, body is appended to stream at the expected version, which
// may be [messagestore.AnyVersion]. The time is between 1970 and 9999; an alarm whose time has passed
// rings at once. The body may be an [messagestore.Envelope] without an id. The caller writes it with
// whatever else the alarm belongs to. The errors match [messagestore.ErrInvalid].
func (c *Clock) At(t time.Time, stream messagestore.StreamName, expected messagestore.Version, body messagestore.Body) (messagestore.StreamWrite, error) {
	w, err := c.at(t, stream, expected, body)
	if err != nil {
		return messagestore.StreamWrite{}, fmt.Errorf("set an alarm: %w", err)
	}
	return w, nil
}

func (c *Clock) at(t time.Time, stream messagestore.StreamName, expected messagestore.Version, body messagestore.Body) (messagestore.StreamWrite, error) {
	at := t.UTC()
	if at.Year() < 1970 || at.Year() > 9999 {
		return messagestore.StreamWrite{}, messagestore.NewInvalidError("time", t.Format(time.RFC3339), "it is between 1970 and 9999")
	}
	if err := stream.Validate(); err != nil {
		return messagestore.StreamWrite{}, err
	}
	if expected < messagestore.AnyVersion {
		return messagestore.StreamWrite{}, messagestore.NewInvalidError("expected version", int64(expected), "it is a version, NoStream or AnyVersion")
	}
	set := messageSet{At: at.UnixMicro(), Stream: stream, Expected: expected}
	if e, is := body.(messagestore.Envelope); is {
		if e.ID != [16]byte{} {
			return messagestore.StreamWrite{}, messagestore.NewInvalidError("id", e.ID.String(), "the message of an alarm has an id of its own")
		}
		if body = e.Body; !e.Metadata.IsZero() {
			set.Metadata = &e.Metadata
		}
	}
	if v := reflect.ValueOf(body); body == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return messagestore.StreamWrite{}, messagestore.NewInvalidError("body", nil, "it is required")
	}
	set.Type = body.MessageType()
	if err := messagestore.ValidateType(set.Type); err != nil {
		return messagestore.StreamWrite{}, err
	}
	data, err := encode(body)
	if err != nil {
		return messagestore.StreamWrite{}, err
	}
	set.Data = data
	return messagestore.To(c.stream(minuteOf(at)), messagestore.AnyVersion, set), nil
}

func encode(body messagestore.Body) (json.RawMessage, error) {
	if raw, is := body.(messagestore.Raw); is {
		if len(raw.Data) == 0 || raw.Data[0] != '{' || !json.Valid(raw.Data) {
			return nil, messagestore.NewInvalidError("data", string(raw.Data), "it is not a JSON object")
		}
		return raw.Data, nil
	}
	data, err := exactjson.Marshal(body)
	if err != nil {
		return nil, messagestore.NewInvalidError("data", fmt.Sprintf("%T", body), fmt.Sprintf("it does not encode: %v", err))
	}
	if data[0] != '{' {
		return nil, messagestore.NewInvalidError("data", string(data), "it is not a JSON object")
	}
	return data, nil
}

// minuteFormat is the id of a minute's stream.
const minuteFormat = "20060102T1504"

func minuteOf(t time.Time) time.Time { return t.UTC().Truncate(time.Minute) }

// stream returns the stream of the minute that begins at m.
func (c *Clock) stream(m time.Time) messagestore.StreamName {
	return c.category.Stream(m.Format(minuteFormat))
}

// begins returns when the minute of a stream begins.
func begins(stream messagestore.StreamName) (time.Time, error) {
	ids := stream.IDs()
	if len(ids) != 1 {
		return time.Time{}, fmt.Errorf("%s is not the stream of a minute", stream)
	}
	return time.Parse(minuteFormat, ids[0])
}
