package harness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/work"
)

// Replicas are groups with members that come and go.
type Replicas struct {
	Shares, InOrder bool // there is a group whose members share the category, and a group in which one member handles all of it in order
	Most            int  // members of each
	Only            bool // there is no other consumer, and no handler
}

const inOrder = "inorder" // the name of a consumer

// lease is the lease of a member.
const lease = time.Second

// A crowd is one such group. It is safe for concurrent use.
type crowd struct {
	clients *clients
	task    work.Task
	most    int

	mu      sync.Mutex
	count   int // of members so far
	members []*slot
}

// startCrowds starts the groups, with two members each.
func (r *run) startCrowds() error {
	var names []string
	if r.options.Replicas.Shares {
		names = append(names, "shares")
	}
	if r.options.Replicas.InOrder {
		names = append(names, inOrder)
	}
	for _, name := range names {
		task := r.task(work.Consumer, work.Consumer)
		task.Consumer, task.Category = name, work.Events(0)
		task.InOrder = name == inOrder
		r.effects[task.Consumer] = task.Category
		c := &crowd{clients: r.clients, task: task, most: r.options.Replicas.Most}
		r.crowds = append(r.crowds, c)
		for range 2 {
			if err := c.join(func(string) {}); err != nil {
				return err
			}
		}
	}
	return nil
}

// healCrowds sees to it that each group has a member.
func (r *run) healCrowds() error {
	for _, c := range r.crowds {
		if c.size() > 0 {
			continue
		}
		if err := c.join(func(string) {}); err != nil {
			return err
		}
	}
	return nil
}

// join starts a member.
func (c *crowd) join(began func(target string)) error {
	c.mu.Lock()
	c.count++
	task := c.task
	task.Name = fmt.Sprintf("%s-%d", task.Consumer, c.count)
	c.mu.Unlock()
	began("one more, " + task.Name)
	s, err := c.clients.add(task.Name, task)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, s)
	return nil
}

// take takes a member out of the crowd, nil if there is none.
func (c *crowd) take(random *rand.Rand) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) == 0 {
		return nil
	}
	i := random.IntN(len(c.members))
	s := c.members[i]
	c.members = slices.Delete(c.members, i, i+1)
	return s
}

func (c *crowd) put(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, s)
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members)
}

func (n *nemesis) anyCrowd(random *rand.Rand) *crowd { return n.crowds[random.IntN(len(n.crowds))] }

// joinLeave starts a member, or has one end in order.
func (n *nemesis) joinLeave(_ context.Context, random *rand.Rand, begin func(string) func()) error {
	c := n.anyCrowd(random)
	if random.IntN(c.most+1) >= c.size() {
		end := func() {}
		defer func() { end() }()
		return c.join(func(target string) { end = begin(target) })
	}
	s := c.take(random)
	if s == nil {
		return nil
	}
	_, process := s.now()
	defer begin(process)()
	s.stop(stopGrace)
	return nil
}

// killMember kills a member, which is not replaced.
func (n *nemesis) killMember(_ context.Context, random *rand.Rand, begin func(string) func()) error {
	s := n.anyCrowd(random).take(random)
	if s == nil {
		return nil
	}
	_, process := s.now()
	defer begin(process)()
	s.abandon()
	return nil
}

// stopMember stops a member for longer than its lease.
func (n *nemesis) stopMember(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	c := n.anyCrowd(random)
	s := c.take(random)
	if s == nil {
		return nil
	}
	defer c.put(s)
	_, process := s.now()
	defer begin(process)()
	child := s.signal(syscall.SIGSTOP)
	wait(ctx, between(random, lease+lease/10, 3*lease))
	child.Signal(syscall.SIGCONT)
	return nil
}

var memberFaults = []string{check.JoinLeave, check.KillMember, check.StopMember}
