package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const category = messagestore.Category("payment:intent")

// An api is a server with one handler behind the middleware.
type api struct {
	*httptest.Server
	intents *intent.Manager
	handled atomic.Int32
}

// client is a scope: the header X-Client.
func client(r *http.Request) (string, error) {
	switch name := r.Header.Get("X-Client"); name {
	case "":
		return "client-1", nil
	case "nobody":
		return "", nil
	case "refused":
		return "", errors.New("no such client")
	default:
		return name, nil
	}
}

func newManager(t testing.TB, store intent.Store, config *intent.Config) *intent.Manager {
	t.Helper()
	m, err := intent.New(store, category, config)
	require.NoError(t, err)
	return m
}

func newAPI(t testing.TB, store intent.Store, config *idempotency.Config, handler http.HandlerFunc) *api {
	t.Helper()
	return newAPIOver(t, newManager(t, store, &intent.Config{TTL: time.Hour}), config, handler)
}

func newAPIOver(t testing.TB, intents *intent.Manager, config *idempotency.Config, handler http.HandlerFunc) *api {
	t.Helper()
	a := &api{intents: intents}
	if config == nil {
		config = &idempotency.Config{}
	}
	if config.Scope == nil {
		config.Scope = client
	}
	once, err := idempotency.New(a.intents, config)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/", once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.handled.Add(1)
		handler(w, r)
	})))
	a.Server = httptest.NewServer(mux)
	t.Cleanup(a.Close)
	return a
}

func newStore() *messagestore.Store { return must.New(messagestore.New(memory.New(), nil)) }

// An answer is a response, whole.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get(idempotency.Replayed) == "true" }

func (a answer) problem(t testing.TB) string {
	t.Helper()
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), a.body)
	var p idempotency.Problem
	require.NoError(t, json.Unmarshal([]byte(a.body), &p))
	require.Equal(t, a.status, p.Status)
	require.NotEmpty(t, p.Title)
	require.False(t, a.replayed())
	return p.Type
}

// problemType is the type of a problem of a name.
func problemType(name string) string {
	return "https://github.com/dibs-go/dibs/blob/main/docs/intents.md#problem-" + name
}

// An ask is a request. Its header is of pairs.
type ask struct {
	method, path, key, body string
	header                  []string
	reader                  io.Reader // in place of body
}

func (a *api) try(ctx context.Context, q ask) (answer, error) {
	if q.method == "" {
		q.method = http.MethodPost
	}
	body := q.reader
	if body == nil {
		body = strings.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, a.URL+q.path, body)
	if err != nil {
		return answer{}, err
	}
	if q.key != "" {
		r.Header.Set(idempotency.Header, q.key)
	}
	for i := 0; i < len(q.header); i += 2 {
		r.Header.Add(q.header[i], q.header[i+1])
	}
	response, err := a.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(got)}, err
}

func (a *api) do(t testing.TB, q ask) answer {
	t.Helper()
	got, err := a.try(t.Context(), q)
	require.NoError(t, err)
	return got
}

// status returns a handler that answers with a status and a body.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, "answer %d", code)
	}
}

func TestOneRequestIsHandledAndTheOthersGetItsResponse(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/payments/1")
		w.Header().Set("Content-Type", "text/payment")
		w.Header().Add("Link", "<a>")
		w.Header().Add("Link", "<b>")
		w.Header().Set("X-Request-Id", "1")
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "secret"})
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "paid %q\n", body)
	})

	first := a.do(t, ask{path: "/payments", key: "AAA", body: "10"})
	second := a.do(t, ask{path: "/payments", key: `"AAA"`, body: "10"})

	require.EqualValues(t, 1, a.handled.Load())
	require.Equal(t, http.StatusCreated, first.status)
	require.Equal(t, "paid \"10\"\n", first.body)
	require.NotEmpty(t, first.header.Get("Set-Cookie"))
	require.False(t, first.replayed())

	require.True(t, second.replayed())
	require.Equal(t, first.status, second.status)
	require.Equal(t, first.body, second.body)
	for _, name := range []string{"Location", "Content-Type", "Link", "Content-Length"} {
		require.Equal(t, first.header[name], second.header[name], name)
	}
	require.Empty(t, second.header.Get("Set-Cookie"), "another's session")
	require.Empty(t, second.header.Get("X-Request-Id"))
}

func TestOfManyRequestsAtOnceOneIsHandled(t *testing.T) {
	t.Parallel()
	store := newStore() // of two servers
	servers := []*api{newAPI(t, store, nil, status(201)), newAPI(t, store, nil, status(201))}
	answers := make([]answer, 40)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i], _ = servers[i%2].try(t.Context(), ask{key: "AAA"}) })
	}
	all.Wait()

	require.EqualValues(t, 1, servers[0].handled.Load()+servers[1].handled.Load())
	first := 0
	for _, got := range answers {
		require.Equal(t, 201, got.status, got.body)
		require.Equal(t, "answer 201", got.body)
		if !got.replayed() {
			first++
		}
	}
	require.Equal(t, 1, first)
}

func TestARequestWithoutAKeyIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, status(200))

	for _, method := range []string{"POST", "PATCH"} {
		got := a.do(t, ask{method: method})

		require.Equal(t, 400, got.status)
		require.Equal(t, problemType("key-missing"), got.problem(t))
	}
	require.Zero(t, a.handled.Load())
}

func TestOtherMethodsPass(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, status(200))
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS"} {
		require.Equal(t, 200, a.do(t, ask{method: method}).status)
		require.False(t, a.do(t, ask{method: method, key: "AAA"}).replayed())
	}
	require.EqualValues(t, 8, a.handled.Load())

	b := newAPI(t, newStore(), &idempotency.Config{Methods: []string{"PUT"}}, status(200))
	require.Equal(t, 200, b.do(t, ask{}).status)
	require.Equal(t, 400, b.do(t, ask{method: "PUT"}).status)
}

func TestAKeyIsOptionalWhereThatIsConfigured(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), &idempotency.Config{Optional: true}, func(w http.ResponseWriter, r *http.Request) {
		if idempotency.Lease(r.Context()) == nil {
			w.WriteHeader(http.StatusAccepted)
		}
		idempotency.Forget(r.Context()) // nothing, without a key
	})

	require.Equal(t, 202, a.do(t, ask{}).status)
	require.Equal(t, 202, a.do(t, ask{}).status)
	require.Equal(t, 200, a.do(t, ask{key: "AAA"}).status)
	require.Equal(t, 400, a.do(t, ask{header: []string{idempotency.Header, ""}}).status, "an empty key is a mistake")
	require.EqualValues(t, 3, a.handled.Load())
}

func TestAHeaderThatIsNoKeyIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, status(200))
	for name, header := range map[string][]string{
		"twice":      {idempotency.Header, "a", idempotency.Header, "a"},
		"open":       {idempotency.Header, `"a`},
		"list":       {idempotency.Header, `"a", "b"`},
		"parameters": {idempotency.Header, `"a";b`},
		"space":      {idempotency.Header, "a b"},
		"not ASCII":  {idempotency.Header, "ä"},
		"long":       {idempotency.Header, strings.Repeat("k", 256)},
	} {
		got := a.do(t, ask{header: header})

		require.Equal(t, 400, got.status, name)
		require.Equal(t, problemType("key-invalid"), got.problem(t), name)
	}
	require.Zero(t, a.handled.Load())
}

// A response is one client's.
func TestClientsDoNotShareKeys(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "of ", r.Header.Get("X-Client")) })

	for _, name := range []string{"alice", "bob", "alice+bob", "alice+", "+alice", strings.Repeat("a", 300)} {
		got := a.do(t, ask{key: "AAA", header: []string{"X-Client", name}})

		require.Equal(t, "of "+name, got.body)
		require.False(t, got.replayed())
	}
	// Neither do a scope and a key run together.
	require.Equal(t, "of alice", a.do(t, ask{key: "bob+AAA", header: []string{"X-Client", "alice"}}).body)
}

func TestAClientThatIsNotKnownIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, status(200))
	for _, name := range []string{"nobody", "refused", "\xff"} {
		got := a.do(t, ask{key: "AAA", header: []string{"X-Client", name}})

		require.Equal(t, 401, got.status, got.body)
		require.Equal(t, problemType("client-unknown"), got.problem(t))
		require.NotContains(t, got.body, "no such client", "an error is not the client's to see")
	}
	require.Zero(t, a.handled.Load())
}

func TestClientsShareKeysInPublic(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), &idempotency.Config{Scope: idempotency.Public}, status(200))

	a.do(t, ask{key: "AAA", header: []string{"X-Client", "alice"}})

	require.True(t, a.do(t, ask{key: "AAA", header: []string{"X-Client", "bob"}}).replayed())
}

func TestAKeyOfAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, status(201))
	json := []string{"Content-Type", "application/json"}
	a.do(t, ask{path: "/payments?a=1", key: "AAA", body: `{"amount":10}`, header: json})

	for name, q := range map[string]ask{
		"method": {method: "PATCH", path: "/payments?a=1", body: `{"amount":10}`, header: json},
		"path":   {path: "/refunds?a=1", body: `{"amount":10}`, header: json},
		"query":  {path: "/payments?a=2", body: `{"amount":10}`, header: json},
		"type":   {path: "/payments?a=1", body: `{"amount":10}`, header: []string{"Content-Type", "text/plain"}},
		"body":   {path: "/payments?a=1", body: `{"amount":11}`, header: json},
	} {
		q.key = "AAA"
		got := a.do(t, q)

		require.Equal(t, 422, got.status, name)
		require.Equal(t, problemType("key-reused"), got.problem(t), name)
	}
	require.True(t, a.do(t, ask{path: "/payments?a=1", key: "AAA", body: `{ "amount": 10 }`, header: json}).replayed(), "the same in another spelling")
	require.EqualValues(t, 1, a.handled.Load())
}

func TestAKeyOfAnotherRequestInProgressIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan struct{}), make(chan struct{})
	a := newAPI(t, newStore(), nil, func(http.ResponseWriter, *http.Request) { close(began); <-goOn })
	var first sync.WaitGroup
	first.Go(func() { _, _ = a.try(t.Context(), ask{key: "AAA", body: "1"}) })
	await.Receive(t, "the handler of the first request", began)

	got := a.do(t, ask{key: "AAA", body: "2"})

	require.Equal(t, 422, got.status)
	close(goOn)
	first.Wait()
}

func TestAFingerprintOfOnesOwnDecides(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), &idempotency.Config{Fingerprint: func(r *http.Request, body []byte) (string, error) {
		if r.URL.Query().Has("broken") {
			return "", errors.New("secret")
		}
		amount, _, _ := strings.Cut(string(body), " ")
		return amount, nil
	}}, status(201))
	a.do(t, ask{key: "AAA", body: "10 at 09:00"})

	require.True(t, a.do(t, ask{key: "AAA", body: "10 at 09:01"}).replayed())
	require.Equal(t, 422, a.do(t, ask{key: "AAA", body: "11 at 09:00"}).status)
	got := a.do(t, ask{path: "/?broken", key: "BBB"})
	require.Equal(t, 400, got.status)
	require.NotContains(t, got.body, "secret")
	require.Equal(t, "fingerprint-missing", got.header.Get(idempotency.ProblemHeader))
	got = a.do(t, ask{key: "BBB"})
	require.Equal(t, 400, got.status, "an empty fingerprint is none")
	require.Equal(t, "fingerprint-missing", got.header.Get(idempotency.ProblemHeader))
}

// A fingerprint may be a sum, which is rarely UTF-8, and has any byte.
func TestAFingerprintMayBeAnyBytes(t *testing.T) {
	t.Parallel()
	prints := []string{"\xff\xfe", "\xff\xff", "\uFFFD", "\uFFFD\uFFFD", "\x00", "\x00\x00", "\ud7ff", "\xed\xa0\x80", "//4="}
	a := newAPI(t, newStore(), &idempotency.Config{Fingerprint: func(r *http.Request, _ []byte) (string, error) {
		i, err := strconv.Atoi(r.URL.Query().Get("print"))
		return prints[i], err
	}}, status(201))
	for i := range prints {
		key := fmt.Sprintf("key-%d", i)
		require.Equal(t, 201, a.do(t, ask{path: fmt.Sprintf("/?print=%d", i), key: key}).status, "%q", prints[i])
		require.True(t, a.do(t, ask{path: fmt.Sprintf("/?print=%d", i), key: key}).replayed(), "%q", prints[i])
		for j := range prints {
			if i != j {
				require.Equal(t, 422, a.do(t, ask{path: fmt.Sprintf("/?print=%d", j), key: key}).status, "%q and %q", prints[i], prints[j])
			}
		}
	}
}

func TestAResponseThatWouldBeTheSameIsStored(t *testing.T) {
	t.Parallel()
	kept := map[int]bool{}
	for _, code := range []int{200, 201, 202, 204, 206, 301, 303, 304, 307, 400, 402, 404, 405, 406, 409, 410, 412, 415, 418, 422, 451, 499} {
		kept[code] = true
	}
	for _, code := range []int{401, 403, 407, 408, 425, 429, 500, 501, 502, 503, 504, 599, 600, 999} {
		kept[code] = false
	}
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
		var code int
		_, _ = fmt.Sscan(r.Header.Get("X-Status"), &code)
		w.WriteHeader(code)
		fmt.Fprint(w, "the body")
	})
	a.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for code, keeps := range kept {
		q := ask{key: fmt.Sprint("key-", code), header: []string{"X-Status", fmt.Sprint(code)}}
		before := a.handled.Load()

		first, second := a.do(t, q), a.do(t, q)

		require.Equal(t, code, first.status)
		require.Equal(t, code, second.status)
		require.Equal(t, first.body, second.body)
		require.Equal(t, keeps, second.replayed(), code)
		want := before + 2
		if keeps {
			want = before + 1
		}
		require.Equal(t, want, a.handled.Load(), code)
	}
}

func TestKeepDecides(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), &idempotency.Config{Keep: func(code int) bool { return code == 500 }}, status(500))
	b := newAPI(t, newStore(), &idempotency.Config{Keep: func(code int) bool { return code == 500 }}, status(200))

	a.do(t, ask{key: "AAA"})
	b.do(t, ask{key: "AAA"})

	require.True(t, a.do(t, ask{key: "AAA"}).replayed())
	require.False(t, b.do(t, ask{key: "AAA"}).replayed())
}

func TestAForgottenResponseIsNotStored(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		idempotency.Forget(r.Context())
	})

	require.Equal(t, 409, a.do(t, ask{key: "AAA"}).status)
	require.Equal(t, 409, a.do(t, ask{key: "AAA"}).status)

	require.EqualValues(t, 2, a.handled.Load())
}

// quiet keeps net/http from logging the panics of a test.
func quiet(a *api) { a.Config.ErrorLog = discardLog }

func TestAPanicGoesOnAndReleasesTheKey(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){
		"panic": func() { panic("broken") },
		"abort": func() { panic(http.ErrAbortHandler) },
		"exit":  runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var broken atomic.Bool
			broken.Store(true)
			a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "half of ")
				if broken.Load() {
					end()
				}
			})
			quiet(a)

			_, err := a.try(t.Context(), ask{key: "AAA"})

			require.Error(t, err, "the connection ends, as it does without the middleware")
			i, err := a.intents.Lookup(t.Context(), "client-1", "AAA")
			require.NoError(t, err)
			require.Equal(t, intent.Free, i.Status)
			broken.Store(false)
			require.Equal(t, "half of ", a.do(t, ask{key: "AAA"}).body)
			require.EqualValues(t, 2, a.handled.Load())
		})
	}
}

func fallsOver() { panic("broken") }

// In what net/http logs is the place at which the handler panicked. What it does not log otherwise, it
// does not log here.
func TestAPanicIsLoggedWithItsPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func()
		logs bool
	}{
		"panic": {fallsOver, true},
		"abort": {func() { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var server, own strings.Builder // each is written by one goroutine, and read after it
			m := newManager(t, newStore(), &intent.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&own)).Level(zerolog.WarnLevel))})
			once, err := idempotency.New(m, &idempotency.Config{Scope: idempotency.Public})
			require.NoError(t, err)
			s := httptest.NewUnstartedServer(once.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { test.end() })))
			s.Config.ErrorLog = log.New(&server, "", 0)
			s.Start()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, http.NoBody)
			require.NoError(t, err)
			r.Header.Set(idempotency.Header, "AAA")

			_, err = s.Client().Do(r) //nolint:bodyclose // there is none

			require.Error(t, err)
			s.Close() // after it has logged
			for _, text := range []string{server.String(), own.String()} {
				if test.logs {
					require.Contains(t, text, "broken")
					require.Contains(t, text, "idempotency_test.fallsOver")
				} else {
					require.Empty(t, text)
				}
			}
		})
	}
}

func TestTheHandlerGetsTheRequestWhole(t *testing.T) {
	t.Parallel()
	type name struct{}
	once, err := idempotency.New(newManager(t, newStore(), nil), &idempotency.Config{Scope: idempotency.Public})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("POST /payments/{id}", once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(body), " ", err, " ", r.ContentLength, " ", r.TransferEncoding, " ", r.PathValue("id"), " ", r.Pattern, " ", r.Context().Value(name{}))
		w.Header().Del("X-Outer")
	})))
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), name{}, "value"), "POST", "/payments/7", io.MultiReader(strings.NewReader("the body")))
	r.TransferEncoding = []string{"chunked"}
	r.ContentLength = -1
	r.Header.Set(idempotency.Header, "AAA")
	w := httptest.NewRecorder()

	mux.ServeHTTP(w, r)

	require.Equal(t, "the body <nil> 8 [] 7 POST /payments/{id} value", w.Body.String())
}

func TestAHandlerMayRemoveAHeaderFromAround(t *testing.T) {
	t.Parallel()
	once, err := idempotency.New(newManager(t, newStore(), nil), &idempotency.Config{Scope: idempotency.Public})
	require.NoError(t, err)
	inner := once.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Del("X-Outer")
		w.WriteHeader(http.StatusAccepted)
	}))
	serve := func() http.Header {
		w := httptest.NewRecorder()
		w.Header().Set("X-Outer", "1")
		w.Header().Set("X-Request-Id", "1")
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		r.Header.Set(idempotency.Header, "AAA")
		inner.ServeHTTP(w, r)
		return w.Header()
	}

	first, second := serve(), serve()

	require.NotContains(t, first, "X-Outer")
	require.Contains(t, first, "X-Request-Id")
	require.Contains(t, second, "X-Request-Id", "a replay has the headers of those around it")
}

func TestAStoredResponseThatIsNoneRunsNothing(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), &idempotency.Config{Fingerprint: func(*http.Request, []byte) (string, error) { return "f", nil }}, status(200))
	other, err := a.intents.Reserve(t.Context(), intent.Request{Scope: "client-1", Key: "AAA", Content: "f"})
	require.NoError(t, err)
	require.NoError(t, other.Lease.Confirm(t.Context(), map[string]int{"receipt": 1}))

	got := a.do(t, ask{key: "AAA"})

	require.Equal(t, 500, got.status)
	require.Equal(t, problemType("response-corrupt"), got.problem(t))
	require.Zero(t, a.handled.Load())
}

// A stream with messages of another program's is no intent.
func TestAStreamThatIsNoIntentRunsNothing(t *testing.T) {
	t.Parallel()
	store := newStore()
	a := newAPI(t, store, nil, status(200))
	stream, err := a.intents.Stream("client-1", "AAA")
	require.NoError(t, err)
	_, err = store.Write(t.Context(), stream, messagestore.NoStream, messagestore.Raw{Type: "Other", Data: json.RawMessage("{}")})
	require.NoError(t, err)

	got := a.do(t, ask{key: "AAA"})

	require.Equal(t, 500, got.status)
	require.Equal(t, problemType("response-corrupt"), got.problem(t))
	require.Zero(t, a.handled.Load())
}

var discardLog = log.New(io.Discard, "", 0)

// As a handler may have them that sets the map itself.
func TestHeaderFieldsInAnotherSpellingAreReplayed(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["ETag"], w.Header()["location"] = []string{`"1"`}, []string{"/payments/1"}
		w.WriteHeader(http.StatusCreated)
	})

	for range 2 {
		reply := a.do(t, ask{key: "AAA"})
		require.Equal(t, []string{`"1"`, "/payments/1"}, []string{reply.header.Get("ETag"), reply.header.Get("Location")})
	}
	require.EqualValues(t, 1, a.handled.Load())
}
