package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// A step is a request, and what it is answered: a response of the handler's, one that is replayed, or a problem.
type step struct {
	ask
	status int
	what   string // "" for the handler's own, "replayed", or the name of a problem
}

func of(client, key string) ask { return ask{key: key, header: []string{"X-Client", client}} }

// What a request is answered, by the key, the client, the request that had the key first, and the handler's response.
func TestEachRequestHasItsAnswer(t *testing.T) {
	t.Parallel()
	again := func(status int, what string) []step {
		return []step{{ask{key: "AAA"}, status, what}, {ask{key: "AAA"}, status, what}}
	}
	only500 := idempotency.Config{Keep: func(code int) bool { return code == 500 }}
	json := []string{"Content-Type", "application/json"}
	form := []string{"Content-Type", form}
	amounts := func(r *http.Request, body []byte) (string, error) {
		if r.URL.Query().Has("broken") {
			return "", errors.New("secret")
		}
		amount, _, _ := strings.Cut(string(body), " ")
		return amount, nil
	}
	for name, test := range map[string]struct {
		config  idempotency.Config
		handler http.HandlerFunc // or one that answers 201
		steps   []step
		handled int32
	}{
		"no key": {steps: []step{{ask{}, 400, "key-missing"}, {ask{method: "PATCH"}, 400, "key-missing"}}},
		"another method": {steps: []step{
			{ask{method: "GET", key: "AAA"}, 201, ""}, {ask{method: "GET", key: "AAA"}, 201, ""}, {ask{method: "PUT"}, 201, ""}, {ask{method: "DELETE"}, 201, ""},
		}, handled: 4},
		"a method that is named": {config: idempotency.Config{Methods: []string{"PUT"}}, steps: []step{{ask{}, 201, ""}, {ask{method: "PUT"}, 400, "key-missing"}}, handled: 1},
		"an optional key": {config: idempotency.Config{Optional: true}, handler: func(w http.ResponseWriter, r *http.Request) {
			if idempotency.Lease(r.Context()) == nil {
				w.WriteHeader(http.StatusAccepted)
			}
			idempotency.Forget(r.Context()) // nothing, without a key
		}, steps: []step{{ask{}, 202, ""}, {ask{}, 202, ""}, {ask{key: "AAA"}, 200, ""}, {ask{header: []string{idempotency.Header, ""}}, 400, "key-invalid"}}, handled: 3},
		"no key in the header": {steps: []step{
			{ask{header: []string{idempotency.Header, "a", idempotency.Header, "a"}}, 400, "key-invalid"}, {ask{key: `"a`}, 400, "key-invalid"}, {ask{key: "ä"}, 400, "key-invalid"},
		}},
		"unknown clients": {steps: []step{
			{of("nobody", "AAA"), 401, "client-unknown"}, {of("refused", "AAA"), 401, "client-unknown"}, {of("\xff", "AAA"), 401, "client-unknown"},
		}},
		"a public key": {config: idempotency.Config{Scope: idempotency.Public}, steps: []step{{of("alice", "AAA"), 201, ""}, {of("bob", "AAA"), 201, "replayed"}}, handled: 1},
		"a fingerprint of one's own": {config: idempotency.Config{Fingerprint: amounts}, steps: []step{
			{ask{key: "AAA", body: "10 at 09:00"}, 201, ""},
			{ask{key: "AAA", body: "10 at 09:01"}, 201, "replayed"},
			{ask{key: "AAA", body: "11 at 09:00"}, 422, "key-reused"},
			{ask{path: "/?broken", key: "BBB"}, 400, "fingerprint-missing"},
			{ask{key: "BBB"}, 400, "fingerprint-missing"},
		}, handled: 1},
		"a fingerprint that reads the body": {config: idempotency.Config{Fingerprint: func(r *http.Request, _ []byte) (string, error) {
			return "amount=" + r.PostFormValue("amount"), nil
		}}, steps: []step{
			{ask{key: "AAA", body: "amount=10&at=1", header: form}, 201, ""},
			{ask{key: "AAA", body: "amount=10&at=2", header: form}, 201, "replayed"},
			{ask{key: "AAA", body: "amount=11&at=1", header: form}, 422, "key-reused"},
		}, handled: 1},
		"JSON in another spelling":  {steps: []step{{ask{key: "AAA", body: `{"a":1}`, header: json}, 201, ""}, {ask{key: "AAA", body: `{ "a": 1 }`, header: json}, 201, "replayed"}}, handled: 1},
		"a status that is not kept": {config: only500, steps: again(201, ""), handled: 2},
		"a status that is kept":     {config: only500, handler: status(500), steps: []step{{ask{key: "AAA"}, 500, ""}, {ask{key: "AAA"}, 500, "replayed"}}, handled: 1},
		"a response to be forgotten": {handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusConflict)
			idempotency.Forget(r.Context())
		}, steps: again(409, ""), handled: 2},
		"a lease that the handler released": {handler: func(w http.ResponseWriter, r *http.Request) {
			if err := idempotency.Lease(r.Context()).Release(r.Context(), "not now"); err != nil {
				panic(err)
			}
			w.WriteHeader(http.StatusAccepted)
		}, steps: again(202, ""), handled: 2},
		"a lease that the handler confirmed without a response": {handler: func(_ http.ResponseWriter, r *http.Request) {
			if err := idempotency.Lease(r.Context()).Confirm(r.Context(), "done"); err != nil {
				panic(err)
			}
		}, steps: again(500, "response-corrupt"), handled: 1},
		"a response shorter than declared": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
		}, steps: again(500, "handler-failed"), handled: 2},
		"a response longer than declared": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			if _, err := fmt.Fprint(w, "all"); !errors.Is(err, http.ErrContentLength) {
				panic(err)
			}
		}, steps: again(500, "handler-failed"), handled: 2},
		"a large failure": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, strings.Repeat("x", 1<<20))
		}, steps: again(500, "handler-failed"), handled: 2},
		"a large header": {config: idempotency.Config{MaxResponse: 1 << 10}, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", strings.Repeat("<a>", 1000))
		}, steps: again(409, "response-not-kept"), handled: 1},
		"the largest response": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = w.Write(bytes.Repeat([]byte{0xff}, 256<<10))
		}, steps: []step{{ask{key: "AAA"}, 200, ""}, {ask{key: "AAA"}, 200, "replayed"}}, handled: 1},
		"a byte more": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = w.Write(bytes.Repeat([]byte{0xff}, 256<<10+1))
		}, steps: again(409, "response-not-kept"), handled: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.handler == nil {
				test.handler = status(201)
			}
			a := newAPI(t, newStore(), &test.config, test.handler)
			for i, s := range test.steps {
				got := a.do(t, s.ask)
				require.Equal(t, s.status, got.status, "request %d: %s", i, got.body)
				require.Equal(t, s.what == "replayed", got.replayed(), "request %d", i)
				if s.what != "" && s.what != "replayed" {
					require.Equal(t, problemType(s.what), got.problem(t), "request %d", i)
					require.NotContains(t, got.body, "no such client", "an error is not the client's to see")
					require.NotContains(t, got.body, "secret")
				}
			}
			require.Equal(t, test.handled, a.handled.Load())
		})
	}
}

// It is refused at once also while the first is at work, and whatever about it is another.
func TestAKeyOfAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan struct{}), make(chan struct{})
	a := newAPI(t, newStore(), nil, func(http.ResponseWriter, *http.Request) { close(began); <-goOn })
	json := []string{"Content-Type", "application/json"}
	first := ask{path: "/payments?a=1", key: "AAA", body: `{"amount":10}`, header: json}
	var all sync.WaitGroup
	all.Go(func() { _, _ = a.try(t.Context(), first) })
	testkit.Receive(t, "the handler of the first request", began)

	for range 2 {
		for name, change := range map[string]func(q *ask){
			"method": func(q *ask) { q.method = "PATCH" },
			"path":   func(q *ask) { q.path = "/refunds?a=1" },
			"query":  func(q *ask) { q.path = "/payments?a=2" },
			"type":   func(q *ask) { q.header = []string{"Content-Type", "text/plain"} },
			"body":   func(q *ask) { q.body = `{"amount":11}` },
		} {
			q := first
			change(&q)
			got := a.do(t, q)
			require.Equal(t, 422, got.status, name)
			require.Equal(t, problemType("key-reused"), got.problem(t), name)
		}
		if began != nil {
			close(goOn)
			all.Wait()
			began = nil
		}
	}
	require.True(t, a.do(t, first).replayed())
	require.EqualValues(t, 1, a.handled.Load())
}

// quiet keeps net/http from logging the panics of a test.
func quiet(a *api) { a.Config.ErrorLog = log.New(io.Discard, "", 0) }

// Nothing was sent then, not even a header.
func TestAPanicGoesOnAndReleasesTheKey(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){
		"panic": func() { panic("broken") },
		"abort": func() { panic(http.ErrAbortHandler) },
		"exit":  runtime.Goexit,
	} {
		for size, status := range map[int]int{1: 200, 1 << 20: 409} { // the second is too large
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				t.Parallel()
				var broken atomic.Bool
				broken.Store(true)
				a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprint(w, strings.Repeat("x", size))
					if broken.Load() {
						end()
					}
				})
				quiet(a)

				got, err := a.try(t.Context(), ask{key: "AAA"})

				require.Error(t, err, "the connection ends, as it does without the middleware")
				require.Zero(t, got.status)
				i, err := a.intents.Lookup(t.Context(), "client-1", "AAA")
				require.NoError(t, err)
				require.Equal(t, intent.Free, i.Status)
				broken.Store(false)
				for range 2 {
					require.Equal(t, status, a.do(t, ask{key: "AAA"}).status)
				}
				require.EqualValues(t, 2, a.handled.Load())
			})
		}
	}
}

// Also behind a middleware that has read the body and put it back.
func TestTheHandlerGetsTheRequestWhole(t *testing.T) {
	t.Parallel()
	type name struct{}
	once, err := idempotency.New(newManager(t, newStore(), nil), &idempotency.Config{Scope: idempotency.Public})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("POST /payments/{id}", once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(body), " ", err, " ", r.ContentLength, " ", r.TransferEncoding, " ", r.PathValue("id"), " ", r.Pattern, " ", r.Context().Value(name{}))
	})))
	serve := func(text string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), name{}, "value"), "POST", "/payments/7", chunked(text))
		r.TransferEncoding, r.ContentLength = []string{"chunked"}, -1
		r.Header.Set(idempotency.Header, "AAA")
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}

	require.Equal(t, "the body <nil> 8 [] 7 POST /payments/{id} value", serve("the body").Body.String())
	require.Equal(t, 422, serve("another").Code)
}

func TestAResponseThatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	_, err := receipt.Write(t.Context())
	require.ErrorIs(t, err, messagestore.ErrInvalid, "outside of a handler")
	for field, responses := range map[string][]idempotency.Response{
		"status": {{Status: 500}, {Status: 42}, {Status: 429}},
		"body":   {{Body: make([]byte, 300<<10)}, {Status: 204, Body: []byte("a")}},
	} {
		for _, response := range responses {
			a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
				_, err = response.Write(r.Context())
				w.WriteHeader(http.StatusAccepted)
			})

			require.Equal(t, 202, a.do(t, ask{key: "AAA"}).status, "the handler's own")
			invalid, is := errors.AsType[*messagestore.InvalidError](err)
			require.True(t, is, "%v", err)
			require.Equal(t, field, invalid.Field)
		}
	}
}
