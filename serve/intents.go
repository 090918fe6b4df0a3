package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// intents is the IntentService.
type intents struct{ s *Server }

// maxSession is how many bytes a session of a client has: with the name of its key in front it is
// one of the library's.
const maxSession = 100

func ofIntents(c messagestore.Category) bool { return slices.Contains(c.Types(), "intent") }

// named returns the intents of a category if the caller has a right there.
func (h intents) named(ctx context.Context, right Right, category string) (*intent.Manager, *caller, error) {
	c, err := allow(ctx, right, messagestore.Category(category))
	if err != nil {
		return nil, nil, err
	}
	if !ofIntents(messagestore.Category(category)) {
		return nil, nil, invalid("category", category, "must have the type intent, such as payment:intent")
	}
	m, err := h.s.manager(messagestore.Category(category))
	return m, c, fail(err)
}

// Reserve asks for a lease.
func (h intents) Reserve(ctx context.Context, r *v1.ReserveRequest) (*v1.ReserveResponse, error) {
	m, c, err := h.named(ctx, Write, r.GetName().GetCategory())
	if err != nil {
		return nil, err
	}
	if n := len(r.GetSessionId()); n < 1 || n > maxSession {
		return nil, invalid("session_id", r.GetSessionId(), fmt.Sprintf("must be 1 to %d bytes that the client makes, and sends again with a repeated call", maxSession))
	}
	if r.GetContentJson() == "" {
		return nil, invalid("content_json", "", "must be JSON: the request, or its key if there is nothing else")
	}
	if r.GetTtl().AsDuration() < 0 {
		return nil, invalid("ttl", r.GetTtl().AsDuration(), "must not be negative")
	}
	request := intent.Request{
		Scope: r.GetName().GetScope(), Key: r.GetName().GetKey(), Session: c.session(r.GetSessionId()),
		Content: json.RawMessage(r.GetContentJson()), TTL: r.GetTtl().AsDuration(),
	}
	if r.GetMetadataJson() != "" {
		request.Metadata = messagestore.ParseMetadata(r.GetMetadataJson())
	}
	if request.Wait, err = wait(ctx, "max_wait", r.GetMaxWait()); err != nil {
		return nil, err
	}
	if request.Wait > 0 {
		waiting, done, err := h.s.waits(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		ctx = waiting
	}
	answer, err := m.Reserve(ctx, request)
	if err != nil {
		return nil, ended(ctx, err)
	}
	res := &v1.ReserveResponse{Outcome: v1.Outcome(answer.Outcome)}
	if answer.Lease != nil {
		res.Lease = &v1.Lease{
			Name: r.GetName(), SessionId: r.GetSessionId(), FencingToken: answer.Lease.Token(), Attempt: int32(answer.Lease.Attempt()),
			ExpireTime: timestamppb.New(answer.Lease.Until()), Ttl: durationpb.New(answer.Intent.Left),
			Version: int64(answer.Intent.Last.Position), GlobalPosition: int64(answer.Intent.Last.GlobalPosition),
		}
	} else {
		res.Intent = intentOf(c, answer.Intent)
	}
	return res, nil
}

// intentOf returns an intent as the caller may see it: with these, a stranger could end the lease
// of another, so session and token are only shown to the key that made the session.
func intentOf(c *caller, i intent.Intent) *v1.Intent {
	out := &v1.Intent{
		Name:  &v1.IntentName{Category: string(i.Stream.Category()), Scope: i.Scope, Key: i.Key},
		State: stateOf(i.Status), Attempt: int32(i.Attempt), GrantTime: timestamppb.New(i.Since), Left: durationpb.New(i.Left),
		ResultJson: string(i.Result), Waiting: int32(len(i.Line)), ReleaseReason: i.Reason,
		NotKept: i.NotKept, Forgotten: i.Forgotten, Released: i.Released, ReleasedBy: i.By,
		Version: int64(i.Last.Position), GlobalPosition: int64(i.Last.GlobalPosition), Stream: string(i.Stream),
	}
	if own, ok := c.own(i.Session); ok {
		out.SessionId, out.FencingToken = own, i.Token
	}
	for _, session := range i.Line {
		own, ok := c.own(session)
		if !ok {
			own = ""
		}
		out.Line = append(out.Line, own)
	}
	if c != everybody {
		out.KeyId, _, _ = strings.Cut(i.Session, "/")
	}
	if !i.Until.IsZero() {
		out.ExpireTime = timestamppb.New(i.Until)
	}
	return out
}

func stateOf(o intent.Outcome) v1.IntentState {
	switch o {
	case intent.Held:
		return v1.IntentState_INTENT_STATE_HELD
	case intent.Done:
		return v1.IntentState_INTENT_STATE_DONE
	}
	return v1.IntentState_INTENT_STATE_FREE
}

// holder returns who holds a lease that a client has sent, and the intents of its category.
func (h intents) holder(ctx context.Context, l *v1.Lease) (*intent.Manager, *caller, intent.Holder, error) {
	m, c, err := h.named(ctx, Write, l.GetName().GetCategory())
	if err != nil {
		return nil, nil, intent.Holder{}, err
	}
	return m, c, holderOf(c, l), nil
}

func holderOf(c *caller, l *v1.Lease) intent.Holder {
	return intent.Holder{Scope: l.GetName().GetScope(), Key: l.GetName().GetKey(), Session: c.session(l.GetSessionId()), Token: l.GetFencingToken()}
}

// lostTo returns the outcome of a step on a lease that is lost, and what is there instead. It
// returns false for any other error.
func lostTo(c *caller, err error) (v1.LeaseOutcome, *v1.Intent, bool) {
	if !errors.Is(err, intent.ErrLeaseLost) {
		return 0, nil, false
	}
	if lost, ok := errors.AsType[*intent.LeaseLostError](err); ok && lost.By != nil {
		return v1.LeaseOutcome_LEASE_OUTCOME_LOST, intentOf(c, *lost.By), true
	}
	return v1.LeaseOutcome_LEASE_OUTCOME_LOST, nil, true
}

// leaseOf returns a lease after an extension.
func leaseOf(l *v1.Lease, i intent.Intent) *v1.Lease {
	return &v1.Lease{
		Name: l.GetName(), SessionId: l.GetSessionId(), FencingToken: i.Token, Attempt: int32(i.Attempt), ExpireTime: timestamppb.New(i.Until), Ttl: durationpb.New(i.Left),
		Version: int64(i.Last.Position), GlobalPosition: int64(i.Last.GlobalPosition),
	}
}

// ExtendLeases is the heartbeat of many leases.
func (h intents) ExtendLeases(ctx context.Context, r *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error) {
	if err := checkMany("leases", len(r.GetLeases())); err != nil {
		return nil, err
	}
	type group struct {
		m       *intent.Manager
		holders []intent.Holder
		at      []int
	}
	groups := map[string]*group{}
	var c *caller
	for i, l := range r.GetLeases() {
		category := l.GetName().GetCategory()
		g := groups[category]
		if g == nil {
			m, who, err := h.named(ctx, Write, category)
			if err != nil {
				return nil, err
			}
			c, g = who, &group{m: m}
			groups[category] = g
		}
		g.holders, g.at = append(g.holders, holderOf(c, l)), append(g.at, i)
	}
	results := make([]*v1.LeaseResult, len(r.GetLeases()))
	var all errgroup.Group
	for _, g := range groups {
		all.Go(func() error {
			extended, err := g.m.ExtendMany(ctx, g.holders...)
			for i, e := range extended {
				results[g.at[i]] = resultOf(c, r.GetLeases()[g.at[i]], e)
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, fail(err)
	}
	return &v1.ExtendLeasesResponse{Results: results}, nil
}

func resultOf(c *caller, l *v1.Lease, e intent.Extension) *v1.LeaseResult {
	if e.Err == nil {
		return &v1.LeaseResult{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_OK, Lease: leaseOf(l, e.Intent)}
	}
	if outcome, by, lost := lostTo(c, e.Err); lost {
		return &v1.LeaseResult{Outcome: outcome, Intent: by}
	}
	if corrupt, ok := errors.AsType[*intentlog.CorruptError](e.Err); ok {
		return &v1.LeaseResult{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_CORRUPT, Corrupt: corrupt.Error()}
	}
	return &v1.LeaseResult{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_UNAVAILABLE}
}

// Confirm ends a lease with a result.
func (h intents) Confirm(ctx context.Context, r *v1.ConfirmRequest) (*v1.ConfirmResponse, error) {
	m, c, holder, err := h.holder(ctx, r.GetLease())
	if err != nil {
		return nil, err
	}
	if n := len(r.GetWrites()); n >= maxWrites {
		return nil, invalid("writes", n, fmt.Sprintf("must be fewer than %d", maxWrites))
	}
	writes, err := writesOf(ctx, r.GetWrites())
	if err != nil {
		return nil, err
	}
	var result any
	switch {
	case r.GetNotKept() != "" && r.GetResultJson() != "":
		return nil, invalid("not_kept", r.GetNotKept(), "must be empty if there is a result")
	case r.GetNotKept() != "":
		result = intent.NotKept(r.GetNotKept())
	case r.GetResultJson() != "":
		result = json.RawMessage(r.GetResultJson())
	}
	confirmed, err := m.Confirm(ctx, holder, result, writes...)
	if outcome, by, lost := lostTo(c, err); lost {
		return &v1.ConfirmResponse{Outcome: outcome, Intent: by}, nil
	}
	switch {
	case errors.Is(err, messagestore.ErrVersionConflict):
		res := &v1.ConfirmResponse{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_VERSION_CONFLICT}
		if met, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
			res.Conflict = &v1.VersionConflict{Stream: string(met.Stream), ExpectedVersion: int64(met.Expected), ActualVersion: int64(met.Actual)}
		}
		return res, nil
	case err != nil:
		return nil, fail(err)
	}
	return &v1.ConfirmResponse{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_OK, Intent: intentOf(c, confirmed)}, nil
}

// Release ends a lease without a result.
func (h intents) Release(ctx context.Context, r *v1.ReleaseRequest) (*v1.ReleaseResponse, error) {
	m, c, holder, err := h.holder(ctx, r.GetLease())
	if err != nil {
		return nil, err
	}
	released, err := m.Release(ctx, holder, r.GetReason())
	if outcome, by, lost := lostTo(c, err); lost {
		return &v1.ReleaseResponse{Outcome: outcome, Intent: by}, nil
	}
	if err != nil {
		return nil, fail(err)
	}
	return &v1.ReleaseResponse{Outcome: v1.LeaseOutcome_LEASE_OUTCOME_OK, Intent: intentOf(c, released)}, nil
}

// GetIntent returns an intent, at once or when it is not held.
func (h intents) GetIntent(ctx context.Context, r *v1.GetIntentRequest) (*v1.GetIntentResponse, error) {
	m, c, err := h.named(ctx, Read, r.GetName().GetCategory())
	if err != nil {
		return nil, err
	}
	patience, err := wait(ctx, "max_wait", r.GetMaxWait())
	if err != nil {
		return nil, err
	}
	scope, key := r.GetName().GetScope(), r.GetName().GetKey()
	if patience > 0 {
		waiting, done, err := h.s.waits(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		bounded, cancel := context.WithTimeout(waiting, patience)
		defer cancel()
		got, err := m.Await(bounded, scope, key)
		if err == nil {
			return &v1.GetIntentResponse{Intent: intentOf(c, got)}, nil
		}
		if waiting.Err() != nil || bounded.Err() == nil {
			return nil, ended(waiting, err)
		}
	}
	got, err := m.Lookup(ctx, scope, key)
	if err != nil {
		return nil, fail(err)
	}
	return &v1.GetIntentResponse{Intent: intentOf(c, got)}, nil
}

// ListIntents returns a page of a category's intents.
func (h intents) ListIntents(ctx context.Context, r *v1.ListIntentsRequest) (*v1.ListIntentsResponse, error) {
	m, c, err := h.named(ctx, Read, r.GetCategory())
	if err != nil {
		return nil, err
	}
	size, err := pageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	from, err := pageFrom(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	f := intent.Filter{Scope: r.GetScope()}
	if r.GetSessionId() != "" {
		f.Session = c.session(r.GetSessionId())
	}
	if r.GetSinceTime() != nil {
		f.Since = r.GetSinceTime().AsTime()
	}
	for _, state := range r.GetStates() {
		for _, outcome := range []intent.Outcome{intent.Free, intent.Held, intent.Done} {
			if stateOf(outcome) == state {
				f.Status = append(f.Status, outcome)
			}
		}
	}
	if len(f.Status) < len(r.GetStates()) {
		return nil, invalid("states", nil, "must be FREE, HELD or DONE")
	}
	page, err := m.ListPage(ctx, f, from, size)
	if err != nil && !errors.Is(err, intent.ErrCorrupt) { // a stream that holds no intent hides no other
		return nil, fail(err)
	}
	res := &v1.ListIntentsResponse{}
	for _, i := range page.Intents {
		res.Intents = append(res.Intents, intentOf(c, i))
	}
	if page.More {
		res.NextPageToken = strconv.FormatInt(int64(page.Next), 10)
	}
	return res, nil
}
