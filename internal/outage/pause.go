package outage

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause returns the pause after a number of failures in a row: 0 without a failure, least after the
// first, twice as long after each further one, and at most most. Each pause is shortened by a
// random part of up to a half, so that operations that failed together are not repeated together.
func Pause(failures int, least, most time.Duration) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := least
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d - rand.N(d/2+1)
}

// Wait waits for d, and returns early with ctx's error when ctx is done.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
