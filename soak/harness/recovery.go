package harness

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs/soak/history"
)

// recoveries returns, for each time that the server was killed, how long it took until a
// handler had handled a message again, sorted. What was killed again before is left out.
func recoveries(dir string, crashes []int64) ([]time.Duration, error) {
	files, err := history.Files(dir)
	if err != nil {
		return nil, err
	}
	first := make([]int64, len(crashes)) // that was begun after each crash, and handled
	slices.Sort(crashes)
	for _, path := range files {
		for o, err := range history.Operations(path) {
			if err != nil {
				return nil, err
			}
			if o.Func != history.Handle || o.Kind != history.OK {
				continue
			}
			i, _ := slices.BinarySearch(crashes, o.Time)
			if i--; i >= 0 && (first[i] == 0 || o.End < first[i]) {
				first[i] = o.End
			}
		}
	}
	var took []time.Duration
	for i, at := range first {
		if at != 0 && (i+1 == len(crashes) || at < crashes[i+1]) {
			took = append(took, time.Duration(at-crashes[i]))
		}
	}
	slices.Sort(took)
	return took, nil
}
