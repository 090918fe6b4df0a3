package alarm_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/alarm"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var errKilled = errors.New("the process was killed")

// A process is a store as one process has it, which may be killed: from then on no write gets through.
type process struct {
	*messagestore.Store
	cancel context.CancelFunc

	mu      sync.Mutex
	dead    bool
	passed  int
	killAt  int    // the boundary at which it is killed, from 1
	reached string // the boundary
}

// boundary reports whether the process may go on.
func (p *process) boundary(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.passed++; !p.dead && p.passed == p.killAt {
		p.dead, p.reached = true, what
		p.cancel()
	}
	return !p.dead
}

func (p *process) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	written, err := p.WriteStreams(ctx, messagestore.To(stream, expected, bodies...))
	if err != nil {
		return messagestore.Written{}, err
	}
	return written[0], nil
}

func (p *process) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	what := string(writes[0].Stream) + " " + writes[0].Bodies[0].MessageType()
	if !p.boundary("before " + what) {
		return nil, errKilled
	}
	written, err := p.Store.WriteStreams(context.WithoutCancel(ctx), writes...)
	if !p.boundary("after " + what) {
		return nil, errKilled
	}
	return written, err
}

// A clock that is killed before or after any of its writes leaves alarms that another rings: each once, none early.
func TestAlarmsRingOnceThoughTheirClockIsKilledAtAnyBoundary(t *testing.T) {
	t.Parallel()
	boundaries := 0
	for more := true; more; {
		boundaries++
		synctest.Test(t, func(t *testing.T) { more = killed(t, boundaries) })
	}
	require.Greater(t, boundaries, 20)
}

// killed has a clock killed at a boundary, and another ring the rest. It reports whether there is such a boundary.
func killed(t *testing.T, killAt int) bool {
	store := newStore()
	begun := time.Now()
	times := map[messagestore.StreamName]time.Time{}
	for stream, after := range map[messagestore.StreamName]time.Duration{"trip-1": -time.Hour, "trip-2": time.Second, "trip-3": 5 * time.Second, "trip-4": 70 * time.Second} {
		times[stream] = begun.Add(after)
		set(t, store, must.New(alarm.New(store, booking, silent)), times[stream], stream, messagestore.AnyVersion)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	first := &process{Store: store, cancel: cancel, killAt: killAt}
	_ = must.New(alarm.New(first, booking, silent)).Run(ctx) // it is killed
	stop := running(t, must.New(alarm.New(store, booking, silent)))
	time.Sleep(3 * time.Minute)
	stop()

	for stream, at := range times {
		rung := read(t, store, stream)
		require.Len(t, rung, 1, "%s, killed %s", stream, first.reached)
		require.False(t, rung[0].Time.Before(at.Truncate(time.Microsecond)), "%s is early, killed %s", stream, first.reached)
	}
	return first.reached != ""
}
