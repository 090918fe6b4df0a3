package cli_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	root "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

var address = regexp.MustCompile(`http://\S+/`)

func TestAPageIsServedUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr screen
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, []string{"ui", "--listen", "127.0.0.1:0"}, nil, &stdout, &stderr, dibs.getenv)
	}()
	testkit.Await(t, "its address", func() (bool, any) { return address.MatchString(stdout.String()), stderr.String() })
	get := func(path, host string) (int, string) {
		r := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, address.FindString(stdout.String())+path, nil))(t)
		if host != "" {
			r.Host = host
		}
		answer := testkit.Do(http.DefaultClient.Do(r))(t)
		defer answer.Body.Close()
		return answer.StatusCode, string(testkit.Do(io.ReadAll(answer.Body))(t))
	}
	status, text := get("stream?name=account-1", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "Opened")
	require.Contains(t, text, "reads only")
	status, text = get("store", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "the write lock was free within", "as the doctor finds it")
	status, _ = get("", "evil.example")
	require.Equal(t, http.StatusForbidden, status, "a name of another site that leads here")
	live := testkit.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, address.FindString(stdout.String())+"live?view=", nil))(t)
	answer := testkit.Do(http.DefaultClient.Do(live))(t)
	defer answer.Body.Close()

	cancel() // while a page is open

	testkit.Receive(t, "the end", ended)
	_ = testkit.Do(io.ReadAll(answer.Body))
}

func TestAPageForEverybodyIsRefused(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	for _, args := range [][]string{{"--listen", "0.0.0.0:0"}, {"--listen", "nonsense"}, {"--user", "X-User"}} {
		require.Equal(t, 2, dibs.run(t, append([]string{"ui"}, args...)...).code, args)
	}
}

// A page that only reads could not write if it wanted to: neither by its role, nor by its transactions.
func TestThePageReadsWithoutTheRightToWrite(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	dibs := &shell{env: map[string]string{"DATABASE_URL": where}}
	dibs.ok(t, "write", "account-1", "Opened")
	writing := testkit.Do(root.Open(t.Context(), where, &messagestore.Config{Logger: logger.Silent()}))(t)
	defer writing.Close()
	mail := testkit.Do(queue.New(writing, "mail", nil))(t)
	testkit.Do(mail.Insert(t.Context(), messagestore.Raw{Type: "Send", Data: []byte("{}")}, nil))(t)
	require.NoError(t, mail.Pause(t.Context()))
	schedules := testkit.Do(cron.New(writing, "report", nil))(t)
	require.NoError(t, schedules.Set(t.Context(), cron.Schedule{Name: "yearly", Spec: "@yearly", Body: messagestore.Raw{Type: "Report", Data: []byte("{}")}}))
	user := func(roles string) string {
		as := pgtest.ConnectAs(t, where, roles).Config().ConnConfig
		u := testkit.Do(url.Parse(where))(t)
		u.User = url.UserPassword(as.User, as.Password)
		return u.String()
	}
	with := func(u, parameter string) string {
		parsed := testkit.Do(url.Parse(u))(t)
		parsed.RawQuery = strings.TrimPrefix(parsed.RawQuery+"&"+parameter, "&")
		return parsed.String()
	}
	for name, c := range map[string]struct{ url, role string }{
		"the owner":                 {where, "dibs_reader"},
		"a reader":                  {user("dibs_reader"), "dibs_reader"},
		"a worker":                  {user("dibs_worker"), ""}, // who may not take the role
		"a reader and worker":       {user("dibs_reader, dibs_worker"), "dibs_reader"},
		"of the server that writes": {with(where, "target_session_attrs=read-write"), "dibs_reader"},
	} {
		t.Run(name, func(t *testing.T) {
			store := testkit.Do(cli.Reading(t.Context(), root.Open, c.url, io.Discard))(t)
			defer store.Close()
			require.NoError(t, store.CheckReading(t.Context()))
			require.Equal(t, "Opened", testkit.Do(store.Last(t.Context(), "account-1"))(t).Type)
			all := testkit.Do(operate.Healths(t.Context(), store))(t)
			require.Len(t, all, 2, "a queue that is paused, and a schedule")
			require.Equal(t, "paused", all[0].Causes[0].What)
			_, err := store.Write(t.Context(), "account-1", messagestore.AnyVersion, messagestore.Raw{Type: "Closed", Data: []byte("{}")})
			require.Error(t, err)
			require.Equal(t, messagestore.Version(0), testkit.Do(store.Version(t.Context(), "account-1"))(t))
			if c.role != "" {
				require.ErrorIs(t, err, messagestore.ErrNotPermitted)
			}
		})
	}
}

func TestThePageSaysThatAPoolerLeavesItItsRights(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	var urls []string
	var stderr screen
	store := testkit.Do(cli.Reading(t.Context(), func(ctx context.Context, u string, config *messagestore.Config) (*messagestore.Store, error) {
		if urls = append(urls, u); len(urls) == 1 {
			return nil, fmt.Errorf("open: %w", &pgconn.PgError{Code: "08P01", Message: "unsupported startup parameter: role"})
		}
		return root.Open(ctx, u, config)
	}, where, &stderr))(t)
	defer store.Close()
	require.Len(t, urls, 2)
	require.Contains(t, urls[0], "role=dibs_reader")
	require.Equal(t, where, urls[1])
	require.Contains(t, stderr.String(), "the page reads with all rights of its user")
}
