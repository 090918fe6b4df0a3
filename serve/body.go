package serve

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/dibs-go/dibs/messagestore"
)

// prefixBytes come before the message of a request, unless that is a body of its own.
const prefixBytes = 5

// A boundedBody is the body of a request, and an error as soon as it is too large. The option of
// connect that would bound it names no field.
type boundedBody struct {
	io.ReadCloser

	read, most, prefix int64
	err                error
}

func newBoundedBody(r *http.Request, most int) *boundedBody {
	b := &boundedBody{ReadCloser: r.Body, most: int64(most)}
	if kind := r.Header.Get("Content-Type"); strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+") {
		b.prefix = prefixBytes
	}
	return b
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	if b.read += int64(n); b.read > b.most+b.prefix {
		rest, _ := io.CopyN(io.Discard, b.ReadCloser, 4*b.most) // many clients read no answer before they have sent all
		refused := messagestore.NewInvalidError("request", b.read+rest-b.prefix, fmt.Sprintf("must be at most %d bytes", b.most))
		b.err = newError(connect.CodeResourceExhausted, "", refused, violation(refused))
		return 0, b.err
	}
	return n, err
}
