package saga_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// approvals is a saga that does a step, and receives two signals of one name.
func approvals(t *testing.T, store saga.Store, w *world) *saga.Saga[trip, string] {
	flight := w.step("flight", nil)
	return newSaga(t, store, func(r *saga.Run, in trip) (string, error) {
		if _, err := flight.Do(r, in); err != nil {
			return "", err
		}
		first, err := saga.Receive[string](r, "approved", time.Hour)
		if err != nil {
			return "", err
		}
		second, err := saga.Receive[string](r, "approved", time.Hour)
		return first + second, err
	}, saga.Steps{flight}, nil)
}

func TestSignalsAreReceivedInTheirOrder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second time.Duration // after the start
		want          string
	}{
		"before the step is done":     {0, 0, "Started, Signalled approved, Signalled approved, Began flight, Done flight, Received approved, Received approved+2, Completed"},
		"one by one":                  {time.Minute, 2 * time.Minute, "Started, Began flight, Done flight, Waiting approved, Signalled approved, Received approved, Waiting approved+2, Signalled approved, Received approved+2, Completed"},
		"one early, one in the night": {0, 59 * time.Minute, "Started, Signalled approved, Began flight, Done flight, Received approved, Waiting approved+2, Signalled approved, Received approved+2, Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				s := approvals(t, store, newWorld())
				begin(t, s, "7", trip{"LIS"})
				signal := func(at time.Duration, value string) {
					time.Sleep(at)
					write(t, store, s.Signal("7", "approved", value))
				}
				if test.first == 0 {
					signal(0, "one, ")
				}
				if test.second == 0 {
					signal(0, "two")
				}
				defer running(t, s)()
				if test.first > 0 {
					signal(test.first, "one, ")
				}
				if test.second > 0 {
					signal(test.second-test.first, "two")
				}

				status := waitFor(t, s, "7")

				require.Equal(t, "one, two", status.Out)
				require.Equal(t, test.want, strings.Join(events(t, store, "7"), ", "))
			})
		})
	}
}

// A signal that comes too late is the next one's, and a third one is nobody's.
func TestASignalThatDoesNotComeIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		s := newSaga(t, store, func(r *saga.Run, _ trip) (string, error) {
			_, err := saga.Receive[bool](r, "approved", time.Minute)
			if err != nil && err.Error() == "approved: no signal came in time" {
				return saga.Receive[string](r, "approved", time.Hour)
			}
			return "", err
		}, nil, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		time.Sleep(59 * time.Second)
		status, err := s.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, "the signal approved", status.Waits)
		time.Sleep(2 * time.Second)
		write(t, store, s.Signal("7", "approved", "late"))
		write(t, store, s.Signal("7", "other", 1))
		require.Equal(t, "late", waitFor(t, s, "7").Out)

		begin(t, s, "8", trip{"LIS"})
		time.Sleep(2 * time.Hour)
		status = waitFor(t, s, "8")
		require.Equal(t, saga.StateCompensated, status.State)
		require.Equal(t, "approved: no signal came in time", status.Reason)
	})
}

func TestASignalThatDoesNotFitSuspends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		s := approvals(t, store, newWorld())
		begin(t, s, "7", trip{"LIS"})
		write(t, store, s.Signal("7", "approved", 7))
		defer running(t, s)()
		status := waitFor(t, s, "7")
		require.Equal(t, "invalid", status.Suspended)
		require.Contains(t, status.Reason, "the value of the signal approved does not fit")
	})
}

func TestASignalToNobodyIsRefused(t *testing.T) {
	t.Parallel()
	store := newStore()
	s := approvals(t, store, newWorld())
	_, err := store.WriteStreams(t.Context(), s.Signal("7", "approved", true))
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	begin(t, s, "7", trip{"LIS"})
	for _, write := range []messagestore.StreamWrite{
		s.Signal("", "approved", true), s.Signal("7", "", true), s.Signal("7", "a+2", true), s.Signal("7", "approved", make(chan int)),
	} {
		_, err := store.WriteStreams(t.Context(), write)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	require.Equal(t, []string{"Started"}, events(t, store, "7"))
}

// A changed function that leaves out a signal that was received is found out.
func TestAFunctionWithoutARecordedSignalDiverges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		hotel := w.step("hotel", nil)
		withSignal := true
		s := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) {
			if withSignal {
				if _, err := saga.Receive[bool](r, "approved", time.Hour); err != nil {
					return ticket{}, err
				}
			}
			return hotel.Do(r, in)
		}, saga.Steps{hotel}, nil)
		begin(t, s, "7", trip{"LIS"})
		write(t, store, s.Signal("7", "approved", true))
		w.on("book hotel", func(context.Context, int) error { withSignal = false; return errDown })
		defer running(t, s)()
		status := waitFor(t, s, "7")
		require.Equal(t, "diverged", status.Suspended)
		require.Equal(t, "approved", status.Step)
	})
}

// Pauses and sleeps of a millisecond are no longer because they are short.
func TestPausesBelowASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book hotel", 3, errDown)
		hotel := w.step("hotel", &saga.StepConfig{Retry: saga.Retry{MinBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond}})
		s := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) {
			if err := r.Sleep("short", time.Millisecond); err != nil {
				return ticket{}, err
			}
			return hotel.Do(r, in)
		}, saga.Steps{hotel}, nil)
		defer running(t, s)()
		synctest.Wait()
		began := time.Now()
		begin(t, s, "7", trip{"LIS"})
		require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
		took := time.Since(began)
		require.Greater(t, took, time.Millisecond+time.Millisecond/2)
		require.Less(t, took, 50*time.Millisecond)
	})
}

// The status names the step at which the saga is, with its attempt, its error and the time of the next.
func TestAStatusHasTheCurrentAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book hotel", 2, errDown)
		w.fails("cancel flight", 1, errDown)
		w.fails("book car", 1, refusal("no car"))
		pause := saga.Retry{MinBackoff: time.Hour}
		s := travelWith(t, store, w, nil, &saga.StepConfig{Retry: pause, Undo: pause})
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		at := func(step string, attempt int, wrong string) saga.Status[itinerary] {
			for range 1000 {
				time.Sleep(time.Minute)
				status, err := s.Status(t.Context(), "7")
				require.NoError(t, err)
				if status.Step == step && status.Attempt == attempt && status.Error == wrong {
					require.Equal(t, wrong != "", time.Now().Before(status.Next))
					return status
				}
			}
			t.Fatalf("the saga is never at attempt %d of %s", attempt, step)
			panic("")
		}
		at("hotel", 1, errDown.Error())
		at("hotel", 2, errDown.Error())
		require.Equal(t, saga.StateCompensating, at("flight", 1, errDown.Error()).State)
		require.Equal(t, saga.StateCompensated, at("car", 1, "").State)
	})
}

// A lateSignal store has a signal arrive just before the record that none came in time.
type lateSignal struct {
	saga.Store

	signal func()
}

func (s lateSignal) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	for _, body := range writes[0].Bodies {
		if e, is := body.(messagestore.Envelope); is && e.MessageType() == "Received" {
			s.signal()
		}
	}
	return s.Store.WriteStreams(ctx, writes...)
}

func TestASignalThatComesWithTheEndOfItsTimeCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		var s *saga.Saga[trip, string]
		once := sync.OnceFunc(func() { write(t, store, s.Signal("7", "approved", "yes")) })
		s = newSaga(t, lateSignal{store, once}, func(r *saga.Run, _ trip) (string, error) {
			return saga.Receive[string](r, "approved", time.Minute)
		}, nil, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		require.Equal(t, "yes", waitFor(t, s, "7").Out)
		require.Equal(t, "Started, Waiting approved, Signalled approved, Received approved, Completed", strings.Join(events(t, store, "7"), ", "))
	})
}

// Any writer of the store may have written the record of a signal.
func TestARecordOfASignalThatNeverCameSuspendsItsSaga(t *testing.T) {
	t.Parallel()
	for name, record := range map[string]string{
		"ahead":     `{"name":"approved","index":7}`,
		"the next":  `{"name":"approved","index":0}`,
		"negative":  `{"name":"approved","index":-1}`,
		"the least": `{"name":"approved","index":-9223372036854775808}`,
		"null":      `{"name":"approved","index":null}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				s := newSaga(t, store, func(r *saga.Run, _ trip) (string, error) { return saga.Receive[string](r, "approved", time.Hour) }, nil, nil)
				begin(t, s, "7", trip{"LIS"})
				write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(record)}))
				defer running(t, s)()

				status := waitFor(t, s, "7")

				require.Equal(t, "invalid", status.Suspended)
				require.NotContains(t, status.Reason, "panic")
				_, err := s.Cancel(t.Context(), "7", "")
				require.NoError(t, err)
				require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
			})
		})
	}
}
