package check_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A history of two hundred thousand calls, without the time that it takes to make it up.
func BenchmarkTwoHundredThousandCalls(b *testing.B) {
	s := simulate(rand.New(rand.NewPCG(1, 2)), 100_000)
	runtime.GC()
	for b.Loop() {
		require.True(b, s.verdict(b, unrecordedEffects...).Passed())
	}
	b.ReportMetric(float64(len(s.acts)), "calls")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(s.acts)), "µs/call")
}
