package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/bench/measure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rounds(metric measure.Metric, values ...float64) []map[measure.Metric]float64 {
	all := make([]map[measure.Metric]float64, len(values))
	for i, v := range values {
		all[i] = map[measure.Metric]float64{metric: v}
	}
	return all
}

func TestRatioIsTheMedianOfTheRoundsRatios(t *testing.T) {
	c := NewCase(measure.Result{
		Case:       measure.Case{Goals: []measure.Goal{{Metric: measure.Rate, Of: "A", To: "B", AtLeast: 2}}},
		Contenders: []string{"A", "B"},
		Rounds: map[string][]map[measure.Metric]float64{
			"A": rounds(measure.Rate, 100, 30, 200), // the machine was busy in the second round,
			"B": rounds(measure.Rate, 50, 10, 200),  // for both
		},
	})

	require.Equal(t, Figure{Median: 100, Min: 30, Max: 200}, c.Contenders[0].Figures[measure.Rate])
	require.Equal(t, Figure{Median: 2, Min: 1, Max: 3}, c.Goals[0].Figure)
	require.True(t, c.Goals[0].Met)
}

func TestGoalInTheMetricsOwnUnit(t *testing.T) {
	c := NewCase(measure.Result{
		Case:       measure.Case{Goals: []measure.Goal{{Metric: measure.P99, Of: "A", AtMost: 0.002}}},
		Contenders: []string{"A"},
		Rounds:     map[string][]map[measure.Metric]float64{"A": rounds(measure.P99, 0.003, 0.001, 0.0021, 0.0025)},
	})

	require.InDelta(t, 0.0023, c.Goals[0].Median, 1e-9, "between the two in the middle")
	require.False(t, c.Goals[0].Met)
	require.Equal(t, "A: p99 ≤ 2 ms", goalText(c.Goals[0]))
	require.Equal(t, "2.3 ms (1 ms to 3 ms)", measuredText(c.Goals[0]))
}

func TestGoalThatNothingWasMeasuredForIsNotMet(t *testing.T) {
	c := NewCase(measure.Result{
		Case:       measure.Case{Goals: []measure.Goal{{Metric: measure.P99, Of: "A", AtMost: 1}}},
		Contenders: []string{"A"},
		Rounds:     map[string][]map[measure.Metric]float64{"A": rounds(measure.Rate, 1)},
	})

	require.False(t, c.Goals[0].Met)
	require.Equal(t, "nothing", measuredText(c.Goals[0]))
}

func TestNumbersHaveThreeDigitsThatCount(t *testing.T) {
	for text, v := range map[string]float64{
		"0": 0, "0.125": 0.125, "0.0333": 1.0 / 30, "0.8": 0.8, "1": 1, "2.02": 2.0199, "13.3": 13.34, "100": 99.96, "1,235": 1234.6, "1,234,568": 1234567.8,
	} {
		require.Equal(t, text, number(v))
	}
	require.Equal(t, "1.5 s", value(measure.P50, 1.5))
	require.Equal(t, "123 µs", value(measure.ServerCPU, 123e-6))
	require.Equal(t, "12,346/s", value(measure.Rate, 12345.6))
	require.Equal(t, "64 MiB", value(measure.Resident, 64<<20))
	require.Equal(t, "2 %", value(measure.Cores, 0.02))
}

// some is a run with all that a report can have.
func some() Results {
	series := &measure.Series{File: "latency", Title: "Latency <against> load", XLabel: "callers", Metric: measure.P50, Dashed: measure.P99, LogX: true}
	figures := func(p50 float64) map[measure.Metric]Figure {
		return map[measure.Metric]Figure{measure.Rate: {10_000, 9_000, 11_000}, measure.P50: {p50, p50 / 2, p50 * 2}, measure.P99: {p50 * 3, p50 * 2, p50 * 4}, "own": {1, 1, 1}}
	}
	goal := func(ratio, low, high float64, met bool) Goal {
		return Goal{Metric: measure.Rate, Of: "Dibs", To: "Redis, appendfsync always", AtLeast: 2, Figure: Figure{ratio, low, high}, Met: met}
	}
	return Results{
		Run: Run{
			Date: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Took: "4m0s", Rounds: 5, Seconds: 3, Commit: "abc", Seed: 7,
			Machine: []Fact{{"Processor", "fast"}}, Versions: map[string]string{"Go": "1.26"},
		},
		Cases: []Case{
			{
				Name: "write/1", Shows: "Write <one> & read, as long as a heading is ever going to be in the table of goals and a little more than that", Series: series, X: 1,
				Contenders: []Contender{{"Dibs", figures(0.001)}, {"COPY", figures(0.001)}, {"once", figures(1)}},
				Goals: []Goal{
					goal(20, 18, 31, true), goal(0.5, 0.4, 0.6, false),
					{Metric: measure.P50, Of: "Dibs", To: "COPY", AtMost: 1, Figure: Figure{2, 1, 4}},
					{Metric: measure.P99, Of: "Dibs", AtMost: 0.002, Figure: Figure{0.001, 0.001, 0.001}, Met: true},
				},
			},
			{Name: "write/64", Shows: "Write 64", Series: series, X: 64, Contenders: []Contender{{"Dibs", figures(0.1)}, {"COPY", figures(0.1)}}},
		},
		Failed: []Failed{{"broken", "it\nbroke"}},
	}
}

func TestReportSaysWhatWasMetAndWhatWasMissed(t *testing.T) {
	text := markdown(some(), "folder")

	require.Contains(t, text, "2 of 4 met")
	require.Contains(t, text, "| Dibs: rate ≥ 2x Redis, appendfsync always | 20x (18x to 31x) | met |")
	require.Contains(t, text, "| Dibs: rate ≥ 2x Redis, appendfsync always | 0.5x (0.4x to 0.6x) | **missed** by 75 % |")
	require.Contains(t, text, "| Dibs: p50 ≤ 1x COPY | 2x (1x to 4x) | **missed** by 100 % |")
	require.Contains(t, text, "![Latency <against> load](folder/latency.svg)")
	require.Contains(t, text, "**broken failed**: it broke")
	require.Contains(t, text, "A **short** run")
	require.Contains(t, text, "| COPY | 10,000/s<br><sub>9,000/s – 11,000/s</sub>")
}

func TestALaterRunTakesThePlaceOfCasesAndIsNamed(t *testing.T) {
	all := some()
	later := some()
	later.Run.Commit, later.Run.Arguments, later.Failed = "def", []string{"--only=^write/64$"}, nil
	later.Cases = []Case{{Name: "write/64", Shows: "Write 64 again"}, {Name: "broken", Shows: "Mended"}}

	all.Add(later)

	require.Equal(t, []string{"write/1", "write/64", "broken"}, []string{all.Cases[0].Name, all.Cases[1].Name, all.Cases[2].Name})
	require.Equal(t, "Write 64 again", all.Cases[1].Shows)
	require.Empty(t, all.Failed)
	require.Contains(t, markdown(all, ""), "Of another run, 2026-11-21 12:00 UTC, 4m0s, commit def, `--only=^write/64$`: write/64, broken.")
}

func TestChartsAreDrawnWithinTheirBounds(t *testing.T) {
	drawn := chartsOf(some())
	require.Len(t, drawn, 2)
	for _, c := range drawn {
		box := regexp.MustCompile(`viewBox="0 0 (\d+) (\d+)"`).FindStringSubmatch(c.svg)
		width, height := parse(t, box[1]), parse(t, box[2])
		decoder := xml.NewDecoder(strings.NewReader(c.svg))
		var anchor string
		var x float64
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, c.file)
			switch e := token.(type) {
			case xml.StartElement:
				anchor = ""
				for _, a := range e.Attr {
					switch a.Name.Local {
					case "x", "x1", "x2", "cx":
						x = parse(t, a.Value)
						require.LessOrEqual(t, math.Abs(x-width/2), width/2, c.file)
					case "y", "y1", "y2", "cy":
						require.LessOrEqual(t, math.Abs(parse(t, a.Value)-height/2), height/2, c.file)
					case "text-anchor":
						anchor = a.Value
					}
				}
			case xml.CharData:
				length := 6.2 * float64(len([]rune(string(e)))) // of a letter at 12 px, on average
				switch anchor {
				case "start":
					require.LessOrEqual(t, x+length, width, "%s: %s", c.file, e)
				case "end":
					require.GreaterOrEqual(t, x, length, "%s: %s", c.file, e)
				}
				anchor = ""
			}
		}
	}
	require.Contains(t, drawn[0].svg, "0.5x, goal 2x: missed")
	require.Contains(t, drawn[0].svg, "p50: COPY / Dibs", "where less is better")
	require.Contains(t, drawn[0].svg, "0.5x, goal 1x: missed", "twice the latency")
	require.Contains(t, drawn[1].svg, ">COPY 100 ms, p99 300 ms<")
	require.Equal(t, 2, strings.Count(drawn[1].svg, "stroke-dasharray"))
	require.NotContains(t, drawn[1].svg, "once", "it is not in all cases")
}

func parse(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err, s)
	return v
}

func TestDocumentKeepsWhatIsNotMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "RESULTS.md")
	require.NoError(t, os.WriteFile(path, []byte("before\n"+docsBegin+"old\n"+docsEnd+"after\n"), 0o600))

	for range 2 { // it can be repeated
		require.NoError(t, Docs(path, some()))

		made, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(made), "before\n"+docsBegin))
		require.True(t, strings.HasSuffix(string(made), docsEnd+"after\n"))
		require.NotContains(t, string(made), "old")
		require.Contains(t, string(made), "](charts/ratios.svg)")
	}
	folder := filepath.Join(filepath.Dir(path), chartFolder)
	require.FileExists(t, filepath.Join(folder, "ratios.svg"))
	require.NoFileExists(t, filepath.Join(folder, reportFile))
	kept, err := Read(folder)
	require.NoError(t, err)
	require.Equal(t, some(), kept)

	require.NoError(t, os.WriteFile(path, []byte("no marks"), 0o600))
	require.ErrorContains(t, Docs(path, some()), "lacks the lines")
}
