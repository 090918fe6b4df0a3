package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The errors that a handler's writes return.
var (
	// errEnded is returned by a write after the handler has returned.
	errEnded  = errors.New("the handler has returned")
	errLength = errors.New("the handler wrote another length than it had declared")
)

// A recorder is the [http.ResponseWriter] that a handler gets. It holds the response back until its
// outcome is stored, and treats it as net/http would have done. It has no Flush and no Hijack, so
// that [http.ResponseController] returns [http.ErrNotSupported].
//
// A body that grows beyond the limit is dropped, and its writes fail. The methods for the handler
// may be called concurrently with stop, send and close, and have no effect after them: a handler
// that does not stop owns its header, and nothing else reads that.
type recorder struct {
	limit int

	header http.Header // the handler's alone

	mu       sync.Mutex
	behind   *http.ResponseController // controls the connection
	declared int64                    // the Content-Length that the handler has set, or -1
	length   int64                    // of the body so far
	beyond   bool                     // the handler tried to write more than it had declared
	response Response
	wrote    bool // the status is fixed
	ended    bool
	failed   error // the response is not complete
}

func newRecorder(w http.ResponseWriter, limit int) *recorder {
	return &recorder{limit: limit, header: w.Header().Clone(), behind: http.NewResponseController(w), declared: -1}
}

// Header returns the header that WriteHeader copies. As with net/http it may not be used after the
// handler has returned.
func (r *recorder) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

// WriteHeader fixes status and header. Informational statuses are dropped: nothing is sent
// before the outcome is stored.
func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(status)
}

func (r *recorder) writeHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	if r.wrote || r.ended || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	r.wrote = true
	r.response.Status, r.response.Header = status, r.Header().Clone()
	if r.response.Header == nil {
		r.response.Header = http.Header{}
	}
	for name := range r.response.Header {
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) { // sent after a body that is not held back
			delete(r.response.Header, name)
		}
	}
	if text := r.response.Header.Get("Content-Length"); text != "" {
		length, err := strconv.ParseInt(text, 10, 64)
		if err != nil || length < 0 {
			r.response.Header.Del("Content-Length") // as net/http does
			return
		}
		r.declared = length
	}
}

// SetReadDeadline sets the connection's read deadline, for [http.ResponseController].
func (r *recorder) SetReadDeadline(t time.Time) error {
	return r.reach(func() error { return r.behind.SetReadDeadline(t) })
}

// SetWriteDeadline sets the connection's write deadline, for [http.ResponseController]. It applies
// when the response is sent.
func (r *recorder) SetWriteDeadline(t time.Time) error {
	return r.reach(func() error { return r.behind.SetWriteDeadline(t) })
}

// EnableFullDuplex does nothing, because the whole body is read before the handler is called.
func (r *recorder) EnableFullDuplex() error { return r.reach(func() error { return nil }) }

// reach lets the handler use the connection, which serves other requests once the response has
// ended.
func (r *recorder) reach(f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errEnded
	}
	return f()
}

// Write adds to the body.
func (r *recorder) Write(p []byte) (int, error) { return write(r, p) }

// WriteString adds to the body.
func (r *recorder) WriteString(s string) (int, error) { return write(r, s) }

func write[T []byte | string](r *recorder, p T) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return 0, errEnded
	}
	if !r.wrote {
		r.writeHeader(http.StatusOK)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if !hasBody(r.response.Status) {
		return 0, http.ErrBodyNotAllowed
	}
	if r.declared >= 0 && r.length+int64(len(p)) > r.declared {
		r.beyond = true
		return 0, http.ErrContentLength
	}
	if r.failed != nil {
		return 0, r.failed
	}
	if r.size()+len(p) > r.limit {
		return 0, r.fail(fmt.Errorf("%w: it has more than %d bytes, header and body", ErrResponseTooLarge, r.limit))
	}
	r.response.Body = append(r.response.Body, p...)
	r.length += int64(len(p))
	return len(p), nil
}

// fail gives up the body: this and all later writes fail.
func (r *recorder) fail(err error) error {
	r.failed, r.response.Body = err, nil
	return err
}

// size returns the approximate size of the stored response.
func (r *recorder) size() int {
	n := len(r.response.Body)
	for name, values := range r.response.Header {
		for _, value := range values {
			n += len(name) + len(value)
		}
	}
	return n
}

// began reports whether the handler has begun a response.
func (r *recorder) began() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wrote
}

// end makes every later write fail, and returns the response. The error says that a handler wrote
// less than it declared, or that a response is too large; the status is returned in both cases. It
// reads the header, so call it only after the handler has returned.
func (r *recorder) end() (Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.finish()
	}
	return r.response, r.failed
}

func (r *recorder) finish() {
	if !r.wrote {
		r.writeHeader(http.StatusOK)
	}
	r.ended = true
	switch {
	case r.failed != nil:
	case r.declared > r.length && hasBody(r.response.Status):
		if r.beyond {
			_ = r.fail(fmt.Errorf("%w: more than %d bytes", errLength, r.declared))
			return
		}
		_ = r.fail(fmt.Errorf("%w: %d of %d bytes", errLength, r.length, r.declared))
	default:
		r.response.Header = typed(r.response.Header, r.response.Body)
	}
}

// stop makes every later write fail, for a handler that may still be at work.
func (r *recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

// send sends the response, which has ended without an error.
func (r *recorder) send(w http.ResponseWriter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.response.send(w)
}

// close makes every later write fail, and drops the body.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.response.Body = true, nil
}

// typed adds the content type that net/http would derive from the body.
func typed(header http.Header, body []byte) http.Header {
	if _, has := header["Content-Type"]; has || len(body) == 0 || header.Get("Content-Encoding") != "" {
		return header
	}
	if header = maps.Clone(header); header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", http.DetectContentType(body))
	return header
}

// hasBody reports whether a response of the status may have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
