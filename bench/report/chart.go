package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/bench/measure"
)

// The charts carry their own background, so that they can be read on any page, and
// follow the reader's choice of light or dark.
const (
	chartWidth = 860
	margin     = 20

	style = `<style>
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.soft { fill: #59636e; font-size: 11px }
.page { fill: #ffffff }
.head { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.base { stroke: #59636e; stroke-width: 1 }
.range { stroke: #1f2328; stroke-width: 1.5 }
.goal { stroke: #1f2328; stroke-width: 2.5 }
.met { fill: #2da44e } .missed { fill: #d1642c }
.line { fill: none; stroke-width: 2.5 }
.c0 { stroke: #0969da; fill: #0969da } .c1 { stroke: #bc4c00; fill: #bc4c00 } .c2 { stroke: #6e7781; fill: #6e7781 } .c3 { stroke: #8250df; fill: #8250df }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .soft { fill: #9198a1 } .page { fill: #0d1117 } .head { stroke: #0d1117 } .grid { stroke: #30363d } .base { stroke: #9198a1 }
.range, .goal { stroke: #e6edf3 } .met { fill: #3fb950 } .missed { fill: #db6d28 }
.c0 { stroke: #58a6ff; fill: #58a6ff } .c1 { stroke: #f0883e; fill: #f0883e } .c2 { stroke: #9198a1; fill: #9198a1 } .c3 { stroke: #bc8cff; fill: #bc8cff }
}
.line { fill: none }
</style>
`
)

type chart struct {
	file, title string
	svg         string
}

// charts returns the files of all charts.
func charts(r Results) map[string][]byte {
	files := map[string][]byte{}
	for _, c := range chartsOf(r) {
		files[c.file+".svg"] = []byte(c.svg)
	}
	return files
}

// chartsOf returns the bars of all goals that are ratios, and a chart for each series
// that has at least two points.
func chartsOf(r Results) []chart {
	var all []chart
	if bars := ratioBars(r); bars != "" {
		all = append(all, chart{"ratios", "The ratios that are goals", bars})
	}
	series := map[string][]Case{}
	var files []string
	for _, c := range r.Cases {
		if c.Series == nil {
			continue
		}
		if series[c.Series.File] == nil {
			files = append(files, c.Series.File)
		}
		series[c.Series.File] = append(series[c.Series.File], c)
	}
	for _, file := range files {
		if points := series[file]; len(points) > 1 {
			slices.SortFunc(points, func(a, b Case) int { return cmp.Compare(a.X, b.X) })
			all = append(all, chart{file, points[0].Series.Title, lines(points)})
		}
	}
	return all
}

// A drawing is an SVG in the making.
type drawing struct{ strings.Builder }

func (d *drawing) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(s))
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (d *drawing) finish(title string, height float64) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img" aria-label="%s">`+"\n",
		chartWidth, height, chartWidth, height, html.EscapeString(title)) + style +
		fmt.Sprintf(`<rect width="%d" height="%.0f" rx="8" class="page"/>`+"\n", chartWidth, height) + d.String() + "</svg>\n"
}

// A better is how many times better than another a contender is, and has to be: a
// higher rate, or a lower cost.
type better struct {
	label            string
	ratio, low, high float64
	goal             float64
	met              bool
}

func betterOf(g Goal) better {
	if g.AtMost > 0 {
		return better{fmt.Sprintf("%s: %s / %s", g.Metric, g.To, g.Of), 1 / g.Median, 1 / g.Max, 1 / g.Min, 1 / g.AtMost, g.Met}
	}
	return better{fmt.Sprintf("%s: %s / %s", g.Metric, g.Of, g.To), g.Median, g.Min, g.Max, g.AtLeast, g.Met}
}

// ratioBars has a bar for each goal, from 1x to the measured ratio, on a logarithmic
// scale; the whisker is from the least to the most, and the tick is the goal.
func ratioBars(r Results) string {
	const (
		left, right     = 290.0, 665.0
		heading, bar    = 24.0, 22.0
		top, thickness  = 64.0, 12.0
		valuesAt, title = 680.0, "How many times better, and the goals"
	)
	type group struct {
		shows string
		bars  []better
	}
	var groups []group
	low, high := 0.5, 2.0
	for _, c := range r.Cases {
		g := group{shows: c.Shows}
		for _, goal := range c.Goals {
			if goal.To == "" || goal.Min <= 0 {
				continue
			}
			b := betterOf(goal)
			g.bars = append(g.bars, b)
			low, high = min(low, b.low, b.goal), max(high, b.high, b.goal)
		}
		if len(g.bars) > 0 {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return ""
	}
	low, high = low*0.9, high*1.1
	x := func(v float64) float64 { return left + (right-left)*math.Log(v/low)/math.Log(high/low) }

	height := top
	for _, g := range groups {
		height += heading + bar*float64(len(g.bars))
	}
	var d drawing
	d.text(margin, 28, "title", "start", title)
	d.text(margin, 45, "soft", "start", "Logarithmic. Upright: the goal. Thin: least and most of the rounds. Where less is better, the ratio is turned round.")
	for _, tick := range ticks(low, high) {
		class := "grid"
		if tick == 1 {
			class = "base"
		}
		d.line(x(tick), top, x(tick), height, class)
		d.text(x(tick), height+16, "soft", "middle", ratio(tick))
	}
	y := top
	for _, g := range groups {
		d.text(margin, y+17, "head", "start", g.shows)
		y += heading
		for _, b := range g.bars {
			class, verdict := "missed", "missed"
			if b.met {
				class, verdict = "met", "met"
			}
			from, to := min(x(1), x(b.ratio)), max(x(1), x(b.ratio))
			middle := y + 4 + thickness/2
			d.text(margin+14, middle+4, "soft", "start", b.label)
			fmt.Fprintf(&d, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" class="%s"/>`+"\n", from, y+4, max(to-from, 1), thickness, class)
			d.line(x(b.low), middle, x(b.high), middle, "range")
			d.line(x(b.goal), y+1, x(b.goal), y+7+thickness, "goal")
			d.text(valuesAt, middle+4, "", "start", fmt.Sprintf("%s, goal %s: %s", ratio(b.ratio), ratio(b.goal), verdict))
			y += bar
		}
	}
	return d.finish(title, height+30)
}

// ticks are the 1, 2 and 5 of each power of ten between two bounds; only the powers
// themselves where that would be many.
func ticks(low, high float64) []float64 {
	var all []float64
	steps := []float64{1, 2, 5}
	if high/low > 1000 {
		steps = steps[:1]
	}
	for power := math.Pow(10, math.Floor(math.Log10(low))); power <= high; power *= 10 {
		for _, step := range steps {
			if tick := step * power; tick >= low && tick <= high {
				all = append(all, tick)
			}
		}
	}
	return all
}

// lines has a line for each contender that is in all of the cases, and a dashed one
// for the series' second metric.
func lines(points []Case) string {
	const (
		left, right = 80.0, 630.0
		top, bottom = 70.0, 350.0
	)
	series := points[0].Series
	metrics := []measure.Metric{series.Metric}
	subtitle := metricName(series.Metric)
	if series.Dashed != "" {
		metrics = append(metrics, series.Dashed)
		subtitle += ", dashed " + metricName(series.Dashed)
	}
	drawn := linesOf(points, metrics)
	if len(drawn) == 0 {
		return ""
	}
	low, high := math.Inf(1), 0.0
	for _, l := range drawn {
		for _, f := range l.figures {
			low, high = min(low, f.Min), max(high, f.Max)
		}
	}
	low, high = low*0.8, high*1.2
	y := func(v float64) float64 { return bottom - (bottom-top)*math.Log(v/low)/math.Log(high/low) }
	first, last := points[0].X, points[len(points)-1].X
	x := func(v float64) float64 { return left + (right-left)*(v-first)/(last-first) }
	if series.LogX {
		x = func(v float64) float64 { return left + (right-left)*math.Log(v/first)/math.Log(last/first) }
	}

	var d drawing
	d.text(margin, 28, "title", "start", series.Title)
	d.text(margin, 45, "soft", "start", subtitle+"; medians of the rounds with the least and the most; logarithmic")
	for _, tick := range ticks(low, high) {
		d.line(left, y(tick), right, y(tick), "grid")
		d.text(left-8, y(tick)+4, "soft", "end", value(series.Metric, tick))
	}
	for _, c := range points {
		d.line(x(c.X), bottom, x(c.X), bottom+5, "base")
		d.text(x(c.X), bottom+20, "soft", "middle", number(c.X))
	}
	d.line(left, bottom, right, bottom, "base")
	d.text((left+right)/2, bottom+38, "soft", "middle", series.XLabel)
	var labels []float64
	for _, l := range drawn {
		class, dash := fmt.Sprintf("c%d", l.colour%4), ""
		if l.metric == series.Dashed {
			dash = ` stroke-dasharray="3 5"`
		}
		var path []string
		for i, f := range l.figures {
			at := x(points[i].X)
			path = append(path, fmt.Sprintf("%.1f,%.1f", at, y(f.Median)))
			d.line(at, y(f.Min), at, y(f.Max), class)
			fmt.Fprintf(&d, `<circle cx="%.1f" cy="%.1f" r="%d" class="%s"/>`+"\n", at, y(f.Median), 4, class)
		}
		fmt.Fprintf(&d, `<polyline points="%s" class="line %s"%s/>`+"\n", strings.Join(path, " "), class, dash)
	}
	for _, l := range drawn {
		if l.metric != series.Metric {
			continue
		}
		end := l.figures[len(l.figures)-1].Median
		labels = append(labels, y(end)+4)
		text := l.name + " " + value(l.metric, end)
		dashed := slices.IndexFunc(drawn, func(other contenderLine) bool { return other.name == l.name && other.metric == series.Dashed })
		if dashed >= 0 {
			last := drawn[dashed].figures[len(points)-1].Median
			text += ", " + metricName(series.Dashed) + " " + value(series.Dashed, last)
		}
		d.text(right+12, apart(labels), "", "start", text)
	}
	return d.finish(series.Title, bottom+54)
}

type contenderLine struct {
	name    string
	metric  measure.Metric
	colour  int
	figures []Figure // one for each point
}

func linesOf(points []Case, metrics []measure.Metric) []contenderLine {
	var all []contenderLine
	for _, metric := range metrics {
		for colour, contender := range points[0].Contenders {
			l := contenderLine{name: contender.Name, metric: metric, colour: colour}
			for _, c := range points {
				i := slices.IndexFunc(c.Contenders, func(other Contender) bool { return other.Name == l.name })
				if i < 0 {
					break
				}
				if f, ok := c.Contenders[i].Figures[metric]; ok {
					l.figures = append(l.figures, f)
				}
			}
			if len(l.figures) == len(points) {
				all = append(all, l)
			}
		}
	}
	return all
}

// apart moves the last label down until it is over none of those before it, and
// returns where it is.
func apart(labels []float64) float64 {
	const height = 15
	last := len(labels) - 1
	for slices.ContainsFunc(labels[:last], func(other float64) bool { return math.Abs(other-labels[last]) < height }) {
		labels[last] += height
	}
	return labels[last]
}
