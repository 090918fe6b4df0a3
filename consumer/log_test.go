package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A logbook is the log of a consumer.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logbook) logger() logger.Logger { return logger.Zerolog(zerolog.New(l)) }

// of returns the events with a message that begins so.
func (l *logbook) of(t *testing.T, message string) (events []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		if strings.HasPrefix(fmt.Sprint(event["message"]), message) {
			events = append(events, event)
		}
	}
	return events
}

// A consumer that was given no logger is heard on standard error, without ceremony.
//
//nolint:paralleltest // it replaces standard error
func TestAConsumerWithoutALoggerWarnsOnStandardError(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	before := os.Stderr
	os.Stderr = write
	defer func() { os.Stderr = before }()
	store := newStore()
	_, err = store.Write(t.Context(), "account-1", messagestore.NoStream, Deposited{1})
	require.NoError(t, err)
	panics := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { panic("no such seat") })

	err = testkit.Must(consumer.New(store, account, "ledger", panics, &consumer.Config{Errors: stopAtOnce})).CatchUp(t.Context())
	require.NoError(t, testkit.Must(consumer.New(store, account, "silent", panics, &consumer.Config{Errors: parkAtOnce, Logger: logger.Silent()})).CatchUp(t.Context()))

	os.Stderr = before
	require.NoError(t, write.Close())
	require.Error(t, err)
	var text bytes.Buffer
	_, err = text.ReadFrom(read)
	require.NoError(t, err)
	require.Regexp(t, `^20\S+ WRN handler failed error="panic: no such seat" attempt=1 consumer=ledger `, text.String())
	require.Contains(t, text.String(), "\n    github.com/dibs-go/dibs/consumer_test.TestAConsumerWithoutALoggerWarnsOnStandardError.func")
	require.Contains(t, text.String(), "ERR consumer stopped error=")
	require.NotContains(t, text.String(), "silent")
	require.NotContains(t, text.String(), "INF")
}

func TestAFailureThatNoRetryHelpsIsNotRetried(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[Deposited]) error { return nil })
	projection := entity.NewProjection[int]()
	entity.On(projection, func(sum int, d Deposited) int { return sum + d.Amount })
	for name, h := range map[string]consumer.Handler{
		"OfAMux": mux,
		"OfAFunction": handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			_, err := messagestore.Decode[Deposited](m)
			return err
		}),
		"OfAProjection": handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			_, err := projection.Apply(0, m)
			return err
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				write(t, store, "account-1", raw("Deposited", `{"amount":"ten"}`))
				before := time.Now()

				err := runForAWhile(t, newConsumer(t, store, h, nil))

				failed, is := errors.AsType[*consumer.MessageError](err)
				require.True(t, is, "%v", err)
				require.Equal(t, 1, failed.Attempts)
				require.Zero(t, time.Since(before))

				c := newNamed(store, account, "parking", h, &consumer.Config{Errors: consumer.ErrorPolicy{Then: consumer.ParkMessage}})
				require.NoError(t, c.CatchUp(t.Context()))
				require.Equal(t, int64(1), c.Stats().Parked)
				require.Zero(t, c.Stats().Retried)
			})
		})
	}
}

// A stateError is an error of a database.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// A failure that every message will meet parks none: the consumer stops before the first.
func TestAFailureThatIsNotTheMessagesStopsUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{
		stateError("42501"),
		lastingError{},
		messagestore.ErrNotPermitted, messagestore.ErrClosed, postgres.ErrNotMigrated, postgres.ErrSchemaTooNew,
		postgres.ErrAdopting, &pglink.SchemaVersionError{Schema: "dibs", Version: 1, Need: 2}, sqlite.ErrNoSchema, sqlite.ErrNewerSchema,
		&postgres.UnsafeSettingsError{Settings: []postgres.UnsafeSetting{{Name: "fsync", Value: "off", Need: "on"}}},
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		c := newConsumer(t, store, always(fmt.Errorf("write: %w", failure)), &consumer.Config{Errors: consumer.ErrorPolicy{
			Retry: consumer.Retry{For: consumer.Forever}, Then: consumer.ParkMessage,
		}})

		require.ErrorIs(t, c.CatchUp(t.Context()), failure)

		require.Equal(t, int64(1), c.Stats().Failed)
		require.Zero(t, c.Stats().Parked)
	}
}

// A methodicalError has the methods by which errors of other libraries say the like.
type methodicalError struct{}

func (methodicalError) Error() string             { return "no such seat" }
func (methodicalError) Permanent() bool           { return true }
func (methodicalError) Park() bool                { return true }
func (methodicalError) RetryAfter() time.Duration { return time.Hour }

// No method of a handler's error has an effect, and a standby is waited for: the policy decides.
func TestNoMethodOfAFailureStopsAConsumer(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{
		methodicalError{}, &postgres.UnsafeSettingsError{Settings: []postgres.UnsafeSetting{{Name: "in_hot_standby", Value: "on", Need: "off"}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			write(t, store, "account-1", Deposited{1}, Deposited{2})
			c := newConsumer(t, store, always(fmt.Errorf("write: %w", failure)), &consumer.Config{Errors: consumer.ErrorPolicy{
				Retry: consumer.Retry{For: time.Second}, Then: consumer.ParkMessage,
			}})
			before := time.Now()

			require.NoError(t, c.CatchUp(t.Context()))

			require.Equal(t, int64(2), c.Stats().Parked)
			require.Equal(t, 2*time.Second, time.Since(before))
		})
	}
}

func TestAWrongSettingIsReturnedByTheFirstContact(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err   error
		first bool // Run returns it if it is the first answer
		later bool // Run returns it at any time
	}{
		{stateError("42501"), true, true}, // a right
		{messagestore.ErrNotPermitted, true, true},
		{messagestore.ErrClosed, true, true},
		{stateError("28P01"), true, false}, // a password: it may be rotated later
		{stateError("3D000"), true, false}, // a database
		{stateError("57P03"), false, false},
		{stateError("53300"), false, false},
		{errStore, false, false}, // no answer
	} {
		t.Run(test.err.Error(), func(t *testing.T) {
			t.Parallel()
			for _, first := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) {
					store := &tap{Store: newStore()}
					fails := func(s *tap) {
						s.look = func(messagestore.StreamName) error { return test.err }
						s.read = func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, test.err }
					}
					if first {
						store.set(fails)
					}
					done := make(chan error, 1)
					ctx, cancel := context.WithCancel(t.Context())
					go func() { done <- newConsumer(t, store, &journal{}, nil).Run(ctx) }()
					time.Sleep(time.Minute)
					store.set(fails)
					time.Sleep(time.Minute)
					cancel()

					if err := <-done; first && test.first || test.later {
						require.ErrorIs(t, err, test.err)
					} else {
						require.NoError(t, err)
					}
				})
			}
		})
	}
}

// A member that stands by has met the store before: a password that is refused then may be rotated later.
func TestAMemberThatStandsByOutlivesARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		tapped := &tap{Store: newStore(), look: func(messagestore.StreamName) error { looks.Add(1); return nil }}
		stop := running(t, newConsumer(t, tapped.Store, &journal{}, nil))
		time.Sleep(time.Minute)
		standsBy := newConsumer(t, tapped, &journal{}, nil)
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- standsBy.Run(ctx) }()
		time.Sleep(time.Millisecond) // it has met the store, and nobody has freed slots for it

		require.Positive(t, looks.Load())
		tapped.set(func(s *tap) {
			s.look = func(messagestore.StreamName) error { return stateError("28P01") }
		})
		time.Sleep(time.Minute)
		require.Positive(t, standsBy.Stats().StoreErrors)
		tapped.set(func(s *tap) { s.look = nil })
		time.Sleep(time.Minute)

		cancel()
		require.NoError(t, <-done)
		require.NoError(t, stop())
	})
}

func TestAnOutageIsOneLineAtItsBeginningAndOneAtItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		var log logbook
		stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{Logger: log.logger()}))
		time.Sleep(time.Minute)
		require.Empty(t, log.of(t, "store"))

		// Reads go on; no checkpoint is taken.
		store.set(func(s *tap) { s.write = func(messagestore.StreamName) error { return errStore } })
		write(t, store.Store, "account-1", Deposited{1})
		time.Sleep(30 * time.Second)

		require.Len(t, log.of(t, "store failed: trying again"), 1)
		require.Empty(t, log.of(t, "store is back"))

		store.set(func(s *tap) { s.write = nil })
		time.Sleep(5 * time.Second)

		back := log.of(t, "store is back")
		require.Len(t, back, 1)
		require.Regexp(t, `^(2\d|3\d)(\.\d)?s$`, back[0]["after"])
		require.Greater(t, back[0]["errors"], 20.0)
		require.Empty(t, log.of(t, "store still fails"))

		store.set(func(s *tap) {
			s.read = func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, errStore }
		})
		time.Sleep(time.Hour)

		require.Len(t, log.of(t, "store failed: trying again"), 2)
		require.Len(t, log.of(t, "store still fails"), 6) // after 1, 2, 4, 8, 16 and 32 minutes
		require.NoError(t, stop())
	})
}

func TestAHandlerThatDoesNotReturnIsLoggedAtGrowingIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		write(t, store, "account-2", Deposited{1})
		var log logbook
		hangs := make(chan struct{})
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Stream == "account-1" {
				<-hangs
			}
			return nil
		}), &consumer.Config{Logger: log.logger(), Concurrency: 2}))
		time.Sleep(50 * time.Second)
		require.Empty(t, log.of(t, "handler has not returned"))

		time.Sleep(20 * time.Minute)

		slow := log.of(t, "handler has not returned")
		require.Len(t, slow, 5) // after 1, 2, 4, 8 and 16 minutes
		require.Equal(t, "1m0s", slow[0]["for"])
		require.Equal(t, "16m0s", slow[4]["for"])
		for _, event := range slow {
			require.Equal(t, "account-1", event["stream"])
			require.NotEmpty(t, event["id"])
		}
		close(hangs)
		require.NoError(t, stop())
	})
}

// The stack of a panic is in the log once, and with the parked message.
func TestAPanicHasItsStack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		var log logbook
		var deep func(n int)
		deep = func(n int) {
			if n == 0 {
				panic("no such seat")
			}
			deep(n - 1)
		}
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			deep(90)
			return nil
		}), &consumer.Config{Logger: log.logger(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: 10 * time.Millisecond}, Then: consumer.ParkMessage}})

		require.NoError(t, c.CatchUp(t.Context()))

		failed := log.of(t, "handler failed")
		require.Len(t, failed, 2)
		require.Regexp(t, `^github.com/dibs-go/dibs/consumer_test.TestAPanicHasItsStack`, failed[0]["stack"])
		require.Nil(t, failed[1]["stack"])
		parked := log.of(t, "message parked")
		require.Len(t, parked, 1)
		require.InDelta(t, 1, parked[0]["globalPosition"], 0)
		what, stack, _ := strings.Cut(parkedOf(t, store, account, "ledger")[0].Error, "\n")
		require.Equal(t, "panic: no such seat", what)
		require.Contains(t, stack, "TestAPanicHasItsStack")
		require.LessOrEqual(t, len(stack), 2048)

		retry(t, store, account, "ledger")
		require.NoError(t, c.CatchUp(t.Context()))
		dead := log.of(t, "item is dead")
		require.Len(t, dead, 1)
		require.NotEmpty(t, dead[0]["stack"])
		require.Equal(t, "account:parked:ledger", dead[0]["queue"])
	})
}

func TestTheStartSaysWhichMemberItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		store := newStore()
		stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{Logger: log.logger()}))
		time.Sleep(time.Minute)
		started := log.of(t, "consumer started")
		require.Len(t, started, 1)
		require.InDelta(t, 1, started[0]["size"], 0)
		require.InDelta(t, operate.Slots, started[0]["slots"], 0)
		require.Equal(t, statusIn(t, store, account).Replicas[0].ID.String(), started[0]["member"])
		require.NoError(t, stop())
	})
}

func TestAHandlerThatWritesToItsOwnCategoryIsNamedOnce(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]func(m *messagestore.Message) messagestore.StreamName{
		"TheSameStream": func(m *messagestore.Message) messagestore.StreamName { return m.Stream },
		"AnotherStream": func(*messagestore.Message) messagestore.StreamName { return "account-2" },
		"Elsewhere":     func(*messagestore.Message) messagestore.StreamName { return "account:command-2" },
		"AnotherPart":   func(m *messagestore.Message) messagestore.StreamName { return m.Stream.With("key") },
		"AReservation": func(*messagestore.Message) messagestore.StreamName {
			return "account:reservation+ledger-1+key"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logbook
			store := testkit.Must(messagestore.New(newDriver(), &messagestore.Config{Logger: log.logger()}))
			write(t, store, "account-1", Deposited{1})
			n := 0
			c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
				if n++; n > 5 {
					return nil
				}
				_, err := store.Write(ctx, to(m), messagestore.AnyVersion, Deposited{1})
				return err
			}), nil)

			require.NoError(t, c.CatchUp(t.Context()))

			own := log.of(t, "the handler writes to the category that its consumer reads")
			if name == "Elsewhere" || name == "AReservation" {
				require.Empty(t, own)
				return
			}
			require.Len(t, own, 1)
			require.Equal(t, "warn", own[0]["level"])
		})
	}
}

func TestACategoryWithoutAMessageIsNamedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		store := newStore()
		stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{Logger: log.logger(), OnlyKnown: true}))
		time.Sleep(10 * time.Minute)
		write(t, store, "account-1", Deposited{1})
		time.Sleep(10 * time.Minute)

		empty := log.of(t, "the category has no message yet: is its name right?")
		require.Len(t, empty, 1)
		require.Equal(t, "warn", empty[0]["level"])
		require.Empty(t, log.of(t, "the category has messages, and none"))
		require.NoError(t, stop())
	})
}

func TestAFilterThatNoMessagePassesIsNamedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		for _, test := range []struct {
			name   string
			config consumer.Config
			known  string
			named  int
		}{
			{"misspelt", consumer.Config{OnlyKnown: true}, "Deposit", 1},
			{"correlated", consumer.Config{Correlation: "transfer"}, "Deposited", 1},
			{"right", consumer.Config{OnlyKnown: true}, "Deposited", 0},
			{"member", consumer.Config{OnlyKnown: true, Concurrency: 2}, "Deposit", 0},
		} {
			var log logbook
			if test.name == "member" { // of two, which has a half
				others := test.config
				others.Logger = logger.Silent()
				running(t, newNamed(store, account, test.name, knowing(&journal{}, test.known), &others))
				time.Sleep(time.Minute)
			}
			test.config.Logger = log.logger()
			stop := running(t, newNamed(store, account, test.name, knowing(&journal{}, test.known), &test.config))
			time.Sleep(time.Minute)
			write(t, store, "account-1", Withdrawn{})
			time.Sleep(time.Minute)
			require.Len(t, log.of(t, "the category has messages, and none passes the consumer's filter"), test.named, test.name)
			require.Empty(t, log.of(t, "the category has no message yet"))
			require.NoError(t, stop())
		}
	})
}

func TestAConsumerOverAClosedFileStops(t *testing.T) {
	t.Parallel()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "dibs.db"), nil)
	require.NoError(t, err)
	store := testkit.Must(messagestore.New(driver, nil))
	ended := make(chan error, 2)
	started := make(chan struct{})
	c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
		close(started)
		return nil
	}), nil)
	write(t, store, "account-1", Deposited{1})
	go func() { ended <- c.Run(t.Context()) }()
	<-started

	require.NoError(t, store.Close())

	require.ErrorIs(t, <-ended, messagestore.ErrClosed)
	require.ErrorIs(t, c.Run(t.Context()), messagestore.ErrClosed)
}

// A log has no content of messages, also where the messages of a handler are refused.
func TestTheLogOfARefusedMessageHasNoContent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", raw("Opened", `{"iban":"CZ65"}`))
		write(t, store, "account-2", raw("Deposited", `{"amount":65.12}`))
		h := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if m.Type == "Opened" {
				_, err := store.Write(ctx, "other-1", messagestore.AnyVersion, raw("Refused", string(m.Data)+"CZ65"))
				return err
			}
			_, err := messagestore.Decode[Deposited](m)
			return err
		})
		var log logbook
		config := &consumer.Config{Logger: log.logger(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}}
		parking := newNamed(store, account, "parking", h, config)
		config.Errors.Then = consumer.StopConsumer
		stopping := newNamed(store, account, "stopping", h, config)

		require.NoError(t, parking.CatchUp(t.Context()))
		require.ErrorIs(t, stopping.CatchUp(t.Context()), messagestore.ErrInvalid)

		require.Len(t, log.of(t, "message parked"), 2)
		require.Len(t, log.of(t, "consumer stopped"), 2, "the consumer that has caught up, too")
		require.NotContains(t, log.text.String(), "CZ65")
		require.NotContains(t, log.text.String(), "65.12")
		for _, item := range parkedOf(t, store, account, "parking") { // the store has content, as it has the messages
			require.Contains(t, item.Error, "65")
		}
	})
}

// A person has a minute to act before the consumer stops, and the command line for it.
func TestThatAConsumerWillStopIsToldAMinuteAhead(t *testing.T) {
	for name, c := range map[string]struct {
		retry consumer.Retry
		ahead time.Duration // at least
		pause time.Duration // by which it may be more
	}{
		"by default":                     {consumer.Retry{}, time.Minute, 10 * time.Second},
		"with long pauses":               {consumer.Retry{For: time.Hour, MaxBackoff: 10 * time.Minute}, time.Minute, 10 * time.Minute},
		"with retries for half a minute": {consumer.Retry{For: 30 * time.Second}, 30 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, book := newStore(), &logbook{}
				const category messagestore.Category = "it's:command"
				_, err := store.Write(t.Context(), category.Stream("1"), messagestore.NoStream, Deposited{1})
				require.NoError(t, err)
				began := time.Now()
				var told time.Duration
				fails := handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
					if told == 0 && len(book.of(t, "consumer will stop")) > 0 {
						told = time.Since(began) // it was told after the attempt before
					}
					return errors.New("no such seat")
				})
				config := &consumer.Config{Errors: consumer.ErrorPolicy{Retry: c.retry}, Logger: book.logger()}

				err = testkit.Must(consumer.New(store, category, "ledger", fails, config)).Run(t.Context())

				require.Error(t, err)
				const park = `dibs consumers park 'it'\''s:command' ledger --position 1 --reason TEXT`
				events := book.of(t, "consumer will stop")
				require.Len(t, events, 1)
				require.Equal(t, park, events[0]["park"])
				require.Equal(t, "Deposited", events[0]["type"])
				ahead, err := time.ParseDuration(fmt.Sprint(events[0]["in"]))
				require.NoError(t, err)
				require.GreaterOrEqual(t, ahead, c.ahead)
				require.LessOrEqual(t, ahead, c.ahead+c.pause)
				require.NotZero(t, told)
				require.Equal(t, park, book.of(t, "consumer stopped")[0]["park"])
			})
		})
	}
}

func TestAMessageThatIsHandledInTimeStopsNoConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, book := newStore(), &logbook{}
		_, err := store.Write(t.Context(), "account-1", messagestore.NoStream, Deposited{1})
		require.NoError(t, err)
		began := time.Now()
		heals := handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			if time.Since(began) < 3*time.Minute {
				return errors.New("no such seat")
			}
			return nil
		})
		for i, errs := range []consumer.ErrorPolicy{{}, {Then: consumer.ParkMessage, Retry: consumer.Retry{For: time.Minute}}, retryEach(time.Second)} {
			config := &consumer.Config{Errors: errs, Logger: book.logger()}
			require.NoError(t, testkit.Must(consumer.New(store, account, fmt.Sprint("ledger", i), heals, config)).CatchUp(t.Context()))
			began = time.Now()
		}

		require.Empty(t, book.of(t, "consumer will stop"))
	})
}
