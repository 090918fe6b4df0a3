package measure

import (
	"context"
	"fmt"
	"slices"
)

// A Case is one kind of work, with the figures of several contenders.
type Case struct {
	// Name is the case's name in parts, kind/variant/size: write/1-category/64-callers.
	// --only selects by it.
	Name string

	// Shows is the heading of the table, which says what the case shows: "Write at an expected
	// version, one hot category, 64 callers".
	Shows string

	// Contenders are measured one after the other.
	Contenders []Contender

	// Goals are compared with the measured figures.
	Goals []Goal

	// LongOnly leaves the case out of a short run.
	LongOnly bool

	// Setup, if not nil, is called once, before the first cell, with a cell that lives as long as
	// the case: functions that it passes to [Cell.Cleanup] are called after the last round.
	Setup func(ctx context.Context, cell *Cell) error
}

// A Contender is one way of doing the work of a case.
type Contender struct {
	// Name is the contender's name in the table: "Dibs", "message-db", "COPY".
	Name string

	// Run does and measures one cell.
	Run func(ctx context.Context, cell *Cell) error
}

// A Metric is a quantity that a cell measures.
type Metric string

// The metrics of cells, as far as they apply; the last two are for [Cell.Set], which may add others
// too.
const (
	Rate      Metric = "rate"             // operations a second
	P50       Metric = "p50"              // latency of an operation, in seconds
	P99       Metric = "p99"              //
	ClientCPU Metric = "client CPU"       // seconds of processor time an operation
	ServerCPU Metric = "server CPU"       //
	WAL       Metric = "WAL"              // bytes an operation
	Stored    Metric = "stored"           // bytes of tables and indexes an operation
	WriteP99  Metric = "p99 of the write" // where more than the write is timed
	Least     Metric = "least"            // seconds of an operation, the least of many
)

// A Goal is a bound for a contender's figure, or for its ratio to the figure of another contender.
type Goal struct {
	Metric Metric

	// Of is the contender that the goal is for. To is the contender that it is compared with, or ""
	// for a goal in the metric's unit.
	Of, To string

	// AtLeast or AtMost is the bound; the other is 0.
	AtLeast, AtMost float64
}

// Met reports whether a figure or ratio reaches the goal.
func (g Goal) Met(value float64) bool {
	if g.AtMost > 0 {
		return value <= g.AtMost
	}
	return value >= g.AtLeast
}

// Bound returns AtLeast or AtMost, whichever is set.
func (g Goal) Bound() float64 { return max(g.AtLeast, g.AtMost) }

// validate finds mistakes that would only be noticed at the end of a long run.
func (c Case) validate() error {
	names := map[string]bool{}
	for _, contender := range c.Contenders {
		if names[contender.Name] || contender.Name == "" || contender.Run == nil {
			return fmt.Errorf("case %s: contender %q is there twice, or lacks its name or Run", c.Name, contender.Name)
		}
		names[contender.Name] = true
	}
	for _, g := range c.Goals {
		if !names[g.Of] || g.To != "" && !names[g.To] || (g.AtLeast > 0) == (g.AtMost > 0) {
			return fmt.Errorf("case %s: the goal for %s of %q to %q names no contender, or not one bound", c.Name, g.Metric, g.Of, g.To)
		}
	}
	if len(c.Contenders) == 0 || c.Shows == "" {
		return fmt.Errorf("case %s lacks contenders or a sentence", c.Name)
	}
	return nil
}

// Validate returns an error for the first case that cannot be run, or has the name of an earlier
// case.
func Validate(cases []Case) error {
	for i, c := range cases {
		if err := c.validate(); err != nil {
			return err
		}
		if slices.ContainsFunc(cases[:i], func(other Case) bool { return other.Name == c.Name }) {
			return fmt.Errorf("there are two cases %s", c.Name)
		}
	}
	return nil
}
