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
	alone       int           // of how many faults one is alone; 0 for the result of the times
	atMost      time.Duration // it takes; 0 for as long as the run
	crashes     int           // of the server in all of the run, by which it is over; 0 for any
}

// The names of phases.
const (
	Mixed = "mixed" // every fault, two at a time
	Kills = "kills" // the server killed, one time after the other, and no clients but the ones that die at failpoints
	Crowd = "crowd" // members of groups that come and go each second, and nothing else
	Calm  = "calm"  // the server left as it is, so that much is done; clients die, are cut off, have doubles
)

// crashing are the faults that kill the server.
var crashing = []string{"kill-backend", "kill-server"}

// sparing are the faults that leave the server as it is, and all connections but few.
var sparing = []string{"kill-client", cut, "twin", migrate, release, reindex, raiseEpoch}

// leastOfPhase is how long a phase takes that another follows, if there is time: long enough for each
// fault to meet something.
const leastOfPhase = 3 * time.Minute

// alone is how much time there is before a kill of the server, and after it, in which
// nothing else goes wrong, for it to be a single fault.
const (
	aloneBefore = time.Second
	aloneAfter  = 2 * time.Second
)

// phases returns the phases that the options name, or the first. All but the last have an end:
// kills, with goals, when the server was killed often enough, and the others after a while.
func (o *Options) phases(chosen []fault) ([]phase, error) {
	if len(o.Phases) == 0 {
		return []phase{{name: Mixed, faults: chosen, lanes: 2, most: o.Gap}}, nil
	}
	all := make([]phase, len(o.Phases))
	for i, name := range o.Phases {
		p := phase{name: name, lanes: 1, most: o.Gap}
		last := i == len(o.Phases)-1
		if !last {
			p.atMost = min(max(leastOfPhase, o.Duration/12), o.Duration/time.Duration(len(o.Phases)))
		}
		switch name {
		case Mixed:
			p.faults, p.lanes = chosen, 2
		case Kills:
			p.faults, p.least, p.most = pick(chosen, crashing), aloneAfter, aloneAfter+aloneBefore
			if len(p.faults) == 0 {
				return nil, fmt.Errorf("the faults have none that kills a server for a phase of %s", Kills)
			}
			if o.Goals == nil {
				break
			}
			if time.Duration(o.Goals.ServerKills)*p.most > o.Duration { // or it would not be killed often enough
				p.least, p.most, p.alone = 0, aloneBefore*3/2, 25
			}
			if !last {
				p.crashes, p.atMost = o.Goals.ServerKills, 0
			}
		case Crowd:
			p.faults, p.lanes, p.least, p.most = pick(chosen, memberFaults), 3, 500*time.Millisecond, 1500*time.Millisecond
		case Calm:
			p.faults = pick(chosen, sparing)
		default:
			return nil, fmt.Errorf("there is no phase %q", name)
		}
		all[i] = p
	}
	return all, nil
}

// pick returns the faults that have one of the names.
func pick(chosen []fault, names []string) (picked []fault) {
	for _, f := range chosen {
		if slices.Contains(names, f.name) {
			picked = append(picked, f)
		}
	}
	return picked
}

// wait returns how long to wait before the next fault: longer if that fault is to be alone, or if the
// last one was (after).
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
