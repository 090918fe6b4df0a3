package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/bench/measure"
)

// BenchstatFile is the file in the folder of a run with its figures in the format of go test
// -bench: one line for each contender and round. Compare two runs by
//
//	benchstat old/bench.txt new/bench.txt
const BenchstatFile = "bench.txt"

// units are the metrics' units there, and how many of it one of ours is. The rate is in ns/op.
var units = map[measure.Metric]struct {
	name string
	per  float64
}{
	measure.P50: {"p50-ns", 1e9}, measure.P99: {"p99-ns", 1e9}, measure.ClientCPU: {"client-ns/op", 1e9}, measure.ServerCPU: {"server-ns/op", 1e9},
	measure.WAL: {"wal-B/op", 1},
}

// Benchstat returns the measurements of a case as lines of a Go benchmark.
func Benchstat(r measure.Result) string {
	var b strings.Builder
	for _, contender := range r.Contenders {
		name := strings.ReplaceAll("Benchmark"+strings.ToUpper(r.Case.Name[:1])+r.Case.Name[1:]+"/by="+contender, " ", "_")
		for _, round := range r.Rounds[contender] {
			fmt.Fprintf(&b, "%s 1", name)
			if rate := round[measure.Rate]; rate > 0 {
				fmt.Fprintf(&b, " %.1f ns/op", 1e9/rate)
			}
			for _, metric := range slices.Sorted(maps.Keys(round)) {
				if unit, ok := units[metric]; ok {
					fmt.Fprintf(&b, " %.4g %s", round[metric]*unit.per, unit.name)
				} else if metric != measure.Rate {
					fmt.Fprintf(&b, " %.4g %s", round[metric], strings.ReplaceAll(string(metric), " ", "-"))
				}
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
