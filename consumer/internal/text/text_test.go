package text_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer/internal/text"
	"github.com/dibs-go/dibs/internal/seeds"
)

// The text of a handler's error goes into a log and a message.
func FuzzTheTextOfAnErrorIsShortAndStorable(f *testing.F) {
	f.Add("plain")
	f.Add("two\nlines\x00\x1b[31m\x7f\u0085")
	f.Add("\xff\xed\xa0\x80")
	f.Add(strings.Repeat("\u00e9", 600))
	f.Add(strings.Repeat("x", 1023) + "\u00e9")
	for _, name := range seeds.Names() {
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
