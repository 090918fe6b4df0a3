package removal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Bounds of a KeyLife.
const (
	MinKeyLife = time.Minute
	MaxKeyLife = 100 * 365 * 24 * time.Hour
)

// KeyLifeDeclared is the only message of the stream CATEGORY+life-1, in a category whose first keys
// have a KeyLife.
type KeyLifeDeclared struct {
	Seconds int64 `json:"seconds"`
}

// MessageType returns "KeyLifeDeclared".
func (KeyLifeDeclared) MessageType() string { return "KeyLifeDeclared" }

// KeyLifeStream returns the stream in which the life of a category's keys is declared.
func KeyLifeStream(category messagestore.Category) messagestore.StreamName {
	return category.WithType("life").Stream("1")
}

// A KeyStore is the part of [messagestore.Store] that a declaration needs.
type KeyStore interface {
	TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
}

var errLate = errors.New("it came after the first key, which was promised for ever")

// KeyLifeOf returns the life that the first message of [KeyLifeStream] declares. The argument first
// is the category's first message, nil if there is none. A declaration that came after a key does
// not count, and for one that cannot be read the error is a [*CorruptKeyLifeError].
//
// An operator's forget and each [KeyLife] use it, except on PostgreSQL, where the function
// dibs.forget does the same in SQL.
func KeyLifeOf(declared, first *messagestore.Message) (time.Duration, error) {
	d, err := messagestore.Decode[KeyLifeDeclared](declared)
	if err == nil && (d.Seconds < 10 || d.Seconds > 9_999_999_999) {
		err = errors.New("seconds are between 10 and 9,999,999,999")
	}
	if err != nil {
		return 0, &CorruptKeyLifeError{declared.Stream, declared.Position, err.Error()}
	}
	if first != nil && first.GlobalPosition < declared.GlobalPosition {
		return 0, errLate
	}
	return time.Duration(min(d.Seconds, math.MaxInt64/int64(time.Second))) * time.Second, nil
}

// ValidateKeyLife returns an [*messagestore.InvalidError] that names KeyLife if life is out of
// bounds, or if no key of the store can be removed: see [messagestore.Store.Forgets]. A life of 0
// is for ever, and valid.
func ValidateKeyLife(life time.Duration, forgets bool) error {
	if life == 0 {
		return nil
	}
	if life < MinKeyLife || life > MaxKeyLife {
		return invalidKeyLife(life, fmt.Sprintf("must be between %v and %v", MinKeyLife, MaxKeyLife))
	}
	if !forgets {
		return invalidKeyLife(life, "must be left out: no key of this store can be removed, so its keys live for ever")
	}
	return nil
}

// A KeyLife is declared once in each category. It is safe for concurrent use. A nil *KeyLife means
// for ever, and declares nothing.
type KeyLife struct {
	life     time.Duration
	store    KeyStore
	mu       sync.Mutex // while one declares
	declared sync.Map   // of category
}

// NewKeyLife returns a life that is valid, or nil for 0.
func NewKeyLife(life time.Duration, store KeyStore) *KeyLife {
	if life == 0 {
		return nil
	}
	return &KeyLife{life: life.Truncate(time.Second), store: store}
}

// Declare stores the life of the category's keys, unless that was done before. Call it before the
// first key. If another life is declared in the category, or if the category had a key before any
// declaration, each process that calls gets a [*messagestore.InvalidError]. If the declaration
// cannot be read, the error is a [*CorruptKeyLifeError].
func (l *KeyLife) Declare(ctx context.Context, category messagestore.Category) error {
	if l == nil {
		return nil
	}
	if _, done := l.declared.Load(category); done {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, done := l.declared.Load(category); done {
		return nil
	}
	if err := l.declare(ctx, category); err != nil {
		return err
	}
	l.declared.Store(category, true)
	return nil
}

func (l *KeyLife) declare(ctx context.Context, category messagestore.Category) error {
	stream := KeyLifeStream(category)
	declared, err := l.store.Last(ctx, stream)
	if errors.Is(err, messagestore.ErrNotFound) {
		if err := l.write(ctx, category, stream); err != nil {
			return err
		}
		declared, err = l.store.Last(ctx, stream)
	}
	if err != nil {
		return err
	}
	first, err := l.firstOf(ctx, category)
	if err != nil {
		return err
	}
	life, err := KeyLifeOf(declared, first)
	switch {
	case errors.Is(err, errLate):
		return l.late(category)
	case err != nil:
		return err
	case life != l.life:
		return invalidKeyLife(l.life, fmt.Sprintf("%s has %v", stream, life))
	}
	return nil
}

// write declares the life in a category without keys, unless another process has declared one
// meanwhile. The same write also checks a stream of the category that does not exist. So it blocks
// the category's writers, and waits for the earlier ones, before it draws its position: a reader
// that sees the declaration also sees each earlier key.
func (l *KeyLife) write(ctx context.Context, category messagestore.Category, stream messagestore.StreamName) error {
	first, err := l.firstOf(ctx, category)
	if err != nil {
		return err
	}
	if first != nil {
		if _, err := l.store.Last(ctx, stream); !errors.Is(err, messagestore.ErrNotFound) {
			return err // nil if a declaration was made meanwhile, perhaps before the key
		}
		return l.late(category)
	}
	_, _, err = l.store.TryWriteStreams(ctx,
		messagestore.To(stream, messagestore.NoStream, KeyLifeDeclared{int64(l.life / time.Second)}),
		messagestore.To(category.Stream(uuid.NewString()), messagestore.NoStream),
	)
	return err
}

// firstOf returns the first message of a category, or nil.
func (l *KeyLife) firstOf(ctx context.Context, category messagestore.Category) (*messagestore.Message, error) {
	page, err := l.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, Limit: 1})
	if err != nil || len(page.Messages) == 0 {
		return nil, err
	}
	return page.Messages[0], nil
}

func (l *KeyLife) late(category messagestore.Category) error {
	return invalidKeyLife(l.life, fmt.Sprintf("must be left out: %s had a key before a life of keys was declared, and that key was promised for ever", category))
}

func invalidKeyLife(life time.Duration, rule string) error {
	return messagestore.NewInvalidError("KeyLife", life, rule)
}

// A CorruptKeyLifeError names a message that is not a valid declaration, at the place of one.
type CorruptKeyLifeError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version
	Rule     string
}

// Error names the message's place and the rule that it breaks.
func (e *CorruptKeyLifeError) Error() string {
	return fmt.Sprintf("corrupt declaration of the life of keys: %s@%d: %s", e.Stream, e.Position, e.Rule)
}
