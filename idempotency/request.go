package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/internal/exactjson"
)

// The errors of a body that may have been read before.
var (
	errReadBefore = errors.New("the body was read before the middleware, or replaced by a shorter one: put it back whole")
	errNoLength   = errors.New("the body has no length and no bytes: it cannot be told from one that was read before")
)

// A body is the body of a request. It keeps the bytes that a scope reads.
type body struct {
	r     *http.Request
	limit int64
	from  io.Reader
	read  bytes.Buffer
}

// newBody returns the body of a request, of at most limit bytes.
func newBody(w http.ResponseWriter, r *http.Request, limit int64) *body {
	b := &body{r: r, limit: limit, from: http.NoBody}
	if r.Body != nil {
		b.from = io.TeeReader(http.MaxBytesReader(w, r.Body, limit), &b.read)
	}
	if r.ContentLength > 0 {
		b.read.Grow(int(min(r.ContentLength, 64<<10))) // a client may say more than it sends
	}
	return b
}

// request returns the request for a function that may read the body, or a part of it.
func (b *body) request() *http.Request {
	r := b.r.WithContext(b.r.Context())
	r.Body = io.NopCloser(b.from)
	return r
}

// whole reads the rest, and returns all of it. The error is an [*http.MaxBytesError] if there is
// more than the limit, and matches errReadBefore or errNoLength if bytes that the client has sent
// may be missing.
func (b *body) whole() ([]byte, error) {
	if b.r.ContentLength > b.limit {
		return nil, &http.MaxBytesError{Limit: b.limit}
	}
	switch _, err := io.Copy(io.Discard, b.from); {
	case errors.Is(err, http.ErrBodyReadAfterClose):
		return nil, errReadBefore
	case err != nil:
		return nil, err
	case int64(b.read.Len()) < b.r.ContentLength, b.read.Len() == 0 && hasForm(b.r):
		return nil, errReadBefore
	case b.read.Len() == 0 && b.r.ContentLength < 0:
		return nil, errNoLength
	}
	return b.read.Bytes(), nil
}

// hasForm reports whether a form was parsed from the body.
func hasForm(r *http.Request) bool { return len(r.PostForm) > 0 || r.MultipartForm != nil }

// withBody returns the request for a handler: a separate copy, with the complete body and another
// context.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	return r
}

// removeFiles removes the files that parsing a form has created. Net/http does so only for its own
// request.
func removeFiles(r *http.Request) {
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll() // a leftover file is in the directory for temporary files
	}
}

// fingerprint distinguishes requests with one key: by method, target, content type, encoding, range
// and body, and by the host if the caller asks for it. Every part follows its length, so that no
// two requests can have the same parts joined differently.
//
// The target counts both as the client sent it and as the handler gets it: one handler may serve
// two paths behind [http.StripPrefix], and two paths may be rewritten to one. A JSON body counts by
// the meaning that every decoder reads from it, so that its white space may differ.
func fingerprint(r *http.Request, body []byte, host bool) (string, error) {
	kind, form := contentType(strings.Join(r.Header.Values("Content-Type"), ", ")), "bytes"
	if isJSON(kind) {
		if spelling, ok := exactjson.OneReading(body); ok {
			body, form = spelling, "json"
		}
	}
	parts := [][]byte{
		[]byte(r.Method), []byte(sentTo(r)), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), []byte(kind), []byte(form), body,
		[]byte(strings.Join(r.Header.Values("Content-Encoding"), ",")), []byte(strings.Join(r.Header.Values("Range"), ",")),
	}
	if host || choosesHost(r.Pattern) {
		parts = append(parts, []byte(strings.ToLower(r.Host)))
	}
	sum := hash(parts...)
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// sentTo returns the path and the query that the client sent, even if the client named the host
// before them, as for a proxy.
func sentTo(r *http.Request) string {
	target := r.RequestURI
	if _, rest, absolute := strings.Cut(target, "://"); absolute && !strings.HasPrefix(target, "/") {
		if i := strings.IndexAny(rest, "/?"); i >= 0 {
			target = rest[i:]
		} else {
			target = ""
		}
		if !strings.HasPrefix(target, "/") {
			target = "/" + target
		}
	}
	return target
}

// choosesHost reports whether a pattern of [http.ServeMux] names a host: then another host is
// another endpoint.
func choosesHost(pattern string) bool {
	if _, rest, ok := strings.Cut(pattern, " "); ok {
		pattern = strings.TrimLeft(rest, " \t")
	}
	return pattern != "" && !strings.HasPrefix(pattern, "/")
}

// hash returns the SHA-256 of parts, each after its length.
func hash(parts ...[]byte) []byte {
	h := sha256.New()
	for _, part := range parts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

// contentType returns a media type in its standard spelling, or the unchanged value if it is
// invalid.
func contentType(value string) string {
	kind, parameters, err := mime.ParseMediaType(value)
	if err != nil {
		return value
	}
	if formatted := mime.FormatMediaType(kind, parameters); formatted != "" {
		return formatted
	}
	return value
}

// isJSON reports whether a body is JSON, in UTF-8.
func isJSON(kind string) bool {
	kind, parameters, err := mime.ParseMediaType(kind)
	if charset, has := parameters["charset"]; err != nil || has && !strings.EqualFold(charset, "utf-8") {
		return false
	}
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}
