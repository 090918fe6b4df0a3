package retention_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

const account messagestore.StreamName = "account-1"

// filled writes so many messages to account-1.
func (k *kept) filled(t *testing.T, n int) *kept {
	t.Helper()
	k.fill(t, account, n)
	return k
}

func (k *kept) write(t *testing.T, stream messagestore.StreamName, bodies ...messagestore.Body) messagestore.Written {
	t.Helper()
	return testkit.Do(k.store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)
}

func (k *kept) trim(t *testing.T, stream messagestore.StreamName, options retention.TrimOptions) retention.Trimmed {
	t.Helper()
	return testkit.Do(k.Trim(t.Context(), stream, &options))(t)
}

// ageUpTo has the messages of account-1 up to a position be older.
func (k *kept) ageUpTo(t *testing.T, upTo messagestore.Version, by time.Duration) {
	t.Helper()
	change := fmt.Sprintf("time - interval '%d s'", int(by.Seconds()))
	if _, ok := k.driver.(*sqlite.Driver); ok {
		change = fmt.Sprintf("time - %d", by.Microseconds())
	}
	k.exec(t, fmt.Sprintf("UPDATE %s SET time = %s WHERE stream_name = '%s' AND position <= %d", k.table("messages"), change, account, upTo))
}

func (k *kept) requirePositions(t *testing.T, stream messagestore.StreamName, want ...int) {
	t.Helper()
	var positions []int
	for m, err := range k.store.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		positions = append(positions, int(m.Position))
	}
	require.Equal(t, want, positions)
	require.Empty(t, testkit.Do(k.Verify(t.Context(), nil))(t).Violations)
}

func TestTrimKeepsTheLastMessagesAndTheirPositions(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		options := retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge, DryRun: true}
		want := retention.Trimmed{Stream: account, Removed: 3, First: 3, Version: 4}
		require.Equal(t, want, k.filled(t, 5).trim(t, account, options))
		k.requirePositions(t, account, 0, 1, 2, 3, 4)
		options.DryRun = false

		require.Equal(t, want, k.trim(t, account, options))

		k.requirePositions(t, account, 3, 4)
		require.Equal(t, messagestore.Version(4), testkit.Do(k.store.Version(t.Context(), account))(t))
		_, err := k.store.Write(t.Context(), account, messagestore.NoStream, storetest.Opened{})
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.Equal(t, messagestore.Version(5), testkit.Do(k.store.Write(t.Context(), account, 4, storetest.Opened{}))(t).Version)
		require.Equal(t, retention.Trimmed{Stream: account, First: 3, Version: 5}, k.trim(t, account, retention.TrimOptions{Keep: 10, MinAge: retention.AnyAge}))
		require.Equal(t, retention.Trimmed{Stream: "none-1", First: messagestore.NoStream, Version: messagestore.NoStream}, k.trim(t, "none-1", options))
		last := k.trim(t, account, retention.TrimOptions{Before: time.Now().Add(time.Hour), MinAge: retention.AnyAge, Reason: "old"})
		require.Equal(t, messagestore.Version(5), last.First, "the last message stays")
		record := testkit.Do(k.store.Last(t.Context(), "account:retention-1"))(t)
		require.Equal(t, "dibs:Trimmed", record.Type)
		require.Regexp(t, `^{"stream":"account-1","removed":2,"from":3,"upTo":4,("by":"\w+",)?"reason":"old"}$`, string(record.Data))
	})
}

// The ids of removed messages are forgotten, so young messages stay.
func TestTrimSparesWhatIsYoung(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		one := retention.TrimOptions{Keep: 1}
		require.Equal(t, retention.Trimmed{Stream: account, First: 0, Version: 4, Recent: true}, k.filled(t, 5).trim(t, account, one))

		k.ageUpTo(t, 1, time.Hour)
		require.Equal(t, retention.Trimmed{Stream: account, Removed: 2, First: 2, Version: 4, Recent: true}, k.trim(t, account, one))

		k.ageUpTo(t, 3, 10*time.Minute)
		planned := k.trim(t, account, retention.TrimOptions{Keep: 1, MinAge: 5 * time.Minute, DryRun: true})
		require.Equal(t, retention.Trimmed{Stream: account, Removed: 2, First: 4, Version: 4}, planned)
		require.Zero(t, k.trim(t, account, one).Removed)
	})
}

func TestTrimBeforeATime(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		k.filled(t, 6).ageUpTo(t, 5, 30*time.Minute)
		k.ageUpTo(t, 3, 2*time.Hour)
		before := time.Now().Add(-time.Hour)

		require.Equal(t, retention.Trimmed{Stream: account, Removed: 1, First: 1, Version: 5}, k.trim(t, account, retention.TrimOptions{Before: before, Keep: 5}))
		require.Equal(t, retention.Trimmed{Stream: account, Removed: 3, First: 4, Version: 5}, k.trim(t, account, retention.TrimOptions{Before: before}))
		k.requirePositions(t, account, 4, 5)
	})
}

// A clock that was set back makes no hole: the removed messages are a beginning of the stream.
func TestTrimRemovesABeginningWhateverTheTimes(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		k.filled(t, 5).ageUpTo(t, 4, 2*time.Hour)
		k.ageUpTo(t, 1, -2*time.Hour) // 0 and 1 are young
		k.ageUpTo(t, 0, 2*time.Hour)  // and 0 is not

		require.Equal(t, int64(1), k.trim(t, account, retention.TrimOptions{Keep: 1}).Removed)
		k.requirePositions(t, account, 1, 2, 3, 4)
	})
}

func TestTrimWorksInParts(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		for range 11 {
			k.write(t, account, slices.Repeat([]messagestore.Body{storetest.Opened{}}, 1000)...)
		}
		var parts []int64
		planned := k.trim(t, account, retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge, DryRun: true})
		require.Equal(t, int64(10999), planned.Removed)

		trimmed := k.trim(t, account, retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge, OnProgress: func(removed int64) { parts = append(parts, removed) }})

		require.Equal(t, planned, trimmed)
		require.Equal(t, []int64{10000, 999}, parts)
		k.requirePositions(t, account, 10999)
	})
}

// reserved is a message that has a reservation's place, with one that is no reservation's.
var reserved = messagestore.Envelope{Body: storetest.Opened{}, Metadata: messagestore.Metadata{
	Local: messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x", "other": "y"},
}}

func TestAReservationIsNotTrimmed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		k.write(t, account, reserved, storetest.Opened{}, storetest.Opened{})

		trimmed := k.trim(t, account, retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})

		require.True(t, trimmed.Reservation)
		require.Zero(t, trimmed.Removed)
		k.requirePositions(t, account, 0, 1, 2)
	})
}

// The version goes on, and the digest by which a reservation tells a duplicate stays.
func TestADeletedStreamIsATombstone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		k.write(t, account, reserved, storetest.Opened{}, storetest.Opened{})
		_, err := k.Delete(t.Context(), account, 5, nil)
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		want := retention.Deleted{Stream: account, Messages: 3, Version: 3, Tombstone: account}
		require.Equal(t, want, testkit.Do(k.Delete(t.Context(), account, 2, &retention.DeleteOptions{DryRun: true}))(t))
		k.requirePositions(t, account, 0, 1, 2)

		require.Equal(t, want, testkit.Do(k.Delete(t.Context(), account, 2, &retention.DeleteOptions{Reason: "asked for"}))(t))

		left := testkit.Do(k.store.Last(t.Context(), account))(t)
		require.True(t, left.IsTombstone())
		require.Equal(t, messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x"}, left.Metadata.Local)
		tombstone := testkit.Do(messagestore.Decode[removal.Tombstone](left))(t)
		_, onFile := k.driver.(*sqlite.Driver)
		require.Equal(t, onFile, tombstone.By == "", "a file has no users")
		tombstone.By = ""
		require.Equal(t, removal.Tombstone{Messages: 3, UpTo: 2, Reason: "asked for"}, tombstone)
		want.Already = true
		require.Equal(t, want, testkit.Do(k.Delete(t.Context(), account, messagestore.AnyVersion, nil))(t))
		require.Equal(t, left, testkit.Do(k.store.Last(t.Context(), account))(t), "deleting twice changes nothing")
		k.requirePositions(t, account, 3)

		require.False(t, testkit.Do(k.store.WriteInitial(t.Context(), account, storetest.Opened{}))(t))
		_, err = k.store.Write(t.Context(), account, messagestore.StreamExists, storetest.Opened{})
		require.ErrorContains(t, err, "version conflict: expected an existing stream, found 3 (the stream was deleted)")
		require.Equal(t, messagestore.Version(4), k.write(t, account, storetest.Opened{}).Version)
		deleted := testkit.Do(k.Delete(t.Context(), account, messagestore.AnyVersion, nil))(t)
		require.Equal(t, retention.Deleted{Stream: account, Messages: 1, Version: 5, Tombstone: account}, deleted)
		_, err = k.Delete(t.Context(), "none-1", messagestore.AnyVersion, nil)
		require.ErrorIs(t, err, messagestore.ErrNotFound)
		_, err = k.Delete(t.Context(), account, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true})
		require.Equal(t, onFile, errors.Is(err, messagestore.ErrNotSupported))
	})
}

// Only they show that messages were removed.
func TestTheRecordsOfRemovalsStay(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		k.filled(t, 5).trim(t, account, retention.TrimOptions{Keep: 4, MinAge: retention.AnyAge})
		k.trim(t, account, retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge})
		k.fill(t, "payments:intent+forgotten-1", 1)
		k.exec(t, "UPDATE "+k.table("messages")+" SET type = 'dibs:Forgotten' WHERE stream_name = 'payments:intent+forgotten-1'")
		k.fill(t, "customer:retention-1", 2) // a user's

		for _, records := range []messagestore.StreamName{"account:retention-1", "payments:intent+forgotten-1"} {
			for _, options := range []*retention.DeleteOptions{nil, {DryRun: true}} {
				_, err := k.Delete(t.Context(), records, messagestore.AnyVersion, options)
				require.ErrorIs(t, err, messagestore.ErrInvalid)
				require.ErrorContains(t, err, "must not be a stream of records of removals")
			}
		}

		k.requirePositions(t, "account:retention-1", 0, 1)
		k.requirePositions(t, "payments:intent+forgotten-1", 0)
		testkit.Do(k.Delete(t.Context(), "customer:retention-1", messagestore.AnyVersion, nil))(t)
	})
}

func TestOldRequestsAreForgottenKeyAndAll(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k *kept) {
		t.Helper()
		const inbox messagestore.Category = "payments:inbox"
		received, undone := messagestore.Raw{Type: "Received", Data: []byte(`{}`)}, messagestore.Raw{Type: "Undone", Data: []byte(`{}`)}
		for _, key := range []string{"old", "undone", "undone just now", "deleted", "other"} {
			k.write(t, inbox.Stream(key), received)
		}
		k.write(t, inbox.Stream("undone"), undone)
		k.write(t, inbox.Stream("other"), messagestore.Raw{Type: "Other", Data: []byte(`{}`)})
		testkit.Do(k.Delete(t.Context(), inbox.Stream("deleted"), messagestore.AnyVersion, nil))(t)
		k.age(t)
		k.write(t, inbox.Stream("young"), received)
		k.write(t, inbox.Stream("undone just now"), undone)
		k.write(t, "payments-1", received)
		k.write(t, inbox.Stream("last"), received)
		k.exec(t, "UPDATE "+k.table("messages")+" SET time = (SELECT min(time) FROM "+k.table("messages")+") WHERE stream_name = 'payments:inbox-last'")

		for _, category := range []messagestore.Category{"payments", "payments:inbox+refused", "inbox"} {
			require.Equal(t, "category", testkit.As[*messagestore.InvalidError](t, testkit.ErrorOf(k.Forget(t.Context(), category, 24*time.Hour, nil))).Field)
		}
		_, err := k.Forget(t.Context(), inbox, 24*time.Hour-1, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "24h0m0s")
		require.ErrorIs(t, testkit.ErrorOf(k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{Reason: " "})), messagestore.ErrInvalid)
		planned := testkit.Do(k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{DryRun: true}))(t)
		require.Equal(t, retention.Forgotten{Keys: 2, Messages: 3}, planned)
		var removed []int64
		forgotten := testkit.Do(k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{Reason: "age", OnProgress: func(n int64) { removed = append(removed, n) }}))(t)

		require.Equal(t, planned, forgotten)
		require.Equal(t, []int64{3}, removed)
		for key, version := range map[string]messagestore.Version{"old": -1, "undone": -1, "undone just now": 1, "young": 0, "deleted": 1, "other": 1, "last": 0} {
			require.Equal(t, version, testkit.Do(k.store.Version(t.Context(), inbox.Stream(key)))(t), key)
		}
		record := testkit.Do(k.store.Last(t.Context(), "payments:inbox+forgotten-1"))(t)
		require.Equal(t, "dibs:Forgotten", record.Type)
		require.Regexp(t, `"streams":2,"messages":3,.*"keyLifeSeconds":86400,.*"reason":"age"`, string(record.Data))
		require.NotContains(t, string(record.Data), "old")
		require.Zero(t, testkit.Do(k.Forget(t.Context(), inbox, 24*time.Hour, nil))(t))
		k.requirePositions(t, "payments:inbox+forgotten-1", 0)
		require.True(t, testkit.Do(k.store.WriteInitial(t.Context(), inbox.Stream("old"), received))(t), "the key is free")
	})
}

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

// "-1ns: it is not negative" would read as the opposite.
func TestANumberBelowZeroIsToldSo(t *testing.T) {
	t.Parallel()
	for want, options := range map[string]retention.TrimOptions{
		"invalid below -1: must be at least 0":           {Below: -1},
		`invalid minimum age "-2ns": must be at least 0`: {Keep: 1, MinAge: -2},
	} {
		err := options.Validate()

		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.EqualError(t, err, want)
	}
}
