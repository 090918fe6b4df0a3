package intent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
)

// The intervals and limits of waiting for an intent.
const (
	// tailInterval is how often a store looks for writes of other processes that its driver did not
	// report.
	tailInterval = 100 * time.Millisecond

	// clockTolerance is how far the start of a lease may be in the future.
	clockTolerance = time.Second

	// leastSleep is the shortest wait between two looks at an intent.
	leastSleep = time.Millisecond

	// Sessions of many processes may leave a line at once. Each step of one makes the others repeat
	// theirs.
	minLeaveBackoff = time.Millisecond
	maxLeaveBackoff = 100 * time.Millisecond
)

// wait puts a in the line of the intent that it found, once it is its turn among the manager's calls
// that wait for it, and waits until the answer may have changed.
// The result known is the store's time at which the states of a's keys were read; zero means that
// they have to be read. The result over is true when the request has waited long enough. The wait
// ends with ctx, and the calls of the store with calls.
func (a *attempt) wait(ctx, calls context.Context, w *waiting.Waiter, now, end time.Time) (known time.Time, over bool, err error) {
	k := &a.keys[a.blocked]
	fresh := w.On(k.stream)
	if len(a.keys) > 1 {
		if fresh { // an end before it listened would be missed
			return time.Time{}, false, nil
		}
	} else if !a.m.crowds.join(a) {
		return a.waitBehind(ctx, w, end)
	} else if now, err = a.stand(ctx, calls, now); err != nil || k.met == nil || now.IsZero() {
		return time.Time{}, false, err
	} else if answer, final := a.answer(now); !final || answer.Outcome != Held {
		return now, false, nil
	}
	w.From(k.met.Place.GlobalPosition)
	d := min(k.met.MayTake(a.request.Session, a.m.config.Turn).Sub(now), time.Until(k.watch.Add(k.silence(a))), time.Until(end))
	switch {
	case len(a.keys) > 1:
	case slices.Contains(k.met.Line, a.request.Session):
		a.m.crowds.stands(a)
	default:
		d = min(d, a.m.config.Turn) // the line is full, and no message of one who leaves it wakes anyone
	}
	m, err := a.m.sleep(ctx, w, max(d, leastSleep))
	switch {
	case err != nil:
		return time.Time{}, false, err
	case m != nil && len(a.keys) == 1 && m.Position > k.met.Place.Position:
		s, err := intentlog.Read(m)
		if err != nil {
			return time.Time{}, false, err
		}
		k.meet(s)
		return m.Time, false, nil
	}
	return time.Time{}, time.Until(end) <= 0, nil
}

// waitBehind waits until a may stand in the line, or the intent is done. Its results are those of
// wait.
func (a *attempt) waitBehind(ctx context.Context, w *waiting.Waiter, end time.Time) (known time.Time, over bool, err error) {
	k := &a.keys[0]
	w.From(k.met.Place.GlobalPosition)
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	for {
		var m *messagestore.Message
		select {
		case <-ctx.Done():
			return time.Time{}, false, ctx.Err()
		case <-timer.C:
			return time.Time{}, true, nil
		case m = <-w.Bell():
		case <-a.mayStand:
			select {
			case m = <-w.Bell(): // of a crowd that is told the result, none has to look
			default:
			}
			if m == nil || m.Type != intentlog.TypeConfirmed {
				return time.Time{}, false, nil
			}
		}
		if m == nil { // the store is closed
			return time.Time{}, false, nil
		}
		if m.Type == intentlog.TypeConfirmed && m.Position > k.met.Place.Position {
			s, err := intentlog.Read(m)
			if err != nil {
				return time.Time{}, false, err
			}
			k.meet(s)
			return m.Time, false, nil
		}
	}
}

// stand puts the session at the end of the line, unless it is already in the line, and returns the
// store's time of the state that a has then. It does not change a full line. In a crowd this may
// take many calls: it begins no call after the end of ctx.
func (a *attempt) stand(ctx, calls context.Context, now time.Time) (time.Time, error) {
	k := &a.keys[0]
	for {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		s := k.met
		if slices.Contains(s.Line, a.request.Session) {
			a.stands = true
			return now, nil
		}
		if len(s.Line) >= intentlog.MaxLine {
			return now, nil
		}
		a.stands = true
		met, err := a.line(calls, append(slices.Clone(s.Line), a.request.Session))
		switch {
		case err != nil:
			return time.Time{}, err
		case met == nil:
			return k.met.Place.Time, nil
		case k.met == nil:
			return time.Time{}, nil
		}
		now = met.Time
		if answer, final := a.answer(now); !final || answer.Outcome != Held {
			return now, nil
		}
	}
}

// line writes another line to the intent that a found. If the intent has changed meanwhile, it
// returns the conflict.
func (a *attempt) line(ctx context.Context, line []string) (*messagestore.Conflict, error) {
	k := &a.keys[0]
	return a.note(ctx, k, line, k.met.Since)
}

// setBack restarts the time of a lease that begins in the future: the clock was ahead then, or was
// set back since. The lease's holder may be gone; if it lives, it extends the lease before its end.
// setBack returns the store's time of the state that it leaves or finds.
func (a *attempt) setBack(ctx context.Context, now time.Time) (time.Time, error) {
	k := &a.keys[a.blocked]
	a.m.config.Logger.Warn().Str("stream", string(k.stream)).Str("session", k.met.Session).Stringer("by", k.met.Since.Sub(now)).
		Msg("the store's clock was ahead, or was set back: the lease counts from now on")
	met, err := a.note(ctx, k, k.met.Line, now)
	switch {
	case err != nil:
		return time.Time{}, err
	case met == nil:
		return k.met.Place.Time, nil
	case k.met == nil:
		return time.Time{}, nil
	}
	return met.Time, nil
}

// note writes the parts of an intent that do not belong to the lease: the line, and the time at
// which the lease begins. If the intent has changed meanwhile, it returns the conflict.
func (a *attempt) note(ctx context.Context, k *wanted, line []string, since time.Time) (*messagestore.Conflict, error) {
	s := k.met
	body := intentlog.Waiting{
		Grant: s.Grant, Token: s.Token, At: since.UnixMicro(), Of: s.Of, Released: s.Released, By: s.By, Reason: s.Reason,
	}
	body.Line = line
	written, met, err := a.m.store.TryWrite(ctx, k.stream, s.Place.Position, messagestore.Envelope{Body: body, Metadata: s.Metadata})
	if err != nil {
		return nil, err
	}
	if met == nil {
		next := intentlog.Granted(body, written, s.Metadata)
		k.meet(&next)
		return nil, nil
	}
	k.met = nil
	if met.Last[0] == nil {
		return met, nil
	}
	if s, err = intentlog.Read(met.Last[0]); err != nil {
		return nil, err
	}
	k.meet(s)
	return met, nil
}

// maxStanding bounds a manager's calls that stand in the line of one intent: the line is no longer
// than that in each message, and a process that dies costs the others no more turns.
const maxStanding = 8

// crowds are a manager's calls that wait for an intent, by its stream, in the order in which they
// came. The first few of them stand in the stored line, and the others behind them in memory.
type crowds struct {
	mu sync.Mutex
	of map[messagestore.StreamName][]*attempt
}

// join puts a at the end of its crowd, unless it is already there, and reports whether it may stand
// in the line.
func (c *crowds) join(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.mayStand == nil {
		if c.of == nil {
			c.of = map[messagestore.StreamName][]*attempt{}
		}
		a.mayStand = make(chan struct{})
		c.put(a, append(c.of[a.keys[0].stream], a))
	}
	return a.admitted
}

// put stores the crowd of a, in which the next one may stand once the one before it does: so they
// stand in their order, and none makes another repeat its step. The caller holds mu.
func (c *crowds) put(a *attempt, all []*attempt) {
	if c.of[a.keys[0].stream] = all; len(all) == 0 {
		delete(c.of, a.keys[0].stream)
	}
	for _, one := range all[:min(len(all), maxStanding)] {
		if !one.admitted {
			one.admitted = true
			close(one.mayStand)
		}
		if !one.stood {
			return
		}
	}
}

// stands says that a stands in the line.
func (c *crowds) stands(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.stood = true
	c.put(a, c.of[a.keys[0].stream])
}

// leave takes a out of its crowd, if it is there.
func (c *crowds) leave(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.mayStand != nil {
		c.put(a, slices.DeleteFunc(c.of[a.keys[0].stream], func(one *attempt) bool { return one == a }))
	}
}

// leavers are a manager's sessions that are leaving a line, by its stream. One step takes all of
// them out. With a step for each, all but one step of a round would fail, and a crowd would not be
// gone in time.
type leavers struct {
	mu sync.Mutex
	of map[messagestore.StreamName]map[string]int // how many calls of each session are leaving
}

// add counts a session that begins to leave, or with -1 one that has ended.
func (l *leavers) add(stream messagestore.StreamName, session string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[messagestore.StreamName]map[string]int{}
	}
	sessions := l.of[stream]
	if sessions == nil {
		sessions = map[string]int{}
		l.of[stream] = sessions
	}
	if sessions[session] += n; sessions[session] == 0 {
		delete(sessions, session)
	}
	if len(sessions) == 0 {
		delete(l.of, stream)
	}
}

// without returns a line without the sessions that are leaving it.
func (l *leavers) without(stream messagestore.StreamName, line []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(line), func(session string) bool { return l.of[stream][session] > 0 })
}

// leaveLine takes the session out of the line, so that its turn does not delay the others. It may
// fail, which is why there are turns.
func (a *attempt) leaveLine(ctx context.Context, until time.Time) {
	if !a.stands {
		return
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	k := &a.keys[0]
	a.m.leavers.add(k.stream, a.request.Session, 1)
	defer a.m.leavers.add(k.stream, a.request.Session, -1)
	_ = steps.Do(ctx, func() error { return a.tryToLeave(ctx) })
}

// tryToLeave takes the session out of the line, even if other sessions are faster many times, until
// ctx is done or the store fails.
func (a *attempt) tryToLeave(ctx context.Context) error {
	k := &a.keys[0]
	for failures := 0; outage.Wait(ctx, outage.Pause(failures, minLeaveBackoff, maxLeaveBackoff)) == nil; failures++ {
		m, err := a.m.store.Last(ctx, k.stream) // the answer to a write for the line may be lost
		if errors.Is(err, messagestore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		s, err := intentlog.Read(m)
		if err != nil || s.Done() || !slices.Contains(s.Line, a.request.Session) {
			return err
		}
		k.meet(s)
		if met, err := a.line(ctx, a.m.leavers.without(k.stream, s.Line)); err != nil || met == nil {
			return err
		}
	}
	return ctx.Err()
}

// outlasting returns a context for the store calls of a waiting request. It ends some time after
// ctx, because a call that is under way when ctx ends must not be aborted: otherwise nobody would
// know whether the session is in the line or has the lease.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(finishTimeout, cancel)
		context.AfterFunc(calls, func() { timer.Stop() })
	})
	return calls, func() {
		stop()
		cancel()
	}
}

// sleep waits for d. It returns early with a message that ended the lease, or with the context's
// error.
func (m *Manager) sleep(ctx context.Context, w *waiting.Waiter, d time.Duration) (*messagestore.Message, error) {
	if _, ok := m.store.(CategoryStore); !ok {
		d = min(d, pollInterval)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case message := <-w.Bell():
		return message, nil
	case <-timer.C:
		return nil, nil
	}
}

// newWakeups returns wakeups by the messages that end leases.
func (m *Manager) newWakeups() *waiting.Wakeups {
	store, _ := m.store.(CategoryStore) // a store that is none is asked every pollInterval
	return waiting.NewWakeups(store, m.category, []string{intentlog.TypeReleased, intentlog.TypeConfirmed}, tailInterval, m.config.Logger)
}
