package intent_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
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
		store := must.New(messagestore.New(memory.New(), nil))
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
	store := must.New(messagestore.New(memory.New(), nil))
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
