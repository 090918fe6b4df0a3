package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressIsToldNowAndThen(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	p := progress{every: time.Second, now: func() time.Time { return now }}
	p.start()

	told := 0
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		if p.due() {
			told++
		}
	}

	require.Equal(t, 10, told)
}
