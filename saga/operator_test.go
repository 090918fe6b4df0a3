package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

func operator(t *testing.T, store saga.Store) *saga.Operator {
	t.Helper()
	o, err := saga.NewOperatorOver(store, "booking:saga", "ann")
	require.NoError(t, err)
	return o
}

// all are the states of a saga.
var all = []saga.State{
	saga.StateRunning, saga.StateCompensating, saga.StateSuspended, saga.StateCompleted, saga.StateCompensated, saga.StateResolved,
}

// listed returns the sagas of some states, and the errors.
func listed(t *testing.T, o *saga.Operator, states ...saga.State) (got []saga.Status[json.RawMessage], wrong error) {
	t.Helper()
	for one, err := range o.List(t.Context(), states...) {
		if wrong = errors.Join(wrong, err); err == nil {
			got = append(got, one)
		}
	}
	return got, wrong
}

func refusedBy(t *testing.T, err error, rule string) {
	t.Helper()
	var state *saga.StateError
	require.ErrorAs(t, err, &state)
	require.Contains(t, err.Error(), rule)
}

func TestAnOperatorSuspendsAndResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s, o := travel(t, store, w, &saga.Config{Deadline: time.Hour}), operator(t, store)
		begin(t, s, "7", trip{"LIS"})
		_, err := o.Suspend(t.Context(), "7", "the airline is on strike")
		require.NoError(t, err)
		_, err = o.Suspend(t.Context(), "7", "again")
		refusedBy(t, err, "it is suspended already")
		_, err = o.Retry(t.Context(), "7", "now")
		refusedBy(t, err, "resume it")
		w.fails("book flight", 99, errDown)
		defer running(t, s)()
		time.Sleep(10 * time.Minute)
		require.Empty(t, w.did(), "it does nothing while it is suspended")
		status, err := o.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, []string{"operator", "the airline is on strike", "ann"}, []string{status.Suspended, status.Reason, status.By})

		_, err = o.Resume(t.Context(), "7", "the strike is over")
		require.NoError(t, err)
		require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
		_, err = o.Resume(t.Context(), "7", "again")
		refusedBy(t, err, "it has ended")
	})
}

// A saga that is suspended before a runner has seen it has its deadline all the same.
func TestASagaThatWasSuspendedFirstKeepsItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		o := operator(t, store)
		d := travelWith(t, store, w, &saga.Config{Deadline: time.Hour}, &saga.StepConfig{Retry: saga.Retry{MaxAttempts: 1000}})
		w.fails("book flight", 10_000, errDown)
		begin(t, d, "7", trip{"LIS"})
		_, err := o.Suspend(t.Context(), "7", "wait")
		require.NoError(t, err)
		_, err = o.Resume(t.Context(), "7", "go")
		require.NoError(t, err)
		defer running(t, d)()
		require.Equal(t, "the deadline is over", waitFor(t, d, "7").Reason)
	})
}

func TestAnOperatorHasTheNextAttemptNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		pause := saga.Retry{MaxAttempts: 9, MaxBackoff: time.Hour}
		s, o := travelWith(t, store, w, nil, &saga.StepConfig{Retry: pause}), operator(t, store)
		w.fails("book hotel", 1, errDown)
		begin(t, s, "7", trip{"LIS"})
		_, err := o.Retry(t.Context(), "7", "now")
		refusedBy(t, err, "no step of it waits for its next attempt")
		stop := running(t, s)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		stop()
		before, err := o.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, "the next attempt of hotel", before.Waits)
		require.Equal(t, "hotel", before.Step)
		_, err = o.Retry(t.Context(), "7", "the hotel is back")
		require.NoError(t, err)
		after, err := o.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Empty(t, after.Waits)
		require.Equal(t, before.Version+1, after.Version)
		defer running(t, s)()
		require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
	})
}

func TestAnOperatorCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s, o := travel(t, store, w, nil), operator(t, store)
		begin(t, s, "7", trip{"LIS"})
		_, err := o.Cancel(t.Context(), "7", "not wanted")
		require.NoError(t, err)
		_, err = o.Cancel(t.Context(), "7", "not wanted")
		refusedBy(t, err, "it is being undone already")
		defer running(t, s)()
		require.Equal(t, "cancelled: not wanted", waitFor(t, s, "7").Reason)
		require.Empty(t, w.did())
		last, err := store.LastOfType(t.Context(), "booking:saga-7", "CancelRequested")
		require.NoError(t, err)
		require.JSONEq(t, `{"reason":"not wanted","by":"ann"}`, string(last.Data))
	})
}

// A racing store writes a message to a saga behind each read of its stream.
type racing struct {
	saga.Store

	behind func()
}

func (r racing) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	r.behind()
	return r.Store.WriteStreams(ctx, writes...)
}

func TestAnOperatorChangesOnlyWhatItRead(t *testing.T) {
	t.Parallel()
	for doing, call := range map[string]func(o *saga.Operator) error{
		"cancel":  func(o *saga.Operator) error { _, err := o.Cancel(t.Context(), "7", "why"); return err },
		"suspend": func(o *saga.Operator) error { _, err := o.Suspend(t.Context(), "7", "why"); return err },
	} {
		t.Run(doing, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			begin(t, travel(t, store, newWorld(), nil), "7", trip{"LIS"})
			o := operator(t, racing{store, func() {
				write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, saga.BeganEvent{Step: "flight", Attempt: 1}))
			}})
			err := call(o)
			require.ErrorIs(t, err, messagestore.ErrVersionConflict)
			require.Equal(t, []string{"Started", "Began flight"}, events(t, store, "7"))
		})
	}
}

func TestAnOperatorListsAllButWhatIsNoSaga(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s, o := travel(t, store, w, nil), operator(t, store)
		begin(t, s, "1", trip{"LIS"})
		stop := running(t, s)
		waitFor(t, s, "1")
		stop()
		write(t, store, messagestore.To("booking:saga-x", messagestore.AnyVersion, saga.ResumedEvent{}))
		begin(t, s, "2", trip{"LIS"})
		begin(t, s, "3", trip{"LIS"})
		_, err := o.Suspend(t.Context(), "3", "why")
		require.NoError(t, err)

		every, err := listed(t, o, all...)
		require.ErrorContains(t, err, "booking:saga-x")
		var got []string
		for _, one := range every {
			shown, err := o.Status(t.Context(), one.ID)
			require.NoError(t, err)
			require.Equal(t, shown, one, "List and Show agree")
			got = append(got, one.ID+" "+string(one.State))
		}
		require.Equal(t, []string{"2 running", "3 suspended", "1 completed"}, got)
		suspended, err := listed(t, o, saga.StateSuspended)
		require.NoError(t, err)
		require.Empty(t, suspended, "no runner has met it")
		stop = running(t, s)
		time.Sleep(time.Second)
		stop()
		suspended, err = listed(t, o, saga.StateSuspended)
		require.NoError(t, err)
		require.Len(t, suspended, 1)
	})
}

// What has not ended is listed from the queue, in every state, and no category is read.
func TestAnOperatorListsTheOpenSagas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book hotel", 1, puzzle("what hotel?"))
		s, c := travel(t, store, w, nil), withCar(t, store, w, nil)
		stop := running(t, s)
		for _, id := range []string{"suspended", "ended"} {
			begin(t, s, id, trip{"LIS"})
			waitFor(t, s, id)
		}
		stop()
		stop = running(t, c)
		begin(t, c, "asks", trip{"LIS"})
		time.Sleep(time.Second)
		stop()
		begin(t, s, "new", trip{"LIS"})
		write(t, store, messagestore.To("booking:saga-x", messagestore.AnyVersion, saga.ResumedEvent{}))

		open, err := listed(t, operator(t, &deafStore{Store: store}))
		require.ErrorContains(t, err, "booking:saga-x")
		every, _ := listed(t, operator(t, store), all...)
		require.Len(t, open, 3)
		require.Equal(t, open, slices.DeleteFunc(every, func(s saga.Status[json.RawMessage]) bool { return s.State == saga.StateCompleted }))
	})
}

func TestAnOperatorRefusesBadInput(t *testing.T) {
	t.Parallel()
	store := newStore()
	for _, category := range []messagestore.Category{"", "booking", "booking:saga-7", "booking:command"} {
		_, err := saga.NewOperator(store, category, "ann")
		require.ErrorIs(t, err, messagestore.ErrInvalid, category)
		require.NotContains(t, err.Error(), "\n", "of the rules of a category one is told")
	}
	_, err := saga.NewOperator(nil, "booking:saga", "ann")
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	for _, text := range []string{"", " ", "a\nb", "\xff", strings.Repeat("a", 501)} {
		_, err := saga.NewOperator(store, "booking:saga", text)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		_, err = operator(t, racing{behind: func() { t.Error("a round trip") }}).Suspend(t.Context(), "7", text)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	_, err = operator(t, store).Status(t.Context(), "7")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	require.NotErrorIs(t, err, messagestore.ErrInvalid)
	require.EqualError(t, err, `show saga "7" of booking: no saga was started with this id`)
}

// outside are the types of messages that no runner writes.
var outside = append([]string{"Started"}, saga.OutsideTypes...)

// A refusing store refuses what a runner writes, as the trigger of a table may.
type refusing struct {
	saga.Store

	mended atomic.Bool
}

func (s *refusing) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	for _, body := range writes[0].Bodies {
		if !slices.Contains(outside, body.MessageType()) && !s.mended.Load() {
			return nil, fmt.Errorf("trigger: %w", messagestore.ErrNotPermitted)
		}
	}
	return s.Store.WriteStreams(ctx, writes...)
}

// A saga whose turns fail is dead in the queue in the end. It is listed and shown as suspended, and goes on when a person says so.
func TestADeadSagaIsNamedAndGoesOn(t *testing.T) {
	t.Parallel()
	for doing, test := range map[string]struct {
		call func(o *saga.Operator, s *saga.Saga[trip, itinerary]) error
		want saga.State
	}{
		"an operator resumes": {func(o *saga.Operator, _ *saga.Saga[trip, itinerary]) error {
			_, err := o.Resume(t.Context(), "7", "the trigger is gone")
			return err
		}, saga.StateCompleted},
		"an operator cancels": {func(o *saga.Operator, _ *saga.Saga[trip, itinerary]) error {
			_, err := o.Cancel(t.Context(), "7", "not wanted")
			return err
		}, saga.StateCompensated},
		"the service resumes": {func(_ *saga.Operator, s *saga.Saga[trip, itinerary]) error {
			_, err := s.Resume(t.Context(), "7", "the trigger is gone")
			return err
		}, saga.StateCompleted},
		"the service cancels": {func(_ *saga.Operator, s *saga.Saga[trip, itinerary]) error {
			_, err := s.Cancel(t.Context(), "7", "not wanted")
			return err
		}, saga.StateCompensated},
	} {
		t.Run(doing, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &refusing{Store: newStore()}
				s, o := travel(t, store, newWorld(), &saga.Config{PollInterval: time.Second}), operator(t, store)
				defer running(t, s)()
				begin(t, s, "7", trip{"LIS"})
				time.Sleep(48 * time.Hour)

				status, err := s.Status(t.Context(), "7")
				require.NoError(t, err)
				require.Equal(t, saga.StateSuspended, status.State)
				require.Equal(t, "dead", status.Suspended)
				require.Contains(t, status.Reason, "not permitted")
				require.EqualValues(t, 1, s.Stats().Dead)
				dead, err := listed(t, o, saga.StateSuspended)
				require.NoError(t, err)
				require.Len(t, dead, 1)
				require.Equal(t, "dead", dead[0].Suspended)
				open, _ := listed(t, o, saga.StateRunning)
				require.Empty(t, open)
				_, err = o.Resolve(t.Context(), "7", "done by hand")
				refusedBy(t, err, "resume it")

				store.mended.Store(true)
				require.NoError(t, test.call(o, s))
				require.Equal(t, test.want, waitFor(t, s, "7").State)
			})
		})
	}
}

// Of a million that have ended a caller that wants the first has read some, and a caller that wants all has them once.
func TestAListOfEndsReadsAFewFirst(t *testing.T) {
	t.Parallel()
	store := &readCounting{Store: newStore()}
	for n := range 1500 {
		_, err := store.WriteStreams(t.Context(), messagestore.To(messagestore.Category("booking:saga").Stream(fmt.Sprint(n)), messagestore.NoStream,
			saga.StartedEvent{Input: []byte("1")}, saga.CompletedEvent{Output: []byte("1")}))
		require.NoError(t, err)
	}
	o := operator(t, store)

	for one, err := range o.List(t.Context(), saga.StateCompleted) {
		require.NoError(t, err)
		require.Equal(t, "0", one.ID)
		break
	}

	require.LessOrEqual(t, store.ends, 100)
	all, err := listed(t, o, saga.StateCompleted)
	require.NoError(t, err)
	require.Len(t, all, 1500)
	require.Equal(t, "1499", all[1499].ID)
}

// A caller that waits is told of a dead saga, whether it is dead already or dies meanwhile. No message says so.
func TestAWaitEndsWhenItsSagaIsDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &refusing{Store: newStore()}
		s := travel(t, store, newWorld(), &saga.Config{PollInterval: time.Second})
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})

		for _, at := range []string{"it dies", "it is dead"} {
			ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
			status, err := s.Wait(ctx, "7")
			cancel()
			require.NoError(t, err, at)
			require.Equal(t, []string{string(saga.StateSuspended), "dead"}, []string{string(status.State), status.Suspended}, at)
		}
		require.EqualValues(t, 1, s.Stats().Dead)
	})
}

// Those that are suspended are listed without a look at any other, and what has ended without those that have not.
func TestAListReadsTheSagasOfItsStatesAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, w := newStore(), newWorld()
		w.fails("book hotel", 1, puzzle("what hotel?"))
		s := travel(t, memory, w, nil)
		stop := running(t, s)
		for _, id := range []string{"suspended", "ended", "also ended"} {
			begin(t, s, id, trip{"LIS"})
			waitFor(t, s, id)
		}
		stop()
		for state, want := range map[saga.State]int{saga.StateSuspended: 1, saga.StateCompleted: 2, saga.StateCompensated: 0} {
			store := &readCounting{Store: memory}
			got, err := listed(t, operator(t, store), state)
			require.NoError(t, err)
			require.Len(t, got, want)
			require.Equal(t, want, store.reads)
		}
	})
}

// A readCounting store counts the streams that are read.
type readCounting struct {
	saga.Store

	reads int
	ends  int // messages of a category
}

func (s *readCounting) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := s.Store.ReadCategoryPage(ctx, q)
	s.ends += len(page.Messages)
	return page, err
}

func (s *readCounting) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	s.reads++
	return s.Store.ReadStream(ctx, stream, from)
}
