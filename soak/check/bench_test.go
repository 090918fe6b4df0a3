package check_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
)

// A history of a million operations, without the time that it takes to make it up.
func BenchmarkAMillionOperations(b *testing.B) {
	s := simulate(rand.New(rand.NewPCG(1, 2)), 520_000)
	dir := b.TempDir()
	s.files(b, dir)
	operations := len(s.acts)
	s.acts = nil
	runtime.GC()
	var v *check.Verdict
	for b.Loop() {
		v = s.judge(b.Context(), b, dir, unrecordedEffects())
	}
	require.True(b, v.Passed(), "%v", v)
	b.ReportMetric(float64(operations), "operations")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(operations), "µs/operation")
}
