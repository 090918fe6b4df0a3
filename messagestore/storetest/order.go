package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of order: that a reader of a category misses nothing while many write. Below are the
// tests of writers that compete for one stream.
var orderTests = []test{
	// If a write was answered before another was sent, it is before it in their category, whatever
	// their streams.
	{"S6/OrderFollowsTime", manyUsers, func(t *testing.T, f *fixture) {
		const each = 20
		type span struct {
			began, ended int64 // of a clock that both share
			at           messagestore.GlobalPosition
		}
		var clock atomic.Int64
		spans := make([][]span, writers)
		race(t, writers, func(i int) error {
			for n := range each {
				began := clock.Add(1)
				w, err := f.store.Write(t.Context(), f.stream(fmt.Sprint((i+n)%5)), messagestore.AnyVersion, opened(1+n%3)...)
				if err != nil {
					return err
				}
				spans[i] = append(spans[i], span{began: began, ended: clock.Add(1), at: w.GlobalPosition})
			}
			return nil
		})

		all := slices.Concat(spans...)
		byEnd := slices.SortedFunc(slices.Values(all), func(a, b span) int { return cmp.Compare(a.ended, b.ended) })
		slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.began, b.began) })
		var highest messagestore.GlobalPosition // of the writes that ended before this write began
		done := 0
		for _, s := range all {
			for ; byEnd[done].ended < s.began; done++ {
				highest = max(highest, byEnd[done].at)
			}
			require.Greater(t, s.at, highest, "a later write has a higher global position")
		}

		seen := map[messagestore.GlobalPosition]bool{}
		for _, m := range f.readCategory(t, f.category, messagestore.Filter{}) {
			require.False(t, seen[m.GlobalPosition], "global position %d is there twice", m.GlobalPosition)
			seen[m.GlobalPosition] = true
		}
		for stream := range 5 {
			requireDense(t, f.read(t, f.stream(fmt.Sprint(stream))))
		}
	}},
	// Consumers rely on this: while others write, a reader that remembers one number sees every
	// message once, in an order that does not change.
	{"S6/ReaderMissesNothing", manyUsers, func(t *testing.T, f *fixture) {
		f.pollWhileWriting(t, []messagestore.Category{f.category}, func(ctx context.Context, writer, n int) error {
			stream := f.stream(fmt.Sprint((writer + n) % 6))
			bodies := opened(1 + n%3)
			if n%2 == 0 {
				bodies = append(bodies, deposited{int64(n)})
			}
			_, err := f.store.Write(ctx, stream, messagestore.AnyVersion, bodies...)
			return err
		})
	}},
	{"S6/ReaderOfSeveralCategoriesMissesNothing", manyUsers, func(t *testing.T, f *fixture) {
		commands := f.category.WithType("command")
		f.pollWhileWriting(t, []messagestore.Category{f.category, commands}, func(ctx context.Context, writer, n int) error {
			id := fmt.Sprint((writer + n) % 6)
			one := messagestore.StreamWrite{Stream: f.stream(id), Expected: messagestore.AnyVersion, Bodies: append(opened(1+n%2), deposited{int64(n)})}
			two := messagestore.StreamWrite{Stream: commands.Stream(id), Expected: messagestore.AnyVersion, Bodies: append(opened(n%2), deposited{int64(n)})}
			var err error
			switch n % 4 {
			case 0:
				_, err = f.store.WriteStreams(ctx, one, two)
			case 1:
				_, err = f.store.WriteStreams(ctx, two, one)
			case 2:
				_, err = f.store.Write(ctx, one.Stream, messagestore.AnyVersion, one.Bodies...)
			case 3:
				_, err = f.store.Write(ctx, two.Stream, messagestore.AnyVersion, two.Bodies...)
			}
			return err
		})
	}},
}

// A poller reads a category while it is written to, as a consumer does.
type poller struct {
	query messagestore.CategoryQuery
	seen  []uuid.UUID
	pages atomic.Int32 // that had messages
}

func (p *poller) poll(ctx context.Context, driver messagestore.Driver) (more bool, err error) {
	page, err := driver.ReadCategory(ctx, p.query)
	if err != nil {
		return false, err
	}
	if err := honest(p.query, page); err != nil {
		return false, err
	}
	for _, m := range page.Messages {
		p.seen = append(p.seen, m.ID)
	}
	if len(page.Messages) > 0 {
		p.pages.Add(1)
	}
	p.query.From = page.Next
	return page.More, nil
}

// pollWhileWriting lets 16 writers write, n counting from 0 for each, and pollers with several
// filters read. The writers go on until every poller has received messages often enough for a
// meaningful test.
func (f *fixture) pollWhileWriting(t *testing.T, categories []messagestore.Category, write func(ctx context.Context, writer, n int) error) {
	t.Helper()
	const writers, least, most, pages = 16, 12, 400, 25
	var pollers []*poller
	for _, category := range categories {
		for _, filter := range []messagestore.Filter{{}, {Types: []string{"Deposited"}}, {GroupSize: 2, GroupMember: 0}, {GroupSize: 2, GroupMember: 1}} {
			pollers = append(pollers, &poller{query: messagestore.CategoryQuery{Category: category, Limit: 7, Filter: filter}})
		}
	}
	enough := func() bool {
		return !slices.ContainsFunc(pollers, func(p *poller) bool { return p.pages.Load() < pages })
	}

	written := make(chan struct{})
	var polling sync.WaitGroup
	failures := make([]error, len(pollers))
	for i, p := range pollers {
		polling.Go(func() {
			for over := false; ; {
				more, err := p.poll(t.Context(), f.driver)
				if failures[i] = err; err != nil || over && !more {
					return
				}
				select {
				case <-written:
					over = true // one pass more, of the messages written before it began
				default:
					runtime.Gosched()
				}
			}
		})
	}
	race(t, writers, func(writer int) error {
		for n := 0; n < least || n < most && !enough(); n++ {
			if err := write(t.Context(), writer, n); err != nil {
				return err
			}
		}
		return nil
	})
	close(written)
	polling.Wait()
	require.NoError(t, errors.Join(failures...))

	for _, p := range pollers {
		require.Greater(t, int(p.pages.Load()), 5, "the reader read while the writers wrote")
		want := ids(f.readCategory(t, p.query.Category, p.query.Filter))
		require.NotEmpty(t, want)
		require.Equal(t, want, p.seen, "the reader of %s with %+v saw every message once, in order", p.query.Category, p.query.Filter)
	}
}

var concurrencyTests = []test{
	{"S3/OneInitialWriterWins", manyUsers, func(t *testing.T, f *fixture) {
		f.initialRace(t, []*messagestore.Store{f.store})
	}},
	{"S3/OneInitialWriterOfTwoDriversWins", manyUsers | another, func(t *testing.T, f *fixture) {
		f.initialRace(t, []*messagestore.Store{f.store, testkit.Must(messagestore.New(f.options.Beside(t, f.driver), nil))})
	}},
	// Each writer adds one to the number it has read. If the last number is the number of writes,
	// every writer had read the message before its own.
	{"S3/NoUpdateIsLost", manyUsers, func(t *testing.T, f *fixture) {
		const each = 12
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, Opened{Name: "0"})
		race(t, writers, func(int) error {
			for done := 0; done < each; {
				last, err := f.driver.Last(t.Context(), stream, "")
				if err != nil {
					return err
				}
				body, err := messagestore.Decode[Opened](last)
				if err != nil {
					return err
				}
				n, err := strconv.Atoi(body.Name)
				if err != nil {
					return err
				}
				runtime.Gosched() // between reading and writing is when others write
				_, err = f.store.Write(t.Context(), stream, last.Position, Opened{Name: fmt.Sprint(n + 1)})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, messagestore.ErrVersionConflict):
					return err
				}
			}
			return nil
		})

		messages := f.read(t, stream)
		requireDense(t, messages)
		require.Equal(t, numbers(0, writers*each), names(t, messages))
	}},
	{"S3/AnyVersionLosesNothing", manyUsers, func(t *testing.T, f *fixture) {
		const each = 15
		stream := f.stream()
		written := make([][]messagestore.Written, writers)
		race(t, writers, func(i int) error {
			for n := range each {
				w, err := f.store.Write(t.Context(), stream, messagestore.AnyVersion, opened(1+n%2)...)
				if err != nil {
					return err
				}
				written[i] = append(written[i], w)
			}
			return nil
		})

		messages := f.read(t, stream)
		requireDense(t, messages)
		require.Len(t, messages, writers*(each+each/2))
		for _, ofWriter := range written {
			for _, w := range ofWriter {
				require.Less(t, int(w.Version), len(messages))
				last := messages[w.Version]
				require.Equal(t, w.IDs[len(w.IDs)-1], last.ID, "what a writer was told is what is there")
				require.Equal(t, w.GlobalPosition, last.GlobalPosition)
			}
		}
	}},
}

const writers = 8

// Under contention the losers must get the same error as in a calm conflict. One round seldom
// exposes a driver that forgets to lock; this many do.
func (f *fixture) initialRace(t *testing.T, stores []*messagestore.Store) {
	t.Helper()
	const rounds = 50
	for round := range rounds {
		stream := f.stream(fmt.Sprint(round))
		var wins atomic.Int32
		var winner atomic.Value
		race(t, writers, func(i int) error {
			written, err := stores[i%len(stores)].Write(t.Context(), stream, messagestore.NoStream, Opened{Name: fmt.Sprint(i)})
			if err == nil {
				wins.Add(1)
				winner.Store(written.IDs[0])
				return nil
			}
			facts, ok := errors.AsType[*messagestore.VersionConflictError](err)
			if want := (messagestore.VersionConflictError{Stream: stream, Expected: messagestore.NoStream, Actual: 0}); !ok || *facts != want {
				return fmt.Errorf("round %d: a loser was told %w", round, err)
			}
			return nil
		})
		require.Equal(t, int32(1), wins.Load(), "round %d", round)
		require.Equal(t, []uuid.UUID{winner.Load().(uuid.UUID)}, ids(f.read(t, stream))) //nolint:errcheck // stored by the one winner
	}
}
