package account

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// Config changes how the component works. A nil *Config is a good one.
type Config struct {
	// Now tells the time that events are stamped with.
	//
	// Defaults to time.Now.
	Now func() time.Time

	// Logger receives a debug event for each command that is ignored.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// component handles the commands.
type component struct {
	store    *messagestore.Store
	accounts *entity.Store[Account]
	config   Config
}

// Handlers returns the handlers of an account's commands, for a consumer of [Commands].
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
	once, err := reservation.New(store, "accounts", &reservation.Config{Logger: c.config.Logger})
	if err != nil {
		return nil, err
	}
	// A command that the mux does not know stops the consumer: its sender is ahead of this
	// component, and the command is not to be lost.
	mux := handler.New()
	handler.On(mux, c.open)
	handler.On(mux, c.deposit)
	handler.Register(mux, reservation.Inline(once, Withdraw.Key, c.withdraw))
	handler.On(mux, c.close)
	return mux, nil
}

// open is idempotent by the account's state.
func (c *component) open(ctx context.Context, m handler.Message[Open]) error {
	account, version, err := c.accounts.Get(ctx, m.Body.AccountID)
	if err != nil {
		return err
	}
	if account.Open {
		return c.ignore(m.Message)
	}
	return c.write(ctx, m.Message, m.Body.AccountID, version,
		Opened{AccountID: m.Body.AccountID, Owner: m.Body.Owner, Processed: c.now()})
}

// deposit is idempotent by the command's place in the category.
func (c *component) deposit(ctx context.Context, m handler.Message[Deposit]) error {
	if m.Body.Amount <= 0 {
		return errAmount
	}
	account, version, err := c.accounts.Get(ctx, m.Body.AccountID)
	if err != nil {
		return err
	}
	if account.Processed(m.GlobalPosition) {
		return c.ignore(m.Message)
	}
	return c.write(ctx, m.Message, m.Body.AccountID, version,
		Deposited{AccountID: m.Body.AccountID, DepositID: m.Body.DepositID, Amount: m.Body.Amount, Processed: c.now(), Sequence: m.GlobalPosition})
}

// withdraw decides for the one command that takes the key. Its event is one write with the reservation.
func (c *component) withdraw(ctx context.Context, m handler.Message[Withdraw]) ([]messagestore.StreamWrite, error) {
	account, version, err := c.accounts.Get(ctx, m.Body.AccountID)
	if err != nil {
		return nil, err
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
	return []messagestore.StreamWrite{messagestore.To(Category.Stream(m.Body.AccountID), version, messagestore.Follow(m.Message, event))}, nil
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

// errAmount has the consumer park a command that can never be handled, for a person to
// look at, and move on.
var errAmount = handler.Park(errors.New("amount not positive"))

// write adds the event at the version that the decision was made on. If another
// writer was first it fails, and the consumer redelivers the command.
func (c *component) write(ctx context.Context, cause *messagestore.Message, accountID string, version messagestore.Version, event messagestore.Body) error {
	_, err := c.store.Write(ctx, Category.Stream(accountID), version, messagestore.Follow(cause, event))
	return err
}

func (c *component) ignore(m *messagestore.Message) error {
	c.config.Logger.Debug().Str("stream", string(m.Stream)).Int64("position", int64(m.Position)).Str("type", m.Type).Msg("ignored")
	return nil
}

func (c *component) now() time.Time { return c.config.Now().UTC().Truncate(time.Microsecond) }
