package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
	"github.com/dibs-go/dibs/serve/client"
)

const payments messagestore.Category = "payment:intent"

type order struct {
	Amount int `json:"amount"`
}

type receipt struct {
	Number string `json:"number"`
}

func open(t *testing.T) *messagestore.Store {
	t.Helper()
	store, err := dibs.Open(t.Context(), "sqlite:"+t.TempDir()+"/dibs.db", &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// A served store counts the calls of its clients.
type served struct {
	url string
	h   *httptest.Server

	mu    sync.Mutex
	calls map[string]int // by method
}

func (s *served) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

func (s *served) all() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, calls := range s.calls {
		n += calls
	}
	return n
}

// serving serves a store until the test ends. If begin is not nil, each call begins with it, and its
// answer is lost if begin reports true.
func serving(t *testing.T, store *messagestore.Store, begin func(method string) (loses bool)) *served {
	t.Helper()
	server, err := serve.New(store, &serve.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	handler, s := server.Handler(), &served{calls: map[string]int{}}
	s.h = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		s.mu.Lock()
		s.calls[method]++
		s.mu.Unlock()
		if begin != nil && begin(method) {
			handler.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	}))
	s.h.Config.Protocols = &http.Protocols{}
	s.h.Config.Protocols.SetUnencryptedHTTP2(true)
	s.h.Start()
	s.url = s.h.URL
	t.Cleanup(func() {
		server.Drain()
		s.h.Close()
	})
	return s
}

func dial(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(url, nil)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func quiet(config *intent.Config) *intent.Config {
	if config == nil {
		config = &intent.Config{}
	}
	config.Logger = logger.Silent()
	return config
}

func over(t *testing.T, c *client.Client, config *intent.Config) *intent.Manager {
	t.Helper()
	m, err := c.IntentManager(payments, quiet(config))
	require.NoError(t, err)
	return m
}

func within(t *testing.T, store intent.Store, config *intent.Config) *intent.Manager {
	t.Helper()
	m, err := intent.New(store, payments, quiet(config))
	require.NoError(t, err)
	return m
}

// A side is a manager, of the library or of a service, and another one over the same store.
type side struct {
	m     *intent.Manager
	other *intent.Manager // of the library
}

// onBothSides runs a test in the process that has the store, and over the wire.
func onBothSides(t *testing.T, config intent.Config, test func(t *testing.T, s side)) {
	t.Parallel()
	t.Run("Library", func(t *testing.T) {
		t.Parallel()
		store := open(t)
		own := config
		test(t, side{within(t, store, &own), within(t, store, nil)})
	})
	t.Run("Service", func(t *testing.T) {
		t.Parallel()
		store := open(t)
		own := config
		test(t, side{over(t, dial(t, serving(t, store, nil).url), &own), within(t, store, nil)})
	})
}

func request(session string) intent.Request {
	return intent.Request{Scope: "tenant + 1", Key: "order 1", Session: session, Content: order{100}}
}

func (s side) lookup(t *testing.T) intent.Intent {
	t.Helper()
	i, err := s.m.Lookup(t.Context(), "tenant + 1", "order 1")
	require.NoError(t, err)
	return i
}

func lease(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
	t.Helper()
	a, err := m.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, intent.Reserved, a.Outcome)
	return a.Lease
}

var errWork = errors.New("the bank is closed")

func TestWorkIsDoneOnceWithATypedResult(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		works := 0
		work := func(_ context.Context, l *intent.Lease) (receipt, error) {
			works++
			require.Equal(t, 1, l.Attempt())
			require.Positive(t, l.Left())
			return receipt{fmt.Sprint("R", works)}, nil
		}
		for n, outcome := range []intent.Outcome{intent.Reserved, intent.Done} {
			r, a, err := intent.Do(t.Context(), s.m, request(""), work)
			require.NoError(t, err)
			require.Equal(t, receipt{"R1"}, r, n)
			require.Equal(t, outcome, a.Outcome)
			require.Equal(t, intent.Done, a.Intent.Status)
			require.Equal(t, s.lookup(t), a.Intent)
		}
		other := request("")
		other.Content = order{200}
		r, a, err := intent.Do(t.Context(), s.m, other, work)
		require.NoError(t, err)
		require.Equal(t, intent.KeyReused, a.Outcome)
		require.Zero(t, r)
		require.Equal(t, 1, works)
	})
}

func TestALeaseIsTheSessions(t *testing.T) {
	onBothSides(t, intent.Config{TTL: time.Minute, Name: "billing"}, func(t *testing.T, s side) {
		r := request("")
		r.Metadata = messagestore.Metadata{CorrelationStream: "chain-1"}
		first, err := s.m.Reserve(t.Context(), r)
		require.NoError(t, err)
		l := first.Lease
		require.Regexp(t, "^billing/[0-9a-f-]{36}$", l.Session())
		require.Equal(t, l.Token(), s.lookup(t).Token)
		require.Equal(t, l.Until(), s.lookup(t).Until)
		require.Equal(t, messagestore.StreamName("payment:intent-tenant %2B 1+order 1"), l.Stream())

		seen, err := s.other.Lookup(t.Context(), r.Scope, r.Key)
		require.NoError(t, err)
		seen.Last.ID, seen.Last.Time = first.Intent.Last.ID, first.Intent.Last.Time
		seen.Left = first.Intent.Left
		require.Equal(t, seen, first.Intent)
		require.Equal(t, time.Minute, first.Intent.Left)

		effect := messagestore.Follow(l.Cause(), messagestore.Raw{Type: "Paid", Data: []byte(`{}`)})
		require.Equal(t, l.Stream(), effect.Metadata.CausationStream)
		require.Equal(t, seen.Last.GlobalPosition, effect.Metadata.CausationGlobalPosition)
		require.Equal(t, messagestore.StreamName("chain-1"), effect.Metadata.CorrelationStream)

		again := request(l.Session())
		require.Equal(t, l.Token(), lease(t, s.m, again).Token())
		held, err := s.m.Reserve(t.Context(), request("another"))
		require.NoError(t, err)
		require.Equal(t, intent.Held, held.Outcome)
		require.Nil(t, held.Lease)
		require.Equal(t, l.Session(), held.Intent.Session)

		require.NoError(t, l.Extend(t.Context()))
		require.Greater(t, l.Left(), 50*time.Second)
		require.NoError(t, l.Release(t.Context(), "no more"))
		require.NoError(t, l.Release(t.Context(), "no more"), "again")
		free := s.lookup(t)
		require.Equal(t, intent.Free, free.Status)
		require.True(t, free.Released)
		require.Equal(t, "no more", free.Reason)
		require.ErrorIs(t, l.Err(), intent.ErrLeaseLost)
		require.ErrorIs(t, l.Confirm(t.Context(), nil), intent.ErrLeaseLost)
	})
}

func TestWorkThatFailsReleases(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		a, err := s.m.Do(t.Context(), request(""), func(context.Context, *intent.Lease) (any, error) { return nil, errWork })
		require.ErrorIs(t, err, errWork)
		require.Equal(t, intent.Free, a.Intent.Status)
		require.Equal(t, errWork.Error(), s.lookup(t).Reason)

		func() {
			defer func() {
				e, is := recover().(*intent.PanicError)
				require.True(t, is)
				require.Equal(t, "oh", e.Value)
			}()
			_, _ = s.m.Do(t.Context(), request(""), func(context.Context, *intent.Lease) (any, error) { panic("oh") })
			t.Error("Do returned")
		}()
		require.Equal(t, "the work panicked", s.lookup(t).Reason)

		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = s.m.Do(t.Context(), request(""), func(context.Context, *intent.Lease) (any, error) {
				runtime.Goexit()
				return nil, nil
			})
		}()
		testkit.Receive(t, "the goroutine ends", left)
		require.Equal(t, "the work ended its goroutine", s.lookup(t).Reason)

		_, err = s.m.Do(t.Context(), request(""), func(ctx context.Context, l *intent.Lease) (any, error) { return nil, l.Release(ctx, "by itself") })
		require.ErrorIs(t, err, intent.ErrReleased)
		require.Equal(t, 4, s.lookup(t).Attempt)
	})
}

func TestAResultThatIsNotKept(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		for range 2 {
			_, a, err := intent.Do(t.Context(), s.m, request(""), func(context.Context, *intent.Lease) (string, error) {
				return strings.Repeat("x", 600<<10), nil
			})
			require.ErrorIs(t, err, intent.ErrResult)
			require.Equal(t, "it must be at most 524288 bytes", a.Intent.NotKept)
		}
		require.Equal(t, intent.Done, s.lookup(t).Status)

		refused := request("") // by the store alone, which takes no such text
		refused.Key = "refused"
		a, err := s.m.Do(t.Context(), refused, func(context.Context, *intent.Lease) (any, error) { return json.RawMessage(`"\u0000"`), nil })
		require.NoError(t, err)
		require.NotEmpty(t, a.Intent.NotKept)
	})
}

// When an operator releases a lease, the next heartbeat tells its holder, whose work then ends.
func TestALeaseThatIsLostEndsItsWork(t *testing.T) {
	onBothSides(t, intent.Config{Heartbeat: 100 * time.Millisecond}, func(t *testing.T, s side) {
		began, cause := make(chan struct{}), make(chan error, 1)
		ended := testkit.Go(func() error {
			_, err := s.m.Do(t.Context(), request("mine"), func(ctx context.Context, _ *intent.Lease) (any, error) {
				close(began)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return "late", nil
			})
			return err
		})
		testkit.Receive(t, "the work begins", began)
		require.NoError(t, s.m.ForceRelease(t.Context(), "tenant + 1", "order 1", "it hangs"))

		for _, err := range []error{testkit.Receive(t, "the work is told", cause), testkit.Receive(t, "the call ends", ended)} {
			lost, ok := errors.AsType[*intent.LeaseLostError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, "mine", lost.Session)
			require.Equal(t, "it hangs", lost.By.Reason)
			require.Equal(t, "operator", lost.By.By)
			require.ErrorContains(t, err, `it was released by "operator": "it hangs"`)
		}
		require.Equal(t, intent.Free, s.lookup(t).Status)
		require.NoError(t, s.m.ForceRelease(t.Context(), "tenant + 1", "order 1", "again"))
		require.NoError(t, lease(t, s.m, request("next")).Confirm(t.Context(), nil))
		require.ErrorIs(t, s.m.ForceRelease(t.Context(), "tenant + 1", "order 1", "too late"), intent.ErrDone)
		require.ErrorIs(t, s.m.ForceRelease(t.Context(), "", "nothing", "reason"), messagestore.ErrNotFound)
	})
}

func TestAWaiterTakesItsTurn(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		first := lease(t, s.m, request("first"))
		waits := request("second")
		waits.Wait = testkit.WaitLimit
		second := testkit.Go(func() intent.Answer {
			a, err := s.m.Reserve(t.Context(), waits)
			if err != nil {
				t.Error(err)
			}
			return a
		})
		testkit.AwaitEqual(t, "the second stands in the line", 1, func() int { return len(s.lookup(t).Line) })
		awaited := testkit.Go(func() intent.Outcome {
			i, err := s.m.Await(t.Context(), waits.Scope, waits.Key)
			if err != nil {
				t.Error(err)
			}
			return i.Status
		})
		require.NoError(t, first.Release(t.Context(), ""))
		a := testkit.Receive(t, "the second has its turn", second)
		require.Equal(t, intent.Reserved, a.Outcome)
		require.Positive(t, a.Lease.Left())
		require.NoError(t, a.Lease.Confirm(t.Context(), "done"))
		require.Contains(t, []intent.Outcome{intent.Free, intent.Done}, testkit.Receive(t, "it is not held", awaited))

		waits.Session, waits.Key, waits.Wait = "third", "order 2", 50*time.Millisecond
		other := request("holds")
		other.Key = waits.Key
		lease(t, s.m, other)
		began := time.Now()
		a, err := s.m.Reserve(t.Context(), waits)
		require.NoError(t, err)
		require.Equal(t, intent.Held, a.Outcome)
		require.GreaterOrEqual(t, time.Since(began), waits.Wait)

		waits.Wait = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = s.m.Reserve(ctx, waits)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = s.m.Await(ctx, waits.Scope, waits.Key)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestAHolderTakesItsSteps(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		r := request("mine")
		l := lease(t, s.m, r)
		h := intent.Holder{Scope: r.Scope, Key: r.Key, Session: "mine", Token: l.Token()}
		stranger := h
		stranger.Token--
		none := h
		none.Key = "never reserved"

		i, err := s.m.Extend(t.Context(), h)
		require.NoError(t, err)
		require.Equal(t, intent.Held, i.Status)
		require.Equal(t, 15*time.Second, i.Left)
		require.Equal(t, s.lookup(t).Until, i.Until)
		all, err := s.m.ExtendMany(t.Context(), stranger, h, none)
		require.NoError(t, err)
		require.ErrorIs(t, all[0].Err, intent.ErrLeaseLost)
		require.ErrorContains(t, all[0].Err, "")
		require.Equal(t, "mine", all[0].Intent.Session)
		require.NoError(t, all[1].Err)
		require.Equal(t, "mine", all[1].Intent.Session)
		require.ErrorIs(t, all[2].Err, intent.ErrLeaseLost)
		require.ErrorIs(t, all[2].Err, messagestore.ErrNotFound)
		require.ErrorContains(t, all[2].Err, "the store has no such intent")

		resumed, err := s.m.Resume(t.Context(), r.Scope, r.Key, "mine", l.Token())
		require.NoError(t, err)
		require.Equal(t, 1, resumed.Attempt())
		require.Greater(t, resumed.Left(), time.Second)
		require.Equal(t, s.lookup(t).Last.GlobalPosition, resumed.Cause().GlobalPosition)

		_, err = s.m.Confirm(t.Context(), stranger, "stolen")
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		effects := messagestore.To("account-1", messagestore.NoStream, messagestore.Envelope{Body: messagestore.Raw{Type: "Paid", Data: []byte(`{"amount":100}`)}})
		for range 2 {
			i, err = s.m.Confirm(t.Context(), h, receipt{"R1"}, effects)
			require.NoError(t, err)
			require.Equal(t, intent.Done, i.Status)
			require.JSONEq(t, `{"number":"R1"}`, string(i.Result))
		}
		i, err = s.m.Confirm(t.Context(), h, receipt{"R2"})
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.JSONEq(t, `{"number":"R1"}`, string(i.Result))
		_, err = s.m.Release(t.Context(), h, "")
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.ErrorContains(t, err, "it was confirmed")

		next := request("next")
		next.Key = "order 2"
		l = lease(t, s.m, next)
		err = l.Confirm(t.Context(), nil, effects)
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.NoError(t, l.Err(), "the lease goes on")
		i, err = s.m.Release(t.Context(), intent.Holder{Scope: next.Scope, Key: next.Key, Session: "next", Token: l.Token()}, "over")
		require.NoError(t, err)
		require.Equal(t, intent.Free, i.Status)
		require.Equal(t, "over", i.Reason)
	})
}

func TestAListIsComplete(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		long := strings.Repeat("long ", 100)
		for n, key := range []string{"a+b", "%sha256:no hash", long, "d", "e"} {
			r := request(fmt.Sprint("s", n%2))
			r.Key = key
			l := lease(t, s.m, r)
			if n == 3 {
				require.NoError(t, l.Confirm(t.Context(), "R"))
			}
			i, err := s.m.Lookup(t.Context(), r.Scope, key)
			require.NoError(t, err)
			require.Equal(t, l.Stream(), i.Stream)
		}
		list := func(m *intent.Manager, f intent.Filter) (all []intent.Intent) {
			all, err := m.List(t.Context(), f)
			require.NoError(t, err)
			for i := range all {
				all[i].Left = 0
				all[i].Last.ID, all[i].Last.Time = [16]byte{}, time.Time{}
			}
			return all
		}
		for n, f := range map[int]intent.Filter{
			4: {}, 5: {Status: []intent.Outcome{intent.Held, intent.Done}}, 1: {Status: []intent.Outcome{intent.Done}},
			2: {Session: "s1", Status: []intent.Outcome{intent.Held, intent.Free, intent.Done}}, 0: {Scope: "another"},
		} {
			all := list(s.m, f)
			require.Len(t, all, n, "%+v", f)
			require.Equal(t, list(s.other, f), all)
		}
		var paged []intent.Intent
		for page := (intent.Page{More: true}); page.More; {
			var err error
			page, err = s.m.ListPage(t.Context(), intent.Filter{}, page.Next, 3)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Intents), 3)
			paged = append(paged, page.Intents...)
		}
		require.Len(t, paged, 4)
	})
}

// Bad input is refused alike, and by the client before any call.
func TestBadInputIsRefusedWithoutACall(t *testing.T) {
	t.Parallel()
	store := open(t)
	server := serving(t, store, nil)
	c := dial(t, server.url)
	local, remote := within(t, store, nil), over(t, c, nil)
	with := func(change func(r *intent.Request)) func(m *intent.Manager) error {
		return func(m *intent.Manager) error {
			r := request("s")
			change(&r)
			_, err := m.Reserve(t.Context(), r)
			return err
		}
	}
	for name, call := range map[string]func(m *intent.Manager) error{
		"key":     with(func(r *intent.Request) { r.Key = "" }),
		"scope":   with(func(r *intent.Request) { r.Scope = "\xff" }),
		"session": with(func(r *intent.Request) { r.Session = "a\nb" }),
		"TTL":     with(func(r *intent.Request) { r.TTL = time.Millisecond }),
		"wait":    with(func(r *intent.Request) { r.Wait = -1 }),
		"content": with(func(r *intent.Request) { r.Content = nil }),
		"no JSON": with(func(r *intent.Request) { r.Content = func() {} }),
		"token": func(m *intent.Manager) error {
			return testkit.ErrorOf(m.Extend(t.Context(), intent.Holder{Key: "k", Session: "s"}))
		},
		"no holder": func(m *intent.Manager) error { return testkit.ErrorOf(m.ExtendMany(t.Context())) },
		"result": func(m *intent.Manager) error {
			return testkit.ErrorOf(m.Confirm(t.Context(), intent.Holder{Key: "k", Session: "s", Token: 1}, func() {}))
		},
		"reason": func(m *intent.Manager) error {
			return testkit.ErrorOf(m.Release(t.Context(), intent.Holder{Key: "k", Session: "s", Token: 1}, strings.Repeat("r", 501)))
		},
		"no reason": func(m *intent.Manager) error { return m.ForceRelease(t.Context(), "", "k", "") },
		"limit": func(m *intent.Manager) error {
			return testkit.ErrorOf(m.ListPage(t.Context(), intent.Filter{}, 0, 1001))
		},
		"status": func(m *intent.Manager) error {
			return testkit.ErrorOf(m.List(t.Context(), intent.Filter{Status: []intent.Outcome{intent.Reserved}}))
		},
		"lookup": func(m *intent.Manager) error { return testkit.ErrorOf(m.Lookup(t.Context(), "", "")) },
		"await":  func(m *intent.Manager) error { return testkit.ErrorOf(m.Await(t.Context(), "", "")) },
	} {
		want, got := call(local), call(remote)
		require.ErrorIs(t, got, messagestore.ErrInvalid, name)
		require.Equal(t, testkit.As[*messagestore.InvalidError](t, want), testkit.As[*messagestore.InvalidError](t, got), name)
	}
	for field, call := range map[string]func() error{
		"session":  func() error { return with(func(r *intent.Request) { r.Session = strings.Repeat("s", 101) })(remote) },
		"category": func() error { return testkit.ErrorOf(c.IntentManager("payment", nil)) },
		"Name": func() error {
			return testkit.ErrorOf(c.IntentManager(payments, &intent.Config{Name: strings.Repeat("n", 64)}))
		},
		"Turn":    func() error { return testkit.ErrorOf(c.IntentManager(payments, &intent.Config{Turn: time.Second})) },
		"KeyLife": func() error { return testkit.ErrorOf(c.IntentManager(payments, &intent.Config{KeyLife: time.Hour})) },
		"TTL":     func() error { return testkit.ErrorOf(c.IntentManager(payments, &intent.Config{TTL: 1})) },
		"expected version": func() error {
			w := messagestore.StreamWrite{Stream: "account-1", Expected: messagestore.AnyVersion, Past: []string{"Paid"}}
			return testkit.ErrorOf(remote.Confirm(t.Context(), intent.Holder{Key: "k", Session: "s", Token: 1}, nil, w))
		},
	} {
		err := call()
		require.ErrorIs(t, err, messagestore.ErrInvalid, field)
		require.ErrorContains(t, err, field)
	}
	require.Zero(t, server.all(), "no call was made")
}

// A confirmation whose result is refused fails with the error of Confirm, wherever it is used.
func TestARefusedConfirmationIsTheSameOnBothSides(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		store := open(t)
		l := lease(t, s.m, request(""))
		want := testkit.As[*messagestore.InvalidError](t, l.Confirm(t.Context(), make(chan int)))

		_, err := store.WriteStreams(t.Context(), l.Confirmation(make(chan int))...)

		got := testkit.As[*messagestore.InvalidError](t, err)
		require.Equal(t, []string{"result", want.Rule}, []string{got.Field, got.Rule})
		require.NotErrorIs(t, err, messagestore.ErrNotSupported)
	})
}

// A conflict of Confirm's writes names the stream and the versions.
func TestAConflictOfAConfirmationHasItsVersions(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		l := lease(t, s.m, request(""))
		other := lease(t, s.m, intent.Request{Key: "order 2", Content: order{1}})
		paid := messagestore.Raw{Type: "Paid", Data: []byte(`{}`)}
		require.NoError(t, other.Confirm(t.Context(), nil, messagestore.To("account-1", messagestore.NoStream, paid, paid)))

		err := l.Confirm(t.Context(), nil, messagestore.To("account-2", messagestore.NoStream, paid), messagestore.To("account-1", 0, paid))

		require.Equal(t, messagestore.VersionConflictError{Stream: "account-1", Expected: 0, Actual: 1}, *testkit.As[*messagestore.VersionConflictError](t, err))
		require.EqualError(t, err, "confirm lease: version conflict: expected 0, found 1")
		require.NoError(t, l.Confirm(t.Context(), nil), "the lease goes on")
	})
}

// A hash in place of a long key is not taken for the key that has its text.
func TestAKeyWithTheTextOfAHashIsAnother(t *testing.T) {
	onBothSides(t, intent.Config{}, func(t *testing.T, s side) {
		long := strings.Repeat("k", 300)
		hashed, _ := keys.Encode(long, keys.HashedBytes)
		streams := map[string]messagestore.StreamName{}
		for _, key := range []string{long, hashed} {
			for _, scope := range []string{long, hashed} {
				r := intent.Request{Scope: scope, Key: key, Content: order{1}}
				l := lease(t, s.m, r)
				streams[scope+key] = l.Stream()
				looked, err := s.m.Lookup(t.Context(), scope, key)
				require.NoError(t, err)
				require.Equal(t, l.Stream(), looked.Stream)
				a, err := s.m.Reserve(t.Context(), r)
				require.NoError(t, err)
				require.Equal(t, l.Stream(), a.Intent.Stream)
			}
		}
		for _, scope := range []string{long, hashed} {
			listed, err := s.m.List(t.Context(), intent.Filter{Scope: scope})
			require.NoError(t, err)
			page, err := s.m.ListPage(t.Context(), intent.Filter{Scope: scope}, 0, 10)
			require.NoError(t, err)
			for _, all := range [][]intent.Intent{listed, page.Intents} {
				var found []messagestore.StreamName
				for _, i := range all {
					found = append(found, i.Stream)
					require.Equal(t, []string{hashed, hashed}, []string{i.Scope, i.Key})
				}
				require.ElementsMatch(t, []messagestore.StreamName{streams[scope+long], streams[scope+hashed]}, found)
			}
		}
	})
}

// A lease whose intent is corrupt fails by itself, and says so.
func TestACorruptIntentFailsItsOwnExtension(t *testing.T) {
	t.Parallel()
	store := open(t)
	local, remote := within(t, store, nil), over(t, dial(t, serving(t, store, nil).url), nil)
	for side, m := range []*intent.Manager{local, remote} {
		var holders []intent.Holder
		for i := range 3 {
			l := lease(t, m, intent.Request{Key: fmt.Sprint(side, i), Session: "S", Content: order{1}})
			holders = append(holders, intent.Holder{Key: fmt.Sprint(side, i), Session: "S", Token: l.Token()})
			if i == 1 {
				_, err := store.Write(t.Context(), l.Stream(), messagestore.AnyVersion, messagestore.Raw{Type: "Paid", Data: []byte(`{}`)})
				require.NoError(t, err)
				want := fmt.Sprintf("extend lease: corrupt intent: %s@1: ", l.Stream())
				require.ErrorContains(t, l.Extend(t.Context()), want)
			}
		}
		all, err := m.ExtendMany(t.Context(), holders...)
		require.NoError(t, err)
		for i, e := range all {
			if i != 1 {
				require.NoError(t, e.Err)
				continue
			}
			require.ErrorIs(t, e.Err, intent.ErrCorrupt)
			require.NotErrorIs(t, e.Err, messagestore.ErrOutcomeUnknown)
			require.NotErrorIs(t, e.Err, intent.ErrLeaseLost)
			require.ErrorContains(t, e.Err, fmt.Sprintf("corrupt intent: payment:intent-%d 1@1: ", side))
		}
	}
}

// What needs the store itself is not supported, and says so before any call.
func TestTransactionsAreNotSupported(t *testing.T) {
	t.Parallel()
	store := open(t)
	server := serving(t, store, nil)
	m := over(t, dial(t, server.url), nil)
	l := lease(t, m, request(""))
	several := request("")
	several.With = []string{"another"}
	_, err := m.Reserve(t.Context(), several)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	_, err = l.In(t.Context(), store)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	for _, writes := range [][]messagestore.StreamWrite{l.Confirmation("R"), append(l.Guarded(), messagestore.To("account-1", messagestore.NoStream, messagestore.Raw{Type: "Paid", Data: []byte(`{}`)}))} {
		_, err = store.WriteStreams(t.Context(), writes...)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorIs(t, err, messagestore.ErrNotSupported)
		require.Equal(t, "lease", testkit.As[*messagestore.InvalidError](t, err).Field)
	}
	require.Equal(t, 1, server.all())
	require.NoError(t, l.Err())
}

// A proxy stands between clients and a server. It can cut its connections, or keep what comes.
type proxy struct {
	listener net.Listener
	hangs    atomic.Bool

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool // false for one that has gone silent
}

// silence has the present connections forward nothing more, and stay open.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.conns[c] = false
	}
}

func (p *proxy) isSilent(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	lets, open := p.conns[c]
	return open && !lets
}

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{to: strings.TrimPrefix(url, "http://"), listener: listener, conns: map[net.Conn]bool{}}
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			to := p.to
			p.mu.Unlock()
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns[in], p.conns[out] = true, true
			p.mu.Unlock()
			go p.pump(in, out)
			go p.pump(out, in)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		p.cut()
	})
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) pump(to io.WriteCloser, from net.Conn) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		for (p.hangs.Load() || p.isSilent(from)) && err == nil {
			time.Sleep(time.Millisecond)
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// A connection that forwards nothing more is replaced before leases end that need it.
func TestAConnectionThatGoesSilentIsReplaced(t *testing.T) {
	t.Parallel()
	network := newProxy(t, serveAt(t, openStore(t)))
	c := testkit.Must(client.New(network.url(), nil))
	defer c.Close()
	intents := testkit.Must(c.IntentManager("payment:intent", &intent.Config{Logger: logger.Silent()}))
	_, _, err := intent.Do(t.Context(), intents, intent.Request{Key: "order 1", Content: "order 1", TTL: 8 * time.Second}, func(ctx context.Context, lease *intent.Lease) (string, error) {
		network.silence()
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(9 * time.Second): // longer than the lease, which was extended on another connection
			return "paid", nil
		}
	})
	require.NoError(t, err)
}

// Calls that are cut off and answers that are lost harm nothing: the calls are sent again, and the
// work is confirmed once.
func TestAConnectionThatIsCutInTheMiddleHarmsNothing(t *testing.T) {
	t.Parallel()
	store := open(t)
	var p *proxy
	var mu sync.Mutex
	calls := map[string]int{}
	server := serving(t, store, func(method string) bool {
		mu.Lock()
		defer mu.Unlock()
		calls[method]++
		if calls[method] == 1 { // it may be carried out all the same
			p.cut()
		}
		return calls[method] == 2
	})
	p = newProxy(t, server.url)
	m := over(t, dial(t, p.url()), &intent.Config{Heartbeat: 50 * time.Millisecond})
	works := 0
	r, a, err := intent.Do(t.Context(), m, request(""), func(context.Context, *intent.Lease) (receipt, error) {
		works++
		testkit.AwaitTrue(t, "the lease is extended, in spite of a cut", func() bool { return server.count("ExtendLeases") > 2 })
		return receipt{"R1"}, nil
	})
	require.NoError(t, err)
	require.Equal(t, intent.Reserved, a.Outcome)
	require.Equal(t, receipt{"R1"}, r)
	require.Equal(t, 1, works)
	require.Greater(t, server.count("Reserve"), 2)
	require.Greater(t, server.count("Confirm"), 2)
	history, confirmations := 0, 0
	for message, err := range store.ReadStream(t.Context(), a.Intent.Stream, 0) {
		require.NoError(t, err)
		if history++; message.Type == "Confirmed" {
			confirmations++
		}
	}
	require.Equal(t, 1, confirmations)
}

// A server that is replaced during the work harms nothing.
func TestAServerThatIsReplacedHarmsNothing(t *testing.T) {
	t.Parallel()
	store := open(t)
	first := serving(t, store, nil)
	p := newProxy(t, first.url)
	m := over(t, dial(t, p.url()), &intent.Config{Heartbeat: 50 * time.Millisecond})
	r, a, err := intent.Do(t.Context(), m, request(""), func(ctx context.Context, l *intent.Lease) (receipt, error) {
		first.h.CloseClientConnections()
		first.h.Listener.Close()
		p.cut()
		p.mu.Lock()
		p.to = strings.TrimPrefix(serving(t, store, nil).url, "http://")
		p.mu.Unlock()
		until := l.Until()
		testkit.AwaitTrue(t, "the lease is extended at the next server", func() bool { return l.Until().After(until) })
		return receipt{"R1"}, ctx.Err()
	})
	require.NoError(t, err)
	require.Equal(t, intent.Reserved, a.Outcome)
	require.Equal(t, receipt{"R1"}, r)
}

// If nothing comes from the server, the context of the work ends before anybody else may have the
// lease, and the result is refused if somebody has.
func TestWorkEndsInTimeIfTheServerHangs(t *testing.T) {
	t.Parallel()
	store := open(t)
	p := newProxy(t, serving(t, store, nil).url)
	m, other := over(t, dial(t, p.url()), &intent.Config{TTL: time.Second}), within(t, store, nil)
	var early atomic.Bool
	ended := testkit.Go(func() error {
		_, err := m.Do(t.Context(), request("slow"), func(ctx context.Context, l *intent.Lease) (any, error) {
			p.hangs.Store(true)
			<-ctx.Done()
			i, err := other.Lookup(t.Context(), "tenant + 1", "order 1")
			early.Store(err == nil && i.Status == intent.Held)
			p.hangs.Store(false)
			next := request("next")
			next.Wait = testkit.WaitLimit
			if a, err := other.Reserve(t.Context(), next); err != nil || a.Outcome != intent.Reserved {
				t.Error("the next one has no lease", a.Outcome, err)
			}
			return "late", context.Cause(ctx)
		})
		return err
	})
	require.ErrorIs(t, testkit.Receive(t, "the work ends", ended), intent.ErrLeaseLost)
	require.True(t, early.Load(), "it ended too late")
}
