package work

import (
	"context"
	"sync"
)

// look asks for versions, and reads the ends of streams, until ctx is done: it witnesses the writes
// of others and writes nothing.
func (c *client) look(ctx context.Context) error {
	var all sync.WaitGroup
	for i := range c.task.Load.Questions {
		all.Go(func() { c.newCaller(i).look(ctx) })
	}
	all.Wait()
	return nil
}

func (w *caller) look(ctx context.Context) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, Patience)
		if w.random.IntN(10) == 0 {
			w.read(limited)
		} else {
			w.ask(limited, w.stream())
		}
		cancel()
		w.pause(ctx)
	}
}
