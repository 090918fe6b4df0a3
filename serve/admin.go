package serve

import (
	"cmp"
	"context"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// admin is the AdminService.
type admin struct{ s *Server }

// ForceRelease ends a lease without its holder. The intent keeps the name of the key.
func (h admin) ForceRelease(ctx context.Context, r *v1.ForceReleaseRequest) (*v1.ForceReleaseResponse, error) {
	_, c, err := intents(h).named(ctx, Operate, r.GetName().GetCategory())
	if err != nil {
		return nil, err
	}
	m, err := intent.New(h.s.store, messagestore.Category(r.GetName().GetCategory()), &intent.Config{Name: c.key.ID, Logger: h.s.config.Logger})
	if err != nil {
		return nil, fail(err)
	}
	if err := m.ForceRelease(ctx, r.GetName().GetScope(), r.GetName().GetKey(), r.GetReason()); err != nil {
		return nil, fail(err)
	}
	return &v1.ForceReleaseResponse{}, nil
}

// ChangeItems retries, drops or cancels items.
func (h admin) ChangeItems(ctx context.Context, r *v1.ChangeItemsRequest) (*v1.ChangeItemsResponse, error) {
	q, _, err := queues(h).named(ctx, Operate, r.GetQueue())
	if err != nil {
		return nil, err
	}
	positions := make([]messagestore.GlobalPosition, len(r.GetPositions()))
	for i, p := range r.GetPositions() {
		positions[i] = messagestore.GlobalPosition(p)
	}
	change := q.Retry
	switch r.GetChange() {
	case v1.ItemChange_ITEM_CHANGE_RETRY:
	case v1.ItemChange_ITEM_CHANGE_DROP:
		change = q.Drop
	case v1.ItemChange_ITEM_CHANGE_CANCEL:
		change = q.Cancel
	default:
		return nil, invalid("change", r.GetChange().String(), "must be RETRY, DROP or CANCEL")
	}
	changed, err := change(ctx, r.GetReason(), positions...)
	if err != nil {
		return nil, fail(err)
	}
	res := &v1.ChangeItemsResponse{}
	for _, p := range changed {
		res.ChangedPositions = append(res.ChangedPositions, int64(p))
	}
	return res, nil
}

// PauseQueue has a queue deliver nothing.
func (h admin) PauseQueue(ctx context.Context, r *v1.PauseQueueRequest) (*v1.PauseQueueResponse, error) {
	q, _, err := queues(h).named(ctx, Operate, r.GetQueue())
	if err != nil {
		return nil, err
	}
	return &v1.PauseQueueResponse{}, fail(q.Pause(ctx))
}

// ResumeQueue ends a pause.
func (h admin) ResumeQueue(ctx context.Context, r *v1.ResumeQueueRequest) (*v1.ResumeQueueResponse, error) {
	q, _, err := queues(h).named(ctx, Operate, r.GetQueue())
	if err != nil {
		return nil, err
	}
	return &v1.ResumeQueueResponse{}, fail(q.Resume(ctx))
}

// SetQueuePolicy stores what becomes of a queue's failed items, and its limits.
func (h admin) SetQueuePolicy(ctx context.Context, r *v1.SetQueuePolicyRequest) (*v1.SetQueuePolicyResponse, error) {
	q, c, err := queues(h).named(ctx, Operate, r.GetQueue())
	if err != nil {
		return nil, err
	}
	p := r.GetPolicy()
	policy := queue.Policy{MaxFailures: int(p.GetMaxFailures()), MaxOut: int(p.GetMaxOut()), Rate: p.GetRate(), Burst: int(p.GetBurst())}
	if p.GetHoldBehindDead() {
		policy.WhenDead = queue.Hold
	}
	return &v1.SetQueuePolicyResponse{}, fail(q.SetPolicy(ctx, cmp.Or(c.key.ID, "anybody"), policy))
}
