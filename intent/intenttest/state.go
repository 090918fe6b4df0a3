package intenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of states and answers: what each step does from each state, and that an answer that was
// lost does no harm.
var stateTests = []test{
	{"State/EveryStepFromEveryState", everyStepFromEveryState, 0},
	{"State/LineOutlivesTheRelease", lineOutlivesTheRelease, 0},
	{"State/TombstoneIsDone", tombstoneIsDone, 0},
	{"State/OtherMessagesAreCorrupt", otherMessagesAreCorrupt, 0},
	{"Answer/SameSessionHasTheSameLease", sameSession, 0},
	{"Answer/OtherContentIsKeyReused", otherContent, 0},
	{"Answer/LostAnswerIsNoConflict", lostAnswers, 0},
	{"Answer/LostGrantOfNobodyIsGivenBack", lostGrants, 0},
	{"Answer/LostPlaceInTheLineIsLeft", lostPlaces, 0},
	{"Answer/MetadataGoesWithTheLease", metadataGoes, 0},
}

// Outcomes of steps in everyStepFromEveryState.
const (
	granted  = "granted"  // a new lease
	extended = "extended" // the same lease
	held     = "held"
	done     = "done"
	ok       = "ok"
	lost     = "lost"
)

// everyStepFromEveryState brings an intent into each state, and tries each step from it: by session
// A, which has or had the lease, and by another session.
func everyStepFromEveryState(t *testing.T, f *fixture) {
	states := []struct {
		name  string
		bring func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease
		// of A: Reserve, Extend, Release, Confirm; and Reserve of another
		a, extend, release, confirm, other string
	}{
		{"reserved", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			return lease(t, m, r)
		}, extended, ok, ok, ok, held},
		{"extended", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			require.NoError(t, l.Extend(t.Context()))
			return l
		}, extended, ok, ok, ok, held},
		{"waiting", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			f.leaveInLine(t, m, r.Key, "W")
			return l
		}, extended, ok, ok, ok, held},
		{"released", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			require.NoError(t, l.Release(t.Context(), ""))
			return l
		}, granted, lost, ok, lost, granted},
		{"released by an operator", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			require.NoError(t, m.ForceRelease(t.Context(), "", r.Key, "it hangs"))
			return l
		}, granted, lost, lost, lost, granted},
		{"taken over", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			require.NoError(t, m.ForceRelease(t.Context(), "", r.Key, "it hangs"))
			r.Session = "B"
			lease(t, m, r)
			return l
		}, held, lost, lost, lost, held},
		{"confirmed", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			require.NoError(t, l.Confirm(t.Context(), "result"))
			return l
		}, done, lost, lost, ok, done},
		{"confirmed as another", func(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
			l := lease(t, m, r)
			require.NoError(t, l.Confirm(t.Context(), "another result"))
			return l
		}, done, lost, lost, lost, done},
	}
	elsewhere := f.manager(t, nil)
	for _, s := range states {
		for step, want := range map[string]string{"a": s.a, "extend": s.extend, "release": s.release, "confirm": s.confirm, "other": s.other} {
			r := request("A")
			r.Key = s.name + " " + step
			l := s.bring(t, f.m, r)
			var got string
			switch step {
			case "a":
				got = answered(t, f.m, r, l.Token())
			case "other":
				r.Session = "C"
				got = answered(t, f.m, r, l.Token())
			case "extend":
				got = stepped(t, l.Extend(t.Context()))
			case "release":
				got = stepped(t, l.Release(t.Context(), "reason"))
			case "confirm":
				got = stepped(t, l.Confirm(t.Context(), "result"))
			}
			require.Equal(t, want, got, "%s: %s", s.name, step)

			if holderSteps[step] == nil {
				continue
			}
			r.Key += ", by its holder"
			l = s.bring(t, f.m, r)
			before, err := f.m.Lookup(t.Context(), "", r.Key)
			require.NoError(t, err)
			after, err := holderSteps[step](t.Context(), elsewhere, holder(r, l))
			require.Equal(t, want, stepped(t, err), r.Key)
			found, err := f.m.Lookup(t.Context(), "", r.Key)
			require.NoError(t, err)
			if want == lost {
				require.Equal(t, seen(before), seen(found), r.Key)
			}
			require.Equal(t, seen(found), seen(after), r.Key)
		}
	}
}

func answered(t *testing.T, m *intent.Manager, r intent.Request, token int64) string {
	t.Helper()
	a := reserve(t, m, r)
	switch {
	case a.Outcome != intent.Reserved:
		return a.Outcome.String()
	case a.Lease.Token() == token:
		return extended
	}
	require.Greater(t, a.Lease.Token(), token)
	return granted
}

func stepped(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ok
	}
	require.ErrorIs(t, err, intent.ErrLeaseLost)
	return lost
}

// leaveInLine leaves a session in the line of key that never takes its turn: its process dies while
// it waits.
func (f *fixture) leaveInLine(t *testing.T, m *intent.Manager, key, session string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := dying{f.store, new(atomic.Bool)}
	process := f.managerOver(t, store)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = process.Reserve(ctx, intent.Request{Key: key, Session: session, Content: content, Wait: time.Hour})
	}()
	f.untilInLine(t, m, key, session)
	store.dead.Store(true)
	cancel()
	testkit.Receive(t, "the waiter is gone", gone)
}

// A dying store belongs to a process that dies: no call reaches the store any more.
type dying struct {
	intent.Store
	dead *atomic.Bool
}

// The calls of a dead process end at once, without another attempt.
var errDead = fmt.Errorf("%w: the process is dead", messagestore.ErrClosed)

func (d dying) TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	if d.dead.Load() {
		return messagestore.Written{}, nil, errDead
	}
	return d.Store.TryWrite(ctx, stream, expected, bodies...)
}

func (d dying) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if d.dead.Load() {
		return nil, errDead
	}
	return d.Store.Last(ctx, stream)
}

// untilInLine waits until session is the last in the line. It must not get the intent before.
func (f *fixture) untilInLine(t *testing.T, m *intent.Manager, key, session string) {
	t.Helper()
	testkit.Await(t, session+" is the last in the line", func() (bool, any) {
		i, err := m.Lookup(t.Context(), "", key)
		require.NoError(t, err)
		n := len(i.Line)
		return n > 0 && i.Line[n-1] == session, i
	})
}

func lineOutlivesTheRelease(t *testing.T, f *fixture) {
	l := lease(t, f.m, request("A"))
	f.leaveInLine(t, f.m, key, "W")
	require.NoError(t, l.Extend(t.Context()))
	require.Equal(t, []string{"W"}, f.lookup(t).Line)
	require.Equal(t, longTTL, reserve(t, f.m, request("A")).Intent.Left, "its own")
	require.NoError(t, l.Release(t.Context(), ""))

	a := reserve(t, f.m, request("B"))
	require.Equal(t, intent.Held, a.Outcome, "it is the turn of W")
	require.Equal(t, intent.Free, a.Intent.Status)
	require.Equal(t, []string{"W"}, a.Intent.Line)
	require.LessOrEqual(t, a.Intent.Left, longTurn)
	f.leaveInLine(t, f.m, key, "V")
	require.ErrorIs(t, l.Extend(t.Context()), intent.ErrLeaseLost, "a waiter does not bring the lease back")
	require.ErrorIs(t, l.Confirm(t.Context(), nil), intent.ErrLeaseLost)
	require.NoError(t, l.Release(t.Context(), ""), "again")

	r := request("B")
	r.Wait = time.Minute
	lease(t, f.hasty, r)
	require.Empty(t, f.lookup(t).Line, "they did not come")
}

func tombstoneIsDone(t *testing.T, f *fixture) {
	f.m = f.managerOver(t, tombstones{f.store})
	a := reserve(t, f.m, request("A"))
	require.Equal(t, intent.Done, a.Outcome)
	require.True(t, a.Intent.Forgotten)
	result, err := intent.Result[string](a)
	require.NoError(t, err)
	require.Empty(t, result)
	i := f.lookup(t)
	require.Equal(t, intent.Done, i.Status)
	require.True(t, i.Forgotten)
}

func (f *fixture) managerOver(t *testing.T, store intent.Store) *intent.Manager {
	t.Helper()
	m, err := intent.New(store, f.category, &intent.Config{TTL: longTTL})
	require.NoError(t, err)
	return m
}

// tombstones is a store with all its streams deleted.
type tombstones struct{ intent.Store }

func (s tombstones) TryWrite(ctx context.Context, stream messagestore.StreamName, _ messagestore.Version, _ ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	now, err := s.Now(ctx)
	last, _ := s.Last(ctx, stream)
	return messagestore.Written{}, &messagestore.Conflict{Time: now, Last: []*messagestore.Message{last}}, err
}

func (s tombstones) Last(_ context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	return &messagestore.Message{Stream: stream, Position: 7, Type: removal.TombstoneType, Data: []byte(`{}`)}, nil
}

func otherMessagesAreCorrupt(t *testing.T, f *fixture) {
	const good = `"session":"A","attempt":1,"ttl":15000,"content":"c"`
	for kind, data := range map[string][]string{
		"Paid":                  {`{}`},
		intentlog.TypeReserved:  {`{}`, `{"session":1}`, `{"session":"A","attempt":1,"ttl":3155760000000,"content":"c"}`, `{` + good + `,"after":-1}`, `{` + good + `,"after":9007199254740993000}`},
		intentlog.TypeExtended:  {`{` + good + `}`, `{` + good + `,"token":253402300800000000}`, `{"session":"A","attempt":0,"ttl":15000,"content":"c","token":1}`, `{"session":"A","attempt":1,"ttl":15000,"token":1}`},
		intentlog.TypeWaiting:   {`{` + good + `,"token":1,"at":9007199254740993000}`, `{` + good + `,"token":0,"at":1}`, `{` + good + `,"token":1,"at":1,"of":9007199254740991}`},
		intentlog.TypeReleased:  {`{` + good + `,"token":-1}`, `{"session":"a\nb","attempt":1,"ttl":15000,"content":"c","token":1}`},
		intentlog.TypeConfirmed: {`{` + good + `}`},
		"dibs:SomethingOther":   nil,
	} {
		for i, d := range data {
			k := kind + string(rune('a'+i))
			stream, err := f.m.Stream("", k)
			require.NoError(t, err)
			written, met, err := f.store.TryWrite(t.Context(), stream, messagestore.NoStream, messagestore.Raw{Type: kind, Data: []byte(d)})
			require.NoError(t, err)
			require.Nil(t, met)

			_, err = f.m.Reserve(t.Context(), intent.Request{Key: k, Content: content})
			require.ErrorIs(t, err, intent.ErrCorrupt, d)
			require.ErrorContains(t, err, fmt.Sprintf("%s@%d:", stream, written.Version))
			_, err = f.m.Lookup(t.Context(), "", k)
			require.ErrorIs(t, err, intent.ErrCorrupt, d)
			_, err = f.m.Resume(t.Context(), "", k, "A", 1)
			require.ErrorIs(t, err, intent.ErrCorrupt, d)
			require.ErrorIs(t, f.m.ForceRelease(t.Context(), "", k, "because"), intent.ErrCorrupt, d)
		}
	}
	f.category = Category(t) // these streams are no intents'
}

func sameSession(t *testing.T, f *fixture) {
	first := lease(t, f.m, request("A"))
	for range 3 {
		r := request("A")
		r.TTL = shortTTL // a lease keeps its own
		again := lease(t, f.m, r)
		require.Equal(t, first.Token(), again.Token())
		require.Equal(t, 1, again.Attempt())
		require.Greater(t, again.Until(), first.Until().Add(-time.Millisecond))
		require.Greater(t, again.Left(), shortTTL)
	}
	require.Equal(t, intent.Held, reserve(t, f.m, request("B")).Outcome)
	require.NoError(t, first.Confirm(t.Context(), nil))
	f.requireTypes(t, intentlog.TypeReserved, intentlog.TypeExtended, intentlog.TypeExtended, intentlog.TypeExtended, intentlog.TypeConfirmed)
}

func otherContent(t *testing.T, f *fixture) {
	other := request("A")
	other.Content = "pay 200"
	l := lease(t, f.short, request("A"))
	require.Equal(t, intent.KeyReused, reserve(t, f.m, other).Outcome, "of the same session too")
	f.lapse(t, f.short)
	require.Equal(t, intent.KeyReused, reserve(t, f.m, other).Outcome, "a part of the work may be done")
	require.NoError(t, l.Release(t.Context(), ""))
	l = lease(t, f.m, other)
	require.Equal(t, intent.KeyReused, reserve(t, f.m, request("A")).Outcome)
	require.NoError(t, l.Confirm(t.Context(), nil))
	require.Equal(t, intent.KeyReused, reserve(t, f.m, request("A")).Outcome)
	require.Equal(t, intent.Done, reserve(t, f.m, other).Outcome)
}

// A forgetfulStore loses the answers of writes that succeeded or are still on their way, and fails
// the calls after that.
type forgetfulStore struct {
	intent.Store
	lose   atomic.Bool
	outage int32 // how many calls fail after an answer that was lost
	away   atomic.Int32
	late   bool
	arrive func(ctx context.Context) (*messagestore.Conflict, error) // the write that is on its way
}

func (s *forgetfulStore) TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	if s.away.Add(-1) >= 0 {
		return messagestore.Written{}, nil, errAway
	}
	if s.late && s.lose.Swap(false) {
		s.away.Store(s.outage)
		s.arrive = func(ctx context.Context) (*messagestore.Conflict, error) {
			_, met, err := s.Store.TryWrite(ctx, stream, expected, bodies...)
			return met, err
		}
		return messagestore.Written{}, nil, &messagestore.OutcomeUnknownError{Cause: context.DeadlineExceeded}
	}
	written, met, err := s.Store.TryWrite(ctx, stream, expected, bodies...)
	if err == nil && met == nil && s.lose.Swap(false) {
		s.away.Store(s.outage)
		return messagestore.Written{}, nil, &messagestore.OutcomeUnknownError{Cause: context.DeadlineExceeded}
	}
	return written, met, err
}

func (s *forgetfulStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if s.away.Add(-1) >= 0 {
		return nil, errAway
	}
	return s.Store.Last(ctx, stream)
}

var errAway = errors.New("failed to connect")

func lostAnswers(t *testing.T, f *fixture) {
	store := &forgetfulStore{Store: f.store}
	m := f.managerOver(t, store)
	losing := func(do func() error) {
		t.Helper()
		store.lose.Store(true)
		require.ErrorIs(t, do(), messagestore.ErrOutcomeUnknown)
		require.NoError(t, do())
	}
	var l *intent.Lease
	losing(func() error {
		a, err := m.Reserve(t.Context(), request("A"))
		if err == nil {
			require.Equal(t, intent.Reserved, a.Outcome)
			require.Equal(t, 1, a.Lease.Attempt())
			l = a.Lease
		}
		return err
	})
	losing(func() error { return l.Extend(t.Context()) })
	losing(func() error { return l.Release(t.Context(), "") })
	l = lease(t, m, request("A"))
	losing(func() error { return l.Confirm(t.Context(), "result") })
	require.NoError(t, l.Confirm(t.Context(), json.RawMessage(`"r\u0065sult"`)), "the same in another spelling")
	require.ErrorIs(t, l.Confirm(t.Context(), "another"), intent.ErrLeaseLost)
	require.JSONEq(t, `"result"`, string(f.lookup(t).Result))
}

// lostGrants loses the answers to requests that no caller can repeat, because nobody knows their
// session. The intents that were granted are free again, even if the write was still on its way. A
// session that the caller named keeps its lease.
func lostGrants(t *testing.T, f *fixture) {
	for _, wait := range []time.Duration{0, time.Minute} {
		for i := range 4 {
			late, outage := i%2 == 1, int32(3*(i/2))
			store := &forgetfulStore{Store: f.store, late: late, outage: outage}
			m := f.managerOver(t, store)
			r := request("")
			r.Key, r.Wait = fmt.Sprint(wait, late, outage), wait
			store.lose.Store(true)

			_, err := m.Reserve(t.Context(), r)

			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
			if late {
				met, err := store.arrive(t.Context())
				require.NoError(t, err)
				require.NotNil(t, met, "it came too late")
			}
			i, err := f.m.Lookup(t.Context(), "", r.Key)
			require.NoError(t, err)
			require.Equal(t, intent.Free, i.Status, r.Key)
			require.Equal(t, intent.Reserved, reserve(t, f.m, r).Outcome)
		}
	}
	store := &forgetfulStore{Store: f.store}
	store.lose.Store(true)
	_, err := f.managerOver(t, store).Reserve(t.Context(), request("A"))
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Equal(t, intent.Held, f.lookup(t).Status)
}

// lostPlaces loses the answers to waiters that joined the line. They leave it, even if the store
// fails at first, and cost nobody a turn.
func lostPlaces(t *testing.T, f *fixture) {
	lease(t, f.m, request("A"))
	for _, outage := range []int32{0, 3} {
		for _, session := range []string{"", "B"} {
			store := &forgetfulStore{Store: f.store, outage: outage}
			r := request(session)
			r.Wait = time.Minute
			store.lose.Store(true)

			_, err := f.managerOver(t, store).Reserve(t.Context(), r)

			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
			require.Empty(t, f.lookup(t).Line)
		}
	}
}

func metadataGoes(t *testing.T, f *fixture) {
	r := request("A")
	r.Metadata.CorrelationStream = "saga-1"
	r.Metadata.Properties = messagestore.Properties{"who": "me"}
	l := lease(t, f.m, r)
	require.Equal(t, messagestore.StreamName("saga-1"), l.Cause().Metadata.CorrelationStream)
	require.Equal(t, l.Stream(), l.Cause().Stream)
	require.NoError(t, l.Extend(t.Context()))
	f.leaveInLine(t, f.m, key, "W")
	resumed, err := f.m.Resume(t.Context(), "", key, "A", l.Token())
	require.NoError(t, err)
	require.NoError(t, resumed.Confirm(t.Context(), nil))
	last, err := f.store.Last(t.Context(), l.Stream())
	require.NoError(t, err)
	require.Equal(t, intentlog.TypeConfirmed, last.Type)
	for _, m := range append(f.messages(t, f.category), last) {
		require.Equal(t, messagestore.StreamName("saga-1"), m.Metadata.CorrelationStream, m.Type)
		require.Equal(t, "me", m.Metadata.Properties.Get("who"))
	}
}
