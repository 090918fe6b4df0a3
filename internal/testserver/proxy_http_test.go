package testserver_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
)

// A web is a client of servers of HTTP/2, each of which says its number, through a proxy.
type web struct {
	*testserver.Proxy
	client *http.Client
	served []atomic.Int32 // calls, by server
}

func newWeb(t *testing.T, servers int) *web {
	t.Helper()
	w := &web{served: make([]atomic.Int32, servers)}
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	var addresses []string
	for i := range servers {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
			w.served[i].Add(1)
			_, _ = io.Copy(answer, r.Body)
		}))
		s.Config.Protocols = protocols
		s.Start()
		t.Cleanup(s.Close)
		addresses = append(addresses, s.Listener.Addr().String())
	}
	w.Proxy = testkit.Do(testserver.NewHTTPProxy(addresses...))(t)
	transport := &http.Transport{Protocols: protocols}
	w.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, w.Close())
	})
	return w
}

func (w *web) call(t *testing.T) (status int, err error) {
	t.Helper()
	r := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d", w.Port()), strings.NewReader("a question")))(t)
	answer, err := w.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "a question", string(said))
	require.Equal(t, 2, answer.ProtoMajor)
	return answer.StatusCode, nil
}

func TestFramesOfHTTPAreSeenInTheirOrder(t *testing.T) {
	t.Parallel()
	w := newWeb(t, 1)
	stop := w.Record()
	status, err := w.call(t)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	all := texts(stop())
	require.Equal(t, "client 1: PRI", all[0])
	require.Subset(t, all, []string{"client 1: SETTINGS", "client 1: HEADERS", "client 1: DATA", "server 1: SETTINGS", "server 1: HEADERS", "server 1: DATA"})
}

func TestAnAnswerOfHTTPIsLostAndTheNextCallComesToAnotherServer(t *testing.T) {
	t.Parallel()
	w := newWeb(t, 2)
	w.SetRule(once(testserver.FromServer, "HEADERS", testserver.CloseBefore))
	_, err := w.call(t)
	require.Error(t, err)
	_, err = w.call(t)
	require.NoError(t, err)
	require.EqualValues(t, 1, w.served[0].Load())
	require.EqualValues(t, 1, w.served[1].Load())
}
