package messagedb_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

func TestMain(m *testing.M) {
	if !testkit.Changed() {
		return // see testkit.NeedsChange
	}
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

// patient returns the configuration of an adoption in small steps, which gets its locks however
// long the machine takes.
func patient(progress func(messagedb.Progress)) *messagedb.Config {
	return &messagedb.Config{RangeMessages: 50, Progress: progress, LockTimeout: 10 * time.Second, LockTries: 30}
}

// adoptPatiently adopts, and waits for the sessions of a process that was killed.
func adoptPatiently(ctx context.Context, url string, config *messagedb.Config) (*messagedb.Adoption, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*testkit.WaitLimit)
	defer cancel()
	for {
		done, err := messagedb.Adopt(ctx, connector(url), config)
		if !errors.Is(err, messagedb.ErrRunning) {
			return done, err
		}
	}
}

func connector(url string) messagedb.Connect {
	return func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, url) }
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := testkit.Do(pgx.Connect(context.WithoutCancel(t.Context()), url))(t) // also in a cleanup
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// connectAs returns a connection of a new user with the right to create in the database.
func connectAs(t *testing.T, url, attributes string) (*pgx.Conn, string) {
	t.Helper()
	config := testkit.Do(pgx.ParseConfig(url))(t)
	admin := connect(t, url)
	user, password := "test_"+strings.ToLower(rand.Text()), rand.Text()
	do(t, admin, fmt.Sprintf("create role %s login password '%s' %s; grant create on database %s to %[1]s", user, password, attributes, config.Database))
	t.Cleanup(func() {
		// Before the database is dropped, while the user's objects can be named.
		testkit.Do(admin.Exec(context.WithoutCancel(t.Context()), "drop owned by "+user+" cascade; drop role "+user))(t)
	})
	config.User, config.Password = user, password
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn, user
}

// BenchmarkAdopt adopts message-db with rows of 450 to 550 bytes, while a client goes on
// writing to it. DIBS_ADOPT_ROWS says how many; without it they are 200,000.
//
// rows/s is of all that Adopt does: the copy, the indexes, the verification, the switch.
// held-ms is how long the switch held message-db's writers, and wait-ms the longest that
// the client waited for an answer, at the switch or elsewhere.
func BenchmarkAdopt(b *testing.B) {
	rows := 200_000
	if text := os.Getenv("DIBS_ADOPT_ROWS"); text != "" {
		rows = testkit.Do(strconv.Atoi(text))(b)
	}
	var size int64
	var held, waited time.Duration
	for b.Loop() {
		b.StopTimer()
		url := pgtest.MessageDB(b)
		size = fillToMeasure(b, url, rows)
		stop := keepWriting(b, url)
		b.StartTimer()

		done, err := messagedb.Adopt(b.Context(), connector(url), nil)

		b.StopTimer()
		longest := stop()
		require.NoError(b, err)
		require.GreaterOrEqual(b, done.Messages, int64(rows))
		held, waited = max(held, done.Held), max(waited, longest)
		b.StartTimer()
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(size), "B/row")
	b.ReportMetric(float64(held.Microseconds())/1000, "held-ms")
	b.ReportMetric(float64(waited.Microseconds())/1000, "wait-ms")
}

// fillToMeasure writes as many messages as a service with 100,000 entities may have, and
// returns how many bytes of the table one takes.
func fillToMeasure(b *testing.B, url string, rows int) (size int64) {
	b.Helper()
	ctx := b.Context()
	conn := testkit.Do(pgx.Connect(ctx, url))(b)
	defer conn.Close(ctx)
	testkit.Do(conn.Exec(ctx, `insert into message_store.messages (stream_name, position, type, data, metadata)
		select 'category' || n % 20 || '-' || n % 100000, n / 100000, 'SomethingHappened',
			jsonb_build_object('accountId', gen_random_uuid(), 'amount', n, 'note', repeat('x', 30),
				'time', '2026-01-01T00:00:00.000Z', 'processedTime', '2026-01-01T00:00:00.000Z'),
			jsonb_build_object('causationMessageStreamName', 'category:command-' || n % 100000, 'causationMessagePosition', n,
				'causationMessageGlobalPosition', n, 'correlationStreamName', 'other-' || n, 'schemaVersion', '1')
		from generate_series(0, $1 - 1) n`, rows))(b)
	for _, sql := range []string{"vacuum analyze message_store.messages", "checkpoint"} {
		testkit.Do(conn.Exec(ctx, sql))(b)
	}
	require.NoError(b, conn.QueryRow(ctx, "select pg_table_size('message_store.messages') / count(*) from message_store.messages").Scan(&size))
	return size
}

// keepWriting writes as a client of message-db does, one message after the other, until
// it is stopped, and returns how long the slowest of them took.
func keepWriting(b *testing.B, url string) (stop func() time.Duration) {
	b.Helper()
	conn := testkit.Do(pgx.Connect(b.Context(), pgtest.As(b, url, "message_store")))(b)
	var slowest time.Duration
	ended := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		defer conn.Close(context.WithoutCancel(b.Context()))
		for {
			select {
			case <-ended:
				return
			default:
			}
			began := time.Now()
			// A call that was at it when the functions were put aside fails, and is made again.
			for try := 0; ; try++ {
				_, err := conn.Exec(b.Context(), "select write_message(gen_random_uuid()::varchar, 'bench-1', 'T', '{}')")
				if err == nil {
					break
				}
				if try == 3 || sqlstate(err) == "" {
					b.Error(err)
					return
				}
			}
			slowest = max(slowest, time.Since(began))
		}
	})
	return func() time.Duration {
		close(ended)
		all.Wait()
		return slowest
	}
}
