package alarm_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/alarm"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// Two replicas with stores of their own, in real time.
func TestAlarmsRingOnceOnADatabase(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (messagestore.Driver, messagestore.Driver){
		"SQLite": func(t *testing.T) (messagestore.Driver, messagestore.Driver) {
			t.Helper()
			file := filepath.Join(t.TempDir(), "alarms.db")
			return openFile(t, file), openFile(t, file)
		},
		"PostgreSQL": func(t *testing.T) (messagestore.Driver, messagestore.Driver) {
			t.Helper()
			pool := pgtest.Pool(t)
			return must.New(postgres.New(pool, nil)), must.New(postgres.New(pool, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, other := open(t)
			a, b := must.New(messagestore.New(one, nil)), must.New(messagestore.New(other, nil))
			category := storetest.Category(t)
			clock, twin := must.New(alarm.New(a, category, silent)), must.New(alarm.New(b, category, silent))
			stops := []func(){running(t, clock), running(t, twin)}
			const alarms = 60
			begun := time.Now()
			at := func(i int) time.Time { return begun.Add(time.Duration(i-20) * 10 * time.Millisecond) }
			for i := range alarms {
				stream := category.Stream(fmt.Sprint(i))
				w, err := clock.At(at(i), stream, 0, expired{"x"})
				require.NoError(t, err)
				_, err = a.WriteStreams(t.Context(), messagestore.To(stream, messagestore.NoStream, expired{"begun"}), w)
				require.NoError(t, err)
			}

			await.That(t, fmt.Sprint("rung alarms: ", alarms), func() (bool, any) {
				stats := []alarm.Stats{clock.Stats(), twin.Stats()}
				return stats[0].Rung+stats[1].Rung == alarms, stats
			})

			for _, stop := range stops {
				stop()
			}
			var late []time.Duration
			for i := range alarms {
				rung := read(t, a, category.Stream(fmt.Sprint(i)))
				require.Len(t, rung, 2)
				require.False(t, rung[1].Time.Before(at(i).Truncate(time.Microsecond)), "it is early")
				late = append(late, rung[1].Time.Sub(at(i)))
			}
			slices.Sort(late)
			t.Logf("late: median %v, at most %v", late[alarms/2], late[alarms-1])
		})
	}
}

func openFile(t *testing.T, file string) messagestore.Driver {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return driver
}
