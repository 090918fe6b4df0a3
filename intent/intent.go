package intent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Bounds and defaults of [Config] and [Request].
const (
	defaultTTL = 15 * time.Second

	defaultGrace = 5 * time.Second
	minGrace     = time.Millisecond
	maxGrace     = time.Hour

	defaultTurn = time.Second
	minTurn     = 10 * time.Millisecond
	maxTurn     = time.Minute

	minHeartbeat = 10 * time.Millisecond

	minMargin = 10 * time.Millisecond

	maxName = intentlog.MaxSession - 1 - 36 // a session is the name, a slash and a UUID
)

// Config changes how a [Manager] works. Nil means all defaults.
type Config struct {
	// TTL is how long a lease lasts without an extension: between 100 ms and 24 h, in whole
	// milliseconds.
	//
	// Defaults to 15 seconds.
	TTL time.Duration

	// Heartbeat is how often [Manager.Do] and [Lease.Keep] extend a lease: at most half of its
	// TTL, at least 10 ms. Over a [Service] it comes up to a quarter earlier, with those of the
	// manager's other leases.
	//
	// Defaults to a third of the lease's TTL.
	Heartbeat time.Duration

	// Grace is how long Do waits for work to return after its lease has ended: between 1 ms and 1
	// h.
	//
	// Defaults to 5 seconds.
	Grace time.Duration

	// Turn is how long the first in the line of waiters has the intent to itself before the second
	// may take it, and so on: between 10 ms and 1 minute. A waiter that died in the line delays the
	// others by the same time. All processes must use the same value.
	//
	// Defaults to 1 second. Over a [Service] it must be 0, because the service decides.
	Turn time.Duration

	// Name is the start of the session names that the manager makes, followed by a slash. It tells
	// operators which program holds a lease: at most 91 bytes.
	//
	// Defaults to none.
	Name string

	// KeyLife declares how long a finished intent is kept in this category at least, between 1
	// minute and 100 years. After that, dibs forget may remove it with its key, and the key is free
	// again. The first manager of the category stores the value. Another value is refused later.
	// Any value is refused if the category had an intent before one was stored, for example because
	// two managers raced. Each [Manager.Reserve] then returns [ErrInvalidConfig], and dibs forget
	// refuses the category. [New] refuses KeyLife if keys cannot be removed from the store; they
	// can in PostgreSQL and SQLite only. [NewOver] refuses it.
	//
	// Defaults to for ever, or to the stored value.
	KeyLife time.Duration

	// OnAnswer is called with each answer of [Manager.Reserve], before it returns.
	//
	// Defaults to nothing.
	OnAnswer func(ctx context.Context, request Request, answer Answer)

	// Logger receives a debug event for each answer and each step of a lease, and a warning for
	// each reused key, each lost lease and each failed extension. Its entries have names and
	// numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Manager grants leases on the intents of one category. It is safe for concurrent use. There is
// nothing to close: it has a goroutine only while a call waits or a lease is kept.
type Manager struct {
	store    Store
	over     Service        // instead of a store
	began    time.Time      // over a service: the moments of heartbeats count from it
	outage   *outage.Outage // of the store or the service
	category messagestore.Category
	config   Config
	wakeups  *waiting.Wakeups
	crowds   crowds
	leavers  leavers

	life *removal.KeyLife
}

// New returns a manager of the intents in category. Only the manager may write to their streams:
// payment:intent-KEY, or payment:intent-SCOPE+KEY. The error names all mistakes in the arguments,
// and matches [messagestore.ErrInvalid]. New sends nothing.
func New(store Store, category messagestore.Category, config *Config) (*Manager, error) {
	m := &Manager{store: store, outage: outage.Of(store), category: category}
	return m.configured(config, "store", store)
}

// configured returns a new manager over a store or service.
func (m *Manager) configured(config *Config, field string, below any) (*Manager, error) {
	if config != nil {
		m.config = *config
	}
	c := &m.config
	setDefault(&c.TTL, defaultTTL)
	setDefault(&c.Grace, defaultGrace)
	if m.over == nil {
		setDefault(&c.Turn, defaultTurn)
	}
	if err := m.validate(field, below); err != nil {
		return nil, fmt.Errorf("intents of %.80q: %w", m.category, err)
	}
	c.TTL = c.TTL.Truncate(time.Millisecond)
	if categories, is := m.store.(CategoryStore); is {
		m.life = removal.NewKeyLife(c.KeyLife, categories)
	}
	m.wakeups = m.newWakeups()
	return m, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

func (m *Manager) validate(field string, below any) error {
	var wrong []error
	if isNil(below) {
		wrong = append(wrong, messagestore.NewInvalidError(field, nil, "must not be nil"))
	}
	if err := m.category.Validate(); err != nil {
		wrong = append(wrong, err)
	} else if room := text.MaxNameBytes - len("-+") - 2*keys.HashedBytes; len(m.category) > room {
		wrong = append(wrong, messagestore.NewInvalidError("category", string(m.category), fmt.Sprintf("must be at most %d bytes, to leave room for scopes and keys", room)))
	}
	c := m.config
	wrong = append(wrong,
		bounded("TTL", c.TTL, intentlog.MinTTL, intentlog.MaxTTL),
		bounded("Grace", c.Grace, minGrace, maxGrace),
	)
	if m.over == nil {
		wrong = append(wrong, bounded("Turn", c.Turn, minTurn, maxTurn))
	} else if c.Turn != 0 {
		wrong = append(wrong, invalid("Turn", c.Turn, "must be 0, because the service decides on it", ErrInvalidConfig))
	}
	if c.Heartbeat != 0 {
		wrong = append(wrong, validateHeartbeat(c.Heartbeat, c.TTL))
	}
	if !isNil(below) {
		categories, is := m.store.(CategoryStore)
		wrong = append(wrong, ofConfig(removal.ValidateKeyLife(c.KeyLife, is && categories.Forgets())))
	}
	if c.Name != "" {
		if rule := intentlog.TextRule(c.Name); rule != "" {
			wrong = append(wrong, invalid("Name", c.Name, rule, ErrInvalidConfig))
		} else if len(c.Name) > maxName {
			wrong = append(wrong, invalid("Name", c.Name, fmt.Sprintf("must be at most %d bytes", maxName), ErrInvalidConfig))
		}
	}
	return errors.Join(wrong...)
}

func bounded(field string, value, least, most time.Duration) error {
	if value < least || value > most {
		return invalid(field, value, fmt.Sprintf("must be between %v and %v", least, most), ErrInvalidConfig)
	}
	return nil
}

func validateHeartbeat(heartbeat, ttl time.Duration) error {
	if heartbeat < minHeartbeat || heartbeat > ttl/2 {
		return invalid("Heartbeat", heartbeat, fmt.Sprintf("must be between %v and half of the TTL, %v", minHeartbeat, ttl/2), ErrInvalidConfig)
	}
	return nil
}

func isNil(v any) bool {
	value := reflect.ValueOf(v)
	return !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil()
}

// Category returns the category of the manager's intents.
func (m *Manager) Category() messagestore.Category { return m.category }

// Stream returns the name of the stream of an intent. The error matches [ErrInvalidKey].
func (m *Manager) Stream(scope, key string) (messagestore.StreamName, error) {
	used := len(m.category) + len("-")
	if scope == "" {
		part, err := encode("key", key, text.MaxNameBytes-used)
		if err != nil {
			return "", err
		}
		return m.named(part), nil
	}
	first, err := encode("scope", scope, text.MaxNameBytes-used-len("+")-keys.HashedBytes)
	if err != nil {
		return "", err
	}
	second, err := encode("key", key, text.MaxNameBytes-used-len(first)-len("+"))
	if err != nil {
		return "", err
	}
	return m.named(first + "+" + second), nil
}

func (m *Manager) named(id string) messagestore.StreamName {
	return messagestore.StreamName(string(m.category) + "-" + id)
}

func encode(field, key string, room int) (string, error) {
	if rule := keys.Rule(key); rule != "" {
		return "", keys.Invalid(field, key, rule)
	}
	part, ok := keys.Encode(key, room)
	if !ok {
		return "", keys.Invalid(field, key, keys.TooLong(room))
	}
	return part, nil
}

func (m *Manager) newSession() string {
	session := uuid.Must(uuid.NewV7()).String()
	if m.config.Name != "" {
		return m.config.Name + "/" + session
	}
	return session
}

// margin is how long before the end of a lease its holder has to stop.
func margin(ttl time.Duration) time.Duration { return max(ttl/10, minMargin) }

// heartbeat returns how often a lease is extended.
func (m *Manager) heartbeat(ttl time.Duration) time.Duration {
	if m.config.Heartbeat != 0 {
		return m.config.Heartbeat
	}
	return ttl / 3
}

// write sends the writes of one step. The conflict is not nil if a stream is not at its expected
// version; then nothing was written.
func write(ctx context.Context, store Store, writes []messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	if len(writes) > 1 || len(writes[0].Past) > 0 || len(writes[0].Bodies) == 0 {
		return store.TryWriteStreams(ctx, writes...)
	}
	w := writes[0]
	written, met, err := store.TryWrite(ctx, w.Stream, w.Expected, w.Bodies...)
	if err != nil || met != nil {
		return nil, met, err
	}
	return []messagestore.Written{written}, nil, nil
}
