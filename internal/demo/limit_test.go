package demo

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/internal/await"
)

// A standstill is the output of a demo, which has the store in a file stand still from the first line that tells of work
// done until the limit has ended: so some of it may be done by then, and certainly not all.
type standstill struct {
	t    *testing.T
	path string

	mu   sync.Mutex
	text bytes.Buffer
	db   *sql.DB
	held *sql.Conn
}

var someDone = regexp.MustCompile(`% \S+ [1-9][\d,]*/`)

func newStandstill(t *testing.T) *standstill {
	t.Helper()
	s := &standstill{t: t, path: filepath.Join(t.TempDir(), "demo.db")}
	t.Cleanup(s.goOn)
	return s
}

func (s *standstill) Write(p []byte) (int, error) {
	s.mu.Lock()
	begins := s.db == nil && someDone.Match(p)
	s.text.Write(p)
	s.mu.Unlock()
	switch {
	case begins:
		var err error
		s.db, err = sql.Open("sqlite", "file:"+s.path+"?_pragma=busy_timeout(60000)")
		require.NoError(s.t, err)
		s.held, err = s.db.Conn(s.t.Context())
		require.NoError(s.t, err)
		_, err = s.held.ExecContext(s.t.Context(), "begin immediate")
		require.NoError(s.t, err)
	case strings.Contains(string(p), "nothing more is sent"):
		s.goOn()
	}
	return len(p), nil
}

func (s *standstill) goOn() {
	if s.held != nil {
		_ = s.held.Close() // which rolls back
		_ = s.db.Close()
		s.held = nil
	}
}

func (s *standstill) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestAPaymentsDemoWhoseLimitEndsJudgesThePartThatWasDone(t *testing.T) {
	t.Parallel()
	stdout, stderr := newStandstill(t), &bytes.Buffer{}

	code := RunPayments(t.Context(), []string{"demo", "--store", "sqlite:" + stdout.path, "--limit", "4s", "--settle", "2m"}, stdout, stderr)

	require.Equal(t, 3, code, "%s\n%s", stdout, stderr)
	require.Contains(t, stderr.String(), "not done after 4s")
	require.Regexp(t, `This verdict is on [\d,]+ of 13,002 payments: not done after 4s\.`, stdout.String())
	require.Contains(t, stdout.String(), "Every payment that was answered was made once")
	require.NotContains(t, stdout.String(), "DIFFERS")
}

func TestADemoWhoseLimitEndsJudgesThePartThatWasDone(t *testing.T) {
	t.Parallel()
	stdout, stderr := newStandstill(t), &bytes.Buffer{}

	code := Run(t.Context(), []string{"demo", "--store", "sqlite:" + stdout.path, "--limit", "6s", "--settle", "2m"}, stdout, stderr)

	require.Equal(t, 3, code, "%s\n%s", stdout, stderr)
	require.Contains(t, stderr.String(), "not done after 6s")
	require.Regexp(t, `This verdict is on [\d,]+ of 18,022 commands: not done after 6s\.`, stdout.String())
	require.Contains(t, stdout.String(), "Every command that a consumer came to was handled exactly once")
	require.NotContains(t, stdout.String(), "DIFFERS")
}

// A server that never answers as soon as the clients hang up is answered in the end, or a demo on a slow machine
// would not come to its end.
func TestAPaymentIsMadeOnASlowMachine(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done(): // the client has hung up
		case <-time.After(400 * time.Millisecond):
			w.WriteHeader(http.StatusCreated)
		}
	}))
	defer server.Close()
	p := &paymentClient{servers: []string{server.URL}, http: server.Client(), answers: json.NewEncoder(io.Discard)}
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	err := p.do(ctx, rand.New(rand.NewPCG(1, 1)), paymentTask{Payment: payments.Payment{ID: "p", Account: "1"}, Copies: 1, Plant: true})

	require.NoError(t, err)
	require.Positive(t, p.cut.Load())
}
