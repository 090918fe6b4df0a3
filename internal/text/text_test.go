package text_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The text of a handler's error goes into a log and a message.
func FuzzTheTextOfAnErrorIsShortAndStorable(f *testing.F) {
	f.Add("plain")
	f.Add("two\nlines\x00\x1b[31m\x7f\u0085")
	f.Add("\xff\xed\xa0\x80")
	f.Add(strings.Repeat("\u00e9", 600))
	f.Add(strings.Repeat("x", 1023) + "\u00e9")
	for _, name := range testkit.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, long string) {
		short := text.Of(errors.New(long))
		require.True(t, utf8.ValidString(short))
		require.LessOrEqual(t, len(short), 3*text.Max+len("…"))
		require.False(t, strings.ContainsFunc(short, unicode.IsControl))
		encoded, err := json.Marshal(short)
		require.NoError(t, err)
		var back string
		require.NoError(t, json.Unmarshal(encoded, &back))
		require.Equal(t, short, back)
	})
}

type shape struct {
	N int
	T time.Time
}

// A log has no content: neither what was refused, nor what did not fit.
func TestTheTextForALogHasNoValues(t *testing.T) {
	t.Parallel()
	refused := messagestore.NewInvalidError("data", `{"iban":"CZ65"}`, "too long")
	into := func(data string) error { var s shape; return json.Unmarshal([]byte(data), &s) }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"Refused":      {refused, "invalid data: too long"},
		"Wrapped":      {fmt.Errorf("write a-1: %w", refused), "write a-1: invalid data: too long"},
		"Joined":       {fmt.Errorf("all: %w", errors.Join(errors.New("one"), refused, refused)), "all: one invalid data: too long invalid data: too long"},
		"TwoWrapped":   {fmt.Errorf("%w, and %w", errors.New("one"), refused), "one, and invalid data: too long"},
		"ANumber":      {into(`{"N":65.5}`), "json: cannot unmarshal number into Go struct field shape.N of type int"},
		"ATime":        {into(`{"T":"CZ65"}`), `a time that is not of the form "2006-01-02T15:04:05Z07:00"`},
		"OfAnotherOne": {errors.New("CZ65 is the caller's own"), "CZ65 is the caller's own"},
	} {
		require.Equal(t, c.want, text.Log(c.err), name)
		require.Contains(t, c.err.Error(), "65", name)
	}
}

type panicking struct{}

func (panicking) Error() string { panic("no text") }

func TestTheTextOfAnErrorThatPanics(t *testing.T) {
	t.Parallel()
	require.Equal(t, "text_test.panicking, whose text panics", text.Log(panicking{}))
	require.Equal(t, "text_test.panicking, whose text panics", text.Of(panicking{}))
}
