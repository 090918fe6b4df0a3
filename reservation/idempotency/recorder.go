package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

var (
	// errEnded is returned by a write after the handler has returned.
	errEnded = errors.New("the handler has returned")
	errShort = errors.New("the handler wrote less than it had declared")
)

// A recorder is the [http.ResponseWriter] that a handler gets. It holds the response back until
// its outcome is stored, and treats it as net/http would have done. It has no Flush and no
// Hijack, so that [http.ResponseController] answers [http.ErrNotSupported].
//
// A response that grows beyond its limit is not held back any longer: see overflow. Its methods
// may be called from another goroutine than end.
type recorder struct {
	limit int
	// overflow is called once, with the response so far, when it outgrows the limit. It returns
	// the writer that takes it from there; with an error the handler's writes fail.
	overflow func(Response) (http.ResponseWriter, error)

	mu       sync.Mutex
	header   http.Header
	declared int64 // the Content-Length that the handler has set, or -1
	length   int64 // of the body so far
	response Response
	wrote    bool // the status stands
	ended    bool
	to       http.ResponseWriter // since the overflow
	failed   error               // of the overflow
}

func newRecorder(header http.Header, limit int, overflow func(Response) (http.ResponseWriter, error)) *recorder {
	return &recorder{limit: limit, overflow: overflow, header: header.Clone(), declared: -1}
}

// Header returns the header that WriteHeader takes its copy of. As with net/http it may not be
// used once the handler has returned.
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
		return 0, http.ErrContentLength
	}
	if r.to == nil && r.failed == nil && r.size()+len(p) > r.limit {
		r.spill([]byte(p[:min(len(p), sniffed)]))
	}
	switch {
	case r.failed != nil:
		return 0, r.failed
	case r.to != nil:
		n, err := r.to.Write([]byte(p))
		r.length += int64(n)
		return n, err
	default:
		r.length += int64(len(p))
		r.response.Body = append(r.response.Body, p...)
		return len(p), nil
	}
}

// spill gives the response so far away, and its body free. Its content type may only be seen from
// the bytes that come next.
func (r *recorder) spill(next []byte) {
	response := r.response
	if len(response.Body) < sniffed {
		next = append(slices.Clone(response.Body), next...)
	} else {
		next = response.Body
	}
	response.Header = typed(response.Header, next)
	r.response.Body = nil
	r.to, r.failed = r.overflow(response)
}

// size is about that of the stored response.
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

// end makes every later write fail, and returns the response: whole, unless it was given away.
// The error tells of a handler that wrote less than it declared.
func (r *recorder) end() (response Response, spilled bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.wrote {
		r.writeHeader(http.StatusOK)
	}
	r.ended = true
	if r.declared > r.length && hasBody(r.response.Status) {
		return Response{}, r.to != nil, fmt.Errorf("%w: %d of %d bytes", errShort, r.length, r.declared)
	}
	if r.failed != nil {
		return Response{}, false, r.failed
	}
	r.response.Header = typed(r.response.Header, r.response.Body)
	return r.response, r.to != nil, nil
}

// sniffed is how much of a body tells its content type.
const sniffed = 512

// typed adds the content type that net/http would find by the body.
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
