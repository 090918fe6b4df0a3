package reservation_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

func TestAKeyIsInTheStreamsName(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	for key, want := range map[string]messagestore.StreamName{
		"AAA":                                  place(command, "accounts") + "+AAA",
		"aaa":                                  place(command, "accounts") + "+aaa",
		"a-b:c/d@e.f_g~{}":                     place(command, "accounts") + "+a-b:c/d@e.f_g~{}",
		"018f4e0c-2b1e-7000-8000-000000000000": place(command, "accounts") + "+018f4e0c-2b1e-7000-8000-000000000000",
		"a+b":                                  place(command, "accounts") + "+a%2Bb",
		"100%":                                 place(command, "accounts") + "+100%25",
		"%2B":                                  place(command, "accounts") + "+%252B",
		" a":                                   place(command, "accounts") + "+%20a",
		"a ":                                   place(command, "accounts") + "+a%20",
		"a b":                                  place(command, "accounts") + "+a b",
		"a\x00b\n":                             place(command, "accounts") + "+a%00b%0A",
		"Zürich":                               place(command, "accounts") + "+Zürich",
		"a\u202eb\ufeff":                       place(command, "accounts") + "+a%E2%80%AEb%EF%BB%BF",
		strings.Repeat("k", 214):               place(command, "accounts") + "+" + messagestore.StreamName(strings.Repeat("k", 214)),
		strings.Repeat("k", 215):               place(command, "accounts") + "+%sha256:fbaa0f91e92d966523d3f3b8645897b5229d18ca67fe6066f9a50b67388fae70",
	} {
		stream, err := r.Stream(command, key)
		require.NoError(t, err, "%.20q", key)
		require.Equal(t, want, stream)
		decoded, ok := reservation.KeyOf(stream)
		require.Equal(t, len(key) <= 214, ok)
		if ok {
			require.Equal(t, key, decoded)
		}
	}
}

func TestAKeyOfAnyLengthHasAStream(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	seen := map[messagestore.StreamName]bool{}
	for _, n := range []int{1, 100, 214, 215, 255, 256, 1 << 20} {
		stream, err := r.Stream(command, strings.Repeat("k", n))
		require.NoError(t, err)
		require.NoError(t, stream.Validate())
		require.False(t, seen[stream])
		seen[stream] = true
	}
}

func TestAKeyThatWouldStandForAllIsRefused(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	for key, rule := range map[string]string{
		"":              "must not be empty: every command without a key would be a duplicate of the first",
		" ":             "must contain a visible character: every command with such a key would be a duplicate of the first",
		"\t\r\n\u00a0":  "must contain a visible character: every command with such a key would be a duplicate of the first",
		"\x00":          "must contain a visible character: every command with such a key would be a duplicate of the first",
		"\u200b\ufeff":  "must contain a visible character: every command with such a key would be a duplicate of the first",
		"\xff":          "must be valid UTF-8",
		"a\xed\xa0\x80": "must be valid UTF-8",
	} {
		_, err := r.Stream(command, key)
		require.ErrorIs(t, err, reservation.ErrInvalidKey)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		invalid, ok := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, ok)
		require.Equal(t, rule, invalid.Rule)
	}
}

func TestAStreamThatLeavesNoRoomIsRefused(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	source := messagestore.StreamName("account:command-" + strings.Repeat("1", 255-16))

	_, err := r.Stream(source, "AAA")

	require.ErrorIs(t, err, reservation.ErrInvalidKey)
}

func TestASourceThatIsNoStreamIsRefused(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	for _, source := range []messagestore.StreamName{"", "account:command", "-", "account:command-", "account:command-\n"} {
		_, err := r.Stream(source, "AAA")
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", source)
	}
}

func TestWhatIsNoKeyDoesNotDecode(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"", "%", "%2", "%2b", "%zz", "a%20b", "a ", "%41", "%FF", "%20", "%C3%A9", "%sha256:00", "%sha256:" + strings.Repeat("0", 64)} {
		_, ok := reservation.KeyOf(messagestore.StreamName("account:command+reservation+accounts-123+" + part))
		require.False(t, ok, "%q", part)
	}
}

func TestDifferentKeysHaveDifferentStreams(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	alphabet := rapid.StringOf(rapid.SampledFrom([]rune("aA%2B+ \n0ü\u202eé5")))
	key := rapid.OneOf(alphabet, rapid.String(), rapid.Custom(func(t *rapid.T) string {
		return strings.Repeat(alphabet.Draw(t, "part"), rapid.IntRange(1, 200).Draw(t, "times"))
	}))
	rapid.Check(t, func(t *rapid.T) { differ(t, r, key.Draw(t, "a"), key.Draw(t, "b")) })
}

func FuzzDifferentKeysHaveDifferentStreams(f *testing.F) {
	r := newReserver(f, newStore(), nil)
	f.Add("a", "A")
	f.Add("a+b", "a%2Bb")
	f.Add(" a", "a")
	f.Add("%sha256:", strings.Repeat("k", 300))
	for _, name := range testkit.SeedNames() {
		f.Add(name, "cat-e\u0301")
	}
	f.Fuzz(func(t *testing.T, a, b string) { differ(t, r, a, b) })
}

func differ(t require.TestingT, r *reservation.Reserver, a, b string) {
	streams := map[string]messagestore.StreamName{}
	for _, key := range []string{a, b} {
		stream, err := r.Stream(command, key)
		if err != nil {
			require.ErrorIs(t, err, reservation.ErrInvalidKey)
			continue
		}
		require.True(t, utf8.ValidString(key))
		require.NoError(t, stream.Validate())
		require.Equal(t, "123", stream.CardinalID())
		require.Len(t, stream.IDs(), 2)
		if decoded, ok := reservation.KeyOf(stream); ok {
			require.Equal(t, key, decoded)
		} else {
			require.True(t, strings.HasPrefix(stream.IDs()[1], "%sha256:"))
		}
		streams[key] = stream
	}
	if len(streams) == 2 {
		require.NotEqual(t, streams[a], streams[b])
	}
}

// A client's name in front of a key that was not sent is no key.
func TestAKeyOfPartsRefusesAnEmptyOne(t *testing.T) {
	t.Parallel()
	for _, parts := range [][]string{nil, {""}, {"ann", ""}, {"", "17"}, {"ann", " "}, {"ann", "\xff"}} {
		_, err := reservation.JoinKey(parts...)
		require.ErrorIs(t, err, reservation.ErrInvalidKey, parts)
	}
	_, err := reservation.JoinKey("ann", "")
	require.EqualError(t, err, `invalid idempotence key "": part 2 of 2: must not be empty`)
}

func TestKeysOfOtherPartsAreOtherKeys(t *testing.T) {
	t.Parallel()
	seen := map[string][]string{}
	for _, parts := range [][]string{
		{"ann", "17"}, {"ann/17"}, {"ann%2F17"}, {"ann", "1", "7"}, {"ann", "1/7"}, {"ann/1", "7"}, {"ann%2F1", "7"}, {"an", "n17"}, {"Ann", "17"},
	} {
		key, err := reservation.JoinKey(parts...)
		require.NoError(t, err)
		require.Empty(t, seen[key], parts)
		seen[key] = parts
	}
	require.Contains(t, seen, "ann/17")
}
