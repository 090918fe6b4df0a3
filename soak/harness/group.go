package harness

import (
	"fmt"
	"sync"
	"time"

	"github.com/dibs-go/dibs/soak/work"
)

const groupName = "group"

// A group is a consumer of several members, whose number changes.
type group struct {
	clients    *clients
	task       work.Task
	size       int
	generation int
	members    []*slot
}

// resize stops the present members, which have so long to checkpoint, and starts
// others; meanwhile, if they overlap. It has one caller at a time.
func (g *group) resize(size int, grace time.Duration, overlap bool) error {
	var old sync.WaitGroup
	for _, s := range g.members {
		old.Go(func() { s.stop(grace) })
	}
	if !overlap {
		old.Wait()
	}
	defer old.Wait()
	g.size = size
	g.generation++
	g.members = nil
	for member := range size {
		task := g.task
		task.Name = fmt.Sprintf("%s-%d-of-%d", groupName, member, size)
		task.Size, task.Member, task.Generation = size, member, g.generation
		s, err := g.clients.add(task.Name, task)
		if err != nil {
			return err
		}
		g.members = append(g.members, s)
	}
	return nil
}
