// Package client calls a server of package serve. It sends a call again if its answer is lost, which
// is harmless: the caller has made the ids.
//
//	c, err := client.New("https://dibs.example.com", &client.Config{Key: os.Getenv("DIBS_KEY")})
//	...
//	intents, err := c.IntentManager("payment:intent", nil)
//	...
//	receipt, answer, err := intent.Do(ctx, intents, intent.Request{Key: "order 1", Content: order}, pay)
//
// The calls themselves are there too:
//
//	answer, err := c.Intents.Reserve(ctx, &dibsv1.ReserveRequest{...})
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/gen/dibs/v1/dibsv1connect"
)

// A Config configures a [Client]. nil means the defaults.
type Config struct {
	// Key is the text of the client's key.
	//
	// Defaults to none, as a server without keys expects.
	Key string

	// TLS is for servers that are called by https, for example with a certificate of the client's.
	//
	// Defaults to the authorities of the system.
	TLS *tls.Config

	// Patience is how long a call is sent again while no answer comes and its context lives. It
	// begins with the first failure, and again when a call has waited at a server since.
	//
	// Defaults to 30 seconds. If it is negative, nothing is sent again.
	Patience time.Duration

	// MaxBytes is how large a request may be: as large as the server lets it be. A larger one is a
	// [*messagestore.InvalidError], which names its largest field, and is not sent.
	//
	// Defaults to 4 MiB.
	MaxBytes int
}

// A Client calls a server. It is safe for concurrent use. The services send each call again, with a
// growing pause, as long as the error is one after which that may help: the server cannot be
// reached, is busy, or has lost the store's answer.
//
// Their errors match those of the library, such as [messagestore.ErrNotFound], and unwrap to a
// [*connect.Error]. If a write has failed and may have happened, the error matches
// [messagestore.ErrOutcomeUnknown].
type Client struct {
	Intents dibsv1connect.IntentServiceClient
	Queues  dibsv1connect.QueueServiceClient
	Store   dibsv1connect.StoreServiceClient
	Admin   dibsv1connect.AdminServiceClient

	once       dibsv1connect.QueueServiceClient // sends nothing again
	transport  *http.Transport
	extensions *extensions // of leases
}

// New returns a client of the server at a URL, by gRPC. It makes no call.
func New(address string, config *Config) (*Client, error) {
	if config == nil {
		config = &Config{}
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, messagestore.NewInvalidError("address", address, "must be a URL of http or https")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, messagestore.NewInvalidError("address", u.Redacted(), "must not have a user, a query or a fragment")
	}
	if i := strings.IndexFunc(config.Key, func(c rune) bool { return c <= ' ' || c > '~' }); i >= 0 {
		return nil, messagestore.NewInvalidError("Key", nil, fmt.Sprintf("must be visible ASCII, and is not at byte %d: a newline of a file, perhaps", i))
	}
	if config.Key != "" && u.Scheme == "http" && !isLocal(u.Hostname()) {
		return nil, messagestore.NewInvalidError("address", address, "must be a URL of https, because a key is sent")
	}
	c := &Client{transport: &http.Transport{
		Protocols: &http.Protocols{}, TLSClientConfig: config.TLS, TLSHandshakeTimeout: dialTimeout, Proxy: http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		HTTP2:       &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}}
	c.transport.Protocols.SetHTTP2(u.Scheme == "https")
	c.transport.Protocols.SetUnencryptedHTTP2(u.Scheme == "http")
	patience := config.Patience
	if patience == 0 {
		patience = 30 * time.Second
	}
	most := cmp.Or(config.MaxBytes, 4<<20)
	if most < 1024 {
		return nil, messagestore.NewInvalidError("MaxBytes", most, "must be at least 1024")
	}
	options := []connect.ClientOption{connect.WithGRPC(), connect.WithInterceptors(&repeats{key: config.Key, patience: patience, most: most})}
	web := &http.Client{Transport: c.transport}
	c.Intents = dibsv1connect.NewIntentServiceClient(web, address, options...)
	c.extensions = &extensions{service: c.Intents, most: most}
	c.Queues = dibsv1connect.NewQueueServiceClient(web, address, options...)
	once := connect.WithInterceptors(&repeats{key: config.Key, patience: -1, most: most})
	c.once = dibsv1connect.NewQueueServiceClient(web, address, connect.WithGRPC(), once)
	c.Store = dibsv1connect.NewStoreServiceClient(web, address, options...)
	c.Admin = dibsv1connect.NewAdminServiceClient(web, address, options...)
	return c, nil
}

// Close ends the connections that no call uses.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

func isLocal(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

const (
	dialTimeout = 10 * time.Second
	// A connection that has gone silent must be found before the leases end that need it.
	pingAfter   = 2 * time.Second // of silence
	pingTimeout = 2 * time.Second

	// deadAfter is after which time an attempt has failed if the server was never there.
	deadAfter = dialTimeout + pingAfter + pingTimeout

	minPause = 10 * time.Millisecond
	maxPause = 2 * time.Second
)

// repeats sends calls again.
type repeats struct {
	key      string
	patience time.Duration
	most     int // bytes of a request
}

// WrapUnary sends a call again while that may help.
func (r *repeats) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		r.sign(request.Header())
		return r.call(ctx, request, request.Spec().IdempotencyLevel != connect.IdempotencyNoSideEffects, next)
	}
}

// call makes a call, which may write.
func (r *repeats) call(ctx context.Context, request connect.AnyRequest, write bool, next connect.UnaryFunc) (connect.AnyResponse, error) {
	if ctx == nil {
		return nil, fmt.Errorf("call a server: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	}
	if err := ctx.Err(); err != nil { // nothing is sent
		code := connect.CodeCanceled
		if errors.Is(err, context.DeadlineExceeded) {
			code = connect.CodeDeadlineExceeded
		}
		return nil, connect.NewError(code, err)
	}
	if m, is := request.Any().(proto.Message); is && proto.Size(m) > r.most {
		refused := messagestore.NewInvalidError(largest(m), proto.Size(m), fmt.Sprintf("must be smaller, because the request has that many bytes and may have %d", r.most))
		return nil, connect.NewError(connect.CodeInvalidArgument, refused)
	}
	w := waitOf(request.Any())
	defer w.restore()
	var outcome waiting.Outcome // an earlier attempt may have written
	var deadline time.Time
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		response, err := next(ctx, request)
		wait, again := mayHelp(ctx, err, pause)
		if err = outcome.Of(libraryError(err, write)); !again {
			return response, err
		}
		if deadline.IsZero() || time.Since(began) > deadAfter { // the server was there until then
			deadline, pause = time.Now().Add(r.patience), minPause
		}
		if time.Now().Add(wait).After(deadline) {
			return response, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return response, err
		}
		if !numbered(request.Any()) {
			return response, err
		}
		w.shorten(time.Since(began))
	}
}

// A maxWait is the max_wait of a request, which is shorter for each attempt after the first. It is
// nil for a request that does not wait.
type maxWait struct {
	field **durationpb.Duration // of the request
	whole *durationpb.Duration
}

func waitOf(request any) *maxWait {
	var w maxWait
	switch r := request.(type) {
	case *v1.ReserveRequest:
		w.field = &r.MaxWait
	case *v1.GetIntentRequest:
		w.field = &r.MaxWait
	case *v1.ReceiveRequest:
		w.field = &r.MaxWait
	case *v1.GetItemRequest:
		w.field = &r.MaxWait
	default:
		return nil
	}
	w.whole = *w.field
	return &w
}

// shorten takes the time of an attempt off.
func (w *maxWait) shorten(by time.Duration) {
	if w != nil && *w.field != nil {
		*w.field = durationpb.New(max((*w.field).AsDuration()-by, 0))
	}
}

// restore gives the caller the request back as it was.
func (w *maxWait) restore() {
	if w != nil {
		*w.field = w.whole
	}
}

// WrapStreamingClient signs streams. They are not repeated: their reader knows where to go on.
func (r *repeats) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		r.sign(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler returns next.
func (*repeats) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (r *repeats) sign(h http.Header) {
	if r.key != "" {
		h.Set("Authorization", "Bearer "+r.key)
	}
}

// mayHelp reports whether a call may be answered if it is sent again, and after which time. A
// connection that was reset looks as if the call had been cancelled, so that counts as long as its
// own context lives.
func mayHelp(ctx context.Context, err error, pause time.Duration) (time.Duration, bool) {
	coded, ok := errors.AsType[*connect.Error](err)
	if !ok || ctx.Err() != nil {
		return 0, false
	}
	pause -= rand.N(pause/2 + 1)
	switch coded.Code() {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeInternal, connect.CodeUnknown, connect.CodeUnimplemented:
		return pause, !connect.IsWireError(err) || coded.Code() == connect.CodeUnavailable
	case connect.CodeResourceExhausted:
		if info, ok := detail[*errdetails.RetryInfo](coded); ok {
			return max(pause, info.GetRetryDelay().AsDuration()), true
		}
	}
	return 0, false
}

// numbered numbers the next attempt at a call, so that what an earlier one reserved becomes its. It
// reports false if there can be no more attempts.
func numbered(request any) bool {
	if r, ok := request.(*v1.ReceiveRequest); ok {
		r.Attempt++
		return r.GetAttempt() <= maxAttempt
	}
	return true
}

const maxAttempt = 100 // of a Receive
