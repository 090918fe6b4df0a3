package intent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/messagestore"
)

// A Service carries out the steps of intents for a [Manager] that has no store: see [NewOver]. Its
// methods are methods of Manager, so a Manager is a Service. The client of a server is another. The
// methods are safe for concurrent use. Manager validates the arguments before it calls them.
//
// A Service repeats a call whose answer is lost, or returns an error that matches
// [messagestore.ErrOutcomeUnknown].
type Service interface {
	// Reserve asks for a lease as [Manager.Reserve] does, and waits as long. The request names its
	// session and its TTL. With [Reserved] the Intent describes the lease, and the Lease may be nil.
	Reserve(ctx context.Context, request Request) (Answer, error)

	// ExtendMany restarts the TTLs of leases. A lease that is lost is a [*LeaseLostError]: By is nil
	// if the intent was never reserved. With each extended lease Intent.Left is its TTL.
	ExtendMany(ctx context.Context, holders ...Holder) ([]Extension, error)

	// Confirm ends a lease with a result: nil, a [json.RawMessage] or a [NotKept].
	Confirm(ctx context.Context, h Holder, result any, writes ...messagestore.StreamWrite) (Intent, error)

	// Release ends a lease without a result.
	Release(ctx context.Context, h Holder, reason string) (Intent, error)

	Lookup(ctx context.Context, scope, key string) (Intent, error)
	Await(ctx context.Context, scope, key string) (Intent, error)
	ListPage(ctx context.Context, filter Filter, from messagestore.GlobalPosition, limit int) (Page, error)
	ForceRelease(ctx context.Context, scope, key, reason string) error
}

var _ Service = (*Manager)(nil)

// NewOver returns a manager of the intents in category that a service keeps, such as a server in
// another process. It works as one that [New] returns, with the same leases, heartbeats and results,
// except for what needs your own transaction or the intents' stream:
//
//   - A [Request] has one key: With is [messagestore.ErrNotSupported].
//   - [Lease.In] is [messagestore.ErrNotSupported], and so are writes from [Lease.Confirmation] and
//     [Lease.Guarded]. Give the writes to [Lease.Confirm] instead.
//   - The service decides on [Config.Turn] and [Config.KeyLife], so they must be 0.
//   - The service keeps the line: a wait that ends there and begins again starts at the line's end.
//   - If two calls with one Session confirm the same result, both have confirmed it.
//   - A lease's time is counted from before its call, waiting included. If the call took longer than
//     a tenth of the TTL, Reserve extends the lease once before it returns.
//   - [Manager.List] makes a call for each page, and passes streams over that hold no intent.
//
// The error names all mistakes in the arguments. NewOver sends nothing.
func NewOver(service Service, category messagestore.Category, config *Config) (*Manager, error) {
	m := &Manager{over: service, outage: outage.Of(service), category: category, began: time.Now()}
	return m.configured(config, "service", service)
}

// overErr returns an error if the manager's intents are a service's.
func (m *Manager) overErr(what string) error {
	if m.over == nil {
		return nil
	}
	return fmt.Errorf("%s of a service: %w", what, messagestore.ErrNotSupported)
}

// runOver has the service answer a request.
func (a *attempt) runOver(ctx context.Context) (Answer, error) {
	answer, err := a.askOver(ctx)
	if a.unnamed && errors.Is(err, messagestore.ErrOutcomeUnknown) {
		a.giveBack(ctx, time.Now().Add(finishTimeout))
	}
	return answer, err
}

// askOver asks the service for a lease once.
func (a *attempt) askOver(ctx context.Context) (Answer, error) {
	if len(a.keys) > 1 {
		return Answer{}, a.m.overErr("several keys")
	}
	request := a.request
	request.TTL = a.ttl
	sent := time.Now()
	answer, err := a.m.over.Reserve(ctx, request)
	if err != nil || answer.Outcome != Reserved {
		return Answer{Outcome: answer.Outcome, Intent: answer.Intent}, err
	}
	p := part{stateOf(answer.Intent)}
	p.Type, p.Metadata = intentlog.TypeReserved, request.Metadata
	answer.Lease = a.m.newLease([]part{p}, sent)
	answer.Lease.holder = Holder{Scope: request.Scope, Key: request.Key, Session: p.Session, Token: p.Token}
	if ttl := answer.Lease.ttl(); time.Since(sent) > margin(ttl) {
		bounded, cancel := context.WithTimeout(ctx, ttl)
		defer cancel()
		_ = answer.Lease.Extend(bounded) // if it fails, the lease itself says that its time is over
	}
	return answer, nil
}

// stateOf returns the state of a lease that is held, after a step of its holder's.
func stateOf(i Intent) intentlog.State {
	return intentlog.State{
		Grant: intentlog.Grant{Session: i.Session, Attempt: i.Attempt, TTL: i.Left.Milliseconds(), Line: i.Line},
		Type:  intentlog.TypeExtended, Place: i.Last, Token: i.Token, Since: i.Until.Add(-i.Left),
	}
}

// together returns the pause before a heartbeat. It is shorter by at most a quarter, so that the
// leases of a manager have their heartbeats at the same moments, and a service extends them in one
// call.
func (m *Manager) together(every time.Duration) time.Duration {
	if m.over == nil {
		return every
	}
	return every - time.Since(m.began)%(every/4)
}

// stepOver has the service take a step on a lease.
func (l *Lease) stepOver(ctx context.Context, p part, body messagestore.Body, writes []messagestore.StreamWrite) error {
	l.envelope(&p, body) // by which it is known again
	sent := time.Now()
	var i Intent
	var err error
	switch b := body.(type) {
	case intentlog.Extended:
		var all []Extension
		if all, err = l.m.over.ExtendMany(ctx, l.holder); err == nil {
			i, err = all[0].Intent, all[0].Err
		}
	case intentlog.Released:
		i, err = l.m.over.Release(ctx, l.holder, b.Reason)
	case intentlog.Confirmed:
		var result any = NotKept(b.NotKept)
		if b.NotKept == "" {
			result = b.Result
		}
		i, err = l.m.over.Confirm(ctx, l.holder, result, writes...)
	}
	if lost, ok := errors.AsType[*LeaseLostError](err); ok {
		return l.lostOver(&p, lost.By)
	}
	if err != nil {
		return err
	}
	if i.Status != Held {
		_ = l.ended(&LeaseLostError{Stream: l.Stream(), Session: l.Session(), Token: l.Token(), By: &i}, true)
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := stateOf(i)
	s.Metadata = p.Metadata
	l.log(&s)
	l.moved(0, &s)
	if l.granted[0].Attempt == 0 { // of a holder, who has not known it
		l.granted = l.parts
	}
	l.counted(sent)
	return nil
}

// lostOver returns the error for a lease in whose place the service has found an intent, or nil if
// it was never reserved.
func (l *Lease) lostOver(p *part, by *Intent) error {
	lost := l.lost(nil, "")
	if lost.By = by; by == nil {
		return fmt.Errorf("%w: %w", l.ended(lost, false), messagestore.ErrNotFound)
	}
	s := intentlog.State{Place: p.Place, Of: p.Place.Position + 1, Released: by.Released, By: by.By}
	if by.Status == Done {
		s.Type = intentlog.TypeConfirmed
		s.Place.ID = p.confirmationID(l.ends.salt, intentlog.Confirmed{Result: by.Result, NotKept: by.NotKept})
	}
	return l.ended(lost, by.Token == p.Token && by.Session == p.Session && l.ends.have(&s))
}

// listOver lists a service's intents page by page. Of an intent in two pages the second counts.
func (m *Manager) listOver(ctx context.Context, filter Filter) ([]Intent, error) {
	found := map[messagestore.StreamName]Intent{}
	for page := (Page{More: true}); page.More; {
		var err error
		if page, err = m.listPage(ctx, filter, page.Next, maxListed); err != nil {
			return nil, err
		}
		for _, i := range page.Intents {
			found[i.Stream] = i
		}
	}
	return slices.SortedFunc(maps.Values(found), byGrant), nil
}
