package harness

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/history"
)

// A Recovery is how long it took, after kills of the server, until there was a message
// handled that was delivered after it, sorted. A kill is alone if nothing else was wrong
// from a second before it until two after it.
type Recovery struct {
	First, FirstOfMany []time.Duration // of any consumer: after a kill that was alone, after a kill that was not
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

// A crash is when the server was killed, or began to start again, and when the last of its processes
// was gone that served a client before.
type crash struct{ at, dead int64 }

// recoveries reads how long it took each of the consumers to handle a message after each of
// the kills.
func recoveries(dir string, crashes []crash, consumers []string) (r Recovery, err error) {
	files, err := history.Files(dir)
	if err != nil {
		return r, err
	}
	slices.SortFunc(crashes, func(a, b crash) int { return cmp.Compare(a.at, b.at) })
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
				if i := sort.Search(len(crashes), func(i int) bool { return crashes[i].dead >= o.Time }); i > 0 {
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
	for i := range crashes {
		at := crashes[i].at
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
// a long recovery is likelier to meet something else.
func isAlone(at int64, crashes []crash, faults []span) bool {
	from, to := at-aloneBefore.Nanoseconds(), at+aloneAfter.Nanoseconds()
	if slices.ContainsFunc(crashes, func(c crash) bool { return c.at != at && from <= c.at && c.at <= to }) {
		return false
	}
	return !slices.ContainsFunc(faults, func(f span) bool {
		own := slices.Contains(crashing, f.name) && f.from <= at && at <= f.to
		return !own && f.from <= to && from <= f.to
	})
}
