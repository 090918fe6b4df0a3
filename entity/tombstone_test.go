package entity_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A sum is the entity of these tests: the total of the added numbers.
type sum struct{ Total int }

type removals struct {
	store    *messagestore.Store
	admin    *admin.Admin
	category messagestore.Category
}

func newRemovals(t *testing.T) *removals {
	t.Helper()
	pool := pgtest.Pool(t)
	return &removals{testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil)), storetest.Category(t)}
}

func (r *removals) entities(t *testing.T, config *entity.Config) *entity.Store[sum] {
	t.Helper()
	projection := entity.NewProjection[sum]()
	entity.On(projection, func(s sum, e added) sum { s.Total += e.N; return s })
	entities, err := entity.New(r.store, r.category, projection, config)
	require.NoError(t, err)
	return entities
}

func (r *removals) add(t *testing.T, id string, expected messagestore.Version, ns ...int) {
	t.Helper()
	for _, n := range ns {
		_, err := r.store.Write(t.Context(), r.category.Stream(id), expected, added{n})
		require.NoError(t, err)
		expected = messagestore.AnyVersion
	}
}

func (r *removals) trim(t *testing.T, id string, keep int64) {
	t.Helper()
	_, err := r.admin.Trim(t.Context(), r.category.Stream(id), &retention.TrimOptions{Keep: keep, MinAge: retention.AnyAge})
	require.NoError(t, err)
}

func (r *removals) delete(t *testing.T, stream messagestore.StreamName, erase bool) {
	t.Helper()
	_, err := r.admin.Delete(t.Context(), stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: erase})
	require.NoError(t, err)
}

func requireTrimmed(t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[*entity.TrimmedError](err)
	require.Truef(t, ok, "%v", err)
}

func requireDeleted(t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[*entity.DeletedError](err)
	require.Truef(t, ok, "%v", err)
}

func TestATrimmedStreamIsNoEntity(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	warm := r.entities(t, nil)
	r.add(t, "1", messagestore.NoStream, 1, 2, 3)
	_, _, err := warm.Get(t.Context(), "1")
	require.NoError(t, err)
	r.trim(t, "1", 1)

	_, _, err = r.entities(t, nil).Get(t.Context(), "1")
	requireTrimmed(t, err)
	var trimmed *entity.TrimmedError
	require.ErrorAs(t, err, &trimmed)
	require.True(t, calling.DispositionOf(err).Asks(calling.Park))
	require.Equal(t, entity.TrimmedError{Stream: r.category.Stream("1"), First: 2}, *trimmed)

	// A store that has the entity in its cache goes on, as long as the stream has the last
	// message that the cache knows.
	got, version, err := warm.Get(t.Context(), "1")
	require.NoError(t, err)
	require.Equal(t, sum{6}, got)
	require.Equal(t, messagestore.Version(2), version)
	r.add(t, "1", 2, 4, 5)
	r.trim(t, "1", 1)
	_, _, err = warm.Get(t.Context(), "1")
	requireTrimmed(t, err)
}

func TestASnapshotHasWhatWasTrimmed(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	config := &entity.Config{Snapshot: entity.Snapshot{Every: 3}}
	r.add(t, "1", messagestore.NoStream, 1, 2, 3) // the snapshot is of position 2
	_, _, err := r.entities(t, config).Get(t.Context(), "1")
	require.NoError(t, err)
	r.add(t, "1", 2, 4, 5)

	for _, keep := range []int64{3, 2} { // the last that the snapshot has stays, and goes
		r.trim(t, "1", keep)
		got, version, err := r.entities(t, config).Get(t.Context(), "1")
		require.NoError(t, err)
		require.Equal(t, sum{15}, got)
		require.Equal(t, messagestore.Version(4), version)
	}
	r.trim(t, "1", 1)
	_, _, err = r.entities(t, config).Get(t.Context(), "1")
	requireTrimmed(t, err)
}

// A process remembers an entity that was trimmed further than it knows: it takes the
// snapshot that another process wrote since.
func TestMemoryThatIsTooOldTakesTheSnapshot(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	config := &entity.Config{Snapshot: entity.Snapshot{Every: 3}}
	warm := r.entities(t, config)
	r.add(t, "1", messagestore.NoStream, 1)
	_, _, err := warm.Get(t.Context(), "1")
	require.NoError(t, err)
	r.add(t, "1", 0, 2, 3, 4)
	_, _, err = r.entities(t, config).Get(t.Context(), "1")
	require.NoError(t, err)
	r.trim(t, "1", 1)

	got, _, err := warm.Get(t.Context(), "1")

	require.NoError(t, err)
	require.Equal(t, sum{10}, got)
}

func TestADeletedStreamIsADeletedEntity(t *testing.T) {
	t.Parallel()
	for name, erase := range map[string]bool{"name kept": false, "name erased": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRemovals(t)
			config := &entity.Config{Snapshot: entity.Snapshot{Every: 2}}
			warm := r.entities(t, config)
			r.add(t, "1", messagestore.NoStream, 1, 2)
			_, _, err := warm.Get(t.Context(), "1")
			require.NoError(t, err)
			r.delete(t, r.category.Stream("1"), erase)

			for _, entities := range []*entity.Store[sum]{warm, warm, r.entities(t, config), r.entities(t, nil)} {
				_, _, err := entities.Get(t.Context(), "1")
				requireDeleted(t, err)
				var deleted *entity.DeletedError
				require.ErrorAs(t, err, &deleted)
				require.Equal(t, entity.DeletedError{Stream: r.category.Stream("1"), Version: 2}, *deleted)
				require.True(t, calling.DispositionOf(err).Asks(calling.Park))
			}

			// To begin anew is possible, on purpose, and brings nothing back.
			_, err = r.store.Write(t.Context(), r.category.Stream("1"), messagestore.NoStream, added{9})
			require.ErrorIs(t, err, messagestore.ErrVersionConflict)
			r.add(t, "1", 2, 9)
			for _, entities := range []*entity.Store[sum]{warm, warm, r.entities(t, config), r.entities(t, nil)} {
				got, version, err := entities.Get(t.Context(), "1")
				require.NoError(t, err)
				require.Equal(t, sum{9}, got)
				require.Equal(t, messagestore.Version(3), version)
			}
		})
	}
}

// The cache drops a deleted entity: when the stream is read from its start again, no state
// from before the deletion comes back.
func TestMemoryForgetsADeletedEntity(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	watched := &watcher{Store: r.store}
	projection := entity.NewProjection[sum]()
	entity.On(projection, func(s sum, e added) sum { s.Total += e.N; return s })
	entities, err := entity.New(watched, r.category, projection, nil)
	require.NoError(t, err)
	r.add(t, "1", messagestore.NoStream, 1, 2, 3)
	_, _, err = entities.Get(t.Context(), "1")
	require.NoError(t, err)
	r.delete(t, r.category.Stream("1"), false)

	_, _, err = entities.Get(t.Context(), "1")
	requireDeleted(t, err)
	require.Equal(t, messagestore.Version(2), watched.from, "it went by what it remembered")
	_, _, err = entities.Get(t.Context(), "1")
	requireDeleted(t, err)
	require.Equal(t, messagestore.Version(0), watched.from, "there is nothing to go by")
}

// A watcher notes where streams are read from.
type watcher struct {
	*messagestore.Store
	from messagestore.Version
}

func (w *watcher) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	w.from = from
	return w.Store.ReadStream(ctx, stream, from)
}

// While a stream is deleted in several transactions its messages are still there, and
// the tombstone after them.
func TestAStreamThatIsBeingDeletedIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	r.add(t, "1", messagestore.NoStream, 1, 2, 3)
	var more bool
	require.NoError(t, pgtest.Pool(t).QueryRow(t.Context(),
		"select more from dibs.delete_stream($1, max_messages => 1)", string(r.category.Stream("1"))).Scan(&more))
	require.True(t, more)

	_, _, err := r.entities(t, nil).Get(t.Context(), "1")

	requireDeleted(t, err)
}
