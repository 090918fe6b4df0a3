package cli_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

type deposit struct {
	DepositID string `json:"depositId"`
	Amount    int    `json:"amount"`
}

func (deposit) MessageType() string { return "Deposit" }
func (d deposit) key() string       { return d.DepositID }

type deposited struct {
	Amount int `json:"amount"`
}

func (deposited) MessageType() string { return "Deposited" }

type notified struct{}

func (notified) MessageType() string { return "Notified" }

const (
	account  messagestore.Category = "account"
	commands messagestore.Category = "account:command"
)

// bank is a store in which commands were handled.
func bank(t *testing.T, send func(store *messagestore.Store)) *shell {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dibs.db")
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	store := must.New(messagestore.New(driver, nil))
	send(store)

	once := must.New(reservation.New(store, "accounts", nil))
	mux := handler.New()
	handler.Register(mux, reservation.Copy(once, deposit.key, func(ctx context.Context, m handler.Message[deposit]) error {
		if m.Body.Amount < 0 {
			return errors.New("the amount is negative")
		}
		stream := account.Stream(m.Stream.CardinalID())
		version, err := store.Version(ctx, stream)
		if err != nil {
			return err
		}
		written, err := store.Write(ctx, stream, version, messagestore.Follow(m.Message, deposited{m.Body.Amount}))
		if err != nil {
			return err
		}
		event, err := store.Last(ctx, stream)
		if err != nil {
			return err
		}
		_, err = store.Write(ctx, messagestore.Category("mail").Stream(fmt.Sprint(written.Version)), messagestore.NoStream, messagestore.Follow(event, notified{}))
		return err
	}))
	for _, category := range []messagestore.Category{commands, once.Category(commands)} {
		c := must.New(consumer.New(store, category, "accounts", mux, &consumer.Config{Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}}))
		require.NoError(t, c.CatchUp(t.Context()))
	}
	require.NoError(t, store.Close())
	return &shell{env: map[string]string{"DIBS_STORE": "sqlite:" + file}}
}

func TestStoryOfAReservation(t *testing.T) {
	t.Parallel()
	dibs := bank(t, func(store *messagestore.Store) {
		for _, command := range []deposit{{"AAA", 10}, {"BBB", 5}, {"AAA", 10}, {"AAA", 11}, {"AAA", 10}} {
			_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, command)
			require.NoError(t, err)
		}
	})

	story := steady(dibs.ok(t, "explain", "account:command+reservation+accounts-123+AAA", "--in", "mail"))

	golden(t, "explain", story)
	require.Equal(t, story, steady(dibs.ok(t, "explain", "AAA", "--category", "account:command", "--in", "mail")))

	events := objects(t, dibs.ok(t, "explain", "account:command+reservation+accounts-123+AAA", "--json"))
	var names []string
	for _, event := range events {
		require.Equal(t, "account:command+reservation+accounts-123+AAA", event["of"])
		require.Equal(t, "AAA", event["key"])
		name := fmt.Sprint(event["event"])
		if message, has := event["message"].(map[string]any); has {
			name += fmt.Sprint(" ", message["stream"])
		} else {
			require.Equal(t, "account:command:parked:accounts", event["queue"])
		}
		names = append(names, name)
	}
	require.Equal(t, []string{
		"firstWrite account:command+reservation+accounts-123+AAA", "winner account:command-123",
		"duplicate account:command-123", "sameKey account:command-123", "duplicate account:command-123",
		"delivery", "item", "followed account-123",
	}, names)
}

// Two consumers that reserve one key, each for itself, have two stories.
func TestStoryOfAReservationWithAName(t *testing.T) {
	t.Parallel()
	dibs := bank(t, func(store *messagestore.Store) {
		var source *messagestore.Message
		for _, command := range []deposit{{"a+b", 10}, {"a+b", 10}, {"a+b", 11}} {
			_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, command)
			require.NoError(t, err)
			if source == nil {
				source, err = store.Last(t.Context(), commands.Stream("123"))
				require.NoError(t, err)
			}
		}
		_, err := must.New(reservation.New(store, "receipts", nil)).Reserve(t.Context(), source, "a+b")
		require.NoError(t, err)
	})
	want := []string{"account:command+reservation+receipts-123+a%2Bb", "account:command+reservation+accounts-123+a%2Bb"}

	for _, stream := range want {
		story := dibs.ok(t, "explain", stream)

		require.Contains(t, story, stream+" is reserved with the key a+b\n")
		for _, part := range []string{"winner ", "duplicate ", "same key "} {
			require.Contains(t, story, part)
		}
	}
	told := func(in messagestore.Category) (streams []string) {
		for _, event := range objects(t, dibs.ok(t, "explain", "a+b", "--category", string(in), "--json")) {
			if event["event"] == "firstWrite" {
				streams = append(streams, fmt.Sprint(event["of"]))
			}
		}
		return streams
	}
	require.ElementsMatch(t, want, told(commands))
	require.Equal(t, want[:1], told("account:command+reservation+receipts"))
}

func TestStoryOfAnEntity(t *testing.T) {
	t.Parallel()
	dibs := bank(t, func(store *messagestore.Store) {
		_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
		require.NoError(t, err)
	})

	golden(t, "explain-entity", steady(dibs.ok(t, "explain", "account-123", "--in", "mail")))
}

func TestStoryOfAParkedCommand(t *testing.T) {
	t.Parallel()
	dibs := bank(t, func(store *messagestore.Store) {
		_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", -1}, deposit{"BBB", -1})
		require.NoError(t, err)
	})

	golden(t, "explain-parked", steady(dibs.ok(t, "explain", "account:command+reservation+accounts-123+AAA")))
}

// Keys are found however they are spelt in a stream's name.
func TestKeyIsFoundInItsCategory(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 100)
	keys := []string{"AAA", "a+b c%", "schlüssel", long, "with-dash", "x@1"}
	dibs := bank(t, func(store *messagestore.Store) {
		for _, entity := range []string{"1", "2"} {
			for _, key := range keys {
				_, err := store.Write(t.Context(), commands.Stream(entity), messagestore.AnyVersion, deposit{key, 1}, deposit{key, 1})
				require.NoError(t, err)
			}
		}
	})
	for _, key := range keys {
		var streams []string
		duplicates := 0
		for _, event := range objects(t, dibs.ok(t, "explain", key, "--category", "account:command", "--json")) {
			require.Equal(t, key, event["key"])
			switch event["event"] {
			case "firstWrite":
				streams = append(streams, fmt.Sprint(event["of"]))
			case "duplicate":
				duplicates++
			}
		}
		require.Len(t, streams, 2, key)
		require.Equal(t, 2, duplicates, key)
		for _, stream := range streams {
			require.Contains(t, dibs.ok(t, "explain", stream), "duplicate ")
		}
	}

	unknown := dibs.run(t, "explain", "ZZZ", "--category", "account:command")
	require.Equal(t, 1, unknown.code)
	require.Contains(t, unknown.stderr, "no stream of account:command is reserved with the key \"ZZZ\"")
	empty := dibs.run(t, "explain", "", "--category", "account:command")
	require.Equal(t, 2, empty.code)
	require.Contains(t, empty.stderr, "invalid idempotence key")
}

func TestStreamThatNobodyReservedHasNoStory(t *testing.T) {
	t.Parallel()
	r := newShell(t).run(t, "explain", "account-1")
	require.Equal(t, result{1, "", "dibs: account-1 has no messages, so it is not reserved\n"}, r)
}

// Messages of another client, or of another store, are told as far as they go.
func TestStoryWithForeignCausesIsTold(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for n, cause := range []string{"elsewhere-1", "not a stream", "-", "cat-"} {
		stream := fmt.Sprintf("account-%d", n)
		dibs.ok(t, "write", stream, "T", "--metadata", fmt.Sprintf(
			`{"causationMessageStreamName":%q,"causationMessagePosition":7,"causationMessageGlobalPosition":9,"localProperties":{"reservedKey":"%%","reservedDigest":1}}`, cause))
		require.Contains(t, dibs.ok(t, "explain", stream), cause+"@7", cause)
		require.Equal(t, 0, dibs.run(t, "explain", stream, "--json").code)
	}
	require.Equal(t, 1, dibs.run(t, "explain", "AAA", "--category", "account").code)
}

// A message may stand before the one it follows, and follow itself in a circle.
func TestWhatFollowedIsFoundInAnyOrder(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	follows := func(stream string) string {
		return fmt.Sprintf(`{"causationMessageStreamName":%q,"causationMessagePosition":0,"causationMessageGlobalPosition":1}`, stream)
	}
	dibs.ok(t, "write", "b-2", "Third", "--metadata", follows("a-2"))
	dibs.ok(t, "write", "a-2", "Second", "--metadata", follows("b-1"))
	dibs.ok(t, "write", "b-1", "First", "--metadata", follows("order-1"))
	dibs.ok(t, "write", "order-1", "Began", "--metadata", follows("b-2"))

	story := dibs.ok(t, "explain", "order-1", "--in", "a", "--in", "b")

	require.Equal(t, 2, strings.Count(story, "followed "), story)
	require.Contains(t, story, "First")
	require.Contains(t, story, "Second")
}

// The reservation names the streams that were written to with it, in whichever category they are.
func TestExplainTellsTheEventsThatTheReservationNames(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	defer store.Close()
	once := must.New(reservation.New(store, "rentals", nil))
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, deposit.key, func(_ context.Context, m handler.Message[deposit]) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{messagestore.To("ledger-7", messagestore.AnyVersion, messagestore.Follow(m.Message, deposited{m.Body.Amount}))}, nil
	}))
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
	require.NoError(t, err)
	require.NoError(t, must.New(consumer.New(store, commands, "rentals", mux, nil)).CatchUp(t.Context()))
	effect, err := once.Outcome(t.Context(), commands.Stream("123"), "AAA")
	require.NoError(t, err)
	require.Len(t, effect.Events, 1)

	told := dibs.ok(t, "explain", "account:command+reservation+rentals-123+AAA")

	require.Regexp(t, `(?m)^followed .* ledger-7@0 +Deposited +\{"amount":10\}$`, told)
	require.NotContains(t, told, "nothing yet")

	// The command is trimmed away, and its effect is there.
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"BBB", 20})
	require.NoError(t, err)
	require.NoError(t, must.New(consumer.New(store, commands, "rentals", mux, nil)).CatchUp(t.Context()))
	dibs.ok(t, "trim", "account:command-123", "--keep", "1", "--min-age", "0s", "--yes")

	told = dibs.ok(t, "explain", "account:command+reservation+rentals-123+AAA")

	require.Contains(t, told, "not in this store")
	require.Regexp(t, `(?m)^followed .* ledger-7@0 +Deposited +\{"amount":10\}$`, told)
	require.NotContains(t, told, "ledger-7@1")
}

// An operator's reason to park a command is told beside the handler's error, and alone if the handler was not called.
func TestExplainTellsTheReasonForWhichAnOperatorHadACommandParked(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"a running consumer": true, "a stopped consumer": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dibs := newShell(t)
			store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
			require.NoError(t, err)
			defer store.Close()
			once := must.New(reservation.New(store, "accounts", nil))
			delivered := make(chan struct{}, 1)
			mux := handler.New()
			handler.Register(mux, reservation.Inline(once, deposit.key, func(context.Context, handler.Message[deposit]) ([]messagestore.StreamWrite, error) {
				select {
				case delivered <- struct{}{}:
				default:
				}
				return nil, errors.New("the bank is closed")
			}))
			accounts := func(retry time.Duration) *consumer.Consumer {
				return must.New(consumer.New(store, commands, "accounts", mux, &consumer.Config{
					Logger: logger.Silent(), RedriveInterval: 5 * time.Millisecond,
					Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: retry, MaxBackoff: time.Millisecond}},
				}))
			}
			park := []string{"consumers", "park", "account:command", "accounts", "--reason", "the account was closed"}
			_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
			require.NoError(t, err)

			reason := "parked by an operator: the account was closed"
			if running {
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- accounts(consumer.Forever).Run(ctx) }()
				await.Receive(t, "the first delivery", delivered)
				dibs.ok(t, park...)
				await.True(t, "it is parked", func() bool { return strings.Contains(dibs.ok(t, "parked", "list"), " dead ") })
				stop()
				require.NoError(t, await.Receive(t, "the end of the consumer", ended))
				reason += "; its last error: .*the bank is closed"
			} else {
				require.Error(t, accounts(consumer.NoRetry).CatchUp(t.Context()))
				dibs.ok(t, park...)
				require.NoError(t, accounts(consumer.NoRetry).CatchUp(t.Context()))
			}

			told := dibs.ok(t, "explain", "account:command+reservation+accounts-123+AAA")
			require.Regexp(t, `(?m)^parked by accounts .* `+reason+`$`, told)
		})
	}
}

// A command whose handler fails is in the store, though its key is not reserved: while it is retried,
// when it is parked, and when it was redriven.
func TestExplainTellsACommandThatIsRetriedParkedAndRedriven(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	defer store.Close()
	once := must.New(reservation.New(store, "accounts", nil))
	fails := true
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, deposit.key, func(_ context.Context, m handler.Message[deposit]) ([]messagestore.StreamWrite, error) {
		if fails {
			return nil, errors.New("the bank is closed")
		}
		return []messagestore.StreamWrite{messagestore.To("account-123", messagestore.AnyVersion, messagestore.Follow(m.Message, deposited{m.Body.Amount}))}, nil
	}))
	catchUp := func(then consumer.FailureAction) error {
		return must.New(consumer.New(store, commands, "accounts", mux, &consumer.Config{
			Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: then},
		})).CatchUp(t.Context())
	}
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
	require.NoError(t, err)
	const stream = "account:command+reservation+accounts-123+AAA"
	require.Error(t, catchUp(consumer.StopConsumer))

	for _, args := range [][]string{{stream}, {"AAA", "--category", "account:command"}} {
		told := dibs.ok(t, append([]string{"explain"}, args...)...)
		require.Regexp(t, `^no command with the key AAA is reserved yet in account:command(\+reservation\+accounts)?-123`, told)
		require.Regexp(t, `(?m)^command .* account:command-123@0 +Deposit `, told)
		require.Regexp(t, `(?m)^consumer +accounts +has finished all before \d+: message 1 fails, attempt 1 since \S+Z: .*the bank is closed$`, told)
	}

	dibs.ok(t, "consumers", "pause", "account:command", "accounts")
	told := dibs.ok(t, "explain", stream)
	require.Regexp(t, `(?m): message 1 fails, .*the bank is closed; the consumer is paused since \S+Z: dibs consumers resume account:command accounts$`, told)
	dibs.ok(t, "write", "account:command-124", "Deposit", `{"ID":"BBB","Amount":10}`)
	told = dibs.ok(t, "explain", "account:command+reservation+accounts-124+BBB")
	require.Regexp(t, `(?m): message \d+ waits; the consumer is paused since \S+Z: dibs consumers resume account:command accounts$`, told)
	dibs.ok(t, "consumers", "resume", "account:command", "accounts")
	require.Regexp(t, `(?m): message \d+ waits behind another, or `, dibs.ok(t, "explain", "account:command+reservation+accounts-124+BBB"))

	require.NoError(t, catchUp(consumer.ParkMessage))
	told = dibs.ok(t, "explain", stream)
	require.Regexp(t, `(?m)^parked by accounts .* buried .*the bank is closed$`, told)
	require.NotContains(t, told, "message 1")

	fails = false
	dibs.ok(t, "parked", "redrive", "account:command", "accounts")
	require.NoError(t, catchUp(consumer.ParkMessage))
	told = dibs.ok(t, "explain", stream)
	require.Regexp(t, `(?m)^parked by accounts +account:command-123@0 +finished$`, told)
	require.Regexp(t, `(?m)^followed .* account-123@0 `, told)
}
