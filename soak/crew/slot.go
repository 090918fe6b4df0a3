package crew

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/soak/server"
)

// A Place is the environment in which a process begins.
type Place struct {
	Process string // its name, that no other process has
	Before  string // the name of the process that was in its slot before, "" if none was
	URL     string // of the server, "" for none
	Seed    uint64
	Random  *rand.Rand // for its doom
	Healed  bool       // there are no more faults: it does not die

	out string
}

// A Task is the part of a task that every process gets.
type Task struct {
	Process string // its name, that no other process has
	Before  string // the name of the process that was in its slot before, "" if none was
	Seed    uint64
	URL     string // of the store
	Dir     string // of the histories
	Doom    Doom
}

// Task returns the task of a process that dies at a point of points, after a number of turns: see
// [Place.Doom].
func (p Place) Task(points []Point, least, most int) Task {
	return Task{p.Process, p.Before, p.Seed, p.URL, p.out, Doom{Death: p.Doom(points, least, most)}}
}

// A Client is a kind of process, and its work.
type Client struct {
	Name    string   // of the slot
	Role    string   // for the faults of some
	Socket  string   // of the server that it connects to, by a proxy; "" for none
	Servers []string // the addresses of processes that it calls instead, by a proxy that chooses one for each connection
	Ends    bool     // it ends by itself once there are no more faults
	Task    func(p Place) any
}

// A Slot runs one process at a time, and starts another when it has ended, until Stop. It is safe
// for concurrent use.
type Slot struct {
	Client

	crew  *Crew
	proxy *testserver.Proxy               // nil for none
	rule  atomic.Pointer[testserver.Rule] // of a fault
	told  atomic.Pointer[server.Child]    // by [Crew.DrainProcess] to end
	over  chan struct{}

	mu       sync.Mutex
	child    *server.Child
	process  string
	stdin    io.WriteCloser
	stopping bool
}

// Add makes a slot: it starts a process, and another each time that the process has ended.
func (c *Crew) Add(client Client) (*Slot, error) {
	s := &Slot{Client: client, crew: c, over: make(chan struct{})}
	var err error
	switch {
	case len(s.Servers) > 0:
		s.proxy, err = testserver.NewHTTPProxy(s.Servers...)
	case s.Socket != "":
		s.proxy, err = testserver.NewProxy("unix", s.Socket)
	}
	if err != nil {
		return nil, err
	}
	if c.serverless.Store(s.proxy == nil); s.proxy != nil {
		s.proxy.SetRule(s.hear)
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.closeProxy())
	}
	c.mu.Lock()
	c.slots = append(c.slots, s)
	c.mu.Unlock()
	go s.supervise()
	return s, nil
}

// Slots returns the slots of these roles, or all.
func (c *Crew) Slots(roles ...string) (found []*Slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.slots {
		if len(roles) == 0 || slices.Contains(roles, s.Role) {
			found = append(found, s)
		}
	}
	return found
}

// Any draws a slot of these roles, or of all. There must be at least one.
func (c *Crew) Any(random *rand.Rand, roles ...string) *Slot {
	all := c.Slots(roles...)
	return all[random.IntN(len(all))]
}

func (s *Slot) closeProxy() error {
	if s.proxy == nil {
		return nil
	}
	return s.proxy.Close()
}

func (s *Slot) start() error {
	c := s.crew
	url := ""
	switch {
	case len(s.Servers) > 0:
		url = fmt.Sprintf("http://127.0.0.1:%d", s.proxy.Port())
	case s.proxy != nil:
		url = fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/%s?sslmode=disable", c.Password, s.proxy.Port(), Database)
	}
	_, before := s.Process()
	c.mu.Lock()
	c.numbers++
	process := fmt.Sprintf("%s-%d", s.Name, c.numbers)
	t := s.Task(Place{process, before, url, c.random.Uint64(), c.random, c.healed, c.Out})
	c.mu.Unlock()
	child, stdin, err := c.start(t)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child, s.process, s.stdin = child, process, stdin
	if c.isHealed() {
		_, _ = stdin.Write([]byte("\n")) // it may have ended
	}
	if s.stopping {
		return stdin.Close()
	}
	return nil
}

func (c *Crew) isHealed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.healed
}

// Failpoint begins the line that a process writes to standard error before it kills itself.
const Failpoint = "failpoint: killed at "

func (s *Slot) supervise() {
	defer close(s.over)
	c := s.crew
	for {
		child, process := s.Process()
		err := child.Ended()
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		switch healed := c.isHealed(); {
		case child.Killed():
			e := Event{Call: Kill, Target: process}
			if _, point, at := strings.Cut(err.Error(), Failpoint); at {
				e.Note = Failpoint + strings.TrimSpace(strings.SplitN(point, "\n", 2)[0])
			}
			c.Nemesis.Begin(e)
		case s.told.Load() == child && child.ExitCode() <= 0: // or it was told before it could hear
		case err != nil && (c.Forgives == nil || !c.Forgives(child)):
			c.Complain(fmt.Sprintf("%s: %v", process, err))
		case err == nil && healed && (stopping || s.Ends):
			stopping = true
			c.mu.Lock()
			c.lasted = append(c.lasted, process)
			c.mu.Unlock()
		case err == nil && !stopping:
			c.Complain(process + " ended without being told to")
		}
		if stopping {
			return
		}
		if err := s.start(); err != nil {
			c.Complain(fmt.Sprintf("%s cannot be started again: %v", s.Name, err))
			return
		}
	}
}

// Stop gives up the slot: it tells the process to end, and kills it after grace. It reports whether
// the process ended without being killed.
func (s *Slot) Stop(grace time.Duration) (byItself bool) {
	s.mu.Lock()
	s.stopping = true
	_ = s.stdin.Close() // it may have ended
	s.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	byItself = true
	select {
	case <-s.over:
	case <-timer.C:
		byItself = false
		s.Kill()
		<-s.over
	}
	c := s.crew
	c.mu.Lock()
	c.slots = slices.DeleteFunc(c.slots, func(other *Slot) bool { return other == s })
	c.mu.Unlock()
	if err := s.closeProxy(); err != nil {
		c.Complain(fmt.Sprintf("%s: %v", s.Name, err))
	}
	return byItself
}

// Stop ends the processes of these roles, or all, and reports the processes that it had to kill.
func (c *Crew) Stop(grace time.Duration, roles ...string) {
	var all sync.WaitGroup
	for _, s := range c.Slots(roles...) {
		all.Go(func() {
			if !s.Stop(grace) && grace > 0 {
				c.Complain(s.Name + " does not end when it is told to")
			}
		})
	}
	all.Wait()
}

// Process returns the current process, and its name.
func (s *Slot) Process() (child *server.Child, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child, s.process
}

// Signal sends a signal to the current process, and returns the process.
func (s *Slot) Signal(signal syscall.Signal) *server.Child {
	child, _ := s.Process()
	child.Signal(signal)
	return child
}

// Kill kills the process. Another replaces it.
func (s *Slot) Kill() { s.Signal(syscall.SIGKILL) }

// hear is the rule of the proxy. It follows the rule of the present fault, if there is one.
func (s *Slot) hear(m testserver.Message) testserver.Fault {
	if isAnswer(m) {
		s.crew.answers.Add(1)
	}
	if s.crew.Heard != nil {
		s.crew.Heard(m)
	}
	if rule := s.rule.Load(); rule != nil {
		return (*rule)(m)
	}
	return testserver.Pass
}

// Under sets a rule for the connections of the process for a time, unless they have a rule, and
// reports whether it did.
func (s *Slot) Under(ctx context.Context, rule testserver.Rule, d time.Duration) bool {
	if !s.rule.CompareAndSwap(nil, &rule) {
		return false
	}
	Pause(ctx, d)
	s.rule.Store(nil)
	s.proxy.Release()
	return true
}

// Sever closes the connections of the process.
func (s *Slot) Sever() { s.proxy.Sever() }

// Retarget makes the next connections go to another server.
func (s *Slot) Retarget(socket string) { s.proxy.Retarget(socket) }
