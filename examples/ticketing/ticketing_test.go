package ticketing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/examples/ticketing"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A mailbox is a mail service that shows a mail once.
type mailbox struct {
	mu    sync.Mutex
	mails map[string]ticketing.Mail // by id
	fails int                       // so many calls
}

func (b *mailbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m ticketing.Mail
	err := json.NewDecoder(r.Body).Decode(&m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails--; b.fails >= 0 || err != nil {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	b.mails[m.ID] = m
}

// texts returns the texts of the mails to an address.
func (b *mailbox) texts(to string) (texts []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.mails {
		if m.To == to {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

// A theatre is replicas of the service, on one socket.
type theatre struct {
	url      string
	mail     *mailbox
	pool     *pgxpool.Pool
	listener net.Listener
	config   ticketing.Config
}

func open(t *testing.T) *theatre {
	t.Helper()
	th := &theatre{mail: &mailbox{mails: map[string]ticketing.Mail{}}}
	service := httptest.NewServer(th.mail)
	t.Cleanup(service.Close)
	th.config = ticketing.Config{Database: pgtest.Migrated(t), Mail: service.URL, Lease: time.Second}
	var err error
	th.pool, err = pgxpool.New(t.Context(), th.config.Database)
	require.NoError(t, err)
	t.Cleanup(th.pool.Close)
	_, err = th.pool.Exec(t.Context(), ticketing.Schema)
	require.NoError(t, err)
	th.listener, err = net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = th.listener.Close() })
	th.url = "http://" + th.listener.Addr().String()
	return th
}

// start starts a replica, and returns a function that ends it.
func (th *theatre) start(t *testing.T) (end func()) {
	t.Helper()
	tcp, ok := th.listener.(*net.TCPListener)
	require.True(t, ok)
	file, err := tcp.File()
	require.NoError(t, err)
	own, err := net.FileListener(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- ticketing.Run(ctx, own, th.config) }()
	var once sync.Once
	end = func() {
		once.Do(func() { cancel(); require.NoError(t, testkit.Receive(t, "the end of a replica", ended)) })
	}
	t.Cleanup(end)
	return end
}

func (th *theatre) call(t *testing.T, method, path, key, body string) (status int, location, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, th.url+path, strings.NewReader(body))
	require.NoError(t, err)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header.Get("Location"), string(all)
}

// hold sends a request until it is decided, and returns the answer.
func (th *theatre) hold(t *testing.T, seat, key, email string) string {
	t.Helper()
	status, location, text := th.call(t, http.MethodPost, "/seats/"+url.PathEscape(seat)+"/holds", key, `{"email":"`+email+`"}`)
	require.Equal(t, http.StatusAccepted, status, text)
	return th.answer(t, location)
}

func (th *theatre) answer(t *testing.T, location string) (answer string) {
	t.Helper()
	testkit.Await(t, "a decision at "+location, func() (bool, any) {
		var status int
		status, _, answer = th.call(t, http.MethodGet, location, "", "")
		return status == http.StatusOK, fmt.Sprint(status, " ", answer)
	})
	return answer
}

// rows returns how many rows the box office has of a seat, and how many hold it.
func (th *theatre) rows(t *testing.T, seat string) (rows, held int) {
	t.Helper()
	require.NoError(t, th.pool.QueryRow(t.Context(), "select count(*), count(*) filter (where held) from holds where seat = $1", seat).Scan(&rows, &held))
	return rows, held
}

func TestASeatIsSoldOnceAndARequestIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	th := open(t)
	th.mail.fails = 2
	th.start(t)

	for range 3 {
		require.JSONEq(t, `{"seat":"12A","held":true}`, th.hold(t, "12A", "k1", "ann@example.com"))
	}
	require.JSONEq(t, `{"seat":"12A","held":false}`, th.hold(t, "12A", "k2", "bob@example.com"))

	rows, held := th.rows(t, "12A")
	require.Equal(t, 2, rows)
	require.Equal(t, 1, held)
	testkit.AwaitEqual(t, "a mail to each", [2]int{1, 1}, func() [2]int {
		return [2]int{len(th.mail.texts("ann@example.com")), len(th.mail.texts("bob@example.com"))}
	})
	require.Equal(t, []string{"seat 12A is yours"}, th.mail.texts("ann@example.com"))
	require.Equal(t, []string{"seat 12A is taken"}, th.mail.texts("bob@example.com"))
}

// Another body under the same key is a mistake of that sender: the answer to the first stands.
func TestAKeyThatIsUsedAgainForSomethingElseKeepsItsAnswer(t *testing.T) {
	t.Parallel()
	th := open(t)
	th.start(t)

	require.JSONEq(t, `{"seat":"1","held":true}`, th.hold(t, "1", "k1", "ann@example.com"))
	require.JSONEq(t, `{"seat":"1","held":true}`, th.hold(t, "1", "k1", "eve@example.com"))
	require.JSONEq(t, `{"seat":"2","held":true}`, th.hold(t, "2", "k9", "eve@example.com"))
}

// A seat's name is the client's: one that looks like the place of another's key takes no key.
func TestASeatFromOutsideTakesNoKeyOfAnother(t *testing.T) {
	t.Parallel()
	th := open(t)
	th.start(t)

	require.JSONEq(t, `{"seat":"12D+seats+k99","held":true}`, th.hold(t, "12D+seats+k99", "e1", "eve@example.com"))
	require.JSONEq(t, `{"seat":"12D","held":true}`, th.hold(t, "12D", "k99", "ann@example.com"))
}

func TestARequestThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	th := open(t)
	th.start(t)
	for name, call := range map[string]struct{ path, key, body string }{
		"no key":       {"/seats/1/holds", "", `{"email":"ann@example.com"}`},
		"no email":     {"/seats/1/holds", "k1", `{}`},
		"no JSON":      {"/seats/1/holds", "k1", `email`},
		"a long seat":  {"/seats/" + strings.Repeat("s", 300) + "/holds", "k1", `{"email":"ann@example.com"}`},
		"a large body": {"/seats/1/holds", "k1", `{"email":"` + strings.Repeat("a", 1<<17) + `"}`},
	} {
		status, _, text := th.call(t, http.MethodPost, call.path, call.key, call.body)
		require.Equal(t, http.StatusBadRequest, status, name)
		require.NotEmpty(t, text, name)
	}
}

// A second replica comes, the first goes, and every request has its answer.
func TestReplicasHandOver(t *testing.T) {
	t.Parallel()
	th := open(t)
	end := th.start(t)
	require.JSONEq(t, `{"seat":"1","held":true}`, th.hold(t, "1", "k1", "ann@example.com"))

	th.start(t)
	end()

	require.JSONEq(t, `{"seat":"2","held":true}`, th.hold(t, "2", "k2", "ann@example.com"))
	require.JSONEq(t, `{"seat":"1","held":true}`, th.answer(t, "/seats/1/holds/k1"))
	testkit.AwaitEqual(t, "the mails of both replicas", 2, func() int { return len(th.mail.texts("ann@example.com")) })
}

// A command that no retry helps stops its consumer. The service goes on beside it, and the command
// is parked by the line that the log has.
func TestACommandThatCannotBeReadTakesNoOtherPartAlong(t *testing.T) {
	t.Parallel()
	th := open(t)
	book := make(lines, 100)
	th.config.Logger = logger.Zerolog(zerolog.New(book).Level(zerolog.ErrorLevel))
	th.start(t)
	require.JSONEq(t, `{"seat":"1","held":true}`, th.hold(t, "1", "k1", "ann@example.com"))
	store, err := dibs.Open(t.Context(), th.config.Database, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	_, err = store.Write(t.Context(), "seat:command-1", messagestore.AnyVersion, messagestore.Raw{Type: "HoldSeat", Data: []byte(`{"key":1}`)})
	require.NoError(t, err)
	bad, err := store.Last(t.Context(), "seat:command-1")
	require.NoError(t, err)
	stopped := testkit.Receive(t, "the consumer stops", book)
	require.Contains(t, stopped, fmt.Sprintf(`"park":"dibs consumers park seat:command seats --position %d --reason TEXT"`, bad.GlobalPosition))
	status, location, text := th.call(t, http.MethodPost, "/seats/2/holds", "k2", `{"email":"bob@example.com"}`)
	require.Equal(t, http.StatusAccepted, status, text)
	require.JSONEq(t, `{"seat":"1","held":true}`, th.answer(t, "/seats/1/holds/k1"))
	_, err = operate.Consumer(store, "seat:command", "seats").Park(t.Context(), bad, "no command")
	require.NoError(t, err)

	require.JSONEq(t, `{"seat":"2","held":true}`, th.answer(t, location))
	testkit.AwaitEqual(t, "a mail to bob", 1, func() int { return len(th.mail.texts("bob@example.com")) })
}

// lines are the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// The service is at most 255 lines of Go, without blank lines and comments.
func TestTheServiceIsShort(t *testing.T) {
	t.Parallel()
	const most = 255
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	n := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(src)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				n++
			}
		}
	}
	require.NotZero(t, n)
	require.LessOrEqual(t, n, most)
}
