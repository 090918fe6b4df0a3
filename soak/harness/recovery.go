package harness

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/history"
)

// A Recovery is how long it took, after kills of the server, until there was a message
// handled that was handed over after it, sorted. A kill is alone if nothing else was wrong
// from a second before it until two after it, whatever came later.
type Recovery struct {
	First, FirstOfMany []time.Duration // of any consumer: after a kill that was alone, after one that was not
	Each, EachOfMany   []time.Duration // the same, of each consumer
	Never              int             // consumers that never handled a message after a kill
}

// Quantile returns the time that so many of sorted times are not above, 0 for none.
func Quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[min(len(times)-1, int(math.Ceil(q*float64(len(times))))-1)]
}

// recoveries reads how long it took each of the consumers to handle a message after each of
// the kills.
func recoveries(dir string, crashes []int64, consumers []string) (r Recovery, err error) {
	files, err := history.Files(dir)
	if err != nil {
		return r, err
	}
	slices.Sort(crashes)
	first := map[string][]int64{} // by consumer: when the first that was begun after each kill was over
	for _, name := range consumers {
		first[name] = slices.Repeat([]int64{history.Never}, len(crashes))
	}
	var faults []span
	for _, path := range files {
		proc := strings.TrimSuffix(filepath.Base(path), history.Ending)
		over := first[proc[:max(0, strings.LastIndexByte(proc, '.'))]]
		for o, err := range history.Operations(path) {
			switch {
			case err != nil:
				return r, err
			case o.Func == history.Fault:
				faults = append(faults, span{o.Class, o.Time, o.End})
			case over != nil && o.Func == history.Handle && o.Kind == history.OK:
				// It counts for all kills before it: see below.
				if i, _ := slices.BinarySearch(crashes, o.Time); i > 0 {
					over[i-1] = min(over[i-1], o.End)
				}
			}
		}
	}
	for _, over := range first {
		for i := len(over) - 2; i >= 0; i-- {
			over[i] = min(over[i], over[i+1])
		}
	}
	for i, at := range crashes {
		firsts, each := &r.First, &r.Each
		if !isAlone(at, crashes, faults) {
			firsts, each = &r.FirstOfMany, &r.EachOfMany
		}
		soonest := int64(history.Never)
		for _, over := range first {
			soonest = min(soonest, over[i])
			if over[i] == history.Never {
				r.Never++
				continue
			}
			*each = append(*each, time.Duration(over[i]-at))
		}
		if soonest != history.Never {
			*firsts = append(*firsts, time.Duration(soonest-at))
		}
	}
	for _, times := range [][]time.Duration{r.First, r.FirstOfMany, r.Each, r.EachOfMany} {
		slices.Sort(times)
	}
	return r, nil
}

type span struct {
	name     string
	from, to int64
}

// isAlone looks at a fixed time around a kill, not at how long it took to recover from it:
// what takes long is likelier to meet something else.
func isAlone(at int64, crashes []int64, faults []span) bool {
	from, to := at-aloneBefore.Nanoseconds(), at+aloneAfter.Nanoseconds()
	i, _ := slices.BinarySearch(crashes, at)
	if i > 0 && crashes[i-1] >= from || i+1 < len(crashes) && crashes[i+1] <= to {
		return false
	}
	return !slices.ContainsFunc(faults, func(f span) bool {
		own := slices.Contains(crashing, f.name) && f.from <= at && at <= f.to
		return !own && f.from <= to && from <= f.to
	})
}
