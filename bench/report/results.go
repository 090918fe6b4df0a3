package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dibs-go/dibs/bench/measure"
)

// Results have the figures of one run, or of several runs joined by [Results.Add].
type Results struct {
	Run    Run      `json:"run"`
	Cases  []Case   `json:"cases"`
	Failed []Failed `json:"failed,omitempty"`
	Added  []Run    `json:"added,omitempty"` // runs of cases that are not of Run
}

// Run has the time, the machine and the settings of the figures.
type Run struct {
	Date      time.Time         `json:"date"`
	Took      string            `json:"took"`
	Long      bool              `json:"long"`
	Arguments []string          `json:"arguments"`
	Seed      uint64            `json:"seed"`
	Rounds    int               `json:"rounds"`
	Seconds   float64           `json:"seconds"` // that each contender was measured for in each round
	Commit    string            `json:"commit"`
	Machine   []Fact            `json:"machine"`
	Versions  map[string]string `json:"versions"`
	Cases     []string          `json:"cases,omitempty"` // of a run that was added
}

// A Fact is something about the machine.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Failed is a case without figures, and the reason.
type Failed struct {
	Case  string `json:"case"`
	Error string `json:"error"`
}

// A Case has the measurements of a case.
type Case struct {
	Name       string      `json:"name"`
	Shows      string      `json:"shows"`
	Contenders []Contender `json:"contenders"`
	Goals      []Goal      `json:"goals"`
}

// A Contender has a figure for each metric.
type Contender struct {
	Name    string                    `json:"name"`
	Figures map[measure.Metric]Figure `json:"figures"`
}

// A Figure is the median of the rounds, with the minimum and the maximum.
type Figure struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// A Goal is a goal, its measured figure, and whether the figure meets it.
type Goal struct {
	Metric  measure.Metric `json:"metric"`
	Of      string         `json:"of"`
	To      string         `json:"to,omitempty"`
	AtLeast float64        `json:"atLeast,omitempty"`
	AtMost  float64        `json:"atMost,omitempty"`
	Figure
	Met bool `json:"met"`
}

// NewCase computes the figures and goals of a case.
func NewCase(r measure.Result) Case {
	c := Case{Name: r.Case.Name, Shows: r.Case.Shows}
	for _, name := range r.Contenders {
		values := map[measure.Metric][]float64{}
		for _, round := range r.Rounds[name] {
			for metric, value := range round {
				values[metric] = append(values[metric], value)
			}
		}
		figures := map[measure.Metric]Figure{}
		for metric, of := range values {
			figures[metric] = figure(of)
		}
		c.Contenders = append(c.Contenders, Contender{name, figures})
	}
	for _, g := range r.Case.Goals {
		goal := Goal{Metric: g.Metric, Of: g.Of, To: g.To, AtLeast: g.AtLeast, AtMost: g.AtMost}
		var values []float64
		for round, metrics := range r.Rounds[g.Of] {
			value, ok := metrics[g.Metric]
			if ok && g.To != "" {
				var to float64
				to, ok = r.Rounds[g.To][round][g.Metric]
				value /= to
			}
			if ok {
				values = append(values, value)
			}
		}
		if len(values) > 0 {
			goal.Figure = figure(values)
			goal.Met = g.Met(goal.Median)
		}
		c.Goals = append(c.Goals, goal)
	}
	return c
}

// Add adds the cases of a later run: each replaces the case of the same name, or comes after the
// others.
func (r *Results) Add(later Results) {
	added := later.Run
	for _, c := range later.Cases {
		added.Cases = append(added.Cases, c.Name)
		if i := slices.IndexFunc(r.Cases, func(one Case) bool { return one.Name == c.Name }); i >= 0 {
			r.Cases[i] = c
		} else {
			r.Cases = append(r.Cases, c)
		}
	}
	r.Failed = append(slices.DeleteFunc(r.Failed, func(f Failed) bool { return slices.Contains(added.Cases, f.Case) }), later.Failed...)
	r.Added = append(r.Added, added)
}

// figure returns the figure of at least one value.
func figure(values []float64) Figure {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return Figure{Median: (values[(n-1)/2] + values[n/2]) / 2, Min: values[0], Max: values[n-1]}
}

// Goals returns how many goals there are, and how many of them were met.
func (r Results) Goals() (met, all int) {
	for _, c := range r.Cases {
		for _, g := range c.Goals {
			all++
			if g.Met {
				met++
			}
		}
	}
	return met, all
}

const (
	resultsFile = "results.json"
	reportFile  = "report.md"
)

// Write writes results.json and report.md into a folder.
func Write(dir string, r Results) error {
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		resultsFile: append(encoded, '\n'), reportFile: []byte("# What the bench measured\n\n" + markdown(r)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil { //nolint:gosec // they are to be read
			return err
		}
	}
	return nil
}

// Read reads the results that [Write] has written into a folder.
func Read(dir string) (r Results, err error) {
	encoded, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(encoded, &r)
}
