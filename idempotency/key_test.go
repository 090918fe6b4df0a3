package idempotency

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

func TestAKeyIsAStringOfRFC8941OrBare(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", MaxKey)
	for value, want := range map[string]string{
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`8e03978e-40d5-43dd-bc93-6894a57f9324`:   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`"abc"`:                                  "abc",
		"abc":                                    "abc",
		" \"abc\" \t":                            "abc",
		`"a\"b"`:                                 `a"b`,
		`"a\\b"`:                                 `a\b`,
		`"a,b;c"`:                                "a,b;c",
		"a+b/c=":                                 "a+b/c=",
		":YWJj:":                                 ":YWJj:", // a byte sequence of RFC 8941, and a bare key
		"?1":                                     "?1",
		"29401/1998-12":                          "29401/1998-12",
		"~!#$%&'()*+-./":                         "~!#$%&'()*+-./",
		long:                                     long,
		`"` + long + `"`:                         long,
	} {
		key, err := parseKey(value)

		require.NoError(t, err, value)
		require.Equal(t, want, key, value)
	}
}

func TestAValueThatIsNoKeyIsRefusedWithItsRule(t *testing.T) {
	t.Parallel()
	for value, rule := range map[string]string{
		"":                             "must not be empty",
		" ":                            "must not be empty",
		`""`:                           "must not be empty",
		`"a`:                           "must have a closing quote",
		`"`:                            "must have a closing quote",
		`"a\`:                          "must not have a backslash except before a quote or a backslash",
		`"a\b"`:                        "must not have a backslash except before a quote or a backslash",
		`"a"b`:                         "must end with the closing quote",
		`"a";b=1`:                      "must end with the closing quote",
		`"a", "b"`:                     "must end with the closing quote",
		"a, b":                         "must not contain a quote, comma, semicolon or backslash unless it is quoted",
		"a,b":                          "must not contain a quote, comma, semicolon or backslash unless it is quoted",
		"a;b=1":                        "must not contain a quote, comma, semicolon or backslash unless it is quoted",
		`a"b`:                          "must not contain a quote, comma, semicolon or backslash unless it is quoted",
		`a\b`:                          "must not contain a quote, comma, semicolon or backslash unless it is quoted",
		"a b":                          "must be visible ASCII",
		`"a b"`:                        "must be visible ASCII",
		"a\tb":                         "must be visible ASCII",
		"a\x00b":                       "must be visible ASCII",
		"a\x7fb":                       "must be visible ASCII",
		"é":                            "must be visible ASCII",
		"a\xff":                        "must be visible ASCII",
		"\u200b":                       "must be visible ASCII",
		strings.Repeat("k", MaxKey+1):  "must be at most 255 bytes",
		strings.Repeat("k", 1<<20):     "must be at most 255 bytes",
		`"` + strings.Repeat("k", 256): "must have a closing quote",
	} {
		_, err := parseKey(value)

		require.ErrorIs(t, err, messagestore.ErrInvalid, value)
		require.ErrorContains(t, err, rule, value)
		require.Less(t, len(err.Error()), 300)
	}
}

func TestAHandlerReadsAKeyAsTheMiddlewareDoes(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"a1", `"a1"`} {
		key, err := KeyOf(http.Header{Header: {value}})
		require.NoError(t, err)
		require.Equal(t, "a1", key)
	}
	for rule, header := range map[string]http.Header{
		"must be set": nil, "must not be empty": {Header: {""}}, "must be in one line": {Header: {"a1", "a1"}}, "must have a closing quote": {Header: {`"a1`}},
	} {
		_, err := KeyOf(header)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "invalid Idempotency-Key")
		require.ErrorContains(t, err, rule)
	}
}

func FuzzAKeyIsVisibleOrRefused(f *testing.F) {
	for _, seed := range []string{"abc", `"abc"`, `"a\"b"`, `"a`, "a,b", "a\x00", strings.Repeat("k", 256), `"";a`, ` "x" `} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := parseKey(value)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			return
		}
		require.NotEmpty(t, key)
		require.LessOrEqual(t, len(key), MaxKey)
		for i := range len(key) {
			require.True(t, key[i] > ' ' && key[i] <= '~')
		}
		// Every key has a spelling in quotes, and that is the same key.
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		again, err := parseKey(quoted)
		require.NoError(t, err)
		require.Equal(t, key, again)
	})
}
