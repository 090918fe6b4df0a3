package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A history is a store, or a copy of one that keeps the times of its messages.
type history struct {
	*memory.Driver
	times map[messagestore.GlobalPosition]time.Time
	epoch string
}

func newHistory() *history {
	return &history{Driver: memory.New(), times: map[messagestore.GlobalPosition]time.Time{}}
}

func (h *history) at(p messagestore.GlobalPosition, at *time.Time) {
	if copied, ok := h.times[p]; ok {
		*at = copied
	}
}

func (h *history) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	messages, err := h.Driver.ReadStream(ctx, q)
	for _, m := range messages {
		h.at(m.GlobalPosition, &m.Time)
	}
	return messages, err
}

func (h *history) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := h.Driver.ReadCategory(ctx, q)
	for _, m := range page.Messages {
		h.at(m.GlobalPosition, &m.Time)
	}
	h.at(page.First.GlobalPosition, &page.First.Time)
	h.at(page.Last.GlobalPosition, &page.Last.Time)
	return page, err
}

// A replaced driver is one behind whose users a store is put in the place of another, as
// by a restored backup or a failover.
type replaced struct {
	queuing.Driver // an empty one, for what no consumer needs of the store

	mu  sync.RWMutex
	now *history
}

func newReplaced() *replaced { return &replaced{Driver: memory.New(), now: newHistory()} }

func (r *replaced) driver() *history {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.now
}

func (r *replaced) by(other *history) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = other
}

func (r *replaced) Epoch(context.Context) (string, error) { return r.driver().epoch, nil }

func (r *replaced) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	return r.driver().Append(ctx, a)
}

func (r *replaced) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	return r.driver().ReadStream(ctx, q)
}

func (r *replaced) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	return r.driver().ReadCategory(ctx, q)
}

func (r *replaced) Report(ctx context.Context, q report.Query) (report.Report, error) {
	return r.driver().Report(ctx, q)
}

func (r *replaced) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error) {
	return r.driver().Last(ctx, stream, messageType)
}

func (r *replaced) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	return r.driver().Version(ctx, stream)
}

func (r *replaced) Find(ctx context.Context, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	return r.driver().Find(ctx, stream, ids)
}

func (r *replaced) Now(ctx context.Context) (time.Time, error) { return r.driver().Now(ctx) }

func (r *replaced) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	return r.driver().Heads(ctx, categories)
}

// restore returns a store with the same history up to the last messages of account, so
// many: they, and all that was written after the first of them, are lost.
func (r *replaced) restore(t *testing.T, lost int) *history {
	t.Helper()
	if lost == 0 {
		return r.restoreBefore(t, 1<<62)
	}
	all := r.messages(t, account)
	return r.restoreBefore(t, all[len(all)-lost].GlobalPosition)
}

func (r *replaced) restoreBefore(t *testing.T, before messagestore.GlobalPosition) *history {
	t.Helper()
	all := slices.Concat(r.messages(t, account), r.messages(t, positions), r.messages(t, "other"))
	slices.SortFunc(all, func(a, b *messagestore.Message) int { return int(a.GlobalPosition - b.GlobalPosition) })
	restored := newHistory()
	for _, m := range all {
		if m.GlobalPosition >= before {
			break
		}
		written, err := restored.Append(t.Context(), messagestore.Append{
			Stream: m.Stream, Expected: m.Position - 1, Records: []messagestore.Encoded{{ID: m.ID, Type: m.Type, Data: m.Data}},
		})
		require.NoError(t, err)
		require.Equal(t, m.GlobalPosition, written.GlobalPosition)
		restored.times[m.GlobalPosition] = m.Time
	}
	return restored
}

func (r *replaced) messages(t *testing.T, category messagestore.Category) []*messagestore.Message {
	t.Helper()
	page, err := r.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: category, Limit: messagestore.MaxReadMessages})
	require.NoError(t, err)
	return page.Messages
}

// ofMember returns streams of account whose messages are a member's, of two.
func ofMember(member, n int) (streams []messagestore.StreamName) {
	for i := 0; len(streams) < n; i++ {
		if stream := account.Stream(fmt.Sprint(i)); stream.GroupMember(2) == member {
			streams = append(streams, stream)
		}
	}
	return streams
}

// beside starts the second member of a consumer, and waits until each has a half of the category: the first has the
// streams of member 0, of two.
func beside(t *testing.T, store *messagestore.Store, category messagestore.Category, second *consumer.Consumer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = second.Run(ctx) // the rollback may end it
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	testkit.Await(t, "each has a half", func() (bool, any) {
		replicas := statusIn(t, store, category).Replicas
		return len(replicas) == 2 && replicas[0].Slots == operate.Slots/2 && replicas[1].Slots == operate.Slots/2, replicas
	})
}

// After the rollback of the store its head is beyond the consumer's position. Only the
// message that the consumer read last shows the rollback.
func TestAStoreThatWentBackAndGrewPastStopsAConsumerThatRuns(t *testing.T) {
	t.Parallel()
	streams := ofMember(0, 4)
	anothers := ofMember(1, 1)[0]
	for name, reads := range map[string]struct {
		config *consumer.Config
		stream messagestore.StreamName // of what is lost
		body   messagestore.Body
		shares bool // the category, with a second member
	}{
		"Whole":         {&consumer.Config{}, streams[3], Deposited{9}, false},
		"InParallel":    {&consumer.Config{Concurrency: 4}, streams[3], Deposited{9}, false},
		"OneByOne":      {&consumer.Config{BatchSize: 1}, streams[3], Deposited{9}, false},
		"Types":         {&consumer.Config{OnlyKnown: true}, streams[3], Deposited{9}, false},
		"TypesKeptBack": {&consumer.Config{OnlyKnown: true}, streams[3], Withdrawn{}, false},
		"Member":        {&consumer.Config{Concurrency: 4}, streams[3], Deposited{9}, true},
		"AnotherMember": {&consumer.Config{Concurrency: 4}, anothers, Deposited{9}, true},
	} {
		for grows, next := range map[string][]messagestore.StreamName{
			"AnotherMessageInItsPlace":  {streams[0], streams[1], streams[2]},
			"ItsPlaceInAnotherCategory": {"other-1", streams[0], streams[1], streams[2]},
			"ItsPlaceInItsStream":       {"other-1", reads.stream, streams[0], streams[1]},
		} {
			t.Run(name+grows, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					d := newReplaced()
					elsewhere := testkit.Must(messagestore.New(d, nil))
					write(t, elsewhere, streams[0], Deposited{1}, Deposited{2})
					j := &journal{}
					c := newConsumer(t, testkit.Must(messagestore.New(d, nil)), j, reads.config)
					errs := make(chan error, 1)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					go func() { errs <- c.Run(ctx) }()
					time.Sleep(time.Minute)
					if reads.shares {
						beside(t, elsewhere, account, newConsumer(t, testkit.Must(messagestore.New(d, nil)), &journal{}, reads.config))
					}
					write(t, elsewhere, streams[1], Deposited{3})
					write(t, elsewhere, reads.stream, reads.body)
					time.Sleep(15 * time.Second)
					synctest.Wait()
					handled := j.all()
					require.GreaterOrEqual(t, len(handled), 3)
					lost := d.messages(t, account)[3]

					restored := d.restore(t, 1)
					for _, stream := range next {
						write(t, testkit.Must(messagestore.New(restored, nil)), stream, Deposited{10})
					}
					d.by(restored)
					start := time.Now()
					err := <-errs

					require.ErrorIs(t, err, consumer.ErrPositionAhead)
					require.LessOrEqual(t, time.Since(start), 11*time.Second)
					ahead, ok := errors.AsType[*checkpoint.AheadError](err)
					require.True(t, ok)
					require.Equal(t, lost.ID, ahead.Behind)
					require.Equal(t, lost.GlobalPosition+1, ahead.Position)
					require.NotEqual(t, lost.ID, ahead.Found)
					require.ErrorContains(t, err, lost.ID.String())
					require.Equal(t, handled, j.all(), "nothing of the other history was handled")

					// A new run goes on from the messages that the store has.
					again := &journal{}
					require.NoError(t, newConsumer(t, testkit.Must(messagestore.New(d, nil)), again, reads.config).CatchUp(t.Context()))
					for _, stream := range streams[:2] {
						require.True(t, slices.ContainsFunc(again.all(), func(seen string) bool { return strings.HasPrefix(seen, string(stream)+"@") }))
					}
				})
			})
		}
	}
}

// A writer that repeats its writes after a rollback of the store may give a message the id,
// the version and the position that it had, and another message the place of one before it.
func TestAMessageThatIsWrittenAgainIsNotTheOneThatWasLost(t *testing.T) {
	t.Parallel()
	streams := ofMember(0, 3)
	again := messagestore.Envelope{ID: uuid.New(), Body: Deposited{3}}
	for name, test := range map[string]struct {
		config *consumer.Config
		shares bool
	}{"Whole": {&consumer.Config{}, false}, "Types": {&consumer.Config{OnlyKnown: true}, false}, "Member": {&consumer.Config{Concurrency: 4}, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newReplaced()
				write(t, testkit.Must(messagestore.New(d, nil)), streams[0], Deposited{1}, Deposited{2})
				write(t, testkit.Must(messagestore.New(d, nil)), streams[1], again)
				j := &journal{}
				c := newConsumer(t, testkit.Must(messagestore.New(d, nil)), j, test.config)
				errs := make(chan error, 1)
				go func() { errs <- c.Run(t.Context()) }()
				time.Sleep(time.Minute)
				if test.shares {
					beside(t, testkit.Must(messagestore.New(d, nil)), account, newConsumer(t, testkit.Must(messagestore.New(d, nil)), &journal{}, test.config))
				}
				handled := j.all()
				before := d.messages(t, account)[2]

				restored := d.restore(t, 2)
				write(t, testkit.Must(messagestore.New(restored, nil)), streams[2], Deposited{4}) // where the second was
				write(t, testkit.Must(messagestore.New(restored, nil)), streams[1], again)
				d.by(restored)

				require.ErrorIs(t, testkit.Receive(t, "the run ends", errs), consumer.ErrPositionAhead)
				require.Equal(t, handled, j.all())
				after := d.messages(t, account)[2]
				require.NotEqual(t, before.Time, after.Time)
				after.Time = before.Time
				require.Equal(t, before, after)
			})
		})
	}
}

// A poll without a wake-up reads behind its position, and looks for the message at it only
// if it finds one.
func TestAPollOfAStoreThatWentBackHandlesNothing(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{"Whole": {PollInterval: time.Second}, "Types": {PollInterval: time.Second, OnlyKnown: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newReplaced()
				store := testkit.Must(messagestore.New(d, nil))
				j := &journal{}
				c := newConsumer(t, store, j, config)
				errs := make(chan error, 1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				go func() { errs <- c.Run(ctx) }()
				time.Sleep(time.Minute)
				write(t, store, "account-1", Deposited{1}, Deposited{2})
				synctest.Wait()
				require.Len(t, j.all(), 2)

				restored := d.restore(t, 1)
				write(t, testkit.Must(messagestore.New(restored, nil)), "account-2", Deposited{3}, Deposited{4})
				d.by(restored)
				replaced := time.Now()

				require.ErrorIs(t, <-errs, consumer.ErrPositionAhead)
				require.Equal(t, 125*time.Millisecond, time.Since(replaced))
				require.Len(t, j.all(), 2)
			})
		})
	}
}

// Another server with the same history is the same store.
func TestAFailoverThatLostNothingIsNotNoticed(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{
		"Whole": {}, "InParallel": {Concurrency: 4}, "OneByOne": {BatchSize: 1}, "Types": {OnlyKnown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newReplaced()
				elsewhere := testkit.Must(messagestore.New(d, nil))
				j := &journal{}
				c := newConsumer(t, testkit.Must(messagestore.New(d, nil)), j, config)
				stop := running(t, c)
				var want []string
				for i := range 5 {
					write(t, elsewhere, "account-1", Deposited{1}, Withdrawn{})
					write(t, elsewhere, "account-2", Deposited{2})
					time.Sleep(time.Duration(i) * 7 * time.Second)
					synctest.Wait() // so that nothing is written while it is copied
					d.by(d.restore(t, 0))
					want = append(want, fmt.Sprintf("account-1@%d", 2*i), fmt.Sprintf("account-2@%d", i))
					if !config.OnlyKnown {
						want = append(want, fmt.Sprintf("account-1@%d", 2*i+1))
					}
				}
				time.Sleep(time.Minute)

				require.ElementsMatch(t, want, j.all())
				require.Equal(t, c.Stats().Head+1, c.Stats().Position)
				require.NoError(t, stop())
			})
		})
	}
}

// A checkpoint names the message it is right behind, so that a later run finds a rollback
// of the store too.
func TestAPositionOfAnotherHistoryStopsTheConsumer(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		streams := category.WithType("position")
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2}, Deposited{3})
		last, err := store.Last(t.Context(), category.Stream("1"))
		require.NoError(t, err)
		position := last.GlobalPosition + 1
		start := func(name string, body messagestore.Body) (*journal, error) {
			write(t, store, streams.Stream(name), body)
			j := &journal{}
			return j, newIn(t, store, category, name, j, nil).CatchUp(t.Context())
		}
		lost := uuid.New()
		wrong := fmt.Sprintf(`"after": %q}`, lost)
		requireAhead := func(name string, stream messagestore.StreamName, err error) {
			t.Helper()
			require.ErrorIs(t, err, consumer.ErrPositionAhead)
			ahead, ok := errors.AsType[*checkpoint.AheadError](err)
			require.True(t, ok)
			require.Equal(t, checkpoint.AheadError{Stream: stream, Position: position, Behind: lost, Found: last.ID}, *ahead)
			require.ErrorContains(t, err, fmt.Sprintf("it was right behind message %s, and the store has %s there", lost, last.ID))
			for _, s := range positionsNow(t, store, category) {
				if s.Name == name {
					require.ErrorIs(t, s.PositionErr, consumer.ErrPositionAhead)
				}
			}
		}

		// The checkpoint, and the start of a generation.
		require.NoError(t, newIn(t, store, category, "a", &journal{}, nil).CatchUp(t.Context()))
		recorded, err := store.Last(t.Context(), streams.Stream("a").With("0"))
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"position": %d, "after": %q}`, position, last.ID), string(recorded.Data))
		write(t, store, streams.Stream("a").With("0"), raw("Recorded", fmt.Sprintf(`{"position": %d, `, position)+wrong))
		for range 2 {
			j := &journal{}
			requireAhead("a", streams.Stream("a").With("0"), newIn(t, store, category, "a", j, nil).CatchUp(t.Context()))
			require.Empty(t, j.all())
		}
		j, err := start("b", raw("Started", fmt.Sprintf(`{"start": %d, `, position)+wrong))
		requireAhead("b", streams.Stream("b").With("0"), err)
		require.Empty(t, j.all())

		// A reset takes it away.
		_, err = operate.Consumer(store, category, "a").Reset(t.Context(), last.GlobalPosition)
		require.NoError(t, err)
		j = &journal{}
		require.NoError(t, newIn(t, store, category, "a", j, nil).CatchUp(t.Context()))
		require.Len(t, j.all(), 1)

		// A checkpoint without the name of a message is valid.
		j, err = start("c", raw("Started", fmt.Sprintf(`{"start": %d}`, last.GlobalPosition)))
		require.NoError(t, err)
		require.Len(t, j.all(), 1)
	})
}

// A run that checkpoints after a rollback of the store would have the next run go on from
// there.
func TestNoPositionIsRecordedInAStoreThatWentBack(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{"Whole": {}, "Types": {OnlyKnown: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newReplaced()
				elsewhere := testkit.Must(messagestore.New(d, nil))
				entered, release := make(chan struct{}), make(chan struct{})
				config.CheckpointMessages = 1
				c := newConsumer(t, testkit.Must(messagestore.New(d, nil)), handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
					close(entered)
					<-release
					return nil
				}), config)
				errs := make(chan error, 1)
				go func() { errs <- runForAWhile(t, c) }()
				synctest.Wait()
				write(t, elsewhere, "account-1", Deposited{1})
				<-entered
				synctest.Wait()
				restored := d.restore(t, 1)
				write(t, testkit.Must(messagestore.New(restored, nil)), "account-2", Deposited{2}, Deposited{3})
				d.by(restored)
				close(release)

				require.ErrorIs(t, <-errs, consumer.ErrPositionAhead)
				require.Zero(t, statusIn(t, elsewhere, account).Position)
				j := &journal{}
				require.NoError(t, newConsumer(t, testkit.Must(messagestore.New(d, nil)), j, config).CatchUp(t.Context()))
				require.Equal(t, []string{"account-2@0", "account-2@1"}, j.all())
			})
		})
	}
}

// A handler that writes to "other", under an id of the message's own.
func effects(store *messagestore.Store, handled *atomic.Int64) consumer.Handler {
	return handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		handled.Add(1)
		_, err := store.Write(ctx, "other-1", messagestore.AnyVersion, messagestore.Envelope{ID: uuid.NewSHA1(m.ID, nil), Body: Deposited{1}})
		return err
	})
}

// The messages that the consumer read are all there, so it is not ahead of the store. The
// messages that its handler wrote are lost.
func TestWhatAHandlerWroteAndTheStoreLostIsWrittenAgain(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{
		"NotRecorded": {PollInterval: time.Minute, CheckpointInterval: time.Minute}, "Recorded": {}, "InParallel": {Concurrency: 4}, "Types": {OnlyKnown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newReplaced()
				d.now.epoch = "1"
				store := testkit.Must(messagestore.New(d, nil))
				var handled atomic.Int64
				stop := running(t, newConsumer(t, store, effects(store, &handled), config))
				write(t, store, "account-1", Deposited{1}, Deposited{2})
				time.Sleep(30 * time.Second)
				require.Equal(t, int64(2), handled.Load())
				written := d.messages(t, "other")
				require.Len(t, written, 2)

				restored := d.restoreBefore(t, written[0].GlobalPosition)
				restored.epoch = "2"
				d.by(restored)
				time.Sleep(2 * time.Minute)
				synctest.Wait()

				require.Len(t, d.messages(t, account), 2, "it has lost nothing that was read")
				require.Len(t, d.messages(t, "other"), 2)
				require.Equal(t, int64(4), handled.Load())
				require.NoError(t, stop())
			})
		})
	}
}

// After a failover that lost no message the consumer redelivers from its checkpoint, as
// after a crash.
func TestAnotherEpochHandsOverAgainWhatWasNotRecorded(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]struct {
		config *consumer.Config
		want   int64
	}{
		"Recorded": {&consumer.Config{}, 1}, "NotRecorded": {&consumer.Config{PollInterval: time.Minute, CheckpointInterval: time.Minute}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newReplaced()
				d.now.epoch = "1"
				store := testkit.Must(messagestore.New(d, nil))
				var handled atomic.Int64
				stop := running(t, newConsumer(t, store, effects(store, &handled), again.config))
				write(t, store, "account-1", Deposited{1})
				time.Sleep(30 * time.Second)
				restored := d.restore(t, 0)
				restored.epoch = "2"
				d.by(restored)
				time.Sleep(time.Hour)

				require.Equal(t, again.want, handled.Load())
				require.Len(t, d.messages(t, "other"), 1)
				write(t, store, "account-1", Deposited{2})
				synctest.Wait()
				require.NoError(t, stop())
				require.Equal(t, again.want+1, handled.Load())
			})
		})
	}
}

// A consumer that retries one message neither reads on nor checkpoints.
func TestAConsumerThatRetriesFindsOutThatTheStoreIsAnother(t *testing.T) {
	t.Parallel()
	retrying := func(t *testing.T, lost int, epoch string) (errs <-chan error, log *bytes.Buffer, stop func()) {
		t.Helper()
		d := newReplaced()
		d.now.epoch = "1"
		store := testkit.Must(messagestore.New(d, nil))
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		log = &bytes.Buffer{}
		c := newConsumer(t, store, always(errBroken), &consumer.Config{Errors: againAndAgain, Logger: logger.Zerolog(zerolog.New(log))})
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Minute)
		restored := d.restore(t, lost)
		restored.epoch = epoch
		d.by(restored)
		return ended, log, cancel
	}
	t.Run("WentBack", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			errs, _, stop := retrying(t, 1, "1")
			defer stop()
			start := time.Now()

			require.ErrorIs(t, <-errs, consumer.ErrPositionAhead)
			require.LessOrEqual(t, time.Since(start), 10*time.Second)
		})
	})
	t.Run("Epoch", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			errs, log, stop := retrying(t, 0, "2")
			time.Sleep(11 * time.Second)
			stop()

			require.NoError(t, <-errs)
			require.Contains(t, log.String(), "consumer starts again")
		})
	})
}

// A goingBack driver rolls its store back just before it is asked for its epoch, once all
// messages were handled.
type goingBack struct {
	*replaced
	handled *atomic.Int64
	before  *history
}

func (g *goingBack) Epoch(ctx context.Context) (string, error) {
	if g.handled.Load() > 0 {
		g.by(g.before)
	}
	return g.replaced.Epoch(ctx)
}

// A run may look for its last message before a rollback of the store, and for the epoch
// after it.
func TestARunThatBeginsAgainLooksForWhatTheOneBeforeHasRead(t *testing.T) {
	t.Parallel()
	for lost, again := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			d := &goingBack{replaced: newReplaced(), handled: &atomic.Int64{}}
			d.now.epoch = "1"
			store := testkit.Must(messagestore.New(d, nil))
			write(t, store, "account-1", Deposited{1}, Deposited{2})
			d.before = d.restore(t, lost)
			d.before.epoch = "2"
			c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
				d.handled.Add(1)
				return nil
			}), nil)
			stop := running(t, c)
			time.Sleep(20 * time.Second)

			err := stop()
			if again {
				require.NoError(t, err)
				require.Equal(t, int64(4), d.handled.Load())
				return
			}
			require.ErrorIs(t, err, consumer.ErrPositionAhead)
			require.Equal(t, int64(2), d.handled.Load())
		})
	}
}

func TestNoPositionIsRecordedInAnotherEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newReplaced()
		d.now.epoch = "1"
		store := testkit.Must(messagestore.New(d, nil))
		var handled atomic.Int64
		stop := running(t, newConsumer(t, store, effects(store, &handled), &consumer.Config{PollInterval: time.Minute, CheckpointInterval: time.Minute}))
		write(t, store, "account-1", Deposited{1})
		time.Sleep(time.Second)
		restored := d.restoreBefore(t, d.messages(t, "other")[0].GlobalPosition)
		restored.epoch = "2"
		d.by(restored)

		require.ErrorContains(t, stop(), "are redelivered")
		require.Zero(t, statusIn(t, store, account).Position)
	})
}

// A message in flight is not delivered to a second handler.
func TestARunDoesNotBeginAgainBesideAHandlerThatDoesNotStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newReplaced()
		d.now.epoch = "1"
		store := testkit.Must(messagestore.New(d, nil))
		var handled atomic.Int64
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			handled.Add(1)
			time.Sleep(time.Hour)
			return nil
		}), &consumer.Config{Grace: time.Second})
		errs := make(chan error, 1)
		go func() { errs <- c.Run(t.Context()) }()
		write(t, store, "account-1", Deposited{1})
		time.Sleep(time.Second)
		restored := d.restore(t, 0)
		restored.epoch = "2"
		d.by(restored)

		err := <-errs
		requireGraceExceeded(t, err)
		require.ErrorContains(t, err, "another epoch")
		require.NotErrorIs(t, err, consumer.ErrRunning)
		exceeded, ok := errors.AsType[*consumer.GraceExceededError](err)
		require.True(t, ok)
		require.Equal(t, []string{"Deposited account-1@0"}, exceeded.Messages)
		require.ErrorIs(t, c.Run(t.Context()), consumer.ErrRunning)
		require.Equal(t, int64(1), handled.Load())
		time.Sleep(2 * time.Hour)
	})
}

// readers are the ways in which a consumer reads its category. A member has another beside it.
var readers = map[string]*consumer.Config{
	"Whole":  {CheckpointInterval: 10 * time.Millisecond},
	"Types":  {CheckpointInterval: 10 * time.Millisecond, OnlyKnown: true},
	"Member": {CheckpointInterval: 10 * time.Millisecond, Concurrency: 4},
}

func TestAHistoryThatPostgreSQLLostStopsAConsumerThatRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, config := range readers {
		for how, lose := range map[string]string{
			"AnotherInItsPlace":     "update dibs.messages set id = gen_random_uuid() where category = $1 and global_position = $2",
			"ItsStreamIsAnother":    "update dibs.messages set id = gen_random_uuid(), global_position = nextval('dibs.messages_global_position_seq') where category = $1 and global_position = $2",
			"ItsStreamIsNotThere":   "delete from dibs.messages where category = $1 and global_position = $2",
			"ItIsInNoOtherCategory": "update dibs.messages set id = gen_random_uuid(), stream_name = category || '-other' where category = $1 and global_position = $2",
		} {
			t.Run(name+how, func(t *testing.T) {
				t.Parallel()
				store, category := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t)
				j := &journal{}
				c := newIn(t, store, category, "c", j, config)
				errs := make(chan error, 1)
				go func() { errs <- c.Run(t.Context()) }()
				if name == "Member" {
					testkit.AwaitTrue(t, "the first member has joined", func() bool {
						return len(positionsNow(t, store, category)) > 0 && len(statusIn(t, store, category).Replicas) == 1
					})
					beside(t, store, category, newIn(t, store, category, "c", &journal{}, config))
				}
				for i := range 20 {
					write(t, store, category.Stream(fmt.Sprint(i)), Deposited{i})
				}
				write(t, store, category.Stream("last"), Withdrawn{}) // kept back from some
				end := endOf(t, store, category)
				testkit.AwaitEqual(t, "the position of the consumer", end, func() messagestore.GlobalPosition { return c.Stats().Position })
				handled := j.all()

				tx, err := pool.Begin(t.Context())
				require.NoError(t, err)
				defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed
				_, err = tx.Exec(t.Context(), "set local session_replication_role = replica")
				require.NoError(t, err)
				changed, err := tx.Exec(t.Context(), lose, string(category), int64(end-1))
				require.NoError(t, err)
				require.EqualValues(t, 1, changed.RowsAffected())
				require.NoError(t, tx.Commit(t.Context()))
				for i := range 20 {
					write(t, store, category.Stream(fmt.Sprint(i)), Deposited{i})
				}

				require.ErrorIs(t, testkit.Receive(t, "the run ends", errs), consumer.ErrPositionAhead)
				require.Equal(t, handled, j.all())
			})
		}
	}
}

// The server got older files back, which no timeline shows, and all messages that the
// consumer has read are in them.
func TestWhatAnOperatorSaysIsLostIsHandledAgain(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil))
	var handled atomic.Int64
	stop := running(t, newConsumer(t, store, effects(store, &handled), &consumer.Config{CheckpointInterval: 10 * time.Millisecond}))
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	awaitEffects := func(n int64) {
		t.Helper()
		testkit.AwaitEqual(t, "effects", n, func() int64 {
			there, err := store.Count(t.Context(), messagestore.CategoryQuery{Category: "other", Limit: 100})
			require.NoError(t, err)
			return there
		})
	}
	awaitEffects(2)
	end := endOf(t, store, account)
	testkit.Await(t, "the last message is before the checkpoint", func() (bool, any) { // or that would be missing below
		all, err := operate.Consumers(t.Context(), store, account)
		return err == nil && len(all) == 1 && all[0].Position == end, all
	})

	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "set local session_replication_role = replica")
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "delete from "+schema+".messages where category in ('other', $1)", string(positions))
		require.NoError(t, err)
		_, err = testkit.Must(admin.New(tx, config)).RaiseEpoch(t.Context())
		return err
	}))
	write(t, store, "account-1", Deposited{3})

	awaitEffects(3)
	require.NoError(t, stop())
	require.GreaterOrEqual(t, handled.Load(), int64(5))
}

// The message that a running consumer read last is removed: the store has not gone back.
func TestWhatIsRemovedIsNotLost(t *testing.T) {
	t.Parallel()
	for name, config := range readers {
		for how, remove := range map[string]func(t *testing.T, r *removals, stream messagestore.StreamName){
			"Deleted": func(t *testing.T, r *removals, stream messagestore.StreamName) {
				t.Helper()
				r.delete(t, stream, false)
			},
			"Erased": func(t *testing.T, r *removals, stream messagestore.StreamName) { t.Helper(); r.delete(t, stream, true) },
			"Trimmed": func(t *testing.T, r *removals, stream messagestore.StreamName) {
				t.Helper()
				write(t, r.Store, stream, Withdrawn{})
				require.NoError(t, r.trim(t.Context(), stream, 1))
			},
			"ErasedTwice": func(t *testing.T, r *removals, stream messagestore.StreamName) {
				t.Helper()
				r.delete(t, stream, true)
				write(t, r.Store, stream, Withdrawn{})
				r.delete(t, stream, true)
			},
		} {
			t.Run(name+how, func(t *testing.T) {
				t.Parallel()
				r := newRemovals(t)
				c := r.consumer(t, &journal{}, config)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				errs := make(chan error, 1)
				go func() { errs <- c.Run(ctx) }()
				if name == "Member" {
					testkit.AwaitTrue(t, "the first member has joined", func() bool {
						return len(positionsNow(t, r.Store, r.category)) > 0 && len(statusIn(t, r.Store, r.category).Replicas) == 1
					})
					beside(t, r.Store, r.category, r.consumer(t, &journal{}, config))
				}
				at := func(end messagestore.GlobalPosition) {
					t.Helper()
					testkit.Await(t, "all messages are handled", func() (bool, any) {
						s := c.Stats()
						return s.Position >= end || len(errs) > 0, s
					})
					require.Empty(t, errs)
				}
				for i := range 3 {
					stream := r.category.Stream(fmt.Sprint(i))
					write(t, r.Store, stream, Deposited{1})
					at(endOf(t, r.Store, r.category))
					remove(t, r, stream)
					at(endOf(t, r.Store, r.category))
					if how == "Deleted" || how == "Trimmed" { // the tombstone that was read last is another's place now
						r.delete(t, stream, true)
						at(endOf(t, r.Store, r.category))
					}
				}
				cancel()
				require.NoError(t, testkit.Receive(t, "the run ends", errs))
			})
		}
	}
}
