package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/gen/dibs/v1/dibsv1connect"
)

const (
	maxLeases  = 1000 // of one ExtendLeases
	entryBytes = 6    // of an entry of a list before its own, at most

	// hangs is after which time a call keeps no later one waiting.
	hangs = time.Second
)

// extensions extends the leases of a client. One call is under way at a time, and what comes
// meanwhile goes in the next one. Each caller has its own time and its own outcome. It is safe for
// concurrent use. It has a goroutine while a call is under way.
type extensions struct {
	service dibsv1connect.IntentServiceClient
	most    int // bytes of a call

	mu      sync.Mutex
	waiting []*extension
	senders int
	began   time.Time // the last call
}

// An extension is a lease that is to be extended.
type extension struct {
	ctx    context.Context //nolint:containedctx // of its caller, who waits for the result
	lease  *v1.Lease
	result chan extended // has room for it
}

type extended struct {
	*v1.LeaseResult

	err error // if there is no result
}

// extend returns a result for each lease. It returns when ctx is done, and leaves the call to the
// others whose leases are in it.
func (e *extensions) extend(ctx context.Context, leases []*v1.Lease) []extended {
	all := make([]*extension, len(leases))
	for i, l := range leases {
		all[i] = &extension{ctx, l, make(chan extended, 1)}
	}
	e.mu.Lock()
	e.waiting = append(e.waiting, all...)
	if e.senders == 0 || time.Since(e.began) > hangs {
		e.senders++
		e.began = time.Now()
		go e.send()
	}
	e.mu.Unlock()
	results := make([]extended, len(all))
	for i, one := range all {
		select {
		case results[i] = <-one.result:
		case <-ctx.Done():
			results[i].err = fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, ctx.Err())
		}
	}
	return results
}

// send makes calls until nobody waits.
func (e *extensions) send() {
	for group := e.next(); len(group) > 0; group = e.next() {
		e.call(group)
	}
}

// next returns the leases of the next call.
func (e *extensions) next() (group []*extension) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for bytes := 0; len(e.waiting) > 0 && len(group) < maxLeases; e.waiting = e.waiting[1:] {
		one := e.waiting[0]
		if one.ctx.Err() != nil {
			continue
		}
		if bytes += proto.Size(one.lease) + entryBytes; bytes > e.most && len(group) > 0 {
			break
		}
		group = append(group, one)
	}
	if e.began = time.Now(); len(group) == 0 {
		e.senders--
	}
	return group
}

// call extends a group of leases, as long as one of their callers waits. If the server refuses the
// group for one of its categories, each category goes alone.
func (e *extensions) call(group []*extension) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(group)))
	request := &v1.ExtendLeasesRequest{Leases: make([]*v1.Lease, len(group))}
	for i, one := range group {
		request.Leases[i] = one.lease
		defer context.AfterFunc(one.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	answer, err := e.service.ExtendLeases(ctx, request)
	if err == nil && len(answer.GetResults()) != len(group) {
		err = fmt.Errorf("%w: the server returned %d outcomes for %d leases", messagestore.ErrOutcomeUnknown, len(answer.GetResults()), len(group))
	}
	if by := categories(group); waiting.Lasts(err) && len(by) > 1 {
		for _, same := range by {
			e.call(same)
		}
		return
	}
	for i, one := range group {
		if err != nil {
			one.result <- extended{err: err}
		} else {
			one.result <- extended{LeaseResult: answer.GetResults()[i]}
		}
	}
}

// categories returns the extensions of each category.
func categories(group []*extension) map[string][]*extension {
	by := map[string][]*extension{}
	for _, one := range group {
		category := one.lease.GetName().GetCategory()
		by[category] = append(by[category], one)
	}
	return by
}
