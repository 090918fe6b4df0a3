package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/messagestore"
)

func newOnce(t *testing.T, store intent.Store, category messagestore.Category, config idempotency.Config) *idempotency.Middleware {
	t.Helper()
	m, err := intent.New(store, category, nil)
	require.NoError(t, err)
	if config.Scope == nil {
		config.Scope = idempotency.Public
	}
	once, err := idempotency.New(m, &config)
	require.NoError(t, err)
	return once
}

func serve(ctx context.Context, h http.Handler, path string) answer {
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader("10"))
	r.Header.Set(idempotency.Header, "AAA")
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func TestARequestThatMeetsTheMiddlewareTwiceIsHandledOnce(t *testing.T) {
	t.Parallel()
	store := newStore()
	other := func(*http.Request) (string, error) { return "other", nil }
	for name, nest := range map[string]func(http.Handler) http.Handler{
		"the same": func(h http.Handler) http.Handler {
			m := newOnce(t, store, "g:intent", idempotency.Config{})
			return m.Handler(m.Handler(h))
		},
		"three times": func(h http.Handler) http.Handler {
			m := newOnce(t, store, "h:intent", idempotency.Config{})
			return m.Handler(m.Handler(m.Handler(h)))
		},
		"of one store": func(h http.Handler) http.Handler {
			return newOnce(t, store, "a:intent", idempotency.Config{}).Handler(newOnce(t, store, "a:intent", idempotency.Config{}).Handler(h))
		},
		"of two stores": func(h http.Handler) http.Handler {
			return newOnce(t, newStore(), "b:intent", idempotency.Config{}).Handler(newOnce(t, newStore(), "b:intent", idempotency.Config{}).Handler(h))
		},
		"of two scopes": func(h http.Handler) http.Handler {
			return newOnce(t, store, "c:intent", idempotency.Config{}).Handler(newOnce(t, store, "c:intent", idempotency.Config{Scope: other}).Handler(h))
		},
		"around another": func(h http.Handler) http.Handler {
			m := newOnce(t, store, "d:intent", idempotency.Config{})
			return m.Handler(newOnce(t, store, "e:intent", idempotency.Config{}).Handler(m.Handler(h)))
		},
		"with another path": func(h http.Handler) http.Handler {
			m := newOnce(t, store, "f:intent", idempotency.Config{})
			return m.Handler(http.StripPrefix("/pay", m.Handler(h)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var handled atomic.Int32
			h := nest(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				handled.Add(1)
				body, _ := io.ReadAll(r.Body)
				w.WriteHeader(http.StatusCreated)
				fmt.Fprintf(w, "paid %s %v", body, idempotency.Lease(r.Context()) != nil)
			}))
			path := "/pay/" + url.PathEscape(name)

			first, second := serve(t.Context(), h, path), serve(t.Context(), h, path)

			require.Equal(t, 201, first.status, first.body)
			require.Equal(t, "paid 10 true", first.body)
			require.False(t, first.replayed())
			require.True(t, second.replayed())
			require.Equal(t, first.body, second.body)
			require.EqualValues(t, 1, handled.Load())
		})
	}
}

// Work that goes on after its request keeps that request's context, as a follow-up does. The lease is over: a call of
// another endpoint with the key is a key reused, as from anybody, and not a part of a request that holds the key.
func TestAContextOfAnEndedRequestHoldsNoKey(t *testing.T) {
	t.Parallel()
	once := newOnce(t, newStore(), "ended:intent", idempotency.Config{})
	contexts := make(chan context.Context, 1)
	first := serve(t.Context(), once.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { contexts <- context.WithoutCancel(r.Context()) }), "/pay")
	after := <-contexts
	require.Equal(t, 200, first.status)
	mail := once.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs without a lease") })

	for range 2 {
		require.Equal(t, problemType("key-reused"), serve(after, mail, "/mail").problem(t))
	}
	require.True(t, serve(after, mail, "/pay").replayed())
}

// A key goes on to another service, and its middleware's answer comes back.
func TestWhatAMiddlewareOfAnotherServiceAnswersIsNotStored(t *testing.T) {
	t.Parallel()
	var known atomic.Bool
	behind := newAPI(t, newStore(), &idempotency.Config{Scope: func(*http.Request) (string, error) {
		if known.Load() {
			return "client", nil
		}
		return "", nil
	}}, status(201))
	target, err := url.Parse(behind.URL)
	require.NoError(t, err)
	front := newAPI(t, newStore(), &idempotency.Config{Keep: func(int) bool { return true }}, httputil.NewSingleHostReverseProxy(target).ServeHTTP)

	first := front.do(t, ask{key: "AAA", body: "10"})
	known.Store(true)
	second := front.do(t, ask{key: "AAA", body: "10"})

	require.Equal(t, 401, first.status)
	require.Equal(t, 201, second.status)
	require.False(t, second.replayed())
	require.True(t, front.do(t, ask{key: "AAA", body: "10"}).replayed())
}

// An effect that happened is not forgotten because a request beside it was refused.
func TestAResponseBesideARefusalIsStored(t *testing.T) {
	t.Parallel()
	inner := newOnce(t, newStore(), "inner:intent", idempotency.Config{Scope: func(*http.Request) (string, error) { return "", nil }})
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
		beside := httptest.NewRecorder()
		inner.Handler(status(200)).ServeHTTP(beside, r)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, beside.Code)
	})

	require.Equal(t, "401", a.do(t, ask{key: "AAA"}).body)
	require.True(t, a.do(t, ask{key: "AAA"}).replayed())
}

func TestAReplayHasWhatABrowserAndARangeNeed(t *testing.T) {
	t.Parallel()
	fields := map[string]string{
		"Cache-Control": "no-store", "Vary": "Origin", "Expires": "0", "Content-Range": "bytes 0-3/8", "Accept-Ranges": "bytes",
		"Access-Control-Expose-Headers": "Location", "Access-Control-Allow-Credentials": "true",
		"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff",
	}
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range fields {
			w.Header().Set(name, value)
		}
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(w, "half")
	})
	inner := a.Config.Handler
	a.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		inner.ServeHTTP(w, r)
	})

	a.do(t, ask{key: "AAA", header: []string{"Origin", "https://a.example"}})
	second := a.do(t, ask{key: "AAA", header: []string{"Origin", "https://b.example"}})

	require.True(t, second.replayed())
	require.Equal(t, 206, second.status)
	for name, value := range fields {
		require.Equal(t, value, second.header.Get(name), name)
	}
	require.Equal(t, "https://b.example", second.header.Get("Access-Control-Allow-Origin"), "of this very request")
}

func TestATimeoutHandlerInsideIsRefused(t *testing.T) {
	t.Parallel()
	once := newOnce(t, newStore(), category, idempotency.Config{})

	require.PanicsWithValue(t, "idempotency: http.TimeoutHandler answers while its handler goes on, without a lease: use Config.Timeout",
		func() { once.Handler(http.TimeoutHandler(status(200), time.Second, "")) })
	require.Panics(t, func() { once.HandlerFunc(nil) })
	require.Equal(t, 200, serve(t.Context(), once.HandlerFunc(status(200)), "/").status)
}
