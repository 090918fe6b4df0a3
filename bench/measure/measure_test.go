package measure

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
)

func TestMain(m *testing.M) {
	RunChild()
	goleak.VerifyTestMain(m)
}

var brief = Options{Rounds: 3, Time: 5 * time.Millisecond, Warmup: time.Millisecond, Seed: 1}

// counts is a contender that does n operations a call and says so.
func counts(name string, n int) Contender {
	return Contender{Name: name, Run: func(ctx context.Context, cell *Cell) error {
		var did atomic.Int64
		done, err := cell.Callers(ctx, 2, func(context.Context, int) (int, error) {
			did.Add(int64(n))
			return n, nil
		})
		return errors.Join(err, cell.Check("operations", did.Load(), done))
	}}
}

func runOne(t *testing.T, c Case, o Options) (r Result, err error) {
	t.Helper()
	c.Name, c.Shows = "case", "A case."
	Run(t.Context(), []Case{c}, o, func(_ Case, result Result, runErr error) { r, err = result, runErr })
	return r, err
}

func TestContendersTakeTurnsAndEachRoundBeginsWithAnother(t *testing.T) {
	var order []string
	var seeds []uint64
	contender := func(name string) Contender {
		c := counts(name, 1)
		run := c.Run
		c.Run = func(ctx context.Context, cell *Cell) error {
			order, seeds = append(order, name), append(seeds, cell.Seed)
			return run(ctx, cell)
		}
		return c
	}

	r, err := runOne(t, Case{Contenders: []Contender{contender("A"), contender("B")}}, brief)

	require.NoError(t, err)
	require.Equal(t, []string{"A", "B", "B", "A", "A", "B"}, order)
	require.Len(t, r.Rounds["A"], 3)
	require.Len(t, r.Rounds["B"], 3)
	require.Equal(t, seeds[0], seeds[1], "one round, one seed")
	require.NotEqual(t, seeds[0], seeds[2])
}

func TestFiguresArePerOperation(t *testing.T) {
	tally := Tally{
		Units: 1000, All: 1200, Elapsed: 2 * time.Second, ClientCPU: 10 * time.Millisecond, ServerCPU: 30 * time.Millisecond, WAL: 5000,
		Extra: map[Metric]float64{Stored: 7},
	}
	require.InDeltaMapValues(t, map[Metric]float64{Rate: 500, ClientCPU: 10e-6, ServerCPU: 30e-6, WAL: 5, Stored: 7}, tally.Metrics(), 1e-9)
	require.Empty(t, Tally{All: 1, Elapsed: time.Second}.Metrics(), "nothing was done in the time that counts")
}

func TestWhatIsMeasuredIsThere(t *testing.T) {
	r, err := runOne(t, Case{Contenders: []Contender{counts("A", 1000)}}, brief)

	require.NoError(t, err)
	for _, m := range r.Rounds["A"] {
		require.Positive(t, m[Rate])
		require.Positive(t, m[ClientCPU])
		require.Positive(t, m[P50])
		require.GreaterOrEqual(t, m[P99], m[P50])
	}
}

func TestCallersAreWarmBeforeItCounts(t *testing.T) {
	const before = 200_000 // longer than a warm-up
	c := Contender{Name: "A", Run: func(ctx context.Context, cell *Cell) error {
		var done atomic.Int64
		enough := make(chan struct{})
		_, err := cell.Callers(ctx, 2, func(_ context.Context, caller int) (int, error) {
			if caller == 1 { // it begins its connection
				select {
				case <-enough:
				case <-time.After(testkit.WaitLimit): // the other has ended
				}
			} else if done.Add(1) == before {
				close(enough)
			}
			return 1, nil
		})
		tally := cell.Tally()
		require.GreaterOrEqual(t, tally.All-tally.Units, int64(before))
		return errors.Join(err, cell.Check("operations", 1, 1))
	}}
	_, err := runOne(t, Case{Contenders: []Contender{c}}, brief)
	require.NoError(t, err)
}

func TestCellHasToMeasureAndToCheck(t *testing.T) {
	idle := Contender{Name: "A", Run: func(context.Context, *Cell) error { return nil }}
	_, err := runOne(t, Case{Contenders: []Contender{idle}}, brief)
	require.ErrorContains(t, err, "it has not measured")

	unchecked := Contender{Name: "A", Run: func(_ context.Context, cell *Cell) error {
		return cell.Once(t.Context(), func(context.Context) (int64, error) { return 1, nil })
	}}
	_, err = runOne(t, Case{Contenders: []Contender{unchecked}}, brief)
	require.ErrorContains(t, err, "or not checked its work")

	less := Contender{Name: "A", Run: func(_ context.Context, cell *Cell) error { return cell.Check("rows", 9, 10) }}
	_, err = runOne(t, Case{Contenders: []Contender{less}}, brief)
	require.ErrorContains(t, err, "rows: there are 9, and 10 were done")

	nothing := Contender{Name: "A", Run: func(_ context.Context, cell *Cell) error { return cell.Check("rows", 0, 0) }}
	_, err = runOne(t, Case{Contenders: []Contender{nothing}}, brief)
	require.ErrorContains(t, err, "rows: there are 0")
}

func TestFirstErrorOfACallerEndsTheCell(t *testing.T) {
	wrong := errors.New("wrong")
	failing := Contender{Name: "A", Run: func(ctx context.Context, cell *Cell) error {
		_, err := cell.Callers(ctx, 3, func(ctx context.Context, caller int) (int, error) {
			if caller == 1 {
				return 0, wrong
			}
			<-ctx.Done()
			return 0, nil
		})
		return err
	}}
	options := brief
	options.Time = time.Hour

	_, err := runOne(t, Case{Contenders: []Contender{failing}}, options)

	require.ErrorIs(t, err, wrong)
	require.ErrorContains(t, err, "A, round 1: caller 1: wrong")
}

func TestCaseThatFailsDoesNotEndTheRun(t *testing.T) {
	failing := Contender{Name: "A", Run: func(context.Context, *Cell) error { return errors.New("wrong") }}
	cases := []Case{{Name: "1", Contenders: []Contender{failing}}, {Name: "2", Contenders: []Contender{counts("A", 1)}}}
	ended := map[string]bool{}

	Run(t.Context(), cases, brief, func(c Case, _ Result, err error) { ended[c.Name] = err == nil })

	require.Equal(t, map[string]bool{"1": false, "2": true}, ended)
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancelling := counts("A", 1)
	run := cancelling.Run
	cancelling.Run = func(ctx context.Context, cell *Cell) error {
		cancel()
		return run(ctx, cell)
	}
	cases := []Case{{Name: "1", Contenders: []Contender{cancelling}}, {Name: "2", Contenders: []Contender{counts("A", 1)}}}
	var ended []string

	Run(ctx, cases, brief, func(c Case, _ Result, err error) {
		require.ErrorIs(t, err, context.Canceled)
		ended = append(ended, c.Name)
	})

	require.Equal(t, []string{"1"}, ended)
}

func TestCleanupsAreCalledTheLastFirstAlsoAfterAnError(t *testing.T) {
	var called []int
	failing := Contender{Name: "A", Run: func(_ context.Context, cell *Cell) error {
		for i := range 3 {
			cell.Cleanup(func(context.Context) error {
				called = append(called, i)
				return nil
			})
		}
		return errors.New("wrong")
	}}
	setUp := func(_ context.Context, cell *Cell) error {
		cell.Cleanup(func(context.Context) error {
			called = append(called, 3)
			return nil
		})
		return nil
	}

	_, err := runOne(t, Case{Contenders: []Contender{failing}, Setup: setUp}, brief)

	require.Error(t, err)
	require.Equal(t, []int{2, 1, 0, 3}, called)
}

func TestCasesThatCannotBeRunAreFoundBefore(t *testing.T) {
	contenders := []Contender{counts("A", 1), counts("B", 1)}
	good := Case{Name: "1", Shows: "One.", Contenders: contenders, Goals: []Goal{{Metric: Rate, Of: "A", To: "B", AtLeast: 1}}}
	require.NoError(t, Validate([]Case{good}))

	require.ErrorContains(t, Validate([]Case{good, good}), "there are two cases 1")
	for _, goal := range []Goal{{Metric: Rate, Of: "C", AtLeast: 1}, {Metric: Rate, Of: "A", To: "C", AtLeast: 1}, {Metric: Rate, Of: "A"}, {Metric: Rate, Of: "A", AtLeast: 1, AtMost: 1}} {
		bad := good
		bad.Goals = []Goal{goal}
		require.ErrorContains(t, Validate([]Case{bad}), "names no contender, or not one bound")
	}
	twice := good
	twice.Contenders = slices.Repeat(contenders[:1], 2)
	require.ErrorContains(t, Validate([]Case{twice}), `contender "A" is there twice`)
}

func TestGoalIsMetOnItsOwnSide(t *testing.T) {
	require.True(t, Goal{AtLeast: 2}.Met(2))
	require.False(t, Goal{AtLeast: 2}.Met(1.9))
	require.True(t, Goal{AtMost: 2}.Met(2))
	require.False(t, Goal{AtMost: 2}.Met(2.1))
}

func TestHistogramIsRightToOnePercent(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 127, 128, 255, 256, 1000, 123_456, 10_000_001, time.Second, 59 * time.Second} {
		var h Histogram
		h.Add(d)
		require.InDelta(t, d.Seconds(), h.Quantile(0.5), 0.01*d.Seconds()+1e-9, d)
	}
	var h, other Histogram
	for i := range 1000 {
		h.Add(time.Duration(i+1) * time.Microsecond)
	}
	other.Merge(h)
	require.InEpsilon(t, 500e-6, other.Quantile(0.5), 0.01)
	require.InEpsilon(t, 990e-6, other.Quantile(0.99), 0.01)
	require.Zero(t, (&Histogram{}).Quantile(0.5))
	h.Add(24 * time.Hour) // no more than it can hold
}

func init() {
	RegisterChild("count", func(ctx context.Context, cell *Cell, args json.RawMessage) error {
		var n int
		if err := json.Unmarshal(args, &n); err != nil {
			return err
		}
		cell.Set("n", float64(n))
		_, err := cell.Callers(ctx, 1, func(context.Context, int) (int, error) { return n, nil })
		return err
	})
	RegisterChild("fail", func(context.Context, *Cell, json.RawMessage) error { return errors.New("wrong") })
}

func TestProcessesWorkAtOnceAndAreAddedUp(t *testing.T) {
	cell := &Cell{Time: 20 * time.Millisecond}
	meanwhile := false

	tallies, err := cell.Processes(t.Context(), "count", []any{1, 1000}, func(ctx context.Context) error {
		meanwhile = true
		<-ctx.Done()
		return nil
	})

	require.NoError(t, err)
	require.True(t, meanwhile)
	require.Len(t, tallies, 2)
	require.InDelta(t, 1, tallies[0].Extra["n"], 0)
	require.InDelta(t, 1000, tallies[1].Extra["n"], 0)
	require.Equal(t, tallies[0].Units+tallies[1].Units, cell.tally.Units)
	require.Positive(t, tallies[0].Units)
	require.Zero(t, tallies[1].Units%1000)
	require.GreaterOrEqual(t, cell.tally.ClientCPU, tallies[0].ClientCPU+tallies[1].ClientCPU)
}

func TestProcessThatFailsFailsTheCell(t *testing.T) {
	cell := &Cell{Time: time.Millisecond}
	_, err := cell.Processes(t.Context(), "fail", []any{nil}, nil)
	require.ErrorContains(t, err, "a process did not get ready")
}
