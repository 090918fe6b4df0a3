package sqlite_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A met call is an TryAppend and its answer.
type metCall struct {
	appends []messagestore.Append
	written []messagestore.Written
	met     *messagestore.Conflict
	err     error
}

func (c *metCall) on(t *testing.T, driver *sqlite.Driver) func() error {
	return func() error {
		c.written, c.met, c.err = driver.TryAppend(t.Context(), c.appends)
		return c.err
	}
}

func meeting(appends ...messagestore.Append) *metCall { return &metCall{appends: appends} }

// A loser whose winner is in the same commit meets it all the same, and so does one whose
// stream is empty.
func TestALoserMeetsTheWinnerOfItsOwnCommit(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	winner := meeting(appendOf("account-1", messagestore.NoStream, 2))
	loser := meeting(appendOf("account-2", messagestore.NoStream, 1), appendOf("account-1", messagestore.NoStream, 1), appendOf("account-3", 4, 0))
	next := meeting(appendOf("account-1", 1, 1))

	errs := calledTogether(t, driver, path, nil, winner.on(t, driver), loser.on(t, driver), next.on(t, driver))

	require.NoError(t, errors.Join(errs...))
	commits, calls := driver.Commits()
	require.EqualValues(t, 1, commits)
	require.EqualValues(t, 5, calls)
	require.Nil(t, winner.met)
	require.Nil(t, next.met)
	require.Nil(t, loser.written)
	require.Len(t, loser.met.Last, 3)
	require.Nil(t, loser.met.Last[0])
	require.Equal(t, winner.appends[0].Records[1].ID, loser.met.Last[1].ID)
	require.Nil(t, loser.met.Last[2])
	require.False(t, loser.met.Time.Before(winner.written[0].Time))
	require.Equal(t, messagestore.NoStream, testkit.Do(driver.Version(t.Context(), "account-2"))(t))
}

// The end of a lease is compared with the time of the conflict. A time of before the wait for
// the lock would have the met message in the future.
func TestTheTimesOfAWriteAndOfAMeetingAreTakenUnderTheLock(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	winner, loser := meeting(appendOf("account-1", messagestore.NoStream, 1)), meeting(appendOf("account-1", messagestore.NoStream, 1))
	var released time.Time

	errs := calledTogether(t, driver, path, func() { released = time.Now().Truncate(time.Microsecond) }, winner.on(t, driver), loser.on(t, driver))

	require.NoError(t, errors.Join(errs...))
	require.False(t, winner.written[0].Time.Before(released), "written at %v, before the lock was free at %v", winner.written[0].Time, released)
	require.False(t, loser.met.Time.Before(released), "met at %v, before the lock was free at %v", loser.met.Time, released)
	require.Equal(t, testkit.Do(driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: "account-1", Limit: 1}))(t)[0].Time, winner.written[0].Time)
}

// The winner of a transaction that was rolled back was never there.
func TestAMeetingThatWasRolledBackIsForgotten(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	var broken atomic.Bool
	driver := testkit.Do(sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
		bad := strings.HasSuffix(statement, "[account-bad]") && broken.CompareAndSwap(false, true)
		if bad || strings.HasSuffix(statement, "[account-winner]") && broken.Load() {
			return sqliteError(10 | 1<<8) // SQLITE_IOERR_READ
		}
		return nil
	}), path, patient))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	winner := meeting(appendOf("account-winner", messagestore.NoStream, 1), appendOf("account-1", messagestore.NoStream, 1))
	loser := meeting(appendOf("account-1", messagestore.NoStream, 1))
	bad := meeting(appendOf("account-bad", messagestore.NoStream, 1))

	errs := calledTogether(t, driver, path, nil, winner.on(t, driver), loser.on(t, driver), bad.on(t, driver))

	require.ErrorIs(t, errs[0], sqliteError(10|1<<8), "the second time")
	require.NoError(t, errs[1])
	require.NoError(t, errs[2], "the second time")
	require.Nil(t, loser.met)
	require.EqualValues(t, 0, loser.written[0].Version)
}

func TestAMeetingLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	tx := begin(t, db)
	driver := testkit.Must(sqlite.New(tx))
	first := appendOf("invoice-1", messagestore.NoStream, 2)
	testkit.Do(driver.Append(t.Context(), first))(t)

	refused := meeting(appendOf("invoice-2", messagestore.NoStream, 1), appendOf("invoice-1", 0, 1))
	require.NoError(t, refused.on(t, driver)())
	require.Nil(t, refused.met.Last[0])
	require.Equal(t, first.Records[1].ID, refused.met.Last[1].ID, "the transaction's own message")
	accepted := meeting(appendOf("invoice-2", messagestore.NoStream, 1), appendOf("invoice-1", 1, 1))
	require.NoError(t, accepted.on(t, driver)())
	require.Nil(t, accepted.met)
	require.NoError(t, tx.Commit())

	var messages int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM dibs_messages").Scan(&messages))
	require.Equal(t, 4, messages)
}

// A message that was removed may have been of any type.
func TestARemovedMessageIsNotWrittenPast(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		removed  int
		expected messagestore.Version
		conflict bool
	}{
		{2, 0, true},
		{2, 1, true}, // the first that came
		{2, 2, false},
		{2, 3, false},
		{0, 0, false}, // came before
	} {
		path := newFile(t)
		driver := open(t, path, nil)
		testkit.Do(driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 5)))(t)
		execute(t, database(t, path), "DELETE FROM dibs_messages WHERE position = ?", test.removed)
		a := appendOf("account-1", test.expected, 1)
		a.Past = []string{"Withdrawn", "Deposited"}

		_, err := driver.Append(t.Context(), a)
		_, met, meetErr := driver.TryAppend(t.Context(), []messagestore.Append{{Stream: "account-1", Expected: test.expected, Past: a.Past}, appendOf("account-2", messagestore.NoStream, 1)})

		require.NoError(t, meetErr)
		if !test.conflict {
			require.NoError(t, err, "removed %d, expected %d", test.removed, test.expected)
			require.Nil(t, met)
			continue
		}
		require.Equal(t, &messagestore.VersionConflictError{Stream: "account-1", Expected: test.expected, Actual: 4}, err)
		require.EqualValues(t, 4, met.Last[0].Position)
	}
}
