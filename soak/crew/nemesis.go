package crew

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/soak/promise"
)

// A Fault happens repeatedly. Without times, the next one happens after Answers to twice as many
// answers of the server. With times, it happens after a time between Least and Most, and then at
// least Answers further answers, so that a slow machine makes progress.
type Fault struct {
	Answers     int64
	Least, Most time.Duration
	Goal        string // the key of its figure: when the figure has reached its goal, the fault becomes rare; "" for none
	After       string // the key of a goal: until it is reached, the fault is less frequent; "" for none
	Run         func(ctx context.Context, random *rand.Rand) error
}

// The factors by which the time to the next fault grows: seldom if the fault's goal is reached,
// before if the goal of After is not, or if the run has no goals and the fault has times. If the
// server is always down, faults have little to disturb.
const (
	seldom = 8
	before = 3
)

// Enough reports whether the goal of a key is reached, as far as known.
func (c *Crew) Enough(key string) bool {
	counted := c.counted.Load()
	return key != "" && c.Goals != nil && counted != nil && counted.Of(key) >= c.Goals[key]
}

// wait waits until the time of the next fault, and returns false if ctx has ended.
func (c *Crew) wait(ctx context.Context, f *Fault, random *rand.Rand) bool {
	k := int64(1)
	switch {
	case c.Enough(f.Goal):
		k = seldom
	case f.Most > 0 && f.Goal != "" && c.Goals == nil, f.After != "" && !c.Enough(f.After):
		k = before
	}
	answers := c.Answers()
	if f.Most == 0 {
		return c.AwaitAnswers(ctx, answers+k*(f.Answers+random.Int64N(f.Answers)))
	}
	if !Pause(ctx, time.Duration(k)*(f.Least+time.Duration(random.Int64N(int64(f.Most-f.Least))))) {
		return false
	}
	return c.AwaitAnswers(ctx, answers+f.Answers)
}

// A Phase is a part of a run, with its faults.
type Phase struct {
	Name   string
	For    time.Duration // at most
	Until  promise.Goals // with which it ends earlier; nil for none
	Faults []Fault
	Beside []func(ctx context.Context, end func()) error // run at the same time as the faults; end ends the phase
}

// Torment runs the faults of a phase, concurrently.
func (c *Crew) Torment(ctx context.Context, p Phase) error {
	all := append(slices.Clip(p.Beside), func(ctx context.Context, end func()) error { return c.watch(ctx, p.Until, end) })
	for i, f := range p.Faults {
		all = append(all, func(ctx context.Context, _ func()) error {
			random := rand.New(rand.NewPCG(c.Seed, uint64(i))) //nolint:gosec // a few
			for c.wait(ctx, &f, random) {
				if err := f.Run(ctx, random); err != nil {
					return err
				}
			}
			return nil
		})
	}
	limited, cancel := context.WithTimeout(ctx, p.For)
	defer cancel()
	var group sync.WaitGroup
	errs := make([]error, len(all))
	for i, f := range all {
		group.Go(func() {
			if errs[i] = f(limited, cancel); errs[i] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// watch logs how far the run is from its goals, and ends a phase when it has reached its goals. It
// takes at most a tenth of the time, because counting takes long.
func (c *Crew) watch(ctx context.Context, until promise.Goals, reached func()) error {
	const least, part = 2 * time.Second, 10
	if c.Goals == nil {
		<-ctx.Done()
		return nil
	}
	began := time.Now()
	for every := least; Pause(ctx, every); {
		looked := time.Now()
		counted, err := c.count(ctx)
		if err != nil {
			return err
		}
		c.counted.Store(&counted)
		c.Log.Info().Msg(counted.Progress(c.Goals, time.Since(began)))
		if until != nil && len(counted.Missed(until)) == 0 {
			reached()
		}
		every = max(least, part*time.Since(looked))
	}
	return nil
}

// count returns the figures up to now, with those of the store if it answers in time.
func (c *Crew) count(ctx context.Context) (promise.Figures, error) {
	if c.Look != nil {
		limited, cancel := context.WithTimeout(ctx, patience)
		c.Look(limited)
		cancel()
	}
	ctx = context.WithoutCancel(ctx) // what is gathered is gathered whole
	if err := c.History.Gather(ctx); err != nil {
		return nil, err
	}
	return c.History.Figures(ctx)
}

const patience = 2 * time.Second // for the answer of a server that may be down

// Trouble records that a fault begins. The function that it returns records that the fault has
// ended.
func (c *Crew) Trouble(name, target string) (end func()) {
	call := c.Nemesis.Begin(Event{Call: Faulted, Name: name, Target: target})
	return func() { c.Nemesis.End(call, Event{Answer: OK}) }
}

// StopProcess stops a process, calls until, and lets the process go on.
func (c *Crew) StopProcess(s *Slot, until func(since int64)) {
	child, process := s.Process()
	call := c.Nemesis.Begin(Event{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	until(call.At)
	a := Event{Answer: OK}
	if !child.Running() { // a kill was first
		a.Answer = Failed
	}
	child.Signal(syscall.SIGCONT)
	c.Nemesis.End(call, a)
}

// KillServer kills the server, and starts it again. With a probability of 1 in times it first
// waits, for up to while. It waits for callers that hold Busy for reading, so the server is up for
// them.
func (c *Crew) KillServer(ctx context.Context, random *rand.Rand, times int, while time.Duration) error {
	c.Busy.Lock()
	defer c.Busy.Unlock()
	up := c.Crashed()
	if err := c.Postgres.Kill(); err != nil {
		return err
	}
	if random.IntN(times) == 0 {
		Pause(ctx, Dice{random}.Sooner(while))
	}
	ctx = context.WithoutCancel(ctx)
	if err := errors.Join(c.Postgres.Start(ctx), c.Postgres.Await(ctx)); err != nil {
		return err
	}
	up()
	return nil
}

// Crashed records that the server is down, and up again.
func (c *Crew) Crashed() (up func()) {
	call := c.Nemesis.Begin(Event{Call: Kill, Target: Server})
	return func() { c.Nemesis.End(call, Event{Answer: OK}) }
}

// Crashes records crashes of a server with a set clock, and starts it again. It is for
// [Crew.Torment].
func (c *Crew) Crashes(ctx context.Context, _ func()) error {
	return c.Postgres.Crashes(ctx, c.Crashed)
}

// CutOff closes the connections of a process. One time in three it closes them at once; otherwise,
// for up to 20 ms, each connection before its next answer.
func (c *Crew) CutOff(ctx context.Context, s *Slot, random *rand.Rand) {
	_, process := s.Process()
	c.Nemesis.Begin(Event{Call: Cut, Target: process})
	if random.IntN(3) == 0 {
		s.Sever()
		return
	}
	s.Under(ctx, When(isAnswer, testserver.CloseBefore), Dice{random}.Sooner(20*time.Millisecond))
}

// When returns a rule that applies the fault to the messages that is accepts.
func When(is func(m testserver.Message) bool, fault testserver.Fault) testserver.Rule {
	return func(m testserver.Message) testserver.Fault {
		if is(m) {
			return fault
		}
		return testserver.Pass
	}
}

// isAnswer reports whether a message is the answer to a statement or, over HTTP/2, begins or ends the
// answer to a call.
func isAnswer(m testserver.Message) bool {
	return m.From == testserver.FromServer && (m.Name == "CommandComplete" || m.Name == "HEADERS")
}

// FromServer reports whether a message is the server's.
func FromServer(m testserver.Message) bool { return m.From == testserver.FromServer }

// JumpClock sets the server's clock wrong by five minutes to an hour, for half a lease or more,
// then sets it right, and waits for the time right.
func (c *Crew) JumpClock(ctx context.Context, random *rand.Rand, lease, right time.Duration) error {
	off := (5*time.Minute + Dice{random}.Sooner(55*time.Minute)).Truncate(time.Second)
	if random.IntN(3) == 0 {
		off = -off
	}
	call := c.Nemesis.Begin(Event{Call: Jump, Off: off.Microseconds()})
	if err := c.Postgres.SetClock(off); err != nil {
		return err
	}
	Pause(ctx, lease/2+Dice{random}.Sooner(lease))
	err := c.Postgres.SetClock(0)
	c.Nemesis.End(call, Event{Answer: OK})
	Pause(ctx, right)
	return err
}
