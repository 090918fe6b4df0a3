package intent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
)

// A Holder names the lease on one key by what its holder was told, for a process that has no
// [Lease]: a server whose clients hold the leases, or a program that was started again.
//
// The steps of a holder, [Manager.Extend], [Manager.Confirm] and [Manager.Release], read the intent
// and append one message. You may repeat each, in any process: after a lost answer, through another
// server, after a restart. They treat a lease on several keys as one lease for each key.
//
// Whoever knows the session and the token of a lease can end it. An [Answer] that is [Held] tells
// both.
type Holder struct {
	Scope   string
	Key     string
	Session string
	Token   int64
}

// Extend restarts the TTL of h's lease. The intent that it returns has the lease's new end.
//
// If the lease is lost, the error is a [*LeaseLostError], which matches [ErrLeaseLost], and the
// intent is the one that it names, as with all steps of a holder. If the intent was never reserved,
// the error also matches [messagestore.ErrNotFound]. After any other error the lease may or may not
// be extended: ask again.
func (m *Manager) Extend(ctx context.Context, h Holder) (Intent, error) {
	return after("extend lease", func() (*Lease, error) { return m.extend(ctx, h) })
}

func (m *Manager) extend(ctx context.Context, h Holder) (*Lease, error) {
	return m.step(ctx, h, extended, nil)
}

// Confirm ends h's lease with a result, for ever, and appends the writes in the same step: see
// [Lease.Confirm]. If the session has confirmed the lease with the same result before, by any call,
// Confirm writes nothing and returns nil. If it was confirmed with another result, or released, it
// is lost.
//
// If one of the writes has a conflict, the error matches [messagestore.ErrVersionConflict], and the
// lease goes on.
func (m *Manager) Confirm(ctx context.Context, h Holder, result any, writes ...messagestore.StreamWrite) (Intent, error) {
	return after("confirm lease", func() (*Lease, error) {
		raw, notKept, err := encodeResult(result)
		if err != nil {
			return nil, err
		}
		return m.step(ctx, h, confirmed(raw, notKept), writes)
	})
}

// Release ends h's lease without a result: see [Lease.Release]. If the session has released the
// lease before, and no session has taken the intent since, Release writes nothing and returns nil.
func (m *Manager) Release(ctx context.Context, h Holder, reason string) (Intent, error) {
	return after("release lease", func() (*Lease, error) {
		if err := validateReason(reason); err != nil {
			return nil, err
		}
		return m.step(ctx, h, released(reason), nil)
	})
}

// after returns the intent as a step of a holder left it, or as it found it if the lease is lost.
func after(what string, step func() (*Lease, error)) (Intent, error) {
	l, err := step()
	if err == nil {
		return l.intent(nil), nil
	}
	var by Intent
	if lost, ok := errors.AsType[*LeaseLostError](err); ok && lost.By != nil {
		by = *lost.By
	}
	return by, fmt.Errorf("%s: %w", what, err)
}

// maxHolders bounds the leases of one call of [Manager.ExtendMany].
const maxHolders = 1000

// An Extension is what [Manager.ExtendMany] did for one holder: the results of [Manager.Extend].
type Extension struct {
	Intent Intent

	// Err is nil if the lease is extended. If it is lost, Err matches [ErrLeaseLost]. With any
	// other error it may or may not be extended: ask again.
	Err error
}

// ExtendMany is one heartbeat for the leases of 1 to 1,000 holders, and returns an outcome for each
// holder in their order. The outcomes do not depend on each other: some leases may be lost, and
// others extended. The error matches [messagestore.ErrInvalid]: then nothing was sent.
//
// Each lease costs a message, as with [Manager.Extend], but the store reads and commits them
// together: on PostgreSQL a thousand take 20 to 50 times as long as one.
func (m *Manager) ExtendMany(ctx context.Context, holders ...Holder) ([]Extension, error) {
	if n := len(holders); n < 1 || n > maxHolders {
		return nil, fmt.Errorf("extend leases: %w", messagestore.NewInvalidError("holders", n, fmt.Sprintf("must be between 1 and %d", maxHolders)))
	}
	for i, h := range holders {
		if _, err := m.lease(h); err != nil {
			return nil, fmt.Errorf("extend leases: holder %d: %w", i, err)
		}
	}
	if ctx == nil { // the steps have goroutines of their own, in which a panic would end the process
		return nil, fmt.Errorf("extend leases: %w", messagestore.NewInvalidError("context", nil, "must not be nil"))
	}
	if m.over != nil {
		all, err := m.over.ExtendMany(ctx, holders...)
		if err != nil {
			return nil, fmt.Errorf("extend leases: %w", err)
		}
		return all, nil
	}
	all := make([]Extension, len(holders))
	var steps sync.WaitGroup
	for i, h := range holders {
		steps.Go(func() { all[i].Intent, all[i].Err = m.Extend(ctx, h) })
	}
	steps.Wait()
	return all, nil
}

// Resume returns the lease of a session that was granted in another process, or by an earlier run
// of this one: one process reserves, and another carries out. It extends the lease, and fails as
// [Manager.Extend] does. The lease of a request with several keys cannot be resumed as a whole.
func (m *Manager) Resume(ctx context.Context, scope, key, session string, token int64) (*Lease, error) {
	l, err := m.extend(ctx, Holder{Scope: scope, Key: key, Session: session, Token: token})
	if err != nil {
		return nil, fmt.Errorf("resume lease: %w", err)
	}
	l.ends = newEnds()
	l.cause = l.parts[0].message()
	return l, nil
}

// lease returns the lease of h as h knows it, at no version.
func (m *Manager) lease(h Holder) (*Lease, error) {
	if h.Token < 1 || h.Token > intentlog.MaxToken {
		return nil, messagestore.NewInvalidError("fencing token", h.Token, "must be the microseconds of a time between 1970 and 9999")
	}
	if rule := intentlog.SessionRule(h.Session); rule != "" {
		return nil, messagestore.NewInvalidError("session", h.Session, rule)
	}
	stream, err := m.Stream(h.Scope, h.Key)
	if err != nil {
		return nil, err
	}
	var p part
	p.Session, p.Token = h.Session, h.Token
	p.Place.Stream, p.Place.Position = stream, messagestore.NoStream
	all := []part{p}
	// Without a salt, so that each holder's step knows the others' as its own.
	return &Lease{m: m, store: m.store, holder: h, granted: all, parts: all, ends: saltedEnds("")}, nil
}

// step takes a step on h's lease, at the version that it finds.
func (m *Manager) step(ctx context.Context, h Holder, body func(p *part) messagestore.Body, writes []messagestore.StreamWrite) (*Lease, error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	l, err := m.lease(h)
	if err != nil {
		return nil, err
	}
	if m.over != nil {
		return l, l.step(ctx, body, writes)
	}
	last, err := m.store.Last(ctx, l.Stream())
	if errors.Is(err, messagestore.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", l.ended(l.lost(nil, "the store has no such intent"), false), err)
	}
	if err != nil {
		return nil, err
	}
	p := l.parts[0]
	step := body(&p)
	l.envelope(&p, step) // by which it is known again
	if again, err := l.meet(l.parts, []messagestore.Body{step}, nil, []*messagestore.Message{last}); err != nil || !again {
		return l, err
	}
	l.granted = l.parts
	if err := l.step(ctx, body, writes); err != nil {
		return l, err
	}
	if step.MessageType() == intentlog.TypeConfirmed && !l.endedByItself() {
		return m.step(ctx, h, body, nil) // an earlier attempt has come in between, and is there now
	}
	return l, nil
}
