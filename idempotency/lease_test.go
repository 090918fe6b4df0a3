package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// bubble serves requests without connections, for tests in a bubble.
type bubble struct {
	intents *intent.Manager
	once    *idempotency.Middleware
	handler http.Handler
	handled atomic.Int32
}

func newBubble(t *testing.T, store intent.Store, config *idempotency.Config, handler http.HandlerFunc) *bubble {
	t.Helper()
	b := &bubble{intents: newManager(t, store, nil)}
	if config == nil {
		config = &idempotency.Config{}
	}
	config.Scope = idempotency.Public
	var err error
	b.once, err = idempotency.New(b.intents, config)
	require.NoError(t, err)
	b.handler = b.once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.handled.Add(1)
		handler(w, r)
	}))
	return b
}

func (b *bubble) do(ctx context.Context, key string) answer {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
	r.Header.Set(idempotency.Header, key)
	b.handler.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func (b *bubble) forceRelease(ctx context.Context) {
	if err := b.intents.ForceRelease(ctx, "public", "AAA", "a test"); err != nil {
		panic(err)
	}
}

// until is a handler that works until a channel is closed, or its context ends.
func until(done <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-done:
			w.WriteHeader(http.StatusCreated)
		case <-r.Context().Done():
			w.WriteHeader(http.StatusGatewayTimeout)
		}
	}
}

// busy serves a request, whose handler works until finish is called.
func busy(t *testing.T, store intent.Store, config *idempotency.Config) (b *bubble, finish func()) {
	t.Helper()
	done := make(chan struct{})
	b = newBubble(t, store, config, until(done))
	var first sync.WaitGroup
	first.Go(func() { b.do(t.Context(), "AAA") })
	synctest.Wait()
	return b, sync.OnceFunc(func() { close(done); first.Wait() })
}

func TestARequestInProgressIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wait, client, first time.Duration // how long the request may wait, its client listens, and the first takes
		status              int
		after               time.Duration
		retry               string
	}{
		"it ends":                    {0, time.Hour, 4 * time.Second, 201, 4 * time.Second, ""},
		"it takes long":              {0, time.Hour, 8 * time.Second, 409, 5 * time.Second, "15"}, // the rest of the lease
		"nobody waits":               {-1, time.Hour, 4 * time.Second, 409, 0, "15"},
		"the client's context ended": {0, time.Second, 4 * time.Second, 409, time.Second, "15"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, finish := busy(t, newStore(), &idempotency.Config{Wait: test.wait})
				time.AfterFunc(test.first, finish)
				ctx, cancel := context.WithTimeout(t.Context(), test.client)
				defer cancel()
				start := time.Now()

				got := b.do(ctx, "AAA")

				require.Equal(t, test.status, got.status)
				require.Equal(t, test.status == 201, got.replayed())
				require.Equal(t, test.retry, got.header.Get("Retry-After"))
				require.InDelta(t, test.after, time.Since(start), float64(200*time.Millisecond))
				if test.status == 409 {
					require.Equal(t, problemType("in-progress"), got.problem(t))
				}
				time.Sleep(test.first)
				synctest.Wait()
				require.True(t, b.do(t.Context(), "AAA").replayed())
				require.EqualValues(t, 1, b.handled.Load())
			})
		})
	}
}

func TestAtMost256RequestsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		b := newBubble(t, newStore(), nil, until(done))
		var all sync.WaitGroup
		var replayed atomic.Int32
		for range 257 { // one of them is at work
			all.Go(func() {
				if b.do(t.Context(), "AAA").replayed() {
					replayed.Add(1)
				}
			})
		}
		synctest.Wait()
		start := time.Now()

		got := b.do(t.Context(), "AAA")

		require.Equal(t, 409, got.status)
		require.Zero(t, time.Since(start))
		close(done)
		all.Wait()
		require.EqualValues(t, 256, replayed.Load())
		require.True(t, b.do(t.Context(), "AAA").replayed(), "their places are free again")
	})
}

// A released key is free for the next request, also for one that waited.
func TestARequestThatWaitedIsHandledIfTheFirstFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		var failed atomic.Bool
		b := newBubble(t, newStore(), nil, func(w http.ResponseWriter, _ *http.Request) {
			<-done
			if failed.CompareAndSwap(false, true) {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		statuses := make([]int, 3)
		var all sync.WaitGroup
		for i := range statuses {
			all.Go(func() { statuses[i] = b.do(t.Context(), "AAA").status })
		}
		synctest.Wait()
		close(done)
		all.Wait()

		require.ElementsMatch(t, []int{500, 200, 200}, statuses)
		require.EqualValues(t, 2, b.handled.Load())
	})
}

// A lease is extended meanwhile, and what ends after its time has done its work: that is stored.
func TestAHandlerMayTakeItsTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout time.Duration
		work    func(w http.ResponseWriter)
		size    int
	}{
		"longer than a lease":  {time.Minute, func(http.ResponseWriter) { time.Sleep(50 * time.Second) }, 0},
		"longer than its time": {10 * time.Second, func(http.ResponseWriter) { time.Sleep(12 * time.Second) }, 0},
		"between parts of a body": {time.Minute, func(w http.ResponseWriter) {
			for range 5 {
				fmt.Fprint(w, strings.Repeat("x", 50<<10))
				time.Sleep(10 * time.Second)
			}
		}, 250 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, newStore(), &idempotency.Config{Timeout: test.timeout}, func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(http.StatusCreated)
					test.work(w)
					if test.timeout == time.Minute && r.Context().Err() != nil {
						panic(context.Cause(r.Context()))
					}
				})

				got := b.do(t.Context(), "AAA")
				require.Equal(t, 201, got.status)
				require.Len(t, got.body, test.size)
				require.True(t, b.do(t.Context(), "AAA").replayed())
			})
		})
	}
}

func TestAHandlersContextEndsAfterItsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deadline bool
		b := newBubble(t, newStore(), &idempotency.Config{Timeout: 10 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			_, deadline = r.Context().Deadline()
			<-r.Context().Done()
			w.WriteHeader(http.StatusGatewayTimeout)
		})
		start := time.Now()

		got := b.do(t.Context(), "AAA")

		require.True(t, deadline)
		require.Equal(t, 504, got.status)
		require.Equal(t, 10*time.Second, time.Since(start))
		b.do(t.Context(), "AAA")
		require.EqualValues(t, 2, b.handled.Load(), "a 504 is no outcome")
	})
}

// A server that dies leaves its lease. The request after that sees that it is not the first.
func TestARequestTakesOverFromAServerThatDied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, newStore(), &idempotency.Config{Fingerprint: func(*http.Request, []byte) (string, error) { return "f", nil }},
			func(w http.ResponseWriter, r *http.Request) {
				l := idempotency.Lease(r.Context())
				fmt.Fprint(w, l.Attempt(), l.Left() > 0, l.Token() > 0)
			})
		dead, err := b.intents.Reserve(t.Context(), intent.Request{Scope: "public", Key: "AAA", Content: "f"})
		require.NoError(t, err)
		require.Equal(t, intent.Reserved, dead.Outcome)

		got := b.do(t.Context(), "AAA")

		require.Equal(t, 409, got.status)
		require.Equal(t, "15", got.header.Get("Retry-After"))
		time.Sleep(7 * time.Second)
		require.Equal(t, "2 true true", b.do(t.Context(), "AAA").body, "it waited the last three seconds")
	})
}

func TestAResponseAfterALostLeaseIsTheWinners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		began, goOn := make(chan struct{}), make(chan struct{})
		one := newBubble(t, store, nil, func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-goOn // and does not look at its context
			fmt.Fprint(w, "one")
		})
		two := newBubble(t, store, nil, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "two") })
		var first answer
		var all sync.WaitGroup
		all.Go(func() { first = one.do(t.Context(), "AAA") })
		<-began
		require.NoError(t, one.intents.ForceRelease(t.Context(), "public", "AAA", "a test"))

		second := two.do(t.Context(), "AAA")
		close(goOn)
		all.Wait()

		require.Equal(t, "two", second.body)
		require.False(t, second.replayed())
		require.Equal(t, "two", first.body)
		require.True(t, first.replayed())
	})
}

func TestAResponseAfterALostLeaseWaitsForTheWinner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		began, goOn, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
		one := newBubble(t, store, nil, func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-goOn
			w.WriteHeader(http.StatusInternalServerError) // also one that would not be stored
		})
		two := newBubble(t, store, nil, until(finish))
		var first answer
		var all sync.WaitGroup
		all.Go(func() { first = one.do(t.Context(), "AAA") })
		<-began
		require.NoError(t, one.intents.ForceRelease(t.Context(), "public", "AAA", "a test"))
		all.Go(func() { two.do(t.Context(), "AAA") })
		synctest.Wait()
		close(goOn)
		time.Sleep(time.Second)
		close(finish)
		all.Wait()

		require.Equal(t, 201, first.status)
		require.True(t, first.replayed())
	})
}

// Whatever it is, and whether the handler has heard of it. Another request may have taken the key since: its response is not this one's.
func TestAResponseAfterALeaseThatNobodyTookIsNotSent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		goOn   func(b *bubble, w http.ResponseWriter, r *http.Request)
		status int
	}{
		"one": {func(_ *bubble, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "one") }, 409},
		"none": {func(_ *bubble, _ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if !errors.Is(context.Cause(r.Context()), intent.ErrLeaseLost) {
				panic(context.Cause(r.Context()))
			}
		}, 409},
		"a large one": {func(_ *bubble, w http.ResponseWriter, r *http.Request) {
			_ = idempotency.Lease(r.Context()).Extend(r.Context())
			_, _ = w.Write(make([]byte, 1<<20))
		}, 409},
		"a large failure": {func(_ *bubble, w http.ResponseWriter, r *http.Request) {
			_ = idempotency.Lease(r.Context()).Extend(r.Context())
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write(make([]byte, 1<<20))
		}, 409},
		"of a key that another request took": {func(b *bubble, w http.ResponseWriter, r *http.Request) {
			other, err := b.intents.Reserve(r.Context(), intent.Request{Scope: "public", Key: "AAA", Content: "another body"})
			if err == nil {
				err = other.Lease.Confirm(r.Context(), "its response")
			}
			if err != nil {
				panic(err)
			}
			fmt.Fprint(w, "one")
		}, 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var b *bubble
				b = newBubble(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
					b.forceRelease(r.Context())
					test.goOn(b, w, r)
				})

				got := b.do(t.Context(), "AAA")

				require.Equal(t, test.status, got.status)
				require.EqualValues(t, 1, b.handled.Load(), "a request is handled once at most")
				if test.status == 409 {
					require.Equal(t, problemType("in-progress"), got.problem(t))
					i, err := b.intents.Lookup(t.Context(), "public", "AAA")
					require.NoError(t, err)
					require.Equal(t, intent.Free, i.Status)
				}
			})
		})
	}
}

// A failing store is away, or does not answer, while a function is set.
type failing struct {
	*messagestore.Store
	fail atomic.Pointer[func(ctx context.Context, kind string) error]
}

func (f *failing) set(fail func(ctx context.Context, kind string) error) {
	if fail == nil {
		f.fail.Store(nil)
		return
	}
	f.fail.Store(&fail)
}

func (f *failing) TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	if fail := f.fail.Load(); fail != nil {
		if err := (*fail)(ctx, bodies[0].MessageType()); err != nil {
			return messagestore.Written{}, nil, err
		}
	}
	return f.Store.TryWrite(ctx, stream, expected, bodies...)
}

func (f *failing) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if fail := f.fail.Load(); fail != nil {
		if err := (*fail)(ctx, "last"); err != nil {
			return nil, err
		}
	}
	return f.Store.Last(ctx, stream)
}

var errAway = errors.New("the store is away")

func TestNothingIsHandledWithoutTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, fail := range map[string]func(ctx context.Context, kind string) error{
			"refuses":         func(context.Context, string) error { return errAway },
			"does not answer": func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() },
			"may have written": func(context.Context, string) error {
				return &messagestore.OutcomeUnknownError{Cause: errAway}
			},
		} {
			store := &failing{Store: newStore()}
			b := newBubble(t, store, nil, status(201))
			store.set(fail)

			got := b.do(t.Context(), "AAA")

			require.Equal(t, 503, got.status, name)
			require.Equal(t, problemType("unavailable"), got.problem(t))
			require.Equal(t, "1", got.header.Get("Retry-After"))
			require.NotContains(t, got.body, errAway.Error(), "an error is not the client's to see")
			require.Zero(t, b.handled.Load())
		}
	})
}

// deleted is a store in which every stream was deleted.
type deleted struct{ *messagestore.Store }

func (d deleted) TryWrite(_ context.Context, stream messagestore.StreamName, _ messagestore.Version, _ ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	tombstone := &messagestore.Message{Stream: stream, Position: 2, Type: removal.TombstoneType, Data: []byte(`{}`)}
	return messagestore.Written{}, &messagestore.Conflict{Last: []*messagestore.Message{tombstone}}, nil
}

// The key of a response that an operator deleted stays taken: the request was handled.
func TestARequestWhoseResponseWasDeletedIsNotHandledAgain(t *testing.T) {
	t.Parallel()
	b := newBubble(t, deleted{newStore()}, nil, status(201))

	got := b.do(t.Context(), "AAA")

	require.Equal(t, 409, got.status)
	require.Equal(t, problemType("response-not-kept"), got.problem(t))
	require.Contains(t, got.body, "the request is done, and its response was removed")
	require.Empty(t, got.header.Get("Retry-After"), "it will never be another")
	require.Zero(t, b.handled.Load())
}

func TestAResponseThatCannotBeStoredIsNotSent(t *testing.T) {
	t.Parallel()
	for size, status := range map[int]int{0: 201, 1 << 20: 409} { // also that it was too large
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &failing{Store: newStore()}
				attempts := []int{}
				b := newBubble(t, store, nil, func(w http.ResponseWriter, r *http.Request) {
					attempts = append(attempts, idempotency.Lease(r.Context()).Attempt())
					w.WriteHeader(http.StatusCreated)
					_, _ = w.Write(make([]byte, size))
				})
				store.set(func(_ context.Context, kind string) error {
					if kind == intentlog.TypeConfirmed {
						return errAway
					}
					return nil
				})

				got := b.do(t.Context(), "AAA")

				require.Equal(t, 503, got.status)
				require.Equal(t, problemType("unavailable"), got.problem(t))
				require.NotEmpty(t, got.header.Get("Retry-After"))
				store.set(nil)
				time.Sleep(15 * time.Second)
				require.Equal(t, status, b.do(t.Context(), "AAA").status)
				require.Equal(t, []int{1, 2}, attempts, "the next one knows that it is not the first")
			})
		})
	}
}

func TestAnAnswerThatIsLostWhileItWaitsIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Store: newStore()}
		b, finish := busy(t, store, nil)
		store.set(func(_ context.Context, kind string) error {
			if kind == "last" {
				return errAway
			}
			return nil
		})

		require.Equal(t, 503, b.do(t.Context(), "AAA").status)
		store.set(nil)
		finish()
	})
}

// A sending is a ResponseWriter that tells when its first byte is sent.
type sending struct {
	*httptest.ResponseRecorder
	first func()
}

func (s sending) WriteHeader(code int) { s.first(); s.ResponseRecorder.WriteHeader(code) }
func (s sending) Write(p []byte) (int, error) {
	s.first()
	return s.ResponseRecorder.Write(p)
}

func TestAResponseIsStoredBeforeItsFirstByteIsSent(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 100} {
		var returned atomic.Bool
		b := newBubble(t, newStore(), &idempotency.Config{MaxResponse: 1 << 10}, func(w http.ResponseWriter, _ *http.Request) {
			defer returned.Store(true)
			w.WriteHeader(http.StatusCreated)
			for range size {
				_, _ = w.Write([]byte("x"))
			}
		})
		w := sending{httptest.NewRecorder(), sync.OnceFunc(func() {
			i, err := b.intents.Lookup(t.Context(), "public", "AAA")
			require.NoError(t, err)
			require.Equal(t, intent.Done, i.Status)
			require.True(t, returned.Load(), "the handler has returned")
		})}
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		r.Header.Set(idempotency.Header, "AAA")

		b.handler.ServeHTTP(w, r)

		require.Equal(t, 201, w.Code)
		require.Equal(t, size, w.Body.Len())
	}
}

// The request is done: it is not carried out again because its response was too large.
func TestAResponseThatIsTooLargeIsRefusedNowAndEachTime(t *testing.T) {
	t.Parallel()
	log := &logged{}
	var written error
	a := newAPI(t, newStore(), &idempotency.Config{Logger: log.logger()}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/payments/1")
		w.WriteHeader(http.StatusCreated)
		part := bytes.Repeat([]byte("x"), 1000)
		for range 300 {
			_, written = w.Write(part)
		}
	})

	first, second := a.do(t, ask{key: "AAA"}), a.do(t, ask{key: "AAA"})

	require.ErrorIs(t, written, idempotency.ErrResponseTooLarge)
	for _, got := range []answer{first, second} {
		require.Equal(t, 409, got.status)
		require.Equal(t, problemType("response-not-kept"), got.problem(t))
		require.Contains(t, got.body, "its response was too large to keep")
		require.Empty(t, got.header.Get("Location"))
	}
	require.EqualValues(t, 1, a.handled.Load())
	i, err := a.intents.Lookup(t.Context(), "client-1", "AAA")
	require.NoError(t, err)
	require.Equal(t, intent.Done, i.Status)
	require.Contains(t, log.String(), "response refused: it is too large to keep, and the request is done")
	require.Contains(t, log.String(), `"limit":262144`)
}

func TestTheClientsDisconnectDoesNotEndTheWork(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan struct{}), make(chan struct{})
	gone := make(chan struct{})
	a := newAPI(t, newStore(), nil, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-gone
		if r.Context().Err() != nil {
			panic("the client's disconnect has ended the work")
		}
		<-goOn
		fmt.Fprint(w, "paid")
	})
	connection, err := net.Dial("tcp", a.Listener.Addr().String())
	require.NoError(t, err)
	fmt.Fprintf(connection, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: AAA\r\nContent-Length: 0\r\n\r\n")
	testkit.Receive(t, "the handler of the request", began)
	require.NoError(t, connection.Close())
	close(gone)

	var second answer
	var all sync.WaitGroup
	all.Go(func() { second, _ = a.try(t.Context(), ask{key: "AAA"}) })
	close(goOn)
	all.Wait()

	require.Equal(t, "paid", second.body)
	require.True(t, second.replayed())
	require.EqualValues(t, 1, a.handled.Load())
}
