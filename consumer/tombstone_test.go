package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// removals is a store whose messages can be removed.
type removals struct {
	*messagestore.Store
	admin    *admin.Admin
	category messagestore.Category
}

func newRemovals(t *testing.T) *removals {
	t.Helper()
	pool := pgtest.Pool(t)
	return &removals{testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil)), storetest.Category(t)}
}

func (r *removals) consumer(t *testing.T, h consumer.Handler, config *consumer.Config) *consumer.Consumer {
	t.Helper()
	return newNamed(r.Store, r.category, "accounts", h, config)
}

func (r *removals) trim(ctx context.Context, stream messagestore.StreamName, keep int64) error {
	_, err := r.admin.Trim(ctx, stream, &retention.TrimOptions{Keep: keep, MinAge: retention.AnyAge})
	return err
}

func (r *removals) delete(t *testing.T, stream messagestore.StreamName, erase bool) {
	t.Helper()
	_, err := r.admin.Delete(t.Context(), stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: erase})
	require.NoError(t, err)
}

func TestATombstoneIsPassedWithoutTheHandler(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 4} {
		r := newRemovals(t)
		var handled []string
		var mu sync.Mutex
		mux := handler.New() // it knows no tombstone
		handler.On(mux, func(_ context.Context, m handler.Message[Deposited]) error {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, m.Stream.ID()+"@"+strconv.Itoa(int(m.Position)))
			return nil
		})
		for _, id := range []string{"1", "2", "3"} {
			write(t, r.Store, r.category.Stream(id), Deposited{1}, Deposited{2})
		}
		r.delete(t, r.category.Stream("2"), false)
		write(t, r.Store, r.category.Stream("1"), Deposited{3})
		r.delete(t, r.category.Stream("3"), true)
		write(t, r.Store, r.category.Stream("2"), Deposited{3}) // after the tombstone
		r.delete(t, r.category.Stream("1"), true)               // the head of the category is a tombstone

		c := r.consumer(t, mux, &consumer.Config{Concurrency: concurrency})
		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, []string{"2@3"}, handled)
		stats := c.Stats()
		require.Equal(t, int64(1), stats.Handled)
		require.Equal(t, int64(3), stats.Tombstones)
		require.Equal(t, stats.Head+1, stats.Position)
		require.NoError(t, r.consumer(t, mux, nil).CatchUp(t.Context()), "the position is not ahead")
		require.Equal(t, []string{"2@3"}, handled)
	}
}

func TestATombstoneWaitsInItsPlaceForWhatIsBeforeIt(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	write(t, r.Store, r.category.Stream("1"), Deposited{1})
	write(t, r.Store, r.category.Stream("2"), Deposited{1})
	r.delete(t, r.category.Stream("2"), false)
	failing := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("not yet") })

	c := r.consumer(t, failing, &consumer.Config{Concurrency: 4, Errors: stopAtOnce})
	require.Error(t, c.CatchUp(t.Context()))

	require.Zero(t, c.Stats().Position)
	j := &journal{}
	require.NoError(t, r.consumer(t, j, nil).CatchUp(t.Context()))
	require.Len(t, j.all(), 1)
}

// C6 stays true: a position is not ahead of a category whose head was removed.
func TestAPositionIsNotAheadOfWhatWasRemoved(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(t *testing.T, r *removals){
		"trimmed": func(t *testing.T, r *removals) {
			t.Helper()
			require.NoError(t, r.trim(t.Context(), r.category.Stream("1"), 1))
		},
		"deleted": func(t *testing.T, r *removals) { t.Helper(); r.delete(t, r.category.Stream("1"), false) },
		"erased":  func(t *testing.T, r *removals) { t.Helper(); r.delete(t, r.category.Stream("1"), true) },
		"erased, begun again and erased": func(t *testing.T, r *removals) {
			t.Helper()
			r.delete(t, r.category.Stream("1"), true)
			write(t, r.Store, r.category.Stream("1"), Deposited{1})
			r.delete(t, r.category.Stream("1"), true)
		},
		"deleted in parts": func(t *testing.T, r *removals) {
			t.Helper()
			_, err := pgtest.Pool(t).Exec(t.Context(), "select dibs.delete_stream($1, max_messages => 1)", string(r.category.Stream("1")))
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRemovals(t)
			write(t, r.Store, r.category.Stream("1"), Deposited{1}, Deposited{2}, Deposited{3})
			require.NoError(t, r.consumer(t, &journal{}, nil).CatchUp(t.Context()))
			remove(t, r)

			j := &journal{}
			require.NoError(t, r.consumer(t, j, nil).CatchUp(t.Context()))
			require.NotContains(t, j.all(), removal.TombstoneType)
			write(t, r.Store, r.category.Stream("2"), Deposited{4})
			after := &journal{}
			require.NoError(t, r.consumer(t, after, nil).CatchUp(t.Context()))
			require.Len(t, after.all(), 1)
		})
	}
}

// The position streams keep few rows while the consumer runs, and it does not notice.
func TestPositionsAreTrimmedUnderARunningConsumer(t *testing.T) {
	t.Parallel()
	const least = 300 // messages; more until enough was trimmed

	r := newRemovals(t)
	j := &journal{}
	c := r.consumer(t, j, &consumer.Config{CheckpointMessages: 1, PollInterval: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	positions := r.category.WithType("position")
	trimmed := make(chan error, 1)
	enough := make(chan struct{})
	var removed atomic.Int64
	go func() {
		for {
			for each, err := range r.admin.TrimCategory(ctx, positions, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}) {
				if err != nil {
					trimmed <- err
					return
				}
				removed.Add(each.Removed)
			}
			select {
			case <-enough:
				trimmed <- nil
				return
			default:
			}
		}
	}()
	messages := 0
	testkit.Await(t, "positions are trimmed while it runs", func() (bool, any) {
		for range 10 {
			write(t, r.Store, r.category.Stream(strconv.Itoa(messages%7)), Deposited{messages})
			messages++
		}
		return messages >= least && removed.Load() > 10, removed.Load()
	})
	testkit.Await(t, "all messages are handled", func() (bool, any) {
		s := c.Stats()
		return s.Position > s.Head && s.Handled == int64(messages), s
	})
	close(enough)
	require.NoError(t, testkit.Receive(t, "the trims end", trimmed))
	stop()
	require.NoError(t, testkit.Receive(t, "the run ends", ended))

	require.Len(t, j.all(), messages)
	again := &journal{}
	require.NoError(t, r.consumer(t, again, nil).CatchUp(t.Context()))
	require.Empty(t, again.all(), "it goes on where it was")
	for _, err := range r.admin.TrimCategory(t.Context(), positions, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}) {
		require.NoError(t, err) // the last one before may have come before the last checkpoint
	}
	rows := map[messagestore.StreamName]int{}
	for m, err := range r.ReadCategory(t.Context(), positions, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		require.NotZero(t, m.ID)
		rows[m.Stream]++
	}
	require.NotEmpty(t, rows)
	for stream, n := range rows {
		require.Equal(t, 1, n, stream)
	}
}

// Of positions and of generations the last ones are enough, also to go on after a reset.
func TestAConsumerWhosePositionsWereTrimmedSkipsNothing(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	j := &journal{}
	positions := r.category.WithType("position")
	for _, run := range []struct{ resets, runs bool }{{false, true}, {true, true}, {false, false}, {true, false}, {false, true}, {false, true}} {
		for n := range 12 {
			write(t, r.Store, r.category.Stream(strconv.Itoa(n)), Deposited{n})
		}
		if run.resets {
			_, err := operate.Consumer(r.Store, r.category, "accounts").Reset(t.Context(), positionsNow(t, r.Store, r.category)[0].Position)
			require.NoError(t, err)
		}
		if run.runs {
			require.NoError(t, r.consumer(t, j, &consumer.Config{CheckpointMessages: 1}).CatchUp(t.Context()))
		}
		for _, err := range r.admin.TrimCategory(t.Context(), positions, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}) {
			require.NoError(t, err)
		}
	}

	seen := map[string]bool{}
	for _, m := range j.all() {
		seen[m] = true
	}
	require.Len(t, seen, 6*12)
	found, err := r.admin.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{r.category, positions}})
	require.NoError(t, err)
	require.Empty(t, found.Violations)
}

// Whichever member the tombstone of a name that was erased falls to, it passes it, and
// none waits for it.
func TestATombstoneIsPassedByOneMemberOfAGroup(t *testing.T) {
	t.Parallel()
	const members, streams = 3, 12

	r := newRemovals(t)
	half := func(from, to int) {
		for n := range streams {
			for i := from; i < to; i++ {
				write(t, r.Store, r.category.Stream(strconv.Itoa(n)), Deposited{i})
			}
		}
	}
	j := &journal{}
	tombstones := int64(0)
	handle := func() {
		end := endOf(t, r.Store, r.category)
		stops := make([]func() error, members)
		all := make([]*consumer.Consumer, members)
		for m := range members {
			all[m] = r.consumer(t, j, &consumer.Config{Concurrency: 2, PollInterval: time.Millisecond})
			stops[m] = running(t, all[m])
		}
		testkit.AwaitTrue(t, "all is handled", func() bool {
			s := positionsNow(t, r.Store, r.category)
			return len(s) == 1 && s[0].Position == end
		})
		for m := range members {
			require.NoError(t, stops[m]())
			tombstones += all[m].Stats().Tombstones
		}
	}
	half(0, 2)
	handle()
	half(2, 3)
	for n := range streams / 2 {
		r.delete(t, r.category.Stream(strconv.Itoa(n)), n%2 == 0)
	}
	handle()

	require.Len(t, j.all(), streams*2+streams/2, "what was deleted unread was not handled")
	require.Equal(t, int64(streams/2), tombstones)
	handle()
	require.Equal(t, int64(streams/2), tombstones, "they are passed for good")
}

// Streams are trimmed and deleted while others write to them and a consumer reads them.
// The consumer handles the messages that are left, in order, and goes on.
func TestAConsumerReadsWhatIsRemovedUnderIt(t *testing.T) {
	t.Parallel()
	const writers, writes = 4, 150

	r := newRemovals(t)
	var mu sync.Mutex
	last := map[messagestore.StreamName]messagestore.Version{}
	handled := map[string]bool{}
	h := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if before, ok := last[m.Stream]; ok && before >= m.Position {
			return fmt.Errorf("%s after position %d", m, before)
		}
		if m.Type != (Deposited{}).MessageType() {
			return fmt.Errorf("%s has no handler", m)
		}
		last[m.Stream] = m.Position
		handled[m.ID.String()] = true
		return nil
	})
	c := r.consumer(t, h, &consumer.Config{BatchSize: 7, CheckpointMessages: 5, PollInterval: time.Millisecond, Concurrency: 3, Errors: stopAtOnce})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()

	written := make(chan error, writers*writes)
	for w := range writers {
		go func() {
			for n := range writes {
				_, err := r.Write(ctx, r.category.Stream(strconv.Itoa((n+w)%5)), messagestore.AnyVersion, Deposited{n})
				written <- err
			}
		}()
	}
	removed := make(chan error, 1)
	enough := make(chan struct{})
	go func() {
		for {
			stream := r.category.Stream(strconv.Itoa(rand.N(5)))
			var err error
			switch rand.N(4) {
			case 0:
				_, err = r.admin.Delete(ctx, stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true})
			case 1:
				_, err = r.admin.Delete(ctx, stream, messagestore.AnyVersion, nil)
			default:
				err = r.trim(ctx, stream, 2)
			}
			if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
				removed <- err
				return
			}
			select {
			case <-enough:
				removed <- nil
				return
			default:
			}
		}
	}()
	for range writers * writes {
		require.NoError(t, testkit.Receive(t, "a message is written", written))
	}
	close(enough)
	require.NoError(t, testkit.Receive(t, "the removals end", removed))
	// So that there is something left to look for.
	write(t, r.Store, r.category.Stream("0"), Deposited{1})
	head, err := r.Last(t.Context(), r.category.Stream("0"))
	require.NoError(t, err)
	testkit.Await(t, "the last message is handled", func() (bool, any) {
		s := c.Stats()
		return s.Position > head.GlobalPosition || len(ended) > 0, s
	})
	stop()
	require.NoError(t, testkit.Receive(t, "the run ends", ended))

	require.NotZero(t, c.Stats().Tombstones)
	left := 0
	for m, err := range r.ReadCategory(t.Context(), r.category, 0, messagestore.Filter{Types: []string{"Deposited"}}) {
		require.NoError(t, err)
		require.True(t, handled[m.ID.String()], "%s was passed over", m)
		left++
	}
	require.NotZero(t, left)
	for n := range 5 {
		next := messagestore.NoStream
		for m, err := range r.ReadStream(t.Context(), r.category.Stream(strconv.Itoa(n)), 0) {
			require.NoError(t, err)
			if next != messagestore.NoStream {
				require.Equal(t, next, m.Position, "positions are dense")
			}
			next = m.Position + 1
		}
	}
}

func TestAParkedMessageOfADeletedStreamIsNotRedriven(t *testing.T) {
	t.Parallel()
	r := newRemovals(t)
	fails := true
	j := &journal{}
	h := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if fails {
			return errors.New("not yet")
		}
		return j.Handle(ctx, m)
	})
	for _, id := range []string{"kept", "deleted", "erased", "again"} {
		write(t, r.Store, r.category.Stream(id), Deposited{1})
	}
	c := r.consumer(t, h, &consumer.Config{Errors: parkAtOnce})
	require.NoError(t, c.CatchUp(t.Context()))
	require.Equal(t, int64(4), c.Stats().Parked)
	fails = false
	r.delete(t, r.category.Stream("deleted"), false)
	r.delete(t, r.category.Stream("erased"), true)
	r.delete(t, r.category.Stream("again"), true)
	write(t, r.Store, r.category.Stream("again"), Deposited{2})
	require.NoError(t, c.CatchUp(t.Context()))
	retry(t, r.Store, r.category, "accounts")
	require.NoError(t, c.CatchUp(t.Context()))

	require.ElementsMatch(t, []string{string(r.category) + "-kept@0", string(r.category) + "-again@2"}, j.all())
	require.Empty(t, parkedOf(t, r.Store, r.category, "accounts"))
}

func TestADeletedPositionStopsTheConsumer(t *testing.T) {
	t.Parallel()
	for _, erase := range []bool{false, true} {
		for _, ids := range [][]string{{"accounts"}, {"accounts", "0"}} {
			r := newRemovals(t)
			write(t, r.Store, r.category.Stream("1"), Deposited{1})
			require.NoError(t, r.consumer(t, &journal{}, nil).CatchUp(t.Context()))
			write(t, r.Store, r.category.Stream("1"), Deposited{2})

			err := r.consumer(t, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
				_, err := r.admin.Delete(ctx, r.category.WithType("position").Stream(ids[0]).With(ids[1:]...), messagestore.AnyVersion, &retention.DeleteOptions{EraseName: erase})
				return err
			}), nil).CatchUp(t.Context())

			require.ErrorIs(t, err, consumer.ErrConsumerFenced, "one that runs")
			j := &journal{}
			err = r.consumer(t, j, nil).CatchUp(t.Context())
			require.ErrorIs(t, err, consumer.ErrPositionCorrupt)
			require.ErrorContains(t, err, "the stream was deleted")
			require.Empty(t, j.all())
		}
	}
}

// A consumer of a writer's parks, and finds what is to be parked. To redrive is the work of a worker.
func TestAConsumerOfAWriterParksAndOneOfAWorkerRedrives(t *testing.T) {
	t.Parallel()
	category := storetest.Category(t)
	as := func(role string) *messagestore.Store {
		return testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.PoolAs(t, role), nil)), nil))
	}
	writer, worker := as("dibs_writer"), as("dibs_worker")
	write(t, writer, category.Stream("1"), Deposited{1}, Deposited{2})
	park(t, writer, category, "c")
	parked := testkit.Must(operate.Consumer(as("dibs_operator"), category, "c").Parked())
	dead, err := parked.Items(t.Context(), queue.Dead, 0, 10)
	require.NoError(t, err)
	require.Len(t, dead, 2)
	require.NoError(t, newIn(t, writer, category, "c", &journal{}, nil).CatchUp(t.Context()))

	_, err = parked.Retry(t.Context(), "mended", dead[0].Position, dead[1].Position)
	require.NoError(t, err)
	err = newIn(t, writer, category, "c", &journal{}, nil).CatchUp(t.Context())
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "dibs_worker")
	j := &journal{}
	require.NoError(t, newIn(t, worker, category, "c", j, nil).CatchUp(t.Context()))
	require.Len(t, j.all(), 2)
}
