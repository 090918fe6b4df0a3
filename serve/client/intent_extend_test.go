package client

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/gen/dibs/v1/dibsv1connect"
)

// An extender answers each call after a time, or after the end of its caller.
type extender struct {
	dibsv1connect.IntentServiceClient

	takes  time.Duration
	hangs  int    // that many calls
	refuse string // a category
	calls  []int  // how many leases each call had
}

func (e *extender) ExtendLeases(ctx context.Context, r *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error) {
	e.calls = append(e.calls, len(r.GetLeases()))
	takes := e.takes
	if len(e.calls) <= e.hangs {
		takes = time.Hour
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, libraryError(connect.NewError(connect.CodeCanceled, ctx.Err()), true)
	}
	answer := &v1.ExtendLeasesResponse{}
	for _, l := range r.GetLeases() {
		if l.GetName().GetCategory() == e.refuse {
			return nil, libraryError(wire(connect.CodePermissionDenied), true)
		}
		answer.Results = append(answer.Results, &v1.LeaseResult{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_OK, Lease: l})
	}
	return answer, nil
}

func leaseIn(category, key string) []*v1.Lease {
	return []*v1.Lease{{Name: &v1.IntentName{Category: category, Key: key}}}
}

// Extensions that come while a call is under way go together in the next one, at most a thousand,
// and each caller has its own lease's outcome.
func TestExtensionsGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &extender{takes: 100 * time.Millisecond}
		e := &extensions{service: service, most: 4 << 20}
		for n := range 1502 {
			go func() {
				time.Sleep(time.Duration(min(n, 1)) * time.Millisecond)
				result := e.extend(t.Context(), leaseIn("pay:intent", fmt.Sprint(n)))[0]
				if result.err != nil || result.GetLease().GetName().GetKey() != fmt.Sprint(n) {
					t.Errorf("%d: %v", n, result)
				}
			}()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []int{1, 1000, 501}, service.calls)
		require.NoError(t, e.extend(t.Context(), leaseIn("pay:intent", "later"))[0].err)
		require.Equal(t, []int{1, 1000, 501, 1}, service.calls)
	})
}

// A caller whose time is over leaves the call to the others, and a call that nobody waits for ends.
func TestACallerLeavesItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &extender{takes: 100 * time.Millisecond}
		e := &extensions{service: service, most: 4 << 20}
		go e.extend(t.Context(), leaseIn("pay:intent", "first"))
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		left := make(chan extended, 1)
		go func() { left <- e.extend(short, leaseIn("pay:intent", "short"))[0] }()
		began := time.Now()
		stays := e.extend(t.Context(), leaseIn("pay:intent", "stays"))[0]
		require.NoError(t, stays.err)
		require.Equal(t, 200*time.Millisecond, time.Since(began))
		err := (<-left).err
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []int{1, 2}, service.calls)

		service.takes = time.Hour
		short, cancel = context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, e.extend(short, leaseIn("pay:intent", "alone"))[0].err, context.DeadlineExceeded)
		synctest.Wait()
		service.takes = 0
		began = time.Now()
		require.NoError(t, e.extend(t.Context(), leaseIn("pay:intent", "next"))[0].err)
		require.Zero(t, time.Since(began), "the call before it has ended")
	})
}

// A call that hangs keeps nobody waiting for longer than a second.
func TestACallThatHangsKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &extender{hangs: 1}
		e := &extensions{service: service, most: 4 << 20}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go e.extend(ctx, leaseIn("pay:intent", "hangs"))
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer stop()
		require.ErrorIs(t, e.extend(short, leaseIn("pay:intent", "waits"))[0].err, context.DeadlineExceeded)
		time.Sleep(501 * time.Millisecond)
		began := time.Now()
		require.NoError(t, e.extend(t.Context(), leaseIn("pay:intent", "goes"))[0].err)
		require.Zero(t, time.Since(began))
		require.Equal(t, []int{1, 1}, service.calls)
	})
}

// A category in which the client has no right takes no other lease with it.
func TestARefusedCategoryIsRefusedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &extender{refuse: "mail:intent"}
		e := &extensions{service: service, most: 4 << 20}
		results := e.extend(t.Context(), append(leaseIn("pay:intent", "1"), append(leaseIn("mail:intent", "2"), leaseIn("pay:intent", "3")...)...))
		require.NoError(t, results[0].err)
		require.ErrorIs(t, results[1].err, messagestore.ErrNotPermitted)
		require.NotErrorIs(t, results[1].err, messagestore.ErrOutcomeUnknown)
		require.NoError(t, results[2].err)
		require.Equal(t, "3", results[2].GetLease().GetName().GetKey())
	})
}
