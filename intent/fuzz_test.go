package intent_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// Any writer of the store may have written any message of an intent. It is a step with the bounds of one, or corrupt, and another intent is
// listed beside it.
func FuzzAForgedStepIsReadOrCorrupt(f *testing.F) {
	const whole = `"session":"S","token":1,"attempt":1,"ttl":1000,"content":"x"`
	for _, seed := range [][2]string{
		{"Reserved", `{` + whole + `}`},
		{"Reserved", `{"session":"S","token":9223372036854775807,"attempt":9223372036854775807,"ttl":9223372036854775807,"content":"x"}`},
		{"Extended", `{` + whole + `,"ttl":-1}`},
		{"Waiting", `{` + whole + `,"line":["A","A",""],"at":9223372036854775807,"of":-1}`},
		{"Released", `{` + whole + `,"by":7}`},
		{"Confirmed", `{` + whole + `,"result":{}}`},
		{"Other", `{}`},
		{"Reserved", `null`},
		{"Reserved", `[]`},
	} {
		f.Add(seed[0], []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, of string, data []byte) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		m := testkit.Must(intent.New(store, "payment:intent", nil))
		_, err := m.Reserve(t.Context(), intent.Request{Key: "good", Session: "A", Content: 1, TTL: time.Hour})
		require.NoError(t, err)
		if _, err := store.Write(t.Context(), "payment:intent-bad", messagestore.AnyVersion, messagestore.Raw{Type: of, Data: data}); err != nil {
			t.Skip("the store refuses it")
		}
		last, err := store.Last(t.Context(), "payment:intent-bad")
		require.NoError(t, err)

		step, wrong := intentlog.Read(last)
		all, listed := m.List(t.Context(), intent.Filter{Status: []intent.Outcome{intent.Held, intent.Free, intent.Done}})

		require.Equal(t, wrong != nil, errors.Is(wrong, intent.ErrCorrupt))
		require.Equal(t, wrong != nil, errors.Is(listed, intent.ErrCorrupt), "%v, %v", wrong, listed)
		keys := map[string]bool{}
		for _, i := range all {
			keys[i.Key] = true
		}
		require.True(t, keys["good"])
		require.Equal(t, wrong == nil, keys["bad"])
		if wrong == nil {
			require.Positive(t, step.Lasts())
			require.False(t, step.Until().Before(step.Since))
		}
		_, err = m.Reserve(t.Context(), intent.Request{Key: "bad", Session: "B", Content: 1, TTL: time.Hour})
		require.True(t, wrong == nil || errors.Is(err, intent.ErrCorrupt), "%v", err)
	})
}
