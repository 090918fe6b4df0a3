package crew

import (
	"context"
	"errors"
	"time"
)

// A Scenario is the work of a run.
type Scenario struct {
	Clients []Client
	Phases  []Phase
	Healed  func(ctx context.Context) error // is called when there are no more faults, and the server is up; nil for nothing

	// Left names the work that is left, or returns "". A run waits until it is "", at most for the
	// time of Drain. With nil it does not wait.
	Left  func(ctx context.Context) (left string, err error)
	Drain time.Duration

	Drained func(ctx context.Context) error // is called then, while the processes are there; nil for nothing
	Dump    func(ctx context.Context) error // copies what the store has in the end into the history
}

// ErrStuck is the error of [Scenario.Left] when there is no more progress.
var ErrStuck = errors.New("nothing gets on")

// Grace is how long a process may take to end after the end of its input.
const Grace = 25 * time.Second

// Run does a whole run, from its beginning to its history. It returns the complaints about the run
// itself.
func Run(ctx context.Context, config Config, begin func(c *Crew) (*Scenario, error)) (complaints []string, err error) {
	c, err := New(ctx, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s, err := begin(c)
	if err != nil {
		return nil, err
	}
	err = c.do(ctx, s)
	return c.Complaints(), err
}

func (c *Crew) do(ctx context.Context, s *Scenario) error {
	for _, client := range s.Clients {
		if _, err := c.Add(client); err != nil {
			return err
		}
	}
	for _, p := range s.Phases {
		c.Log.Info().Str("phase", p.Name).Msg("running")
		if err := c.Torment(ctx, p); err != nil {
			return err
		}
	}
	if c.Postgres != nil {
		if err := c.Rest(ctx); err != nil {
			return err
		}
	}
	c.Heal()
	c.Log.Info().Msg("no more faults: all that was begun is to end")
	for _, step := range []func(context.Context) error{s.Healed, func(ctx context.Context) error { return c.drain(ctx, s) }, s.Drained} {
		if step != nil {
			if err := step(ctx); err != nil {
				return err
			}
		}
	}
	c.Stop(Grace)
	return errors.Join(c.History.Gather(ctx), s.Dump(ctx))
}

// drain waits until nothing is left, and records whether that came.
func (c *Crew) drain(ctx context.Context, s *Scenario) error {
	if s.Left == nil {
		return nil
	}
	call := c.Nemesis.Begin(Event{Call: Drain})
	limited, cancel := context.WithTimeout(ctx, s.Drain)
	defer cancel()
	for {
		left, err := s.Left(ctx)
		stuck := errors.Is(err, ErrStuck)
		if err != nil && !stuck {
			return err
		}
		if left == "" {
			c.Nemesis.End(call, Event{Answer: OK})
			return nil
		}
		if stuck || !Pause(limited, 100*time.Millisecond) {
			c.Nemesis.End(call, Event{Answer: Failed, Note: left})
			return ctx.Err()
		}
	}
}
