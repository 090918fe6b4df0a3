package consumer_test

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// Promises C1 to C4 with real processes: up to 8 replicas come and go each second, by SIGTERM and
// kill -9, and are paused past their leases. For three minutes in the long tier.
func TestReplicasComeAndGoAsProcesses(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // migrates the database
	for name, lanes := range map[string]int{"InOrder": 1, "Shared": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testMembers(t, pgtest.URL(t), lanes)
		})
	}
}

func testMembers(t *testing.T, storeURL string, lanes int) {
	t.Helper()
	moves := 6
	if testkit.Long() {
		moves = 180
	}
	store, err := dibs.Open(t.Context(), storeURL, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	category := storetest.Category(t)
	random := rand.New(rand.NewPCG(uint64(lanes), uint64(moves)))

	stop := make(chan struct{})
	written := 0
	var writing sync.WaitGroup
	var writeErr error
	t.Cleanup(writing.Wait)
	writing.Go(func() {
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticks.C:
			}
			if _, writeErr = store.Write(t.Context(), category.Stream(fmt.Sprint(written*7%40)), messagestore.AnyVersion, Deposited{written}); writeErr != nil {
				return
			}
			written++
		}
	})

	var members []*exec.Cmd
	paused := map[*exec.Cmd]bool{}
	signal := func(c *exec.Cmd, s syscall.Signal) {
		require.NoError(t, c.Process.Signal(s))
		paused[c] = s == syscall.SIGSTOP
	}
	start := func() {
		members = append(members, startCrashChild(t, crashStore+"="+storeURL, crashCategory+"="+string(category), crashLanes+"="+fmt.Sprint(lanes)))
	}
	kills, pauses, stops := 0, 0, 0
	for range moves {
		i := random.IntN(max(1, len(members)))
		switch move := random.IntN(8); {
		case len(members) == 0 || move < 3 && len(members) < 8:
			start()
		case move < 5:
			signal(members[i], syscall.SIGSTOP)
			pauses++
		case move < 6:
			signal(members[i], syscall.SIGCONT)
		default:
			c := members[i]
			members = append(members[:i:i], members[i+1:]...)
			signal(c, syscall.SIGCONT)
			if move == 6 {
				kills++
				kill(t, c)
				continue
			}
			stops++
			signal(c, syscall.SIGTERM)
			require.NoError(t, endOfProcess(t, c), "it stops without an error")
		}
		for c, is := range paused {
			if is && random.IntN(4) == 0 {
				signal(c, syscall.SIGCONT)
			}
		}
		pause(t, time.Second)
	}
	close(stop)
	writing.Wait()
	require.NoError(t, writeErr)
	for c, is := range paused {
		if is {
			signal(c, syscall.SIGCONT)
		}
	}
	start()
	testkit.Await(t, "all messages are handled", func() (bool, any) {
		all, err := operate.Consumers(t.Context(), store, category)
		return err == nil && len(all) == 1 && all[0].PositionErr == nil && all[0].Lag == 0, all
	})
	for _, c := range members {
		signal(c, syscall.SIGTERM)
		require.NoError(t, endOfProcess(t, c))
	}

	seen := map[messagestore.GlobalPosition]bool{}
	next := map[messagestore.StreamName]messagestore.Version{}
	again, longest, last := 0, time.Duration(0), time.Time{}
	for _, m := range allDone(t, store, category) {
		if !last.IsZero() {
			longest = max(longest, m.Time.Sub(last))
		}
		last = m.Time
		cause := m.Metadata
		if seen[cause.CausationGlobalPosition] {
			again++
			continue
		}
		seen[cause.CausationGlobalPosition] = true
		require.Equal(t, next[cause.CausationStream], cause.CausationPosition, "first deliveries of %s", cause.CausationStream)
		next[cause.CausationStream]++
	}
	t.Logf("%d messages, %d handled again, %d kills, %d pauses, %d stops, the longest gap %v", written, again, kills, pauses, stops, longest)
	// How many are handled again depends on the machine, too: on a busy one a lease passes by itself.
	// TestNoMessageIsSkippedWhicheverReplicasComeAndGo has the bound.
	require.Len(t, seen, written)
}

// pause waits for a time in which real processes work.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
