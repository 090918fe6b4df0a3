package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/internal/keys"
)

// readBody reads the whole body of a request, at most limit bytes. The error is an
// [*http.MaxBytesError] if there is more.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	if r.Body == nil {
		return nil, nil
	}
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, 64<<10))) // a client may say more than it sends
	}
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		return nil, err
	}
	if int64(body.Len()) < r.ContentLength { // read by another middleware before this one
		return nil, fmt.Errorf("%d of %d bytes: %w", body.Len(), r.ContentLength, io.ErrUnexpectedEOF)
	}
	return body.Bytes(), nil
}

// withBody returns the request as a handler gets it: with the body, whole, and another
// context.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	return r
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

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}
