package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A crowd is writes that wait behind one that waits for a lock, so that they are
// sure to be committed together once it is released.
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
	return gatherOver(t, postgres.New(pgtest.Pool(t), nil))
}

func gatherOver(t *testing.T, driver *postgres.Driver) *crowd {
	t.Helper()
	pool := pgtest.Pool(t)
	c := &crowd{t: t, driver: driver, category: storetest.Category(t), first: make(chan error, 1)}
	holder, err := lockCategory(t.Context(), pool, c.category)
	require.NoError(t, err)
	c.release = sync.OnceFunc(func() { require.NoError(t, holder()) })
	t.Cleanup(c.release)
	go func() {
		_, err := c.driver.Append(t.Context(), record(c.category.Stream("first")))
		c.first <- err
	}()
	awaitLockWaiters(t, pool, c.category)
	return c
}

// lockCategory takes a category's lock in a transaction of its own, and returns
// what ends that.
func lockCategory(ctx context.Context, pool *pgxpool.Pool, category messagestore.Category) (release func() error, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "select dibs.lock_category($1)", string(category))
	return func() error { return tx.Rollback(context.WithoutCancel(ctx)) }, err
}

// awaitLockWaiters returns when somebody waits for the category's lock.
func awaitLockWaiters(t *testing.T, pool *pgxpool.Pool, category messagestore.Category) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting bool
		err := pool.QueryRow(t.Context(), `select exists (
			select from pg_locks where locktype = 'advisory' and classid = 1684628083
			and objid::bigint = dibs.lock_key($1)::bigint & 4294967295 and not granted)`, string(category)).Scan(&waiting)
		return err == nil && waiting
	}, 10*time.Second, 5*time.Millisecond)
}

// add starts a write and returns once it waits.
func (c *crowd) add(ctx context.Context, a messagestore.Append, answer func(messagestore.Written, error)) {
	c.t.Helper()
	before := c.driver.Waiting()
	c.wg.Go(func() { answer(c.driver.Append(ctx, a)) })
	require.Eventually(c.t, func() bool { return c.driver.Waiting() > before }, 10*time.Second, time.Millisecond)
}

func record(stream messagestore.StreamName) messagestore.Append {
	return messagestore.Append{Stream: stream, Expected: messagestore.AnyVersion, Records: []messagestore.Record{
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

	require.NoError(t, <-c.first)
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

// The store would refuse this one before it got here; whatever the database
// refuses, the others are written all the same.
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
			require.ErrorIs(t, err, messagestore.ErrInvalidData)
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
	err := <-left
	c.release()
	c.wg.Wait()

	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.NoError(t, stayed)
	version, err := c.driver.Version(t.Context(), c.category.Stream("left"))
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
}

// The connection is cut while the group is under way. Nobody knows, the store asks,
// and everything is there once.
func TestAGroupWhoseConnectionIsLostIsSettled(t *testing.T) {
	t.Parallel()
	c := gather(t)
	pool := pgtest.Pool(t)
	store := messagestore.New(c.driver, nil)
	errs := make([]error, 6)
	for i := range errs {
		before := c.driver.Waiting()
		c.wg.Go(func() {
			_, errs[i] = store.Write(t.Context(), c.category.Stream(fmt.Sprint(i)), messagestore.NoStream, storetest.Opened{})
		})
		require.Eventually(t, func() bool { return c.driver.Waiting() > before }, 10*time.Second, time.Millisecond)
	}
	again := lockCategoryWhenFree(t, pool, c)
	awaitLockWaiters(t, pool, c.category)

	killLockWaiters(t, pool, c.category)
	require.NoError(t, again())
	c.wg.Wait()

	for i, err := range errs {
		require.NoError(t, err)
		version, err := store.Version(t.Context(), c.category.Stream(fmt.Sprint(i)))
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(0), version)
	}
}

// lockCategoryWhenFree queues for the lock behind the crowd's first write, so that
// the group has to wait for it in turn.
func lockCategoryWhenFree(t *testing.T, pool *pgxpool.Pool, c *crowd) (release func() error) {
	t.Helper()
	got := make(chan error, 1)
	go func() {
		var err error
		release, err = lockCategory(t.Context(), pool, c.category)
		got <- err
	}()
	awaitTwoLockWaiters(t, pool, c.category)
	c.release()
	require.NoError(t, <-got)
	return release
}
