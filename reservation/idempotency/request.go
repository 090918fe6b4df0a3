package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/internal/keys"
)

var (
	errReadBefore = errors.New("the body was read before the middleware, or replaced by a shorter one: put it back whole")
	errNoLength   = errors.New("the body has no length and no bytes: it cannot be told from one that was read before")
)

// A body is that of a request. What a scope reads of it is kept.
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

// whole reads the rest, and returns all of it. The error is an [*http.MaxBytesError] if there is more
// than the limit, and matches errReadBefore or errNoLength if bytes may be missing that the client has
// sent.
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

// hasForm reports whether a form was parsed of the body.
func hasForm(r *http.Request) bool { return len(r.PostForm) > 0 || r.MultipartForm != nil }

// withBody returns the request as a handler gets it: its own, with the body, whole, and another
// context.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	return r
}

// removeFiles removes the files that parsing a form has made. Net/http does so for the request that
// it knows.
func removeFiles(r *http.Request) {
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll() // one that stays is in the directory of temporary files
	}
}

// fingerprint tells requests with one key apart: by method, path, query, content type and
// body. Every part stands behind its length, so that no two requests run together. A body of
// JSON counts by its value, so that its spelling may differ.
func fingerprint(r *http.Request, body []byte) (string, error) {
	kind, form := contentType(r.Header.Get("Content-Type")), "bytes"
	if isJSON(kind) {
		// Of a key that an object has twice, a handler may read either.
		if content, err := keys.Canonical(json.RawMessage(body)); err == nil && !content.Twice {
			body, form = content.Canonical, "json"
		}
	}
	sum := hash([]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), []byte(kind), []byte(form), body)
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// hash is the SHA-256 of parts, each behind its length.
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

// contentType returns the one spelling of a media type, or the value as it is if it is none.
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

func isJSON(kind string) bool {
	kind, _, _ = strings.Cut(kind, ";")
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}
