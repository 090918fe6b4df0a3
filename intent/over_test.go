package intent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A slowService answers after a time, or loses its answers.
type slowService struct {
	*intent.Manager

	mu       sync.Mutex
	takes    time.Duration // after the step
	loses    int           // the next answers to Reserve, Confirm and Release
	fails    error         // each extension
	extended []time.Time   // when extensions came
}

func (s *slowService) answer(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loses--; s.loses >= 0 {
		return &messagestore.OutcomeUnknownError{Cause: errBroken}
	}
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return &messagestore.OutcomeUnknownError{Cause: ctx.Err()}
	}
}

func (s *slowService) Reserve(ctx context.Context, r intent.Request) (intent.Answer, error) {
	a, err := s.Manager.Reserve(ctx, r)
	return intent.Answer{Outcome: a.Outcome, Intent: a.Intent}, errors.Join(err, s.answer(ctx))
}

func (s *slowService) Confirm(ctx context.Context, h intent.Holder, result any, writes ...messagestore.StreamWrite) (intent.Intent, error) {
	i, err := s.Manager.Confirm(ctx, h, result, writes...)
	if lost := s.answer(ctx); lost != nil {
		err = lost
	}
	return i, err
}

func (s *slowService) ExtendMany(ctx context.Context, holders ...intent.Holder) ([]intent.Extension, error) {
	s.mu.Lock()
	s.extended = append(s.extended, time.Now())
	fails, takes := s.fails, s.takes
	s.mu.Unlock()
	if fails != nil {
		return nil, fails
	}
	all, err := s.Manager.ExtendMany(ctx, holders...)
	time.Sleep(takes)
	return all, err
}

// served runs f in a bubble, with a manager over a service that keeps its intents by another one.
func served(t *testing.T, f func(t *testing.T, service *slowService, m, keeper *intent.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		keeper := manager(t, testkit.Must(messagestore.New(memory.New(), nil)), nil)
		service := &slowService{Manager: keeper}
		m, err := intent.NewOver(service, category, &intent.Config{TTL: 10 * time.Second, Logger: logger.Silent()})
		require.NoError(t, err)
		f(t, service, m, keeper)
	})
}

// The time of a lease counts from before the call, and after a call that took long the lease is
// extended, so that its holder has time.
func TestTheTimeOfAServicesLeaseCountsFromBeforeTheCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes, waits time.Duration
		fails        error
		extensions   int
		left         time.Duration // of 9 seconds
	}{
		"at once":                      {left: 9 * time.Second},
		"soon":                         {takes: time.Second, left: 8 * time.Second},
		"late":                         {takes: 2 * time.Second, extensions: 1, left: 7 * time.Second},
		"after a wait":                 {waits: time.Hour, extensions: 1, left: 9 * time.Second},
		"late, and cannot be extended": {takes: 2 * time.Second, fails: errBroken, extensions: 1, left: 7 * time.Second},
		"too late":                     {takes: time.Minute, fails: errBroken, extensions: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served(t, func(t *testing.T, service *slowService, m, keeper *intent.Manager) {
				r := request("")
				if c.waits > 0 {
					r.Wait = 2 * c.waits
					before := request("before")
					before.TTL = c.waits
					lease(t, keeper, before)
				}
				service.takes, service.fails = c.takes, c.fails
				l := lease(t, m, r)
				require.Len(t, service.extended, c.extensions)
				require.Equal(t, c.left, l.Left())
				if c.left == 0 {
					require.ErrorIs(t, l.Err(), intent.ErrLeaseLost)
				}
			})
		})
	}
}

// Nobody can ask for a lease whose session Reserve has made, so it is given back if its answer is
// lost. A caller with a session of its own can.
func TestALostGrantOfAServiceIsGivenBack(t *testing.T) {
	t.Parallel()
	for session, status := range map[string]intent.Outcome{"": intent.Free, "mine": intent.Held} {
		served(t, func(t *testing.T, service *slowService, m, _ *intent.Manager) {
			service.loses = 1
			_, err := m.Reserve(t.Context(), request(session))
			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
			require.Equal(t, status, lookup(t, m).Status)
			require.Equal(t, status == intent.Free, lookup(t, m).Released)
		})
	}
}

// A confirmation whose answer is lost is made again, and Do returns its result.
func TestALostConfirmationAtAServiceIsFoundOut(t *testing.T) {
	t.Parallel()
	work := map[string]func(context.Context, *intent.Lease) (any, error){
		"by Do":       func(context.Context, *intent.Lease) (any, error) { return receipt{"R1"}, nil },
		"by the work": func(ctx context.Context, l *intent.Lease) (any, error) { return nil, l.Confirm(ctx, receipt{"R1"}) },
	}
	for name, f := range work {
		served(t, func(t *testing.T, service *slowService, m, _ *intent.Manager) {
			a, err := m.Do(t.Context(), request(""), func(ctx context.Context, l *intent.Lease) (any, error) {
				service.mu.Lock()
				service.loses = 1
				service.mu.Unlock()
				return f(ctx, l)
			})
			require.NoError(t, err, name)
			require.Equal(t, intent.Done, a.Intent.Status)
			require.JSONEq(t, `{"number":"R1"}`, string(a.Intent.Result))
		})
	}
	served(t, func(t *testing.T, service *slowService, m, _ *intent.Manager) {
		_, err := m.Do(t.Context(), request(""), func(context.Context, *intent.Lease) (any, error) {
			service.mu.Lock()
			service.loses = 1_000_000
			service.mu.Unlock()
			return receipt{"R1"}, nil
		})
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown, "no attempt was answered")
		require.Equal(t, intent.Done, lookup(t, m).Status)
	})
}

// Another caller's confirmation is not this one's, though this one may have confirmed.
func TestAConfirmationByAnotherIsALoss(t *testing.T) {
	t.Parallel()
	served(t, func(t *testing.T, service *slowService, m, keeper *intent.Manager) {
		l := lease(t, m, request("mine"))
		h := intent.Holder{Key: "k", Session: "mine", Token: l.Token()}
		_, err := keeper.Confirm(t.Context(), h, receipt{"another's"})
		require.NoError(t, err)
		service.loses = 1
		require.ErrorIs(t, l.Confirm(t.Context(), receipt{"mine"}), messagestore.ErrOutcomeUnknown)
		err = l.Release(t.Context(), "")
		lost, ok := errors.AsType[*intent.LeaseLostError](err)
		require.True(t, ok, "%v", err)
		require.JSONEq(t, `{"number":"another's"}`, string(lost.By.Result))
	})
}

// The leases of a manager have their heartbeats together, whenever they began.
func TestHeartbeatsOfAServiceComeTogether(t *testing.T) {
	t.Parallel()
	served(t, func(t *testing.T, service *slowService, m, _ *intent.Manager) {
		const leases, every = 100, 10 * time.Second / 3
		var stops []func()
		for n := range leases {
			r := request("")
			r.Key = fmt.Sprint(n)
			_, stop := lease(t, m, r).Keep(t.Context())
			stops = append(stops, stop)
			time.Sleep(every / leases)
		}
		time.Sleep(2 * every)
		service.mu.Lock()
		before := len(service.extended)
		service.mu.Unlock()
		time.Sleep(10 * every)
		for _, stop := range stops {
			stop()
		}
		moments := map[time.Time]bool{}
		for _, at := range service.extended[before:] {
			moments[at] = true
		}
		require.LessOrEqual(t, len(moments), 4*10+4, "four moments in each interval")
		require.GreaterOrEqual(t, len(service.extended)-before, leases*10)
		require.LessOrEqual(t, len(service.extended)-before, leases*11)
	})
}

func TestAServiceIsRequired(t *testing.T) {
	t.Parallel()
	_, err := intent.NewOver(nil, category, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "service")
	_, err = intent.NewOver((*slowService)(nil), category, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}
