package keys_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

func TestRuleNamesTheFault(t *testing.T) {
	t.Parallel()
	for key, rule := range map[string]string{
		"":                      keys.Empty,
		" \t\u00a0\u3000":       keys.Invisible,
		"\u200b\u2060\x00":      keys.Invisible,
		"a\xff":                 keys.NotUTF8,
		"a":                     "",
		" a ":                   "",
		"\x00a":                 "",
		"\u00e4+-:%/\U0001F600": "",
	} {
		require.Equal(t, rule, keys.Rule(key), "%q", key)
	}
	err := keys.Invalid("key", "", keys.Empty)
	require.ErrorIs(t, err, keys.ErrInvalid)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

func TestLongKeyIsHashedAndAShortRoomRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 1<<20)
	part, ok := keys.Encode(long, 200)
	require.True(t, ok)
	require.Len(t, part, keys.HashedBytes)
	_, ok = text.UnescapeID(part)
	require.False(t, ok, "a hash stands for no key")
	other, _ := keys.Encode(long+"k", 200)
	require.NotEqual(t, part, other)
	_, ok = keys.Encode(long, keys.HashedBytes-1)
	require.False(t, ok)
	part, ok = keys.Encode("k", 1)
	require.True(t, ok)
	require.Equal(t, "k", part)
}

func FuzzEncodedKeyIsDecoded(f *testing.F) {
	for _, key := range []string{"a", "A ", "a+b", "100%", "\x00", "%41", "\u00e4", strings.Repeat("k", 300)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if keys.Rule(key) != "" {
			t.Skip()
		}
		part, ok := keys.Encode(key, 200)
		require.True(t, ok)
		require.LessOrEqual(t, len(part), 200)
		require.NoError(t, messagestore.StreamName("c-s+"+part).Validate())
		require.NotContains(t, part, "+")
		if decoded, ok := text.UnescapeID(part); ok {
			require.Equal(t, key, decoded)
		} else {
			require.Greater(t, len(text.EscapeID(key)), 200)
		}
	})
}
