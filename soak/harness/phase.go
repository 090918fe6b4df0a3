package harness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A phase is a part of a run in which the nemesis goes about its work in one way.
type phase struct {
	name        string
	faults      []fault
	lanes       int           // how many faults there may be at a time
	least, most time.Duration // between two faults of a lane
	alone       int           // of how many faults one is alone; 0 for what comes of the times
	atMost      time.Duration // it takes; 0 for as long as the run
	crashes     int           // of the server in all of the run, by which it is over; 0 for any
}

// The names of phases.
const (
	Mixed = "mixed" // every fault, two at a time
	Kills = "kills" // the server killed, one time after the other, and nothing else but what dies at failpoints
	Calm  = "calm"  // the server left alone: clients die, are cut off, and have doubles
)

// crashing are the faults that kill the server.
var crashing = []string{"kill-backend", "kill-server"}

// sparing are the faults that leave the server alone, and do not keep it busy.
var sparing = []string{"kill-client", "cut", "twin", "resize", "migrate", "reindex"}

// mixedFor is how long all faults are mixed before a phase of kills: long enough for each
// to meet something.
const mixedFor = 3 * time.Minute

// alone is how much time there is before a kill of the server, and after it, in which
// nothing else goes wrong, for it to be a single fault.
const (
	aloneBefore = time.Second
	aloneAfter  = 2 * time.Second
)

// phases returns those that the options name, or the first. A run that has goals leaves the
// server alone once it was killed often enough, and goes on until the others are reached.
func (o *Options) phases(chosen []fault) ([]phase, error) {
	mixed := phase{name: Mixed, faults: chosen, lanes: 2, most: o.Gap}
	kills := phase{name: Kills, lanes: 1, least: aloneAfter, most: aloneAfter + aloneBefore}
	for _, f := range chosen {
		if slices.Contains(crashing, f.name) {
			kills.faults = append(kills.faults, f)
		}
	}
	if len(o.Phases) == 0 {
		return []phase{mixed}, nil
	}
	var all []phase
	for i, name := range o.Phases {
		switch last := i == len(o.Phases)-1; name {
		case Mixed:
			if !last {
				mixed.atMost = max(mixedFor, o.Duration/12)
			}
			all = append(all, mixed)
		case Kills:
			if len(kills.faults) == 0 {
				return nil, fmt.Errorf("the faults have none that kills a server for a phase of %s", Kills)
			}
			if o.Goals != nil {
				kills.crashes = o.Goals.ServerKills
				if time.Duration(kills.crashes)*kills.most > o.Duration {
					kills.least, kills.most, kills.alone = 0, aloneBefore*3/2, 25 // or it would not be killed often enough
				}
			}
			all = append(all, kills)
		default:
			return nil, fmt.Errorf("there is no phase %q", name)
		}
	}
	if o.Goals != nil && all[len(all)-1].name == Kills {
		calm := phase{name: Calm, lanes: 1, most: o.Gap}
		for _, f := range chosen {
			if slices.Contains(sparing, f.name) {
				calm.faults = append(calm.faults, f)
			}
		}
		all = append(all, calm)
	}
	return all, nil
}

// wait returns how long to wait before a fault that is alone or not, after one that was or not.
func (p *phase) wait(random *rand.Rand, alone, after bool) time.Duration {
	if alone || after {
		return between(random, aloneAfter, aloneAfter+aloneBefore)
	}
	return between(random, p.least, p.most)
}

// draw returns a fault by its weight.
func (p *phase) draw(random *rand.Rand) fault {
	total := 0
	for _, f := range p.faults {
		total += f.weight
	}
	at := random.IntN(total)
	for _, f := range p.faults {
		if at -= f.weight; at < 0 {
			return f
		}
	}
	panic("the weights are more than their sum")
}

// An opening has each fault once, before any comes again.
type opening struct {
	mu   sync.Mutex
	left []fault
}

func (p *phase) opening(random *rand.Rand) *opening {
	o := &opening{left: slices.Clone(p.faults)}
	random.Shuffle(len(o.left), func(i, j int) { o.left[i], o.left[j] = o.left[j], o.left[i] })
	return o
}

func (o *opening) next() (f fault, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.left) == 0 {
		return fault{}, false
	}
	f, o.left = o.left[0], o.left[1:]
	return f, true
}
