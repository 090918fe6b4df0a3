package idempotency

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var payment = identity{"client-1", "29401/1998-12"}

func keeping(names ...string) forms {
	kept := map[string]bool{}
	for _, name := range append(names, keptHeaders...) {
		kept[http.CanonicalHeaderKey(name)] = true
	}
	return forms{kept, [][]byte{nil}}
}

func stored(t testing.TB, f form) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	return raw
}

func TestAStoredResponseIsTheSameByteForByte(t *testing.T) {
	t.Parallel()
	var every []byte
	for c := range 256 {
		every = append(every, byte(c))
	}
	for name, body := range map[string][]byte{
		"none": nil, "text": []byte("hello"), "JSON": []byte(`{"a":"<b>\u0000"}`), "every byte": every, "NUL": {0}, "not UTF-8": {0xff},
		"line separators": []byte("\u2028\u2029"), "control characters": bytes.Repeat([]byte{1}, 100), "half a character": []byte("é")[:1],
		"replacement": []byte("\ufffd"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{"Content-Type": {"a/b"}, "Link": {"<1>", "<2>"}, "Etag": {"\"\xe9\""}, "Location": {""}}
			f := keeping().encode(payment, Response{Status: 201, Header: header, Body: body})

			r, ok, err := keeping().decode(payment, stored(t, f))

			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, 201, r.Status)
			require.Equal(t, header, r.Header)
			require.Equal(t, string(body), string(r.Body))
		})
	}
}

func TestABodyIsStoredInItsShorterForm(t *testing.T) {
	t.Parallel()
	text, raw := pack([]byte(`{"id":"29401","status":"paid"}`))
	require.NotEmpty(t, text, "an operator can read it")
	require.Empty(t, raw)

	for _, body := range [][]byte{bytes.Repeat([]byte{1}, 1000), bytes.Repeat([]byte("\u2028"), 1000), bytes.Repeat([]byte(`"`), 1000), {0xff, 0}} {
		text, raw := pack(body)
		require.Empty(t, text)
		require.Equal(t, body, raw)
	}
}

// A response of the greatest size fits into the result of an intent, with any bytes in it.
func TestTheLargestResponseFitsIntoAnIntent(t *testing.T) {
	t.Parallel()
	for _, c := range []byte{'a', '"', 1, 0, 0xff} {
		f := keeping().encode(payment, Response{Status: 200, Body: bytes.Repeat([]byte{c}, maxMaxResponse)})

		require.LessOrEqual(t, len(stored(t, f)), maxStored)
	}
}

func TestOnlyHeadersThatAreListedAreStored(t *testing.T) {
	t.Parallel()
	header := http.Header{
		"Content-Type": {"a/b"}, "Set-Cookie": {"session=1"}, "Www-Authenticate": {"Basic"}, "Date": {"now"},
		"X-Request-Id": {"1"}, "X-Payment": {"1"},
	}

	r, _, err := keeping("x-payment").decode(payment, stored(t, keeping("x-payment").encode(payment, Response{Status: 200, Header: header})))

	require.NoError(t, err)
	require.Equal(t, http.Header{"Content-Type": {"a/b"}, "X-Payment": {"1"}}, r.Header)
}

func TestALineEndInAHeaderIsASpace(t *testing.T) {
	t.Parallel()
	r, _, err := keeping().decode(payment, stored(t, keeping().encode(payment, Response{Status: 200, Header: http.Header{"Link": {"a\r\nSet-Cookie: b"}}})))

	require.NoError(t, err)
	require.Equal(t, "a  Set-Cookie: b", r.Header.Get("Link"))
}

func TestAResponseThatWasTooLargeIsRememberedAsThat(t *testing.T) {
	t.Parallel()
	r, ok, err := keeping().decode(payment, stored(t, keeping().tooLarge(payment, 201)))

	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, 201, r.Status)
}

// A response that a release has stored is replayed by every later one. The files are never changed.
func TestResponsesOfOlderReleasesAreReplayed(t *testing.T) {
	t.Parallel()
	want := map[string]Response{
		"v1-text.json":  {201, http.Header{"Content-Type": {"application/json"}, "Location": {"/payments/29401"}}, []byte(`{"id":"29401"}`)},
		"v1-bytes.json": {200, http.Header{"Content-Type": {"application/pdf"}, "Etag": {"\"\xe9\""}}, []byte{0, 0xff, '%'}},
		"v1-large.json": {Status: 200},
	}
	files, err := filepath.Glob("testdata/stored/*.json")
	require.NoError(t, err)
	require.Len(t, files, len(want))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)

		r, ok, err := keeping().decode(payment, raw)

		require.NoError(t, err, file)
		require.Equal(t, want[filepath.Base(file)], r, file)
		require.Equal(t, !strings.Contains(file, "large"), ok, file)
	}
}

func TestAResponseThatWasChangedIsCorrupt(t *testing.T) {
	t.Parallel()
	f := keeping().encode(payment, Response{201, http.Header{"Link": {"a"}, "Location": {"b"}}, []byte("paid")})
	change := func(change func(*form)) json.RawMessage {
		changed := f
		changed.Header = append([]field(nil), f.Header...)
		change(&changed)
		return stored(t, changed)
	}
	for name, raw := range map[string]json.RawMessage{
		"the status":            change(func(f *form) { f.Status = 200 }),
		"the body":              change(func(f *form) { f.Text = "Paid" }),
		"the body as bytes":     change(func(f *form) { f.Text, f.Bytes = "", []byte("paid") }),
		"two bodies":            change(func(f *form) { f.Bytes = []byte("paid") }),
		"a header's value":      change(func(f *form) { f.Header[0].Value = "c" }),
		"a header's name":       change(func(f *form) { f.Header[0].Name = "Set-Cookie" }),
		"a header less":         change(func(f *form) { f.Header = f.Header[:1] }),
		"headers in order":      change(func(f *form) { f.Header[0], f.Header[1] = f.Header[1], f.Header[0] }),
		"too large":             change(func(f *form) { f.TooLarge = true }),
		"the sum":               change(func(f *form) { f.Sum = "A" + f.Sum[1:] }),
		"no sum":                change(func(f *form) { f.Sum = "" }),
		"a newer version":       change(func(f *form) { f.Version = 2; f.Sum = f.sum(payment, nil) }),
		"no version":            change(func(f *form) { f.Version = 0 }),
		"a status that is none": change(func(f *form) { f.Status = 42; f.Sum = f.sum(payment, nil) }),
		"a field more":          json.RawMessage(strings.Replace(string(stored(t, f)), "{", `{"more":1,`, 1)),
		"half":                  stored(t, f)[:20],
		"nothing":               nil,
		"null":                  json.RawMessage("null"),
		"a number":              json.RawMessage("1"),
		"a list":                json.RawMessage("[]"),
		"another program's":     json.RawMessage(`{"receipt":1}`),
		"another program's too": json.RawMessage(`{"version":"1"}`),
		"Base64 that is none":   json.RawMessage(`{"version":1,"status":200,"bytes":"*"}`),
	} {
		_, ok, err := keeping().decode(payment, raw)

		require.ErrorIs(t, err, errCorrupt, name)
		require.False(t, ok, name)
	}
}

// Another client's response is never replayed, even if an operator copied it.
func TestAResponseOfAnotherKeyIsCorrupt(t *testing.T) {
	t.Parallel()
	raw := stored(t, keeping().encode(payment, Response{Status: 201}))
	for _, other := range []identity{{"client-2", payment.key}, {payment.scope, "other"}, {"client", "-129401/1998-12"}, {"", ""}} {
		_, _, err := keeping().decode(other, raw)

		require.ErrorIs(t, err, errCorrupt)
	}
}

// A program that may write to the store has all that the sum is made of.
func TestAForgedResponseHasNoHeaderThatIsNeverStored(t *testing.T) {
	t.Parallel()
	f := form{Version: formVersion, Status: 200, Text: "paid", Header: []field{
		{Name: "Set-Cookie", Value: "session=1"},
		{Name: "set-cookie", Value: "session=2"},
		{Name: "Content-Length", Value: "1"},
		{Name: "Transfer-Encoding", Value: "chunked"},
		{Name: "X-Other", Value: "1"},
		{Name: "Idempotent-Replayed", Value: "false"},
		{Name: "", Value: "1"},
		{Name: "a b", Value: "1"},
		{Name: "content-type", Value: "a/b"},
		{Name: "Link", Value: "a\r\nSet-Cookie: b"},
		{Name: "Location", Bytes: []byte("c\r\nd")},
	}}
	f.Sum = f.sum(payment, nil)

	r, ok, err := keeping().decode(payment, stored(t, f))

	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, http.Header{"Content-Type": {"a/b"}, "Link": {"a  Set-Cookie: b"}, "Location": {"c  d"}}, r.Header)
}

func TestWithASecretNoOtherProgramMakesAResponse(t *testing.T) {
	t.Parallel()
	first, second := []byte("the first secret"), []byte("the second secret")
	with := func(secrets ...[]byte) forms { return forms{keeping().kept, secrets} }
	response := Response{Status: 201, Body: []byte("paid")}
	reads := func(s forms, f form) bool {
		_, _, err := s.decode(payment, stored(t, f))
		if err != nil {
			require.ErrorIs(t, err, errCorrupt)
		}
		return err == nil
	}
	for name, make := range map[string]func(forms) form{
		"a response": func(s forms) form { return s.encode(payment, response) },
		"too large":  func(s forms) form { return s.tooLarge(payment, 201) },
	} {
		unsigned, old, signed := make(with(nil)), make(with(first)), make(with(second, first))

		require.True(t, reads(with(second), signed), name)
		require.False(t, reads(with(second), old), name)
		require.False(t, reads(with(second), unsigned), name)
		require.False(t, reads(with(nil), signed), name)
		require.True(t, reads(with(second, first), old), "%s: while the secret changes", name)
		require.False(t, reads(with(second, first), unsigned), name)
		require.True(t, reads(with(second, first, nil), unsigned), "%s: from before there was one", name)
		moved, _, err := with(second).decode(identity{payment.scope, "other"}, stored(t, signed))
		require.ErrorIs(t, err, errCorrupt, name)
		require.Zero(t, moved, name)
	}
}

func FuzzAStoredResponseIsReadOrCorrupt(f *testing.F) {
	f.Add([]byte(stored(f, keeping().encode(payment, Response{201, http.Header{"Link": {"a"}}, []byte("paid")}))), uint8(0))
	f.Add([]byte(stored(f, keeping().tooLarge(payment, 200))), uint8(3))
	f.Add([]byte(`{"version":1}`), uint8(1))
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte("x"))), uint8(2))
	f.Fuzz(func(t *testing.T, raw []byte, status uint8) {
		if r, _, err := keeping().decode(payment, raw); err != nil {
			require.ErrorIs(t, err, errCorrupt)
		} else {
			require.GreaterOrEqual(t, r.Status, 200)
		}

		// The same bytes as a body, and as a header, come back as they were.
		in := Response{200 + int(status), http.Header{"Link": {string(raw)}}, raw}
		out, ok, err := keeping().decode(payment, stored(t, keeping().encode(payment, in)))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, string(in.Body), string(out.Body))
		require.Equal(t, in.Status, out.Status)
		require.Equal(t, newField("Link", string(raw)).value(), out.Header.Get("Link"))
	})
}
