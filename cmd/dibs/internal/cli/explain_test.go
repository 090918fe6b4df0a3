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
	"github.com/dibs-go/dibs/internal/testkit"
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
	store := testkit.Must(messagestore.New(driver, nil))
	send(store)

	once := testkit.Must(reservation.New(store, "accounts", nil))
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
		c := testkit.Must(consumer.New(store, category, "accounts", mux, &consumer.Config{Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}}))
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

	dibs.script(t, "explain", nil, nil)
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
		_, err := testkit.Must(reservation.New(store, "receipts", nil)).Reserve(t.Context(), source, "a+b")
		require.NoError(t, err)
	})
	dibs.script(t, "explain-named", nil, nil)
}

func TestStoryOfAnEntity(t *testing.T) {
	t.Parallel()
	dibs := bank(t, func(store *messagestore.Store) {
		_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
		require.NoError(t, err)
	})

	dibs.script(t, "explain-entity", nil, nil)
}

func TestStoryOfAParkedCommand(t *testing.T) {
	t.Parallel()
	dibs := bank(t, func(store *messagestore.Store) {
		_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", -1}, deposit{"BBB", -1})
		require.NoError(t, err)
	})

	dibs.script(t, "explain-parked", nil, nil)
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
	newShell(t).script(t, "explain-order", nil, nil)
}

// The reservation names the streams that were written to with it, in whichever category they are.
func TestExplainTellsTheEventsThatTheReservationNames(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	defer store.Close()
	once := testkit.Must(reservation.New(store, "rentals", nil))
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, deposit.key, func(_ context.Context, m handler.Message[deposit]) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{messagestore.To("ledger-7", messagestore.AnyVersion, messagestore.Follow(m.Message, deposited{m.Body.Amount}))}, nil
	}))
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
	require.NoError(t, err)
	require.NoError(t, testkit.Must(consumer.New(store, commands, "rentals", mux, nil)).CatchUp(t.Context()))
	effect, err := once.Outcome(t.Context(), commands.Stream("123"), "AAA")
	require.NoError(t, err)
	require.Len(t, effect.Events, 1)

	told := dibs.ok(t, "explain", "account:command+reservation+rentals-123+AAA")

	require.Regexp(t, `(?m)^followed .* ledger-7@0 +Deposited +\{"amount":10\}$`, told)
	require.NotContains(t, told, "nothing yet")

	// The command is trimmed away, and its effect is there.
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"BBB", 20})
	require.NoError(t, err)
	require.NoError(t, testkit.Must(consumer.New(store, commands, "rentals", mux, nil)).CatchUp(t.Context()))
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
			once := testkit.Must(reservation.New(store, "accounts", nil))
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
				return testkit.Must(consumer.New(store, commands, "accounts", mux, &consumer.Config{
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
				testkit.Receive(t, "the first delivery", delivered)
				dibs.ok(t, park...)
				testkit.AwaitTrue(t, "it is parked", func() bool { return strings.Contains(dibs.ok(t, "parked", "list"), " dead ") })
				stop()
				require.NoError(t, testkit.Receive(t, "the end of the consumer", ended))
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
	once := testkit.Must(reservation.New(store, "accounts", nil))
	fails := true
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, deposit.key, func(_ context.Context, m handler.Message[deposit]) ([]messagestore.StreamWrite, error) {
		if fails {
			return nil, errors.New("the bank is closed")
		}
		return []messagestore.StreamWrite{messagestore.To("account-123", messagestore.AnyVersion, messagestore.Follow(m.Message, deposited{m.Body.Amount}))}, nil
	}))
	catchUp := func(then consumer.FailureAction) error {
		return testkit.Must(consumer.New(store, commands, "accounts", mux, &consumer.Config{
			Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: then},
		})).CatchUp(t.Context())
	}
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
	require.NoError(t, err)
	require.Error(t, catchUp(consumer.StopConsumer))

	dibs.script(t, "explain-retried", store, map[string]func(){
		"it is parked": func() { require.NoError(t, catchUp(consumer.ParkMessage)) },
		"it is handled": func() {
			fails = false
			require.NoError(t, catchUp(consumer.ParkMessage))
		},
	})
}
