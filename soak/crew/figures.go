package crew

import (
	"fmt"
	"strings"
	"time"
)

// Figures are the numbers of a run, which may have goals, in the order of its table. N is the struct of all of them.
type Figures[N any] []struct {
	Name string
	Of   func(n *N) *int
}

// Missed names the goals that were not reached.
func (f Figures[N]) Missed(n, goals *N) (names []string) {
	for _, f := range f {
		if got, goal := *f.Of(n), *f.Of(goals); got < goal {
			names = append(names, fmt.Sprintf("%s: %d of %d", strings.TrimSpace(f.Name), got, goal))
		}
	}
	return names
}

// Table has the figures beside their goals.
func (f Figures[N]) Table(n, goals *N) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-44s %8s %8s\n", "figure", "goal", "counted")
	for _, f := range f {
		got, goal, missed := *f.Of(n), *f.Of(goals), ""
		if got < goal {
			missed = "   missed"
		}
		fmt.Fprintf(&b, "%-44s %8d %8d%s\n", f.Name, goal, got, missed)
	}
	return b.String()
}

// Progress has the rest of the goals, in one line.
func (f Figures[N]) Progress(n, goals *N, took time.Duration) string {
	missed := f.Missed(n, goals)
	if len(missed) == 0 {
		return fmt.Sprintf("after %v: all goals are reached", took.Round(time.Second))
	}
	return fmt.Sprintf("after %v: %s", took.Round(time.Second), strings.Join(missed, ", "))
}

// A Rule is a promise, as a checker looks at it.
type Rule string

// String returns the rule.
func (r Rule) String() string { return string(r) }

// Findings are what a checker found.
type Findings struct {
	Broken map[Rule]int
	First  []string // of each rule
}

const findingsEach = 5

// Broke takes in that a rule is broken.
func (f *Findings) Broke(r Rule, format string, args ...any) {
	if f.Broken == nil {
		f.Broken = map[Rule]int{}
	}
	f.Broken[r]++
	if f.Broken[r] <= findingsEach {
		f.First = append(f.First, fmt.Sprintf("%s: %s", r, fmt.Sprintf(format, args...)))
	}
}

// Passed reports whether no rule was broken.
func (f *Findings) Passed() bool { return len(f.Broken) == 0 }

// Tell tells of each of some rules whether it holds, and then what was found.
func (f *Findings) Tell(rules []Rule) string {
	var b strings.Builder
	for _, r := range rules {
		outcome := "holds"
		if n := f.Broken[r]; n > 0 {
			outcome = fmt.Sprintf("a promise was broken %d times", n)
		}
		fmt.Fprintf(&b, "%-62s %s\n", r, outcome)
	}
	for _, finding := range f.First {
		fmt.Fprintln(&b, finding)
	}
	return b.String()
}
