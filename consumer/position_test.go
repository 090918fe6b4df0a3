package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// raw is a body of the given type and JSON.
func raw(messageType, data string) messagestore.Raw {
	return messagestore.Raw{Type: messageType, Data: json.RawMessage(data)}
}

func TestOfTwoCatchUpsAtOnceTheSecondToRecordIsFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		write(t, testkit.Must(messagestore.New(driver, nil)), "account-1", Deposited{1})
		config := &consumer.Config{CheckpointMessages: 1}
		entered, release := make(chan struct{}), make(chan struct{})
		late := newConsumer(t, testkit.Must(messagestore.New(driver, nil)), handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			close(entered)
			<-release
			return nil
		}), config)
		errs := make(chan error, 1)
		go func() { errs <- late.CatchUp(t.Context()) }()
		<-entered

		require.NoError(t, newConsumer(t, testkit.Must(messagestore.New(driver, nil)), &journal{}, config).CatchUp(t.Context()))
		close(release)
		err := <-errs

		require.ErrorIs(t, err, consumer.ErrConsumerFenced)
		fenced, ok := errors.AsType[*checkpoint.FencedError](err)
		require.True(t, ok)
		require.Equal(t, positions.Stream("ledger").With("0"), fenced.Stream)
		require.Equal(t, messagestore.NoStream, fenced.Expected)
		require.Equal(t, messagestore.Version(0), fenced.Actual)
		require.Zero(t, late.Stats().Position)
		require.ErrorContains(t, err, "consumer fenced: another process wrote to it: call CatchUp while no other process runs the consumer, in account:position-ledger+0: expected version no stream, found 0")
	})
}

func TestThePositionIsAStreamOfRecordedMessages(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2})

	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))

	entry, err := store.Last(t.Context(), "account:position-ledger")
	require.NoError(t, err)
	require.Equal(t, "Started", entry.Type)
	require.JSONEq(t, `{"start": 0}`, string(entry.Data))
	position, err := store.Last(t.Context(), "account:position-ledger+0")
	require.NoError(t, err)
	require.Equal(t, "Recorded", position.Type)
	last, err := store.Last(t.Context(), "account-1")
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"position": 3, "after": %q}`, last.ID), string(position.Data))
}

func TestACategoryWithATypeKeepsItsPositionsBesideIt(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account:command-1", Deposited{1})
	c := newNamed(store, "account:command", "accounts", &journal{}, nil)

	require.NoError(t, c.CatchUp(t.Context()))

	_, err := store.Last(t.Context(), "account:command+position-accounts+0")
	require.NoError(t, err)
}

// The consumer neither guesses nor starts from 0 if its stored checkpoint is no position.
func TestACorruptPositionStopsTheConsumer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		stream messagestore.StreamName
		body   messagestore.Body
		reason string
	}{
		{"account:position-ledger+0", raw("Recorded", `{"position": "abc"}`), `it is not like {"position": 3}`},
		{"account:position-ledger+0", raw("Recorded", `{"position": -7}`), "position -7 is less than 0"},
		{"account:position-ledger+0", raw("Recorded", `{"position": 1.5}`), `it is not like {"position": 3}`},
		{"account:position-ledger+0", raw("Recorded", `{"position": 1e30}`), `it is not like {"position": 3}`},
		{"account:position-ledger+0", raw("Recorded", `{"position": null}`), "it has no position"},
		{"account:position-ledger+0", raw("Recorded", `{}`), "it has no position"},
		{"account:position-ledger+0", raw("Recorded", `{"position": 2, "after": "none"}`), `it is not like {"position": 3}`},
		{"account:position-ledger+0", raw("Recorded", `{"position": 2}`), "it does not name the message before its position, and one before it did"},
		{"account:position-ledger+0", raw("Recorded", `{"position": 0}`), "it does not name the message before its position, and one before it did"},
		{"account:position-ledger+0", raw("Recorded", `{"position": 1, "after": null}`), "it does not name the message before its position, and one before it did"},
		{"account:position-ledger+0", raw("Recorded", `{"position": 1, "after": "00000000-0000-0000-0000-000000000000"}`), "it does not name the message before its position"},
		{"account:position-ledger+0", raw("Deposited", `{"position": 1}`), "its type is Deposited, not Recorded"},
		{"account:position-ledger", raw("Started", `{"start": -1}`), "start -1 is less than 0"},
		{"account:position-ledger", raw("Started", `{}`), "it has no start"},
		{"account:position-ledger", raw("Recorded", `{"start": 0}`), "its type is Recorded, not Started"},
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
		write(t, store, test.stream, test.body)
		j := &journal{}
		c := newConsumer(t, store, j, nil)

		for _, err := range []error{runForAWhile(t, c), c.CatchUp(t.Context())} {
			require.ErrorIs(t, err, consumer.ErrPositionCorrupt)
			corrupt, ok := errors.AsType[*checkpoint.CorruptError](err)
			require.True(t, ok)
			require.Equal(t, test.stream, corrupt.Stream)
			require.ErrorContains(t, err, test.reason)
		}
		require.Empty(t, j.all())
	}
}

func TestAPositionAheadOfTheStoreStopsTheConsumer(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
	write(t, store, "account:position-ledger+0", raw("Recorded", `{"position": 3, "after": "0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b"}`)) // 2 is at the end
	c := newConsumer(t, store, &journal{}, nil)

	err := runForAWhile(t, c)

	require.ErrorIs(t, err, consumer.ErrPositionAhead)
	ahead, ok := errors.AsType[*checkpoint.AheadError](err)
	require.True(t, ok)
	require.Equal(t, messagestore.GlobalPosition(3), ahead.Position)
	require.ErrorContains(t, err, "position 3 in account:position-ledger+0 is ahead of the store")
}

func TestAPositionAtTheEndIsNotAhead(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{
		"All":          nil,
		"NothingFound": {OnlyKnown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			write(t, store, "account-1", Deposited{1})
			for range 3 {
				require.NoError(t, newConsumer(t, store, knowing(&journal{}, "Withdrawn"), config).CatchUp(t.Context()))
			}
		})
	}
}

// The store is put back while the consumer waits for messages: it has nothing new,
// which looks the same as nothing to do.
func TestAStoreThatWasPutBackStopsAConsumerThatRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		errs := make(chan error, 1)
		c := newConsumer(t, store, &journal{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { errs <- c.Run(ctx) }()
		time.Sleep(time.Minute)
		require.Equal(t, int64(1), c.Stats().Handled)

		store.set(func(s *tap) {
			s.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
				return &messagestore.CategoryPage{Next: q.From}, nil
			}
		})
		start := time.Now()
		err := <-errs

		require.ErrorIs(t, err, consumer.ErrPositionAhead)
		require.LessOrEqual(t, time.Since(start), 11*time.Second)
	})
}

func TestAPositionThatTheStoreLostStopsTheConsumer(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	store.write = func(stream messagestore.StreamName) error {
		if stream == "account:position-ledger+0" {
			return &messagestore.VersionConflictError{Stream: stream, Expected: 5, Actual: 4}
		}
		return nil
	}

	err := newConsumer(t, store, &journal{}, nil).CatchUp(t.Context())

	require.ErrorIs(t, err, consumer.ErrPositionAhead)
	require.NotErrorIs(t, err, consumer.ErrConsumerFenced)
	ahead, ok := errors.AsType[*checkpoint.AheadError](err)
	require.True(t, ok)
	require.Equal(t, checkpoint.AheadError{Stream: "account:position-ledger+0", Position: 0, Expected: 5, Actual: 4}, *ahead)
	require.ErrorContains(t, err, "position 0 is ahead of the store, which has lost messages of account:position-ledger+0: expected version 5, found 4")
}

// A handler may return the error of another consumer, which says nothing of this one's
// position.
func TestAHandlersErrorDoesNotKeepThePositionFromBeingRecorded(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{consumer.ErrConsumerFenced, consumer.ErrPositionAhead, &checkpoint.CorruptError{}} {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Position == 1 {
				return failure
			}
			return nil
		}), &consumer.Config{Errors: stopAtOnce})

		err := c.CatchUp(t.Context())

		require.ErrorIs(t, err, failure)
		require.Equal(t, messagestore.GlobalPosition(2), c.Stats().Position)
	}
}

// The position was written but the answer was lost: the next write is not told that
// another process was first.
func TestAPositionOfUnknownOutcomeDoesNotFenceItsOwnWriter(t *testing.T) {
	t.Parallel()
	for _, happened := range []bool{true, false} {
		t.Run(fmt.Sprint("Happened", happened), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &tap{Store: newStore()}
				lose := func(n int) func(messagestore.StreamName) error {
					return func(stream messagestore.StreamName) error {
						if stream != "account:position-ledger+0" || n == 0 {
							return nil
						}
						n--
						return &messagestore.OutcomeUnknownError{Cause: errStore}
					}
				}
				store.set(func(s *tap) {
					if happened {
						s.lost = lose(2)
					} else {
						s.write = lose(2)
					}
				})
				c := newConsumer(t, store, &journal{}, &consumer.Config{CheckpointMessages: 1})
				stop := running(t, c)
				for range 5 {
					write(t, store.Store, "account-1", Deposited{1})
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Minute)

				require.Equal(t, c.Stats().Head+1, c.Stats().Position)
				require.Equal(t, int64(2), c.Stats().StoreErrors)
				require.NoError(t, stop())
			})
		})
	}
}

// A write that fails definitely tells nothing of the one before it, whose answer was lost: it goes again with its id, and
// while that fails, the error says that the outcome is not known.
func TestAPositionOfUnknownOutcomeIsNotForgottenForALaterError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		later error // of the writes after it
		times int
		ends  bool // the consumer ends by it
	}{
		"back again": {errStore, 3, false},
		"away":       {errStore, math.MaxInt, false},
		"closed":     {fmt.Errorf("write: %w", messagestore.ErrClosed), math.MaxInt, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &tap{Store: newStore()}
				joined, lost, failed := false, false, 0
				ofPosition := func(stream messagestore.StreamName) bool { return stream == "account:position-ledger+0" }
				store.set(func(s *tap) {
					s.lost = func(stream messagestore.StreamName) error {
						if !ofPosition(stream) || lost {
							return nil
						}
						if !joined {
							joined = true
							return nil
						}
						lost = true
						return &messagestore.OutcomeUnknownError{Cause: errStore}
					}
					s.write = func(stream messagestore.StreamName) error {
						if !ofPosition(stream) || !lost || failed == c.times {
							return nil
						}
						failed++
						return c.later
					}
				})
				write(t, store.Store, "account-1", Deposited{1})
				run := newConsumer(t, store, &journal{}, &consumer.Config{CheckpointMessages: 1})
				ended := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				go func() { ended <- run.Run(ctx) }()
				time.Sleep(time.Minute)
				if !c.ends {
					cancel()
				}
				err := <-ended
				cancel()

				if c.times == math.MaxInt {
					require.ErrorIs(t, err, c.later)
					require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
					return
				}
				require.NoError(t, err, "it is not fenced by its own write")
				require.Equal(t, run.Stats().Head+1, run.Stats().Position)
			})
		})
	}
}

// afterJoining has the store refuse the checkpoints of a consumer once it has joined its group.
func afterJoining(store *tap) {
	joined := false
	store.set(func(s *tap) {
		s.write = func(stream messagestore.StreamName) error {
			switch {
			case stream.ID() != "ledger+0":
				return nil
			case !joined:
				joined = true
				return nil
			}
			return errStore
		}
	})
}

func TestAPositionThatCannotBeRecordedAtTheEndIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		afterJoining(store)
		stop := running(t, newConsumer(t, store, &journal{}, nil))
		time.Sleep(time.Minute)
		start := time.Now()

		err := stop()

		require.ErrorIs(t, err, errStore)
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
	})
}

// While it cannot checkpoint, a consumer delivers no more messages than a crash may
// redeliver.
func TestAConsumerThatCannotRecordDoesNotRunAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		for range 100 {
			write(t, store.Store, "account-1", Deposited{1})
		}
		afterJoining(store)
		c := newConsumer(t, store, &journal{}, &consumer.Config{CheckpointMessages: 10, BatchSize: 7})
		stop := running(t, c)
		time.Sleep(10 * time.Minute)
		require.Equal(t, int64(17), c.Stats().Handled)

		store.set(func(s *tap) { s.write = nil })
		time.Sleep(10 * time.Second)

		require.Equal(t, int64(100), c.Stats().Handled)
		require.NoError(t, stop())
	})
}

// Any content of a position stream is read as a position or is an error: never a guess.
func FuzzARecordedPositionIsNeverGuessed(f *testing.F) {
	for _, seed := range []string{
		`{"position": 0}`, `{"position": 1}`, `{"position": 2}`, `{"position": 3}`, `{"position": -1}`, `{"position": "1"}`, `{"position": 1e0}`,
		`{"position": 9223372036854775807}`, `{"position": 9223372036854775808}`, `{"position": null}`, `{"position": [1]}`,
		`{"position": 1, "after": "0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}`, `{"position": 2, "after": "0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}`, `{"position": 2, "after": 1}`, `{"Position": 1}`, `{}`,
	} {
		f.Add(seed)
	}
	for _, data := range testkit.SeedJSON("position") {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data string) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		write(t, store, "account:position-ledger", raw("Started", `{"start": 0}`))
		if _, err := store.Write(t.Context(), "account:position-ledger+0", messagestore.NoStream, raw("Recorded", data)); err != nil {
			return // the store refuses it
		}
		j := &journal{}

		err := newConsumer(t, store, j, nil).CatchUp(t.Context())

		if errors.Is(err, consumer.ErrPositionCorrupt) || errors.Is(err, consumer.ErrPositionAhead) {
			require.Empty(t, j.all())
			return
		}
		require.NoError(t, err)
		var body struct{ Position *json.Number }
		require.NoError(t, json.Unmarshal([]byte(data), &body))
		require.NotNil(t, body.Position)
		position, err := body.Position.Int64()
		require.NoError(t, err)
		require.Contains(t, []int64{0, 1, 2}, position)
		require.Len(t, j.all(), map[bool]int{true: 1, false: 0}[position < 2])
	})
}

// Two checkpoints that name no message are as little as one, for a program that joins and for one that looks.
func TestACheckpointThatNamesNoMessageIsRefusedHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
	for range 3 {
		write(t, store, "account:position-ledger+0", raw("Recorded", `{"position": 1}`))
	}

	err := newConsumer(t, store, &journal{}, nil).CatchUp(t.Context())

	require.ErrorIs(t, err, consumer.ErrPositionCorrupt)
	require.ErrorIs(t, positionsNow(t, store, account)[0].PositionErr, consumer.ErrPositionCorrupt)
}
