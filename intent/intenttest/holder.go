package intenttest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of holders without a Lease: that each step may be repeated anywhere, and that no other
// session's step is taken for the holder's.
var holderTests = []test{
	{"Holder/RepeatsItsStepsAnywhere", holderRepeats, 0},
	{"Holder/AnotherIsRefused", holderRefused, 0},
	{"Holder/LostAnswersDoNoHarm", holderLostAnswers, several},
	{"Holder/ConfirmAppendsOtherWrites", holderAppends, several},
	{"Holder/ExtendsMany", holderExtendsMany, 0},
}

// holderSteps are the steps of a holder, by the names in everyStepFromEveryState.
var holderSteps = map[string]func(ctx context.Context, m *intent.Manager, h intent.Holder) (intent.Intent, error){
	"extend": func(ctx context.Context, m *intent.Manager, h intent.Holder) (intent.Intent, error) {
		return m.Extend(ctx, h)
	},
	"confirm": func(ctx context.Context, m *intent.Manager, h intent.Holder) (intent.Intent, error) {
		return m.Confirm(ctx, h, "result")
	},
	"release": func(ctx context.Context, m *intent.Manager, h intent.Holder) (intent.Intent, error) {
		return m.Release(ctx, h, "reason")
	},
}

func holder(r intent.Request, l *intent.Lease) intent.Holder {
	return intent.Holder{Scope: r.Scope, Key: r.Key, Session: l.Session(), Token: l.Token()}
}

// seen is i without what passes with time.
func seen(i intent.Intent) intent.Intent {
	i.Left = 0
	return i
}

func holderRepeats(t *testing.T, f *fixture) {
	h := holder(request("A"), lease(t, f.m, request("A")))
	f.leaveInLine(t, f.m, key, "V")
	for range 3 {
		m := f.manager(t, nil) // a separate process
		i, err := m.Extend(t.Context(), h)
		require.NoError(t, err)
		require.Equal(t, intent.Held, i.Status)
		require.Equal(t, longTTL, i.Left, "from now on, and not until the turns of others are over")
		require.Equal(t, f.lookup(t).Until, i.Until)
	}
	f.leaveInLine(t, f.m, key, "W")
	for i := range 3 {
		if i > 0 {
			f.leaveInLine(t, f.m, key, fmt.Sprint("W", i))
		}
		i, err := f.manager(t, nil).Release(t.Context(), h, "why")
		require.NoError(t, err)
		require.Equal(t, intent.Free, i.Status)
		require.Equal(t, "why", i.Reason)
	}

	r := with("A", "b")
	l := lease(t, f.m, r)
	for range 3 {
		i, err := f.manager(t, nil).Confirm(t.Context(), holder(r, l), map[string]int{"a": 1, "b": 2})
		require.NoError(t, err)
		require.Equal(t, intent.Done, i.Status)
		require.JSONEq(t, `{"b":2,"a":1}`, string(i.Result))
	}
	require.NoError(t, l.Confirm(t.Context(), map[string]int{"a": 1, "b": 2}), "by its lease, too")

	r = with("A", "c")
	l = lease(t, f.m, r)
	require.NoError(t, l.Confirm(t.Context(), nil))
	_, err := f.manager(t, nil).Confirm(t.Context(), holder(r, l), nil)
	require.NoError(t, err, "its lease has confirmed it")
	i, err := f.manager(t, nil).Confirm(t.Context(), holder(r, l), "another result")
	requireLost(t, err, "A")
	require.Empty(t, i.Result)
}

// holderRefused lets holders step on an intent that is another's: of another session, or of another
// token of the same session. Nothing changes.
func holderRefused(t *testing.T, f *fixture) {
	late := holder(request("A"), lease(t, f.short, request("A")))
	f.lapse(t, f.short)
	next := holder(request("A"), lease(t, f.m, request("A")))
	refused := func(h intent.Holder) {
		t.Helper()
		before, history := f.lookup(t), len(f.messages(t, f.category))
		for name, step := range holderSteps {
			i, err := step(t.Context(), f.m, h)
			requireLost(t, err, "A")
			if h.Token > next.Token || h.Session != next.Session {
				require.ErrorContains(t, err, "there is no such lease")
			}
			require.Equal(t, seen(before), seen(i), name)
		}
		require.Equal(t, seen(before), seen(f.lookup(t)))
		require.Len(t, f.messages(t, f.category), history)
	}
	others := []intent.Holder{late}
	for _, token := range []int64{1, next.Token - 1, next.Token + 1, next.Token + time.Hour.Microseconds()} {
		h := next
		h.Token = token
		others = append(others, h)
	}
	other := next
	other.Session = "B"
	for _, h := range append(others, other) {
		refused(h)
	}
	_, err := f.m.Confirm(t.Context(), next, "result")
	require.NoError(t, err)
	for _, h := range append(others, other) {
		refused(h)
	}
	for name, step := range holderSteps {
		h := next
		h.Key = "never reserved"
		_, err := step(t.Context(), f.m, h)
		require.ErrorIs(t, err, intent.ErrLeaseLost, name)
		require.ErrorIs(t, err, messagestore.ErrNotFound, name)
		for _, bad := range []intent.Holder{
			{Key: key, Session: "A"},
			{Key: key, Session: "A", Token: -1},
			{Key: key, Session: "A", Token: intentlog.MaxToken + 1},
			{Key: key, Token: 1},
			{Key: key, Session: "a\nb", Token: 1},
			{Session: "A", Token: 1},
			{Scope: " ", Key: key, Session: "A", Token: 1},
		} {
			_, err := step(t.Context(), f.m, bad)
			require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		}
	}
}

// A betweenStore runs between a read of an intent and the write after it.
type betweenStore struct {
	intent.Store
	between func()
}

func (s *betweenStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	m, err := s.Store.Last(ctx, stream)
	if between := s.between; between != nil {
		s.between = nil
		between()
	}
	return m, err
}

// holderLostAnswers loses the answer to each step, whose write is done at once, or after the next
// attempt has read the intent, or has written.
func holderLostAnswers(t *testing.T, f *fixture) {
	for name, step := range holderSteps {
		for _, late := range []bool{false, true} {
			store := &forgetfulStore{Store: f.store, late: late}
			m := f.managerOver(t, store)
			r := with("A", fmt.Sprint(name, late))
			h := holder(r, lease(t, m, r))
			store.lose.Store(true)
			_, err := step(t.Context(), m, h)
			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)

			_, err = step(t.Context(), m, h)

			require.NoError(t, err)
			if late && name != "confirm" {
				met, err := store.arrive(t.Context())
				require.NoError(t, err)
				require.NotNil(t, met, "it came too late")
			}
		}
	}
	write := messagestore.To(f.category.WithType("other").Stream("1"), messagestore.AnyVersion, messagestore.Envelope{ID: uuid.New(), Body: effect()})
	for name, writes := range map[string][]messagestore.StreamWrite{
		"alone": nil, "with a message": {write}, "with one that has another id each time": {messagestore.To(f.category.WithType("other").Stream("2"), messagestore.AnyVersion, effect())},
	} {
		r := with("A", name)
		h := holder(r, lease(t, f.m, r))
		confirm := func(m *intent.Manager) {
			t.Helper()
			i, err := m.Confirm(t.Context(), h, "result", writes...)
			require.NoError(t, err, name)
			require.Equal(t, intent.Done, i.Status, name)
		}
		store := &betweenStore{Store: f.store, between: func() { confirm(f.m) }}
		confirm(f.managerOver(t, store))
	}
	for _, once := range []string{"1", "2"} {
		last, err := f.store.Last(t.Context(), f.category.WithType("other").Stream(once))
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(0), last.Position, "it is written once")
	}
}

func holderAppends(t *testing.T, f *fixture) {
	other := f.category.WithType("other").Stream("1")
	h := holder(request("A"), lease(t, f.m, request("A")))

	_, err := f.m.Confirm(t.Context(), h, nil, messagestore.To(other, 7, effect()))
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.NotErrorIs(t, err, intent.ErrLeaseLost)
	require.Equal(t, intent.Held, f.lookup(t).Status, "the lease lives on")

	store := &betweenStore{Store: f.store, between: func() { f.leaveInLine(t, f.m, key, "W") }} // the version is another now
	for range 3 {
		_, err = f.managerOver(t, store).Confirm(t.Context(), h, nil, messagestore.To(other, messagestore.NoStream, effect()))
		require.NoError(t, err)
	}
	last, err := f.store.Last(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), last.Position)

	late, _ := f.overtakenOn(t, "k2")
	_, err = f.m.Confirm(t.Context(), holder(with("late", "k2"), late), nil, messagestore.To(other, 0, effect()))
	require.ErrorIs(t, err, intent.ErrLeaseLost)
}

func holderExtendsMany(t *testing.T, f *fixture) {
	const leases = 40
	holders := make([]intent.Holder, leases)
	before := make([]intent.Intent, leases)
	for i := range holders {
		r := with("A", fmt.Sprint("k", i))
		l := lease(t, f.m, r)
		holders[i] = holder(r, l)
		var err error
		switch i % 4 {
		case 1:
			require.NoError(t, f.m.ForceRelease(t.Context(), "", r.Key, "it hangs"))
			lease(t, f.m, with("B", r.Key))
		case 2:
			require.NoError(t, l.Confirm(t.Context(), "result"))
		case 3:
			holders[i].Key = "never reserved"
			continue
		}
		before[i], err = f.m.Lookup(t.Context(), "", r.Key)
		require.NoError(t, err)
	}
	pause(t, time.Millisecond)

	all, err := f.manager(t, nil).ExtendMany(t.Context(), holders...)

	require.NoError(t, err)
	require.Len(t, all, leases)
	for i, e := range all {
		switch i % 4 {
		case 0:
			require.NoError(t, e.Err)
			require.Equal(t, before[i].Stream, e.Intent.Stream)
			require.Greater(t, e.Intent.Until, before[i].Until)
			require.Equal(t, longTTL, e.Intent.Left)
			found, err := f.m.Lookup(t.Context(), "", holders[i].Key)
			require.NoError(t, err)
			require.Equal(t, seen(found), seen(e.Intent))
		case 1:
			requireLost(t, e.Err, "B")
			require.Equal(t, seen(before[i]), seen(e.Intent))
		case 2:
			requireLost(t, e.Err, "A")
			require.Equal(t, intent.Done, e.Intent.Status)
		default:
			require.ErrorIs(t, e.Err, intent.ErrLeaseLost)
		}
	}

	history := len(f.messages(t, f.category))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all, err = f.m.ExtendMany(ctx, holders[0], holders[4])
	require.NoError(t, err)
	for _, e := range all {
		require.ErrorIs(t, e.Err, context.Canceled, "it is not known")
	}
	for _, bad := range [][]intent.Holder{nil, make([]intent.Holder, 1001), {holders[0], {Key: "k"}}} {
		_, err = f.m.ExtendMany(t.Context(), bad...)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	require.Len(t, f.messages(t, f.category), history, "nothing was sent")
}
