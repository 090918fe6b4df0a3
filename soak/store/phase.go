package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// A phase is a part of a run in which the faults come in one way.
type phase struct {
	crew.Phase
	faults      []fault
	lanes       int           // how many faults there may be at a time
	least, most time.Duration // between two faults of a lane
	alone       int           // of how many faults one is alone; 0 for the result of the times
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

// sparing are the faults that do not affect the server, and only few connections.
var sparing = []string{"kill-client", cut, "twin", migrate, release, reindex, raiseEpoch}

// leastOfPhase is how long a phase takes that another follows, if there is time: long enough for
// each fault to meet something.
const leastOfPhase = 3 * time.Minute

// How long nothing else may go wrong before and after a kill of the server, for the kill to count
// as alone: see limits in the schema of package check.
const (
	aloneBefore = time.Second
	aloneAfter  = 2 * time.Second
)

// phases returns the phases that the options name, or the first. All but the last have an end:
// kills, with goals, when the server was killed often enough, and the others after a while.
func (o *Options) phases(chosen []fault) ([]phase, error) {
	names := o.Phases
	if len(names) == 0 {
		names = []string{Mixed}
	}
	all := make([]phase, len(names))
	for i, name := range names {
		p := phase{Phase: crew.Phase{Name: name, For: o.Duration, Until: o.Goals}, lanes: 1, most: o.Gap}
		last := i == len(names)-1
		if !last {
			p.For, p.Until = min(max(leastOfPhase, o.Duration/12), o.Duration/time.Duration(len(names))), nil
		}
		switch name {
		case Mixed:
			p.faults, p.lanes = chosen, 2
		case Kills:
			p.faults, p.least, p.most = pick(chosen, crashing), aloneAfter, aloneAfter+aloneBefore
			if len(p.faults) == 0 {
				return nil, fmt.Errorf("the faults have none that kills a server for a phase of %s", Kills)
			}
			kills := o.Goals["serverKills"]
			if time.Duration(kills)*p.most > o.Duration { // or it would not be killed often enough
				p.least, p.most, p.alone = 0, aloneBefore*3/2, 25
			}
			if !last && kills > 0 {
				p.For, p.Until = o.Duration, promise.Goals{"serverKills": kills}
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

// pick returns the faults with these names.
func pick(chosen []fault, names []string) (picked []fault) {
	for _, f := range chosen {
		if slices.Contains(names, f.name) {
			picked = append(picked, f)
		}
	}
	return picked
}

// phase returns a phase for the crew: in each lane one fault after the other, drawn by its weight.
func (r *run) phase(p phase) crew.Phase {
	if len(p.faults) == 0 {
		return p.Phase
	}
	opening := p.opening(rand.New(rand.NewPCG(r.options.Seed, 0x0be9)))
	lane := crew.Fault{Least: p.least, Most: p.most, Run: func(ctx context.Context, random *rand.Rand) error {
		f, first := opening.next()
		if !first {
			f = p.draw(random)
		}
		solitude := func() { crew.Pause(ctx, between(random, aloneAfter, aloneAfter+aloneBefore)) }
		if p.alone > 0 && random.IntN(p.alone) == 0 {
			solitude()
			defer solitude()
		}
		return r.one(ctx, f, random)
	}}
	for range p.lanes {
		p.Faults = append(p.Faults, lane)
	}
	return p.Phase
}

// one has a fault, unless it is there already. Several members may come and go at a time.
func (r *run) one(ctx context.Context, f fault, random *rand.Rand) error {
	if !slices.Contains(memberFaults, f.name) {
		name := f.name
		if name == release {
			name = migrate // they take turns by a lock
		}
		r.mu.Lock()
		turn := r.turns[name]
		if turn == nil {
			turn = &sync.Mutex{}
			r.turns[name] = turn
		}
		r.mu.Unlock()
		if !turn.TryLock() {
			return nil
		}
		defer turn.Unlock()
	}
	if err := f.run(r, ctx, random, func(target string) func() { return r.Trouble(f.name, target) }); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return nil
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

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return crew.Dice{Rand: random}.Between(least, most)
}
