package idempotency

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func printOf(t *testing.T, method, target, contentType, body string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	r.Header.Set("Content-Type", contentType)
	print, err := fingerprint(r, []byte(body), false)
	require.NoError(t, err)
	return print
}

func TestRequestsThatDifferHaveOtherFingerprints(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, each := range [][4]string{
		{"POST", "/payments", "application/json", `{"amount":1}`},
		{"PATCH", "/payments", "application/json", `{"amount":1}`},
		{"POST", "/payment", "application/json", `{"amount":1}`},
		{"POST", "/payments/", "application/json", `{"amount":1}`},
		{"POST", "/payments%2F1", "application/json", `{"amount":1}`},
		{"POST", "/payments/1", "application/json", `{"amount":1}`},
		{"POST", "/payments?a=1", "application/json", `{"amount":1}`},
		{"POST", "/payments?a=2", "application/json", `{"amount":1}`},
		{"POST", "/payments", "text/plain", `{"amount":1}`},
		{"POST", "/payments", "application/merge-patch+json", `{"amount":1}`},
		{"POST", "/payments", "", `{"amount":1}`},
		{"POST", "/payments", "application/json", `{"amount":2}`},
		{"POST", "/payments", "application/json", `{"amount":"1"}`},
		{"POST", "/payments", "application/json", `{"amount":1`},
		{"POST", "/payments", "application/json", ` {"amount":1`},
		{"POST", "/payments", "application/json", ""},
		{"POST", "/payments", "application/json", "null"},
		{"POST", "/payments", "application/json", `{"amount":2,"amount":1}`},
		{"POST", "/payments", "application/json", `{"amount":3,"amount":1}`},
		{"POST", "/payments", "application/json", `{"amount":1.0}`},
		{"POST", "/payments", "application/json", `{"amount":1e0}`},
		{"POST", "/payments", "application/json", `{"amount":9007199254740993}`},
		{"POST", "/payments", "application/json", `{"amount":9007199254740992}`},
		{"POST", "/payments", "application/json", `{"amount":0}`},
		{"POST", "/payments", "application/json", `{"amount":-0}`},
		{"POST", "/payments", "application/json", `{"amount":1,"Amount":2}`},
		{"POST", "/payments", "application/json", `{"Amount":2,"amount":1}`},
		{"POST", "/payments", "application/json", `{"to":"\ud800"}`},
		{"POST", "/payments", "application/json", `{"to":"\ud801"}`},
		{"POST", "/payments", "application/json", `{"to":"\ufffd"}`},
		{"POST", "/payments", "application/json", "{\"to\":\"\xff\"}"},
		{"POST", "/payments", "application/json", "{\"to\":\"\xfe\"}"},
		{"POST", "/payments", "application/json", "\ufeff" + `{"amount":1}`},
		{"POST", "/payments", "application/json", `{"amount":1}{"amount":2}`},
		{"POST", "/payments", "application/json;charset=latin1", `{"to":"é"}`},
		{"POST", "/payments", "application/json;charset=latin1", `{"to":"\u00e9"}`},
		{"POST", "/payments?a=1&b=2", "text/plain", "a"},
		{"POST", "/payments?b=2&a=1", "text/plain", "a"},
		{"POST", "/payments?", "text/plain", "a"},
		{"POST", "/payments", "text/plain", "a"},
		{"POST", "/payments", "text/plain", "a "},
		{"POST", "/payments", "text/plain;charset=latin1", "a"},
		{"POST", "/payments", "text/plain", "\xff"},
	} {
		print := printOf(t, each[0], each[1], each[2], each[3])
		require.Empty(t, seen[print], each)
		seen[print] = strings.Join(each[:], " ")
	}
}

// Fields that run together are how two requests become one.
func TestPartsOfAFingerprintDoNotRunTogether(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, hash([]byte("ab"), []byte("c")), hash([]byte("a"), []byte("bc")))
	require.NotEqual(t, hash([]byte("ab")), hash([]byte("ab"), nil))
	require.NotEqual(t,
		printOf(t, "POST", "/a?b", "text/plain", "c"),
		printOf(t, "POST", "/a", "text/plain", "?bc"))
}

func TestJSONCountsByWhatEveryDecoderReads(t *testing.T) {
	t.Parallel()
	one := printOf(t, "POST", "/", "application/json", `{"amount":1,"to":"Bob"}`)

	require.Equal(t, one, printOf(t, "POST", "/", "application/json", "{ \"to\": \"Bob\",\n \"amount\": 1 }"))
	require.Equal(t, one, printOf(t, "POST", "/", "Application/JSON", `{"amount":1,"to":"\u0042ob"}`))
	require.Equal(t,
		printOf(t, "POST", "/", "application/json; charset=utf-8", `{"amount":1}`),
		printOf(t, "POST", "/", "application/json;charset=utf-8", `{"amount": 1}`))
	require.NotEqual(t,
		printOf(t, "POST", "/", "text/plain", `{"amount":1}`),
		printOf(t, "POST", "/", "text/plain", `{"amount": 1}`), "bytes are bytes")
}

// The fingerprints are in databases: they may not change.
func TestAFingerprintStaysTheSame(t *testing.T) {
	t.Parallel()
	require.Equal(t, "Vh3HdXKidsaDV0-QhS_-F8IQ8FTHHmgrOoUUv0Goib4", printOf(t, "POST", "/payments?a=1", "application/json", `{"to":"Bób","amount":1.50}`))
}

// A client may send its request to a proxy, which names the host before the path.
func TestATargetCountsAsTheClientSentIt(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"/a?b": "/a?b", "/a%2Fb": "/a%2Fb", "http://h": "/", "http://h?b": "/?b", "http://h/a?b=http://x/y": "/a?b=http://x/y",
		"/a?b=http://x/y": "/a?b=http://x/y", "": "",
	} {
		require.Equal(t, want, sentTo(&http.Request{RequestURI: uri}), uri)
	}
	for pattern, want := range map[string]bool{
		"": false, "/a": false, "POST /a": false, "h/a": true, "POST h/a": true, "POST  /{$}": false, "POST  h/": true,
	} {
		require.Equal(t, want, choosesHost(pattern), pattern)
	}
}
