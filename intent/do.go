package intent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// finishTimeout bounds how long Do tries to confirm or release after its context is done, and how
// long Reserve tries to give back a lease that it could not return to its caller.
const finishTimeout = 5 * time.Second

// steps repeats a step until its outcome is certain. A step that finds the lease lost has read the
// intent, and so has a step that finds it corrupt.
var steps = waiting.Loop{
	Resolving: []error{ErrLeaseLost},
	Decided: func(err error) bool {
		return waiting.Lasts(err) || errors.Is(err, ErrLeaseLost) || errors.Is(err, intentlog.ErrCorrupt)
	},
}

// Do is [Manager.Do] for work with a result of type T. It returns the result with which the intent
// is done, by this call's work ([Reserved]) or by an earlier call ([Done]). In both cases it
// decodes the stored result, as [Result] does, so both are the same value.
//
// The result is T's zero value with [Held] and [KeyReused], which are not errors, with any error,
// and in the other cases that Result documents. If the stored result does not decode into T, the
// error matches [ErrResult], even after this call's own work. The intent is still done for ever,
// and the answer comes with the error. A nil manager or function returns an error that matches
// [messagestore.ErrInvalid].
func Do[T any](ctx context.Context, m *Manager, request Request, f func(ctx context.Context, lease *Lease) (T, error)) (T, Answer, error) {
	var none T
	if m == nil {
		return none, Answer{}, fmt.Errorf("do intent: %w", messagestore.NewInvalidError("manager", nil, "must not be nil"))
	}
	var work func(context.Context, *Lease) (any, error)
	if f != nil {
		work = func(ctx context.Context, lease *Lease) (any, error) { return f(ctx, lease) }
	}
	answer, err := m.Do(ctx, request, work)
	if err != nil {
		return none, answer, err
	}
	result, err := Result[T](answer)
	if err != nil {
		return none, answer, fmt.Errorf("do intent: %w", err)
	}
	return result, answer, nil
}

// Do carries an intent out: it reserves the intent, calls f under a lease that it extends, and
// confirms the result of f for ever. If this call confirmed the intent, the answer is [Reserved],
// and [Result] returns the result. With every other outcome f was not called. The function [Do]
// returns a typed result.
//
// If the lease has already ended when the store answers the grant, f is not called, and the error
// matches [ErrLeaseLost]. The context of f ends when ctx does. It also ends when the context of
// [Lease.Keep] would, a tenth of the TTL before the lease ends, with a cause that matches
// [ErrLeaseLost]. Work that stops within this tenth does not overlap with the next holder's work,
// provided that the rates of the clocks differ by less than that and the store's clock does not
// jump. Other late work is refused because of its version, and by a resource that checks the token.
//
// Do returns when f has returned, and at most [Config.Grace] after the end of the lease: then the
// error matches [ErrGraceExceeded], and f goes on. If f returns an error, panics or calls
// [runtime.Goexit], Do releases the lease and then does the same; it logs a panic and panics with a
// [*PanicError], which has the stack of f. F may itself confirm or release the lease: then Do drops
// the result that f returns. If f has released the lease and returns no error, Do returns an error
// that matches [ErrReleased]. If a transaction of f confirmed a result, with [Lease.Confirmation],
// that result stays, even if f returns an error that matches [messagestore.ErrOutcomeUnknown]: Do
// then reads the intent.
//
// Do confirms the result even if ctx is done or the lease's time is over: the version decides. For
// this, and for a release, Do takes up to five seconds, in which it tries again while the store
// fails; if the store is closed, it stops at once. After an error that matches
// [messagestore.ErrOutcomeUnknown] the intent may be done, and then the next call with its key
// returns the result. You get that error only if an attempt, or a transaction of f, may have
// confirmed the intent, and no later attempt could find out. With an error that matches
// ErrLeaseLost the answer's Intent is the state that came after the lease, if the store has shown
// it.
//
// If the result cannot be stored, because it is above 512 KiB, does not encode, or contains
// something that no store takes, it is not kept. The work is done, so the intent is done for ever,
// and [Intent.NotKept] has the reason. Do returns no error, logs a warning, and [Result] returns an
// error that matches [ErrResult] to each caller.
func (m *Manager) Do(ctx context.Context, request Request, f func(ctx context.Context, lease *Lease) (result any, err error)) (Answer, error) {
	if f == nil {
		return Answer{}, fmt.Errorf("do intent: %w", messagestore.NewInvalidError("function", nil, "must not be nil"))
	}
	answer, err := m.Reserve(ctx, request)
	if err != nil || answer.Outcome != Reserved {
		return answer, err
	}
	l := answer.Lease
	work, stop := l.Keep(ctx)
	defer stop()
	done := call(work, l, f)
	var r returned
	if err := l.await(ctx, work, done, &r); err != nil {
		answer.Intent = l.intent(err)
		return answer, err
	}
	lost := context.Cause(work)
	if !errors.Is(lost, ErrLeaseLost) {
		lost = nil
	}
	stop()
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if r.err == nil && !r.left {
		if err = r.refused; err == nil {
			err = l.finish(finish, r.result, r.notKept)
		}
		if errors.Is(err, messagestore.ErrInvalid) && !errors.Is(err, ErrLeaseLost) { // the work is done all the same
			err = l.finishWithout(finish, err)
		}
		if l.endedByItself() {
			answer.Intent = l.intent(nil)
			if l.isConfirmed() {
				return answer, nil
			}
			return answer, fmt.Errorf("confirm lease: %w", ErrReleased)
		}
		if err == nil { // another call of the session confirmed the same result, for work of its own
			err = fmt.Errorf("confirm lease: %w", l.Err())
		}
		if errors.Is(err, ErrLeaseLost) || !errors.Is(err, messagestore.ErrInvalid) {
			answer.Intent = l.intent(err)
			return answer, err
		}
		r.err = err // the result is refused, and the lease lives on
	}
	reason := r.reason()
	released := l.giveUp(finish, reason)
	answer.Intent = l.intent(released)
	if r.err != nil {
		r.err = l.failed(r.err) // a transaction of f, perhaps: another call of the session has released the lease
	}
	if lost == nil && errors.Is(released, ErrLeaseLost) && !l.endedByItself() {
		lost = released
	}
	switch {
	case r.panicked != nil:
		panic(r.panicked)
	case r.left:
		runtime.Goexit()
	case errors.Is(r.err, messagestore.ErrOutcomeUnknown) && l.isConfirmed():
		return answer, nil
	case lost != nil && !errors.Is(r.err, ErrLeaseLost):
		return answer, fmt.Errorf("%w: %w", lost, r.err)
	}
	return answer, r.err
}

// errOwnConfirmation says why an intent may be done although no step of Do has confirmed it.
var errOwnConfirmation = errors.New("the work may have confirmed the lease itself, in a transaction")

// A returned is how a function ended.
type returned struct {
	result   json.RawMessage
	notKept  string // why there is none
	refused  error  // why the result cannot be stored
	err      error
	left     bool // it did not return: it panicked, or ended its goroutine
	panicked *PanicError
}

// call runs f in a goroutine of its own, so that Do can abandon an f that does not stop.
func call(ctx context.Context, l *Lease, f func(context.Context, *Lease) (any, error)) <-chan returned {
	done := make(chan returned, 1)
	go func() {
		r, worked := returned{left: true}, false
		defer func() { done <- r }()
		defer func() {
			if r.left {
				e := calling.Recovered(recover())
				if !e.Exited() {
					r.panicked = (*PanicError)(e)
				}
				// Log it even if Do has returned, because then no caller gets the panic.
				event := l.m.config.Logger.Error().Str("stream", string(l.Stream())).Str(logger.Stack, string(e.Stack))
				if r.panicked != nil {
					event.Str("panic", fmt.Sprint(e.Value))
				}
				reason := r.reason()
				if worked { // and is not undone because its result's own methods do not return
					r.left, r.panicked = false, nil
					r.refused = messagestore.NewInvalidError("result", nil, fmt.Sprintf("must encode as JSON: %v", e.Value))
				}
				event.Msg(reason)
			}
		}()
		if r.err = l.Err(); r.err != nil { // the grant was answered too late, or the process was stopped since
			r.left = false
			return
		}
		result, err := f(ctx, l)
		if r.err = err; err == nil {
			worked = true
			r.result, r.notKept, r.refused = encodeResult(result) // by code of the caller's
		}
		r.left = false
	}()
	return done
}

// await waits for the work, but at most for the grace after the lease's end.
func (l *Lease) await(ctx, work context.Context, done <-chan returned, r *returned) error {
	select {
	case *r = <-done:
		return nil
	case <-work.Done():
	}
	// Without extensions the lease ends on its own.
	lost := context.Cause(work)
	grace := l.m.config.Grace
	wait := grace
	if !errors.Is(lost, ErrLeaseLost) {
		lost = fmt.Errorf("%w: %w", &LeaseLostError{Stream: l.Stream(), Session: l.Session(), Token: l.Token(), cause: "it is no longer extended"}, ctx.Err())
		wait += l.Left()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case *r = <-done:
		return nil
	case <-timer.C:
		return &graceExceededError{Stream: l.Stream(), Token: l.Token(), Grace: grace, Lost: lost}
	}
}

// finish confirms the result, or the reason why it is not kept, unless f has confirmed or released
// the lease.
func (l *Lease) finish(ctx context.Context, result json.RawMessage, notKept string) error {
	var o waiting.Outcome
	if l.ends.mayBeConfirmed() {
		o.Unknown(errOwnConfirmation)
	}
	err := steps.DoFrom(ctx, &o, func() error { return l.confirm(ctx, result, notKept, nil) })
	if err != nil {
		return fmt.Errorf("confirm lease: %w", err)
	}
	return nil
}

// finishWithout confirms the work without its refused result.
func (l *Lease) finishWithout(ctx context.Context, refused error) error {
	rule := refused.Error()
	if invalid, is := errors.AsType[*messagestore.InvalidError](refused); is {
		rule = "it " + invalid.Rule
	}
	err := l.finish(ctx, nil, reasonText(rule))
	if err == nil {
		l.m.config.Logger.Warn().Str("error", text.Log(refused)).Str("stream", string(l.Stream())).Msg("result not kept: the intent is done without it")
	}
	return err
}

// giveUp releases the lease. It returns an error if the lease was lost before, or confirmed.
func (l *Lease) giveUp(ctx context.Context, reason string) error {
	err := steps.Do(ctx, func() error { return l.Release(ctx, reason) })
	if err != nil && !errors.Is(err, ErrLeaseLost) && l.Left() > 0 { // the intent is held for as long
		l.m.config.Logger.Warn().Str("error", text.Log(err)).Str("stream", string(l.Stream())).Msg("release lease")
	}
	return err
}

// isConfirmed reports whether this lease was confirmed, directly or through a copy.
func (l *Lease) isConfirmed() bool { return l.endedByItself() && l.intent(nil).Status == Done }

// intent returns the intent as the lease knows it. If err names the lease's successor, it returns
// that.
func (l *Lease) intent(err error) Intent {
	if lost, ok := errors.AsType[*LeaseLostError](err); ok && lost.By != nil {
		return *lost.By
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil && l.over.By != nil {
		return *l.over.By
	}
	return ownIntent(&l.parts[0].State)
}

// reason returns a text for operators about work that failed.
func (r returned) reason() string {
	switch {
	case r.panicked != nil:
		return "the work panicked"
	case r.left:
		return "the work ended its goroutine"
	}
	return reasonText(r.err.Error())
}

// reasonText turns text into a valid reason: on one line, and not too long.
func reasonText(text string) string {
	text = strings.Map(func(c rune) rune {
		if intentlog.TextRule(string(c)) != "" {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= maxReason {
		return text
	}
	cut := maxReason - len("…")
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
