package serve

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve/gen/dibs/v1/dibsv1connect"
)

// A Config configures a [Server]. nil means the defaults.
type Config struct {
	// Keys says whose calls are answered, and which: see [FollowKeys]. As long as nobody has ever
	// added a key, a server on the loopback answers every call.
	//
	// Defaults to none: whoever reaches the server may call everything.
	Keys *Keys

	// MaxWaiting is how many calls may wait at a time: for an item, an intent or a message.
	//
	// Defaults to 20,000.
	MaxWaiting int

	// MaxBytes is how large a request may be. Compressed requests are refused.
	//
	// Defaults to 4 MiB.
	MaxBytes int

	// Reflection lets clients ask which services there are.
	Reflection bool

	// Logger receives what the server and the intents and queues behind it have to say. It receives
	// names and numbers, and never content.
	//
	// Defaults to warnings and errors on standard error.
	Logger logger.Logger
}

// A Server answers calls from other processes. It is safe for concurrent use. It does not close the
// store.
type Server struct {
	store  *messagestore.Store
	config Config

	mu       sync.Mutex
	managers map[messagestore.Category]*intent.Manager
	queues   map[queueName]*servedQueue

	metrics *metrics
	keyed   atomic.Bool  // calls need a key even if there is none
	waiting atomic.Int64 // calls
	drain   end
}

// An end happens once, to all who asked to be told.
type end struct {
	now      context.CancelFunc
	happened func() bool
	tell     func(f func()) (stop func() bool)
}

func newEnd() end {
	ctx, cancel := context.WithCancel(context.Background())
	return end{cancel, func() bool { return ctx.Err() != nil }, func(f func()) func() bool { return context.AfterFunc(ctx, f) }}
}

// maxNames bounds the categories and queues that a server keeps ready.
const maxNames = 10_000

// New returns a server over a store. It makes no round trip.
func New(store *messagestore.Store, config *Config) (*Server, error) {
	if store == nil {
		return nil, messagestore.NewInvalidError("store", nil, "must not be nil")
	}
	s := &Server{store: store, managers: map[messagestore.Category]*intent.Manager{}, queues: map[queueName]*servedQueue{}, drain: newEnd()}
	if config != nil {
		s.config = *config
	}
	if s.config.MaxWaiting == 0 {
		s.config.MaxWaiting = 20_000
	}
	if s.config.MaxBytes == 0 {
		s.config.MaxBytes = 4 << 20
	}
	if s.config.MaxWaiting < 1 {
		return nil, messagestore.NewInvalidError("MaxWaiting", s.config.MaxWaiting, "must be at least 1")
	}
	if s.config.MaxBytes < 1024 {
		return nil, messagestore.NewInvalidError("MaxBytes", s.config.MaxBytes, "must be at least 1024")
	}
	s.metrics = newMetrics(s)
	return s, nil
}

// Drain has the server say that it does not serve any more, and ends calls that wait: a Receive
// without items, and others with the code unavailable. Calls that do not wait are answered as
// before.
func (s *Server) Drain() { s.drain.now() }

// Handler returns the services for your own [http.Server], which must speak HTTP/2 for gRPC.
// [Server.Run] has a server with bounds for strangers.
func (s *Server) Handler() http.Handler {
	plain := connect.WithCompression("gzip", nil, nil) // what is not decompressed cannot inflate, and the messages are small
	options := []connect.HandlerOption{
		connect.WithInterceptors(s.metrics), plain,
		connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	}
	calls := http.NewServeMux()
	calls.Handle(dibsv1connect.NewIntentServiceHandler(intents{s}, options...))
	calls.Handle(dibsv1connect.NewQueueServiceHandler(queues{s}, options...))
	calls.Handle(dibsv1connect.NewStoreServiceHandler(stores{s}, options...))
	calls.Handle(dibsv1connect.NewAdminServiceHandler(admin{s}, options...))
	mux := http.NewServeMux()
	mux.Handle("/", s.authenticated(calls))
	mux.Handle(grpchealth.NewHandler(health{s}, plain))
	if s.config.Reflection {
		names := grpcreflect.NewStaticReflector(dibsv1connect.IntentServiceName, dibsv1connect.QueueServiceName, dibsv1connect.StoreServiceName, dibsv1connect.AdminServiceName)
		mux.Handle(grpcreflect.NewHandlerV1(names, plain))
		mux.Handle(grpcreflect.NewHandlerV1Alpha(names, plain))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = newBoundedBody(r, s.config.MaxBytes)
		mux.ServeHTTP(w, r)
	})
}

type health struct{ s *Server }

// Check says that the server serves if its store answers within a second.
func (h health) Check(ctx context.Context, _ *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := h.s.store.Now(ctx); err != nil || h.s.drain.happened() {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// manager returns the intents of a category.
func (s *Server) manager(category messagestore.Category) (*intent.Manager, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.managers[category]; m != nil {
		return m, nil
	}
	if len(s.managers) == maxNames {
		return nil, exhausted("the server keeps too many categories of intents", time.Minute)
	}
	m, err := intent.New(s.store, category, &intent.Config{Logger: s.config.Logger})
	if err != nil {
		return nil, err
	}
	s.managers[category] = m
	return m, nil
}

// A queueName names a queue.
type queueName struct {
	name     string
	category messagestore.Category
}

// A servedQueue is a queue with the calls that wait for its items.
type servedQueue struct {
	*queue.Queue
	waiting atomic.Int32
}

func (s *Server) queue(n queueName) (*servedQueue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[n]; q != nil {
		return q, nil
	}
	if len(s.queues) == maxNames {
		return nil, exhausted("the server keeps too many queues", time.Minute)
	}
	q, err := queue.New(s.store, n.category, &queue.Config{Name: n.name, Stored: true, Logger: s.config.Logger})
	if err != nil {
		return nil, err
	}
	served := &servedQueue{Queue: q}
	s.queues[n] = served
	return served, nil
}

// maxWait is the longest time for which a call may wait.
const maxWait = 15 * time.Minute

// wait returns for how long a call may wait: as it wants, but in any case until a moment before its
// deadline, so that the answer arrives in time.
func wait(ctx context.Context, field string, want *durationpb.Duration) (time.Duration, error) {
	d := want.AsDuration()
	if d < 0 || d > maxWait || want.CheckValid() != nil && want != nil {
		return 0, invalid(field, want.AsDuration(), "must be between 0 and 15m")
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		d = max(min(d, left-min(left/10, 500*time.Millisecond)), 0)
	}
	return d, nil
}

// waits counts a call that waits, and returns a context that also ends when the server drains or
// the caller's key is revoked. Call done at the end.
func (s *Server) waits(ctx context.Context) (waiting context.Context, done func(), err error) {
	c := callerOf(ctx)
	if s.waiting.Add(1) > int64(s.config.MaxWaiting) || !c.wait() {
		s.waiting.Add(-1)
		return nil, nil, exhausted("too many calls wait", time.Second)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	undrain := s.drain.tell(func() { cancel(errDraining) })
	keep := c.revoked.tell(func() { cancel(errRevoked) })
	expire := func() bool { return true }
	if !c.key.Expires.IsZero() {
		expire = time.AfterFunc(time.Until(c.key.Expires), func() { cancel(errExpired) }).Stop
	}
	return waiting, func() {
		undrain()
		keep()
		expire()
		cancel(nil)
		c.waited()
		s.waiting.Add(-1)
	}, nil
}

// ended returns the error of a call whose waiting context has ended, or err.
func ended(waiting context.Context, err error) error {
	if cause, ok := errors.AsType[*connect.Error](context.Cause(waiting)); ok && !errors.Is(err, messagestore.ErrOutcomeUnknown) {
		return cause
	}
	return fail(err)
}
