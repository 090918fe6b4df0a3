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

	"github.com/dibs-go/dibs/internal/callctx"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Lease is the right to carry out an intent, for a time. It is safe for concurrent use.
//
// Whether a step on it succeeds, only the store decides, by the version of the intent's stream.
// The lease's own clock says when its holder should stop.
type Lease struct {
	m     *Manager
	store Store                 // that the steps are written through
	cause *messagestore.Message // of a resumed lease; else its grant

	granted []part // as they were granted, for the fields that never change
	ends    *ends

	mu       sync.Mutex
	parts    []part          // never changed in place, so that a step may keep them
	assured  time.Time       // until when the lease is the holder's, by its own clock
	over     *LeaseLostError // why it ended, once that is known
	byItself bool            // it was its own step that ended it
	said     bool            // that it is lost
	extended chan struct{}   // closed when assured has moved, if anything waits for that
}

// A part is the lease on one key.
type part struct{ intentlog.State }

// newLease returns a lease on parts, granted by a step that was sent at the given time.
func (m *Manager) newLease(parts []part, sent time.Time) *Lease {
	l := &Lease{m: m, store: m.store, granted: parts, ends: newEnds(), parts: parts}
	l.counted(sent)
	return l
}

// message returns the message that granted the lease, or that it was met by.
func (p *part) message() *messagestore.Message {
	return &messagestore.Message{
		ID: p.Place.ID, Stream: p.Place.Stream, Position: p.Place.Position, GlobalPosition: p.Place.GlobalPosition, Time: p.Place.Time,
		Type: p.Type, Metadata: p.Metadata,
	}
}

// counted sets how long the lease is the holder's after a step that was sent at the given time.
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

// Session returns the lease's holder.
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

// Attempt counts the leases on this key, from 1. From the second on an earlier holder may have
// done a part of the work, so look before you act. Of several keys it is the highest.
func (l *Lease) Attempt() int {
	attempt := 0
	for _, p := range l.granted {
		attempt = max(attempt, p.Attempt)
	}
	return attempt
}

// Left returns how long the holder may still work, by this process's clock: until a tenth of the
// TTL before anybody else may take the intent, counted from before the request for it was sent.
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

// Cause returns the message that granted the lease, without its data, for
// [messagestore.Follow]: events of the work then tell to which lease they belong.
func (l *Lease) Cause() *messagestore.Message {
	if l.cause == nil {
		return l.granted[0].message()
	}
	cause := *l.cause
	return &cause
}

// Err returns nil as long as the holder may work, and after that an error that matches
// [ErrLeaseLost]. It sends nothing. Ask it before each effect outside the store: a process that
// was suspended finds out by it.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over != nil:
		return l.over
	case time.Until(l.assured) <= 0:
		return l.lost(nil, "its time is over, and no extension has reached the store")
	}
	return nil
}

// lost returns the error for a lease that another state came after.
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

// Extend has the lease last its TTL from now on.
//
// If the lease is lost, the error matches [ErrLeaseLost], as of all steps, and is a
// [*LeaseLostError], which names the successor. After any other error it may or may not be extended.
func (l *Lease) Extend(ctx context.Context) error {
	err := l.step(ctx, func(p *part) messagestore.Body { return intentlog.Extended{Grant: p.Grant, Token: p.Token} }, nil)
	if err != nil {
		return fmt.Errorf("extend lease: %w", err)
	}
	return nil
}

// Release ends the lease without a result: the intent is free, at once for the first in the line.
// The reason is for operators, at most 500 bytes, and may be "". To release it again is no error,
// as long as no session has taken the intent since.
//
// A commit of the work that is still under way fails after it.
func (l *Lease) Release(ctx context.Context, reason string) error {
	err := validateReason(reason)
	if err == nil {
		err = l.step(ctx, func(p *part) messagestore.Body {
			return intentlog.Released{Grant: p.Grant, Token: p.Token, Reason: reason}
		}, nil)
	}
	if err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

// Bounds of the reason of a release, and of a result.
const (
	maxReason = 500
	maxResult = 512 << 10
)

func validateReason(reason string) error {
	rule := intentlog.TextRule(reason)
	if len(reason) > maxReason {
		rule = fmt.Sprintf("at most %d bytes", maxReason)
	}
	if rule != "" {
		return messagestore.NewInvalidError("reason", reason, rule)
	}
	return nil
}

// Confirm ends the lease with a result, for ever: every later request for the intent is answered
// with it. The result is encoded with encoding/json, and has at most 512 KiB; nil is none. The
// writes are appended in the same step, or nothing is. To confirm again with the same result is no
// error, and writes nothing; also if another Lease of the same session has confirmed it.
//
// It is right to confirm a lease whose time is over: if no session has taken the intent since,
// Confirm succeeds. A conflict of one of the writes matches [messagestore.ErrVersionConflict], and the
// lease lives on, as it does where the result is refused.
func (l *Lease) Confirm(ctx context.Context, result any, writes ...messagestore.StreamWrite) error {
	raw, err := encodeResult(result)
	if err == nil {
		err = l.confirm(ctx, raw, "", writes)
	}
	if err != nil {
		return fmt.Errorf("confirm lease: %w", err)
	}
	return nil
}

func (l *Lease) confirm(ctx context.Context, result json.RawMessage, notKept string, writes []messagestore.StreamWrite) error {
	return l.step(ctx, func(p *part) messagestore.Body { return p.confirmed(result, notKept) }, writes)
}

func (p *part) confirmed(result json.RawMessage, notKept string) intentlog.Confirmed {
	c := intentlog.Confirmed{Grant: p.Grant, Token: p.Token, Result: result, NotKept: notKept}
	c.Line = nil
	return c
}

// ends are the messages by which a lease has ended itself, or may have: its own steps ask for
// them, and so do the steps of its copies in transactions. Another lease of the same session and
// token has others. They are safe for concurrent use.
type ends struct {
	salt string // tells the confirmations of this lease from another's

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
	return &ends{salt: string(salt[:]), confirmed: map[uuid.UUID]bool{}, released: map[place]bool{}}
}

// confirmation returns the id of the message that confirms a part, which is about to be
// asked for: the same each time, so that a transaction that was committed is recognised.
func (e *ends) confirmation(p *part, c intentlog.Confirmed) uuid.UUID {
	id := p.confirmationID(e.salt, c)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.confirmed[id] = true
	return id
}

// mayBeConfirmed reports whether a confirmation was asked for, by a step or for a transaction.
func (e *ends) mayBeConfirmed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.confirmed) > 0
}

// release keeps the place of the message that releases a part.
func (e *ends) release(stream messagestore.StreamName, position messagestore.Version) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.released[place{stream, position}] = true
}

// have reports whether s is what the lease itself has left.
func (e *ends) have(s *intentlog.State) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.Type == intentlog.TypeConfirmed && e.confirmed[s.Place.ID] || s.Released && s.By == "" && e.released[place{s.Place.Stream, s.Of}]
}

// confirmationID returns the id of the message by which the lease with this salt confirms a part.
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

// past are the messages that do not change a lease.
var past = []string{intentlog.TypeExtended, intentlog.TypeWaiting}

// Confirmation returns Confirm as writes, one for each key and then the given ones, for the
// caller to append in a transaction of its own: see [messagestore.TxStore.Transact]. They succeed
// past extensions and waiters that came since. Whether a transaction failed because the lease is
// lost, [Lease.Lost] tells.
//
// A result that does not encode makes every use of the writes fail, with an error that matches
// [messagestore.ErrInvalid].
func (l *Lease) Confirmation(result any, writes ...messagestore.StreamWrite) []messagestore.StreamWrite {
	raw, err := encodeResult(result)
	parts := l.snapshot()
	all := make([]messagestore.StreamWrite, 0, len(parts)+len(writes))
	for _, p := range parts {
		var body messagestore.Body = refused{err}
		if err == nil {
			body = p.confirmed(raw, "")
		}
		all = append(all, messagestore.StreamWrite{
			Stream: p.Place.Stream, Expected: p.Place.Position, Past: past, After: p.Place.ID, Final: true,
			Bodies: []messagestore.Body{messagestore.Envelope{ID: l.ends.confirmation(&p, intentlog.Confirmed{Result: raw}), Body: body, Metadata: p.Metadata}},
		})
	}
	return append(all, writes...)
}

// refused is the body of a confirmation whose result does not encode.
type refused struct{ err error }

// MessageType returns the type of the message that it stands for.
func (refused) MessageType() string { return intentlog.TypeConfirmed }

// MarshalJSON returns the reason.
func (r refused) MarshalJSON() ([]byte, error) { return nil, r.err }

// Guarded returns writes without messages, one for each key, that fail unless the lease is still
// the holder's: for a transaction that does a part of the work, and may have them alone.
func (l *Lease) Guarded() []messagestore.StreamWrite {
	parts := l.snapshot()
	checks := make([]messagestore.StreamWrite, len(parts))
	for i, p := range parts {
		checks[i] = messagestore.StreamWrite{Stream: p.Place.Stream, Expected: p.Place.Position, Past: past, After: p.Place.ID, Final: true}
	}
	return checks
}

// Lost reports whether err says that the lease is lost. It reads a step's error, and the error of
// a transaction with [Lease.Confirmation] or [Lease.Guarded] in it. Nothing of that transaction
// was committed.
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

// In returns the lease for a transaction that was begun elsewhere, over which store was opened:
// its steps are written at once, in that transaction, and take effect when it is committed. They
// hold the category's lock until then, so no other lease of the category moves meanwhile: commit
// soon, or use [Lease.Confirmation], which takes the lock in the round trip of the commit alone.
//
// In looks whether the store has the lease. If it has another or none, the error matches
// [ErrLeaseLost] or [messagestore.ErrNotFound].
func (l *Lease) In(ctx context.Context, store Store) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("lease in a transaction: %w", err)
	}
	if isNil(store) {
		return nil, fmt.Errorf("lease in a transaction: %w", messagestore.NewInvalidError("store", nil, "it is nil"))
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

// snapshot returns the parts as they are now.
func (l *Lease) snapshot() []part {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts
}

// moved keeps another state of a part. The caller has locked the lease.
func (l *Lease) moved(i int, s *intentlog.State) {
	l.parts = slices.Clone(l.parts)
	l.parts[i].State = *s
}

// compare returns an error if s, which was met in place of p, is not p's own lease any more.
func (l *Lease) compare(p *part, s *intentlog.State) *LeaseLostError {
	if s.Deleted || s.Token != p.Token || s.Session != p.Session || s.Done() || s.Released {
		return l.lost(s, "")
	}
	return nil
}

// step appends one message to each key's stream, at the version at which the lease is known, and
// the writes. A lease that meets itself at a later version, since a waiter came or an answer was
// lost, goes again there.
func (l *Lease) step(ctx context.Context, body func(p *part) messagestore.Body, writes []messagestore.StreamWrite) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		parts := l.snapshot()
		all := make([]messagestore.StreamWrite, 0, len(parts)+len(writes))
		bodies := make([]messagestore.Body, len(parts))
		for i := range parts {
			p := &parts[i]
			bodies[i] = body(p)
			m := messagestore.Envelope{Body: bodies[i], Metadata: p.Metadata}
			switch b := bodies[i].(type) {
			case intentlog.Confirmed:
				m.ID = l.ends.confirmation(p, b)
			case intentlog.Released:
				l.ends.release(p.Place.Stream, p.Place.Position+1)
			}
			all = append(all, messagestore.To(p.Place.Stream, p.Place.Position, m))
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

// isConfirmation reports whether a step failed since the same lease was confirmed with the same
// result before: its message is there, and the writes beside it are not the same again.
func (l *Lease) isConfirmation(body messagestore.Body, err error) bool {
	conflict, ok := errors.AsType[*messagestore.IDConflictError](err)
	c, confirms := body.(intentlog.Confirmed)
	return ok && confirms && conflict.Stream == l.Stream() && conflict.ID == l.granted[0].confirmationID(l.ends.salt, c)
}

// failed returns the error of a step that the store refused. In a transaction above READ
// COMMITTED the successor cannot be seen, and there is only the conflict.
func (l *Lease) failed(err error) error {
	if !errors.Is(err, ErrLeaseLost) && l.Lost(err) {
		return errors.Join(l.ended(l.lost(nil, "another message came after it"), false), err)
	}
	return err
}

// took keeps the lease as a step has left it. A step that ended the lease leaves its version as it
// was, so that the store refuses further steps.
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

// meet decides on a step that met other versions: it goes again, it was done before, or the lease
// is lost.
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

// isStep reports whether s is the state after the step: its answer was lost, it is repeated, or another
// lease of the session has taken the same. A release by that one is as good as one by this; a
// confirmation is of other work, and ends this lease by no step of its own.
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
// version.
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

// ended keeps the reason for which the lease ended, and returns it.
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

// Keep extends the lease again and again until stop is called, and returns a context for the
// work: it ends when ctx does, when stop is called, and with an error that matches [ErrLeaseLost]
// as its cause ([context.Cause]) when the lease is lost, or a tenth of the TTL before anybody may
// take the intent. That time is counted by this process's clock, from before each extension was
// sent. An extension that fails is tried again until then.
//
// Stop waits for an extension that is under way, and may be called twice. It leaves the lease as
// it is.
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
		pause := every
		if failures > 0 {
			pause = outage.Pause(failures, every/16, every/4)
		}
		if outage.Wait(ctx, pause) != nil {
			return
		}
		bounded, cancel := context.WithTimeout(callctx.WithUpkeep(ctx), every/2)
		err := failure.Call(func() error { return l.Extend(bounded) })
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

// endedByItself reports whether this very lease was released or confirmed by a step of its own.
func (l *Lease) endedByItself() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byItself
}

// encodeResult returns result as JSON, nil for none.
func encodeResult(result any) (json.RawMessage, error) {
	if result == nil {
		return nil, nil
	}
	raw, err := exactjson.Marshal(result)
	if err != nil {
		return nil, messagestore.NewInvalidError("result", nil, fmt.Sprintf("it does not encode: %v", err))
	}
	if len(raw) > maxResult {
		return nil, messagestore.NewInvalidError("result", raw, fmt.Sprintf("at most %d bytes", maxResult))
	}
	if string(raw) == "null" {
		return nil, nil
	}
	return raw, nil
}
