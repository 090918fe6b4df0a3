package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// These errors say why the response of a call's handler was not stored.
var (
	errTimeout = errors.New("the handler's time is over")
	errNotKept = errors.New("the response is not kept")
	errNone    = errors.New("the transaction with the response was not committed")
	errLost    = errors.New("the lease of this request was lost")
	errAborted = errors.New("the handler aborted the response")
	errLeft    = errors.New("the request was answered before its handler was called")
)

// A call is a request with a key, while it is served. Two goroutines share it: the one of net/http,
// which serves it, and the goroutine of the intent's work, which calls the handler and may outlive
// the answer.
type call struct {
	// Set before serve, and never changed.
	m    *Middleware
	id   identity
	r    *http.Request
	body []byte
	same string // the fingerprint
	next http.Handler

	// For the serving goroutine: no other writes a response.
	w http.ResponseWriter

	// Set by the serving goroutine between two calls of Do, and read by the handler's goroutine,
	// which starts after it: this request's own lease is lost, and it may not be handled again.
	lost bool

	// Under mu. The handler's goroutine sets these, and the serving one reads them once Do has
	// returned. A handler that goes on after that may still set them, but nothing reads them then.
	mu       sync.Mutex
	lease    *intent.Lease   // since the handler was called; set once
	recorder *recorder       // since then, too
	own      json.RawMessage // its form, if it is kept
	large    bool            // it is too large to be sent
	prepared bool            // the handler has given a response to a transaction
	forget   bool

	// Under mu. The serving goroutine sets it: the request is answered, and a handler that was not
	// called yet must not be called any more.
	left bool
}

// content returns a fingerprint as the content of an intent, which is JSON: if the fingerprint is
// not valid text, it is encoded as bytes.
func content(fingerprint string) any {
	if utf8.ValidString(fingerprint) {
		return fingerprint
	}
	return map[string][]byte{"bytes": []byte(fingerprint)}
}

// serve gives the request to the handler, or answers it.
func (c *call) serve() {
	defer c.close()
	request := intent.Request{Scope: c.id.scope, Key: c.id.key, Content: content(c.same)}
	var patience time.Time
	for {
		answer, err := c.do(request)
		if c.began(err) && !c.lost {
			if !c.finish(answer.Intent, err) {
				return
			}
			c.lost = true // the later request gives the answer
			continue
		}
		switch {
		case errors.Is(err, errLost): // and it was free again
			c.inProgress(0)
		case err != nil:
			c.unavailable(err)
		case answer.Intent.Status == intent.Held && c.isPartOf(answer.Intent):
			c.pass()
		case answer.Outcome == intent.KeyReused:
			refuse(c.w, http.StatusUnprocessableEntity, problemKeyReused, "the key was first used with another method, path, query, content type, encoding, range or body")
		case answer.Outcome == intent.Done:
			c.send(answer.Intent, true)
		default:
			if patience.IsZero() {
				patience = time.Now().Add(c.m.config.Wait)
			}
			if c.wait(answer.Intent, patience) {
				continue
			}
		}
		return
	}
}

func (c *call) do(request intent.Request) (intent.Answer, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.r.Context()), c.m.config.Timeout, errTimeout)
	defer cancel()
	answer, err := c.m.intents.Do(ctx, request, c.abortable)
	if errors.Is(err, errAborted) {
		panic(http.ErrAbortHandler) // net/http recognises it, and does not log it
	}
	return answer, err
}

// abortable is handle, but if the handler panics to abort the response, it returns that as an
// error: this is not a fault, so it is not logged. Any other panic goes on, with its stack.
func (c *call) abortable(ctx context.Context, lease *intent.Lease) (form any, err error) {
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler:
			form, err = nil, errAborted
		default:
			panic(v)
		}
	}()
	return c.handle(ctx, lease)
}

// isPartOf reports whether an outer handler holds the intent: the request has already passed the
// middleware, or that handler sends this request with the key. A lease that is over holds nothing,
// even if its handler still works.
func (c *call) isPartOf(i intent.Intent) bool {
	for around := callOf(c.r.Context()); around != nil; around = callOf(around.r.Context()) {
		if l := around.lease; l.Stream() == i.Stream && l.Session() == i.Session && l.Token() == i.Token && l.Err() == nil {
			return true
		}
	}
	return false
}

// pass lets the handler handle the request under the outer lease, because its response is a part of
// the outer one.
func (c *call) pass() {
	r := withBody(c.r.Context(), c.r, c.body)
	defer removeFiles(r)
	c.next.ServeHTTP(c.w, r)
}

// close drops the response, even if its handler panics or goes on.
func (c *call) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recorder != nil {
		c.recorder.close()
	}
}

// began reports whether the handler was called. If an answer was given without it, it is never
// called.
func (c *call) began(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = errors.Is(err, intent.ErrGraceExceeded)
	return c.recorder != nil
}

// begin returns the handler's arguments, which share nothing with anything else.
func (c *call) begin(ctx context.Context, lease *intent.Lease) (*recorder, *http.Request, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.left:
		return nil, nil, errLeft
	case c.lost:
		return nil, nil, errLost
	}
	c.recorder, c.lease = newRecorder(c.w, c.m.config.MaxResponse), lease
	return c.recorder, withBody(calling.WithCaller(ctx, func(by *calling.Caller) { by.Request = c }), c.r, c.body), nil
}

// handle calls the handler under a lease, and returns the form of its response.
func (c *call) handle(ctx context.Context, lease *intent.Lease) (any, error) {
	recorder, r, err := c.begin(ctx, lease)
	if err != nil {
		return nil, err
	}
	defer removeFiles(r)
	c.next.ServeHTTP(recorder, r)
	wrote := recorder.began()
	response, err := recorder.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.large = errors.Is(err, ErrResponseTooLarge)
	// The intent knows whether the handler's COMMIT happened, even if the handler does not: a
	// Confirm or a Release finds the confirmation, or prevents it.
	inDoubt := func(err error) error {
		if c.prepared {
			return errors.Join(err, messagestore.ErrOutcomeUnknown)
		}
		return err
	}
	switch {
	case c.prepared && !wrote:
		return nil, inDoubt(errNone)
	case err != nil && !c.large:
		return nil, inDoubt(err)
	case !c.kept(response):
		return nil, inDoubt(errors.Join(err, fmt.Errorf("%w: status %d", errNotKept, response.Status)))
	}
	raw, ok := c.encode(response)
	if c.large = c.large || !ok; c.large { // the request is done: it is answered, now and each time, that its response is too large
		c.m.config.Logger.Warn().Str("stream", string(lease.Stream())).Int("status", response.Status).Int("limit", c.m.config.MaxResponse).
			Msg("response refused: it is too large to keep, and the request is done")
		raw, _ = exactjson.Marshal(c.m.forms.tooLarge(c.id, response.Status)) // of numbers and a sum
	}
	c.own = raw
	return raw, nil
}

// kept reports whether a response is stored. The caller holds the mutex.
func (c *call) kept(r Response) bool {
	switch {
	case c.forget, r.Status < 200: // 101 is for one connection
		return false
	case r.Status >= 400 && r.Header.Get(ProblemHeader) != "":
		return false // an answer that an inner middleware gave on its own
	}
	return c.m.config.Keep(r.Status)
}

// encode returns the stored form of a response, or false if it is too large.
func (c *call) encode(r Response) (json.RawMessage, bool) {
	size := len(r.Body)
	for name, values := range r.Header {
		for _, value := range values {
			if c.m.forms.kept[http.CanonicalHeaderKey(name)] {
				size += len(name) + len(value)
			}
		}
	}
	if size > c.m.config.MaxResponse {
		return nil, false
	}
	raw, err := exactjson.Marshal(c.m.forms.encode(c.id, r))
	return raw, err == nil && len(raw) <= maxStored
}

// finish answers a request that the handler has had. The intent and err come from Do. It reports
// whether the lease was lost, so that the later request has the answer.
func (c *call) finish(i intent.Intent, err error) (lost bool) {
	c.recorder.stop()
	c.mu.Lock()
	own, large := c.own, c.large
	c.mu.Unlock()
	// A response that is not stored may be sent if this request itself released the lease.
	mine := i.Token == c.lease.Token() && i.By == "" && !errors.Is(err, intent.ErrLeaseLost)
	sent := err == nil || errors.Is(err, intent.ErrReleased) || errors.Is(err, errNotKept) && mine
	switch {
	case errors.Is(err, intent.ErrGraceExceeded):
		c.warn(err, "the handler did not stop")
		refuseFor(c.w, http.StatusServiceUnavailable, problemUnavailable, "the request did not end in time", i.Left)
	case err == nil && i.Status == intent.Done && (large || !exactjson.Equal(i.Result, own)):
		c.send(i, false)
	case sent && large:
		c.warn(ErrResponseTooLarge, "no whole response")
		refuse(c.w, http.StatusInternalServerError, problemHandler, fmt.Sprintf("the response had more than %d bytes", c.m.config.MaxResponse))
	case sent:
		clear(c.w.Header()) // the recorder began with a copy of it
		c.recorder.send(c.w)
	case !mine:
		return true
	case errors.Is(err, errLength):
		c.warn(err, "no whole response")
		refuse(c.w, http.StatusInternalServerError, problemHandler, errLength.Error())
	default:
		c.warn(err, "no response stored")
		refuseFor(c.w, http.StatusServiceUnavailable, problemUnavailable, "the outcome of the request is not stored", i.Left)
	}
	return false
}

// wait waits for the end of another request's lease on the key, until patience is over. It reports
// whether the lease has ended; otherwise the request is answered, or its client is gone.
func (c *call) wait(held intent.Intent, patience time.Time) bool {
	if c.m.config.Wait < 0 || !time.Now().Before(patience) {
		c.inProgress(held.Left)
		return false
	}
	select {
	case c.m.waiting <- struct{}{}:
		defer func() { <-c.m.waiting }()
	default:
		c.inProgress(held.Left)
		return false
	}
	ctx, cancel := context.WithDeadline(c.r.Context(), patience)
	defer cancel()
	_, err := c.m.intents.Await(ctx, c.id.scope, c.id.key)
	switch {
	case err == nil, errors.Is(err, messagestore.ErrNotFound):
		return true
	case ctx.Err() != nil: // or the request's, which may end though the client still listens
		c.inProgress(held.Left)
	default:
		c.unavailable(err)
	}
	return false
}

func (c *call) inProgress(left time.Duration) {
	refuseFor(c.w, http.StatusConflict, problemInProgress, "another request with this key is at work; send it again later", left)
}

// send answers with the stored response. If it belongs to another request, it is marked as
// replayed.
func (c *call) send(i intent.Intent, replayed bool) {
	if i.NotKept != "" {
		refuse(c.w, http.StatusConflict, problemNotKept, "the request is done, and its response was not kept")
		return
	}
	if i.Forgotten {
		refuse(c.w, http.StatusConflict, problemNotKept, "the request is done, and its response was removed")
		return
	}
	response, ok, err := c.m.forms.decode(c.id, i.Result)
	switch {
	case err != nil:
		c.m.config.Logger.Error().Str("error", text.Log(err)).Str("stream", string(i.Stream)).Msg("stored response")
		refuse(c.w, http.StatusInternalServerError, problemCorrupt, "")
	case !ok:
		refuse(c.w, http.StatusConflict, problemNotKept, "the request is done; its response was too large to keep")
	default:
		if replayed {
			c.w.Header().Set(Replayed, "true")
		}
		for name := range response.Header { // an outer middleware knows the origin of this very request
			if _, has := c.w.Header()[name]; has && strings.HasPrefix(name, "Access-Control-") {
				delete(response.Header, name)
			}
		}
		response.send(c.w)
	}
}

// unavailable answers a request that the handler has not had, because of an error.
func (c *call) unavailable(err error) {
	c.warn(err, "no lease")
	invalid, isInvalid := errors.AsType[*messagestore.InvalidError](err)
	switch {
	case isInvalid && invalid.Field == "scope":
		refuse(c.w, http.StatusUnauthorized, problemScope, "")
	case isInvalid && !errors.Is(err, intent.ErrInvalidConfig), errors.Is(err, intent.ErrCorrupt):
		refuse(c.w, http.StatusInternalServerError, problemCorrupt, "")
	default:
		refuseFor(c.w, http.StatusServiceUnavailable, problemUnavailable, "the store does not answer; the request was not handled", time.Second)
	}
}

func (c *call) warn(err error, what string) {
	event := c.m.config.Logger.Warn().Str("error", text.Log(err)).Str("category", string(c.m.intents.Category()))
	if c.lease != nil {
		event = event.Str("stream", string(c.lease.Stream()))
	}
	event.Msg(what)
}

// Write returns the writes that store r as the response to the request of ctx, for the handler to
// append in the transaction of its effect: see [messagestore.TxStore.Transact]. Effect and response
// happen together or not at all. The middleware then sends r, with the headers that are stored,
// instead of anything that the handler writes; if the transaction was not committed, it sends the
// handler's response.
//
// The error matches [messagestore.ErrInvalid] outside a handler of a [Middleware], if the status is
// not stored, and if the response is too large.
func (r Response) Write(ctx context.Context) ([]messagestore.StreamWrite, error) {
	c := callOf(ctx)
	if c == nil {
		return nil, messagestore.NewInvalidError("context", nil, "must be the context of a request with an idempotence key")
	}
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Status < 200 || r.Status > 999 || !c.m.config.Keep(r.Status) {
		return nil, messagestore.NewInvalidError("status", r.Status, "must be a status whose responses are stored")
	}
	if !hasBody(r.Status) && len(r.Body) > 0 {
		return nil, messagestore.NewInvalidError("body", r.Body, "must be empty with this status")
	}
	r.Header = typed(r.Header, r.Body)
	raw, ok := c.encode(r)
	if !ok {
		return nil, messagestore.NewInvalidError("body", r.Body, "must be smaller: the response is too large to be stored")
	}
	c.prepared = true
	return c.lease.Confirmation(raw), nil
}
