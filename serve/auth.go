package serve

import (
	"context"
	"errors"
	"net/http"
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
