package dibsprom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// Each number is another, so that none can stand for another.
func TestEachMetricIsOfItsOwnNumber(t *testing.T) {
	t.Parallel()
	stats := consumer.Stats{Handled: 1, Failed: 2, Retried: 3, Parked: 4, Skipped: 5, Tombstones: 6, StoreErrors: 7, Position: 8, Head: 9}
	behind := readings.Lag{Messages: 11, Seconds: 12.5, Parked: 13, Members: 14, Gone: 15}

	values := map[string]float64{}
	for _, c := range counts {
		values[c.String()] = float64(c.of(stats))
	}
	for _, g := range gauges {
		values[g.String()] = g.of(behind)
	}

	want := map[string]float64{}
	for _, m := range []struct {
		name, help string
		value      float64
	}{
		{"handled_total", "Messages whose handler returned nil.", 1},
		{"failed_total", "Deliveries that failed.", 2},
		{"retried_total", "Deliveries that were not the first of their message.", 3},
		{"parked_total", "Messages that were parked.", 4},
		{"skipped_total", "Messages that handlers skipped.", 5},
		{"store_errors_total", "Errors of the store after which the consumer went on.", 7},
		{"lag_messages", "Messages from the checkpoint to the head, of the whole group.", 11},
		{"lag_seconds", "The age of the oldest message that is not behind the checkpoint.", 12.5},
		{"dead_letters", "Parked messages.", 13},
		{"members", "Processes of the group.", 14},
		{"members_gone", "Processes of the group that have been silent for longer than their lease.", 15},
	} {
		want[describe(m.name, m.help, 0).String()] = m.value
	}
	require.Equal(t, want, values)
}
