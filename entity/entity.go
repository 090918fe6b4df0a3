package entity

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A MessageStore has the methods of [messagestore.Store] that entities use.
type MessageStore interface {
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
}

// NoCache is a [Config.CacheSize] that turns the cache off.
const NoCache = -1

// Config changes how a [Store] works. Nil means all defaults.
type Config struct {
	// CacheSize is the number of entities in the cache, the most recently used ones: at least 1, or
	// [NoCache].
	//
	// Defaults to 1000.
	CacheSize int

	// Snapshot says when to store a copy of an entity in the database.
	//
	// Defaults to never.
	Snapshot Snapshot

	// Logger receives a debug event for each snapshot that is written, and a warning for each that
	// could not be written. Its entries have names and numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// maxTagBytes bounds [Snapshot.Tag].
const maxTagBytes = 255

// A Snapshot says when to store a copy of an entity in the database.
type Snapshot struct {
	// Every is the number of messages after which the next copy is due: at least 1. The Get that
	// finds it due writes it. If an entity's JSON does not decode to an equal value, it is not
	// copied, and a warning is logged. An entity is not copied either if the copy's stream name
	// would be longer than [text.MaxNameBytes], because of a long identifier.
	//
	// Defaults to 0, which means never.
	Every int

	// Tag is the schema version of the copies. Change it whenever the entity's type or its
	// projection changes: copies with another tag are ignored, and so are copies that do not encode
	// to themselves, for example because they lack a field. It is UTF-8 without U+0000, at most 255
	// bytes.
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

// New returns a store of the entities in category. It reads nothing.
//
// T must be a value type: not a pointer, not an interface. To be cached, it must hold no pointer,
// slice, map, channel, function or interface, or have a method Clone that returns a T that shares
// none of them.
//
// The error has all mistakes in the arguments together, including those in registering with the
// projection: errors that match [messagestore.ErrInvalid]. New ends registration.
func New[T any](store MessageStore, category messagestore.Category, projection *Projection[T], config *Config) (*Store[T], error) {
	s := &Store[T]{messages: store, category: category, projection: projection}
	if config != nil {
		s.config = *config
	}
	if s.config.CacheSize == 0 {
		s.config.CacheSize = 1000
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("entities of %.80q: %w", string(category), err)
	}
	projection.seal()
	if s.config.CacheSize != NoCache {
		s.cache = newCache[T](s.config.CacheSize)
	}
	return s, nil
}

func (s *Store[T]) validate() error {
	var wrong []error
	invalid := func(field string, value any, rule string) {
		wrong = append(wrong, messagestore.NewInvalidError(field, value, rule))
	}
	if v := reflect.ValueOf(s.messages); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		invalid("store", nil, "must not be nil")
	}
	wrong = append(wrong, s.category.Validate())
	if s.projection == nil {
		invalid("projection", nil, "must not be nil")
	} else {
		wrong = append(wrong, s.projection.Validate())
	}
	if s.config.CacheSize < NoCache {
		invalid("cache size", s.config.CacheSize, "must be at least 1, or NoCache")
	}
	if s.config.Snapshot.Every < 0 {
		invalid("snapshot interval", s.config.Snapshot.Every, "must be at least 1, or 0 for never")
	}
	if rule := tagRule(s.config.Snapshot.Tag); rule != "" {
		invalid("snapshot tag", s.config.Snapshot.Tag, rule)
	}
	if s.config.Snapshot.Every > 0 {
		wrong = append(wrong, s.category.WithType("snapshot").Validate())
	}
	return errors.Join(append(wrong, checkType[T](s.config.CacheSize != NoCache))...)
}

// tagRule returns the rule that a tag breaks, or "". A copy with an invalid tag could not be
// written.
func tagRule(tag string) string {
	switch {
	case len(tag) > maxTagBytes:
		return fmt.Sprintf("must be at most %d bytes, and is %d", maxTagBytes, len(tag))
	case !utf8.ValidString(tag):
		return "must be valid UTF-8"
	case strings.ContainsRune(tag, 0):
		return "must not contain U+0000"
	}
	return ""
}

// Stream returns the name of the stream of the entity with the given identifier.
func (s *Store[T]) Stream(id string) messagestore.StreamName { return s.category.Stream(id) }

// Get returns the entity with the given identifier, and its version, including every message that
// was written before Get was called. For an empty stream it returns the zero T at
// [messagestore.NoStream]. You own the entity.
//
// The error comes from the store, or from the projection if it cannot apply a message, or is a
// [*TrimmedError] or a [*DeletedError]. Get does not recover a panic in the projection; a consumer
// does.
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
	kept    messagestore.Version // version of the last snapshot
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
	if snapshots && loaded.version-loaded.kept >= messagestore.Version(s.config.Snapshot.Every) {
		s.keep(ctx, stream, &loaded)
	}
	s.cache.put(stream, loaded)
	return loaded, nil
}

// differs logs that the stream does not have the last message of base any more: the stream was
// trimmed or deleted, or the database restored.
func (s *Store[T]) differs(stream messagestore.StreamName, base state[T]) {
	s.config.Logger.Warn().Str("stream", string(stream)).Int64("version", int64(base.version)).Msg("the stream has changed behind the cached entity: load it anew")
}

// fold applies the messages after base to it. It does not fit if the stream does not have the last
// message of base. A snapshot also fits if that message was the last one that was removed: snapshot
// and stream are in one database, while the cache of a process may be older than both.
func (s *Store[T]) fold(ctx context.Context, stream messagestore.StreamName, base state[T], snapshot bool) (loaded state[T], fits bool, err error) {
	next := base.version + 1
	var gap *TrimmedError // unless a tombstone comes: the messages before it do not count
	fits = base.version == messagestore.NoStream
	for m, err := range s.messages.ReadStream(ctx, stream, max(base.version, 0)) {
		if err != nil {
			return base, false, err
		}
		if !fits && m.Position == base.version && m.ID == base.last {
			fits = true
			continue
		}
		if m.IsTombstone() { // no message before it counts
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
