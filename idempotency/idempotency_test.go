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
	"github.com/dibs-go/dibs/internal/testkit"
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

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) }

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
		w.Header()["ETag"], w.Header()["location"] = []string{`"1"`}, []string{"/payments/1"} // not as net/http spells them
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
	for _, name := range []string{"Etag", "Location", "Content-Type", "Link", "Content-Length"} {
		require.NotEmpty(t, first.header[name], name)
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
