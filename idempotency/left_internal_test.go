package idempotency

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
)

// Its goroutine may have had no turn until then: the writer is net/http's again.
func TestAHandlerIsNotCalledAfterItsRequestWasAnswered(t *testing.T) {
	t.Parallel()
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") })
	c := &call{m: &Middleware{}, w: httptest.NewRecorder(), r: httptest.NewRequestWithContext(t.Context(), "POST", "/", nil), next: next}

	require.False(t, c.began(intent.ErrGraceExceeded))
	_, err := c.handle(t.Context(), nil)

	require.ErrorIs(t, err, errLeft)
}
