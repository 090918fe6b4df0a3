package measure

import (
	"math/bits"
	"time"
)

// A Histogram counts durations, each to within 1 %. It is not safe for concurrent use.
type Histogram struct {
	// Counts has 128 buckets for each power of two nanoseconds from 2^7 on, and below that one
	// bucket per nanosecond.
	Counts []uint32
}

const (
	subBuckets    = 128
	subBits       = 7
	maxHistogram  = 1 << 36 // 68 seconds
	histogramSize = (36-subBits+1)*subBuckets + subBuckets
)

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	if h.Counts == nil {
		h.Counts = make([]uint32, histogramSize)
	}
	h.Counts[bucket(uint64(min(max(d, 0), maxHistogram)))]++
}

func bucket(ns uint64) int {
	shift := max(bits.Len64(ns)-subBits-1, 0)
	return shift*subBuckets + int(ns>>shift)
}

// lowest is the least duration that is counted in a bucket.
func lowest(bucket int) float64 {
	shift := max(bucket/subBuckets-1, 0)
	return float64(uint64(bucket-shift*subBuckets) << shift)
}

// Merge adds the counts of another histogram.
func (h *Histogram) Merge(other Histogram) {
	if h.Counts == nil {
		h.Counts = make([]uint32, histogramSize)
	}
	for i, n := range other.Counts {
		h.Counts[i] += n
	}
}

// Quantile returns the q-quantile of the durations in seconds, interpolated within its bucket; 0 if
// nothing was counted.
func (h *Histogram) Quantile(q float64) float64 {
	var total uint64
	for _, n := range h.Counts {
		total += uint64(n)
	}
	rank, seen := q*float64(total), 0.0
	for i, n := range h.Counts {
		if n > 0 && seen+float64(n) >= rank {
			low, high := lowest(i), lowest(i+1)
			return (low + (high-low)*(rank-seen)/float64(n)) * 1e-9
		}
		seen += float64(n)
	}
	return 0
}
