package intent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
)

// A Request asks for a lease.
type Request struct {
	// Scope is the part of the system in which the key has a meaning, such as an account, a tenant,
	// or a client of an API. All intents of a scope have the same cardinal id. Two scopes never
	// share an intent.
	//
	// Defaults to none.
	Scope string

	// Key names the intent: the data that identifies the request. It is any text with a visible
	// character. Keys are equal if their bytes are.
	Key string

	// With are further keys of the same scope. They are reserved together or not at all, and each
	// has its own token. There may be at most 99, without duplicates, and none may contain a plus
	// sign, because that would look like a scope.
	//
	// Defaults to none.
	With []string

	// Session is the holder: at most 128 bytes without control characters. If the session already
	// holds the lease, the answer is that lease. So if you lose an answer, ask again with the same
	// session.
	//
	// Two calls with one session share its lease and its token, and nothing keeps their work apart:
	// ask again only after the first call has returned. If both do work, the first end counts. The
	// other call then loses its lease: its context ends with the next heartbeat, and its result is
	// not confirmed.
	//
	// Defaults to a new session.
	Session string

	// Content is the request itself. It is encoded with encoding/json, and only a digest of it is
	// stored. A request with other content under the same key is [KeyReused]. Content that encodes
	// as null, {}, [] or "", or has an object with a duplicate key, is refused. If a lease does not
	// belong to a request, such as a nightly run's, use its key as content.
	Content any

	// TTL is how long this lease lasts without an extension: see [Config]. If the session already
	// holds the lease, a request does not change its TTL.
	//
	// Defaults to the manager's.
	TTL time.Duration

	// Wait is how long to wait at most for a held intent. Meanwhile the session stands in a line,
	// which is stored in the intent, or behind the Manager's others that do, and takes its turn:
	// see the package's introduction. If it finds the line full, with 100 sessions, it tries again
	// each turn. A request with several keys waits in no line, and holds nothing meanwhile.
	//
	// Defaults to 0: the answer is [Held] at once.
	Wait time.Duration

	// Metadata is added to the messages of the lease, so that the chain of messages continues.
	// [messagestore.Follow] makes it, for example.
	//
	// Defaults to none.
	Metadata messagestore.Metadata
}

// An Outcome is the answer to a request.
type Outcome int

const (
	// Reserved says that you have the lease.
	Reserved Outcome = iota + 1

	// Held says that another session has the lease, or that the turns of the line are not over.
	Held

	// Done says that the intent is confirmed, with a result, for ever.
	Done

	// KeyReused says that the key was first used with other content, and is held or done. One of
	// the two callers is wrong, but the store cannot tell which of them.
	KeyReused
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Free:
		return "free"
	case Reserved:
		return "reserved"
	case Held:
		return "held"
	case Done:
		return "done"
	case KeyReused:
		return "key reused"
	}
	return fmt.Sprintf("outcome %d", int(o))
}

// Free is the [Intent.Status] of an intent that is not held: it was released, or its lease is over.
const Free Outcome = 0

// An Answer is the answer to a [Request].
type Answer struct {
	Outcome Outcome

	// Lease is set with [Reserved].
	Lease *Lease

	// Intent is the current intent: after [Reserved] with your lease, otherwise as the request
	// found it. With several keys it is the first that is not free.
	Intent Intent
}

// Result returns the result with which a was confirmed. It is T's zero value if the intent has no
// result: nil was confirmed, the intent is not done, or its result was deleted. It is also the zero
// value with [KeyReused], because the result in a's Intent belongs to another request.
//
// If the result does not decode into T, or was not kept, the error matches [ErrResult].
func Result[T any](a Answer) (T, error) {
	var result, none T
	switch {
	case a.Outcome == KeyReused:
		return none, nil
	case a.Intent.NotKept != "":
		return none, fmt.Errorf("%s: %w: it was not kept: %s", a.Intent.Stream, ErrResult, a.Intent.NotKept)
	case len(a.Intent.Result) == 0:
		return none, nil
	}
	if err := json.Unmarshal(a.Intent.Result, &result); err != nil {
		return none, fmt.Errorf("%s: %w: it does not decode into %v: %.200w", a.Intent.Stream, ErrResult, reflect.TypeFor[T](), err)
	}
	return result, nil
}

// An Intent is the state of an intent at one moment.
type Intent struct {
	Stream messagestore.StreamName

	// Scope and Key are the hash instead if they were too long for a name. The name of Stream tells
	// a hash from a key with the same text, whose percent sign is written %25 there.
	Scope string
	Key   string

	// Status is [Held], [Done] or [Free].
	Status Outcome

	Session string // the session of the last grant
	Token   int64  // of the last grant
	Attempt int    // how many grants there have been

	Last messagestore.Mark // its last message; from a [Service] without id and time

	Since time.Time     // of the last grant, by the store's clock
	Until time.Time     // of a lease: when it ends, by the store's clock
	Left  time.Duration // of a lease: how long it still lasts; if it is not yours, until the turns of the line are over
	Line  []string      // the sessions that wait

	Result    json.RawMessage // of the confirmation
	NotKept   string          // why the work's result could not be stored, if it had one
	Forgotten bool            // it is done, and an operator deleted the result
	Released  bool            // it is free because it was released, and not because its time is over
	By        string          // the operator, if one released it
	Reason    string          // why it was released
}

// intentOf returns an intent at now, by the store's clock, for a session that is not in the line.
func intentOf(s *intentlog.State, now time.Time, turn time.Duration) Intent {
	i := Intent{
		Stream: s.Place.Stream, Session: s.Session, Token: s.Token, Attempt: s.Attempt, Last: s.Place, Since: time.UnixMicro(s.Token).UTC(),
		Line: slices.Clone(s.Line), Result: s.Result, NotKept: s.NotKept, Forgotten: s.Deleted, Released: s.Released, By: s.By, Reason: s.Reason,
	}
	i.Scope, i.Key = intentlog.ScopeAndKey(s.Place.Stream)
	switch {
	case s.Done():
		i.Status = Done
	case s.Held(now):
		i.Status = Held
	}
	if s.Deleted {
		i.Since = time.Time{}
	}
	if !s.Done() {
		i.Until = s.Until()
		i.Left = max(s.MayTake("", turn).Sub(now), 0)
	}
	return i
}

// ownIntent returns an intent for its holder, after a step of the holder's.
func ownIntent(s *intentlog.State) Intent { return intentOf(s, s.Since, 0) }

// A wanted is a key of a request.
type wanted struct {
	stream messagestore.StreamName
	met    *intentlog.State // nil for an empty stream

	// If a lease shows no sign of life, the process's own clock decides.
	sign  sign
	watch time.Time
}

// A sign of life is the message that last granted, extended or released a lease.
type sign struct {
	token int64
	of    messagestore.Version
}

// An attempt is a request on its way.
type attempt struct {
	m       *Manager
	request Request
	content string
	keys    []wanted
	blocked int  // the index of the held key in keys
	stands  bool // in the line, or may stand there
	unnamed bool // the session is new, so no caller can ask for its lease again
	ttl     time.Duration

	// In a crowd, whose lock they have:
	mayStand chan struct{} // closed when it may stand in the line; nil before it waits
	admitted bool          // mayStand is closed
	stood    bool          // in the line, so that the next one may
}

// Reserve asks for a lease. The answer is [Reserved], [Held], [Done] or [KeyReused], and these are
// not errors.
//
// After an error that matches [messagestore.ErrOutcomeUnknown] the lease may have been granted: to
// find out, ask again with the same [Request.Session]. If Reserve made the session, it releases the
// lease, because nobody could ask for it. After any other error no lease was granted.
//
// While it waits, Reserve returns ctx's error once ctx is done. It always leaves the line before it
// returns, without aborting a call of the store. While the store fails, Reserve tries to leave the
// line, and to release a lease that nobody has, for up to five seconds. If it cannot release such a
// lease, it logs a warning, and the lease lasts its TTL. If the store is closed, the wait ends, and
// Reserve does not try again.
func (m *Manager) Reserve(ctx context.Context, request Request) (Answer, error) {
	a, err := m.attempt(ctx, request)
	if err != nil {
		return Answer{}, fmt.Errorf("reserve intent: %w", err)
	}
	answer, err := a.run(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("reserve %s: %w", a.keys[0].stream, err)
	}
	m.tell(ctx, a.request, answer)
	return answer, nil
}

func (m *Manager) tell(ctx context.Context, request Request, answer Answer) {
	begin := m.config.Logger.Debug
	if answer.Outcome == KeyReused {
		begin = m.config.Logger.Warn
	}
	i := answer.Intent
	begin().Str("outcome", answer.Outcome.String()).Str("stream", string(i.Stream)).Str("session", i.Session).
		Int64("token", i.Token).Int("attempt", i.Attempt).Msg("reserve intent")
	if m.config.OnAnswer != nil {
		m.config.OnAnswer(ctx, request, answer)
	}
}

// attempt validates a request.
func (m *Manager) attempt(ctx context.Context, request Request) (*attempt, error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	a := &attempt{m: m, request: request, ttl: m.config.TTL}
	n := 1 + len(request.With)
	if n > messagestore.MaxWriteStreams {
		return nil, messagestore.NewInvalidError("With", len(request.With), fmt.Sprintf("must be at most %d keys beside the first", messagestore.MaxWriteStreams-1))
	}
	a.keys = make([]wanted, 0, n)
	for i := range n {
		key := request.Key
		if i > 0 {
			key = request.With[i-1]
		}
		stream, err := m.Stream(request.Scope, key)
		switch {
		case err != nil:
			return nil, err
		case i > 0 && strings.Contains(key, "+"):
			return nil, keys.Invalid("With", key, "must not contain a plus sign, which would name another scope")
		case slices.ContainsFunc(a.keys, func(w wanted) bool { return w.stream == stream }):
			return nil, keys.Invalid("With", key, "must not be in the request twice")
		}
		a.keys = append(a.keys, wanted{stream: stream})
	}
	if request.Session == "" {
		a.request.Session, a.unnamed = m.newSession(), true
	} else if rule := intentlog.SessionRule(request.Session); rule != "" {
		return nil, messagestore.NewInvalidError("session", request.Session, rule)
	}
	if request.TTL != 0 {
		if err := bounded("TTL", request.TTL, intentlog.MinTTL, intentlog.MaxTTL); err != nil {
			return nil, err
		}
		if m.config.Heartbeat != 0 {
			if err := validateHeartbeat(m.config.Heartbeat, request.TTL); err != nil {
				return nil, err
			}
		}
		a.ttl = request.TTL.Truncate(time.Millisecond)
	}
	if request.Wait < 0 {
		return nil, messagestore.NewInvalidError("Wait", request.Wait, "must be at least 0")
	}
	var err error
	a.content, err = digest(request.Content)
	return a, err
}

// digest returns the form in which content is stored and compared.
func digest(content any) (string, error) {
	c, err := keys.Canonical(content)
	rule := ""
	switch {
	case err != nil:
		rule = fmt.Sprintf("must encode as JSON: %v", err)
	case c.Empty():
		rule = "must not be empty: any two requests with one key would be the same"
	case c.Ambiguous:
		rule = "must not have a key twice in an object, or half of a surrogate pair"
	}
	if rule != "" {
		return "", messagestore.NewInvalidError("content", nil, rule)
	}
	sum := sha256.Sum256(c.Canonical)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// run tries until the request has its answer.
func (a *attempt) run(ctx context.Context) (answer Answer, err error) {
	if a.m.over != nil {
		return a.runOver(ctx)
	}
	if err := a.m.declare(ctx); err != nil {
		return Answer{}, err
	}
	calls := ctx
	var w *waiting.Waiter
	if a.request.Wait > 0 {
		var cancel context.CancelFunc
		calls, cancel = outlasting(ctx)
		defer cancel()
		w = a.m.wakeups.NewWaiter()
		defer w.Leave()
		defer a.m.crowds.leave(a)
	}
	defer func() { // also if the store or the logger panics
		finish := time.Now().Add(finishTimeout)
		if a.unnamed && errors.Is(err, messagestore.ErrOutcomeUnknown) {
			a.giveBack(ctx, finish)
		}
		if w == nil {
			return
		}
		if answer.Outcome != Reserved {
			a.leaveLine(calls, finish)
		}
		if err != nil && calls.Err() != nil && !errors.Is(err, ctx.Err()) { // they have ended after the caller
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}()
	end := time.Now().Add(a.request.Wait)
	var known time.Time
	for over := false; ; {
		answer, now, err := a.try(calls, known)
		if err == nil {
			a.m.outage.Works(outage.Key{By: string(a.m.category), To: "reserve"}) // as no lease may be left to say
			if answer.Outcome == Held && a.keys[a.blocked].met.Since.After(now.Add(clockTolerance)) {
				if known, err = a.setBack(calls, now); err != nil {
					return Answer{}, err
				}
				continue
			}
		}
		if err != nil || answer.Outcome != Held || w == nil || over {
			return answer, err
		}
		if known, over, err = a.wait(ctx, calls, w, now, end); err == nil {
			err = ctx.Err() // a caller that has gone takes nothing
		}
		if err != nil {
			return Answer{}, err
		}
	}
}

// giveBack releases the lease of a request with a lost answer. It asks for the lease again, so that
// the lost write is refused if it is still on its way.
func (a *attempt) giveBack(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	a.request.Wait = 0
	var l *Lease
	err := steps.Do(ctx, func() error {
		if l == nil {
			answer, _, err := a.try(ctx, time.Time{})
			if err != nil || answer.Outcome != Reserved {
				return err
			}
			l = answer.Lease
		}
		return l.Release(ctx, "the answer to its request was lost")
	})
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		a.m.config.Logger.Warn().Str("error", text.Log(err)).Str("stream", string(a.keys[0].stream)).Str("session", a.request.Session).
			Dur("ttl", a.ttl).Msg("release lease: it may be held until its TTL is over")
	}
}

// try makes one attempt: it writes as if the keys were free. If they are not, but may be taken, it
// writes again at the versions that it found. If their states are already known, as of a time by
// the store's clock, it begins with these. With [Held] it also returns the store's time.
func (a *attempt) try(ctx context.Context, known time.Time) (Answer, time.Time, error) {
	if a.m.over != nil {
		answer, err := a.askOver(ctx)
		return answer, time.Time{}, err
	}
	if known.IsZero() {
		for i := range a.keys {
			a.keys[i].met = nil
		}
	} else if answer, final := a.answer(known); final {
		return answer, known, nil
	}
	for {
		writes := make([]messagestore.StreamWrite, len(a.keys))
		bodies := make([]messagestore.Body, len(a.keys))
		metadata := make([]messagestore.Metadata, len(a.keys))
		for i, k := range a.keys {
			expected := messagestore.NoStream
			if k.met != nil {
				expected = k.met.Place.Position
			}
			bodies[i], metadata[i] = a.step(k.met)
			writes[i] = messagestore.To(k.stream, expected, messagestore.Envelope{Body: bodies[i], Metadata: metadata[i]})
		}
		sent := time.Now()
		written, met, err := write(ctx, a.m.store, writes)
		switch {
		case err != nil:
			return Answer{}, time.Time{}, err
		case met == nil:
			return a.reserved(sent, bodies, metadata, written), time.Time{}, nil
		}
		if err := a.meet(met.Last); err != nil {
			return Answer{}, time.Time{}, err
		}
		if answer, final := a.answer(met.Time); final {
			return answer, met.Time, nil
		}
	}
}

// meet stores the states that a write found.
func (a *attempt) meet(last []*messagestore.Message) error {
	for i := range a.keys {
		k := &a.keys[i]
		k.met = nil
		if last[i] == nil {
			continue
		}
		s, err := intentlog.Read(last[i])
		if err != nil {
			return err
		}
		k.meet(s)
	}
	return nil
}

func (k *wanted) meet(s *intentlog.State) {
	k.met = s
	if now := (sign{s.Token, s.Of}); k.watch.IsZero() || now != k.sign {
		k.sign, k.watch = now, time.Now()
	}
}

// step returns the message that a appends to an intent that it found. It takes every lease that is
// not its own.
func (a *attempt) step(met *intentlog.State) (messagestore.Body, messagestore.Metadata) {
	grant := intentlog.Grant{Session: a.request.Session, Attempt: 1, TTL: a.ttl.Milliseconds(), Content: a.content}
	switch {
	case met == nil:
		return intentlog.Reserved{Grant: grant}, a.request.Metadata
	case a.owns(met):
		return intentlog.Extended{Grant: met.Grant, Token: met.Token}, met.Metadata
	}
	grant.Attempt = met.Attempt + 1
	if i := slices.Index(met.Line, a.request.Session); i >= 0 {
		grant.Line = met.Line[i+1:]
	}
	return intentlog.Reserved{Grant: grant, After: met.Token}, a.request.Metadata
}

// owns reports whether the lease met belongs to the session. Only a lease that is not over is
// extended: see answer.
func (a *attempt) owns(met *intentlog.State) bool {
	return met.Session == a.request.Session && !met.Released && !met.Lapsed
}

// answer returns the answer for the states that were found at now, by the store's clock, or false
// if every key may be taken.
func (a *attempt) answer(now time.Time) (Answer, bool) {
	for i := range a.keys {
		k := &a.keys[i]
		s := k.met
		if s == nil {
			continue
		}
		s.Lapsed = !s.Held(now)
		var outcome Outcome
		switch {
		case s.Deleted:
			outcome = Done
		case s.Content != a.content && !s.Released:
			outcome = KeyReused
		case s.Done():
			outcome = Done
		case a.owns(s), s.MayBeTaken(a.request.Session, now, a.m.config.Turn), k.watchedOut(a):
			continue
		default:
			outcome = Held
		}
		a.blocked = i
		return Answer{Outcome: outcome, Intent: intentOf(s, now, a.m.config.Turn)}, true
	}
	return Answer{}, false
}

// watchedOut reports whether a waiter has seen no sign of life for so long, by its own clock, that
// the lease is over even if the store's clock disagrees. A lease that is extended shows a sign of
// life three times in its TTL.
func (k *wanted) watchedOut(a *attempt) bool {
	return a.request.Wait > 0 && !time.Now().Before(k.watch.Add(k.silence(a)))
}

func (k *wanted) silence(a *attempt) time.Duration {
	turns := time.Duration(1+k.met.Before(a.request.Session)) * a.m.config.Turn
	if k.met.Released {
		return turns
	}
	return k.met.Lasts() + turns
}

// reserved returns the answer to a granted request.
func (a *attempt) reserved(sent time.Time, bodies []messagestore.Body, metadata []messagestore.Metadata, written []messagestore.Written) Answer {
	parts := make([]part, len(a.keys))
	for i := range a.keys {
		parts[i].State = intentlog.Granted(bodies[i], written[i], metadata[i])
	}
	l := a.m.newLease(parts, sent)
	return Answer{Outcome: Reserved, Lease: l, Intent: ownIntent(&parts[0].State)}
}
