package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/dibs-go/dibs/messagestore"
)

type callerKey struct{}

// callerOf returns who makes a call.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return everybody
}

var (
	errNoKey    = connect.NewError(connect.CodeUnauthenticated, errors.New("the call needs a key: Authorization: Bearer dibs_…"))
	errKeysAway = newError(connect.CodeUnavailable, reasonStore, errors.New("the server cannot read its keys"))
)

// authenticated lets calls through that a key may make. A certificate that the server has verified
// is the key of its first DNS name.
func (s *Server) authenticated(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.authenticate(r)
		if err == nil && c.calls != nil && !c.calls.Allow() {
			err = exhausted("too many calls", time.Second/time.Duration(c.key.CallsPerSecond))
		}
		if err != nil {
			if errorWriter.IsSupported(r) {
				_ = errorWriter.Write(w, r, err) // the client has gone
				return
			}
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		r.Body = &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
		w = &patientWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

func (s *Server) authenticate(r *http.Request) (*caller, error) {
	keys := s.config.Keys
	if keys == nil {
		return everybody, nil
	}
	if !keys.fresh() {
		return nil, errKeysAway
	}
	if !s.keyed.Load() && !keys.ever.Load() {
		return everybody, nil
	}
	var c *caller
	if text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		c = keys.of(text)
	} else if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.PeerCertificates[0].DNSNames) > 0 {
		c = keys.named(r.TLS.PeerCertificates[0].DNSNames[0])
	}
	if c == nil {
		return nil, errNoKey
	}
	return c, nil
}

// allow returns the caller if it has a right in a category, and refuses it in the same words
// whether the category exists or not.
func allow(ctx context.Context, right Right, category messagestore.Category) (*caller, error) {
	c := callerOf(ctx)
	if err := category.Validate(); err != nil {
		return nil, fail(err)
	}
	if !c.may(right, category) {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("the key has no right to "+string(right)+" in this category"))
	}
	return c, nil
}

// ownTypes are the types of categories that the library writes for itself. What others write there
// could end their leases, move their positions, or change their policies.
var ownTypes = []string{
	"intent", "position", "policy", "reservation", "inbox", "saga", "schedule", "skipped", "snapshot", "retention", "forgotten", "life", "refused",
}

// below returns the right that messages of a category need, as they are: to write in a category of
// the library's, or to read one of intents, which shows the sessions of all keys, is the operator's.
func below(right Right, c messagestore.Category) Right {
	own := func(name string) bool { return slices.Contains(ownTypes, name) }
	if ofIntents(c) || right == Write && slices.ContainsFunc(c.Types(), own) {
		return Operate
	}
	return right
}

// A patientBody is the body of a request, which must come within the time for a frame.
type patientBody struct {
	io.ReadCloser

	control *http.ResponseController
	begun   bool
}

func (b *patientBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		_ = b.control.SetReadDeadline(time.Now().Add(frameTimeout)) // a connection of a test has none
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) { // the call may wait from now on
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// A patientWriter cuts off a client that does not take what is written in the time for a frame.
type patientWriter struct {
	http.ResponseWriter

	control *http.ResponseController
}

func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(frameTimeout)) // a connection of a test has none
	return w.ResponseWriter.Write(p)
}

func (w *patientWriter) Flush() { _ = w.control.Flush() }

func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
