package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/bench/measure"
)

// The columns that a table has if any contender has a figure there; others follow them.
var columns = []measure.Metric{measure.Rate, measure.P50, measure.P99, measure.ClientCPU, measure.ServerCPU, measure.WAL}

const dateFormat = "2006-01-02 15:04 UTC"

// markdown writes results.
func markdown(r Results) string {
	var b strings.Builder
	runText(&b, r)
	goalsTable(&b, r)
	fmt.Fprintf(&b, "### Figures\n\nThe median of the rounds, and below it the least and the most.\nTimes and bytes are per operation.\n\n")
	for _, c := range r.Cases {
		figuresTable(&b, c)
	}
	return b.String()
}

func runText(b *strings.Builder, r Results) {
	kind := "A **short** run: it shows that all works, and only roughly how fast."
	if r.Run.Long {
		kind = "A long run."
	}
	fmt.Fprintf(b, "%s\n%s, %s, commit %s, seed %d; %d rounds of %s s for each contender of each case.\n\n", kind,
		r.Run.Date.UTC().Format(dateFormat), r.Run.Took, r.Run.Commit, r.Run.Seed, r.Run.Rounds, number(r.Run.Seconds))
	fmt.Fprintf(b, "| | |\n|---|---|\n")
	for _, fact := range r.Run.Machine {
		fmt.Fprintf(b, "| %s | %s |\n", fact.Name, fact.Value)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Run.Versions)) {
		fmt.Fprintf(b, "| %s | %s |\n", name, r.Run.Versions[name])
	}
	if len(r.Run.Arguments) > 0 {
		fmt.Fprintf(b, "| Arguments | `%s` |\n", strings.Join(r.Run.Arguments, " "))
	}
	fmt.Fprintln(b)
	for _, run := range r.Added {
		fmt.Fprintf(b, "Of another run, %s, %s, commit %s, `%s`: %s.\n\n", run.Date.UTC().Format(dateFormat), run.Took, run.Commit,
			strings.Join(run.Arguments, " "), strings.Join(run.Cases, ", "))
	}
	for _, f := range r.Failed {
		fmt.Fprintf(b, "**%s failed**: %s\n\n", f.Case, strings.ReplaceAll(f.Error, "\n", " "))
	}
}

// Goals returns the table of the goals, each with its measured figure, or "" without goals.
func Goals(r Results) string {
	var b strings.Builder
	goalsTable(&b, r)
	return b.String()
}

func goalsTable(b *strings.Builder, r Results) {
	met, all := r.Goals()
	if all == 0 {
		return
	}
	fmt.Fprintf(b, "### Goals\n\n%d of %d met.\nA ratio is the median of the rounds' ratios; in brackets the least and the most.\n\n", met, all)
	fmt.Fprintf(b, "| work | goal | measured | |\n|---|---|---|---|\n")
	for _, c := range r.Cases {
		for _, g := range c.Goals {
			fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Shows, goalText(g), measuredText(g), verdict(g))
		}
	}
	fmt.Fprintln(b)
}

// verdict says whether a goal was met, and if not, by how much it was missed.
func verdict(g Goal) string {
	bound := max(g.AtLeast, g.AtMost)
	switch by := math.Round(100 * math.Abs(g.Median-bound) / bound); {
	case g.Met:
		return "met"
	case g.Figure == (Figure{}):
		return "**missed**"
	case by == 0:
		return "**missed** by less than 1 %"
	default:
		return fmt.Sprintf("**missed** by %g %%", by)
	}
}

func goalText(g Goal) string {
	sign, bound := "≥", g.AtLeast
	if g.AtMost > 0 {
		sign, bound = "≤", g.AtMost
	}
	if g.To == "" {
		return fmt.Sprintf("%s: %s %s %s", g.Of, metricName(g.Metric), sign, value(g.Metric, bound))
	}
	return fmt.Sprintf("%s: %s %s %s %s", g.Of, metricName(g.Metric), sign, ratio(bound), g.To)
}

func measuredText(g Goal) string {
	if g.Figure == (Figure{}) {
		return "nothing"
	}
	show := ratio
	if g.To == "" {
		show = func(v float64) string { return value(g.Metric, v) }
	}
	return fmt.Sprintf("%s (%s to %s)", show(g.Median), show(g.Min), show(g.Max))
}

func figuresTable(b *strings.Builder, c Case) {
	has := map[measure.Metric]bool{}
	for _, contender := range c.Contenders {
		for metric := range contender.Figures {
			has[metric] = true
		}
	}
	shown := slices.DeleteFunc(slices.Clone(columns), func(m measure.Metric) bool { return !has[m] })
	for _, metric := range slices.Sorted(maps.Keys(has)) {
		if !slices.Contains(columns, metric) {
			shown = append(shown, metric)
		}
	}
	fmt.Fprintf(b, "**%s** (`%s`)\n\n|", c.Shows, c.Name)
	for _, metric := range shown {
		fmt.Fprintf(b, " | %s", metricName(metric))
	}
	fmt.Fprintf(b, " |\n|---%s|\n", strings.Repeat("|---:", len(shown)))
	for _, contender := range c.Contenders {
		fmt.Fprintf(b, "| %s", contender.Name)
		for _, metric := range shown {
			f, ok := contender.Figures[metric]
			if !ok {
				fmt.Fprint(b, " | ")
				continue
			}
			fmt.Fprintf(b, " | %s<br><sub>%s – %s</sub>", value(metric, f.Median), value(metric, f.Min), value(metric, f.Max))
		}
		fmt.Fprintln(b, " |")
	}
	fmt.Fprintln(b)
}

func metricName(m measure.Metric) string {
	switch m {
	case measure.Rate:
		return "rate"
	case measure.ClientCPU, measure.ServerCPU, measure.WAL:
		return string(m) + " per operation"
	}
	return string(m)
}

// value shows a figure in a unit that fits it.
func value(m measure.Metric, v float64) string {
	switch m {
	case measure.Rate:
		return thousands(v) + "/s"
	case measure.P50, measure.P99, measure.WriteP99, measure.Least, measure.ClientCPU, measure.ServerCPU:
		switch {
		case v >= 1:
			return number(v) + " s"
		case v >= 1e-3:
			return number(v*1e3) + " ms"
		default:
			return number(v*1e6) + " µs"
		}
	case measure.WAL, measure.Stored:
		return thousands(v) + " B"
	}
	return number(v)
}

func ratio(v float64) string { return number(v) + "x" }

// number has three digits that count, and no exponent.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) >= 100:
		return thousands(v)
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	s := strconv.FormatFloat(v, 'f', max(decimals, 0), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func thousands(v float64) string {
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
