package keys_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/keys"
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
	_, ok = keys.Decode(part)
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
		require.NoError(t, messagestore.Category("c").Stream("s", part).Validate())
		require.NotContains(t, part, "+")
		if decoded, ok := keys.Decode(part); ok {
			require.Equal(t, key, decoded)
		} else {
			require.Greater(t, len(keys.Escape(key)), 200)
		}
	})
}

func FuzzDecodedPartIsEncoded(f *testing.F) {
	for _, part := range []string{"a", "%41", "%2B", "%2b", "%", "%4", "+", "%sha256:00"} {
		f.Add(part)
	}
	f.Fuzz(func(t *testing.T, part string) {
		if key, ok := keys.Decode(part); ok {
			require.Equal(t, part, keys.Escape(key), "two parts stand for one key")
		}
	})
}

func TestKeyThatAnObjectHasTwiceIsSeen(t *testing.T) {
	t.Parallel()
	for text, twice := range map[string]bool{
		`{"a":1,"b":2}`:                        false,
		`{"a":1,"a":1}`:                        true,
		`{"a":1,"\u0061":2}`:                   true,
		`[{"a":1},{"a":1}]`:                    false,
		`{"x":[{"deep":{"a":1,"b":1,"a":3}}]}`: true,
		`{"a":"b:c\":\"d"}`:                    false,
		`{"a\":\"b":1,"c":"\\"}`:               false,
		`"a:b"`:                                false,
		`12`:                                   false,
	} {
		c, err := keys.Canonical(json.RawMessage(text))
		require.NoError(t, err, text)
		require.Equal(t, twice, c.Twice, text)
	}
}

func TestEmptyContentIsSeen(t *testing.T) {
	t.Parallel()
	for _, empty := range []any{nil, struct{ a int }{1}, []int{}, "", json.RawMessage(" { } ")} {
		c, err := keys.Canonical(empty)
		require.NoError(t, err)
		require.True(t, c.Empty(), "%#v", empty)
	}
	for _, full := range []any{0, false, " ", []any{nil}, map[string]any{"a": nil}} {
		c, err := keys.Canonical(full)
		require.NoError(t, err)
		require.False(t, c.Empty(), "%#v", full)
	}
	_, err := keys.Canonical(func() {})
	require.Error(t, err)
	require.NotErrorIs(t, err, keys.ErrInvalid)
}
