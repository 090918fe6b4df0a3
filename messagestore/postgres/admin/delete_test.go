package admin_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
)

var erase = &retention.DeleteOptions{EraseName: true}

func decodeInto(t *testing.T, m *messagestore.Message, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(m.Data, into))
}

func digestStream(stream messagestore.StreamName) messagestore.StreamName {
	sum := sha256.Sum256([]byte(stream))
	return stream.Category().Stream(hex.EncodeToString(sum[:]))
}

func TestAnErasedStreamHasNoNameAnyMore(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("Ann Ärger")
	a.fill(t, stream, 3)
	testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)

	deleted := testkit.Do(a.admin.Delete(t.Context(), stream, 2, erase))(t)

	require.Equal(t, retention.Deleted{Stream: stream, Messages: 2, Version: 3, Tombstone: digestStream(stream)}, deleted)
	require.Zero(t, pgtest.Value[int](t, a.pool, "select count(*) from dibs.messages m where m::text like '%Ärger%'"), "not in its records either")
	var there []messagestore.StreamName
	for m, err := range a.ReadCategory(t.Context(), a.category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		there = append(there, m.Stream)
	}
	require.Equal(t, []messagestore.StreamName{digestStream(stream)}, there)

	// A reader that knows the name learns of the deletion by every call.
	for _, m := range [][]*messagestore.Message{a.read(t, stream), last(t, a, stream)} {
		require.Len(t, m, 1)
		require.True(t, m[0].IsTombstone())
		require.Equal(t, messagestore.Version(3), m[0].Position)
		require.Equal(t, stream, m[0].Stream)
	}
	for m, err := range a.ReadStreamBackwards(t.Context(), stream, messagestore.EndOfStream) {
		require.NoError(t, err)
		require.True(t, m.IsTombstone())
	}
	require.ErrorIs(t, testkit.ErrorOf(a.LastOfType(t.Context(), stream, "Opened")), messagestore.ErrNotFound)
	for _, err := range a.ReadStream(t.Context(), stream, 4) {
		require.NoError(t, err)
		require.Fail(t, "there is nothing after the tombstone")
	}

	again := testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, erase))(t)
	require.True(t, again.Already)
	again = testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, nil))(t)
	require.True(t, again.Already)
}

func last(t *testing.T, a *archive, stream messagestore.StreamName) []*messagestore.Message {
	t.Helper()
	m := testkit.Do(a.Last(t.Context(), stream))(t)
	return []*messagestore.Message{m}
}

// Whether the name is there or not, the stream goes on from its tombstone.
func TestADeletedStreamGoesOnAfterItsTombstone(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]*retention.DeleteOptions{"name kept": nil, "name erased": erase} {
		for _, batch := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d messages", name, batch), func(t *testing.T) {
				t.Parallel()
				a := newArchive(t)
				stream := a.category.Stream("1")
				a.fill(t, stream, 3)
				testkit.Do(a.admin.Delete(t.Context(), stream, 2, options))(t)
				bodies := make([]messagestore.Body, batch)
				for i := range bodies {
					bodies[i] = opened()
				}

				require.Equal(t, messagestore.Version(3), testkit.Do(a.Version(t.Context(), stream))(t))
				for _, wrong := range []messagestore.Version{messagestore.NoStream, 0, 2, 4, messagestore.StreamExists} {
					_, err := a.Write(t.Context(), stream, wrong, bodies...)
					conflict := testkit.As[*messagestore.VersionConflictError](t, err)
					require.Equal(t, messagestore.VersionConflictError{Stream: stream, Expected: wrong, Actual: 3}, *conflict)
				}
				expected := messagestore.Version(3)
				for round := range 2 { // and once more
					if round > 0 {
						expected = messagestore.AnyVersion
					}
					written := write(t, a.Store, stream, expected, bodies...)
					all := a.read(t, stream)
					require.Len(t, all, 1+batch)
					require.True(t, all[0].IsTombstone())
					require.Equal(t, written.Version, all[batch].Position)
					for i, m := range all {
						require.Equal(t, all[0].Position+messagestore.Version(i), m.Position)
					}
					deleted := testkit.Do(a.admin.Delete(t.Context(), stream, written.Version, options))(t)
					require.Equal(t, int64(batch), deleted.Messages)
					require.Equal(t, written.Version+1, deleted.Version)
					for i, body := range bodies { // the ids are free again
						m := body.(messagestore.Envelope) //nolint:errcheck // it was made above
						m.ID = uuid.Must(uuid.NewV7())
						bodies[i] = m
					}
				}
			})
		}
	}
}

func TestAWriteThatIsRefusedDoesNotBringANameBack(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	erased, other := a.category.Stream("erased"), a.category.Stream("other")
	a.fill(t, erased, 1)
	testkit.Do(a.admin.Delete(t.Context(), erased, messagestore.AnyVersion, erase))(t)
	a.fill(t, other, 1)

	_, err := a.WriteStreams(t.Context(),
		messagestore.StreamWrite{Stream: erased, Expected: 1, Bodies: []messagestore.Body{opened()}},
		messagestore.StreamWrite{Stream: other, Expected: messagestore.NoStream, Bodies: []messagestore.Body{opened()}})
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	taken := opened()
	write(t, a.Store, other, 0, taken)
	require.ErrorIs(t, testkit.ErrorOf(a.Write(t.Context(), erased, 1, taken)), messagestore.ErrIDConflict)

	rows := pgtest.Value[int](t, a.pool, "select count(*) from dibs.messages where stream_name = $1", string(erased))
	require.Zero(t, rows)

	testkit.Do(a.WriteStreams(t.Context(),
		messagestore.StreamWrite{Stream: erased, Expected: 1}, // only a check
		messagestore.StreamWrite{Stream: other, Expected: 1, Bodies: []messagestore.Body{opened()}}))(t)
	require.NoError(t, a.pool.QueryRow(t.Context(), "select count(*) from dibs.messages where stream_name = $1", string(erased)).Scan(&rows))
	require.Zero(t, rows)
}

func TestDeletionAtAnotherVersionIsAConflict(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 3)

	_, err := a.admin.Delete(t.Context(), stream, 1, nil)
	conflict := testkit.As[*messagestore.VersionConflictError](t, err)
	require.Equal(t, messagestore.VersionConflictError{Stream: stream, Expected: 1, Actual: 2}, *conflict)
	require.Len(t, a.read(t, stream), 3)
	require.ErrorIs(t, testkit.ErrorOf(a.admin.Delete(t.Context(), a.category.Stream("none"), messagestore.AnyVersion, nil)), messagestore.ErrNotFound)

	// It is a row: the transaction goes on.
	tx := begin(t, pgtest.URL(t), pgx.ReadCommitted)
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(admin.New(tx, nil)).Delete(t.Context(), stream, 1, nil)), messagestore.ErrVersionConflict)
	testkit.Do(testkit.Must(admin.New(tx, nil)).Delete(t.Context(), stream, 2, nil))(t)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Len(t, a.read(t, stream), 3, "a deletion in a transaction is the transaction's")
}

// The name of a stream that is deleted already can still be erased.
func TestANameIsErasedLater(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 3)
	testkit.Do(a.admin.Delete(t.Context(), stream, 2, &retention.DeleteOptions{Reason: "first"}))(t)

	deleted := testkit.Do(a.admin.Delete(t.Context(), stream, 2, erase))(t)

	require.Equal(t, retention.Deleted{Stream: stream, Messages: 3, Version: 3, Tombstone: digestStream(stream)}, deleted)
	tombstone := testkit.Do(messagestore.Decode[removal.Tombstone](a.read(t, stream)[0]))(t)
	require.True(t, tombstone.NameErased)
	require.Equal(t, "first", tombstone.Reason)
}

func TestDeletionWorksInParts(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]*retention.DeleteOptions{"name kept": {}, "name erased": {EraseName: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			stream := a.category.Stream("1")
			a.fillMany(t, stream, 21000)
			parts := 0
			meanwhile := *options
			meanwhile.OnProgress = func() {
				parts++
				require.Equal(t, messagestore.Version(21000), last(t, a, stream)[0].Position)
				require.True(t, last(t, a, stream)[0].IsTombstone(), "it is decided")
			}

			deleted := testkit.Do(a.admin.Delete(t.Context(), stream, 20999, &meanwhile))(t)

			require.Equal(t, 2, parts)
			require.Equal(t, int64(21000), deleted.Messages)
			require.Equal(t, messagestore.Version(21000), deleted.Version)
			require.False(t, deleted.Already)
			require.Len(t, a.read(t, stream), 1)
		})
	}
}

// The server ends the sessions between two parts and within one: it goes on in others.
func TestADeletionOutlivesItsSessions(t *testing.T) {
	t.Parallel()
	a := newOwnArchive(t)
	stream := a.category.Stream("1")
	a.fillMany(t, stream, 31000)
	config := a.pool.Config()
	config.MaxConns, config.ConnConfig.RuntimeParams["application_name"] = 1, "deleting"
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()
	const end = "select count(*) filter (where pg_terminate_backend(pid, 60000)) from pg_stat_activity where datname = current_database() and application_name = 'deleting'"
	parts := 0
	ended := make(chan error, 9)
	options := &retention.DeleteOptions{OnProgress: func() {
		if parts++; parts == 1 {
			require.Positive(t, pgtest.Value[int](t, a.pool, end))
			return
		}
		// The next part waits for this one, until its session is ended.
		holder := testkit.Do(a.pool.Begin(t.Context()))(t)
		testkit.Do(holder.Exec(t.Context(), "select dibs.lock_retention($1)", string(a.category)))(t)
		go func() {
			defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing was changed
			ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
			defer cancel()
			var err error
			for sessions := 0; sessions == 0 && err == nil; {
				err = a.pool.QueryRow(ctx, end+" and wait_event_type = 'Lock'").Scan(&sessions)
			}
			ended <- err
		}()
	}}

	require.Equal(t, int64(31000), testkit.Do(testkit.Must(admin.New(pool, nil)).Delete(t.Context(), stream, messagestore.AnyVersion, options))(t).Messages)
	require.Equal(t, 3, parts)
	for range parts - 1 {
		require.NoError(t, testkit.Receive(t, "the end of the session that waits", ended))
	}
	require.Len(t, a.read(t, stream), 1)
}

// A write to a stream that is being deleted in parts stays.
func TestAWriteBetweenThePartsOfADeletionStays(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]*retention.DeleteOptions{"name kept": {}, "name erased": {EraseName: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			stream := a.category.Stream("1")
			a.fillMany(t, stream, 21000)
			first := true
			meanwhile := *options
			meanwhile.OnProgress = func() {
				if first {
					write(t, a.Store, stream, 21000, opened())
				}
				first = false
			}

			_, err := a.admin.Delete(t.Context(), stream, 20999, &meanwhile)

			if options.EraseName { // the name is in use
				require.ErrorIs(t, err, messagestore.ErrVersionConflict)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, []int{21000, 21001}, a.positions(t, stream))
		})
	}
}

// The tombstone of a reservation keeps a hash and the winner, and the key only if the name stays.
func TestATombstoneKeepsWhatAReservationNeeds(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	local := messagestore.Properties{
		"reservedDigest": "abc", "reservedKey": "secret", "reservedFor": "receipts", "reservedBy": "accounts", "reservedHandled": true, "other": "secret",
	}
	for _, again := range []bool{false, true} {
		stream := a.category.Stream("1").With(fmt.Sprint(again))
		write(t, a.Store, stream, messagestore.NoStream, messagestore.Envelope{Body: opened().Body, Metadata: messagestore.Metadata{Local: local}}, opened())
		testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, nil))(t)
		want := messagestore.Properties{
			"reservedDigest": "abc", "reservedKey": "secret", "reservedFor": "receipts", "reservedBy": "accounts", "reservedHandled": true,
		}
		require.Equal(t, messagestore.Metadata{Local: want}, a.read(t, stream)[0].Metadata)
		if again {
			a.fill(t, stream, 2)
		}

		testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, erase))(t)

		want["reservedKey"] = "(erased)"
		require.Equal(t, messagestore.Metadata{Local: want}, a.read(t, stream)[0].Metadata)
	}
}

// Of a write to a deleted stream "not written" is never said.
func TestADeletedStreamDoesNotTellWhatWasWritten(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]*retention.DeleteOptions{"name kept": nil, "name erased": erase} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			stream := a.category.Stream("1")
			written := a.fill(t, stream, 2)
			lost := &messagestore.OutcomeUnknownError{Cause: errCut, Writes: []messagestore.Append{{Stream: stream, Expected: 0, Records: []messagestore.Encoded{{ID: written[1].ID}}}}}
			require.Len(t, testkit.Do(a.Resolve(t.Context(), lost))(t), 1)

			testkit.Do(a.admin.Delete(t.Context(), stream, 1, options))(t)
			_, err := a.Resolve(t.Context(), lost)
			require.ErrorIs(t, err, messagestore.ErrDeleted)
			require.NotErrorIs(t, err, messagestore.ErrNotWritten)

			// To write it again at the version that it had then is answered.
			require.ErrorIs(t, testkit.ErrorOf(a.Write(t.Context(), stream, 0, written[1])), messagestore.ErrVersionConflict)

			after := opened()
			write(t, a.Store, stream, 2, after)
			lost.Writes[0].Records[0].ID = after.ID
			require.NoError(t, testkit.ErrorOf(a.Resolve(t.Context(), lost)), "what was written since is known")
		})
	}
}

// Nor while a deletion that was killed half way is incomplete.
func TestAStreamThatIsBeingDeletedDoesNotTellWhatWasWritten(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	written := a.fill(t, stream, 5)
	testkit.Do(a.pool.Exec(t.Context(), "select dibs.delete_stream($1, max_messages => 2)", string(stream)))(t)
	require.Equal(t, []int{2, 3, 4, 5}, a.positions(t, stream))

	for range 2 {
		_, err := a.Resolve(t.Context(), &messagestore.OutcomeUnknownError{
			Cause: errCut, Writes: []messagestore.Append{{Stream: stream, Expected: messagestore.NoStream, Records: []messagestore.Encoded{{ID: written[0].ID}}}},
		})
		require.ErrorIs(t, err, messagestore.ErrDeleted)
		a.fill(t, stream, 2) // and after it
	}

	deleted, err := a.admin.Delete(t.Context(), stream, 5, nil)
	require.NoError(t, err, "somebody else goes on")
	require.Equal(t, messagestore.Version(5), deleted.Version)
	require.Equal(t, []int{5, 6, 7, 8, 9}, a.positions(t, stream))
}

// The tombstone in the stream named by the hash lets the deletion go on, and says who had the key.
func TestATombstoneThatStandsForAnotherStreamStays(t *testing.T) {
	t.Parallel()
	for _, others := range []int{0, 3} {
		a := newArchive(t)
		stream := a.category.Stream("1")
		a.fill(t, stream, 2)
		deleted := testkit.Do(a.admin.Delete(t.Context(), stream, 1, erase))(t)
		if others > 0 {
			a.fill(t, deleted.Tombstone, others) // another client
		}
		before := a.read(t, deleted.Tombstone)

		for _, options := range []*retention.DeleteOptions{{}, erase, {DryRun: true, EraseName: true}} {
			again, err := a.admin.Delete(t.Context(), deleted.Tombstone, messagestore.AnyVersion, options)
			if others == 0 && !options.EraseName {
				require.NoError(t, err)
				require.True(t, again.Already)
			} else {
				require.ErrorIs(t, err, messagestore.ErrInvalid)
				require.ErrorContains(t, err, "tombstone of a stream that was deleted with its name")
			}
		}
		for trimmed, err := range a.admin.TrimCategory(t.Context(), a.category, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}) {
			require.NoError(t, err)
			require.Zero(t, trimmed.Removed)
		}
		require.Equal(t, before, a.read(t, deleted.Tombstone))

		require.Equal(t, messagestore.Version(3), write(t, a.Store, stream, messagestore.AnyVersion, opened()).Version)
		require.Equal(t, []int{2, 3}, a.positions(t, stream))
		require.NoError(t, testkit.ErrorOf(a.admin.Delete(t.Context(), deleted.Tombstone, messagestore.AnyVersion, nil)), "now it stands for nothing")
	}
}

// If a deletion is repeated with the same id after later writes to the stream, it returns the same
// answer, and does not delete the later messages.
func TestADeletionThatIsAskedForAgainDeletesNothingNew(t *testing.T) {
	t.Parallel()
	for _, erased := range []bool{false, true} {
		a := newArchive(t)
		stream := a.category.Stream("1")
		a.fill(t, stream, 3)
		id := uuid.New()
		ask := func() (outcome string, version, messages int, tombstone messagestore.StreamName) {
			require.NoError(t, a.pool.QueryRow(t.Context(), "select outcome, version, messages, tombstone_stream from dibs.delete_stream($1, erase_name => $2, id => $3)",
				string(stream), erased, id).Scan(&outcome, &version, &messages, &tombstone))
			return outcome, version, messages, tombstone
		}
		outcome, version, messages, tombstone := ask()
		require.Equal(t, "deleted", outcome)
		a.fill(t, stream, 2)

		outcome2, version2, messages2, tombstone2 := ask()

		require.Equal(t, []any{outcome, version, messages, tombstone}, []any{outcome2, version2, messages2, tombstone2})
		require.Equal(t, []int{3, 4, 5}, a.positions(t, stream))
	}
}

// No name alone is erased of them, and they go with the name of the stream.
func TestTheRecordsOfRemovalsGoWithTheName(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream, records := a.category.Stream("1"), a.category.WithType("retention").Stream("1")
	a.fill(t, stream, 5)
	testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)
	_, err := a.admin.Delete(t.Context(), records, messagestore.AnyVersion, erase)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "must not be a stream of records of removals")
	require.False(t, a.read(t, records)[0].IsTombstone())

	testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, erase))(t)

	for _, m := range a.read(t, records) {
		require.True(t, m.IsTombstone())
	}
}

// However often it was trimmed, the records of that go in parts too, before the name.
func TestTheRecordsOfAnErasedStreamGoInParts(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("Ann")
	records := a.category.WithType("retention").Stream("Ann")
	a.fill(t, stream, 8)
	testkit.Do(a.pool.Exec(t.Context(), "select dibs.trim($1, 1, min_age => '0', max_messages => 1) from generate_series(1, 7)", string(stream)))(t)
	require.Len(t, a.read(t, records), 7)

	calls, left := 0, 7
	for more := true; more; calls++ {
		require.NoError(t, a.pool.QueryRow(t.Context(), "select more from dibs.delete_stream($1, erase_name => true, max_messages => 3)", string(stream)).Scan(&more))
		rows := pgtest.Value[int](t, a.pool, "select count(*) from dibs.messages where stream_name = $1 and type = 'dibs:Trimmed'", string(records))
		require.LessOrEqual(t, left-rows, 3)
		left = rows
		found := testkit.Do(a.admin.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{a.category, records.Category()}}))(t)
		require.Empty(t, found.Violations)
	}
	require.Equal(t, 3, calls)
	traces := pgtest.Value[int](t, a.pool, "select count(*) from dibs.messages m where m.category in ($1, $2) and m::text like '%Ann%'",
		string(a.category), string(records.Category()))
	require.Zero(t, traces)
}

// Two writers and one deletion: a write is either before the tombstone and gone, or after it and
// there.
func TestWritersAndADeletion(t *testing.T) {
	t.Parallel()
	const writers, writes = 3, 30 // each, or more, until there were two deletions

	for name, options := range map[string]*retention.DeleteOptions{"name kept": nil, "name erased": erase} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newOwnArchive(t)
			stream := a.category.Stream("1")
			ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
			defer cancel()
			type acknowledged struct {
				id      uuid.UUID
				version messagestore.Version
			}
			done := make(chan error, writers)
			var mu sync.Mutex
			var all []acknowledged
			var deletions atomic.Int64
			for range writers {
				go func() {
					for n := 0; n < writes || deletions.Load() < 2; n++ {
						m := opened()
						written, err := a.Write(ctx, stream, messagestore.AnyVersion, m)
						if err != nil {
							done <- err
							return
						}
						mu.Lock()
						all = append(all, acknowledged{m.ID, written.Version})
						mu.Unlock()
					}
					done <- nil
				}()
			}
			lastTombstone, ended := messagestore.NoStream, 0
			for ended < writers {
				deleted, err := a.admin.Delete(ctx, stream, messagestore.AnyVersion, options)
				if !errors.Is(err, messagestore.ErrNotFound) {
					require.NoError(t, err)
					require.GreaterOrEqual(t, deleted.Version, lastTombstone)
					lastTombstone = deleted.Version
					if !deleted.Already {
						deletions.Add(1)
					}
				}
				select {
				case err := <-done:
					require.NoError(t, err)
					ended++
				default:
				}
			}

			there := map[uuid.UUID]bool{}
			for _, m := range a.read(t, stream) {
				there[m.ID] = true
			}
			versions := map[messagestore.Version]bool{}
			for _, w := range all {
				require.False(t, versions[w.version], "position %d was given twice", w.version)
				versions[w.version] = true
				require.Equal(t, w.version > lastTombstone, there[w.id], "position %d, tombstone %d", w.version, lastTombstone)
			}
			version := testkit.Do(a.Version(t.Context(), stream))(t)
			require.Equal(t, len(all)+int(deletions.Load()), int(version)+1, "every position is a message's or a tombstone's")
		})
	}
}

// One member of dibs_admin, and nobody else, removes.
func TestOnlyAdministratorsRemove(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 3)
	for _, role := range []string{"dibs_writer", "dibs_reader"} {
		adm := testkit.Must(admin.New(pgtest.PoolAs(t, role), nil))
		requireDenied(t, testkit.ErrorOf(adm.Trim(t.Context(), stream, anyAge)))
		requireDenied(t, testkit.ErrorOf(adm.Delete(t.Context(), stream, 2, nil)))
		requireDenied(t, testkit.ErrorOf(pgtest.PoolAs(t, role).Exec(t.Context(), "set dibs.retention = on; select dibs.remove_messages('a-1', 1)")))
	}
	pool := pgtest.PoolAs(t, "dibs_admin")
	user := pgtest.Value[string](t, pool, "select session_user")
	adm := testkit.Must(admin.New(pool, nil))
	testkit.Do(adm.Trim(t.Context(), stream, anyAge))(t)
	var data struct{ By string }
	decodeInto(t, a.read(t, a.category.WithType("retention").Stream("1"))[0], &data)
	require.Equal(t, user, data.By, "who logged in, and not who owns the function")
	testkit.Do(adm.Delete(t.Context(), stream, 2, erase))(t)
	for _, err := range adm.TrimCategory(t.Context(), a.category, anyAge) {
		require.NoError(t, err)
	}
	requireDenied(t, testkit.ErrorOf(pool.Exec(t.Context(), "set dibs.retention = on; delete from dibs.messages")))
}

// A role with the right to delete from the table, granted by mistake, cannot delete by calling
// it a removal.
func TestTheSettingOfRemovalsHelpsNobodyElse(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.SchemaInShared(t)
	pool := pgtest.Pool(t)
	role := schema + "_intruder"
	for _, statement := range []string{
		"create role " + role, "grant usage on schema " + schema + " to " + role,
		"grant all on all tables in schema " + schema + " to " + role, "grant all on all functions in schema " + schema + " to " + role,
	} {
		testkit.Do(pool.Exec(t.Context(), statement))(t)
	}
	t.Cleanup(func() {
		testkit.Do(pool.Exec(context.WithoutCancel(t.Context()), "drop owned by "+role+"; drop role "+role))(t)
	})
	for statement, allowed := range map[string]bool{
		"delete from %s.messages where stream_name = 'a-1'": false,
		"select %s.remove_messages('a-1', 1)":               false,
		"select %s.trim('a-1', 1, min_age => '0')":          true, // that was granted
	} {
		tx := begin(t, pgtest.URL(t), pgx.ReadCommitted)
		testkit.Do(tx.Exec(t.Context(), "select from "+schema+".append(array['a-1'], array[-2::bigint], array[2], array[gen_random_uuid(), gen_random_uuid()], array['T', 'T'], array['{}'::json, '{}'], array[null::json, null])"))(t)
		testkit.Do(tx.Exec(t.Context(), "set local role "+role+"; set local dibs.retention = on"))(t)

		_, err := tx.Exec(t.Context(), fmt.Sprintf(statement, schema))

		if allowed {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "messages are only ever added", statement)
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// After a removal the table is append-only again, within the same transaction too.
func TestARemovalLeavesNoDoorOpen(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(adm *admin.Admin, stream messagestore.StreamName) error{
		"trim": func(adm *admin.Admin, stream messagestore.StreamName) error {
			return second(adm.Trim(t.Context(), stream, anyAge))
		},
		"delete": func(adm *admin.Admin, stream messagestore.StreamName) error {
			return second(adm.Delete(t.Context(), stream, messagestore.AnyVersion, nil))
		},
		"erase": func(adm *admin.Admin, stream messagestore.StreamName) error {
			return second(adm.Delete(t.Context(), stream, messagestore.AnyVersion, erase))
		},
	} {
		a := newArchive(t)
		stream := a.category.Stream("1")
		a.fill(t, stream, 3)
		tx := begin(t, pgtest.URL(t), pgx.ReadCommitted)
		require.NoError(t, remove(testkit.Must(admin.New(tx, nil)), stream))

		_, err := tx.Exec(t.Context(), "delete from dibs.messages where stream_name = $1", string(stream))

		require.ErrorContains(t, err, "messages are only ever added", name)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestAnEpochThatIsRaisedIsAnotherThanAllBefore(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	store, adm := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil)), testkit.Must(admin.New(pool, config))
	seen := map[string]bool{}
	epoch := func() string {
		t.Helper()
		return testkit.Do(store.Epoch(t.Context()))(t)
	}
	seen[epoch()] = true
	raise := func() string {
		t.Helper()
		return testkit.Do(adm.RaiseEpoch(t.Context()))(t)
	}
	for range 3 {
		raised := raise()
		require.Equal(t, raised, epoch())
		require.False(t, seen[raised])
		seen[raised] = true
	}

	// A backup has the number that was given out since, and not the id.
	testkit.Do(pool.Exec(t.Context(), "update "+schema+".epochs set number = 1, id = gen_random_uuid()"))(t)
	require.False(t, seen[raise()])

	// Somebody has removed the row.
	testkit.Do(pool.Exec(t.Context(), "delete from "+schema+".epochs"))(t)
	without := epoch()
	require.NotEqual(t, without, raise())

	pgtest.WaitForLocks(t, pool.Config().ConnString(), schema)
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = adm.RaiseEpoch(t.Context()) })
	}
	testkit.Receive(t, "the end of all calls", over(&all))
	require.NoError(t, errors.Join(errs...))
	require.Regexp(t, `/9\.[^/]+$`, epoch())
}

// By the same id it is raised once, so a caller that lost the answer may repeat the call.
func TestAnEpochIsRaisedOnceByOneID(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	raise := func(id *uuid.UUID) (epoch string) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), "select "+schema+".raise_epoch($1)", id).Scan(&epoch))
		return epoch
	}
	id := uuid.New()
	first := raise(&id)
	require.Contains(t, first, "/1."+id.String())
	require.Equal(t, first, raise(&id))
	require.Regexp(t, `/2\.`, raise(nil))
}

func TestWhoMayNotRaiseTheEpochIsTold(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"dibs_reader", "dibs_writer"} {
		_, err := testkit.Must(admin.New(pgtest.PoolAs(t, role), nil)).RaiseEpoch(t.Context())
		require.ErrorContains(t, err, "raise epoch: ")
		require.ErrorContains(t, err, "permission denied for function raise_epoch")
	}
	var none *pgxpool.Pool
	_, err := admin.New(none, &postgres.Config{Schema: "no-schema"})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, `invalid schema "no-schema": `)
	require.ErrorContains(t, err, "invalid database: must not be nil")
}
