package alarm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/alarm"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const booking messagestore.Category = "booking:saga"

type expired struct {
	Deadline string `json:"deadline"`
}

func (expired) MessageType() string { return "Expired" }

func newStore() *messagestore.Store { return must.New(messagestore.New(memory.New(), nil)) }

var silent = &alarm.Config{Logger: logger.Silent()}

// running runs a clock until the returned function is called.
func running(t testing.TB, clock *alarm.Clock) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- clock.Run(ctx) }()
	return func() {
		cancel()
		if err := await.Receive(t, "the end of a run", ended); err != nil {
			t.Error(err)
		}
	}
}

func set(t require.TestingT, store *messagestore.Store, clock *alarm.Clock, at time.Time, stream messagestore.StreamName, expected messagestore.Version) {
	w, err := clock.At(at, stream, expected, expired{"x"})
	require.NoError(t, err)
	_, err = store.WriteStreams(context.Background(), w)
	require.NoError(t, err)
}

func read(t require.TestingT, store *messagestore.Store, stream messagestore.StreamName) []*messagestore.Message {
	var all []*messagestore.Message
	for m, err := range store.ReadStream(context.Background(), stream, 0) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

func TestAnAlarmRingsAtItsTime(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{-time.Hour, 0, time.Millisecond, 10 * time.Second, time.Minute, 3*time.Hour + 59*time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				clock := must.New(alarm.New(store, booking, silent))
				stop := running(t, clock)
				time.Sleep(17 * time.Second)
				at := time.Now().Add(after)
				set(t, store, clock, at, "booking:saga-7", messagestore.NoStream)

				time.Sleep(max(0, after-time.Millisecond))
				if after > time.Millisecond {
					synctest.Wait()
					require.Empty(t, read(t, store, "booking:saga-7"), "it is early")
				}
				time.Sleep(200 * time.Millisecond)

				rung := read(t, store, "booking:saga-7")
				require.Len(t, rung, 1)
				require.Equal(t, "Expired", rung[0].Type)
				require.JSONEq(t, `{"deadline":"x"}`, string(rung[0].Data))
				require.Equal(t, clock.Category(), rung[0].Metadata.CausationStream.Category())
				require.Less(t, rung[0].Time.Sub(at), max(0, -after)+50*time.Millisecond)
				time.Sleep(5 * time.Minute)
				require.Len(t, read(t, store, "booking:saga-7"), 1)
				require.Equal(t, alarm.Stats{Rung: 1}, clock.Stats())
				stop()
			})
		})
	}
}

// A clock that is new, rings, and is stopped in the middle of a minute has nothing to warn of.
func TestAClockThatIsWellSaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		var lines bytes.Buffer
		clock := must.New(alarm.New(store, booking, &alarm.Config{Logger: logger.Zerolog(zerolog.New(zerolog.SyncWriter(&lines)).Level(zerolog.WarnLevel))}))
		stop := running(t, clock)
		time.Sleep(time.Minute)
		for i := range 3 {
			set(t, store, clock, time.Now().Add(10*time.Second), messagestore.StreamName(fmt.Sprintf("booking:saga-%d", i)), messagestore.NoStream)
			time.Sleep(time.Minute)
		}
		set(t, store, clock, time.Now().Add(time.Minute), "booking:saga-9", messagestore.NoStream)
		time.Sleep(20 * time.Second)
		stop()

		require.Empty(t, lines.String())
		require.Equal(t, alarm.Stats{Rung: 3}, clock.Stats())
	})
}

func TestAnAlarmOfAStreamThatHasMovedOnWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		clock := must.New(alarm.New(store, booking, silent))
		stop := running(t, clock)
		defer stop()
		set(t, store, clock, time.Now().Add(time.Minute), "booking:saga-7", messagestore.NoStream)

		_, err := store.Write(t.Context(), "booking:saga-7", messagestore.NoStream, expired{"before"})
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)

		require.Len(t, read(t, store, "booking:saga-7"), 1)
		require.Equal(t, alarm.Stats{Late: 1}, clock.Stats())
	})
}

// An alarm whose write is rolled back is not there; one whose minute was closed, or passed while no
// process ran, rings when it is found.
func TestAlarmsWhoseTimePassedWhileNoProcessRanRing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		clock := must.New(alarm.New(store, booking, silent))
		stop := running(t, clock)
		for i := range 50 {
			set(t, store, clock, time.Now().Add(time.Duration(i)*5*time.Minute), booking.Stream(fmt.Sprint(i)), messagestore.NoStream)
		}
		time.Sleep(10*time.Minute + time.Second)
		stop()
		time.Sleep(3 * time.Hour)
		set(t, store, clock, time.Now().Add(-2*time.Hour), "booking:saga-late", messagestore.NoStream)

		clock = must.New(alarm.New(store, booking, silent))
		stop = running(t, clock)
		time.Sleep(11 * time.Second) // the lease of the one before may last so long
		for i := range 39 {
			require.Len(t, read(t, store, booking.Stream(fmt.Sprint(i))), 1, i)
		}
		require.Len(t, read(t, store, "booking:saga-late"), 1)
		require.Empty(t, read(t, store, "booking:saga-39"))
		time.Sleep(2 * time.Hour)
		stop()
		for i := range 50 {
			require.Len(t, read(t, store, booking.Stream(fmt.Sprint(i))), 1, i)
		}
	})
}

// The first clock of a category has nothing to note but where it began: it stops before the minute of the
// alarm is near, and none runs in that minute.
func TestAnAlarmRingsThoughTheFirstClockStoppedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		clock := must.New(alarm.New(store, booking, silent))
		stop := running(t, clock)
		set(t, store, clock, time.Now().Add(10*time.Minute), "booking:saga-7", messagestore.NoStream)
		time.Sleep(time.Minute)
		stop()
		time.Sleep(20 * time.Minute)

		clock = must.New(alarm.New(store, booking, silent))
		stop = running(t, clock)
		defer stop()
		time.Sleep(time.Minute)

		require.Len(t, read(t, store, "booking:saga-7"), 1)
	})
}

// A broken store refuses writes while it is away.
type broken struct {
	*messagestore.Store
	fails atomic.Bool
	write func(messagestore.Body) // called before each write
}

var errAway = errors.New("the store is away")

func (b *broken) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if b.fails.Load() {
		return messagestore.Written{}, errAway
	}
	if b.write != nil {
		b.write(bodies[0])
	}
	return b.Store.Write(ctx, stream, expected, bodies...)
}

func TestAlarmsAreLateWhileTheStoreIsAwayAndNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &broken{Store: newStore()}
		clock := must.New(alarm.New(store, booking, silent))
		stop := running(t, clock)
		for i := range 100 {
			set(t, store.Store, clock, time.Now().Add(time.Duration(i)*3*time.Second), booking.Stream(fmt.Sprint(i)), messagestore.NoStream)
		}
		time.Sleep(30 * time.Second)
		store.fails.Store(true)
		time.Sleep(2 * time.Minute)
		store.fails.Store(false)
		time.Sleep(20 * time.Second)
		for i := range 55 {
			require.Len(t, read(t, store.Store, booking.Stream(fmt.Sprint(i))), 1, i)
		}
		time.Sleep(5 * time.Minute)
		stop()
		for i := range 100 {
			require.Len(t, read(t, store.Store, booking.Stream(fmt.Sprint(i))), 1, i)
		}
		require.Equal(t, int64(100), clock.Stats().Rung)
		require.Positive(t, clock.Stats().Failed)
	})
}

// A schedule is of replicas that come and go, and of alarms.
type schedule struct {
	seconds []int // when each alarm is to ring, since the beginning
	steps   []int // the replica that comes or goes
}

var schedules = rapid.Custom(func(t *rapid.T) schedule {
	return schedule{
		rapid.SliceOfN(rapid.IntRange(-90, 300), 1, 40).Draw(t, "seconds"),
		rapid.SliceOfN(rapid.IntRange(0, 3), 5, 20).Draw(t, "steps"),
	}
})

// Replicas come and go while alarms are set for the past and the future: each rings once, and none early.
func TestEachAlarmRingsOnceWhicheverReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	checks := 12
	if tier.Long() {
		checks = 100 // with 500 the race detector runs out of epochs
	}
	seed := rand.Int()
	for i := range checks {
		s := schedules.Example(seed + i)
		synctest.Test(t, func(t *testing.T) { requireEachOnce(t, s, seed+i) })
	}
}

func requireEachOnce(t *testing.T, s schedule, seed int) {
	t.Helper()
	config := &alarm.Config{PollInterval: time.Second, Logger: logger.Silent()}
	store := newStore()
	begun := time.Now()
	setter := must.New(alarm.New(store, booking, config))
	var stops [3]func()
	times := map[messagestore.StreamName]time.Time{}
	for i, step := range s.steps {
		if step < len(stops) {
			if stops[step] == nil {
				stops[step] = running(t, must.New(alarm.New(store, booking, config)))
			} else {
				stops[step]()
				stops[step] = nil
			}
		}
		for n := i; n < len(s.seconds); n += len(s.steps) {
			stream := booking.Stream(fmt.Sprint(n))
			times[stream] = begun.Add(time.Duration(s.seconds[n]) * time.Second)
			set(t, store, setter, times[stream], stream, messagestore.AnyVersion)
		}
		time.Sleep(7 * time.Second)
	}
	last := running(t, must.New(alarm.New(store, booking, config)))
	time.Sleep(11 * time.Second) // a lease
	for _, at := range times {
		time.Sleep(time.Until(at))
	}
	time.Sleep(time.Second)
	last()
	for _, stop := range stops {
		if stop != nil {
			stop()
		}
	}
	for stream, at := range times {
		rung := read(t, store, stream)
		require.Len(t, rung, 1, "%s, set for %v, of schedule %d", stream, at.Sub(begun), seed)
		require.False(t, rung[0].Time.Before(at.Truncate(time.Microsecond)), "%s, set for %v, is early", stream, at.Sub(begun))
	}
}

func TestAnAlarmOfAMinuteThatIsClosedRings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		clock := must.New(alarm.New(store, booking, silent))
		stop := running(t, clock)
		defer stop()
		at := time.Now().Add(time.Second)
		set(t, store, clock, at, "booking:saga-1", messagestore.NoStream)
		time.Sleep(2 * time.Minute)
		minute := clock.Category().Stream(at.UTC().Format("20060102T1504"))
		all := read(t, store, minute)
		require.Equal(t, []string{"Set", "Due", "Closed"}, []string{all[0].Type, all[1].Type, all[2].Type})

		set(t, store, clock, at, "booking:saga-2", messagestore.NoStream)
		time.Sleep(time.Second)

		require.Len(t, read(t, store, "booking:saga-2"), 1)
	})
}

// A minute is closed at the version that was read: an alarm that was set meanwhile is not passed.
func TestAnAlarmThatIsSetWhileItsMinuteIsClosedRings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &broken{Store: newStore()}
		clock := must.New(alarm.New(store, booking, silent))
		at := time.Now().Add(time.Second)
		set(t, store.Store, clock, at, "booking:saga-1", messagestore.NoStream)
		closing := 0
		store.write = func(body messagestore.Body) {
			if body.MessageType() == "Closed" {
				if closing++; closing == 1 {
					set(t, store.Store, clock, at, "booking:saga-2", messagestore.NoStream)
				}
			}
		}
		stop := running(t, clock)

		time.Sleep(2 * time.Minute)

		stop()
		require.Equal(t, 2, closing)
		require.Len(t, read(t, store.Store, "booking:saga-1"), 1)
		require.Len(t, read(t, store.Store, "booking:saga-2"), 1)
	})
}

func TestWhatIsNoAlarmIsRefused(t *testing.T) {
	t.Parallel()
	clock := must.New(alarm.New(newStore(), booking, silent))
	now := time.Now()
	for name, test := range map[string]struct {
		at       time.Time
		stream   messagestore.StreamName
		expected messagestore.Version
		body     messagestore.Body
		field    string
	}{
		"no time":           {time.Time{}, "a-1", 0, expired{}, "time"},
		"year 1969":         {time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC), "a-1", 0, expired{}, "time"},
		"year 10000":        {time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "a-1", 0, expired{}, "time"},
		"no stream":         {now, "", 0, expired{}, "stream"},
		"a category":        {now, "a", 0, expired{}, "stream"},
		"version -3":        {now, "a-1", -3, expired{}, "expected version"},
		"no body":           {now, "a-1", 0, nil, "body"},
		"nil in a body":     {now, "a-1", 0, (*expired)(nil), "body"},
		"an id":             {now, "a-1", 0, messagestore.Envelope{ID: uuid.New(), Body: expired{}}, "id"},
		"empty envelope":    {now, "a-1", 0, messagestore.Envelope{}, "body"},
		"no type":           {now, "a-1", 0, messagestore.Raw{Data: []byte(`{}`)}, "type"},
		"an array":          {now, "a-1", 0, messagestore.Raw{Type: "T", Data: []byte(`[]`)}, "data"},
		"no JSON":           {now, "a-1", 0, messagestore.Raw{Type: "T", Data: []byte(`{`)}, "data"},
		"not encodable":     {now, "a-1", 0, hollow{math.NaN()}, "data"},
		"not UTF-8":         {now, "a-1", 0, labelled{"\xff"}, "data"},
		"encodes as number": {now, "a-1", 0, number(3), "data"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := clock.At(test.at, test.stream, test.expected, test.body)

			require.ErrorIs(t, err, messagestore.ErrInvalid)
			refused, is := errors.AsType[*messagestore.InvalidError](err)
			require.True(t, is)
			require.Contains(t, strings.ToLower(refused.Field), test.field)
			require.NotContains(t, err.Error(), "\n", "the cause is in the rule")
		})
	}
}

// The first and the last minute that there are, and many alarms of one.
func TestTheBoundsOfTimeAndAFullMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		clock := must.New(alarm.New(store, booking, silent))
		set(t, store, clock, time.Unix(0, 0), "trip-first", messagestore.AnyVersion)
		set(t, store, clock, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), "trip-last", messagestore.AnyVersion)
		const alarms = 20_000
		at := time.Now().Add(time.Minute)
		for range alarms {
			set(t, store, clock, at, "trip-full", messagestore.AnyVersion)
		}
		defer running(t, clock)()
		time.Sleep(2 * time.Minute)

		require.Len(t, read(t, store, "trip-first"), 1)
		require.Empty(t, read(t, store, "trip-last"))
		require.Len(t, read(t, store, "trip-full"), alarms)
	})
}

type hollow struct{ X float64 }

func (hollow) MessageType() string { return "Hollow" }

type labelled struct{ Label string }

func (labelled) MessageType() string { return "Labelled" }

type number int

func (number) MessageType() string { return "Number" }

func TestAClockOutOfBoundsSaysSo(t *testing.T) {
	t.Parallel()
	for _, config := range []alarm.Config{{Concurrency: -1}, {Concurrency: 1025}, {PollInterval: time.Hour}, {PollInterval: 1}, {Lease: time.Millisecond}} {
		_, err := alarm.New(newStore(), booking, &config)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%+v", config)
	}
	for _, category := range []messagestore.Category{"", "a-b"} {
		_, err := alarm.New(newStore(), category, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	_, err := alarm.New(nil, booking, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

// Each mistake is told once, beside all others.
func TestAllMistakesOfAClockAreNamedOnce(t *testing.T) {
	t.Parallel()
	var none *messagestore.Store
	long := messagestore.Category(strings.Repeat("x", messagestore.MaxNameBytes-10))
	bad := &alarm.Config{Concurrency: -1, PollInterval: -1, Lease: -1}
	for name, test := range map[string]struct {
		store    alarm.Store
		category messagestore.Category
		config   *alarm.Config
		fields   []string
	}{
		"a lease":          {newStore(), booking, &alarm.Config{Lease: time.Millisecond}, []string{"Lease"}},
		"all":              {nil, "a-b", bad, []string{"store", "category", "Concurrency", "PollInterval", "Lease"}},
		"a nil store":      {none, booking, nil, []string{"store"}},
		"a long category":  {newStore(), long, nil, []string{"consumer name"}},
		"long, and others": {newStore(), long, bad, []string{"consumer name", "Concurrency", "PollInterval", "Lease"}},
	} {
		_, err := alarm.New(test.store, test.category, test.config)

		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.Equal(t, len(test.fields), strings.Count(err.Error(), "invalid ")-strings.Count(err.Error(), "invalid consumer:"), "%s: %v", name, err)
		for _, field := range test.fields {
			require.Equal(t, 1, strings.Count(err.Error(), "invalid "+field+" ")+strings.Count(err.Error(), "invalid "+field+":"), "%s: %s: %v", name, field, err)
		}
	}
}
