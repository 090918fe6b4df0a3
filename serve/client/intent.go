package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// Bounds of the services.
const (
	maxSession  = 100 // bytes
	sessionUUID = len("/") + 36
	maxWaitTime = 15 * time.Minute
)

// IntentManager returns a manager of the intents in category, whose last type is intent, such as
// payment:intent. It works as the one that [intent.New] returns over the server's store, except for
// what [intent.NewOver] names. All managers of a client extend their leases together: the
// extensions that come while a call is under way go in the next one.
//
// The config's Name has at most 63 bytes, and a session 100. ForceRelease needs a key with the right
// to operate. Of an intent that a session of another key holds, an [intent.Intent] has the key's name
// in place of the session, and token 0. The names of other keys' sessions in the line are empty.
func (c *Client) IntentManager(category messagestore.Category, config *intent.Config) (*intent.Manager, error) {
	var wrong []error
	if category.Validate() == nil && !slices.Contains(category.Types(), "intent") {
		wrong = append(wrong, messagestore.NewInvalidError("category", string(category), "must have the type intent, such as payment:intent"))
	}
	if config != nil && len(config.Name) > maxSession-sessionUUID {
		refused := messagestore.NewInvalidError("Name", config.Name, fmt.Sprintf("must be at most %d bytes", maxSession-sessionUUID))
		refused.Kind = intent.ErrInvalidConfig
		wrong = append(wrong, refused)
	}
	s := &intents{c: c, category: category}
	m, err := intent.NewOver(s, category, config)
	if err = errors.Join(append(wrong, err)...); err != nil {
		return nil, err
	}
	s.m = m
	return m, nil
}

// intents is an [intent.Service]: the intents of a category at the server.
type intents struct {
	c        *Client
	category messagestore.Category
	m        *intent.Manager // over it, which names the streams
}

func (s *intents) name(scope, key string) *v1.IntentName {
	return &v1.IntentName{Category: string(s.category), Scope: scope, Key: key}
}

// Reserve asks again while the server's wait ends before the request's: at its bound, or a moment
// before the end of ctx.
func (s *intents) Reserve(ctx context.Context, r intent.Request) (intent.Answer, error) {
	if n := len(r.Session); n > maxSession {
		return intent.Answer{}, messagestore.NewInvalidError("session", r.Session, fmt.Sprintf("must be at most %d bytes", maxSession))
	}
	content, err := exactjson.Marshal(r.Content)
	if err != nil {
		return intent.Answer{}, messagestore.NewInvalidError("content", nil, fmt.Sprintf("must encode as JSON: %v", err))
	}
	request := &v1.ReserveRequest{Name: s.name(r.Scope, r.Key), SessionId: r.Session, ContentJson: string(content), Ttl: durationpb.New(r.TTL)}
	if !r.Metadata.IsZero() {
		metadata, err := json.Marshal(r.Metadata)
		if err != nil {
			return intent.Answer{}, messagestore.NewInvalidError("metadata", nil, fmt.Sprintf("must encode as JSON: %v", err))
		}
		request.MetadataJson = string(metadata)
	}
	for end := time.Now().Add(r.Wait); ; {
		left := min(time.Until(end), maxWaitTime)
		request.MaxWait = durationpb.New(max(left, 0))
		answer, err := s.c.Intents.Reserve(ctx, request)
		switch {
		case err != nil:
			return intent.Answer{}, err
		case answer.GetOutcome() == v1.Outcome_OUTCOME_RESERVED:
			i := s.leased(answer.GetLease())
			return intent.Answer{Outcome: intent.Reserved, Intent: i}, nil
		case answer.GetOutcome() == v1.Outcome_OUTCOME_HELD && left > 0:
			if err := ctx.Err(); err != nil {
				return intent.Answer{}, err
			}
			continue
		}
		return intent.Answer{Outcome: intent.Outcome(answer.GetOutcome()), Intent: s.intent(answer.GetIntent())}, nil
	}
}

// leased returns the intent of a lease that its holder has taken a step on.
func (s *intents) leased(l *v1.Lease) intent.Intent {
	stream, _ := s.m.Stream(l.GetName().GetScope(), l.GetName().GetKey()) // the manager has done it before
	i := intent.Intent{
		Status: intent.Held, Session: l.GetSessionId(), Token: l.GetFencingToken(), Attempt: int(l.GetAttempt()),
		Since: time.UnixMicro(l.GetFencingToken()).UTC(), Until: l.GetExpireTime().AsTime(), Left: l.GetTtl().AsDuration(),
	}
	i.Scope, i.Key = intentlog.ScopeAndKey(stream)
	place(&i, stream, l.GetVersion(), l.GetGlobalPosition())
	return i
}

// intent returns an intent as the server shows it.
func (s *intents) intent(in *v1.Intent) intent.Intent {
	i := intent.Intent{
		Scope: in.GetName().GetScope(), Key: in.GetName().GetKey(), Session: in.GetSessionId(), Token: in.GetFencingToken(), Attempt: int(in.GetAttempt()),
		Since: in.GetGrantTime().AsTime(), Left: in.GetLeft().AsDuration(), NotKept: in.GetNotKept(), Forgotten: in.GetForgotten(),
		Released: in.GetReleased(), By: in.GetReleasedBy(), Reason: in.GetReleaseReason(), Line: in.GetLine(),
	}
	switch in.GetState() {
	case v1.IntentState_INTENT_STATE_HELD:
		i.Status = intent.Held
	case v1.IntentState_INTENT_STATE_DONE:
		i.Status = intent.Done
	}
	if i.Session == "" {
		i.Session = in.GetKeyId()
	}
	if in.GetExpireTime() != nil {
		i.Until = in.GetExpireTime().AsTime()
	}
	if in.GetResultJson() != "" {
		i.Result = json.RawMessage(in.GetResultJson())
	}
	place(&i, messagestore.StreamName(in.GetStream()), in.GetVersion(), in.GetGlobalPosition())
	return i
}

// place sets the stream of an intent, and where its last message is.
func place(i *intent.Intent, stream messagestore.StreamName, version, global int64) {
	i.Stream = stream
	i.Last = messagestore.Mark{Stream: stream, Position: messagestore.Version(version), GlobalPosition: messagestore.GlobalPosition(global)}
}

func (s *intents) lease(h intent.Holder) *v1.Lease {
	return &v1.Lease{Name: s.name(h.Scope, h.Key), SessionId: h.Session, FencingToken: h.Token}
}

// lost returns the error for a lease in whose place the server has found something else.
func (s *intents) lost(l *v1.Lease, by *v1.Intent) error {
	i := s.leased(l)
	e := &intent.LeaseLostError{Stream: i.Stream, Session: i.Session, Token: i.Token}
	if by == nil {
		return fmt.Errorf("%w: %w", e, messagestore.ErrNotFound)
	}
	found := s.intent(by)
	e.By = &found
	return e
}

// ExtendMany has the leases extended together with those of the client's other callers.
func (s *intents) ExtendMany(ctx context.Context, holders ...intent.Holder) ([]intent.Extension, error) {
	leases := make([]*v1.Lease, len(holders))
	for i, h := range holders {
		leases[i] = s.lease(h)
	}
	all := make([]intent.Extension, len(holders))
	for i, result := range s.c.extensions.extend(ctx, leases) {
		switch {
		case result.err != nil:
			all[i].Err = result.err
		case result.GetOutcome() == v1.LeaseOutcome_LEASE_OUTCOME_OK:
			all[i].Intent = s.leased(result.GetLease())
		case result.GetOutcome() == v1.LeaseOutcome_LEASE_OUTCOME_LOST:
			all[i].Err = s.lost(leases[i], result.GetIntent())
			if result.GetIntent() != nil {
				all[i].Intent = s.intent(result.GetIntent())
			}
		case result.GetOutcome() == v1.LeaseOutcome_LEASE_OUTCOME_CORRUPT:
			all[i].Err = &wireError{intent.ErrCorrupt, errors.New(result.GetCorrupt())}
		default:
			all[i].Err = errUnavailable
		}
	}
	return all, nil
}

var errUnavailable = fmt.Errorf("%w: the store does not answer for this lease now", messagestore.ErrOutcomeUnknown)

// Confirm sends a result and writes.
func (s *intents) Confirm(ctx context.Context, h intent.Holder, result any, writes ...messagestore.StreamWrite) (intent.Intent, error) {
	request := &v1.ConfirmRequest{Lease: s.lease(h)}
	switch r := result.(type) {
	case json.RawMessage:
		request.ResultJson = string(r)
	case intent.NotKept:
		request.NotKept = string(r)
	}
	encoded, err := messagestore.Encode(writes...)
	if err != nil {
		return intent.Intent{}, err
	}
	for _, a := range encoded {
		request.Writes = append(request.Writes, writeOf(a))
	}
	answer, err := s.c.Intents.Confirm(ctx, request)
	if err != nil {
		return intent.Intent{}, err
	}
	if answer.GetOutcome() == v1.LeaseOutcome_LEASE_OUTCOME_VERSION_CONFLICT {
		if met := answer.GetConflict(); met != nil {
			return intent.Intent{}, &messagestore.VersionConflictError{
				Stream: messagestore.StreamName(met.GetStream()), Expected: messagestore.Version(met.GetExpectedVersion()), Actual: messagestore.Version(met.GetActualVersion()),
			}
		}
		return intent.Intent{}, fmt.Errorf("%w: the service names no stream", messagestore.ErrVersionConflict)
	}
	return s.ended(request.GetLease(), answer.GetOutcome(), answer.GetIntent())
}

func writeOf(a messagestore.Append) *v1.StreamWrite {
	expected := int64(a.Expected)
	w := &v1.StreamWrite{Stream: string(a.Stream), ExpectedVersion: &expected, PastTypes: a.Past}
	if a.After != uuid.Nil {
		w.AfterId = a.After.String()
	}
	for _, r := range a.Records {
		w.Messages = append(w.Messages, &v1.NewMessage{Id: r.ID.String(), Type: r.Type, DataJson: string(r.Data), MetadataJson: string(r.Metadata)})
	}
	return w
}

// Release sends a reason.
func (s *intents) Release(ctx context.Context, h intent.Holder, reason string) (intent.Intent, error) {
	l := s.lease(h)
	answer, err := s.c.Intents.Release(ctx, &v1.ReleaseRequest{Lease: l, Reason: reason})
	if err != nil {
		return intent.Intent{}, err
	}
	return s.ended(l, answer.GetOutcome(), answer.GetIntent())
}

// ended returns the intent after a step that ends a lease.
func (s *intents) ended(l *v1.Lease, outcome v1.LeaseOutcome, found *v1.Intent) (intent.Intent, error) {
	switch {
	case outcome == v1.LeaseOutcome_LEASE_OUTCOME_OK:
		return s.intent(found), nil
	case found == nil:
		return intent.Intent{}, s.lost(l, nil)
	}
	return s.intent(found), s.lost(l, found)
}

// Lookup returns an intent.
func (s *intents) Lookup(ctx context.Context, scope, key string) (intent.Intent, error) {
	answer, err := s.c.Intents.GetIntent(ctx, &v1.GetIntentRequest{Name: s.name(scope, key)})
	if err != nil {
		return intent.Intent{}, err
	}
	return s.intent(answer.GetIntent()), nil
}

// Await asks again while the server's wait ends before ctx.
func (s *intents) Await(ctx context.Context, scope, key string) (intent.Intent, error) {
	for {
		answer, err := s.c.Intents.GetIntent(ctx, &v1.GetIntentRequest{Name: s.name(scope, key), MaxWait: durationpb.New(maxWaitTime)})
		if err != nil {
			return intent.Intent{}, err
		}
		if i := s.intent(answer.GetIntent()); i.Status != intent.Held {
			return i, nil
		}
		if err := ctx.Err(); err != nil {
			return intent.Intent{}, err
		}
	}
}

// ListPage returns a page of the category's intents.
func (s *intents) ListPage(ctx context.Context, f intent.Filter, from messagestore.GlobalPosition, limit int) (intent.Page, error) {
	request := &v1.ListIntentsRequest{Category: string(s.category), Scope: f.Scope, SessionId: f.Session, PageSize: int32(limit)}
	for _, status := range f.Status {
		request.States = append(request.States, states[status])
	}
	if !f.Since.IsZero() {
		request.SinceTime = timestamppb.New(f.Since)
	}
	if from > 0 {
		request.PageToken = strconv.FormatInt(int64(from), 10)
	}
	answer, err := s.c.Intents.ListIntents(ctx, request)
	if err != nil {
		return intent.Page{}, err
	}
	page := intent.Page{More: answer.GetNextPageToken() != ""}
	for _, i := range answer.GetIntents() {
		page.Intents = append(page.Intents, s.intent(i))
	}
	if page.More {
		next, err := strconv.ParseInt(answer.GetNextPageToken(), 10, 64)
		if err != nil {
			return intent.Page{}, fmt.Errorf("malformed page token of the server: %.80q", answer.GetNextPageToken())
		}
		page.Next = messagestore.GlobalPosition(next)
	}
	return page, nil
}

var states = map[intent.Outcome]v1.IntentState{
	intent.Free: v1.IntentState_INTENT_STATE_FREE, intent.Held: v1.IntentState_INTENT_STATE_HELD, intent.Done: v1.IntentState_INTENT_STATE_DONE,
}

// ForceRelease ends a lease as an operator.
func (s *intents) ForceRelease(ctx context.Context, scope, key, reason string) error {
	_, err := s.c.Admin.ForceRelease(ctx, &v1.ForceReleaseRequest{Name: s.name(scope, key), Reason: reason})
	return err
}
