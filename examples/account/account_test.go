package account_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(1998, time.October, 5, 12, 0, 0, 0, time.UTC)

// A fixture is the component over a store of its own.
type fixture struct {
	*messagestore.Store
	t *testing.T
}

func setup(t *testing.T) fixture {
	t.Helper()
	return fixture{testkit.Must(messagestore.New(memory.New(), nil)), t}
}

// send writes commands to the account, each as a message of its own.
func (f fixture) send(id string, commands ...messagestore.Body) {
	f.t.Helper()
	for _, command := range commands {
		_, err := f.Write(f.t.Context(), account.Commands.Stream(id), messagestore.AnyVersion, command)
		require.NoError(f.t, err)
	}
}

// handle runs the component until nothing is left.
func (f fixture) handle() {
	f.t.Helper()
	require.NoError(f.t, f.handleWith(&account.Config{Now: func() time.Time { return now }, Consumer: once}))
}

// once delivers a message once: an error is one at once.
var once = consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}}

func (f fixture) handleWith(config *account.Config) error {
	f.t.Helper()
	commands, copies, err := account.Consumers(f.Store, config)
	require.NoError(f.t, err)
	for _, c := range []*consumer.Consumer{copies, commands, copies} { // a consumer that has read the copies is known
		err = errors.Join(err, c.CatchUp(f.t.Context()))
	}
	return err
}

// parked returns how many commands were put aside for a person to look at.
func (f fixture) parked() (n int) {
	f.t.Helper()
	all, err := operate.Consumers(f.t.Context(), f.Store, account.Commands)
	require.NoError(f.t, err)
	for _, c := range all {
		if c.Name == "accounts" {
			n = c.Parked
		}
	}
	return n
}

// events returns the types of an account's events, and the account they add up to.
func (f fixture) events(id string) ([]string, account.Account) {
	f.t.Helper()
	var types []string
	for m, err := range f.ReadStream(f.t.Context(), account.Category.Stream(id), 0) {
		require.NoError(f.t, err)
		types = append(types, m.Type)
	}
	accounts := testkit.Must(entity.New(f.Store, account.Category, account.Projection(), nil))
	a, _, err := accounts.Get(f.t.Context(), id)
	require.NoError(f.t, err)
	return types, a
}

func TestOpenBeginsTheAccountsStreamOnceAndCloseIsIdempotentByState(t *testing.T) {
	f := setup(t)
	f.send("1", account.Open{AccountID: "1", Owner: "Ann"}, account.Open{AccountID: "1", Owner: "Ann"}, account.Open{AccountID: "1", Owner: "Bob"},
		account.Close{AccountID: "1"}, account.Close{AccountID: "1"}, account.Open{AccountID: "1", Owner: "Ann"})

	f.handle()

	types, a := f.events("1")
	require.Equal(t, []string{"Opened", "Closed"}, types)
	require.Equal(t, account.Account{Owner: "Ann", Open: true, Closed: true}, a)
	require.Equal(t, 1, f.parked(), "another owner's command is for a person to look at")
}

func TestDepositIsKeptOnceForItsMessageID(t *testing.T) {
	f := setup(t)
	deposit := messagestore.Envelope{ID: uuid.Must(uuid.NewV7()), Body: account.Deposit{AccountID: "1", DepositID: "a", Amount: 500}}
	f.send("1", account.Open{AccountID: "1"}, deposit, deposit, deposit)

	f.handle()

	types, a := f.events("1")
	require.Equal(t, []string{"Opened", "Deposited"}, types)
	require.Equal(t, account.Money(500), a.Balance)
}

func TestDepositIsHandledOnceHoweverOftenItIsSent(t *testing.T) {
	f := setup(t)
	deposit := account.Deposit{AccountID: "1", DepositID: "a", Amount: 500}
	f.send("1", account.Open{AccountID: "1"}, deposit, deposit)

	f.handle()

	types, a := f.events("1")
	require.Equal(t, []string{"Opened", "Deposited"}, types)
	require.Equal(t, account.Money(500), a.Balance)
}

// The consumers lose their place, as those do that are killed before their checkpoints, and every
// message is delivered again.
func TestMessagesDeliveredAgainChangeNothing(t *testing.T) {
	f := setup(t)
	f.send("1", account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: 500},
		account.Withdraw{AccountID: "1", WithdrawalID: "w", Amount: 200}, account.Withdraw{AccountID: "1", WithdrawalID: "x", Amount: 900})
	f.handle()
	types, a := f.events("1")
	require.Equal(t, []string{"Opened", "Deposited", "Withdrawn", "WithdrawalRejected"}, types)

	mux := testkit.Must(account.Handlers(f.Store, nil))
	for _, category := range []messagestore.Category{account.Commands, account.Copies} {
		again := testkit.Must(consumer.New(f.Store, category, "again", asBefore(t, mux), nil))
		require.NoError(t, again.CatchUp(t.Context()))
	}

	typesAgain, accountAgain := f.events("1")
	require.Equal(t, types, typesAgain)
	require.Equal(t, a, accountAgain)
}

func TestWithdrawIsHandledOnceHoweverOftenItIsSent(t *testing.T) {
	f := setup(t)
	withdraw := account.Withdraw{AccountID: "1", WithdrawalID: "w", Amount: 200}
	f.send("1", account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: 500},
		withdraw, withdraw, withdraw)

	f.handle()
	f.send("1", withdraw)
	f.handle()

	types, a := f.events("1")
	require.Equal(t, []string{"Opened", "Deposited", "Withdrawn"}, types)
	require.Equal(t, account.Money(300), a.Balance)
}

func TestWithdrawalIsRejected(t *testing.T) {
	for _, test := range []struct {
		name     string
		commands []messagestore.Body
		amount   account.Money
		reason   string
	}{
		{"NotOpen", nil, 1, "account not open"},
		{"Closed", []messagestore.Body{account.Open{AccountID: "1"}, account.Close{AccountID: "1"}}, 1, "account closed"},
		{"Short", []messagestore.Body{account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: 99}}, 100, "insufficient funds"},
		{"Nothing", []messagestore.Body{account.Open{AccountID: "1"}}, 0, "amount not positive"},
		{"Negative", []messagestore.Body{account.Open{AccountID: "1"}}, -5, "amount not positive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := setup(t)
			f.send("1", test.commands...)
			f.send("1", account.Withdraw{AccountID: "1", WithdrawalID: "w", Amount: test.amount})

			f.handle()

			m, err := f.Last(t.Context(), account.Category.Stream("1"))
			require.NoError(t, err)
			rejected, err := messagestore.Decode[account.WithdrawalRejected](m)
			require.NoError(t, err)
			require.Equal(t, test.reason, rejected.Reason)
			require.Equal(t, now, rejected.Processed)
		})
	}
}

// Two sends with one key that ask for different things cannot be told apart by
// the key: the second is put aside for a person to look at, never dropped.
func TestKeyUsedForSomethingElseIsParked(t *testing.T) {
	f := setup(t)
	f.send("1", account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: 500},
		account.Withdraw{AccountID: "1", WithdrawalID: "w", Amount: 200}, account.Withdraw{AccountID: "1", WithdrawalID: "w", Amount: 300})

	f.handle()

	_, a := f.events("1")
	require.Equal(t, account.Money(300), a.Balance)
	require.Equal(t, 1, f.parked())
}

func TestDepositOfNothingIsParked(t *testing.T) {
	f := setup(t)
	f.send("1", account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: -500},
		account.Deposit{AccountID: "1", DepositID: "b", Amount: 500})

	f.handle()

	types, a := f.events("1")
	require.Equal(t, []string{"Opened", "Deposited"}, types)
	require.Equal(t, account.Money(500), a.Balance)
	require.Equal(t, 1, f.parked())
}

func TestDepositBeforeTheAccountIsOpenIsParked(t *testing.T) {
	f := setup(t)
	f.send("1", account.Deposit{AccountID: "1", DepositID: "a", Amount: 500}, account.Open{AccountID: "1"})

	f.handle()

	types, _ := f.events("1")
	require.Equal(t, []string{"Opened"}, types)
	require.Equal(t, 1, f.parked())
}

// A sender that is ahead of this component is waited for, not passed over.
func TestUnknownCommandStopsTheConsumer(t *testing.T) {
	f := setup(t)
	f.send("1", messagestore.Raw{Type: "Freeze", Data: []byte("{}")})

	require.ErrorIs(t, f.handleWith(&account.Config{Consumer: once}), handler.ErrUnknownType)
}

func TestEventsFollowTheirCommand(t *testing.T) {
	for _, test := range []struct {
		command messagestore.Body
		cause   messagestore.StreamName
	}{
		{account.Open{AccountID: "1"}, account.Commands.Stream("1")},
		{account.Withdraw{AccountID: "1", WithdrawalID: "w"}, account.Copies.Stream("1").With("w")},
	} {
		f := setup(t)
		command := messagestore.Envelope{Body: test.command}
		command.Metadata.CorrelationStream = "branch-7"
		f.send("1", command)

		f.handle()

		event, err := f.Last(t.Context(), account.Category.Stream("1"))
		require.NoError(t, err)
		cause, err := f.Last(t.Context(), test.cause)
		require.NoError(t, err)
		require.True(t, event.Metadata.Follows(cause))
		require.True(t, event.Metadata.Correlated("branch"))
	}
}

// asBefore is a handler that is not told that another consumer calls it, as if the one before had
// lost its place.
func asBefore(t *testing.T, mux *handler.Mux) consumer.Handler {
	t.Helper()
	return handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error { return mux.Handle(t.Context(), m) })
}

// An event that two processes decide on at once, one of which was paused past its lease, is written
// by one of them: the other's version is taken, and it has to decide again.
func TestTwoConsumersAtOnceDecideOnce(t *testing.T) {
	f := setup(t)
	f.send("1", account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: 500})
	for range 50 {
		f.send("1", account.Withdraw{AccountID: "1", WithdrawalID: uuid.NewString(), Amount: 20})
	}
	errs := make(chan error, 2)
	for _, category := range []messagestore.Category{account.Commands, account.Copies} {
		for _, name := range []string{"left", "right"} {
			mux := testkit.Must(account.Handlers(f.Store, nil))
			c := testkit.Must(consumer.New(f.Store, category, name, asBefore(t, mux), &consumer.Config{
				Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: time.Minute, MaxBackoff: time.Millisecond}},
			}))
			go func() { errs <- c.CatchUp(t.Context()) }()
		}
		require.NoError(t, errors.Join(testkit.Receive(t, "a consumer", errs), testkit.Receive(t, "the other consumer", errs)))
	}
	f.handle()

	types, a := f.events("1")
	require.Len(t, types, 52)
	require.Equal(t, account.Money(0), a.Balance)
}

func TestStopsInTheMiddleAndGoesOn(t *testing.T) {
	f := setup(t)
	f.send("1", account.Open{AccountID: "1"}, account.Deposit{AccountID: "1", DepositID: "a", Amount: 500})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, account.Serve(ctx, f.Store, nil))

	f.handle()

	_, a := f.events("1")
	require.Equal(t, account.Money(500), a.Balance)
}
