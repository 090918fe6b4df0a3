package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// maxValueBytes bounds an input, an output and a value, as JSON.
const maxValueBytes = 512 << 10

// Retry says how often a failing function is called. The pause before the second attempt is
// MinBackoff, and doubles with each attempt up to MaxBackoff; each pause is shortened by a random
// part of up to a half. No goroutine waits meanwhile.
type Retry struct {
	// MaxAttempts is how often the function is called, up to 1000.
	//
	// Defaults to 5, and for an undo to no limit.
	MaxAttempts int

	// MinBackoff is the first pause: 1 ms to 24 h.
	//
	// Defaults to 1 s, or to MaxBackoff if that is shorter.
	MinBackoff time.Duration

	// MaxBackoff bounds the pause: MinBackoff to 24 h.
	//
	// Defaults to 5 min, or to MinBackoff if that is longer.
	MaxBackoff time.Duration
}

// StepConfig changes how a step works. Nil means all defaults. [New] reports values that are out of
// bounds.
type StepConfig struct {
	// Timeout is how long one call may take before its context is done: 1 ms to 1 min. For a step
	// that takes longer use an [Ask]: there Timeout is how long the saga waits for a reply, 1 ms to
	// 10 years.
	//
	// Defaults to 10 s, and for an Ask to 10 min.
	Timeout time.Duration

	// Retry applies to errors without a disposition, and to commands that the store refuses.
	Retry Retry

	// Suspend says that the saga is suspended when the attempts are used up, or when no reply came
	// in time: a person looks, and resumes or cancels it.
	//
	// Defaults to false: the step returns the error to the function, which normally returns it too,
	// and the saga is undone.
	Suspend bool

	// Undo applies to the errors of the undo. When its attempts are used up, the saga is suspended.
	Undo Retry

	// Pivot says that nothing can be undone once the step is done: from then on nothing undoes the
	// saga, neither a deadline nor a cancel. If a later step fails for good, or the function
	// returns an error, the saga is suspended.
	Pivot bool
}

const (
	callTimeout    = 10 * time.Second
	maxStepTimeout = time.Minute
	maxWait        = 10 * 365 * 24 * time.Hour
)

// Steps are the steps of a saga: each is a [*Step], a [*TxStep] or an [*Ask].
type Steps []anyStep

// An anyStep is a step of any type.
type anyStep interface {
	definition() *definition

	// isOf reports whether a saga over this store may have the step.
	isOf(driver messagestore.Driver) bool

	// named returns the step under the name, with a key, under which it began.
	named(name string) anyStep

	// undo undoes a step that began, and adds the outcome to the saga's events.
	undo(ctx context.Context, l *life, one *step) error
}

// A definition has the parts of a step without its types.
type definition struct {
	name    string
	kind    string
	timeout time.Duration // of a call
	wait    time.Duration // for a reply
	retry   Retry
	suspend bool
	undoing Retry
	pivot   bool
	nothing bool // it has no undo
	invalid error
	base    *definition // the definition without the key, if the step has one
}

// keyed returns the definition of a step with a key.
func (d *definition) keyed(key string) definition {
	with := *d
	with.base = d.root()
	with.name = with.base.name + "+" + text.EscapeID(key)
	if rule := keys.Rule(key); rule != "" {
		with.invalid = invalid("key of "+with.base.name, key, rule)
	} else if len(with.name) > maxStepName {
		with.invalid = invalid("key of "+with.base.name, key, fmt.Sprintf("the step and the key must be at most %d bytes together", maxStepName))
	}
	return with
}

// root returns the definition without a key.
func (d *definition) root() *definition {
	if d.base != nil {
		return d.base
	}
	return d
}

// maxStepName bounds the name of a step with its key, in bytes.
const maxStepName = 200

// baseOf returns the name of a step without its key.
func baseOf(name string) string {
	base, _, _ := strings.Cut(name, "+")
	return base
}

// stepOf returns the step with a name, which may have a key; nil if the saga has no such step.
func (c *core) stepOf(name string) anyStep {
	step := c.defined[baseOf(name)]
	if step == nil || baseOf(name) == name {
		return step
	}
	return step.named(name)
}

func define(name, kind string, noDo bool) definition {
	d := definition{name: name, kind: kind}
	switch {
	case name == "":
		d.invalid = invalid("step", name, "the name must not be empty")
	case len(name) > 100:
		d.invalid = invalid("step", name, "the name must be at most 100 bytes")
	case text.EscapeID(name) != name || messagestore.Category("step").Stream(name).Validate() != nil:
		d.invalid = invalid("step", name, "the name must not contain a plus sign, a percent sign or a hidden character, and must not begin or end with a space")
	}
	if noDo {
		d.invalid = errors.Join(d.invalid, invalid("step", name, "the function must not be nil"))
	}
	return d
}

// configure takes the settings of a step, or of an ask.
func (d *definition) configure(c *StepConfig) {
	if c == nil {
		c = &StepConfig{}
	}
	d.timeout, d.retry, d.suspend, d.undoing, d.pivot = c.Timeout, c.Retry, c.Suspend, c.Undo, c.Pivot
	most := maxStepTimeout
	if d.kind == kindAsk {
		d.timeout, most = cmp.Or(d.timeout, 10*time.Minute), maxWait
	}
	d.timeout = cmp.Or(d.timeout, callTimeout)
	d.bounds("Timeout", d.timeout, most)
	if d.kind == kindAsk {
		d.wait, d.timeout = d.timeout, callTimeout
	}
	d.retry.MaxAttempts = cmp.Or(d.retry.MaxAttempts, 5)
	d.checkRetry("Retry", &d.retry)
	d.checkRetry("Undo", &d.undoing)
}

func (d *definition) checkRetry(field string, r *Retry) {
	r.MaxBackoff = cmp.Or(r.MaxBackoff, max(5*time.Minute, r.MinBackoff))
	r.MinBackoff = cmp.Or(r.MinBackoff, min(time.Second, r.MaxBackoff))
	if r.MaxAttempts < 0 || r.MaxAttempts > 1000 {
		d.invalid = errors.Join(d.invalid, invalid(d.name+": "+field+".MaxAttempts", r.MaxAttempts, "must be between 1 and 1000"))
	}
	d.bounds(field+".MinBackoff", r.MinBackoff, 24*time.Hour)
	d.bounds(field+".MaxBackoff", r.MaxBackoff, 24*time.Hour)
	if r.MaxBackoff < r.MinBackoff {
		d.invalid = errors.Join(d.invalid, invalid(d.name+": "+field+".MaxBackoff", r.MaxBackoff.String(), "must be at least MinBackoff"))
	}
}

func (d *definition) bounds(field string, value, most time.Duration) {
	if value < time.Millisecond || value > most {
		d.invalid = errors.Join(d.invalid, invalid(d.name+": "+field, value.String(), fmt.Sprintf("must be between 1ms and %v", most)))
	}
}

// A Step calls a function outside of the store: at least once, each time with the same [Key].
type Step[In, Out any] struct {
	of       definition
	do       func(ctx context.Context, in In) (Out, error)
	undoCall func(ctx context.Context, in In, out *Out) error
}

// NewStep returns a step that calls do, and calls undo to undo it. If the outcome of do is not
// known, the step may have run, so undo is called with a nil out. It finds out by the [Key], which
// is the same as in do, whether there is anything to undo. A step that was refused may have
// happened in an earlier attempt, so for it, too, undo is called with a nil out.
//
// If do returns an error of handler.Refuse, no further attempt is made. handler.Park suspends the
// saga. handler.RetryAfter makes the next attempt after its time, of at most 10 years, and the
// attempt does not count. handler.Skip is a mistake that suspends the saga, because the steps after
// this one need its output. In undo, handler.Refuse suspends the saga too. A nil undo means that
// the step leaves nothing to undo. NewStep does not fail: [New] reports mistakes.
func NewStep[In, Out any](
	name string, do func(ctx context.Context, in In) (Out, error), undo func(ctx context.Context, in In, out *Out) error, config *StepConfig,
) *Step[In, Out] {
	s := &Step[In, Out]{define(name, kindCall, do == nil), do, undo}
	s.of.nothing = undo == nil
	s.of.configure(config)
	return s
}

func (s *Step[In, Out]) definition() *definition { return &s.of }

func (*Step[In, Out]) isOf(messagestore.Driver) bool { return true }

// For returns the step for one of several things of a kind, such as the lines of an order. With it
// you can do the step in a loop:
//
//	for _, line := range order.Lines {
//		if _, err := reserve.For(line.SKU).Do(r, line); err != nil {
//			return Receipt{}, err
//		}
//	}
//
// The key is part of the step's name, reserve+SKU, in the record, in [Key] and in the name of a
// reply. It is visible text; name and key together have at most 200 bytes and must be unique within
// the run. An invalid key suspends the saga when the step is joined.
func (s *Step[In, Out]) For(key string) *Step[In, Out] {
	return &Step[In, Out]{s.of.keyed(key), s.do, s.undoCall}
}

func (s *Step[In, Out]) named(name string) anyStep {
	of := s.of
	of.name = name
	return &Step[In, Out]{of, s.do, s.undoCall}
}

// Do does the step, or returns its recorded outcome: its output, a [*StepError] if it has failed
// for good, or an error that the function must return, such as [ErrWaiting].
func (s *Step[In, Out]) Do(r *Run, in In) (Out, error) {
	f := s.Go(r, in)
	err := r.joined(&f.one)
	return f.out, err
}

// Go adds the step to those that the next [Run.Join] does side by side. Nothing begins before Join.
func (s *Step[In, Out]) Go(r *Run, in In) *Future[Out] {
	f := reach[Out](r, &s.of, in)
	f.one.do = func(ctx context.Context) (json.RawMessage, error) {
		out, err := s.do(ctx, in)
		if err != nil {
			return nil, err
		}
		return encodeOutput(&s.of, out)
	}
	return f
}

func (s *Step[In, Out]) undo(ctx context.Context, l *life, one *step) error {
	if s.undoCall == nil {
		l.note(undoneEvent{Step: one.Step, Nothing: true})
		return nil
	}
	in, out, err := recorded[In, Out](l, one)
	if err != nil {
		return err
	}
	_, err = attempt(ctx, l, &s.of, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.undoCall(ctx, in, out) })
	if err == nil {
		l.note(undoneEvent{Step: one.Step})
	}
	return err
}

// A TxStep runs SQL in the transaction that records it: exactly once. If another process has gone
// on with the saga, the SQL is rolled back.
type TxStep[Tx, In, Out any] struct {
	of     definition
	txs    *messagestore.TxStore[Tx]
	do     func(ctx context.Context, tx Tx, in In) (Out, error)
	undoTx func(ctx context.Context, tx Tx, in In, out *Out) error
}

// NewTxStep returns a step that calls do in a transaction of txs, and calls undo in another. The
// store of txs is the saga's. Each function may be called more than once, and is committed once. A
// step that was not committed is not undone, so undo always has an output; a nil undo means that
// the step leaves nothing to undo. Both functions may add messages to their transaction: see
// [Write]. Errors have the same effect as for [NewStep]. If a function changes the session and not
// only the transaction, such as its search_path, the change stays with the pooled connection and
// affects its next user.
func NewTxStep[Tx, In, Out any](
	name string, txs *messagestore.TxStore[Tx],
	do func(ctx context.Context, tx Tx, in In) (Out, error), undo func(ctx context.Context, tx Tx, in In, out *Out) error, config *StepConfig,
) *TxStep[Tx, In, Out] {
	s := &TxStep[Tx, In, Out]{define(name, kindTx, do == nil), txs, do, undo}
	s.of.configure(config)
	if txs == nil {
		s.of.invalid = errors.Join(s.of.invalid, invalid("step", name, "the store must not be nil"))
	}
	return s
}

func (s *TxStep[Tx, In, Out]) definition() *definition { return &s.of }

func (s *TxStep[Tx, In, Out]) isOf(driver messagestore.Driver) bool {
	if s.txs == nil {
		return true // which is another mistake
	}
	own, err := s.txs.Driver()
	return err == nil && own == driver
}

// For returns the step for one of several things of a kind. See [Step.For].
func (s *TxStep[Tx, In, Out]) For(key string) *TxStep[Tx, In, Out] {
	return &TxStep[Tx, In, Out]{s.of.keyed(key), s.txs, s.do, s.undoTx}
}

func (s *TxStep[Tx, In, Out]) named(name string) anyStep {
	of := s.of
	of.name = name
	return &TxStep[Tx, In, Out]{of, s.txs, s.do, s.undoTx}
}

// Do does the step, or returns its recorded outcome. See [Step.Do].
func (s *TxStep[Tx, In, Out]) Do(r *Run, in In) (Out, error) {
	f := reach[Out](r, &s.of, in)
	f.one.transact = func(ctx context.Context, l *life, began beganEvent) error {
		return transact(ctx, l, s.txs, &s.of, began.Attempt, func(ctx context.Context, tx Tx) ([]messagestore.Body, error) {
			out, err := s.do(ctx, tx, in)
			if err != nil {
				return nil, err
			}
			output, err := encodeOutput(&s.of, out)
			return []messagestore.Body{began, doneEvent{Step: s.of.name, Output: output}}, err
		})
	}
	err := r.joined(&f.one)
	return f.out, err
}

func (s *TxStep[Tx, In, Out]) undo(ctx context.Context, l *life, one *step) error {
	if !one.done || s.undoTx == nil {
		l.note(undoneEvent{Step: one.Step, Nothing: true})
		return nil
	}
	in, out, err := recorded[In, Out](l, one)
	if err != nil {
		return err
	}
	return transact(ctx, l, s.txs, &s.of, one.attempts, func(ctx context.Context, tx Tx) ([]messagestore.Body, error) {
		return []messagestore.Body{undoneEvent{Step: s.of.name}}, s.undoTx(ctx, tx, in, out)
	})
}

// transact runs f in a transaction that records its events at the saga's version, with the writes
// that f adds by Write. Earlier events are recorded first, so that a failed transaction does not
// cause anything else to be done again.
//
// The error is a [*storeError] if it does not come from the step.
func transact[Tx any](
	ctx context.Context, l *life, txs *messagestore.TxStore[Tx], of *definition, number int,
	f func(ctx context.Context, tx Tx) ([]messagestore.Body, error),
) error {
	if err := l.write(ctx); err != nil {
		return &storeError{err}
	}
	type committed struct {
		written messagestore.Written
		events  []messagestore.Body
	}
	// An abandoned function must not share the life.
	at := &life{core: l.core, state: &state{compensating: l.compensating, own: l.own}, stream: l.stream, cause: l.cause, version: l.version, held: l.held}
	done, err := attempt(ctx, l, of, func(ctx context.Context) (done committed, err error) {
		done.written, done.events, err = commit(ctx, at, txs, of.name, number, f)
		return done, err
	})
	if err != nil {
		return err
	}
	l.wrote(done.written, done.events)
	return nil
}

// commit is one attempt of transact.
func commit[Tx any](
	ctx context.Context, at *life, txs *messagestore.TxStore[Tx], step string, number int,
	f func(ctx context.Context, tx Tx) ([]messagestore.Body, error),
) (written messagestore.Written, events []messagestore.Body, err error) {
	var refused error
	called := false
	all, err := txs.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		events, refused = nil, nil
		if err := at.mayCall(ctx); err != nil {
			return nil, err
		}
		called = true
		added := &adding{own: at.stream}
		refused = calling.Call(func() (err error) {
			defer added.end()
			events, err = f(withAdding(ctx, added), tx)
			return err
		})
		if refused != nil {
			return nil, refused
		}
		var beside []messagestore.StreamWrite
		for _, w := range added.writes {
			beside = append(beside, at.correlated(w, step, number)...)
		}
		return at.writes(events, beside)
	})
	if err == nil {
		return all[0], events, nil
	}
	retryable, is := errors.AsType[*calling.RetryableError](err)
	state, _ := isOutageState(err)
	conflict, isConflict := errors.AsType[*messagestore.VersionConflictError](err)
	switch {
	case isConflict && conflict.Stream == at.stream:
		return written, nil, &storeError{errMoved}
	case !called, is && retryable.NotBegun, state: // there was no connection for it, perhaps
		return written, nil, &storeError{err}
	case refused != nil && !errors.Is(err, messagestore.ErrOutcomeUnknown):
		return written, nil, refused // by f, in its last call
	case errors.Is(ctx.Err(), context.DeadlineExceeded): // the end of its time, and no outage; what comes later meets another version
		return written, nil, err
	case errors.Is(err, messagestore.ErrInvalid):
		return written, nil, suspend(whyInvalid, step, err)
	case isOutage(err):
		return written, nil, &storeError{err}
	}
	return written, nil, err
}

// A stepCall is the step in the context of its function.
type stepCall struct {
	key    string
	adding *adding // of a TxStep
}

func stepOf(ctx context.Context) stepCall {
	if s, is := calling.CallerOf(ctx).Step.(*stepCall); is {
		return *s
	}
	return stepCall{}
}

func withAdding(ctx context.Context, a *adding) context.Context {
	s := stepOf(ctx)
	s.adding = a
	return calling.WithCaller(ctx, func(c *calling.Caller) { c.Step = &s })
}

// An adding collects the writes that the function of a TxStep adds in one call.
type adding struct {
	own    messagestore.StreamName
	mu     sync.Mutex
	writes []messagestore.StreamWrite
	ended  bool
}

func (a *adding) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
}

// Write adds writes to the transaction of a [TxStep]. The step's functions do and undo call it with
// their context, and the messages are committed with their SQL, or not at all. So a step changes a
// row and reports the change in one transaction:
//
//	func debit(ctx context.Context, tx pgx.Tx, t Transfer) (balance int64, err error) {
//		err = tx.QueryRow(ctx, "update accounts set balance = balance - $2 where id = $1 returning balance", t.From, t.Amount).Scan(&balance)
//		if err != nil {
//			return 0, err
//		}
//		event := messagestore.To("account-"+t.From, messagestore.AnyVersion, Debited{t.Amount, balance})
//		return balance, saga.Write(ctx, event)
//	}
//
// The messages have the saga's stream as their correlation, and the property sagaStep. If a write
// has a version conflict, the function is called again, up to five times; then the attempt has
// failed. If the store refuses a message as invalid, the saga is suspended.
//
// If ctx is not the context of a running function of a TxStep, or if a write goes to the saga's own
// stream or to a stream with an invalid name, the error matches [messagestore.ErrInvalid] and
// nothing is added. You may call Write several times, and from several goroutines.
func Write(ctx context.Context, writes ...messagestore.StreamWrite) error {
	a := stepOf(ctx).adding
	if a == nil {
		return fmt.Errorf("saga: write: %w", invalid("context", nil, "must be the context of a function of a TxStep"))
	}
	for _, w := range writes {
		err := w.Stream.Validate()
		if err == nil && w.Stream == a.own {
			err = invalid("stream", string(w.Stream), "must not be the saga's own stream, which the step writes by itself")
		}
		if err != nil {
			return fmt.Errorf("saga: write: %w", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return fmt.Errorf("saga: write: %w", invalid("context", nil, "must not be used after the function of the TxStep has returned"))
	}
	a.writes = append(a.writes, writes...)
	return nil
}

// A storeError is the store's error in an attempt of a step, as opposed to the step's own.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

func isStore(err error) bool {
	_, is := err.(*storeError) //nolint:errorlint // as an attempt returns it
	return is
}

// An Ask sends a command and waits for its reply, for as long as that takes.
type Ask[In, Out any] struct {
	of          definition
	command     func(ctx context.Context, in In) (messagestore.StreamWrite, error)
	undoCommand func(ctx context.Context, in In, out *Out) (messagestore.StreamWrite, error)
}

// NewAsk returns a step that writes a command and waits for the reply of the command's handler: see
// [Saga.Reply], [Saga.Refuse] and [Answer]. The command is written in one write with the record
// that the step began. Its messages have the saga's stream as their correlation, and the property
// sagaStep.
//
// If command returns a write without a stream, nothing is sent: the step only waits for a
// [Saga.Reply] from outside, such as a person's approval.
//
// The command of undo is written in one write with the record that the step is undone. If undo is
// nil, or returns a write without a stream, nothing is sent. Out is nil if no reply is known: the
// command may still be handled, before the undo's command or after it. If command returns an error,
// nothing is sent. Dispositions have the same effect as for [NewStep]; an error without a
// disposition suspends the saga. After a refusal undo is called too, since an earlier attempt may
// have sent its command.
func NewAsk[In, Out any](
	name string, command func(ctx context.Context, in In) (messagestore.StreamWrite, error),
	undo func(ctx context.Context, in In, out *Out) (messagestore.StreamWrite, error), config *StepConfig,
) *Ask[In, Out] {
	a := &Ask[In, Out]{define(name, kindAsk, command == nil), command, undo}
	a.of.configure(config)
	return a
}

func (a *Ask[In, Out]) definition() *definition { return &a.of }

func (*Ask[In, Out]) isOf(messagestore.Driver) bool { return true }

// For returns the step for one of several things of a kind. See [Step.For].
func (a *Ask[In, Out]) For(key string) *Ask[In, Out] {
	return &Ask[In, Out]{a.of.keyed(key), a.command, a.undoCommand}
}

func (a *Ask[In, Out]) named(name string) anyStep {
	of := a.of
	of.name = name
	return &Ask[In, Out]{of, a.command, a.undoCommand}
}

// Do sends the command, unless it was sent before, and returns the output of the reply. The error
// is a [*StepError] if the reply is a refusal or did not come in time, or an error that the
// function must return, such as [ErrWaiting].
func (a *Ask[In, Out]) Do(r *Run, in In) (Out, error) {
	f := a.Go(r, in)
	err := r.joined(&f.one)
	return f.out, err
}

// Go adds the step to those that the next [Run.Join] does side by side. Nothing is sent before
// Join.
func (a *Ask[In, Out]) Go(r *Run, in In) *Future[Out] {
	f := reach[Out](r, &a.of, in)
	f.one.command = func(ctx context.Context) (messagestore.StreamWrite, error) { return a.command(ctx, in) }
	return f
}

func (a *Ask[In, Out]) undo(ctx context.Context, l *life, one *step) error {
	if a.undoCommand == nil {
		l.note(undoneEvent{Step: one.Step, Nothing: true})
		return nil
	}
	in, out, err := recorded[In, Out](l, one)
	if err != nil {
		return err
	}
	command, err := attempt(ctx, l, &a.of, func(ctx context.Context) (messagestore.StreamWrite, error) { return a.undoCommand(ctx, in, out) })
	if err != nil {
		return err
	}
	err = l.writeBeside(ctx, []messagestore.Body{undoneEvent{Step: one.Step}}, l.correlated(command, one.Step, one.attempts))
	_, isStuck := errors.AsType[*suspension](err)
	if refused, is := errors.AsType[*besideError](err); is {
		return refused.error
	} else if err != nil && !isStuck {
		return &storeError{err}
	}
	return err
}

// check refuses an output that does not have the reply's type.
func (a *Ask[In, Out]) check(output any) error {
	if _, is := output.(Out); !is {
		var want *Out
		return invalid("reply", fmt.Sprintf("%T", output), fmt.Sprintf("must be of the type that replies to %s have, %s", a.of.name, fmt.Sprintf("%T", want)[1:]))
	}
	return nil
}

// recorded returns the recorded input and output of a step. If they do not fit the step's types any
// more, the error suspends the saga.
func recorded[In, Out any](l *life, one *step) (in In, out *Out, err error) {
	if err := json.Unmarshal(one.Input, &in); err != nil {
		return in, nil, suspend(whyInvalid, one.Step, fmt.Errorf("undo %s: its input: %w", one.Step, err))
	}
	if raw := l.out(one); raw != nil {
		out = new(Out)
		if err := json.Unmarshal(raw, out); err != nil {
			return in, nil, suspend(whyInvalid, one.Step, fmt.Errorf("undo %s: its output: %w", one.Step, err))
		}
	}
	return in, out, nil
}

// encode returns a value as JSON of a bounded size.
func encode(field string, value any) (json.RawMessage, error) {
	raw, err := exactjson.Marshal(value)
	if err != nil {
		return nil, invalid(field, fmt.Sprintf("%T", value), fmt.Sprintf("must encode as JSON: %v", err))
	}
	if len(raw) > maxValueBytes {
		return nil, invalid(field, raw, fmt.Sprintf("must be at most %d bytes as JSON", maxValueBytes))
	}
	return raw, nil
}

func encodeOutput(d *definition, out any) (json.RawMessage, error) {
	raw, err := encode("output of "+d.name, out)
	if err != nil {
		return nil, suspend(whyInvalid, d.name, err)
	}
	return raw, nil
}

// Key returns the idempotence key of the step that runs in ctx. It is the same for every attempt,
// in every process and for the undo, so that the undo can name the thing to undo. It is "" outside
// of a step.
func Key(ctx context.Context) string { return stepOf(ctx).key }
