package intent_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

const category messagestore.Category = "payment:intent"

type order struct {
	Amount int `json:"amount"`
}

type receipt struct {
	Number string `json:"number"`
}

// bubble runs f in a bubble, in which time passes only while everybody waits, with a manager over
// a store in memory.
func bubble(t *testing.T, f func(t *testing.T, m *intent.Manager, store *messagestore.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		f(t, manager(t, store, nil), store)
	})
}

func manager(t *testing.T, store intent.Store, config *intent.Config) *intent.Manager {
	t.Helper()
	m, err := intent.New(store, category, config)
	require.NoError(t, err)
	return m
}

func request(session string) intent.Request {
	return intent.Request{Key: "k", Session: session, Content: order{100}}
}

func reserve(t *testing.T, m *intent.Manager, r intent.Request) intent.Answer {
	t.Helper()
	a, err := m.Reserve(t.Context(), r)
	require.NoError(t, err)
	return a
}

func lease(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
	t.Helper()
	a := reserve(t, m, r)
	require.Equal(t, intent.Reserved, a.Outcome)
	return a.Lease
}

func types(t *testing.T, store *messagestore.Store, stream messagestore.StreamName) []string {
	t.Helper()
	var all []string
	for m, err := range store.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		all = append(all, m.Type)
	}
	return all
}

func TestFourAnswers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		began := time.Now()

		first := reserve(t, m, request("A"))
		time.Sleep(4 * time.Second)
		held := reserve(t, m, request("B"))
		reused := reserve(t, m, intent.Request{Key: "k", Content: order{200}})
		require.NoError(t, first.Lease.Confirm(t.Context(), receipt{"R1"}))
		done := reserve(t, m, request("B"))

		require.Equal(t, intent.Reserved, first.Outcome)
		require.Equal(t, began.UnixMicro(), first.Lease.Token())
		require.Equal(t, 1, first.Lease.Attempt())
		require.Equal(t, intent.Held, held.Outcome)
		require.Equal(t, "A", held.Intent.Session)
		require.Equal(t, began.UTC(), held.Intent.Since)
		require.Equal(t, began.Add(15*time.Second).UTC(), held.Intent.Until)
		require.Equal(t, 11*time.Second, held.Intent.Left)
		require.Nil(t, held.Lease)
		require.Equal(t, intent.KeyReused, reused.Outcome)
		require.Equal(t, intent.Done, done.Outcome)
		result, err := intent.Result[receipt](done)
		require.NoError(t, err)
		require.Equal(t, receipt{"R1"}, result)
		require.Equal(t, intent.KeyReused, reserve(t, m, intent.Request{Key: "k", Content: order{200}}).Outcome)
		require.Equal(t, []string{"Reserved", "Confirmed"}, types(t, store, "payment:intent-k"))
	})
}

func TestSameSessionHasTheSameLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		first := lease(t, m, request("A"))
		time.Sleep(10 * time.Second)

		again := lease(t, m, request("A"))
		time.Sleep(10 * time.Second)

		require.Equal(t, first.Token(), again.Token())
		require.Equal(t, 1, again.Attempt())
		require.Equal(t, intent.Held, reserve(t, m, request("B")).Outcome, "it was extended")
		require.NoError(t, first.Confirm(t.Context(), nil))
		require.NoError(t, again.Confirm(t.Context(), nil), "the same lease has confirmed the same")
		require.Equal(t, []string{"Reserved", "Extended", "Confirmed"}, types(t, store, first.Stream()))
	})
}

func TestLeaseThatIsOverIsTaken(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		late := lease(t, m, request("A"))
		time.Sleep(15*time.Second - time.Microsecond)
		require.Equal(t, intent.Held, reserve(t, m, request("B")).Outcome)
		time.Sleep(time.Microsecond)
		i, err := m.Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		require.Equal(t, intent.Free, i.Status)
		require.False(t, i.Released, "by time alone")

		next := lease(t, m, request("B"))

		require.Greater(t, next.Token(), late.Token())
		require.Equal(t, 2, next.Attempt())
		for step, err := range map[string]error{
			"extend":  late.Extend(t.Context()),
			"confirm": late.Confirm(t.Context(), receipt{"late"}),
			"release": late.Release(t.Context(), "late"),
			"err":     late.Err(),
		} {
			require.ErrorIs(t, err, intent.ErrLeaseLost, step)
			lost, ok := errors.AsType[*intent.LeaseLostError](err)
			require.True(t, ok, step)
			require.Equal(t, late.Token(), lost.Token)
			require.Equal(t, next.Token(), lost.By.Token, step)
			require.Equal(t, "B", lost.By.Session)
		}
		require.NoError(t, next.Confirm(t.Context(), receipt{"in time"}))
	})
}

func TestReleasedIntentIsFreeAtOnceAndForOtherContentToo(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		first := lease(t, m, request("A"))

		require.NoError(t, first.Release(t.Context(), "no money"))

		i, err := m.Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		require.Equal(t, intent.Free, i.Status)
		require.True(t, i.Released)
		require.Equal(t, "no money", i.Reason)
		require.NoError(t, first.Release(t.Context(), "no money"), "again")
		require.ErrorIs(t, first.Extend(t.Context()), intent.ErrLeaseLost)
		require.ErrorIs(t, first.Confirm(t.Context(), nil), intent.ErrLeaseLost)
		require.ErrorIs(t, first.Err(), intent.ErrLeaseLost)
		next := lease(t, m, intent.Request{Key: "k", Session: "A", Content: order{200}})
		require.Equal(t, 2, next.Attempt())
		require.Greater(t, next.Token(), first.Token(), "in the same microsecond")
	})
}

func TestConfirmIsForEver(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		l := lease(t, m, request("A"))
		require.NoError(t, l.Confirm(t.Context(), receipt{"R1"}))
		time.Sleep(1000 * time.Hour)

		require.NoError(t, l.Confirm(t.Context(), receipt{"R1"}), "the same again")
		require.ErrorIs(t, l.Confirm(t.Context(), receipt{"R2"}), intent.ErrLeaseLost)
		require.ErrorIs(t, l.Release(t.Context(), ""), intent.ErrLeaseLost)
		require.ErrorIs(t, l.Extend(t.Context()), intent.ErrLeaseLost)
		require.ErrorIs(t, m.ForceRelease(t.Context(), "", "k", "because"), intent.ErrDone)
		require.Equal(t, intent.Done, reserve(t, m, request("A")).Outcome)
		require.Equal(t, []string{"Reserved", "Confirmed"}, types(t, store, l.Stream()))
	})
}

func TestConfirmAppendsOtherWritesInItsStep(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		l := lease(t, m, request("A"))
		paid := messagestore.Raw{Type: "Paid", Data: []byte(`{}`)}

		err := l.Confirm(t.Context(), nil, messagestore.To("payment-1", 7, paid))
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.NotErrorIs(t, err, intent.ErrLeaseLost)
		require.False(t, l.Lost(err))
		require.NoError(t, l.Err(), "the lease lives on")
		require.NoError(t, l.Confirm(t.Context(), nil, messagestore.To("payment-1", messagestore.NoStream, paid)))

		require.Equal(t, []string{"Paid"}, types(t, store, "payment-1"))
		require.Equal(t, []string{"Reserved", "Confirmed"}, types(t, store, l.Stream()))
	})
}

func TestScopesShareNoIntent(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, _ *messagestore.Store) {
		for _, r := range []intent.Request{
			{Key: "k"}, {Scope: "a", Key: "k"}, {Scope: "b", Key: "k"}, {Key: "a+k"}, {Scope: "a", Key: "K"}, {Scope: "a", Key: " k"},
		} {
			r.Content = "x"
			l := lease(t, m, r)
			i, err := m.Lookup(t.Context(), r.Scope, r.Key)
			require.NoError(t, err)
			require.Equal(t, r.Scope, i.Scope)
			require.Equal(t, r.Key, i.Key)
			require.Equal(t, l.Stream(), i.Stream)
		}
		stream, err := m.Stream("a", "k")
		require.NoError(t, err)
		require.Equal(t, messagestore.StreamName("payment:intent-a+k"), stream)
		require.Equal(t, "a", stream.CardinalID())
	})
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *intent.Manager, store *messagestore.Store) {
		good := func(change func(r *intent.Request)) intent.Request {
			r := request("A")
			change(&r)
			return r
		}
		many := make([]string, 100)
		for i := range many {
			many[i] = strings.Repeat("x", i+1)
		}
		for name, c := range map[string]struct {
			r     intent.Request
			match error
		}{
			"key empty":           {good(func(r *intent.Request) { r.Key = "" }), intent.ErrInvalidKey},
			"key blank":           {good(func(r *intent.Request) { r.Key = " \t\u00a0" }), intent.ErrInvalidKey},
			"key invisible":       {good(func(r *intent.Request) { r.Key = "\u200b" }), intent.ErrInvalidKey},
			"key no UTF-8":        {good(func(r *intent.Request) { r.Key = "a\xff" }), intent.ErrInvalidKey},
			"scope blank":         {good(func(r *intent.Request) { r.Scope = " " }), intent.ErrInvalidKey},
			"scope no UTF-8":      {good(func(r *intent.Request) { r.Scope = "\xff" }), intent.ErrInvalidKey},
			"with the key":        {good(func(r *intent.Request) { r.With = []string{"k"} }), intent.ErrInvalidKey},
			"with twice":          {good(func(r *intent.Request) { r.With = []string{"b", "b"} }), intent.ErrInvalidKey},
			"with 100":            {good(func(r *intent.Request) { r.With = many }), messagestore.ErrInvalid},
			"with a scope":        {good(func(r *intent.Request) { r.With = []string{"a+b"} }), intent.ErrInvalidKey},
			"with empty":          {good(func(r *intent.Request) { r.With = []string{""} }), intent.ErrInvalidKey},
			"session long":        {good(func(r *intent.Request) { r.Session = strings.Repeat("s", 129) }), messagestore.ErrInvalid},
			"session control":     {good(func(r *intent.Request) { r.Session = "a\nb" }), messagestore.ErrInvalid},
			"session no UTF-8":    {good(func(r *intent.Request) { r.Session = "a\xff" }), messagestore.ErrInvalid},
			"TTL -1":              {good(func(r *intent.Request) { r.TTL = -1 }), intent.ErrInvalidConfig},
			"TTL 1 ns":            {good(func(r *intent.Request) { r.TTL = 1 }), intent.ErrInvalidConfig},
			"TTL 99 ms":           {good(func(r *intent.Request) { r.TTL = 99 * time.Millisecond }), intent.ErrInvalidConfig},
			"TTL 25 h":            {good(func(r *intent.Request) { r.TTL = 25 * time.Hour }), intent.ErrInvalidConfig},
			"TTL max":             {good(func(r *intent.Request) { r.TTL = math.MaxInt64 }), intent.ErrInvalidConfig},
			"wait -1":             {good(func(r *intent.Request) { r.Wait = -1 }), messagestore.ErrInvalid},
			"content nil":         {good(func(r *intent.Request) { r.Content = nil }), messagestore.ErrInvalid},
			"content empty":       {good(func(r *intent.Request) { r.Content = struct{}{} }), messagestore.ErrInvalid},
			"content text empty":  {good(func(r *intent.Request) { r.Content = "" }), messagestore.ErrInvalid},
			"content NaN":         {good(func(r *intent.Request) { r.Content = math.NaN() }), messagestore.ErrInvalid},
			"content key twice":   {good(func(r *intent.Request) { r.Content = raw(`{"a":{"b":1,"\u0062":2}}`) }), messagestore.ErrInvalid},
			"content half a pair": {good(func(r *intent.Request) { r.Content = raw(`{"a":"\ud800"}`) }), messagestore.ErrInvalid},
			"content no UTF-8":    {good(func(r *intent.Request) { r.Content = map[string]string{"a": "\xff"} }), messagestore.ErrInvalid},
			"content no JSON":     {good(func(r *intent.Request) { r.Content = raw(`{`) }), messagestore.ErrInvalid},
		} {
			_, err := m.Reserve(t.Context(), c.r)
			require.ErrorIs(t, err, c.match, name)
			require.ErrorIs(t, err, messagestore.ErrInvalid, name)
			require.Less(t, len(err.Error()), 300, name)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := m.Reserve(done, request("A"))
		require.ErrorIs(t, err, context.Canceled)
		_, err = m.Do(t.Context(), request("A"), nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.Empty(t, types(t, store, "payment:intent-k"))

		require.Equal(t, intent.Reserved, reserve(t, m, good(func(r *intent.Request) { r.Key = strings.Repeat("ä", 1<<19) })).Outcome, "hashed")
		require.Equal(t, intent.Reserved, reserve(t, m, good(func(r *intent.Request) { r.Key, r.Scope = strings.Repeat("k", 300), strings.Repeat("s", 300) })).Outcome)
	})
}

func raw(s string) jsonText { return jsonText(s) }

type jsonText string

func (r jsonText) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for name, c := range map[string]intent.Config{
		"TTL -1":          {TTL: -1},
		"TTL 99 ms":       {TTL: 99 * time.Millisecond},
		"TTL max":         {TTL: math.MaxInt64},
		"heartbeat":       {Heartbeat: 8 * time.Second},
		"heartbeat short": {Heartbeat: 1},
		"grace":           {Grace: -1},
		"grace long":      {Grace: 2 * time.Hour},
		"turn":            {Turn: 1},
		"turn long":       {Turn: time.Hour},
		"life":            {KeyLife: time.Second},
		"life long":       {KeyLife: math.MaxInt64},
		"life for ever":   {KeyLife: -1},
		"name":            {Name: "a\nb"},
		"name long":       {Name: strings.Repeat("n", 92)},
	} {
		_, err := intent.New(forgettingStore{store, true}, category, &c)
		require.ErrorIs(t, err, intent.ErrInvalidConfig, name)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
	}
	_, err := intent.New(nil, "", nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "store")
	require.ErrorContains(t, err, "category")
	var none *messagestore.Store
	_, err = intent.New(none, category, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = intent.New(store, messagestore.Category(strings.Repeat("c", 110)), nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

// A forgettingStore says whether an operator can remove its intents.
type forgettingStore struct {
	*messagestore.Store
	forgets bool
}

func (s forgettingStore) Forgets() bool { return s.forgets }

// A life that nobody can end is none, and no request finds out.
func TestKeyLifeIsRefusedWhereNoIntentCanBeRemoved(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	file, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "intents.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	for name, store := range map[string]intent.Store{
		"memory":                   store,
		"it says so":               forgettingStore{store, false},
		"a store of another kind":  struct{ intent.Store }{store},
		"a store without a driver": &messagestore.Store{},
	} {
		_, err := intent.New(store, category, &intent.Config{KeyLife: 24 * time.Hour})
		require.ErrorIs(t, err, intent.ErrInvalidConfig, name)
		refused, is := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, is, name)
		require.Equal(t, []string{"KeyLife", `"24h0m0s"`}, []string{refused.Field, refused.Value}, name)
		require.ErrorContains(t, err, "must be left out: no key of this store can be removed, so its keys live for ever", name)
		_, err = intent.New(store, category, nil)
		require.NoError(t, err, name)
	}
	pool, err := pgxpool.New(t.Context(), "postgres://localhost:1/none") // nothing is sent
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	for name, store := range map[string]intent.Store{
		"it says so":                  forgettingStore{store, true},
		"SQLite":                      testkit.Must(messagestore.New(file, nil)),
		"PostgreSQL":                  testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)),
		"PostgreSQL, by database/sql": testkit.Must(messagestore.New(testkit.Must(postgres.NewSQL(db, nil)), nil)),
	} {
		_, err := intent.New(store, category, &intent.Config{KeyLife: 24 * time.Hour})
		require.NoError(t, err, name)
	}
}

// A racingStore has another manager come in before the first look whether a category has intents.
type racingStore struct {
	forgettingStore
	before func()
}

func (s racingStore) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.before()
	return s.forgettingStore.ReadCategoryPage(ctx, q)
}

func TestManagersOfOneKeyLifeMayStartAtOnce(t *testing.T) {
	t.Parallel()
	for name, life := range map[string]time.Duration{"the same": time.Hour, "another": 2 * time.Hour, "for ever": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forgets := forgettingStore{testkit.Must(messagestore.New(memory.New(), nil)), true}
			other := manager(t, forgets, &intent.Config{KeyLife: life})
			m := manager(t, racingStore{forgets, sync.OnceFunc(func() { lease(t, other, intent.Request{Key: "first", Content: 1}) })}, &intent.Config{KeyLife: time.Hour})

			a, err := m.Reserve(t.Context(), request("A"))

			if life == time.Hour {
				require.NoError(t, err)
				require.Equal(t, intent.Reserved, a.Outcome)
				return
			}
			require.ErrorIs(t, err, intent.ErrInvalidConfig)
			rule := "has 2h0m0s"
			if life == 0 {
				rule = "had a key before a life of keys was declared"
			}
			require.ErrorContains(t, err, rule)
		})
	}
}
