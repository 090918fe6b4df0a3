package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/migrations"
)

// A crowd is a number of writes behind a write that waits for a lock, so that they are certainly
// committed together when the lock is released.
type crowd struct {
	t        *testing.T
	driver   *postgres.Driver
	category messagestore.Category
	release  func()
	first    chan error
	wg       sync.WaitGroup
}

func gather(t *testing.T) *crowd {
	t.Helper()
	return gatherOver(t, testkit.Must(postgres.New(pgtest.Pool(t), nil)))
}

func gatherOver(t *testing.T, driver *postgres.Driver) *crowd {
	t.Helper()
	pool := pgtest.Pool(t)
	c := &crowd{t: t, driver: driver, category: storetest.Category(t), first: make(chan error, 1)}
	holder := testkit.Do(lockCategory(t.Context(), pool, c.category))(t)
	c.release = sync.OnceFunc(func() { require.NoError(t, holder()) })
	t.Cleanup(c.release)
	go func() {
		_, err := c.driver.Append(t.Context(), record(c.category.Stream("first")))
		c.first <- err
	}()
	awaitLockWaiters(t, pool, c.category)
	return c
}

// lockCategory takes a category's lock in a transaction of its own, and returns the function
// that ends it.
func lockCategory(ctx context.Context, pool *pgxpool.Pool, category messagestore.Category) (release func() error, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "select dibs.lock_category($1)", string(category))
	return func() error { return tx.Rollback(context.WithoutCancel(ctx)) }, err
}

// awaitLockWaiters returns when a session waits for the category's lock.
func awaitLockWaiters(t *testing.T, pool *pgxpool.Pool, category messagestore.Category) {
	t.Helper()
	testkit.AwaitTrue(t, "a session that waits for the lock of "+string(category), func() bool { return lockWaiters(t, pool, category) > 0 })
}

// lockWaitersSQL returns the processes that wait for a category's lock.
const lockWaitersSQL = `select pid from pg_locks where locktype = 'advisory' and classid = 1684628083
	and database = (select oid from pg_database where datname = current_database()) and objid::bigint = dibs.lock_key($1)::bigint & 4294967295 and not granted`

func lockWaiters(t *testing.T, pool *pgxpool.Pool, category messagestore.Category) (waiters int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "select count(*) from ("+lockWaitersSQL+") w", string(category)).Scan(&waiters); err != nil {
		t.Error(err)
	}
	return waiters
}

// awaitWaiting returns when so many writes wait for their turn.
func awaitWaiting(t *testing.T, driver *postgres.Driver, writes int) {
	t.Helper()
	testkit.AwaitEqual(t, "the writes that wait for their turn", writes, driver.Waiting)
}

// awaitBusy returns when a write to the category is under way.
func awaitBusy(t *testing.T, driver *postgres.Driver, category messagestore.Category) {
	t.Helper()
	testkit.AwaitTrue(t, "a write to "+string(category)+" that is under way", func() bool { return driver.Busy(category) })
}

// add starts a write and returns once it waits.
func (c *crowd) add(ctx context.Context, a messagestore.Append, answer func(messagestore.Written, error)) {
	c.t.Helper()
	before := c.driver.Waiting()
	c.wg.Go(func() { answer(c.driver.Append(ctx, a)) })
	awaitWaiting(c.t, c.driver, before+1)
}

func record(stream messagestore.StreamName) messagestore.Append {
	return messagestore.Append{Stream: stream, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{
		{ID: uuid.Must(uuid.NewV7()), Type: "Tested", Data: []byte("{}")},
	}}
}

func TestWritesThatWaitAreCommittedTogetherInTheirOrder(t *testing.T) {
	t.Parallel()
	c := gather(t)
	stream := c.category.Stream("1")
	var positions [8]messagestore.Version
	for i := range positions {
		c.add(t.Context(), record(stream), func(w messagestore.Written, err error) {
			positions[i] = w.Version
			if err != nil {
				t.Error(err)
			}
		})
	}

	c.release()
	c.wg.Wait()

	require.NoError(t, testkit.Receive(t, "the first write", c.first))
	for i, position := range positions {
		require.Equal(t, messagestore.Version(i), position)
	}
	flushes, writes := c.driver.Flushes()
	require.Equal(t, int64(1), flushes)
	require.Equal(t, int64(8), writes)
}

func TestAConflictInAGroupIsItsOwn(t *testing.T) {
	t.Parallel()
	c := gather(t)
	stream := c.category.Stream("1")
	var errs [4]error
	for i := range errs {
		a := record(stream)
		a.Expected = messagestore.NoStream
		c.add(t.Context(), a, func(_ messagestore.Written, err error) { errs[i] = err })
	}

	c.release()
	c.wg.Wait()

	require.NoError(t, errs[0])
	for _, err := range errs[1:] {
		require.Equal(t, &messagestore.VersionConflictError{Stream: stream, Expected: messagestore.NoStream, Actual: 0}, err)
	}
}

// The store would refuse this one earlier. The database refuses it too, and the others are
// written.
func TestAWriteThatTheDatabaseRefusesHarmsNoOther(t *testing.T) {
	t.Parallel()
	c := gather(t)
	var errs [5]error
	for i := range errs {
		a := record(c.category.Stream(fmt.Sprint(i)))
		if i == 2 {
			a.Records[0].Data = []byte("[]")
		}
		c.add(t.Context(), a, func(_ messagestore.Written, err error) { errs[i] = err })
	}

	c.release()
	c.wg.Wait()

	for i, err := range errs {
		version, versionErr := c.driver.Version(t.Context(), c.category.Stream(fmt.Sprint(i)))
		require.NoError(t, versionErr)
		if i == 2 {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			require.Equal(t, messagestore.NoStream, version)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(0), version)
	}
}

func TestACallerThatLeavesBeforeItsTurnWritesNothing(t *testing.T) {
	t.Parallel()
	c := gather(t)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	var stayed error
	c.add(ctx, record(c.category.Stream("left")), func(_ messagestore.Written, err error) { left <- err })
	c.add(t.Context(), record(c.category.Stream("stayed")), func(_ messagestore.Written, err error) { stayed = err })

	leave()
	err := testkit.Receive(t, "the end of the call", left)
	c.release()
	c.wg.Wait()

	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.NoError(t, stayed)
	require.Equal(t, messagestore.NoStream, testkit.Do(c.driver.Version(t.Context(), c.category.Stream("left")))(t))
}

// The connection is cut while the group is under way. Nobody knows, the store asks,
// and everything is there once.
func TestAGroupWhoseConnectionIsLostIsSettled(t *testing.T) {
	t.Parallel()
	c := gather(t)
	pool := pgtest.Pool(t)
	store := testkit.Must(messagestore.New(c.driver, nil))
	errs := make([]error, 6)
	for i := range errs {
		before := c.driver.Waiting()
		c.wg.Go(func() {
			_, errs[i] = store.Write(t.Context(), c.category.Stream(fmt.Sprint(i)), messagestore.NoStream, storetest.Opened{})
		})
		awaitWaiting(t, c.driver, before+1)
	}
	again := lockCategoryWhenFree(t, pool, c)
	awaitLockWaiters(t, pool, c.category)

	killLockWaiters(t, pool, c.category)
	require.NoError(t, again())
	c.wg.Wait()

	for i, err := range errs {
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(0), testkit.Do(store.Version(t.Context(), c.category.Stream(fmt.Sprint(i))))(t))
	}
}

// lockCategoryWhenFree queues for the lock behind the crowd's first write, so that
// the group has to wait for it in turn.
func lockCategoryWhenFree(t *testing.T, pool *pgxpool.Pool, c *crowd) (release func() error) {
	t.Helper()
	got := testkit.Go(func() error {
		var err error
		release, err = lockCategory(t.Context(), pool, c.category)
		return err
	})
	awaitTwoLockWaiters(t, pool, c.category)
	c.release()
	require.NoError(t, testkit.Receive(t, "the lock", got))
	return release
}

// Each write of a group sees the writes before it.
func TestWritesOfAGroupFollowEachOther(t *testing.T) {
	t.Parallel()
	c := gather(t)
	stream := c.category.Stream("1")
	var mu sync.Mutex
	expected := []messagestore.Version{messagestore.NoStream, 0, messagestore.NoStream, messagestore.AnyVersion, 1, 2, 7}
	answers := make([]string, len(expected))
	for i, version := range expected {
		a := record(stream)
		a.Expected = version
		a.Records = append(a.Records, record(stream).Records...)
		c.add(t.Context(), a, func(w messagestore.Written, err error) {
			mu.Lock()
			defer mu.Unlock()
			answers[i] = fmt.Sprint(w.Version)
			if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
				answers[i] = fmt.Sprint("conflict ", conflict.Expected, " ", conflict.Actual)
			}
		})
	}

	c.release()
	c.wg.Wait()

	require.NoError(t, testkit.Receive(t, "the first write", c.first))
	require.Equal(t, []string{"1", "conflict 0 1", "conflict no stream 1", "3", "conflict 1 3", "conflict 2 3", "conflict 7 3"}, answers)
}

// Of a group some were written before, by themselves or by each other.
func TestRepeatsInAGroupAreOneMessage(t *testing.T) {
	t.Parallel()
	c := gather(t)
	before := record(c.category.Stream("before"))
	twice := record(c.category.Stream("twice"))
	other := record(c.category.Stream("other"))
	other.Records[0].ID = twice.Records[0].ID
	group := []messagestore.Append{record(c.category.Stream("0")), before, twice, record(c.category.Stream("3")), twice, other, record(c.category.Stream("6"))}
	group[1].Expected = messagestore.NoStream
	got := make([]messagestore.Written, len(group))
	errs := make([]error, len(group))
	elsewhere := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	for i, a := range group {
		c.add(t.Context(), a, func(w messagestore.Written, err error) { got[i], errs[i] = w, err })
	}
	// Behind the crowd's first write, and before the group.
	done := testkit.Go(func() error { return testkit.ErrorOf(elsewhere.Append(t.Context(), before)) })
	awaitTwoLockWaiters(t, pgtest.Pool(t), c.category)

	c.release()
	c.wg.Wait()

	require.NoError(t, testkit.Receive(t, "the end of the call", done))
	for _, i := range []int{0, 3, 6} {
		require.NoError(t, errs[i])
		require.False(t, got[i].Duplicate)
		require.Equal(t, messagestore.Version(0), got[i].Version)
	}
	require.NoError(t, errs[1])
	require.True(t, got[1].Duplicate)
	require.NoError(t, errs[2])
	require.NoError(t, errs[4])
	require.Equal(t, got[2].GlobalPosition, got[4].GlobalPosition)
	require.NotEqual(t, got[2].Duplicate, got[4].Duplicate)
	require.ErrorIs(t, errs[5], messagestore.ErrIDConflict)
}

// A group has writes to several categories. If another session has the lock of a category, only the
// writes to that category wait.
func TestABusyCategoryHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	c := gather(t)
	pool := pgtest.Pool(t)
	free, busy := c.driver.TogetherWith(c.category), c.driver.TogetherWith(c.category+"x")
	for n := 0; !c.driver.InOneShard(free, busy); n++ {
		busy = messagestore.Category(fmt.Sprintf("%sy%d", c.category, n))
	}
	holder := testkit.Do(lockCategory(t.Context(), pool, busy))(t)
	letGo := sync.OnceValue(holder)
	t.Cleanup(func() { _ = letGo() })
	var last error
	written := make(chan messagestore.StreamName, 4)
	note := func(w messagestore.Written, err error) {
		if err != nil {
			t.Error(err)
		}
		written <- w.Stream
	}
	c.add(t.Context(), record(c.category.Stream("1")), note)
	c.add(t.Context(), record(busy.Stream("1")), func(_ messagestore.Written, err error) { last = err })
	c.add(t.Context(), record(free.Stream("1")), note)

	c.release()
	first, second := testkit.Receive(t, "a write", written), testkit.Receive(t, "a write", written)
	awaitLockWaiters(t, pool, busy)
	require.NoError(t, letGo())
	c.wg.Wait()

	require.ElementsMatch(t, []messagestore.StreamName{c.category.Stream("1"), free.Stream("1")}, []messagestore.StreamName{first, second})
	require.NoError(t, last)
	flushes, writes := c.driver.Flushes()
	require.Equal(t, int64(1), flushes)
	require.Equal(t, int64(2), writes)
}

// In English a colon sorts between a dash and a dot, so a category of the same entity with a type
// could be mistaken for the busy category.
func TestAGroupTakesItsCategoriesForWhatTheyAreInEveryLanguage(t *testing.T) {
	t.Parallel()
	url := pgtest.DatabaseInEnglish(t)
	require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
	driver := testkit.Must(postgres.New(pgtest.Connect(t, url), nil))

	answers := driver.AppendEach(t.Context(), []messagestore.Append{record("account-1"), record("account:command-1")})

	require.NoError(t, answers[0].Err)
	require.NoError(t, answers[1].Err)
	flushes, writes := driver.Flushes()
	require.Equal(t, int64(1), flushes)
	require.Equal(t, int64(2), writes)
}

// A category that is locked for too long is waited for once, by the writes to it.
func TestAStuckPeerFailsTheWritesToItsCategoryAndNoOther(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	testkit.Do(pool.Exec(t.Context(), "alter function "+schema+`.wait_for_category set lock_timeout = '20ms'`))(t)
	config := &postgres.Config{Schema: schema}
	holder := testkit.Do(pool.Begin(t.Context()))(t)
	defer holder.Rollback(t.Context()) //nolint:errcheck // whatever became of the test
	testkit.Do(testkit.Must(postgres.New(holder, config)).Append(t.Context(), record("stuck-0")))(t)
	driver := testkit.Must(postgres.New(pool, config))

	answers := driver.AppendAllEach(t.Context(), [][]messagestore.Append{
		both("free-1", "stuck-3"),
		{record("stuck-1")},
		{record("other-1")},
		{record("stuck-2")},
		{record("other-2")},
		both("stuck-4", "free-2"),
		{record("free-3")},
		both("free-4", "other-3"),
	})

	for _, i := range []int{0, 1, 3, 5} {
		require.NotErrorIs(t, answers[i].Err, messagestore.ErrOutcomeUnknown)
		refused := testkit.As[*pgconn.PgError](t, answers[i].Err)
		require.Equal(t, "55P03", refused.Code)
	}
	for _, i := range []int{2, 4, 6, 7} {
		require.NoError(t, answers[i].Err)
	}
}

// An id that a transaction which has not ended has recorded is the business of its own write: the
// others of the group are written, and their categories are free for other processes meanwhile.
func TestAnIDOfAnOpenTransactionHoldsUpItsOwnWriteAlone(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	testkit.Do(pool.Exec(t.Context(), "alter function "+schema+`.append set lock_timeout = '50ms'`))(t)
	config := &postgres.Config{Schema: schema}
	holder := testkit.Do(pool.Begin(t.Context()))(t)
	defer holder.Rollback(t.Context()) //nolint:errcheck // whatever became of the test
	held := record("held-0")
	testkit.Do(testkit.Must(postgres.New(holder, config)).Append(t.Context(), held))(t)
	same := record("mine-1")
	same.Records[0].ID = held.Records[0].ID
	driver := testkit.Must(postgres.New(pool, config))

	answers := driver.AppendAllEach(t.Context(), [][]messagestore.Append{{record("other-1")}, {same}, both("free-1", "other-2")})

	require.NoError(t, answers[0].Err)
	require.Equal(t, "55P03", refusal(t, answers[1].Err).Code)
	require.NoError(t, answers[2].Err)
}

// If transactions are too old to share, each write is sent alone; but writes to one locked category
// fail after a single wait, and others are written.
func TestOneByOneACategoryIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.SchemaInShared(t)
	testkit.Do(pool.Exec(t.Context(), "alter function "+schema+".append set lock_timeout = '50ms'"))(t)
	holder := testkit.Do(pool.Begin(t.Context()))(t)
	defer holder.Rollback(t.Context()) //nolint:errcheck // whatever became of the test
	testkit.Do(testkit.Must(postgres.New(holder, &postgres.Config{Schema: schema})).Append(t.Context(), record("stuck-0")))(t)
	old := limitedPool(t, "default_transaction_isolation", "repeatable read")
	driver := testkit.Must(postgres.New(old, &postgres.Config{Schema: schema}))

	answers := driver.AppendEach(t.Context(), []messagestore.Append{record("stuck-1"), record("stuck-2"), record("other-1"), record("stuck-3")})

	require.NoError(t, answers[2].Err)
	first := refusal(t, answers[0].Err)
	require.Equal(t, "55P03", first.Code)
	for _, i := range []int{1, 3} {
		require.Same(t, first, refusal(t, answers[i].Err), "of one wait")
	}
}

// A role may have less time for a statement than a write may wait for its category: a write that
// runs out of it fails no other.
func TestAWriteThatTakesTooLongFailsNoOther(t *testing.T) {
	t.Parallel()
	c := gather(t)
	first, second := make(chan error, 1), make(chan error, 1)
	c.add(t.Context(), record(c.category.Stream("1")), func(_ messagestore.Written, err error) { first <- err })
	c.add(t.Context(), record(c.category.Stream("2")), func(_ messagestore.Written, err error) { second <- err })

	// The write before the group, the group, and the group's first write alone.
	cancelStatements(t, 3, lockWaitersSQL, string(c.category))

	require.Equal(t, "57014", refusal(t, testkit.Receive(t, "the end of the first write", first)).Code)
	c.release()
	require.NoError(t, testkit.Receive(t, "the end of the second write", second))
}

// cancelStatements cancels n statements, one after the other, like a timeout: those of the
// processes that a query returns, once they wait. A short real timeout might end other statements
// on a slow machine.
func cancelStatements(t *testing.T, times int, waiters string, args ...any) {
	t.Helper()
	pool := pgtest.Pool(t)
	var last time.Time // when the statement that was cancelled last was begun
	for n := range times {
		testkit.AwaitTrue(t, fmt.Sprintf("statement %d of %d, which waits", n+1, times), func() bool {
			var cancelled bool
			err := pool.QueryRow(t.Context(), `select pg_cancel_backend(pid), query_start from pg_stat_activity
				where pid in (`+waiters+`) and query_start > $`+fmt.Sprint(len(args)+1)+` and state = 'active' limit 1`, append(args, last)...).Scan(&cancelled, &last)
			if !errors.Is(err, pgx.ErrNoRows) {
				require.NoError(t, err)
			}
			return cancelled
		})
	}
}

// Where a role has less time for a statement, each write to a category that another session keeps
// runs out of it in turn: those to others are between them, and not behind them all.
func TestAStuckPeerHoldsNobodyElseUpForEachWriteToItsCategory(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	stuck, other := storetest.Category(t), storetest.Category(t).Stream("1")
	driver := testkit.Must(postgres.New(pool, nil))
	holder := testkit.Do(lockCategory(t.Context(), pool, stuck))(t)
	letGo := sync.OnceValue(holder)
	t.Cleanup(func() { _ = letGo() })
	const writes = 10
	var group []messagestore.Append
	for i := range writes {
		group = append(group, record(stuck.Stream(fmt.Sprint(i))))
	}
	done := testkit.Go(func() []postgres.Answer { return driver.AppendEach(t.Context(), append(group, record(other))) })

	cancelStatements(t, 2, lockWaitersSQL, string(stuck)) // the group, and the first write by itself
	testkit.AwaitEqual(t, "the version of the other category's stream", 0, func() messagestore.Version {
		return testkit.Do(testkit.Must(postgres.New(pool, nil)).Version(t.Context(), other))(t)
	})
	require.NoError(t, letGo())

	answers := testkit.Receive(t, "the end of the call", done)
	require.NoError(t, answers[writes].Err)
	failed := 0
	for _, answer := range answers[:writes] {
		if answer.Err != nil {
			require.Equal(t, "57014", refusal(t, answer.Err).Code)
			failed++
		}
	}
	require.Equal(t, 1, failed, "before the other was written")
}

// A write to a free category does not hold up the others again.
func TestASlowWriteCostsItsGroupOneTimeout(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	for _, statement := range []string{
		"create function %[1]s.slowly() returns trigger language plpgsql as 'begin if new.type = ''Slow'' then perform pg_sleep(600); end if; return new; end'",
		"create trigger slowly before insert on %[1]s.messages for each row execute function %[1]s.slowly()",
	} {
		testkit.Do(pool.Exec(t.Context(), fmt.Sprintf(statement, schema)))(t)
	}
	var log bytes.Buffer
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema, Logger: logger.Zerolog(zerolog.New(&log))}))
	var group []messagestore.Append
	for range 4 {
		group = append(group, record(storetest.Category(t).Stream("1")))
	}
	group[3].Records[0].Type = "Slow"

	done := testkit.Go(func() []postgres.Answer { return driver.AppendEach(t.Context(), group) })

	// The group, and the slow write alone.
	cancelStatements(t, 2, "select pid from pg_stat_activity where datname = $1 and wait_event = 'PgSleep'", pool.Config().ConnConfig.Database)

	answers := testkit.Receive(t, "the end of the group", done)
	for _, answer := range answers[:3] {
		require.NoError(t, answer.Err)
	}
	require.Equal(t, "57014", refusal(t, answers[3].Err).Code)
	require.Equal(t, 1, strings.Count(log.String(), "write one by one"), log.String())
}

// If no other write waits, a cancelled write is tried only once.
func TestASlowWriteOfSeveralMessagesIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	for _, statement := range []string{
		"create sequence %[1]s.begun",
		"grant usage on sequence %[1]s.begun to public",
		"create function %[1]s.slowly() returns trigger language plpgsql as 'begin perform nextval(''%[1]s.begun''), pg_sleep(600); return new; end'",
		"create trigger slowly before insert on %[1]s.messages for each row execute function %[1]s.slowly()",
	} {
		testkit.Do(pool.Exec(t.Context(), fmt.Sprintf(statement, schema)))(t)
	}
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema, Logger: logger.Silent()}))
	category := storetest.Category(t)

	done := testkit.Go(func() error {
		return testkit.ErrorOf(driver.AppendAll(t.Context(), both(category.Stream("1"), category.Stream("2"))))
	})
	cancelStatements(t, 1, "select pid from pg_stat_activity where datname = $1 and wait_event = 'PgSleep'", pool.Config().ConnConfig.Database)

	require.Equal(t, "57014", refusal(t, testkit.Receive(t, "the end of the write", done)).Code)
	require.Equal(t, 1, pgtest.Value[int](t, pool, fmt.Sprintf("select last_value from %s.begun", schema)))
}

// limitedPool returns a pool of connections with a setting.
func limitedPool(t *testing.T, setting, value string) *pgxpool.Pool {
	t.Helper()
	config := pgtest.Pool(t).Config()
	config.ConnConfig.RuntimeParams[setting] = value
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return pool
}

// refusal is a definite error of the server's.
func refusal(t *testing.T, err error) *pgconn.PgError {
	t.Helper()
	if errors.Is(err, messagestore.ErrOutcomeUnknown) {
		t.Error(err)
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		t.Errorf("%v", err)
		return &pgconn.PgError{}
	}
	return refused
}

// The pool has no connection for them yet when they leave: that nothing is written is sure.
func TestWhoLeavesBeforeThereIsAConnectionWritesNothing(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{1, 2} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			t.Parallel()
			config := pgtest.Pool(t).Config()
			config.MaxConns = 1
			pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
			testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
			conn := testkit.Do(pool.Acquire(t.Context()))(t)
			release := sync.OnceFunc(conn.Release)
			t.Cleanup(release)
			c := &crowd{t: t, driver: testkit.Must(postgres.New(pool, nil)), category: storetest.Category(t)}
			begins, endFirst := context.WithCancel(t.Context())
			first := testkit.Go(func() error { return testkit.ErrorOf(c.driver.Append(begins, record(c.category.Stream("first")))) })
			awaitBusy(t, c.driver, c.category)
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, callers)
			for i := range callers {
				c.add(ctx, record(c.category.Stream(fmt.Sprint(i))), func(_ messagestore.Written, err error) { left <- err })
			}
			endFirst()
			require.ErrorIs(t, testkit.Receive(t, "the first write", first), context.Canceled)
			awaitWaiting(t, c.driver, 0) // they are taken, and wait for a connection

			leave()
			c.wg.Wait()

			for range callers {
				err := testkit.Receive(t, "the end of the call", left)
				require.ErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
			}
			release()
			_, err := c.driver.Append(t.Context(), record(c.category.Stream("after"))) // in the same line
			require.NoError(t, err)
			for i := range callers {
				require.Equal(t, messagestore.NoStream, testkit.Do(c.driver.Version(t.Context(), c.category.Stream(fmt.Sprint(i))))(t))
			}
		})
	}
}

// A fence is raised while writes are under way with another: they go on with it in a
// group, unless their callers have left.
func TestAGroupGoesOnWithTheFenceThatWasRaised(t *testing.T) {
	t.Parallel()
	for _, streams := range []int{4, 2} { // each written to once, and twice
		goesOnWithTheFence(t, streams)
	}
}

func goesOnWithTheFence(t *testing.T, streams int) {
	t.Helper()
	c := gather(t)
	asker := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	var errs [4]error
	for i := range errs {
		c.add(t.Context(), record(c.category.Stream(fmt.Sprint(i%streams))), func(_ messagestore.Written, err error) { errs[i] = err })
	}
	found := testkit.Go(func() error {
		return testkit.ErrorOf(asker.Find(t.Context(), c.category.Stream("0"), []uuid.UUID{uuid.New()}))
	})
	awaitTwoLockWaiters(t, pgtest.Pool(t), c.category)

	c.release()
	c.wg.Wait()

	require.NoError(t, testkit.Receive(t, "the end of the question", found))
	for _, err := range errs {
		require.NoError(t, err)
	}
	flushes, writes := c.driver.Flushes()
	require.Equal(t, int64(2), flushes, "one was turned away")
	require.Equal(t, int64(4), writes)
}

// A write that append has to resolve leaves the others in their group.
func TestOnlyWhatWasRecordedOrErasedLeavesAGroup(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Must(postgres.New(pool, nil))
	category := storetest.Category(t)
	for name, change := range map[string]func(*messagestore.Append){
		"at its version":    func(*messagestore.Append) {},
		"at another":        func(a *messagestore.Append) { a.Expected = messagestore.NoStream },
		"of two streams":    func(a *messagestore.Append) { a.Stream = category.Stream("elsewhere") },
		"of a deleted name": nil,
	} {
		stream := category.Stream(strings.ReplaceAll(name, " ", ""))
		before := record(stream)
		testkit.Do(driver.Append(t.Context(), before))(t)
		again := before
		if change == nil {
			testkit.Do(testkit.Must(admin.New(pool, nil)).Delete(t.Context(), stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true}))(t)
			again = record(stream)
			again.Expected = messagestore.NoStream
		} else {
			change(&again)
		}
		_, flushed := driver.Flushes()

		answers := driver.AppendEach(t.Context(), []messagestore.Append{record(category.Stream("a")), again, record(category.Stream("b"))})

		require.NoError(t, answers[0].Err, name)
		require.NoError(t, answers[2].Err, name)
		_, now := driver.Flushes()
		require.Equal(t, flushed+2, now, name)
		switch name {
		case "of two streams":
			require.ErrorIs(t, answers[1].Err, messagestore.ErrIDConflict, name)
		case "of a deleted name":
			require.ErrorIs(t, answers[1].Err, messagestore.ErrVersionConflict, name)
		default:
			require.NoError(t, answers[1].Err, name)
			require.True(t, answers[1].Written.Duplicate, name)
		}
	}
}

// If transactions do not see the writes that they wait for, each write is sent alone.
func TestGroupsAreNotMadeAboveReadCommitted(t *testing.T) {
	t.Parallel()
	c := gatherOver(t, testkit.Must(postgres.New(limitedPool(t, "default_transaction_isolation", "repeatable read"), nil)))
	var errs [4]error
	for i := range errs {
		c.add(t.Context(), record(c.category.Stream(fmt.Sprint(i))), func(_ messagestore.Written, err error) { errs[i] = err })
	}

	c.release()
	c.wg.Wait()

	for _, err := range errs {
		require.NoError(t, err)
	}
	_, writes := c.driver.Flushes()
	require.Zero(t, writes)
}

// Each write of a group, to one stream or to several of two categories, has the same outcome as
// alone.
func TestAGroupAnswersAsItsWritesWouldOneByOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	conn := testkit.Do(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	one := testkit.Must(postgres.New(conn.Conn(), nil))
	rapid.Check(t, func(r *rapid.T) {
		prefix := "g" + strings.ReplaceAll(uuid.NewString(), "-", "")
		together, apart := messagestore.Category(prefix+"a"), messagestore.Category(prefix+"b")
		d := testkit.Must(postgres.New(pool, nil))
		for range rapid.IntRange(1, 3).Draw(r, "groups") {
			n := rapid.IntRange(2, 12).Draw(r, "writes")
			group, want := make([][]messagestore.Append, n), make([]string, n)
			own := rapid.Bool().Draw(r, "each has streams of its own")
			for i := range group {
				var twins []messagestore.Append
				for _, stream := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"-1", "-2", "-3", "z-1"}), 1, 3, rapid.ID).Draw(r, "streams") {
					if own {
						stream += fmt.Sprint("-", i)
					}
					a := messagestore.Append{
						Stream:   messagestore.StreamName(together) + messagestore.StreamName(stream),
						Expected: messagestore.Version(rapid.Int64Range(-2, 5).Draw(r, "expected")),
					}
					for range rapid.IntRange(1, 3).Draw(r, "messages") {
						a.Records = append(a.Records, messagestore.Encoded{ID: uuid.New(), Type: "Tested", Data: []byte("{}")})
					}
					group[i] = append(group[i], a)
					twin := a
					twin.Stream = messagestore.StreamName(apart) + messagestore.StreamName(stream)
					twin.Records = slices.Clone(a.Records)
					for k := range twin.Records {
						twin.Records[k].ID = uuid.New()
					}
					twins = append(twins, twin)
				}
				written, err := one.AppendAll(t.Context(), twins)
				want[i] = told(written, err)
			}

			answers := d.AppendAllEach(t.Context(), group)

			for i, answer := range answers {
				require.Equal(r, want[i], told(answer.All, answer.Err), "%d of %v", i, group)
				for k, written := range answer.All {
					found := testkit.Do(one.Find(t.Context(), group[i][k].Stream, written.IDs[len(written.IDs)-1:]))(t)
					require.Len(r, found, 1)
					require.Equal(r, found[0].GlobalPosition, written.GlobalPosition)
					require.Equal(r, found[0].Position, written.Version)
					require.Equal(r, found[0].Time, written.Time)
				}
			}
		}
	})
}

// both is a write to two streams.
func both(a, b messagestore.StreamName) []messagestore.Append {
	return []messagestore.Append{record(a), record(b)}
}

// Writes to two categories, one of which another session has, keep the first of their group from
// nothing. The next group waits for both categories, and has all of these writes.
func TestWritesToTwoCategoriesWaitForBothInTheNextGroup(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	d := testkit.Must(postgres.New(pool, nil))
	category, busy := storetest.Category(t), storetest.Category(t)+"busy"
	release := testkit.Do(lockCategory(t.Context(), pool, busy))(t)
	single := []messagestore.Append{record(category.Stream("single"))}
	there, back := both(category.Stream("both"), busy.Stream("both")), both(busy.Stream("both"), category.Stream("both"))
	answered := testkit.Go(func() []postgres.Answer {
		return d.AppendAllEach(t.Context(), [][]messagestore.Append{single, there, back})
	})

	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	testkit.AwaitEqual(t, "the version of the stream of one category", 0, func() messagestore.Version {
		return testkit.Do(store.Version(t.Context(), single[0].Stream))(t)
	})
	version := testkit.Do(store.Version(t.Context(), there[0].Stream))(t)
	require.Equal(t, messagestore.NoStream, version)
	awaitLockWaiters(t, pool, busy)
	require.NoError(t, release())
	for _, answer := range testkit.Receive(t, "the end of the call", answered) {
		require.NoError(t, answer.Err)
	}
	version = testkit.Do(store.Version(t.Context(), there[1].Stream))(t)
	require.EqualValues(t, 1, version)
	flushes, writes := d.Flushes()
	require.Equal(t, int64(2), flushes)
	require.Equal(t, int64(3), writes)
}

// If a group's first write is to two categories, the group locks the category with the lesser name
// first, in any order of the write, like append, so that they never wait for each other.
func TestAGroupWaitsForItsCategoriesInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	lesser, greater := storetest.Category(t), messagestore.Category("")
	for n, found := 0, false; !found; n++ { // not in the order of their keys
		greater = messagestore.Category(fmt.Sprintf("%s%d", lesser, n))
		require.NoError(t, pool.QueryRow(t.Context(), "select dibs.lock_key($1) < dibs.lock_key($2)", string(greater), string(lesser)).Scan(&found))
	}
	for _, streams := range [][2]messagestore.StreamName{
		{lesser.Stream("1"), greater.Stream("1")},
		{greater.Stream("1"), lesser.Stream("1")},
	} {
		d := testkit.Must(postgres.New(pool, nil))
		holder := testkit.Do(lockCategory(t.Context(), pool, lesser))(t)
		release := sync.OnceValue(holder)
		t.Cleanup(func() { _ = release() })
		answered := testkit.Go(func() []postgres.Answer {
			write := both(streams[0], streams[1])
			return d.AppendAllEach(t.Context(), [][]messagestore.Append{write, both(streams[0], streams[1])})
		})
		awaitLockWaiters(t, pool, lesser)

		free := pgtest.Value[bool](t, pool, "select pg_try_advisory_xact_lock(1684628083, dibs.lock_key($1))", string(greater))

		require.True(t, free, "while %s is waited for, for a write to %v", lesser, streams)
		require.NoError(t, release())
		for _, answer := range testkit.Receive(t, "the end of the call", answered) {
			require.NoError(t, answer.Err)
		}
		_, writes := d.Flushes()
		require.Equal(t, int64(2), writes)
	}
}

// A process does not hold up itself: writes to the same two categories wait for each other in one
// shard, whichever they name first.
func TestWritesToTheSameCategoriesWaitInOneShard(t *testing.T) {
	t.Parallel()
	c := gather(t)
	other := c.category + "other"
	for n := 0; c.driver.InOneShard(c.category, other) && n < 100; n++ { // with one processor there is one shard
		other = messagestore.Category(fmt.Sprintf("%sother%d", c.category, n))
	}
	for n, write := range [][]messagestore.Append{
		both(c.category.Stream("1"), other.Stream("1")),
		both(other.Stream("1"), c.category.Stream("1")),
		{record(c.category.Stream("2"))},
	} {
		c.wg.Go(func() {
			if _, err := c.driver.AppendAll(t.Context(), write); err != nil {
				t.Error(err)
			}
		})
		awaitWaiting(t, c.driver, n+1)
	}

	c.release()
	c.wg.Wait()

	require.NoError(t, testkit.Receive(t, "the first write", c.first))
	_, writes := c.driver.Flushes()
	require.Equal(t, int64(3), writes)
}

// A write to several streams goes as a group, even if no other write waits, and gets the same
// answer as alone.
func TestAWriteToSeveralStreamsIsAGroupOfOne(t *testing.T) {
	t.Parallel()
	d := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	category := storetest.Category(t)
	flushed := func(what string, more int64, f func()) {
		t.Helper()
		before, _ := d.Flushes()
		f()
		after, _ := d.Flushes()
		require.Equal(t, before+more, after, what)
	}
	flushed("one message", 0, func() {
		testkit.Do(d.Append(t.Context(), record(category.Stream("one"))))(t)
	})
	two := both(category.Stream("a1"), category.Stream("a2"))
	flushed("two streams", 1, func() {
		written := testkit.Do(d.AppendAll(t.Context(), two))(t)
		require.Len(t, written, 2)
		require.Less(t, written[0].GlobalPosition, written[1].GlobalPosition)
	})
	pair := record(category.Stream("pair"))
	pair.Records = append(pair.Records, record(category.Stream("pair")).Records...)
	flushed("two messages", 0, func() {
		require.EqualValues(t, 1, testkit.Do(d.Append(t.Context(), pair))(t).Version)
	})
	flushed("a conflict", 1, func() {
		stale := both(category.Stream("new"), category.Stream("a2"))
		stale[0].Expected, stale[1].Expected = messagestore.NoStream, messagestore.NoStream
		_, err := d.AppendAll(t.Context(), stale)
		conflict := testkit.As[*messagestore.VersionConflictError](t, err)
		require.Equal(t, &messagestore.VersionConflictError{Stream: category.Stream("a2"), Expected: messagestore.NoStream, Actual: 0}, conflict)
		require.Equal(t, messagestore.NoStream, testkit.Do(d.Version(t.Context(), category.Stream("new")))(t))
	})
	flushed("the same again", 1, func() {
		written := testkit.Do(d.AppendAll(t.Context(), two))(t)
		require.True(t, written[0].Duplicate)
		require.True(t, written[1].Duplicate)
	})
	flushed("a context that has ended", 0, func() {
		ended, end := context.WithCancel(t.Context())
		end()
		_, err := d.AppendAll(ended, both(category.Stream("b1"), category.Stream("b2")))
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	})
}

// A write to several streams of which one does not fit writes nothing, where no other write of its
// group is to one of these streams.
func TestAWriteOfAGroupIsNotWrittenInPart(t *testing.T) {
	t.Parallel()
	d := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	category := storetest.Category(t)
	for i, expected := range [][2]messagestore.Version{{0, messagestore.NoStream}, {messagestore.NoStream, 0}} {
		stream := func(name string) messagestore.StreamName { return category.Stream(name + fmt.Sprint(i)) }
		half := both(stream("half1"), stream("half2"))
		half[0].Expected, half[1].Expected = expected[0], expected[1]
		met := both(stream("met1"), stream("met2"))
		met[0].Expected, met[1].Expected = expected[0], expected[1]

		answers := d.AppendAllEach(t.Context(), [][]messagestore.Append{
			both(stream("a1"), stream("a2")), half, met, both(stream("b1"), stream("b2")),
		}, 2)

		require.NoError(t, answers[0].Err)
		require.NoError(t, answers[3].Err)
		conflict := testkit.As[*messagestore.VersionConflictError](t, answers[1].Err)
		require.EqualValues(t, 0, conflict.Expected)
		require.Equal(t, messagestore.NoStream, conflict.Actual)
		require.Equal(t, []*messagestore.Message{nil, nil}, answers[2].Met.Last)
		for _, a := range append(half, met...) {
			require.Equal(t, messagestore.NoStream, testkit.Do(d.Version(t.Context(), a.Stream))(t), a.Stream)
		}
	}
	flushes, writes := d.Flushes()
	require.Equal(t, int64(2), flushes)
	require.Equal(t, int64(4), writes)
}

// One part of a write to several streams was written before alone, or its id has another message.
func TestAWriteToSeveralStreamsLeavesItsGroupForAnIDThatIsThere(t *testing.T) {
	t.Parallel()
	d := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	category := storetest.Category(t)
	both := func(name string) []messagestore.Append {
		return both(category.Stream(name+"1"), category.Stream(name+"2"))
	}
	before, half := both("before"), both("half")
	testkit.Do(d.AppendAll(t.Context(), before))(t)
	testkit.Do(d.Append(t.Context(), half[1]))(t)
	half[0].Expected = 7
	again := slices.Clone(before)
	again[0].Expected = messagestore.NoStream
	_, flushed := d.Flushes()

	answers := d.AppendAllEach(t.Context(), [][]messagestore.Append{both("a"), before, half, again, both("b")}, 2)

	for _, i := range []int{0, 4} {
		require.NoError(t, answers[i].Err)
		require.False(t, answers[i].Written.Duplicate)
	}
	for _, i := range []int{1, 3} {
		require.NoError(t, answers[i].Err)
		require.Len(t, answers[i].All, 2)
		require.True(t, answers[i].All[0].Duplicate)
		require.True(t, answers[i].All[1].Duplicate)
	}
	require.ErrorIs(t, answers[2].Err, messagestore.ErrIDConflict)
	_, now := d.Flushes()
	require.Equal(t, flushed+2, now)

	for _, meets := range [][]int{nil, {1}} { // where no message of the group is there already
		answers = d.AppendAllEach(t.Context(), [][]messagestore.Append{both("c"), half, both("d")}, meets...)
		require.NoError(t, answers[0].Err)
		require.ErrorIs(t, answers[1].Err, messagestore.ErrIDConflict)
		require.NoError(t, answers[2].Err)
	}
}

func told(written []messagestore.Written, err error) string {
	if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
		_, id, _ := strings.Cut(string(conflict.Stream), "-")
		return fmt.Sprint("conflict ", id, conflict.Expected, conflict.Actual)
	}
	all := fmt.Sprint(err)
	for _, w := range written {
		all += fmt.Sprint(" ", w.Version, len(w.IDs), w.Duplicate)
	}
	return all
}
