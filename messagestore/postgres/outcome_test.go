package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// holdCategory writes to a stream of the category in a transaction that goes on.
func holdCategory(t *testing.T, stream messagestore.StreamName) pgx.Tx {
	t.Helper()
	holder := begin(t, pgx.ReadCommitted)
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(holder, nil)), nil)), stream, messagestore.AnyVersion, opened())
	return holder
}

func appendOne(stream messagestore.StreamName, expected messagestore.Version) messagestore.Append {
	return messagestore.Append{Stream: stream, Expected: expected, Records: []messagestore.Encoded{
		{ID: uuid.Must(uuid.NewV7()), Type: "Opened", Data: []byte(`{}`)},
	}}
}

func TestKilledBackendLeavesAnUnknownOutcomeThatCanBeResolved(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	pool, pid := pgtest.PoolOfOne(t, nil)
	driver := testkit.Must(postgres.New(pool, nil))
	a := appendOne(category.Stream("1"), messagestore.NoStream)
	done := testkit.Go(func() error { return testkit.ErrorOf(driver.Append(t.Context(), a)) })
	waitUntilBlocked(t, shared, pid)

	testkit.Do(shared.Exec(t.Context(), "select pg_terminate_backend($1)", int32(pid)))(t)

	err := testkit.Receive(t, "the end of the call", done)
	unknown := testkit.As[*messagestore.OutcomeUnknownError](t, err)
	require.Equal(t, []messagestore.Append{a}, unknown.Writes)
	require.NoError(t, holder.Rollback(t.Context()))
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(messagestore.New(driver, nil)).Resolve(t.Context(), unknown)), messagestore.ErrNotWritten)
}

// The lock holds the question back until the write that it asks about is over.
func TestResolveWaitsForAWriteWhoseCallerIsGone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	holder := begin(t, pgx.ReadCommitted)
	message := opened()
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(holder, nil)), nil)), stream, messagestore.NoStream, message)
	asking, pid := pgtest.PoolOfOne(t, func(c *pgxpool.Config) {
		// A transaction at this level would not see the writes that it waited for.
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	})
	lost := &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: stream, Records: []messagestore.Encoded{{ID: message.ID}}}}}
	type answer struct {
		written []messagestore.Written
		err     error
	}
	done := testkit.Go(func() answer {
		written, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(asking, nil)), nil)).Resolve(t.Context(), lost)
		return answer{written, err}
	})
	waitUntilBlocked(t, pool, pid)

	require.NoError(t, holder.Commit(t.Context()))

	got := testkit.Receive(t, "the end of the call", done)
	require.NoError(t, got.err)
	require.Len(t, got.written, 1)
	require.Equal(t, messagestore.Version(0), got.written[0].Version)
}

func TestContextThatEndsWhileWaitingLeavesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	pool, pid := pgtest.PoolOfOne(t, nil)
	driver := testkit.Must(postgres.New(pool, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := testkit.Go(func() error {
		return testkit.ErrorOf(driver.Append(ctx, appendOne(category.Stream("1"), messagestore.NoStream)))
	})
	waitUntilBlocked(t, shared, pid)

	cancel()

	err := testkit.Receive(t, "the end of the call", done)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.Canceled)
	// pgx asks the server to cancel the statement in its own time; before that, the
	// lock might still be given to it.
	testkit.AwaitTrue(t, "a backend that waits no more", func() bool {
		waits := pgtest.Value[bool](t, shared, "select exists (select from pg_locks where pid = $1 and not granted)", pid)
		return !waits
	})
	require.NoError(t, holder.Commit(t.Context()))
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(messagestore.New(driver, nil)).Resolve(t.Context(), err)), messagestore.ErrNotWritten)
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := testkit.Must(postgres.New(pgtest.Pool(t), nil)).Append(ctx, appendOne(storetest.Category(t).Stream("1"), messagestore.NoStream))

	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
}

func TestWaitingForAStuckPeerEndsDefinitely(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	testkit.Do(pool.Exec(t.Context(), "alter function "+schema+`.wait_for_category(text) set lock_timeout = '20ms'`))(t)
	config := &postgres.Config{Schema: schema}
	category := storetest.Category(t)
	holder := testkit.Do(pool.Begin(t.Context()))(t)
	defer holder.Rollback(t.Context()) //nolint:errcheck // whatever became of the test
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(holder, config)), nil)), category.Stream("held"), messagestore.NoStream, opened())

	_, err := testkit.Must(postgres.New(pool, config)).Append(t.Context(), appendOne(category.Stream("1"), messagestore.NoStream))

	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "55P03", refused.Code)
}

// A conflict that is neither of an id nor of a position stays, and a retry does not help. A
// repeat is recognized, whichever index finds it first.
func TestWhatIsNoneOfOurConstraintsIsRefusedOnce(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"an index": {"create unique index theirs on %[1]s.messages ((data ->> 'invoice'))"},
		"a trigger": {
			`create function %[1]s.theirs() returns trigger language plpgsql as $$
			begin
				if exists (select from %[1]s.messages m where m.data ->> 'invoice' = new.data ->> 'invoice') then
					raise unique_violation using constraint = 'theirs';
				end if;
				return new;
			end $$`,
			"create trigger theirs before insert on %[1]s.messages for each row execute function %[1]s.theirs()",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, schema := pgtest.Schema(t)
			for _, statement := range statements {
				testkit.Do(pool.Exec(t.Context(), fmt.Sprintf(statement, schema)))(t)
			}
			driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
			category := storetest.Category(t)
			invoice := func(id string) messagestore.Append {
				a := record(category.Stream(id))
				a.Records[0].Data = []byte(`{"invoice":"1"}`)
				return a
			}
			first := invoice("1")
			testkit.Do(driver.Append(t.Context(), first))(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()

			_, one := driver.Append(ctx, invoice("2"))
			_, several := driver.AppendAll(ctx, []messagestore.Append{record(category.Stream("3")), invoice("4")})
			group := driver.AppendEach(ctx, []messagestore.Append{record(category.Stream("5")), invoice("6")})

			for _, err := range []error{one, several, group[1].Err} {
				refused := refusal(t, err)
				require.Equal(t, "23505", refused.Code)
				require.Equal(t, "theirs", refused.ConstraintName)
			}
			require.NoError(t, group[0].Err)
			require.True(t, testkit.Do(driver.Append(ctx, first))(t).Duplicate)
		})
	}
}

// A message that is written by drawing on until a position is free may be where readers have been.
func TestASequenceThatIsBehindIsNotDrawnFromUntilItFits(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	stream := storetest.Category(t).Stream("1")
	for range 10 {
		testkit.Do(driver.Append(t.Context(), record(stream)))(t)
	}
	testkit.Do(pool.Exec(t.Context(), "select setval('"+schema+".messages_global_position_seq', 1)"))(t)

	_, err := driver.Append(t.Context(), record(stream))

	refused := refusal(t, err)
	require.Equal(t, "23505", refused.Code)
	require.Equal(t, "messages_pkey", refused.ConstraintName)
	require.Equal(t, messagestore.Version(9), testkit.Do(driver.Version(t.Context(), stream))(t))
}

func TestSerializationFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	holder := holdCategory(t, stream)
	pool, pid := pgtest.PoolOfOne(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	})
	done := testkit.Go(func() error {
		return testkit.ErrorOf(testkit.Must(postgres.New(pool, nil)).Append(t.Context(), appendOne(stream, messagestore.AnyVersion)))
	})
	waitUntilBlocked(t, shared, pid)

	require.NoError(t, holder.Commit(t.Context()))

	require.NoError(t, testkit.Receive(t, "the end of the call", done))
}

// proxied returns a proxy, and a pool with connections through it.
func proxied(t *testing.T) (*testserver.Proxy, *pgxpool.Pool) {
	t.Helper()
	base := pgtest.Pool(t).Config()
	proxy := testkit.Do(testserver.NewProxy(pgconn.NetworkAddress(base.ConnConfig.Host, base.ConnConfig.Port)))(t)
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), through(proxy, base)))(t)
	t.Cleanup(func() {
		require.NoError(t, proxy.Close())
		pool.Close()
	})
	return proxy, pool
}

// through returns base for connections that pass the proxy.
func through(proxy *testserver.Proxy, base *pgxpool.Config) *pgxpool.Config {
	config := base.Copy()
	conn := config.ConnConfig
	conn.Host, conn.Port, conn.TLSConfig, conn.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	return config
}

// whenSent makes the message that holds a canary meet a fault, and closes met.
func whenSent(proxy *testserver.Proxy, fault testserver.Fault) (met chan struct{}) {
	met = make(chan struct{})
	sent := false
	proxy.SetRule(func(m testserver.Message) testserver.Fault {
		switch {
		case m.Name == "CancelRequest":
			return testserver.Drop // or it would end a statement that arrives late, sometimes
		case sent || m.From == testserver.FromServer || !bytes.Contains(m.Body, []byte(`"canary"`)):
			return testserver.Pass
		}
		sent = true
		close(met)
		return fault
	})
	return met
}

// whenAnswered cuts the connection when the server has written a canary, and closes met.
func whenAnswered(proxy *testserver.Proxy) (met chan struct{}) {
	met = make(chan struct{})
	sent, over := false, false
	proxy.SetRule(func(m testserver.Message) testserver.Fault {
		sent = sent || m.From == testserver.FromClient && bytes.Contains(m.Body, []byte(`"canary"`))
		if over || !sent || m.Name != "CommandComplete" {
			return testserver.Pass
		}
		over = true
		close(met)
		return testserver.CloseBefore
	})
	return met
}

// whenLost loses all that the server says once a canary was sent to it, and closes met.
func whenLost(proxy *testserver.Proxy) (met chan struct{}) {
	met = make(chan struct{})
	over, conn := false, 0
	proxy.SetRule(func(m testserver.Message) testserver.Fault {
		switch {
		case m.Name == "CancelRequest":
			return testserver.Drop
		case m.From == testserver.FromClient && bytes.Contains(m.Body, []byte(`"canary"`)):
			conn = m.Conn
		case m.From == testserver.FromServer && m.Conn == conn && !over:
			over = true
			close(met)
			return testserver.Lose
		}
		return testserver.Pass
	})
	return met
}

// cutCanary cuts the connection before the server has written a canary, or after it.
func cutCanary(proxy *testserver.Proxy, written bool) (met chan struct{}) {
	if written {
		return whenAnswered(proxy)
	}
	return whenSent(proxy, testserver.CloseBefore)
}

// backendOf returns the backend of a pool's only connection.
func backendOf(t *testing.T, pool *pgxpool.Pool) uint32 {
	t.Helper()
	conn := testkit.Do(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	require.Equal(t, int32(1), pool.Stat().TotalConns())
	return conn.Conn().PgConn().PID()
}

// awaitEndOf returns when the server is through with a connection.
func awaitEndOf(t *testing.T, backend uint32) {
	t.Helper()
	pool := pgtest.Pool(t)
	testkit.AwaitTrue(t, fmt.Sprintf("the end of backend %d", backend), func() bool {
		there := pgtest.Value[bool](t, pool, "select exists (select from pg_stat_activity where pid = $1)", backend)
		return !there
	})
}

func canary() messagestore.Envelope {
	m := opened()
	m.Body = messagestore.Raw{Type: "Opened", Data: []byte(`{"name":"canary"}`)}
	return m
}

// The network swallows the answer, and the caller has no deadline: writes in its shard wait for
// the timeout, and not until the system closes the connection.
func TestAWriteThatIsNeverAnsweredDoesNotKeepItsLine(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t)
	driver := testkit.Must(postgres.New(pool, nil))
	category := storetest.Category(t)
	_, err := driver.Append(t.Context(), record(category.Stream("0"))) // so that the statement is prepared
	require.NoError(t, err)
	unanswered := record(category.Stream("1"))
	unanswered.Records[0].Data = []byte(`{"name":"canary"}`)
	var first chan error
	for limit, sent := time.Second, false; !sent; limit *= 2 { // a slow machine has not sent it within the limit
		require.Less(t, limit, patience)
		driver.Within(limit)
		met := whenLost(proxy)
		first = make(chan error, 1)
		go func() {
			_, err := driver.Append(t.Context(), unanswered)
			first <- err
		}()
		testkit.AwaitTrue(t, "the fault, or the end of the first write", func() bool {
			select {
			case <-met:
				sent = true
			default:
			}
			return sent || len(first) > 0
		})
	}
	driver.Within(patience) // the first has its own by now
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	testkit.Do(driver.Append(ctx, record(category.Stream("2"))))(t)

	err = testkit.Receive(t, "the first write", first)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, messagestore.Version(0), testkit.Do(testkit.Must(messagestore.New(driver, nil)).Resolve(t.Context(), err))(t)[0].Version)
}

func TestStoreWritesOnceThoughTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprint("written ", written), func(t *testing.T) {
			t.Parallel()
			proxy, pool := proxied(t)
			store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
			stream := storetest.Category(t).Stream("1")
			write(t, store, stream, messagestore.NoStream, opened())

			met := cutCanary(proxy, written)
			got := write(t, store, stream, 0, canary())

			testkit.Receive(t, "the fault", met)
			require.Equal(t, messagestore.Version(1), got.Version)
			require.Equal(t, messagestore.Version(1), testkit.Do(store.Version(t.Context(), stream))(t))
		})
	}
}

// The lock holds off a write that has begun. One that has not arrived is refused by the fence: a
// write that was found missing never comes.
func TestWriteThatArrivesAfterItWasFoundMissingIsTurnedAway(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t)
	driver := testkit.Must(postgres.New(pool, nil))
	store := testkit.Must(messagestore.New(driver, nil))
	category := storetest.Category(t)
	stream := category.Stream("1")
	write(t, store, category.Stream("0"), messagestore.NoStream, opened()) // so that the statement is prepared
	message := canary()
	a := messagestore.Append{Stream: stream, Expected: messagestore.NoStream, Records: []messagestore.Encoded{{ID: message.ID, Type: "Opened", Data: []byte(`{"name":"canary"}`)}}}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	backend := backendOf(t, pool)
	onItsWay := whenSent(proxy, testserver.Hold)
	go func() {
		_, err := driver.Append(ctx, a)
		done <- err
	}()
	testkit.Receive(t, "the write on its way", onItsWay)
	leave()
	lost := testkit.Receive(t, "the end of the call", done)
	require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)

	require.ErrorIs(t, testkit.ErrorOf(store.Resolve(t.Context(), lost)), messagestore.ErrNotWritten)
	proxy.Release()
	awaitEndOf(t, backend)

	require.Equal(t, messagestore.NoStream, testkit.Do(store.Version(t.Context(), stream))(t))
	written := write(t, store, stream, messagestore.NoStream, message) // a new write is meant
	require.False(t, written.Duplicate)
}

// If nobody resolves it, it is written like any other.
func TestWriteThatArrivesLateIsWritten(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t)
	driver := testkit.Must(postgres.New(pool, nil))
	store := testkit.Must(messagestore.New(driver, nil))
	stream := storetest.Category(t).Stream("1")
	write(t, store, stream, messagestore.NoStream, opened())
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	backend := backendOf(t, pool)
	onItsWay := whenSent(proxy, testserver.Hold)
	go func() {
		_, err := store.Write(ctx, stream, 0, canary())
		done <- err
	}()
	testkit.Receive(t, "the write on its way", onItsWay)
	leave()
	lost := testkit.Receive(t, "the end of the call", done)
	require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)

	proxy.Release()
	awaitEndOf(t, backend)

	require.Equal(t, messagestore.Version(1), testkit.Do(store.Resolve(t.Context(), lost))(t)[0].Version)
}

// If a caller gets an unknown outcome, and Resolve then says "not written", the write's group does
// not write it later.
func TestGroupDoesNotWriteForACallerThatWasToldItDidNot(t *testing.T) {
	t.Parallel()
	c := gather(t)
	ctx, leave := context.WithCancel(t.Context())
	gone, stays := record(c.category.Stream("gone")), record(c.category.Stream("stays"))
	told := make(chan error, 1)
	c.add(ctx, gone, func(_ messagestore.Written, err error) { told <- err })
	c.add(t.Context(), stays, func(_ messagestore.Written, err error) { require.NoError(t, err) })

	again := lockCategoryWhenFree(t, pgtest.Pool(t), c) // the group waits for this
	awaitLockWaiters(t, pgtest.Pool(t), c.category)
	leave()
	require.ErrorIs(t, testkit.Receive(t, "the end of the write", told), messagestore.ErrOutcomeUnknown)
	_, err := pgtest.Pool(t).Exec(t.Context(), "insert into dibs.fences (category, fence) values ($1, 1)", string(c.category)) // as asking does
	require.NoError(t, err)
	require.NoError(t, again())
	c.wg.Wait()

	version := testkit.Do(c.driver.Version(t.Context(), gone.Stream))(t)
	require.Equal(t, messagestore.NoStream, version)
	version = testkit.Do(c.driver.Version(t.Context(), stays.Stream))(t)
	require.Equal(t, messagestore.Version(0), version)
}

// A restored backup or a standby that was behind has its fences where they were before.
func TestAFenceThatWasLearnedOfALostHistoryHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	c := gather(t)
	c.driver.Learn(c.category, 7)
	for n := range 2 {
		c.add(t.Context(), record(c.category.Stream(fmt.Sprint(n))), func(_ messagestore.Written, err error) { require.NoError(t, err) })
	}
	c.release()
	c.wg.Wait()
	require.NoError(t, testkit.Receive(t, "the first write", c.first))
	_, writes := c.driver.Flushes()
	require.Equal(t, int64(2), writes, "together")

	c.driver.Learn(c.category, 7)
	testkit.Do(c.driver.Append(t.Context(), record(c.category.Stream("alone"))))(t)
}

// A write on its way with such a fence is refused too.
func TestAFenceIsRaisedToWhereItNeverWas(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Must(postgres.New(pool, nil))
	stream := storetest.Category(t).Stream("1")
	for _, before := range []int64{1, 2} { // it was there, or is where the next one would be
		testkit.Do(driver.Find(t.Context(), stream, []uuid.UUID{uuid.New()}))(t)
		var outcome string
		require.NoError(t, pool.QueryRow(t.Context(),
			"select outcome from dibs.append(array[$1], '{-1}', '{1}', array[gen_random_uuid()], '{T}', '{\"{}\"}', '{null}', array[$2::bigint])", string(stream), before,
		).Scan(&outcome))
		require.Equal(t, "fenced", outcome)
	}
}

// If a caller leaves while the group waits for a connection, its write is certainly not written,
// and the other writes of the group are.
func TestGroupThatIsSentAfterItsCallerLeftGoesWithoutIt(t *testing.T) {
	t.Parallel()
	category := storetest.Category(t)
	pgtest.Pool(t)
	pool, _ := pgtest.PoolOfOne(t, nil)
	driver := testkit.Must(postgres.New(pool, nil))
	only := testkit.Do(pool.Acquire(t.Context()))(t)
	release := sync.OnceFunc(only.Release)
	defer release()
	firstCtx, leaveFirst := context.WithCancel(t.Context())
	first, told, stays := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := driver.Append(firstCtx, record(category.Stream("first")))
		first <- err
	}()
	awaitBusy(t, driver, category)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		_, err := driver.Append(ctx, record(category.Stream("gone")))
		told <- err
	}()
	awaitWaiting(t, driver, 1)
	go func() {
		_, err := driver.Append(t.Context(), record(category.Stream("stays")))
		stays <- err
	}()
	awaitWaiting(t, driver, 2)

	leaveFirst()
	require.ErrorIs(t, testkit.Receive(t, "the first write", first), context.Canceled)
	awaitWaiting(t, driver, 0) // the group waits for the connection
	leave()
	lost := testkit.Receive(t, "the end of the write", told)
	require.ErrorIs(t, lost, context.Canceled)
	require.NotErrorIs(t, lost, messagestore.ErrOutcomeUnknown)
	release()

	require.NoError(t, testkit.Receive(t, "the end of the call", stays))
	require.Equal(t, messagestore.NoStream, testkit.Do(driver.Version(t.Context(), category.Stream("gone")))(t))
}

// pgx waits for a silent server when it closes, and the caller of Open does not.
func TestOpeningEndsWithItsContextThoughTheServerIsSilent(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t)
	ctx, leave := context.WithCancel(t.Context())
	silent := make(chan struct{})
	proxy.SetRule(func(m testserver.Message) testserver.Fault {
		if m.Name != "ParseComplete" {
			return testserver.Pass
		}
		close(silent)
		return testserver.Lose
	})
	conn := pool.Config().ConnConfig
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(conn.User, conn.Password), Host: fmt.Sprintf("%s:%d", conn.Host, conn.Port),
		Path: "/" + conn.Database, RawQuery: "sslmode=disable",
	}
	done := testkit.Go(func() error { return testkit.ErrorOf(postgres.Open(ctx, u.String(), nil)) })
	testkit.Receive(t, "the silent server", silent)

	leave()

	require.ErrorIs(t, testkit.Receive(t, "the end of Open, which waits for no server", done), context.Canceled)
}

// A refused write is rolled back, and the network may be gone by then.
func TestCallEndsThoughItsRollbackIsLost(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	store, adm := testkit.Must(messagestore.New(testkit.Must(postgres.New(direct, nil)), nil)), testkit.Must(admin.New(direct, nil))
	category := storetest.Category(t)
	write(t, store, category.Stream("1"), messagestore.NoStream, opened())
	testkit.Do(adm.Delete(t.Context(), category.Stream("1"), 0, nil))(t)
	write(t, store, category.Stream("2"), messagestore.NoStream, opened())
	erased := testkit.Do(adm.Delete(t.Context(), category.Stream("2"), 0, &retention.DeleteOptions{EraseName: true}))(t)
	for name, call := range map[string]struct {
		ends func(db postgres.DB) error
		with error
	}{
		"find": {func(db postgres.DB) error {
			_, err := testkit.Must(postgres.New(db, nil)).Find(t.Context(), category.Stream("1"), []uuid.UUID{uuid.New()})
			return err
		}, messagestore.ErrDeleted},
		"delete": {func(db postgres.DB) error {
			_, err := testkit.Must(admin.New(db, nil)).Delete(t.Context(), erased.Tombstone, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true})
			return err
		}, messagestore.ErrInvalid},
		"verify": {func(db postgres.DB) error {
			_, err := testkit.Must(admin.New(db, nil)).Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{category + "none"}})
			return err
		}, messagestore.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, pool := proxied(t)
			lost := false
			proxy.SetRule(func(m testserver.Message) testserver.Fault {
				if m.From == testserver.FromServer || !bytes.Contains(m.Body, []byte("rollback")) {
					return testserver.Pass
				}
				lost = true
				return testserver.Lose
			})
			done := testkit.Go(func() error { return call.ends(pool) })

			require.ErrorIs(t, testkit.Receive(t, "the end of the call, which waits for no server", done), call.with)
			proxy.SetRule(nil)
			require.True(t, lost)
		})
	}
}

func TestConnectionThatCannotBeMadeWritesNothing(t *testing.T) {
	t.Parallel()
	config := testkit.Do(pgxpool.ParseConfig("postgres://user:canary@127.0.0.1:1/database?sslmode=disable"))(t)
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()

	_, err := testkit.Must(postgres.New(pool, nil)).Append(t.Context(), appendOne("account-1", messagestore.NoStream))

	require.Error(t, err)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	_, withConfig := errors.AsType[*pgconn.ConnectError](err)
	require.False(t, withConfig, "which has the password in it")
	require.NotContains(t, err.Error(), "canary")
}

// Streams of four categories in the one order and in the other, by two drivers, of which each makes
// groups.
func TestWritersOfTwoCategoriesInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const writers, rounds = 8, 25
	pool := pgtest.Pool(t)
	var log bytes.Buffer // to which a deadlock would be logged, and then tried again
	config := &postgres.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&log)))}
	stores := [2]*messagestore.Store{}
	for i := range stores {
		stores[i] = testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil))
	}
	store := stores[0]
	var streams []messagestore.StreamName
	for range 4 {
		streams = append(streams, storetest.Category(t).Stream("1"))
	}
	var group sync.WaitGroup
	failures := make(chan error, writers)
	for w := range writers {
		group.Go(func() {
			for range rounds {
				var writes []messagestore.StreamWrite
				for i := range streams {
					at := i
					if w%2 == 1 {
						at = len(streams) - 1 - i
					}
					writes = append(writes, messagestore.StreamWrite{Stream: streams[at], Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{opened()}})
				}
				if _, err := stores[w/2%2].WriteStreams(t.Context(), writes...); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	require.NoError(t, testkit.Receive(t, "the writers' failures", failures))
	for _, stream := range streams {
		require.Equal(t, messagestore.Version(writers*rounds-1), testkit.Do(store.Version(t.Context(), stream))(t))
	}
	require.NotContains(t, log.String(), "write again")
	require.NotContains(t, log.String(), "write one by one")
}

// During REINDEX CONCURRENTLY each index exists twice for a while, and the server checks the old
// one first, under another name.
func TestAnIndexThatIsMadeAnewIsNotSomebodyElses(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	stream := storetest.Category(t).Stream("1")
	for index, name := range map[string]string{"messages_id": "messages_id_ccold", "messages_stream": "messages_stream_ccold1"} {
		testkit.Do(pool.Exec(t.Context(), fmt.Sprintf("alter table %s.messages rename constraint %s to %s", schema, index, name)))(t)
	}
	first := record(stream)
	err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		testkit.Do(tx.Exec(t.Context(), "select from "+schema+".messages"))(t)
		testkit.Do(testkit.Must(postgres.New(pool, config)).Append(t.Context(), first))(t)

		late := record(stream)
		late.Expected = messagestore.NoStream
		require.ErrorIs(t, testkit.ErrorOf(testkit.Must(postgres.New(tx, config)).Append(t.Context(), late)), messagestore.ErrVersionConflict)
		_, err := tx.Exec(t.Context(), "select 1") // goes on
		return err
	})
	require.NoError(t, err)
}
