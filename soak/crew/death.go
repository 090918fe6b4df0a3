package crew

import (
	"fmt"
	"os"
	"sync/atomic"
)

// A Point is a moment at which a process can die.
type Point string

// A Death is a SIGKILL that a client sends to itself, when it passes Point for the Turn-th time.
type Death struct {
	Point Point
	Turn  int64
}

// A Doom kills this process at the moment that its [Death] names. It is safe for concurrent use.
type Doom struct {
	Death
	passed atomic.Int64
	lifted atomic.Bool
}

// Lift lets the process live.
func (d *Doom) Lift() { d.lifted.Store(true) }

// Passed returns how often the process has passed the point of its death.
func (d *Doom) Passed() int64 { return d.passed.Load() }

// due reports whether the moment of the death is now.
func (d *Doom) due(p Point) bool {
	return p == d.Point && d.passed.Add(1) == d.Turn && !d.lifted.Load()
}

// Pass kills the process if this is the moment.
func (d *Doom) Pass(p Point) {
	if !d.due(p) {
		return
	}
	fmt.Fprintln(os.Stderr, Failpoint+string(p))
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal is here
}

// Doom draws the death of a process: one of the points, and a turn, of which all orders of
// magnitude are equally likely. When the faults are over, it draws no death.
func (p Place) Doom(points []Point, least, most int) (d Death) {
	if !p.Healed && len(points) > 0 {
		d = Death{points[p.Random.IntN(len(points))], int64(least) + TurnOf(p.Random, most)}
	}
	return d
}
