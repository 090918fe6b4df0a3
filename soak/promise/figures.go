package promise

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Figure is a number that describes a run. A run that does too little is meaningless.
type Figure struct {
	Key, Name string
	N         int
}

// Figures are all figures of a run, in the order of the table.
type Figures []Figure

// Goals are how much a run must do, by the keys of figures.
type Goals map[string]int

// Times returns goals that are k times as high.
func (g Goals) Times(k int) Goals {
	all := Goals{}
	for key, n := range g {
		all[key] = n * k
	}
	return all
}

// With returns the goals, with others replacing those of the same keys.
func (g Goals) With(others Goals) Goals {
	all := maps.Clone(g)
	maps.Copy(all, others)
	return all
}

// Of returns the figure with a key.
func (f Figures) Of(key string) int {
	for _, one := range f {
		if one.Key == key {
			return one.N
		}
	}
	return 0
}

// Plus returns the sum of the figures of two runs of a scenario, with the keys of other.
func (f Figures) Plus(other Figures) (sum Figures) {
	for _, one := range other {
		one.N += f.Of(one.Key)
		sum = append(sum, one)
	}
	return sum
}

// Left returns the goals that are not reached yet.
func (f Figures) Left(goals Goals) Goals {
	left := Goals{}
	for key, goal := range goals {
		left[key] = max(goal-f.Of(key), 0)
	}
	return left
}

// Missed returns the names of the goals that were not reached, or have no figure.
func (f Figures) Missed(goals Goals) (names []string) {
	names = f.short(goals)
	for _, key := range slices.Sorted(maps.Keys(goals)) {
		if goals[key] > 0 && !slices.ContainsFunc(f, func(one Figure) bool { return one.Key == key }) {
			names = append(names, fmt.Sprintf("%s: 0 of %d", key, goals[key]))
		}
	}
	return names
}

// short names the figures that are below their goals.
func (f Figures) short(goals Goals) (names []string) {
	for _, one := range f {
		if goal := goals[one.Key]; one.N < goal {
			names = append(names, fmt.Sprintf("%s: %d of %d", strings.TrimSpace(one.Name), one.N, goal))
		}
	}
	return names
}

// Table returns a table of the figures and their goals.
func (f Figures) Table(goals Goals) string {
	var b strings.Builder
	width := 0
	for _, one := range f {
		width = max(width, len(one.Name))
	}
	fmt.Fprintf(&b, "%-*s %9s %9s\n", width, "figure", "goal", "counted")
	for _, one := range f {
		goal, missed := goals[one.Key], ""
		if one.N < goal {
			missed = "   missed"
		}
		fmt.Fprintf(&b, "%-*s %9d %9d%s\n", width, one.Name, goal, one.N, missed)
	}
	return b.String()
}

// Progress returns, in one line, the rest of the goals that are known during a run.
func (f Figures) Progress(goals Goals, took time.Duration) string {
	missed := f.short(goals)
	if len(missed) == 0 {
		return fmt.Sprintf("after %v: all goals are reached", took.Round(time.Second))
	}
	return fmt.Sprintf("after %v: %s", took.Round(time.Second), strings.Join(missed, ", "))
}
