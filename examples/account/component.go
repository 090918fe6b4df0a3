package account

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// Config configures the component. nil means the defaults.
type Config struct {
	// Now returns the time for the events.
	//
	// Defaults to time.Now.
	Now func() time.Time

	// Consumer is for both consumers.
	//
	// Defaults to retries for ten seconds. A retry is needed if the account has changed since the
	// handler read it: the other consumer may have changed it, or another process while one takes
	// over from the other. The handler then reads and decides again.
	Consumer consumer.Config
}

// Serve handles commands until ctx ends: the part of a service's main function that
// follows opening the store.
func Serve(ctx context.Context, store *messagestore.Store, config *Config) error {
	commands, copies, err := Consumers(store, config)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return copies.Run(ctx) })
	group.Go(func() error { return commands.Run(ctx) })
	return group.Wait()
}

// Consumers returns the component's two consumers: of the commands, and of the copies of
// withdrawals that the first makes. They have one name and one mux.
func Consumers(store *messagestore.Store, config *Config) (commands, copies *consumer.Consumer, err error) {
	var c Config
	if config != nil {
		c = *config
	}
	if c.Consumer.Errors == (consumer.ErrorPolicy{}) {
		c.Consumer.Errors.Retry = consumer.Retry{For: 10 * time.Second, MaxBackoff: time.Second}
	}
	mux, err := Handlers(store, &c)
	if err != nil {
		return nil, nil, err
	}
	if commands, err = consumer.New(store, Commands, name, mux, &c.Consumer); err != nil {
		return nil, nil, err
	}
	copies, err = consumer.New(store, Copies, name, mux, &c.Consumer)
	return commands, copies, err
}

// component handles the commands.
type component struct {
	store    *messagestore.Store
	accounts *entity.Store[Account]
	config   Config
}

// Handlers returns the handlers for commands to accounts, for the consumers of [Commands] and
// [Copies].
func Handlers(store *messagestore.Store, config *Config) (*handler.Mux, error) {
	c := &component{store: store}
	if config != nil {
		c.config = *config
	}
	if c.config.Now == nil {
		c.config.Now = time.Now
	}
	var err error
	if c.accounts, err = entity.New(store, Category, Projection(), nil); err != nil {
		return nil, err
	}
	once, err := reservation.New(store, name, &reservation.Config{Logger: c.config.Consumer.Logger})
	if err != nil {
		return nil, err
	}
	// A command that the mux does not know stops the consumer: its sender is ahead of this
	// component, and the command is not to be lost.
	mux := handler.New()
	handler.Register(mux, reservation.Initiate(once, c.open))
	handler.Register(mux, reservation.Inline(once, Deposit.Key, c.deposit))
	handler.Register(mux, reservation.Copy(once, Withdraw.Key, c.withdraw))
	handler.On(mux, c.close)
	return mux, nil
}

// open returns the first message of the account's stream.
func (c *component) open(m handler.Message[Open]) (messagestore.StreamName, messagestore.Body) {
	return Category.Stream(m.Body.AccountID), Opened{AccountID: m.Body.AccountID, Owner: m.Body.Owner, Processed: c.now()}
}

// deposit decides for the one command that takes the key. Its event is one write with the
// reservation.
func (c *component) deposit(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
	account, version, err := c.accounts.Get(ctx, m.Body.AccountID)
	switch {
	case err != nil:
		return nil, err
	case m.Body.Amount <= 0:
		return nil, errAmount
	case !account.Open:
		return nil, errNotOpen
	}
	event := Deposited{AccountID: m.Body.AccountID, DepositID: m.Body.DepositID, Amount: m.Body.Amount, Processed: c.now()}
	return []messagestore.StreamWrite{messagestore.To(Category.Stream(m.Body.AccountID), version, messagestore.Follow(m.Message, event))}, nil
}

// withdraw is called by the second consumer, with the copy of the one command that took the key.
// The copy may be redelivered: that it was handled is seen from the account, by the copy's place in
// its category.
func (c *component) withdraw(ctx context.Context, m handler.Message[Withdraw]) error {
	account, version, err := c.accounts.Get(ctx, m.Body.AccountID)
	if err != nil {
		return err
	}
	if account.Processed(m.GlobalPosition) {
		return c.ignore(m.Message)
	}
	var event messagestore.Body = Withdrawn{
		AccountID: m.Body.AccountID, WithdrawalID: m.Body.WithdrawalID, Amount: m.Body.Amount,
		Processed: c.now(), Sequence: m.GlobalPosition,
	}
	if reason := refuse(account, m.Body.Amount); reason != "" {
		event = WithdrawalRejected{
			AccountID: m.Body.AccountID, WithdrawalID: m.Body.WithdrawalID, Amount: m.Body.Amount,
			Reason: reason, Processed: c.now(), Sequence: m.GlobalPosition,
		}
	}
	return c.write(ctx, m.Message, m.Body.AccountID, version, event)
}

// refuse returns why an account does not pay out an amount, or "".
func refuse(account Account, amount Money) string {
	switch {
	case !account.Open:
		return "account not open"
	case account.Closed:
		return "account closed"
	case amount <= 0:
		return "amount not positive"
	case account.Balance < amount:
		return "insufficient funds"
	}
	return ""
}

// close is idempotent by the account's state.
func (c *component) close(ctx context.Context, m handler.Message[Close]) error {
	account, version, err := c.accounts.Get(ctx, m.Body.AccountID)
	if err != nil {
		return err
	}
	if !account.Open || account.Closed {
		return c.ignore(m.Message)
	}
	return c.write(ctx, m.Message, m.Body.AccountID, version, Closed{AccountID: m.Body.AccountID, Processed: c.now()})
}

// The errors of deposits that need a person: the consumer parks the messages, and goes on.
var (
	errAmount  = handler.Park(errors.New("amount not positive"))
	errNotOpen = handler.Park(errors.New("account not open"))
)

// write adds the event at the version that the decision was made on. If another
// writer was first it fails, and the consumer redelivers the message.
func (c *component) write(ctx context.Context, cause *messagestore.Message, accountID string, version messagestore.Version, event messagestore.Body) error {
	_, err := c.store.Write(ctx, Category.Stream(accountID), version, messagestore.Follow(cause, event))
	return err
}

func (c *component) ignore(m *messagestore.Message) error {
	c.config.Consumer.Logger.Debug().Str("stream", string(m.Stream)).Int64("position", int64(m.Position)).Str("type", m.Type).Msg("ignored")
	return nil
}

func (c *component) now() time.Time { return c.config.Now().UTC().Truncate(time.Microsecond) }
