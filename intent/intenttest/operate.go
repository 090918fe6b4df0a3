package intenttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of what operators and other processes do: resume and release leases, list intents, and
// declare the life of keys.
var operateTests = []test{
	{"Resume/InAnotherProcess", resume, 0},
	{"ForceRelease/FencesTheHolder", forceRelease, 0},
	{"Lookup/NeverReserved", neverReserved, 0},
	{"List/ChoosesByStatusScopeAndSession", list, reading},
	{"List/InPages", listPages, reading},
	{"KeyLife/IsDeclaredByTheFirst", keyLife, forgetting | direct},
	{"KeyLife/IsRefusedOnceThereAreIntents", keyLifeTooLate, reading | forgetting | direct},
	{"KeyLife/IsRefusedWhereAnIntentCameFirst", keyLifeRaced, reading | forgetting},
	{"KeyLife/IsRefusedWhereKeysStay", keyLifeInVain, 0},
}

func resume(t *testing.T, f *fixture) {
	first := lease(t, f.m, request("A"))
	elsewhere := f.manager(t, &intent.Config{Turn: turn})

	l, err := elsewhere.Resume(t.Context(), "", key, "A", first.Token())

	require.NoError(t, err)
	require.Equal(t, first.Token(), l.Token())
	require.Positive(t, l.Left())
	require.NoError(t, l.Err())
	for _, token := range []int64{0, -1, 253_402_300_800_000_000} {
		_, err := elsewhere.Resume(t.Context(), "", key, "A", token)
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "fencing token", invalid.Field)
	}
	for _, token := range []int64{1, l.Token() - 1, l.Token() + 1, l.Token() + time.Hour.Microseconds()} {
		_, err := elsewhere.Resume(t.Context(), "", key, "A", token)
		require.ErrorIs(t, err, intent.ErrLeaseLost)
	}
	for _, session := range []string{"", "a\nb"} {
		_, err := elsewhere.Resume(t.Context(), "", key, session, l.Token())
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	require.NoError(t, l.Confirm(t.Context(), "elsewhere"))
	require.NoError(t, first.Confirm(t.Context(), "elsewhere"), "the same lease, and the same result")
	_, err = elsewhere.Resume(t.Context(), "", key, "A", first.Token())
	require.ErrorIs(t, err, intent.ErrLeaseLost)
}

func forceRelease(t *testing.T, f *fixture) {
	operator := f.manager(t, &intent.Config{Name: "ops"})
	l := lease(t, f.m, request("A"))
	require.ErrorIs(t, operator.ForceRelease(t.Context(), "", key, ""), messagestore.ErrInvalid)
	require.ErrorIs(t, operator.ForceRelease(t.Context(), "", key, "a\nb"), messagestore.ErrInvalid)

	require.NoError(t, operator.ForceRelease(t.Context(), "", key, "it hangs"))
	require.NoError(t, operator.ForceRelease(t.Context(), "", key, "it hangs"), "again")

	for _, step := range steps {
		requireLost(t, step(t.Context(), l), "A")
	}
	i := f.lookup(t)
	require.Equal(t, intent.Free, i.Status)
	require.Equal(t, "ops", i.By)
	require.Equal(t, "it hangs", i.Reason)

	late := lease(t, f.short, request("B"))
	f.lapse(t, f.short)
	require.NoError(t, operator.ForceRelease(t.Context(), "", key, "a commit may be on its way"))
	require.ErrorIs(t, late.Confirm(t.Context(), nil), intent.ErrLeaseLost)
}

func neverReserved(t *testing.T, f *fixture) {
	_, err := f.m.Lookup(t.Context(), "", key)
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	_, err = f.m.Await(t.Context(), "", key)
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	_, err = f.m.Resume(t.Context(), "", key, "A", 17)
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	require.ErrorIs(t, f.m.ForceRelease(t.Context(), "", key, "because"), messagestore.ErrNotFound)
	for _, bad := range []string{"", " ", "\xff"} {
		_, err = f.m.Lookup(t.Context(), "", bad)
		require.ErrorIs(t, err, intent.ErrInvalidKey)
	}
}

func list(t *testing.T, f *fixture) {
	for i := range 5 {
		pause(t, time.Millisecond) // they are listed by the time of their grants
		l := lease(t, f.m, intent.Request{Scope: fmt.Sprint("s", i%2), Key: fmt.Sprint("k", i), Session: fmt.Sprint("S", i), Content: content})
		switch i {
		case 3:
			require.NoError(t, l.Release(t.Context(), ""))
		case 4:
			require.NoError(t, l.Confirm(t.Context(), "result"))
		}
	}
	keys := func(filter intent.Filter) []string {
		all, err := f.m.List(t.Context(), filter)
		require.NoError(t, err)
		var keys []string
		for _, i := range all {
			keys = append(keys, i.Key)
		}
		return keys
	}
	require.Equal(t, []string{"k0", "k1", "k2"}, keys(intent.Filter{}))
	require.Equal(t, []string{"k0", "k2"}, keys(intent.Filter{Scope: "s0"}))
	require.Equal(t, []string{"k1"}, keys(intent.Filter{Session: "S1"}))
	require.Equal(t, []string{"k3"}, keys(intent.Filter{Status: []intent.Outcome{intent.Free}}))
	require.Equal(t, []string{"k3", "k4"}, keys(intent.Filter{Status: []intent.Outcome{intent.Free, intent.Done}}))
	now, err := f.store.Now(t.Context())
	require.NoError(t, err)
	require.Empty(t, keys(intent.Filter{Since: now.Add(time.Hour)}))
	_, err = f.m.List(t.Context(), intent.Filter{Status: []intent.Outcome{intent.KeyReused}})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

// listPages lists intents that have changed and go on changing. Each is in the pages once as it is.
func listPages(t *testing.T, f *fixture) {
	const intents = 80 // and more messages than one read has
	leases := make([]*intent.Lease, intents)
	for i := range leases {
		leases[i] = lease(t, f.m, with(fmt.Sprint("S", i), fmt.Sprint("k", i)))
	}
	for i, l := range leases {
		switch i % 4 {
		case 1:
			require.NoError(t, l.Release(t.Context(), ""))
		case 2:
			require.NoError(t, l.Confirm(t.Context(), i))
		case 3:
			require.NoError(t, l.Extend(t.Context()))
		}
	}
	pages := func(filter intent.Filter, limit int, between func(page intent.Page)) []intent.Intent {
		t.Helper()
		var all []intent.Intent
		var page intent.Page
		for more := true; more; more = page.More {
			var err error
			page, err = f.m.ListPage(t.Context(), filter, page.Next, limit)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Intents), limit)
			for _, i := range page.Intents {
				all = append(all, seen(i))
			}
			between(page)
		}
		return all
	}
	for _, filter := range []intent.Filter{
		{}, {Status: []intent.Outcome{intent.Free}}, {Status: []intent.Outcome{intent.Free, intent.Done, intent.Held}}, {Session: "S3"}, {Scope: "none"},
	} {
		all, err := f.m.List(t.Context(), filter)
		require.NoError(t, err)
		for i := range all {
			all[i] = seen(all[i])
		}
		for _, limit := range []int{1, 7, 40, 1000} {
			require.ElementsMatch(t, all, pages(filter, limit, func(intent.Page) {}), "%+v by %d", filter, limit)
		}
	}

	extended := 0
	listed := map[string]int{}
	for _, i := range pages(intent.Filter{}, 3, func(intent.Page) {
		if extended < 2 { // k76 and k72 have not come yet
			require.NoError(t, leases[76-4*extended].Extend(t.Context()))
			extended++
		}
	}) {
		listed[i.Key]++
	}
	require.Len(t, listed, intents/2)
	for key, n := range listed {
		require.Equal(t, 1, n, key)
	}
	for limit, from := range map[int]messagestore.GlobalPosition{0: 0, 1001: 0, 1: -1} {
		_, err := f.m.ListPage(t.Context(), intent.Filter{}, from, limit)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
}

func keyLife(t *testing.T, f *fixture) {
	day := f.manager(t, &intent.Config{KeyLife: 24 * time.Hour})
	lease(t, day, request("A"))
	last, err := f.store.Last(t.Context(), removal.KeyLifeStream(f.category))
	require.NoError(t, err)
	declared, err := messagestore.Decode[removal.KeyLifeDeclared](last)
	require.NoError(t, err)
	require.Equal(t, int64(24*60*60), declared.Seconds)

	lease(t, f.manager(t, &intent.Config{KeyLife: 24 * time.Hour}), with("A", "b"))
	lease(t, f.m, with("A", "c")) // it knows of no life
	for range 2 {
		_, err = f.manager(t, &intent.Config{KeyLife: 48 * time.Hour}).Reserve(t.Context(), with("A", "d"))
		require.ErrorIs(t, err, intent.ErrInvalidConfig)
	}
}

func keyLifeTooLate(t *testing.T, f *fixture) {
	lease(t, f.m, request("A"))
	_, err := f.manager(t, &intent.Config{KeyLife: 24 * time.Hour}).Reserve(t.Context(), with("A", "b"))
	require.ErrorIs(t, err, intent.ErrInvalidConfig)
	_, err = f.store.Last(t.Context(), removal.KeyLifeStream(f.category))
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}

// A racedStore lets another manager reserve before the life of keys is stored.
type racedStore struct {
	intent.CategoryStore
	comesIn func()
}

func (racedStore) Forgets() bool { return true }

func (s racedStore) TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	s.comesIn()
	return s.CategoryStore.TryWriteStreams(ctx, writes...)
}

func keyLifeRaced(t *testing.T, f *fixture) {
	category, is := f.store.(intent.CategoryStore)
	require.True(t, is)
	raced := racedStore{category, sync.OnceFunc(func() { lease(t, f.m, request("A")) })}
	for _, store := range []intent.Store{raced, raced, f.store} { // the last is that of a manager that starts later
		m, err := intent.New(store, f.category, &intent.Config{KeyLife: 24 * time.Hour})
		require.NoError(t, err)
		for range 2 {
			_, err = m.Reserve(t.Context(), with("A", "b"))
			require.ErrorIs(t, err, intent.ErrInvalidConfig)
			require.ErrorContains(t, err, "had a key before a life of keys was declared")
		}
	}
	_, err := f.m.Lookup(t.Context(), "", "b")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}

// A stayingStore is a store that cannot remove intents.
type stayingStore struct{ intent.Store }

func keyLifeInVain(t *testing.T, f *fixture) {
	stores := []intent.Store{stayingStore{f.store}}
	if !forgets(f.store) {
		stores = append(stores, f.store)
	}
	for _, store := range stores {
		_, err := intent.New(store, f.category, &intent.Config{KeyLife: 24 * time.Hour})
		require.ErrorIs(t, err, intent.ErrInvalidConfig)
		require.ErrorContains(t, err, "KeyLife")
	}
}
