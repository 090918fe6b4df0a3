package crew

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/soak/server"
)

// A Task makes the task of a process, whose name no other process has. Once the crew is healed it is of none that dies.
type Task func(process, url string, random *rand.Rand, healed bool) any

// A Slot is a place for a process. A killed process is replaced. It is safe for concurrent use.
type Slot struct {
	Name string

	crew  *Crew
	task  Task
	ends  bool                         // its processes end by themselves once there are no more faults
	proxy *pgproxy.Proxy               // nil for none
	rule  atomic.Pointer[pgproxy.Rule] // of a fault
	over  chan struct{}

	mu       sync.Mutex
	child    *server.Child
	process  string
	stdin    io.WriteCloser
	stopping bool
}

// Add makes a slot: it starts a process whose connections go by a proxy to the server at a socket, and another each
// time that one ended. Without a socket there is no proxy, and the task's URL is "". If ends is true, its processes end
// by themselves once there are no more faults.
func (c *Crew) Add(name, socket string, ends bool, task Task) error {
	s := &Slot{Name: name, crew: c, task: task, ends: ends, over: make(chan struct{})}
	if c.serverless = socket == ""; !c.serverless {
		var err error
		if s.proxy, err = pgproxy.New("unix", socket); err != nil {
			return err
		}
		s.proxy.SetRule(s.hear)
	}
	if err := s.start(); err != nil {
		return errors.Join(err, s.closeProxy())
	}
	c.Slots = append(c.Slots, s)
	go s.supervise()
	return nil
}

func (s *Slot) closeProxy() error {
	if s.proxy == nil {
		return nil
	}
	return s.proxy.Close()
}

func (s *Slot) start() error {
	c := s.crew
	c.mu.Lock()
	c.numbers++
	process := fmt.Sprintf("%s-%d", s.Name, c.numbers)
	url := ""
	if s.proxy != nil {
		url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.proxy.Port(), Database)
	}
	t := s.task(process, url, c.random, c.healed)
	c.mu.Unlock()
	child, stdin, err := c.start(t)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child, s.process, s.stdin = child, process, stdin
	c.mu.Lock()
	healed := c.healed
	c.mu.Unlock()
	if healed {
		_, _ = stdin.Write([]byte("\n")) // it may have ended
	}
	if s.stopping {
		return stdin.Close()
	}
	return nil
}

func (s *Slot) supervise() {
	defer close(s.over)
	for {
		child, process := s.Process()
		err := child.Ended()
		if child.Killed() {
			s.crew.Nemesis.Begin(Event{Call: Kill, Target: process})
		} else if err != nil {
			s.crew.Complain(fmt.Sprintf("%s: %v", process, err))
		}
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		s.crew.mu.Lock()
		stopping = stopping || s.ends && s.crew.healed && err == nil
		s.crew.mu.Unlock()
		if stopping {
			return
		}
		if err == nil {
			s.crew.Complain(process + " ended without being told to")
		}
		if err := s.start(); err != nil {
			s.crew.Complain(fmt.Sprintf("%s cannot be started again: %v", s.Name, err))
			return
		}
	}
}

// stop tells the process to end. It has so long before it is killed.
func (s *Slot) stop() error {
	const grace = 25 * time.Second
	s.mu.Lock()
	s.stopping = true
	_ = s.stdin.Close() // it may have ended
	s.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.over:
	case <-timer.C:
		s.crew.Complain(s.Name + " does not end when it is told to")
		child, _ := s.Process()
		child.Kill()
		<-s.over
	}
	return s.closeProxy()
}

// Process returns the present process, and its name.
func (s *Slot) Process() (child *server.Child, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child, s.process
}

// Kill kills the process. Another takes its place.
func (s *Slot) Kill() {
	child, _ := s.Process()
	child.Signal(syscall.SIGKILL)
}

// hear is the rule of the proxy. It follows the rule of the present fault, if there is one.
func (s *Slot) hear(m pgproxy.Message) pgproxy.Fault {
	if m.From == pgproxy.Server && m.Name == "CommandComplete" {
		s.crew.answers.Add(1)
	}
	if s.crew.Heard != nil {
		s.crew.Heard(m)
	}
	if rule := s.rule.Load(); rule != nil {
		return (*rule)(m)
	}
	return pgproxy.Pass
}

// Under has a rule for the connections of the process for a time, unless there is one.
func (s *Slot) Under(ctx context.Context, rule pgproxy.Rule, d time.Duration) {
	if !s.rule.CompareAndSwap(nil, &rule) {
		return
	}
	Pause(ctx, d)
	s.rule.Store(nil)
	s.proxy.Release()
}

// Sever closes the connections of the process.
func (s *Slot) Sever() { s.proxy.Sever() }

// Retarget has the next connections go to another server.
func (s *Slot) Retarget(socket string) { s.proxy.Retarget(socket) }
