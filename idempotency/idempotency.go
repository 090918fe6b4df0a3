package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Replayed is the name of the response header that is "true" for a stored response.
const Replayed = "Idempotent-Replayed"

// ErrResponseTooLarge is returned by the handler's write that makes the response exceed
// [Config.MaxResponse] bytes, and by each write after it: nothing of that response is sent.
var ErrResponseTooLarge = errors.New("the response is too large")

// Bounds and defaults of [Config].
const (
	defaultWait = 5 * time.Second
	maxWait     = 10 * time.Minute

	defaultTimeout = time.Minute
	minTimeout     = 10 * time.Millisecond
	maxTimeout     = time.Hour

	defaultMaxBody = 1 << 20
	maxMaxBody     = 64 << 20

	defaultMaxResponse = 256 << 10
	minMaxResponse     = 1 << 10
	maxMaxResponse     = 380 << 10 // in Base64 it fits into a result

	// maxStored is the greatest size of an intent's result.
	maxStored = 512 << 10

	minSecret = 16

	// waiting is how many requests may wait at once for the response of another.
	waiting = 256
)

// Config changes how a [Middleware] works. Scope is required.
type Config struct {
	// Scope returns the client that sent a request: an account, a tenant, the owner of a
	// credential. Two clients never share a key or a response. Without a client, or with an error,
	// the answer is 401. For an API without clients use [Public]. Scope may read the body, for
	// example by FormValue: the handler still gets all of it.
	Scope func(*http.Request) (string, error)

	// Wait is how long a request waits for the response of another with its key, before it is
	// answered with 409: at most 10 minutes. At most 256 requests wait at once; further ones are
	// answered at once. A negative value answers all at once.
	//
	// Defaults to 5 seconds.
	Wait time.Duration

	// Timeout is how long the handler has before its context ends: between 10 ms and 1 hour. The
	// context does not end when the client hangs up.
	//
	// Defaults to 1 minute.
	Timeout time.Duration

	// MaxBody is the greatest size of a request's body, which is read whole: between 1 byte and
	// 64 MiB.
	//
	// Defaults to 1 MiB.
	MaxBody int64

	// MaxResponse is the greatest size of a response, with its header: between 1 KiB and 380 KiB. A
	// larger response is refused: it is neither stored nor sent, and that is logged; see
	// [Middleware.Handler]. If a handler has more to return, it can store it elsewhere and respond
	// with a link.
	//
	// Defaults to 256 KiB.
	MaxResponse int

	// Headers are the names of further response header fields to store, in addition to
	// [KeptHeaders]. Set-Cookie, WWW-Authenticate, Date and headers of the connection are never
	// stored.
	//
	// Defaults to none.
	Headers []string

	// Secret signs each stored response, with HMAC-SHA256: at least 16 bytes, the same in all
	// processes. Without it, a program that may write to the store can replace a response by
	// another, with the headers that are stored, because the checksum is not secret. With it, such
	// a response is answered with 500, response-corrupt. The same happens to a response that was
	// stored without the secret or with another: see OldSecrets.
	//
	// Defaults to none.
	Secret []byte

	// OldSecrets may have signed responses that are still replayed. An empty one stands for
	// responses without a signature. To change the secret of a running service, first add the new
	// one here in every process. Then swap it with Secret in every process. Remove the old one when
	// no key from its time comes any more.
	//
	// Defaults to none.
	OldSecrets [][]byte

	// Keep reports whether a response with a status is stored.
	//
	// Defaults to 2xx, 3xx, and 4xx except 401, 403, 407, 408, 425 and 429.
	Keep func(status int) bool

	// Fingerprint returns the part of a request that is the same in all requests with one key: any
	// bytes, such as a checksum. With an error, or without a byte, the answer is 400,
	// fingerprint-missing: see [Problem].
	//
	// Defaults to the method, the path and the query, both as the client sent them and as the
	// handler gets them, content type and encoding, range, and the body. In a JSON body, white
	// space, the order of keys and escapes do not count.
	Fingerprint func(r *http.Request, body []byte) (string, error)

	// Host says that requests to two hosts are never copies of one request. Set it for a service
	// that has another endpoint, or other clients, at another host. It is always so if the pattern
	// of an [http.ServeMux] in front of the middleware names a host. If Fingerprint is set, it
	// alone decides.
	//
	// Defaults to false: a client may try another host of a service with its key.
	Host bool

	// Methods are the methods that need a key, in upper case, as in requests. Requests with other
	// methods pass.
	//
	// Defaults to POST and PATCH.
	Methods []string

	// Optional lets requests without the header pass, unprotected.
	//
	// Defaults to false: they are answered with 400.
	Optional bool

	// Logger receives a warning for each request that was not answered because of the store or a
	// stored response, and for each response that is refused for its size. Its entries have names
	// and numbers.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// Public is a [Config.Scope] for an API with clients that share their keys and see each other's
// responses.
func Public(*http.Request) (string, error) { return "public", nil }

// A Middleware makes its handlers handle each request once. It is safe for concurrent use. There is
// nothing to close.
type Middleware struct {
	intents *intent.Manager
	config  Config
	forms   forms
	methods map[string]bool
	waiting chan struct{}
}

// New returns middleware that stores responses as the results of intents. No other program may
// confirm these intents. The error names all mistakes in the configuration, and matches
// [messagestore.ErrInvalid].
func New(intents *intent.Manager, config *Config) (*Middleware, error) {
	m := &Middleware{intents: intents, forms: forms{kept: map[string]bool{}}, methods: map[string]bool{}, waiting: make(chan struct{}, waiting)}
	if config != nil {
		m.config = *config
	}
	c := &m.config
	setDefault(&c.Wait, defaultWait)
	setDefault(&c.Timeout, defaultTimeout)
	setDefault(&c.MaxBody, defaultMaxBody)
	setDefault(&c.MaxResponse, defaultMaxResponse)
	if c.Keep == nil {
		c.Keep = keep
	}
	if c.Fingerprint == nil {
		host := c.Host
		c.Fingerprint = func(r *http.Request, body []byte) (string, error) { return fingerprint(r, body, host) }
	} else {
		c.Fingerprint = reading(c.Fingerprint)
	}
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return m, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// keep reports whether the next request would have the same response. It would not after a failure,
// or if a credential, time or patience was missing.
func keep(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 200 && status < 500
}

func (m *Middleware) validate() error {
	var wrong []error
	mistake := func(field string, value any, rule string) {
		wrong = append(wrong, messagestore.NewInvalidError(field, value, rule))
	}
	c := m.config
	if m.intents == nil {
		mistake("intents", nil, "must not be nil")
	}
	if c.Scope == nil {
		mistake("Scope", nil, "must not be nil; for an API without clients, use Public")
	}
	if c.Wait > maxWait {
		mistake("Wait", c.Wait, fmt.Sprintf("must be at most %v", maxWait))
	}
	if c.Timeout < minTimeout || c.Timeout > maxTimeout {
		mistake("Timeout", c.Timeout, fmt.Sprintf("must be between %v and %v", minTimeout, maxTimeout))
	}
	if c.MaxBody < 1 || c.MaxBody > maxMaxBody {
		mistake("MaxBody", c.MaxBody, fmt.Sprintf("must be between 1 and %d bytes", maxMaxBody))
	}
	if c.MaxResponse < minMaxResponse || c.MaxResponse > maxMaxResponse {
		mistake("MaxResponse", c.MaxResponse, fmt.Sprintf("must be between %d and %d bytes", minMaxResponse, maxMaxResponse))
	}
	for _, name := range append(KeptHeaders(), c.Headers...) {
		m.forms.kept[http.CanonicalHeaderKey(name)] = true
	}
	for _, name := range c.Headers {
		if !isToken(name) {
			mistake("Headers", name, "must be the name of a header field")
		}
	}
	for _, name := range neverKept {
		if m.forms.kept[http.CanonicalHeaderKey(name)] {
			mistake("Headers", name, "must not be a header of one client or one connection")
		}
	}
	m.forms.secrets = [][]byte{slices.Clone(c.Secret)}
	for i, secret := range append([][]byte{c.Secret}, c.OldSecrets...) {
		field := "Secret"
		if i > 0 {
			field = "OldSecrets"
			m.forms.secrets = append(m.forms.secrets, slices.Clone(secret))
		}
		if len(secret) > 0 && len(secret) < minSecret || i == 0 && c.Secret != nil && len(secret) == 0 {
			mistake(field, nil, fmt.Sprintf("must be at least %d bytes", minSecret)) // which are in no log
		}
	}
	if len(c.Methods) == 0 {
		mistake("Methods", nil, "must not be empty")
	}
	for _, method := range c.Methods {
		switch {
		case !isToken(method):
			mistake("Methods", method, "must be the name of a method")
		case method != strings.ToUpper(method):
			mistake("Methods", method, "must be in upper case, or requests of "+strings.ToUpper(method)+" would pass without a key")
		case method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodTrace || method == http.MethodConnect:
			mistake("Methods", method, "must be a method whose requests have an effect that a key keeps from happening twice")
		}
		m.methods[method] = true
	}
	return errors.Join(wrong...)
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	}) < 0
}

// Handler returns a handler that lets next handle each request once.
//
// Next gets the request with its complete body, and a context that does not end when the client
// hangs up: it ends after [Config.Timeout], or if the lease is lost, with a cause ([context.Cause])
// that matches [intent.ErrLeaseLost]. Its response is held back until it is stored. The
// [http.ResponseWriter] neither flushes nor hijacks: these return [http.ErrNotSupported].
// Informational statuses and trailers are dropped.
//
// A response above [Config.MaxResponse] is refused: next's writes fail with an error that matches
// [ErrResponseTooLarge]. Once next has returned, the intent is confirmed as done, and this request
// and each later one with the key is answered with 409, response-not-kept: next is not called
// again. If [Config.Keep] does not keep the status, the intent is released, and the answer is 500,
// handler-failed: see [Problem].
//
// If the lease is lost, the response is not sent: the client gets the answer to the later request.
// A panic goes on, after the intent is released.
//
// If next itself sends a request with its own context and its own key to a handler with this
// middleware, that request passes, because it is a part of the request that holds the lease. So
// does a request that reaches a middleware twice. An answer that an inner middleware gives on its
// own is sent, and never stored.
//
// If next is nil, or comes from [http.TimeoutHandler], Handler panics: the time-out would answer
// while the work goes on without a lease. Use [Config.Timeout] instead.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("idempotency: nil handler") // as net/http does
	}
	if fmt.Sprintf("%T", next) == "*http.timeoutHandler" {
		panic("idempotency: http.TimeoutHandler answers while its handler goes on, without a lease: use Config.Timeout")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.methods[r.Method] || m.config.Optional && r.Header.Values(Header) == nil {
			next.ServeHTTP(w, r)
			return
		}
		if c := m.call(w, r); c != nil {
			c.next = next
			c.serve()
		}
	})
}

// HandlerFunc is [Middleware.Handler] for a function.
func (m *Middleware) HandlerFunc(next func(http.ResponseWriter, *http.Request)) http.Handler {
	if next == nil {
		return m.Handler(nil)
	}
	return m.Handler(http.HandlerFunc(next))
}

// call reads a request, and answers it if it is refused.
func (m *Middleware) call(w http.ResponseWriter, r *http.Request) *call {
	key, err := keyOf(r.Header)
	switch {
	case errors.Is(err, errNoKey):
		refuse(w, http.StatusBadRequest, problemKeyMissing, "the header Idempotency-Key is required")
		return nil
	case err != nil:
		refuse(w, http.StatusBadRequest, problemKeyInvalid, err.Error())
		return nil
	}
	b := newBody(w, r, m.config.MaxBody)
	scope, err := m.scope(b)
	if err != nil || scope == "" {
		refuse(w, http.StatusUnauthorized, problemScope, "") // the client may not see the error
		return nil
	}
	body, err := b.whole()
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isTooLarge:
		refuse(w, http.StatusRequestEntityTooLarge, problemBodyTooLarge, fmt.Sprintf("the body must be at most %d bytes", tooLarge.Limit))
		return nil
	case errors.Is(err, errReadBefore):
		m.config.Logger.Error().Str("error", text.Log(err)).Str("path", r.URL.Path).Msg("no body to compare")
		refuse(w, http.StatusInternalServerError, problemBodyRead, "")
		return nil
	case errors.Is(err, errNoLength):
		m.config.Logger.Warn().Str("error", text.Log(err)).Str("path", r.URL.Path).Msg("no body to compare")
		refuse(w, http.StatusLengthRequired, problemLengthRequired, "send Content-Length: 0")
		return nil
	case err != nil:
		refuse(w, http.StatusBadRequest, problemBody, "the body ended before its length")
		return nil
	}
	same, err := m.config.Fingerprint(r, body)
	if err == nil && same == "" {
		err = errors.New("the fingerprint is empty")
	}
	if err != nil {
		m.config.Logger.Warn().Str("error", text.Log(err)).Str("path", r.URL.Path).Msg("no fingerprint")
		refuse(w, http.StatusBadRequest, problemFingerprint, "") // the client may not see the error
		return nil
	}
	return &call{m: m, id: identity{scope, key}, w: w, r: r, body: body, same: same}
}

// scope returns the client of a request. It may read the body.
func (m *Middleware) scope(b *body) (string, error) {
	r := b.request()
	defer removeFiles(r)
	return m.config.Scope(r)
}

// reading returns a fingerprint function that may also read the body of its request.
func reading(f func(*http.Request, []byte) (string, error)) func(*http.Request, []byte) (string, error) {
	return func(r *http.Request, body []byte) (string, error) {
		r = withBody(r.Context(), r, body)
		defer removeFiles(r)
		return f(r, body)
	}
}

// callOf returns the request that a handler works on, or nil.
func callOf(ctx context.Context) *call {
	c, _ := calling.CallerOf(ctx).Request.(*call)
	return c
}

// Lease returns the lease under which the request of ctx is handled. It returns nil outside a
// handler of a [Middleware], and for a request without a key.
func Lease(ctx context.Context) *intent.Lease {
	if c := callOf(ctx); c != nil {
		return c.lease
	}
	return nil
}

// Forget keeps the response to the request of ctx from being stored, with any status: it is sent,
// and the next request with the key is handled again. A response that a transaction of the handler
// has committed ([Response.Write]) is still stored, and is sent. Outside a handler of a
// [Middleware] Forget does nothing.
func Forget(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.forget = true
	}
}
