package intent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Lease is the right to carry out an intent for a limited time. It is safe for concurrent use.
//
// The store alone decides whether a step on a lease succeeds, by the version of the intent's
// stream. The lease's own clock only tells its holder when to stop.
type Lease struct {
	m      *Manager
	store  Store                 // through which the steps are written; nil over a service
	holder Holder                // by which a service knows it
	cause  *messagestore.Message // for a resumed lease; else its grant

	granted []part // as they were granted, for the fields that never change
	ends    *ends

	mu       sync.Mutex
	parts    []part          // never changed in place, so that a step may keep them
	assured  time.Time       // until when the holder has the lease, by its own clock
	over     *LeaseLostError // why it ended, once that is known
	byItself bool            // one of its own steps ended it
	said     bool            // the loss was logged
	extended chan struct{}   // closed when assured has moved, if anything waits for it
}

// A part is the lease on one key.
type part struct{ intentlog.State }

// newLease returns a lease on parts, granted by a step that was sent at the given time.
func (m *Manager) newLease(parts []part, sent time.Time) *Lease {
	l := &Lease{m: m, store: m.store, granted: parts, ends: newEnds(), parts: parts}
	l.counted(sent)
	return l
}

// message returns the message that granted the lease, or that a resume found.
func (p *part) message() *messagestore.Message {
	return &messagestore.Message{
		ID: p.Place.ID, Stream: p.Place.Stream, Position: p.Place.Position, GlobalPosition: p.Place.GlobalPosition, Time: p.Place.Time,
		Type: p.Type, Metadata: p.Metadata,
	}
}

// counted computes how long the holder has the lease, after a step that was sent at the given time.
func (l *Lease) counted(sent time.Time) {
	ttl := l.ttl()
	if assured := sent.Add(ttl - margin(ttl)); assured.After(l.assured) {
		l.assured = assured
		if l.extended != nil {
			close(l.extended)
			l.extended = nil
		}
	}
}

func (l *Lease) ttl() time.Duration {
	ttl := l.granted[0].Lasts()
	for _, p := range l.granted[1:] {
		ttl = min(ttl, p.Lasts())
	}
	return ttl
}

// Stream returns the name of the intent's stream.
func (l *Lease) Stream() messagestore.StreamName { return l.granted[0].Place.Stream }

// Session returns the session that holds the lease.
func (l *Lease) Session() string { return l.granted[0].Session }

// Token returns the lease's fencing token: greater than the token of every earlier lease on this
// key, and 16 digits long. A resource outside the store keeps the greatest that it has seen, and
// refuses a smaller one.
func (l *Lease) Token() int64 { return l.granted[0].Token }

// Tokens returns the tokens of all keys, in the order of the request: [Request.Key], and then
// [Request.With].
func (l *Lease) Tokens() []int64 {
	tokens := make([]int64, len(l.granted))
	for i, p := range l.granted {
		tokens[i] = p.Token
	}
	return tokens
}

// Attempt counts the leases on this key, from 1. From the second on, an earlier holder may have
// done a part of the work, so look before you act. With several keys it is the highest count.
func (l *Lease) Attempt() int {
	attempt := 0
	for _, p := range l.granted {
		attempt = max(attempt, p.Attempt)
	}
	return attempt
}

// Left returns how long the holder may still work, by this process's clock. It ends a tenth of the
// TTL before anybody else may take the intent, counted from before the request was sent.
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return 0
	}
	return max(time.Until(l.assured), 0)
}

// Until returns when the lease is over, by the store's clock.
func (l *Lease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.parts[0].Until()
	for _, p := range l.parts[1:] {
		if free := p.Until(); free.Before(until) {
			until = free
		}
	}
	return until
}

// Cause returns the message that granted the lease, without its data, for [messagestore.Follow]:
// then events of the work show to which lease they belong.
func (l *Lease) Cause() *messagestore.Message {
	if l.cause == nil {
		return l.granted[0].message()
	}
	cause := *l.cause
	return &cause
}

// Err returns nil as long as the holder may work, and after that an error that matches
// [ErrLeaseLost]. It sends nothing. Call it before each effect outside the store: a process that
// was suspended notices it this way.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over != nil:
		return l.over
	case time.Until(l.assured) <= 0:
		return l.lost(nil, "the lease is over, and no extension has reached the store")
	}
	return nil
}

// lost returns the error for a lease that another state has replaced.
func (l *Lease) lost(by *intentlog.State, cause string) *LeaseLostError {
	e := &LeaseLostError{Stream: l.Stream(), Session: l.Session(), Token: l.Token(), cause: cause}
	if by != nil {
		i := intentOf(by, by.Place.Time, l.m.config.Turn)
		e.By = &i
		for _, p := range l.granted {
			if p.Place.Stream == by.Place.Stream {
				e.Stream, e.Token = p.Place.Stream, p.Token
			}
		}
	}
	return e
}

// Extend restarts the lease's TTL.
//
// If the lease is lost, the error is a [*LeaseLostError], which names the successor and matches
// [ErrLeaseLost], as for all steps. After any other error the lease may or may not be extended.
func (l *Lease) Extend(ctx context.Context) error {
	if err := l.step(ctx, extended, nil); err != nil {
		return fmt.Errorf("extend lease: %w", err)
	}
	return nil
}

func extended(p *part) messagestore.Body { return intentlog.Extended{Grant: p.Grant, Token: p.Token} }

// Release ends the lease without a result: the intent is free, at once for the first in the line.
// The reason is for operators, at most 500 bytes, and may be "". You may release the lease again as
// long as no session has taken the intent since.
//
// After a release, a commit of the work that is still under way fails.
func (l *Lease) Release(ctx context.Context, reason string) error {
	err := validateReason(reason)
	if err == nil {
		err = l.step(ctx, released(reason), nil)
	}
	if err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

func released(reason string) func(p *part) messagestore.Body {
	return func(p *part) messagestore.Body {
		return intentlog.Released{Grant: p.Grant, Token: p.Token, Reason: reason}
	}
}

// Bounds of the reason of a release, and of a result.
const (
	maxReason = 500
	maxResult = 512 << 10
)

func validateReason(reason string) error {
	rule := intentlog.TextRule(reason)
	if len(reason) > maxReason {
		rule = fmt.Sprintf("must be at most %d bytes", maxReason)
	}
	if rule != "" {
		return messagestore.NewInvalidError("reason", reason, rule)
	}
	return nil
}

// Confirm ends the lease with a result, for ever: every later request for the intent returns that
// result. The result is encoded with encoding/json, and has at most 512 KiB; nil means no result, and
// a [NotKept] says why there is none. The writes are appended in the same step: either all or nothing
// is written. If you confirm again with the same result, Confirm writes nothing and returns nil, even
// if another Lease of the same session has confirmed it.
//
// You may confirm a lease after its time is over: if no session has taken the intent since, Confirm
// succeeds. If one of the writes has a conflict, the error matches
// [messagestore.ErrVersionConflict] and the lease goes on; it also goes on if the result is
// refused.
func (l *Lease) Confirm(ctx context.Context, result any, writes ...messagestore.StreamWrite) error {
	raw, notKept, err := encodeResult(result)
	if err == nil {
		err = l.confirm(ctx, raw, notKept, writes)
	}
	if err != nil {
		return fmt.Errorf("confirm lease: %w", err)
	}
	return nil
}

func (l *Lease) confirm(ctx context.Context, result json.RawMessage, notKept string, writes []messagestore.StreamWrite) error {
	return l.step(ctx, confirmed(result, notKept), writes)
}

func confirmed(result json.RawMessage, notKept string) func(p *part) messagestore.Body {
	return func(p *part) messagestore.Body { return p.confirmed(result, notKept) }
}

func (p *part) confirmed(result json.RawMessage, notKept string) intentlog.Confirmed {
	c := intentlog.Confirmed{Grant: p.Grant, Token: p.Token, Result: result, NotKept: notKept}
	c.Line = nil
	return c
}

// ends has the messages by which a lease has ended itself, or may have: its own steps record them,
// and so do the steps of its copies in transactions. Another lease of the same session and token
// has its own ends. It is safe for concurrent use.
type ends struct {
	salt string // distinguishes the confirmations of this lease from another's

	mu        sync.Mutex
	confirmed map[uuid.UUID]bool
	released  map[place]bool
}

// A place says where a message is.
type place struct {
	stream   messagestore.StreamName
	position messagestore.Version
}

func newEnds() *ends {
	salt := uuid.New()
	return saltedEnds(string(salt[:]))
}

func saltedEnds(salt string) *ends {
	return &ends{salt: salt, confirmed: map[uuid.UUID]bool{}, released: map[place]bool{}}
}

// confirmation returns the id of the message that confirms a part, before it is sent. The id is the
// same each time, so that a committed transaction is recognised.
func (e *ends) confirmation(p *part, c intentlog.Confirmed) uuid.UUID {
	id := p.confirmationID(e.salt, c)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.confirmed[id] = true
	return id
}

// mayBeConfirmed reports whether a step or a transaction may have confirmed the lease.
func (e *ends) mayBeConfirmed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.confirmed) > 0
}

// release records the place of the message that releases a part.
func (e *ends) release(stream messagestore.StreamName, position messagestore.Version) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.released[place{stream, position}] = true
}

// have reports whether the lease itself has brought the intent into state s.
func (e *ends) have(s *intentlog.State) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.Type == intentlog.TypeConfirmed && e.confirmed[s.Place.ID] || s.Released && s.By == "" && e.released[place{s.Place.Stream, s.Of}]
}

// confirmationID returns the id of the message with which the lease with this salt confirms a part.
func (p *part) confirmationID(salt string, c intentlog.Confirmed) uuid.UUID {
	h := sha256.New()
	for _, field := range []string{string(p.Place.Stream), p.Session, salt, string(c.Result), c.NotKept} {
		_ = binary.Write(h, binary.BigEndian, int64(len(field))) // a hash takes every write
		h.Write([]byte(field))
	}
	_ = binary.Write(h, binary.BigEndian, p.Token)
	var id uuid.UUID
	copy(id[6:], h.Sum(nil))
	ms := uint64(p.Token / 1000)
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	id[6] = id[6]&0x0F | 0x70
	id[8] = id[8]&0x3F | 0x80
	return id
}

// past are the types of messages that do not change a lease.
var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting}

// Confirmation returns the writes of Confirm, one for each key and then the given ones, for you to
// append in your own transaction: see [messagestore.TxStore.Transact]. They succeed even after
// extensions and new waiters. If the transaction fails, [Lease.Lost] reports whether the cause was
// a lost lease.
//
// If the result does not encode, every use of the writes fails with the error of Confirm, which
// matches [messagestore.ErrInvalid]. If the lease is of a [Service], the error also matches
// [messagestore.ErrNotSupported].
func (l *Lease) Confirmation(result any, writes ...messagestore.StreamWrite) []messagestore.StreamWrite {
	raw, notKept, err := encodeResult(result)
	err = cmp.Or(err, l.unsupported("must be of a store: give the writes to Confirm instead"))
	parts := l.snapshot()
	all := make([]messagestore.StreamWrite, 0, len(parts)+len(writes))
	for _, p := range parts {
		var body messagestore.Body = refused{err}
		if err == nil {
			body = p.confirmed(raw, notKept)
		}
		all = append(all, messagestore.StreamWrite{
			Stream: p.Place.Stream, Expected: p.Place.Position, Past: past, After: p.Place.ID, Final: true,
			Bodies: []messagestore.Body{messagestore.Envelope{ID: l.ends.confirmation(&p, intentlog.Confirmed{Result: raw, NotKept: notKept}), Body: body, Metadata: p.Metadata}},
		})
	}
	return append(all, writes...)
}

// unsupported returns an error if the lease is of a service, and so no write of a store's can need it.
func (l *Lease) unsupported(rule string) error {
	if l.m.over == nil {
		return nil
	}
	return invalid("lease", string(l.Stream()), rule, messagestore.ErrNotSupported)
}

// refused is the body of a write that fails wherever it is used.
type refused struct{ err error }

// MessageType returns the type of the confirmation.
func (refused) MessageType() string { return intentlog.TypeConfirmed }

// MarshalJSON returns the reason, which becomes the write's error.
func (r refused) MarshalJSON() ([]byte, error) { return nil, r.err }

// Guarded returns writes without messages, one for each key, that fail unless the holder still has
// the lease. Add them to a transaction that does a part of the work. If the lease is of a [Service],
// every use of them fails with an error that matches [messagestore.ErrInvalid] and
// [messagestore.ErrNotSupported].
func (l *Lease) Guarded() []messagestore.StreamWrite {
	parts := l.snapshot()
	checks := make([]messagestore.StreamWrite, len(parts))
	for i, p := range parts {
		checks[i] = messagestore.StreamWrite{Stream: p.Place.Stream, Expected: p.Place.Position, Past: past, After: p.Place.ID, Final: true}
		if err := l.unsupported("must be of a store, to guard a write"); err != nil {
			checks[i].Bodies = []messagestore.Body{refused{err}}
		}
	}
	return checks
}

// Lost reports whether err says that the lease is lost. The error may come from a step, or from a
// transaction with [Lease.Confirmation] or [Lease.Guarded] in it. Then that transaction was not
// committed.
func (l *Lease) Lost(err error) bool {
	if errors.Is(err, ErrLeaseLost) {
		return true
	}
	ours := func(stream messagestore.StreamName) bool {
		return slices.ContainsFunc(l.granted, func(p part) bool { return p.Place.Stream == stream })
	}
	if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
		return ours(conflict.Stream)
	}
	used, ok := errors.AsType[*messagestore.IDConflictError](err) // it is confirmed
	return ok && ours(used.Stream)
}

// In returns the lease for use in a transaction that you began elsewhere. Store is a store over
// that transaction. The lease's steps are written in it at once, and take effect when it commits.
// They hold the category's lock until then, so no other lease of the category can change meanwhile:
// commit soon, or use [Lease.Confirmation], which takes the lock only in the round trip of the
// commit.
//
// In checks whether the store has the lease. The error matches [ErrLeaseLost] if it has another
// lease, and [messagestore.ErrNotFound] if it has no lease. It is [messagestore.ErrNotSupported] for
// the lease of a [Service].
func (l *Lease) In(ctx context.Context, store Store) (*Lease, error) {
	if err := ended(ctx); err != nil {
		return nil, fmt.Errorf("lease in a transaction: %w", err)
	}
	if err := l.m.overErr("the lease"); err != nil {
		return nil, fmt.Errorf("lease in a transaction: %w", err)
	}
	if isNil(store) {
		return nil, fmt.Errorf("lease in a transaction: %w", messagestore.NewInvalidError("store", nil, "must not be nil"))
	}
	in := &Lease{m: l.m, store: store, cause: l.cause, granted: l.granted, ends: l.ends, parts: slices.Clone(l.snapshot())}
	l.mu.Lock()
	in.assured = l.assured
	l.mu.Unlock()
	for i := range in.parts {
		p := &in.parts[i]
		m, err := store.Last(ctx, p.Place.Stream)
		if err != nil {
			return nil, fmt.Errorf("lease in a transaction: %w", err)
		}
		s, err := intentlog.Read(m)
		if err != nil {
			return nil, fmt.Errorf("lease in a transaction: %w", err)
		}
		if lost := l.compare(p, s); lost != nil {
			return nil, fmt.Errorf("lease in a transaction: %w", lost)
		}
		p.State = *s
	}
	return in, nil
}

// snapshot returns the current parts.
func (l *Lease) snapshot() []part {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts
}

// moved stores another state of a part. The caller has locked the lease.
func (l *Lease) moved(i int, s *intentlog.State) {
	l.parts = slices.Clone(l.parts)
	l.parts[i].State = *s
}

// compare returns an error if s, which was found instead of p, is not p's own lease any more.
func (l *Lease) compare(p *part, s *intentlog.State) *LeaseLostError {
	if s.Deleted || s.Token != p.Token || s.Session != p.Session || s.Done() || s.Released {
		return l.lost(s, "")
	}
	return nil
}

// step appends one message to each key's stream, at the lease's known version, and the writes. If
// the same lease is found at a later version, because a waiter came or an answer was lost, step
// tries again at that version.
func (l *Lease) step(ctx context.Context, body func(p *part) messagestore.Body, writes []messagestore.StreamWrite) error {
	if err := ended(ctx); err != nil {
		return err
	}
	if l.m.over != nil {
		p := l.snapshot()[0]
		return l.stepOver(ctx, p, body(&p), writes)
	}
	for {
		parts := l.snapshot()
		all := make([]messagestore.StreamWrite, 0, len(parts)+len(writes))
		bodies := make([]messagestore.Body, len(parts))
		for i := range parts {
			p := &parts[i]
			bodies[i] = body(p)
			all = append(all, messagestore.To(p.Place.Stream, p.Place.Position, l.envelope(p, bodies[i])))
		}
		all = append(all, writes...)
		sent := time.Now()
		written, met, err := write(ctx, l.store, all)
		switch {
		case err != nil && l.isConfirmation(bodies[0], err):
			return nil
		case err != nil:
			return l.failed(err)
		case met == nil:
			l.took(parts, bodies, written, sent)
			return nil
		}
		if again, err := l.meet(parts, bodies, all, met.Last); err != nil || !again {
			return err
		}
	}
}

// envelope returns a step's message, and records it if it ends the lease.
func (l *Lease) envelope(p *part, body messagestore.Body) messagestore.Envelope {
	m := messagestore.Envelope{Body: body, Metadata: p.Metadata}
	switch b := body.(type) {
	case intentlog.Confirmed:
		m.ID = l.ends.confirmation(p, b)
	case intentlog.Released:
		l.ends.release(p.Place.Stream, p.Place.Position+1)
	}
	return m
}

// isConfirmation reports whether a step failed because the same lease was confirmed with the same
// result before: its message is there, and the other writes are different.
func (l *Lease) isConfirmation(body messagestore.Body, err error) bool {
	conflict, ok := errors.AsType[*messagestore.IDConflictError](err)
	c, confirms := body.(intentlog.Confirmed)
	return ok && confirms && conflict.Stream == l.Stream() && conflict.ID == l.granted[0].confirmationID(l.ends.salt, c)
}

// failed returns the error of a step that the store refused. In a transaction above READ COMMITTED
// the successor is not visible, so there is only the conflict.
func (l *Lease) failed(err error) error {
	if !errors.Is(err, ErrLeaseLost) && l.Lost(err) {
		return errors.Join(l.ended(l.lost(nil, "another message was written after it"), false), err)
	}
	return err
}

// took stores the state of the lease after a step. A step that ended the lease does not change its
// version, so that the store refuses further steps.
func (l *Lease) took(parts []part, bodies []messagestore.Body, written []messagestore.Written, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range parts {
		next := intentlog.Granted(bodies[i], written[i], parts[i].Metadata)
		s := &next
		if i == 0 {
			l.log(s)
		}
		switch {
		case s.Type == intentlog.TypeExtended:
			if s.Place.Position > l.parts[i].Place.Position {
				l.moved(i, s)
			}
		case i == 0:
			l.over, l.byItself = l.lost(s, ""), true
		}
	}
	if bodies[0].MessageType() == intentlog.TypeExtended {
		l.counted(sent)
	}
}

func (l *Lease) log(s *intentlog.State) {
	l.m.config.Logger.Debug().Str("step", s.Type).Str("stream", string(s.Place.Stream)).Str("session", s.Session).
		Int64("token", s.Token).Int64("version", int64(s.Place.Position)).Msg("intent")
}

// meet decides about a step that found other versions: the step is tried again, it was done before,
// or the lease is lost.
func (l *Lease) meet(parts []part, bodies []messagestore.Body, writes []messagestore.StreamWrite, last []*messagestore.Message) (again bool, err error) {
	before, own := 0, 0 // parts whose present step was written before; and parts that the lease itself has ended
	var lost *LeaseLostError
	for i := range parts {
		p := &parts[i]
		if last[i] == nil {
			return false, l.ended(l.lost(nil, "the store has no such intent"), false)
		}
		s, err := intentlog.Read(last[i])
		if err != nil {
			return false, err
		}
		if l.isStep(p, s, bodies[i]) {
			before++
		}
		if l.ends.have(s) {
			own++
		}
		if ended := l.compare(p, s); ended != nil {
			lost = cmp.Or(lost, ended)
			continue
		}
		if s.Place.Position < p.Place.Position {
			return false, l.ended(l.lost(nil, "the store lost messages that it had"), false)
		}
		if s.Place.Position > p.Place.Position {
			again = true
			l.mu.Lock()
			if s.Place.Position > l.parts[i].Place.Position {
				l.moved(i, s)
			}
			l.mu.Unlock()
		}
	}
	switch {
	case before == len(parts):
		_ = l.ended(lost, own == len(parts))
		return false, nil
	case lost != nil: // also if the session has ended a part of the keys by another lease
		return false, l.ended(lost, own == len(parts))
	case again:
		return true, nil
	}
	return false, conflictOf(writes[len(parts):], last[len(parts):])
}

// isStep reports whether s is the state after the step: the step's answer was lost, the step is
// repeated, or another lease of the session has done the same step. A release by another lease
// counts as one by this lease; a confirmation by another lease belongs to other work, and does not
// count as this lease's own step.
func (l *Lease) isStep(p *part, s *intentlog.State, body messagestore.Body) bool {
	if s.Token != p.Token || s.Session != p.Session {
		return false
	}
	switch b := body.(type) {
	case intentlog.Confirmed:
		return s.Type == intentlog.TypeConfirmed && s.NotKept == b.NotKept && (len(s.Result) == 0 && len(b.Result) == 0 || exactjson.Equal(s.Result, b.Result))
	case intentlog.Released:
		if s.Released && s.By == "" {
			l.ends.release(s.Place.Stream, s.Of)
			return true
		}
	}
	return false
}

// conflictOf returns the conflict of the caller's own writes: one of their streams was not at its
// expected version.
func conflictOf(writes []messagestore.StreamWrite, last []*messagestore.Message) error {
	for i, w := range writes {
		actual := messagestore.NoStream
		if last[i] != nil {
			actual = last[i].Position
		}
		exists := last[i] != nil && !last[i].IsTombstone()
		if w.Expected != actual && w.Expected != messagestore.AnyVersion && (w.Expected != messagestore.StreamExists || !exists) {
			return &messagestore.VersionConflictError{Stream: w.Stream, Expected: w.Expected, Actual: actual}
		}
	}
	return fmt.Errorf("%w: the store names no stream", messagestore.ErrVersionConflict)
}

// ended records why the lease ended, and returns that.
func (l *Lease) ended(lost *LeaseLostError, byItself bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil {
		l.over = lost
	}
	if byItself {
		l.byItself = true
	} else {
		l.sayLost(lost)
	}
	return lost
}

// sayLost logs that the lease is lost, once. The lock is held.
func (l *Lease) sayLost(lost error) {
	if l.said {
		return
	}
	l.said = true
	l.m.config.Logger.Warn().Str("error", text.Log(lost)).Str("stream", string(l.Stream())).Msg("lease lost")
}

// Keep extends the lease repeatedly until stop is called, and returns a context for the work. The
// context ends when ctx does or when stop is called. It also ends when the lease is lost, or a
// tenth of the TTL before anybody may take the intent: then its cause ([context.Cause]) matches
// [ErrLeaseLost]. That time is counted by this process's clock, from before each extension was
// sent. An extension that fails is tried again until then.
//
// Stop waits for an extension that is under way, and may be called twice. It does not end the
// lease.
func (l *Lease) Keep(ctx context.Context) (work context.Context, stop func()) {
	work, cancel := context.WithCancelCause(ctx)
	beating, stopBeating := context.WithCancel(work)
	var running sync.WaitGroup
	running.Go(func() { l.beat(beating, cancel) })
	running.Go(func() { l.expire(beating, cancel) })
	return work, func() {
		stopBeating()
		running.Wait()
		cancel(nil)
	}
}

// expire ends the work when the holder's time is over.
func (l *Lease) expire(ctx context.Context, end context.CancelCauseFunc) {
	for {
		l.mu.Lock()
		if l.extended == nil {
			l.extended = make(chan struct{})
		}
		extended, left := l.extended, time.Until(l.assured)
		l.mu.Unlock()
		if left <= 0 {
			lost := l.Err()
			if lost == nil {
				continue
			}
			if !l.endedByItself() {
				l.mu.Lock()
				l.sayLost(lost)
				l.mu.Unlock()
				end(lost)
			}
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-extended:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// beat extends the lease until ctx is done or the lease is lost.
func (l *Lease) beat(ctx context.Context, end context.CancelCauseFunc) {
	every := l.m.heartbeat(l.ttl())
	key := outage.Key{By: string(l.Stream()), To: "extend a lease"}
	fails := l.m.outage
	defer fails.Ends(key.By)
	for failures := 0; ; {
		pause := l.m.together(every)
		if failures > 0 {
			pause = outage.Pause(failures, every/16, every/4)
		}
		if outage.Wait(ctx, pause) != nil {
			return
		}
		bounded, cancel := context.WithTimeout(calling.Upkeep(ctx), every/2)
		err := calling.Call(func() error { return l.Extend(bounded) })
		cancel()
		switch {
		case err == nil:
			failures = 0
			fails.Works(key)
		case errors.Is(err, ErrLeaseLost):
			if !l.endedByItself() {
				end(err)
			}
			return
		case ctx.Err() != nil, errors.Is(err, messagestore.ErrClosed): // and stays so: the work ends with the lease
			return
		default:
			failures++
			fails.Failed(key, l.m.config.Logger, "stream", key.By, "to", key.To, "failures", failures, "error", text.Log(err))
		}
	}
}

// endedByItself reports whether one of this lease's own steps released or confirmed it.
func (l *Lease) endedByItself() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byItself
}

// NotKept is a result of work that is done, but cannot be stored, and says why: at most 500 bytes,
// for operators. The intent is done without a result, and [Intent.NotKept] has the reason.
type NotKept string

// encodeResult returns result as JSON, nil for a nil result, or why it is not kept.
func encodeResult(result any) (raw json.RawMessage, notKept string, err error) {
	if result == nil {
		return nil, "", nil
	}
	if reason, is := result.(NotKept); is {
		return nil, reasonText(string(reason)), nil
	}
	raw, err = exactjson.Marshal(result)
	if err != nil {
		return nil, "", messagestore.NewInvalidError("result", nil, fmt.Sprintf("must encode as JSON: %v", err))
	}
	if len(raw) > maxResult {
		return nil, "", messagestore.NewInvalidError("result", raw, fmt.Sprintf("must be at most %d bytes", maxResult))
	}
	if string(raw) == "null" {
		return nil, "", nil
	}
	return raw, "", nil
}
