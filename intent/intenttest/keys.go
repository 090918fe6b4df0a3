package intenttest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of keys: that different bytes are different intents, and that a request gets all its
// keys or none.
var keyTests = []test{
	{"Keys/DifferentBytesAreDifferentIntents", differentKeys, 0},
	{"Keys/AllOrNone", allOrNone, several | direct},
	{"Keys/EachIsTakenOverAtItsVersion", keysTakenOver, several | direct},
	{"Confirm/AppendsOtherWrites", confirmAppends, several},
}

func differentKeys(t *testing.T, f *fixture) {
	seen := map[messagestore.StreamName]bool{}
	for _, k := range []string{
		"a", "A", "a ", " a", "\u00e4", "a\u0308", "a+b", "a-b", "a:b", "a%b", "a/b", "a%2Bb", "a\x00", "%", "+", "-", ":",
		strings.Repeat("k", 300), strings.Repeat("k", 301), strings.Repeat("\u00e4", 1<<19),
	} {
		for _, scope := range []string{"", "s", "S", "s+", "a", strings.Repeat("s", 300)} {
			r := intent.Request{Scope: scope, Key: k, Content: content}
			l := lease(t, f.m, r)
			require.False(t, seen[l.Stream()], "%q", l.Stream())
			seen[l.Stream()] = true
			i, err := f.m.Lookup(t.Context(), scope, k)
			require.NoError(t, err)
			require.Equal(t, l.Token(), i.Token)
			if len(k) < 100 && len(scope) < 100 {
				require.Equal(t, k, i.Key)
				require.Equal(t, scope, i.Scope)
			}
		}
	}
}

func with(session string, keys ...string) intent.Request {
	return intent.Request{Key: keys[0], With: keys[1:], Session: session, Content: content}
}

func allOrNone(t *testing.T, f *fixture) {
	b := lease(t, f.m, with("B", "b"))

	a := reserve(t, f.m, with("A", "a", "b", "c"))
	require.Equal(t, intent.Held, a.Outcome)
	require.Equal(t, "b", a.Intent.Key)
	for _, k := range []string{"a", "c"} {
		_, err := f.m.Lookup(t.Context(), "", k)
		require.ErrorIs(t, err, messagestore.ErrNotFound)
	}
	require.NoError(t, b.Release(t.Context(), ""))

	l := lease(t, f.m, with("A", "a", "b", "c"))
	require.Len(t, l.Tokens(), 3)
	require.Equal(t, 2, l.Attempt(), "of b")
	for i, k := range []string{"a", "b", "c"} {
		require.Equal(t, intent.Held, reserve(t, f.m, with("B", k)).Outcome)
		state, err := f.m.Lookup(t.Context(), "", k)
		require.NoError(t, err)
		require.Equal(t, l.Tokens()[i], state.Token)
	}
	again := lease(t, f.m, with("A", "a", "b", "c"))
	require.Equal(t, l.Tokens(), again.Tokens())
	require.NoError(t, l.Extend(t.Context()))
	require.NoError(t, l.Confirm(t.Context(), "all"))
	require.NoError(t, l.Confirm(t.Context(), "all"), "again")
	for _, k := range []string{"a", "b", "c"} {
		require.Equal(t, intent.Done, reserve(t, f.m, with("B", k)).Outcome)
	}

	l = lease(t, f.m, with("A", "d", "e"))
	require.NoError(t, f.m.ForceRelease(t.Context(), "", "e", "a part is lost"))
	for name, step := range steps {
		require.ErrorIs(t, step(t.Context(), l), intent.ErrLeaseLost, name)
	}
	state, err := f.m.Lookup(t.Context(), "", "d")
	require.NoError(t, err)
	require.Equal(t, intent.Held, state.Status, "all or none")

	most := make([]string, messagestore.MaxWriteStreams)
	for i := range most {
		most[i] = fmt.Sprint("m", i)
	}
	l = lease(t, f.m, with("A", most...))
	require.NoError(t, l.Release(t.Context(), ""))
}

func keysTakenOver(t *testing.T, f *fixture) {
	late := lease(t, f.short, with("late", key, "b"))
	f.lapse(t, f.short)
	untilNotHeld(t, f.short, "b") // it was granted some microseconds later

	next := lease(t, f.m, with("next", "b", key, "c"))

	require.Equal(t, 2, next.Attempt())
	require.Greater(t, next.Tokens()[0], late.Tokens()[1])
	require.Greater(t, next.Tokens()[1], late.Tokens()[0])
	require.ErrorIs(t, late.Confirm(t.Context(), nil), intent.ErrLeaseLost)
	require.NoError(t, next.Confirm(t.Context(), nil))
}

func confirmAppends(t *testing.T, f *fixture) {
	other := f.category.WithType("other").Stream("1")
	l := lease(t, f.m, request("A"))

	err := l.Confirm(t.Context(), nil, messagestore.To(other, 7, effect()))
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.NotErrorIs(t, err, intent.ErrLeaseLost)
	require.False(t, l.Lost(err))
	require.NoError(t, l.Err(), "the lease lives on")

	f.leaveInLine(t, f.m, key, "W") // the version is another now
	require.NoError(t, l.Confirm(t.Context(), nil, messagestore.To(other, messagestore.NoStream, effect())))
	require.NoError(t, l.Confirm(t.Context(), nil, messagestore.To(other, messagestore.NoStream, effect())), "again")
	require.NoError(t, l.Confirm(t.Context(), nil, messagestore.To(other, 0, effect())), "again")
	last, err := f.store.Last(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), last.Position)

	late, next := f.overtakenOn(t, "k2")
	require.ErrorIs(t, late.Confirm(t.Context(), nil, messagestore.To(other, 0, effect())), intent.ErrLeaseLost)
	require.NoError(t, next.Confirm(t.Context(), nil, messagestore.To(other, 0, effect())))
}

func (f *fixture) overtakenOn(t *testing.T, key string) (late, next *intent.Lease) {
	t.Helper()
	late = lease(t, f.m, with("late", key))
	require.NoError(t, f.m.ForceRelease(t.Context(), "", key, "it hangs"))
	return late, lease(t, f.m, with("next", key))
}
