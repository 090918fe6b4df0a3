package idempotency_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/logger"
)

const form = "application/x-www-form-urlencoded"

// chunked is a body of no declared length.
func chunked(text string) io.Reader { return io.MultiReader(strings.NewReader(text)) }

// amount answers with the field of a form.
func amount(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.PostFormValue("amount")) }

// A scope may be in the form, or in JSON: the handler and the fingerprint get all of the body.
func TestAScopeMayReadTheBody(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(r *http.Request) string{
		"a form":        func(r *http.Request) string { return r.FormValue("client") },
		"all of it":     func(r *http.Request) string { b, _ := io.ReadAll(r.Body); return string(b[:1]) },
		"a part of it":  func(r *http.Request) string { b := make([]byte, 1); _, _ = io.ReadFull(r.Body, b); return string(b) },
		"and closes it": func(r *http.Request) string { _ = r.ParseForm(); _ = r.Body.Close(); return r.Form.Get("client") },
		"up to a limit": func(r *http.Request) string { _, _ = io.ReadAll(http.MaxBytesReader(nil, r.Body, 2)); return "a" },
		"nothing of it": func(*http.Request) string { return "a" },
		"to no purpose": func(r *http.Request) string { _ = r.ParseMultipartForm(1); return "a" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, newStore(), &idempotency.Config{Scope: func(r *http.Request) (string, error) { return read(r), nil }}, amount)
			for i, reader := range []func(string) io.Reader{chunked, func(s string) io.Reader { return strings.NewReader(s) }} {
				q := func(amount int) answer {
					return a.do(t, ask{key: fmt.Sprint("key-", i), reader: reader(fmt.Sprint("client=a&amount=", amount)), header: []string{"Content-Type", form}})
				}

				first, second, other := q(10), q(10), q(11)

				require.Equal(t, "10", first.body)
				require.True(t, second.replayed(), second.body)
				require.Equal(t, 422, other.status, "another amount is another request")
			}
		})
	}
}

// What reads a body in front of the middleware and does not put it back is a mistake of the server.
func TestABodyThatWasReadBeforeIsRefusedAndLogged(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(r *http.Request){
		"FormValue":          func(r *http.Request) { _ = r.FormValue("csrf") },
		"ParseForm":          func(r *http.Request) { _ = r.ParseForm() },
		"all":                func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"all, and closed":    func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() },
		"closed":             func(r *http.Request) { _ = r.Body.Close() },
		"replaced by none":   func(r *http.Request) { _ = r.FormValue("csrf"); r.Body = http.NoBody },
		"replaced by nil":    func(r *http.Request) { _ = r.FormValue("csrf"); r.Body = nil },
		"ParseMultipartForm": func(r *http.Request) { _ = r.ParseMultipartForm(1 << 10) },
	} {
		for declares, reader := range []func(string) io.Reader{chunked, func(s string) io.Reader { return strings.NewReader(s) }} {
			var lines logged
			a := newAPI(t, newStore(), &idempotency.Config{Logger: lines.logger()}, amount)
			inner := a.Config.Handler
			a.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(r)
				inner.ServeHTTP(w, r)
			})

			got := a.do(t, ask{key: "AAA", reader: reader("amount=10"), header: []string{"Content-Type", form}})

			want, problem := 500, problemType("body-read")
			if name == "all" && declares == 0 {
				want, problem = 411, problemType("length-required")
			}
			require.Equal(t, want, got.status, name)
			require.Equal(t, problem, got.problem(t), name)
			require.Contains(t, lines.String(), "read before", name)
			require.Zero(t, a.handled.Load(), name)
		}
	}
}

func TestALimitInFrontIsNamed(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, echo)
	a.Config.Handler = http.MaxBytesHandler(a.Config.Handler, 5)

	got := a.do(t, ask{key: "AAA", reader: chunked("123456")})

	require.Equal(t, 413, got.status)
	require.Contains(t, got.body, "must be at most 5 bytes")
}

// It cannot be told from one that was read before.
func TestAnEmptyBodySaysItsLength(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, echo)
	const head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: AAA\r\n"

	status, body := raw(t, a, head+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	require.Equal(t, 411, status)
	require.Contains(t, body, problemType("length-required"))

	for _, header := range []string{"", "Content-Length: 0\r\n"} {
		status, body = raw(t, a, head+header+"\r\n")
		require.Equal(t, 200, status)
		require.Equal(t, "0 <nil>", body)
	}
}

// A client that waits for 100 Continue sends no body that would be refused.
func TestABodyIsNotAskedForWithoutAKey(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, echo)

	status, _ := raw(t, a, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")

	require.Equal(t, 400, status)
	status, _ = raw(t, a, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\nIdempotency-Key: a\r\nContent-Length: 4\r\n\r\nhalf")
	require.Equal(t, 100, status)
}

// logged are the lines of a logger.
type logged struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func (l *logged) logger() logger.Logger { return logger.Zerolog(zerolog.New(l)) }

// One handler stands at two paths, or two hosts, behind what hides that from it; and two endpoints at
// one path, by a header.
func TestAnotherEndpointsResponseIsNotReplayed(t *testing.T) {
	t.Parallel()
	newHandler := func(config idempotency.Config) http.Handler {
		config.Scope = idempotency.Public
		once, err := idempotency.New(newManager(t, newStore(), nil), &config)
		require.NoError(t, err)
		return once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "done ", r.URL) }))
	}
	strip := func(h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/charge/", http.StripPrefix("/charge", h))
		mux.Handle("/refund/", http.StripPrefix("/refund", h))
		return mux
	}
	hosts := http.NewServeMux()
	byHost := newHandler(idempotency.Config{})
	hosts.Handle("POST charge.example/", byHost)
	hosts.Handle("POST refund.example/", byHost)
	plain := newHandler(idempotency.Config{})
	for name, test := range map[string]struct {
		h             http.Handler
		first, second string
		set           func(r *http.Request)
		want          int
	}{
		"paths":            {strip(newHandler(idempotency.Config{})), "/charge/1", "/refund/1", nil, 422},
		"encoded paths":    {newHandler(idempotency.Config{}), "/a%2Fb", "/a/b", nil, 422},
		"queries":          {newHandler(idempotency.Config{}), "/?a=1&b=2", "/?a=2&b=1", nil, 422},
		"hosts":            {newHandler(idempotency.Config{Host: true}), "http://a.example/", "http://b.example/", nil, 422},
		"a host's case":    {newHandler(idempotency.Config{Host: true}), "http://a.example/", "http://A.example/", nil, 200},
		"hosts of a mux":   {hosts, "http://charge.example/", "http://refund.example/", nil, 422},
		"another server":   {newHandler(idempotency.Config{}), "http://10.0.0.1:80/", "http://10.0.0.2:80/", nil, 200},
		"through a proxy":  {newHandler(idempotency.Config{}), "/a?b=1", "/a?b=1", func(r *http.Request) { r.RequestURI = "http://a.example" + r.RequestURI }, 200},
		"a changed path":   {plain, "/rpc", "/rpc", func(r *http.Request) { r.URL.Path = "/refund" }, 422},
		"another range":    {newHandler(idempotency.Config{}), "/", "/", func(r *http.Request) { r.Header.Set("Range", "bytes=0-3") }, 422},
		"another encoding": {newHandler(idempotency.Config{}), "/", "/", func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, 422},
	} {
		ask := func(target string, set func(*http.Request)) *httptest.ResponseRecorder {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, nil)
			r.Header.Set(idempotency.Header, "AAA")
			if set != nil {
				set(r)
			}
			test.h.ServeHTTP(w, r)
			return w
		}

		first, second := ask(test.first, nil), ask(test.second, test.set)

		require.Equal(t, 200, first.Code, name)
		require.Equal(t, test.want, second.Code, "%s: %s", name, second.Body)
	}
}
