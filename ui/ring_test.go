package ui

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
)

func TestTheRingKeepsAnHour(t *testing.T) {
	t.Parallel()
	var r ring
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(lag int64, done int64) []operate.Health {
		return []operate.Health{
			{Kind: operate.AConsumer, Name: "c", Consumer: &consumers.Status{Lag: lag, Position: messagestore.GlobalPosition(done)}},
			{Kind: operate.AQueue, Name: "q", Queue: &queue.Status{Out: lag, Finished: done}},
			{Kind: operate.ASchedule, Name: "s"},
		}
	}
	require.Nil(t, r.plot(at(0, 0)[0]))
	for i := range 1000 {
		r.add(start.Add(time.Duration(i)*sampledEvery), at(int64(i), 10*int64(i)))
	}
	for _, h := range at(0, 0)[:2] {
		require.Len(t, r.series[seriesOf(h)], 361, h.Name)
		p := r.plot(h)
		require.Equal(t, []int64{639, 999}, []int64{p.Least, p.Most})
		require.Equal(t, "3 600", p.PerHour, "ten in ten seconds")
		require.LessOrEqual(t, len(p.Rows), tableRows)
		require.Equal(t, int64(999), p.Rows[0].Value, "the newest first")
	}
	require.Len(t, r.series, 2)

	r.add(start, at(5, 0)) // the clock went back
	require.Len(t, r.series[seriesOf(at(0, 0)[0])], 1)

	many := make([]operate.Health, 2*maxSeries)
	for i := range many {
		many[i] = operate.Health{Kind: operate.AConsumer, Name: string(rune('a' + i)), Consumer: &consumers.Status{}}
	}
	r.add(start.Add(time.Hour), many)
	require.Len(t, r.series, maxSeries)
	r.add(start.Add(2*time.Hour), nil)
	require.Empty(t, r.series, "what is gone is forgotten")
}
