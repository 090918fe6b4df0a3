package entity

import (
	"context"
	"fmt"
	"iter"
	"reflect"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/messagestore"
)

// A MessageStore is what entities need of a [messagestore.Store].
type MessageStore interface {
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
}

// NoCache is a [Config.CacheSize] that remembers nothing.
const NoCache = -1

// Config changes how a [Store] works. A nil *Config is a good one.
type Config struct {
	// CacheSize is how many entities are remembered, those used last: at least 1,
	// or [NoCache].
	//
	// Defaults to 1000.
	CacheSize int

	// Snapshot says when to keep a copy of an entity in the database.
	//
	// Defaults to never.
	Snapshot Snapshot

	// Logger receives a debug event for each snapshot written, and a warning for
	// one that could not be, of names and numbers, never of content.
	//
	// Defaults to silence.
	Logger zerolog.Logger
}

// A Snapshot says when to keep a copy of an entity in the database.
type Snapshot struct {
	// Interval is after how many messages the next copy is due: at least 1. It is
	// written by the Get that finds it due. An entity whose identifier is so long that
	// the copy's stream name would be above [messagestore.MaxNameBytes] has none.
	//
	// Defaults to 0, for never.
	Interval int

	// Tag names the meaning of the copies. Change it whenever the entity's type or
	// its projection changes: copies with another tag are passed over.
	//
	// Defaults to "".
	Tag string
}

// A Store loads the entities of one category. It is safe for concurrent use if the
// messagestore.Store is.
type Store[T any] struct {
	messages   MessageStore
	category   messagestore.Category
	projection *Projection[T]
	config     Config
	cache      *cache[T] // nil for none
}

// New returns a store of the entities in category.
//
// It refuses, with a [*messagestore.InvalidError]: a category that is none, a
// projection that is not valid, a config that is out of bounds, and a T that
// cannot be kept as the config asks: see [ErrInvalidEntity].
func New[T any](store MessageStore, category messagestore.Category, projection *Projection[T], config *Config) (*Store[T], error) {
	s := &Store[T]{messages: store, category: category, projection: projection}
	if config != nil {
		s.config = *config
	}
	if s.config.CacheSize == 0 {
		s.config.CacheSize = 1000
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("new entity store: %w", err)
	}
	projection.seal()
	if s.config.CacheSize != NoCache {
		s.cache = newCache[T](s.config.CacheSize)
	}
	return s, nil
}

func (s *Store[T]) validate() error {
	if v := reflect.ValueOf(s.messages); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "store", nil, "it is nil")
	}
	if err := s.category.Validate(); err != nil {
		return err
	}
	if s.projection == nil {
		return invalid("", "it is nil")
	}
	if err := s.projection.Validate(); err != nil {
		return err
	}
	if s.config.CacheSize < NoCache {
		return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "cache size", s.config.CacheSize, "it is at least 1, or NoCache")
	}
	if s.config.Snapshot.Interval < 0 {
		return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "snapshot interval", s.config.Snapshot.Interval, "it is at least 1, or 0 for never")
	}
	if s.config.Snapshot.Interval > 0 {
		if err := s.category.WithType("snapshot").Validate(); err != nil {
			return err
		}
	}
	return checkType[T](s.config.CacheSize != NoCache, s.config.Snapshot.Interval > 0)
}

// Stream returns the name of the stream of the entity with the given identifier.
func (s *Store[T]) Stream(id string) messagestore.StreamName { return s.category.Stream(id) }

// Get returns the entity with the given identifier, and its version, with every
// message that was written before Get was called. An empty stream is the zero T at
// [messagestore.NoStream]. The entity is the caller's own.
//
// An error is the store's, or the projection's for a message that it cannot apply, or it
// matches [ErrTrimmed] or [ErrDeleted].
func (s *Store[T]) Get(ctx context.Context, id string) (T, messagestore.Version, error) {
	loaded, err := s.load(ctx, s.Stream(id))
	if err != nil {
		var zero T
		return zero, 0, fmt.Errorf("get %s: %w", s.Stream(id), err)
	}
	return loaded.entity, loaded.version, nil
}

// A state is an entity at a version.
type state[T any] struct {
	entity  T
	version messagestore.Version
	last    uuid.UUID            // the id of the message at version
	kept    messagestore.Version // of the last snapshot
	deleted bool                 // the message at version is a tombstone
}

func empty[T any]() state[T] {
	return state[T]{version: messagestore.NoStream, kept: messagestore.NoStream}
}

func (s *Store[T]) load(ctx context.Context, stream messagestore.StreamName) (state[T], error) {
	snapshots := s.snapshots(stream)
	var loaded state[T]
	fits := false
	if base, cached := s.cache.get(stream); cached {
		var err error
		if loaded, fits, err = s.fold(ctx, stream, base, false); err != nil {
			return loaded, err
		}
		if !fits || loaded.deleted {
			s.differs(stream, base)
			s.cache.drop(stream, base.last)
		}
	}
	if !fits && snapshots {
		base, err := s.snapshot(ctx, stream)
		if err != nil {
			return base, err
		}
		if loaded, fits, err = s.fold(ctx, stream, base, true); err != nil {
			return loaded, err
		}
		if !fits {
			s.differs(stream, base)
		}
	}
	if !fits {
		var err error
		if loaded, _, err = s.fold(ctx, stream, empty[T](), false); err != nil {
			return loaded, err
		}
	}
	if loaded.deleted {
		return loaded, &DeletedError{Stream: stream, Version: loaded.version}
	}
	if snapshots && loaded.version-loaded.kept >= messagestore.Version(s.config.Snapshot.Interval) {
		s.keep(ctx, stream, &loaded)
	}
	s.cache.put(stream, loaded)
	return loaded, nil
}

// differs logs that what we knew is not what happened: the stream was trimmed or
// deleted, or the database restored.
func (s *Store[T]) differs(stream messagestore.StreamName, base state[T]) {
	s.config.Logger.Warn().Str("stream", string(stream)).Int64("version", int64(base.version)).Msg("the stream is not what it was: load it anew")
}

// fold applies to base what came after it. It does not fit if the stream does not hold
// the message that base ends with. For a snapshot it is enough if that one was the last
// that was removed: database and snapshot are one, and a process may be older than
// both.
func (s *Store[T]) fold(ctx context.Context, stream messagestore.StreamName, base state[T], snapshot bool) (loaded state[T], fits bool, err error) {
	next := base.version + 1
	var gap *TrimmedError // unless a tombstone comes: what is before one is about to go
	fits = base.version == messagestore.NoStream
	for m, err := range s.messages.ReadStream(ctx, stream, max(base.version, 0)) {
		if err != nil {
			return base, false, err
		}
		if !fits && m.Position == base.version && m.ID == base.last {
			fits = true
			continue
		}
		if m.IsTombstone() { // nothing before it counts, and nothing of it is kept
			base = empty[T]()
			base.version, base.last, base.deleted = m.Position, m.ID, true
			next, fits, gap = m.Position+1, true, nil
			continue
		}
		if gap != nil {
			continue
		}
		if !fits && (!snapshot || m.Position != next) {
			return base, false, nil
		}
		if m.Position != next {
			gap = &TrimmedError{Stream: stream, First: m.Position}
			continue
		}
		if base.entity, err = s.projection.Apply(base.entity, m); err != nil {
			return base, false, err
		}
		base.version, base.last, base.deleted = m.Position, m.ID, false
		next, fits = m.Position+1, true
	}
	if gap != nil {
		return base, false, gap
	}
	return base, fits, nil
}
