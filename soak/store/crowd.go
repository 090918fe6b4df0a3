package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/work"
)

// Replicas are groups with members that come and go.
type Replicas struct {
	Shares, InOrder bool // there is a group whose members share the category, and a group in which one member handles all of it in order
	Most            int  // how many members each of them has at most
	Only            bool // there is no other consumer, and no handler
}

const inOrder = "inorder" // the name of a consumer

// lease is the lease of a member.
const lease = time.Second

// A crowd is one such group. It is safe for concurrent use.
type crowd struct {
	run      *run
	consumer string
	most     int

	mu      sync.Mutex
	count   int // of members so far
	members []*crew.Slot
}

// startCrowds starts the groups, with two members each.
func (r *run) startCrowds() error {
	for name, is := range map[string]bool{"shares": r.options.Replicas.Shares, inOrder: r.options.Replicas.InOrder} {
		if !is {
			continue
		}
		r.effects[name] = work.Events(0)
		r.wanted[work.Events(0)] = true
		c := &crowd{run: r, consumer: name, most: r.options.Replicas.Most}
		r.crowds = append(r.crowds, c)
		for range 2 {
			if err := c.join(func(string) {}); err != nil {
				return err
			}
		}
	}
	return nil
}

// next is the place of another member.
func (c *crowd) next() crew.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	return c.run.client(fmt.Sprintf("%s-%d", c.consumer, c.count), work.Consumer, work.Consumer, func(t *work.Task) {
		t.Consumer, t.Category, t.InOrder = c.consumer, work.Events(0), c.consumer == inOrder
	})
}

// join starts a member.
func (c *crowd) join(began func(target string)) error {
	client := c.next()
	began("one more, " + client.Name)
	s, err := c.run.Add(client)
	if err == nil {
		c.put(s)
	}
	return err
}

// take takes a member out of the crowd, or returns nil.
func (c *crowd) take(random *rand.Rand) *crew.Slot {
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

func (c *crowd) put(s *crew.Slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, s)
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members)
}

func (r *run) anyCrowd(random *rand.Rand) *crowd { return r.crowds[random.IntN(len(r.crowds))] }

// joinLeave starts a member, or has one end in order.
func (r *run) joinLeave(_ context.Context, random *rand.Rand, begin func(string) func()) error {
	c := r.anyCrowd(random)
	if random.IntN(c.most+1) >= c.size() {
		end := func() {}
		defer func() { end() }()
		return c.join(func(target string) { end = begin(target) })
	}
	s := c.take(random)
	if s == nil {
		return nil
	}
	_, process := s.Process()
	defer begin(process)()
	s.Stop(stopGrace)
	return nil
}

// killMember kills a member, which is not replaced.
func (r *run) killMember(_ context.Context, random *rand.Rand, begin func(string) func()) error {
	s := r.anyCrowd(random).take(random)
	if s == nil {
		return nil
	}
	_, process := s.Process()
	defer begin(process)()
	s.Stop(0)
	return nil
}

// stopMember stops a member for longer than its lease.
func (r *run) stopMember(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	c := r.anyCrowd(random)
	s := c.take(random)
	if s == nil {
		return nil
	}
	defer c.put(s)
	_, process := s.Process()
	defer begin(process)()
	child := s.Signal(syscall.SIGSTOP)
	crew.Pause(ctx, between(random, lease+lease/10, 3*lease))
	child.Signal(syscall.SIGCONT)
	return nil
}

// The faults of members. Each has the process as its target.
const (
	joinLeave  = "join-leave"
	killMember = "kill-member"
	stopMember = "stop-member"
)

var memberFaults = []string{joinLeave, killMember, stopMember}
