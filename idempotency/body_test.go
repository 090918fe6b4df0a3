package idempotency_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// echo answers with the length of the body.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	fmt.Fprint(w, len(body), " ", err)
}

func TestABodyIsReadUpToItsLimit(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, echo)
	whole := strings.Repeat("x", 1<<20)

	require.Equal(t, "1048576 <nil>", a.do(t, ask{key: "length", body: whole}).body)
	require.Equal(t, "1048576 <nil>", a.do(t, ask{key: "chunked", reader: io.MultiReader(strings.NewReader(whole))}).body)
	require.Equal(t, "0 <nil>", a.do(t, ask{key: "none"}).body)

	for name, q := range map[string]ask{
		"length":  {key: "BBB", body: whole + "x"},
		"chunked": {key: "CCC", reader: io.MultiReader(strings.NewReader(whole + "x"))},
		"endless": {key: "DDD", reader: io.LimitReader(endless{}, 1<<30)},
	} {
		got, err := a.try(t.Context(), q)
		if err != nil {
			continue // the server hung up while the client was still sending
		}

		require.Equal(t, 413, got.status, name)
		require.Equal(t, problemType("body-too-large"), got.problem(t), name)
	}
	require.EqualValues(t, 3, a.handled.Load())
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// raw sends bytes as they are, closes its side, and returns the answer's status, or 0.
func raw(t *testing.T, a *api, request string) (status int, body string) {
	t.Helper()
	connection, err := net.Dial("tcp", a.Listener.Addr().String())
	require.NoError(t, err)
	defer connection.Close()
	_, err = io.WriteString(connection, request)
	require.NoError(t, err)
	tcp, ok := connection.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, tcp.CloseWrite())
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestABodyThatDoesNotComeWholeIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, newStore(), nil, echo)
	const head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: AAA\r\n"
	for name, request := range map[string]string{
		"shorter than its length": head + "Content-Length: 10\r\n\r\nhalf",
		"without its last chunk":  head + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"half a chunk":            head + "Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
		"a chunk of no size":      head + "Transfer-Encoding: chunked\r\n\r\nhalf\r\n0\r\n\r\n",
	} {
		status, body := raw(t, a, request)

		require.Equal(t, 400, status, name)
		require.Contains(t, body, problemType("body-incomplete"), name)
	}
	require.Zero(t, a.handled.Load())
	status, body := raw(t, a, head+"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n\r\n")
	require.Equal(t, 200, status)
	require.Equal(t, "4 <nil>", body)
}
