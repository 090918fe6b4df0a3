package handler_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

type fuzzed struct {
	Amount int64          `json:"amount"`
	At     time.Time      `json:"at"`
	ID     uuid.UUID      `json:"id"`
	Rest   map[string]any `json:"rest"`
	Next   *fuzzed        `json:"next"`
}

func (fuzzed) MessageType() string { return "Fuzzed" }

// A stored message reaches the function as encoding/json reads it, is ignored, or gives an
// error that names the message in one short line; nothing panics.
func FuzzAMessageIsHandledPassedOverOrUndecodable(f *testing.F) {
	for _, data := range []string{
		``, `{}`, `null`, `[]`, `{"amount":1,"at":"2006-01-02T15:04:05Z","id":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f","rest":{"a":[1]},"next":{}}`,
		`{"amount":1e400}`, `{"amount":"1"}`, `{"at":"2006-13-02T15:04:05Z canary"}`, `{"id":"nope"}`, `{"rest":{"a":1e400}}`, "{\"amount\":\xff}", "\ufeff{}", `{"amount":1}{}`,
		`{"amount":` + strings.Repeat("9", 5000) + `}`, strings.Repeat(`{"next":`, 100) + "{}" + strings.Repeat("}", 100), `{"at":"` + strings.Repeat("x", 5000) + `"}`,
	} {
		f.Add("Fuzzed", "account-1", []byte(data))
	}
	f.Add("Fuzzed\nlevel=error", "cat-\nfake", []byte(`{`))
	f.Add("dibs:Tombstone", "cat-\u202e", []byte(`{`))
	f.Add("", "", []byte{})
	for _, data := range testkit.SeedJSON("a") {
		f.Add("Fuzzed", "account-1", []byte(data))
	}
	f.Fuzz(func(t *testing.T, messageType, stream string, data []byte) {
		m := &messagestore.Message{Type: messageType, Stream: messagestore.StreamName(stream), Data: data}
		for _, strict := range []bool{false, true} {
			mux := handler.New()
			if !strict {
				mux.IgnoreUnknown()
			}
			called := 0
			handler.On(mux, func(_ context.Context, got handler.Message[fuzzed]) error {
				called++
				var want fuzzed
				if len(data) > 0 {
					require.NoError(t, json.Unmarshal(data, &want))
				}
				require.Equal(t, want, got.Body)
				require.Same(t, m, got.Message)
				return nil
			})

			err := mux.Handle(t.Context(), m)

			known := messageType == "Fuzzed"
			require.Equal(t, !known && !strict, mux.Ignored() == 1)
			require.Equal(t, known && err == nil, called == 1)
			var none fuzzed
			switch {
			case !known && strict:
				require.ErrorIs(t, err, handler.ErrUnknownType)
			case !known:
				require.NoError(t, err)
			case len(data) > 0 && json.Unmarshal(data, &none) != nil:
				wrong, ok := errors.AsType[*handler.DecodeError](err)
				require.True(t, ok)
				require.Equal(t, "handler_test.fuzzed", wrong.GoType)
			default:
				require.NoError(t, err)
			}
			if err != nil {
				require.Less(t, len(err.Error()), 1000)
				require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
			}
		}
	})
}

type typed struct{}

var typeName string

func (typed) MessageType() string { return typeName }

// A name that no message can have is a mistake, and so is one that is there already.
func FuzzAFunctionIsRegisteredOrAMistake(f *testing.F) {
	for _, name := range []string{"Opened", "", " Opened", "dibs:Tombstone", "O\npened", "\xff", "O\u202e", strings.Repeat("x", 255), strings.Repeat("x", 256)} {
		f.Add(name)
	}
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		typeName = name
		mux := handler.New()
		handler.On(mux, func(context.Context, handler.Message[typed]) error { return nil })
		err := mux.Validate()
		require.Equal(t, text.TypeRule(name) == "", err == nil, "%v", err)
		if err == nil {
			require.Equal(t, []string{name}, mux.Types())
			handler.On(mux, func(context.Context, handler.Message[typed]) error { return nil })
			err = mux.Validate()
		}
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorIs(t, mux.Handle(t.Context(), &messagestore.Message{Type: name, Stream: "a-1"}), messagestore.ErrInvalid)
		require.Less(t, len(err.Error()), 1000)
		require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
	})
}
