package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// This runs in every mode of a pool for sending statements: a proxy that pools transactions needs a
// mode without prepared statements.
func TestEveryModeOfSendingMeansTheSame(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
			category := storetest.Category(t)
			stream := category.Stream("1")
			message := messagestore.Envelope{
				ID: uuid.Must(uuid.NewV7()), Body: messagestore.Raw{Type: "Opened", Data: []byte(`{"a": "\"'\\ {,} $1", "n": 1.50}`)},
				Metadata: messagestore.Metadata{CorrelationStream: "process-1"},
			}

			write(t, store, stream, messagestore.NoStream, message, opened())
			require.True(t, write(t, store, stream, messagestore.NoStream, message).Duplicate)
			require.ErrorIs(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.NoStream, opened())), messagestore.ErrVersionConflict)

			page := testkit.Do(store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 10, Filter: messagestore.Filter{
				Types: []string{"Opened", `a"b`}, Correlation: "process", GroupSize: 1,
			}}))(t)
			require.Len(t, page.Messages, 1)
			require.Equal(t, message.Body, page.Messages[0].Body(), "byte for byte")
			require.Equal(t, message.ID, page.Messages[0].ID)
			require.Equal(t, time.UTC, page.Messages[0].Time.Location())
			require.WithinDuration(t, time.Now(), page.Messages[0].Time, time.Minute)
			require.Equal(t, messagestore.Version(1), testkit.Do(store.LastOfType(t.Context(), stream, "Opened"))(t).Position)
			found := testkit.Do(store.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: stream, Records: []messagestore.Encoded{{ID: message.ID}}}}}))(t)
			require.Len(t, found, 1)
		})
	}
}

// The result of an undescribed statement is text, and its times have the session's DateStyle.
func TestTimesAreTheSameInEveryDateStyle(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // migrates
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	for _, where := range []string{
		with(t, pgtest.URL(t), "default_query_exec_mode", "exec"),
		with(t, pgtest.URL(t), "default_query_exec_mode", "simple_protocol", "description_cache_capacity", "0"),
		with(t, through.URL, "description_cache_capacity", "0"),
	} {
		pool := pgtest.Connect(t, with(t, where, "datestyle", "German", "timezone", "Asia/Kathmandu"))
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
		stream, message := storetest.Category(t).Stream("1"), opened()
		write(t, store, stream, messagestore.NoStream, message)
		last, err := store.Last(t.Context(), stream)
		require.NoError(t, err, where)
		require.WithinDuration(t, time.Now(), last.Time, time.Minute)

		found, err := testkit.Must(postgres.New(pool, nil)).Find(t.Context(), stream, []uuid.UUID{message.ID})
		require.NoError(t, err, where)
		require.Equal(t, []*messagestore.Message{last}, found)
		resolved, err := store.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: stream, Records: []messagestore.Encoded{{ID: message.ID}}}}})
		require.NoError(t, err, where)
		require.Len(t, resolved, 1)
		query := report.Query{By: []report.Key{report.ByStream}, Category: string(stream.Category())}
		outside, err := report.Of(t.Context(), store, query)
		require.NoError(t, err, where)
		require.Len(t, outside.Rows, 1)
		require.Equal(t, last.Time, outside.Rows[0].Last)

		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			inside := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil))
			again, err := inside.Last(t.Context(), stream)
			require.NoError(t, err, where)
			require.Equal(t, last, again)
			page, err := inside.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: stream.Category(), Limit: 10})
			require.NoError(t, err, where)
			require.Equal(t, []*messagestore.Message{last}, page.Messages)
			reported, err := report.Of(t.Context(), inside, query)
			require.NoError(t, err, where)
			require.Equal(t, outside, reported)
			return nil
		}))
	}
}

func TestCallsOverOneConnectionTakeTurns(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(connect(t, pgtest.URL(t)), nil)), nil))
	stream := storetest.Category(t).Stream("1")
	const writers = 16
	failures := make(chan error, 2*writers)
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, opened())
			failures <- err
			_, err = store.Version(t.Context(), stream)
			failures <- err
		})
	}
	group.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
	require.Equal(t, messagestore.Version(writers-1), testkit.Do(store.Version(t.Context(), stream))(t))
}

// A transaction that was begun by hand is its giver's all the same: nothing is
// tried again in it, and its errors are for its giver to decide on.
func TestTransactionBegunByHandIsOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	conn := connect(t, pgtest.URL(t))
	stream := storetest.Category(t).Stream("1")
	testkit.Do(conn.Exec(t.Context(), "begin isolation level repeatable read; select"))(t)
	testkit.Do(conn.Exec(t.Context(), "select dibs.stream_version('a-1')"))(t)
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), stream, messagestore.NoStream, opened())

	require.ErrorContains(t, testkit.ErrorOf(testkit.Must(postgres.New(conn, nil)).Append(t.Context(), appendOne(stream, messagestore.AnyVersion))), "40001")
	require.Equal(t, byte('E'), conn.PgConn().TxStatus())
}

func TestDatabaseWithoutTheSchemaSaysSo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Database(t))
	driver := testkit.Must(postgres.New(pool, nil))

	_, err := driver.Append(t.Context(), appendOne("account-1", messagestore.NoStream))
	require.ErrorIs(t, err, postgres.ErrNotMigrated)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, testkit.ErrorOf(driver.Version(t.Context(), "account-1")), postgres.ErrNotMigrated)
	require.ErrorIs(t, testkit.ErrorOf(driver.Find(t.Context(), "account-1", nil)), postgres.ErrNotMigrated)
}

func TestSchemaThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	driver, err := postgres.New(pgtest.Pool(t), &postgres.Config{Schema: `a"; drop schema dibs; --`})
	require.Nil(t, driver)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorIs(t, testkit.ErrorOf(postgres.Open(t.Context(), pgtest.URL(t), &postgres.Config{Schema: "pg_catalog"})), messagestore.ErrInvalid)
}

func TestOpenedDriverOwnsItsPool(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Do(postgres.Open(t.Context(), pgtest.URL(t), nil))(t)
	store := testkit.Must(messagestore.New(driver, nil))
	write(t, store, storetest.Category(t).Stream("1"), messagestore.NoStream, opened())
	require.NoError(t, store.Close())
	require.NoError(t, store.Close())

	require.Error(t, testkit.ErrorOf(store.Version(t.Context(), "account-1")))
	require.NoError(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)).Close(), "what is given is not closed")
	require.NoError(t, pool.Ping(t.Context()))
}

func TestOpenShowsNoPassword(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, u := range []string{
		"postgres://user:canary@127.0.0.1:1/database?sslmode=disable", "postgres://user:canary@@host:port/", "postgres://user:ca nary@host/", "user=canary password='canary", "postgres://u:canary@h/d?sslmode=canary",
		"postgres://u:canary@h/d?pool_max_conns=canary", "canary", "postgres://u:" + url.QueryEscape("canary\x00") + "@127.0.0.1:1/d", "host=127.0.0.1 port=1 user=u password=canary",
	} {
		_, err := postgres.Open(ctx, u, nil)
		require.Error(t, err, u)
		for _, format := range []string{"%v", "%+v", "%#v"} {
			_, withConfig := errors.AsType[*pgconn.ConnectError](err)
			require.False(t, withConfig, "which has the password in it")
			for e := err; e != nil; {
				require.NotContains(t, fmt.Sprintf(format, e), "canary", u)
				unwrapper, ok := e.(interface{ Unwrap() error })
				if !ok {
					break
				}
				e = unwrapper.Unwrap()
			}
		}
	}
}

func TestAURLWithAZeroIsRefused(t *testing.T) {
	t.Parallel()
	for _, u := range []string{
		"postgres://u@127.0.0.1:1/d?application_name=a%00options%00-csearch_path=b", "postgres://u@127.0.0.1:1/d%00e", "postgres://u%00v@127.0.0.1:1/d",
		"postgres://u@127.0.0.1:1/d?search%00_path=a",
	} {
		require.ErrorIs(t, testkit.ErrorOf(postgres.Open(t.Context(), u, nil)), messagestore.ErrInvalid, u)
	}
}

// The context has ended, so nobody is asked.
func TestAConnectionInTheClearIsLogged(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for u, host := range map[string]string{
		"postgres://u@db.example/d?sslmode=disable":                 "db.example",
		"postgres://u@192.0.2.1/d":                                  "192.0.2.1", // prefer: an unencrypted connection is taken too
		"postgres://u@localhost,192.0.2.2/d?sslmode=disable":        "192.0.2.2",
		"postgres://u@db.example/d?sslmode=require":                 "",
		"postgres://u@127.0.0.1/d?sslmode=disable":                  "",
		"postgres://u@[::1]/d?sslmode=disable":                      "",
		"postgres://u@localhost/d?sslmode=disable":                  "",
		"postgres:///d?host=/var/run/postgresql&sslmode=disable":    "",
		"user=u database=d host=/var/run/postgresql sslmode=prefer": "",
	} {
		var log bytes.Buffer
		require.Error(t, testkit.ErrorOf(postgres.Open(ctx, u, &postgres.Config{Logger: logger.Zerolog(zerolog.New(&log))})))
		require.Equal(t, host != "", strings.Contains(log.String(), "may not be encrypted"), "%s: %s", u, log.String())
		require.Contains(t, log.String(), host)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.ErrorIs(t, testkit.ErrorOf(postgres.Open(ctx, pgtest.URL(t), nil)), context.Canceled)
}

// A plan that was made for a table of one page, where reading all of it is cheapest,
// is kept by the session while the table grows.
func TestNothingReadsTheWholeTable(t *testing.T) {
	t.Parallel()
	everything, schema := pgtest.Schema(t)
	small := testkit.Must(messagestore.New(testkit.Must(postgres.New(everything, &postgres.Config{Schema: schema})), nil))
	write(t, small, storetest.Category(t).Stream("1"), messagestore.AnyVersion, opened())
	testkit.Do(everything.Exec(t.Context(), "analyze "+schema+".messages"))(t)
	config := everything.Config()
	config.MaxConns = 1 // one session, and so one set of plans
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema})), nil))
	stream := storetest.Category(t).Stream("1")

	for range 30 {
		message := opened()
		write(t, store, stream, messagestore.AnyVersion, message)
		write(t, store, stream, messagestore.AnyVersion, opened(), opened())
		require.ErrorIs(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, message, opened())), messagestore.ErrIDConflict)
		require.ErrorIs(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.NoStream, opened(), opened())), messagestore.ErrVersionConflict)
		testkit.Do(store.Last(t.Context(), stream))(t)
		testkit.Do(store.LastOfType(t.Context(), stream, "Opened"))(t)
		for _, filter := range []messagestore.Filter{{}, {Types: []string{"Opened"}}, {GroupSize: 2}} {
			for _, err := range store.ReadCategory(t.Context(), stream.Category(), 0, filter) {
				require.NoError(t, err)
			}
		}
		for _, err := range store.ReadStreamBackwards(t.Context(), stream, messagestore.EndOfStream) {
			require.NoError(t, err)
		}
		testkit.Do(store.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: stream, Records: []messagestore.Encoded{{ID: message.ID}}}}}))(t)
	}

	pool.Close() // its session reports its work
	testkit.Await(t, "the session's report of its reads", func() (bool, any) {
		var scans, reads int64
		require.NoError(t, everything.QueryRow(t.Context(), "select seq_scan, idx_scan from pg_stat_user_tables where schemaname = $1 and relname = 'messages'", strings.Trim(schema, `"`)).Scan(&scans, &reads))
		require.LessOrEqual(t, scans, int64(3), "one for each index that was built")
		return reads > 300, reads
	})
}

// One call of a filtered reader is bounded, and still gets on.
func TestFilteredReaderAdvancesOverWhatItDoesNotWant(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	testkit.Do(pool.Exec(t.Context(), "insert into "+schema+`.messages (category, group_hash, stream_name, position, type, id)
		select 'a', n, 'a-' || n, 0, case n when 25000 then 'Wanted' else 'Other' end, gen_random_uuid() from generate_series(1, 25100) n`))(t)
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	q := messagestore.CategoryQuery{Category: "a", Limit: 10, Filter: messagestore.Filter{Types: []string{"Wanted"}}}
	var nexts []messagestore.GlobalPosition
	var wanted []*messagestore.Message
	for more := true; more; {
		page := testkit.Do(driver.ReadCategory(t.Context(), q))(t)
		nexts, wanted = append(nexts, page.Next), append(wanted, page.Messages...)
		q.From, more = page.Next, page.More
	}

	require.Equal(t, []messagestore.GlobalPosition{10_001, 20_001, 25_101}, nexts)
	require.Len(t, wanted, 1)
	require.Equal(t, messagestore.StreamName("a-25000"), wanted[0].Stream)
}

func TestNilDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	over := func(db postgres.DB) func(*postgres.Config) error {
		return func(config *postgres.Config) error { _, err := postgres.New(db, config); return err }
	}
	for name, make := range map[string]func(*postgres.Config) error{
		"nil":            over(nil),
		"nil pool":       over((*pgxpool.Pool)(nil)),
		"nil connection": over((*pgx.Conn)(nil)),
		"nil *sql.DB":    func(config *postgres.Config) error { _, err := postgres.NewSQL(nil, config); return err },
	} {
		err := make(nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.EqualError(t, err, "postgres: invalid database: must not be nil: give a pool, a connection or a transaction", name)
		err = make(&postgres.Config{Schema: "A"})
		require.ErrorContains(t, err, `invalid schema "A": `, name)
		require.ErrorContains(t, err, "invalid database: must not be nil", name)
	}
}

// The server answers no connection. The first connection that it accepts is the test's own.
func TestABadSchemaIsRefusedBeforeAnyConnection(t *testing.T) {
	t.Parallel()
	server := testkit.Do(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer server.Close()
	url := "postgres://dibs@" + server.Addr().String() + "/dibs?sslmode=disable&connect_timeout=1"
	pool := testkit.Do(pgxpool.New(t.Context(), url))(t)
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()

	for _, schema := range []string{"A", "1a", "a-b", "pg_catalog", `x"; drop schema dibs; --`, "a\x00"} {
		config := &postgres.Config{Schema: schema}
		_, opened := postgres.Open(t.Context(), url, config)
		_, made := postgres.New(pool, config)
		_, madeSQL := postgres.NewSQL(db, config)

		for _, err := range []error{opened, made, madeSQL} {
			invalid := testkit.As[*messagestore.InvalidError](t, err)
			require.Equal(t, "schema", invalid.Field, "%q", schema)
			require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", schema)
		}
	}

	own := testkit.Do(net.Dial("tcp", server.Addr().String()))(t)
	defer own.Close()
	first := testkit.Do(server.Accept())(t)
	defer first.Close()
	require.Equal(t, own.LocalAddr().String(), first.RemoteAddr().String(), "a connection came before the test's own")
}

func TestConformanceOverAPool(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	storetest.Run(t, storetest.Options{
		Open: func(*testing.T) messagestore.Driver { return testkit.Must(postgres.New(pool, nil)) },
		Reopen: func(t *testing.T, _ messagestore.Driver) messagestore.Driver {
			return testkit.Must(postgres.New(pgtest.Connect(t, pgtest.URL(t)), nil))
		},
		Beside: func(t *testing.T, _ messagestore.Driver) messagestore.Driver {
			return testkit.Must(postgres.New(pgtest.Connect(t, pgtest.URL(t)), nil))
		},
	})
}

func TestConformanceOverAConnection(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t)
	pgtest.Pool(t)
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) messagestore.Driver {
			return testkit.Must(postgres.New(connect(t, pgtest.URL(t)), nil))
		},
		OneUser: true, // a caller that leaves early leaves the connection closed
	})
}

func TestConformanceInATransaction(t *testing.T) {
	t.Parallel()
	testkit.TakesTurns(t, 3, 4)
	pgtest.Pool(t)
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) messagestore.Driver {
			tx := testkit.Do(connect(t, pgtest.URL(t)).Begin(t.Context()))(t)
			return testkit.Must(postgres.New(tx, nil))
		},
		OneUser: true,
	})
}

// connect returns a connection that is closed when the test ends, and with it its transaction.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}
