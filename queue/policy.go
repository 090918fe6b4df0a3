package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Policy says how a queue treats its items. The fields are those of [Config] with the same names,
// and have the same bounds and defaults.
type Policy struct {
	MaxFailures int
	WhenDead    WhenDead
	MaxOut      int
	Rate        float64
	Burst       int
}

// check fills in the defaults, and returns the mistakes.
func (p *Policy) check() (wrong []error) {
	p.MaxFailures = cmp.Or(p.MaxFailures, 20)
	invalid := func(field string, value any, rule string) {
		wrong = append(wrong, messagestore.NewInvalidError(field, value, rule))
	}
	if p.MaxFailures < 1 || p.MaxFailures > queuing.MaxFailures {
		invalid("MaxFailures", p.MaxFailures, fmt.Sprintf("must be between 1 and %d", queuing.MaxFailures))
	}
	if p.WhenDead != GoOn && p.WhenDead != Hold {
		invalid("WhenDead", int(p.WhenDead), "must be GoOn or Hold")
	}
	if p.MaxOut < 0 || p.MaxOut > math.MaxInt32 {
		invalid("MaxOut", p.MaxOut, "must be at least 1, or 0 for no limit")
	}
	if !(p.Rate == 0 || p.Rate >= 1e-6 && p.Rate <= 1e9) { // not NaN
		invalid("Rate", p.Rate, "must be between 1e-6 and 1e9 a second, or 0 for no limit")
	}
	if p.Burst < 0 || p.Burst > math.MaxInt32 || p.Burst > 0 && p.Rate == 0 {
		invalid("Burst", p.Burst, "must be at least 1, and needs a Rate")
	}
	if p.Rate > 0 {
		p.Burst = max(p.Burst, 1)
	}
	return wrong
}

func (p Policy) of() queuing.Policy {
	return queuing.Policy{MaxFailures: p.MaxFailures, Hold: p.WhenDead == Hold, MaxOut: p.MaxOut, Rate: p.Rate, Burst: p.Burst}
}

// A StoredPolicy is a queue's policy in its store.
type StoredPolicy struct {
	Policy // with its defaults filled in

	By   string    // who set it
	Time time.Time // when, by the store's clock
}

// policySet is the message by which a policy is stored. Its stream has all policies that the queue
// had, the last of which applies.
type policySet struct {
	MaxFailures int     `json:"maxFailures"`
	Hold        bool    `json:"hold"`
	MaxOut      int     `json:"maxOut"`
	Rate        float64 `json:"rate"`
	Burst       int     `json:"burst"`
	By          string  `json:"by"`
}

const typePolicySet = "QueuePolicySet"

func (policySet) MessageType() string { return typePolicySet }

func (q *Queue) policies() messagestore.StreamName {
	return q.of.Category.WithType("policy").Stream(q.of.Name)
}

// SetPolicy stores the queue's policy, for all processes whose [Config] says Stored: they use it
// within five seconds. By says who sets it: 1 to 255 bytes of visible text. The zero Policy is the
// default one. If the policy is already stored, nothing is written.
//
// The policies that a queue had are the messages of one stream: that of the queue mail over the
// category mail is mail:policy-mail. You may call again after an error, even if it matches
// [messagestore.ErrOutcomeUnknown]. A server that keeps the queue says itself who sets the policy.
func (q *Queue) SetPolicy(ctx context.Context, by string, p Policy) error {
	if err := q.use(ctx); err != nil {
		return err
	}
	wrong := append(p.check(), q.refuseParked(), q.policies().Validate())
	if rule := text.TypeRule(by); rule != "" {
		wrong = append(wrong, messagestore.NewInvalidError("by", by, "must be 1 to 255 bytes of visible text, without white space at either end"))
	}
	err := errors.Join(wrong...)
	if err == nil {
		err = q.setPolicy(ctx, by, p)
	}
	return q.fail("set policy", err)
}

func (q *Queue) setPolicy(ctx context.Context, by string, p Policy) error {
	stored, err := q.readPolicy(ctx)
	if err == nil && stored.Policy == p && stored.By != "" {
		return nil
	}
	if err != nil && !errors.Is(err, errMalformedPolicy) {
		return err
	}
	if q.remote != nil {
		err = q.remote.SetPolicy(ctx, p.of())
	} else {
		_, err = q.store.Write(ctx, q.policies(), messagestore.AnyVersion, policySet{p.MaxFailures, p.WhenDead == Hold, p.MaxOut, p.Rate, p.Burst, by})
	}
	q.stored.forget()
	return err
}

// Policy returns the queue's policy in its store, whether this process uses it or not. If none is
// stored, it is the default one, and By is empty.
func (q *Queue) Policy(ctx context.Context) (StoredPolicy, error) {
	if err := q.use(ctx); err != nil {
		return StoredPolicy{}, err
	}
	stored, err := q.readPolicy(ctx)
	return stored, q.fail("policy", err)
}

var errMalformedPolicy = errors.New("the stored policy is malformed: set it again")

func (q *Queue) readPolicy(ctx context.Context) (stored StoredPolicy, err error) {
	m, err := q.messages().Last(ctx, q.policies())
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		stored.check()
		return stored, nil
	case err != nil:
		return StoredPolicy{}, err
	}
	var set policySet
	if m.Type != typePolicySet || json.Unmarshal(m.Data, &set) != nil {
		return StoredPolicy{}, fmt.Errorf("%w: %s", errMalformedPolicy, m)
	}
	stored = StoredPolicy{Policy{MaxFailures: set.MaxFailures, MaxOut: set.MaxOut, Rate: set.Rate, Burst: set.Burst}, set.By, m.Time}
	if set.Hold {
		stored.WhenDead = Hold
	}
	if wrong := stored.check(); len(wrong) > 0 {
		return StoredPolicy{}, fmt.Errorf("%w: %s: %w", errMalformedPolicy, m, errors.Join(wrong...))
	}
	return stored, nil
}

// storedFor is how long a process uses a stored policy before it reads it again.
const storedFor = 5 * time.Second

// A stored policy is one that was read from the store. It is safe for concurrent use.
type stored struct {
	mu      sync.Mutex
	policy  *queuing.Policy // nil if it is to be read
	read    time.Time
	reading *reading // under way; nil for none
}

// A reading of a policy is for all who wait for it, and lasts longer than the one who began it.
type reading struct {
	done   chan struct{}
	policy queuing.Policy
	err    error
}

func (s *stored) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy, s.reading = nil, nil
}

// policyOf returns the policy of a take that begins now. When the time of the one that was read has
// passed, one caller waits until it was read again, and the others go on with the old one meanwhile.
func (q *Queue) policyOf(ctx context.Context) (queuing.Policy, error) {
	if !q.config.Stored {
		return q.policy, nil
	}
	s := &q.stored
	s.mu.Lock()
	if s.policy != nil && (time.Since(s.read) < storedFor || s.reading != nil) {
		defer s.mu.Unlock()
		return *s.policy, nil
	}
	if inTransaction(ctx) { // a reading outside may wait for this transaction's connection
		s.mu.Unlock()
		read, err := q.readPolicy(ctx)
		return read.of(), err
	}
	r := s.reading
	if r == nil {
		r = &reading{done: make(chan struct{})}
		s.reading = r
		go q.readFor(ctx, r)
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.policy, r.err
	case <-ctx.Done():
		return queuing.Policy{}, ctx.Err()
	}
}

// readFor reads the policy for all who wait for r.
func (q *Queue) readFor(ctx context.Context, r *reading) {
	began := time.Now()
	var read StoredPolicy
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedTimeout)
	defer cancel()
	r.err = calling.Call(func() (err error) {
		read, err = q.readPolicy(ctx)
		return err
	})
	r.policy = read.of()
	close(r.done)
	s := &q.stored
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading != r { // the policy was set meanwhile
		return
	}
	s.policy, s.read, s.reading = &r.policy, began, nil
	if r.err != nil {
		s.policy = nil
	}
}
