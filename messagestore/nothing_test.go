package messagestore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// calls are the methods of a store that ask its driver.
var calls = map[string]func(ctx context.Context, s *messagestore.Store) error{
	"write": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.Write(ctx, stream, messagestore.NoStream, opened{})
		return err
	},
	"write initial": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.WriteInitial(ctx, stream, opened{})
		return err
	},
	"write streams": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.WriteStreams(ctx, messagestore.To(stream, messagestore.NoStream, opened{}))
		return err
	},
	"try to write": func(ctx context.Context, s *messagestore.Store) error {
		_, _, err := s.TryWrite(ctx, stream, messagestore.NoStream, opened{})
		return err
	},
	"resolve": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.Resolve(ctx, &messagestore.OutcomeUnknownError{})
		return err
	},
	"read stream": func(ctx context.Context, s *messagestore.Store) (err error) {
		for _, err = range s.ReadStream(ctx, stream, 0) {
			break
		}
		return err
	},
	"read stream backwards": func(ctx context.Context, s *messagestore.Store) (err error) {
		for _, err = range s.ReadStreamBackwards(ctx, stream, messagestore.EndOfStream) {
			break
		}
		return err
	},
	"read category": func(ctx context.Context, s *messagestore.Store) (err error) {
		for _, err = range s.ReadCategory(ctx, "account", 0, messagestore.Filter{}) {
			break
		}
		return err
	},
	"last": func(ctx context.Context, s *messagestore.Store) error { _, err := s.Last(ctx, stream); return err },
	"last of type": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.LastOfType(ctx, stream, "Opened")
		return err
	},
	"version": func(ctx context.Context, s *messagestore.Store) error { _, err := s.Version(ctx, stream); return err },
	"now":     func(ctx context.Context, s *messagestore.Store) error { _, err := s.Now(ctx); return err },
	"epoch":   func(ctx context.Context, s *messagestore.Store) error { _, err := s.Epoch(ctx); return err },
	"end":     func(ctx context.Context, s *messagestore.Store) error { _, err := s.End(ctx, "account"); return err },
	"position at": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.PositionAt(ctx, "account", time.Now())
		return err
	},
	"report": func(ctx context.Context, s *messagestore.Store) error {
		_, err := report.Of(ctx, s, report.Query{By: []report.Key{report.ByType}})
		return err
	},
	"categories": func(ctx context.Context, s *messagestore.Store) error { _, err := s.Categories(ctx, ""); return err },
	"count": func(ctx context.Context, s *messagestore.Store) error {
		_, err := s.Count(ctx, messagestore.CategoryQuery{Category: "account", Limit: 1})
		return err
	},
	"check":         func(ctx context.Context, s *messagestore.Store) error { return s.Check(ctx) },
	"check reading": func(ctx context.Context, s *messagestore.Store) error { return s.CheckReading(ctx) },
}

func TestStoreWithoutADriverRefusesEveryCall(t *testing.T) {
	const rule = "it has no driver: it is the zero Store, not one of New"
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, call(t.Context(), &messagestore.Store{}), messagestore.ErrInvalid, "store", "", rule)
		})
	}
	require.NoError(t, (&messagestore.Store{}).Close())
}

func TestNewTellsAllMistakes(t *testing.T) {
	for name, driver := range map[string]messagestore.Driver{"nil": nil, "a nil pointer": (*memory.Driver)(nil)} {
		store, err := messagestore.New(driver, &messagestore.Config{BatchSize: messagestore.MaxReadMessages + 1})
		require.Nil(t, store, name)
		require.EqualError(t, err, "store: invalid driver: it is nil\ninvalid batch size 10001: it is between 1 and 10000", name)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
	}
}

func TestNilContextIsRefused(t *testing.T) {
	var none context.Context
	store := must.New(messagestore.New(memory.New(), nil))
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			requireInvalid(t, call(none, store), messagestore.ErrInvalid, "context", "", "it is nil")
		})
	}
}

func TestFollowOfNothingIsRefusedByTheWrite(t *testing.T) {
	requireInvalid(t, refused(t, messagestore.Follow(nil, opened{})), messagestore.ErrInvalid, "cause", "", "Follow was given a message that is nil")
}

type (
	hidden        struct{ amount int }
	hiddenInside  struct{ hidden }
	hiddenPointer struct{ *hidden }
	partlyHidden  struct{ Amount, fee int }
	leftOut       struct {
		Amount int `json:"-"`
	}
	promoted       struct{ partlyHidden }
	own            struct{ amount int }
	withoutFields  struct{}
	withABlankOnly struct{ _ int }
)

func (hidden) MessageType() string         { return "Hidden" }
func (hiddenInside) MessageType() string   { return "Hidden" }
func (hiddenPointer) MessageType() string  { return "Hidden" }
func (partlyHidden) MessageType() string   { return "Hidden" }
func (leftOut) MessageType() string        { return "Hidden" }
func (promoted) MessageType() string       { return "Hidden" }
func (own) MessageType() string            { return "Hidden" }
func (own) MarshalJSON() ([]byte, error)   { return []byte("{}"), nil }
func (withoutFields) MessageType() string  { return "Hidden" }
func (withABlankOnly) MessageType() string { return "Hidden" }

// A body of which nothing would be written is a mistake that shows when it is read.
func TestBodyWithoutAnExportedFieldIsRefused(t *testing.T) {
	for _, body := range []messagestore.Body{hidden{1}, &hidden{1}, hiddenInside{hidden{1}}, hiddenPointer{&hidden{1}}} {
		requireInvalid(t, refused(t, body), messagestore.ErrInvalid, "data", `"Hidden"`,
			"all fields of the body are unexported, so nothing of it would be written: begin their names with a capital letter")
	}
	for i, body := range []messagestore.Body{partlyHidden{Amount: 1, fee: 2}, leftOut{1}, promoted{partlyHidden{1, 2}}, own{1}, withoutFields{}, &withoutFields{}, withABlankOnly{}} {
		require.NoError(t, must.ErrorOf(must.New(messagestore.New(memory.New(), nil)).Write(t.Context(), stream, messagestore.NoStream, body)), i)
	}
}

func TestConflictWithTheZeroVersionAsksWhatIsMeant(t *testing.T) {
	store := must.New(messagestore.New(memory.New(), nil))
	_, err := store.Write(t.Context(), stream, 0, opened{})
	require.EqualError(t, err, "write account-1: version conflict: expected 0, found no stream (version 0 expects one message: is NoStream meant, or AnyVersion?)")
	require.EqualError(t, must.ErrorOf(store.Write(t.Context(), stream, 3, opened{})), "write account-1: version conflict: expected 3, found no stream")
}

func TestStreamOfACategoryWithADashIsRefused(t *testing.T) {
	_, err := untouchedStore(t).Write(t.Context(), messagestore.Category("my-seat").Stream("1"), messagestore.NoStream, opened{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "my-seat")
}
