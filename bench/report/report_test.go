package report

import (
	"os"
	"path/filepath"
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
}

// some is a run with all that a report can have.
func some() Results {
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
				Name: "write/1", Shows: "Write <one> & read, as long as a heading is ever going to be in the table of goals and a little more than that",
				Contenders: []Contender{{"Dibs", figures(0.001)}, {"COPY", figures(0.001)}, {"once", figures(1)}},
				Goals: []Goal{
					goal(20, 18, 31, true), goal(0.5, 0.4, 0.6, false),
					{Metric: measure.P50, Of: "Dibs", To: "COPY", AtMost: 1, Figure: Figure{2, 1, 4}},
					{Metric: measure.P99, Of: "Dibs", AtMost: 0.002, Figure: Figure{0.001, 0.001, 0.001}, Met: true},
				},
			},
			{Name: "write/64", Shows: "Write 64", Contenders: []Contender{{"Dibs", figures(0.1)}, {"COPY", figures(0.1)}}},
		},
		Failed: []Failed{{"broken", "it\nbroke"}},
	}
}

func TestReportSaysWhatWasMetAndWhatWasMissed(t *testing.T) {
	text := markdown(some())

	require.Contains(t, text, "2 of 4 met")
	require.Contains(t, text, "| Dibs: rate ≥ 2x Redis, appendfsync always | 20x (18x to 31x) | met |")
	require.Contains(t, text, "| Dibs: rate ≥ 2x Redis, appendfsync always | 0.5x (0.4x to 0.6x) | **missed** by 75 % |")
	require.Contains(t, text, "| Dibs: p50 ≤ 1x COPY | 2x (1x to 4x) | **missed** by 100 % |")
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
	require.Contains(t, markdown(all), "Of another run, 2026-11-21 12:00 UTC, 4m0s, commit def, `--only=^write/64$`: write/64, broken.")
}

func TestBenchstatHasALineForEachContenderAndRound(t *testing.T) {
	text := Benchstat(measure.Result{
		Case:       measure.Case{Name: "write/64-callers"},
		Contenders: []string{"Dibs, one stream", "COPY"},
		Rounds: map[string][]map[measure.Metric]float64{
			"Dibs, one stream": {{measure.Rate: 1e6, measure.P50: 0.0015, measure.WAL: 700}, {measure.Rate: 2e6, measure.ServerCPU: 2e-6}},
			"COPY":             {{measure.Least: 0.5}},
		},
	})

	require.Equal(t, `BenchmarkWrite/64-callers/by=Dibs,_one_stream 1 1000.0 ns/op 700 wal-B/op 1.5e+06 p50-ns
BenchmarkWrite/64-callers/by=Dibs,_one_stream 1 500.0 ns/op 2000 server-ns/op
BenchmarkWrite/64-callers/by=COPY 1 0.5 least
`, text)
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
	}
	require.NoFileExists(t, filepath.Join(filepath.Dir(path), reportFile))
	kept, err := Read(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, some(), kept)

	require.NoError(t, os.WriteFile(path, []byte("no marks"), 0o600))
	require.ErrorContains(t, Docs(path, some()), "lacks the lines")
}
