package crew

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
)

// Dibs is the role of processes that serve the store, as dibs serve does.
const Dibs = "dibs"

// Addresses draws the addresses of n processes that serve. They are outside of the range from which
// the kernel takes ports, so that nobody has them when such a process is replaced.
func Addresses(n int) (all []string, err error) {
	for tries := 100 * n; len(all) < n; tries-- {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(15_000))) //nolint:noctx,gosec // for a moment
		if err == nil {
			all = append(all, listener.Addr().String())
			defer listener.Close() // the next is another
		} else if tries == 0 {
			return nil, err
		}
	}
	return all, nil
}

// ServeStore answers calls for a store until ctx ends or the process gets a SIGTERM.
func ServeStore(ctx context.Context, store *messagestore.Store, address string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	s, err := serve.New(store, &serve.Config{Logger: logger.Silent()})
	if err != nil {
		return err
	}
	return s.Run(ctx, serve.Listen{Address: address})
}

// drainTime is how long a process that serves may take to end, though it may be stopped meanwhile.
const drainTime = 20 * time.Second

// DrainProcess tells a process that serves to end, and waits until it has. Another replaces it.
func (c *Crew) DrainProcess(s *Slot) {
	child, process := s.Process()
	s.told.Store(child)
	end := c.Trouble("drain", process)
	child.Signal(syscall.SIGTERM)
	if !child.EndsWithin(drainTime) {
		c.Complain(process + " does not drain")
		child.Kill()
	}
	end()
}
