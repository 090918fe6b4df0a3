package transfer

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/saga"
)

// The categories of messages.
const (
	Accounts messagestore.Category = "account"           // the events of accounts, for other services
	Outgoing messagestore.Category = "transfer:outgoing" // the commands to the bank, a stream for each order
)

// A Transfer is an order of a customer.
type Transfer struct {
	ID     string `json:"id"`   // the idempotence key of the order
	From   string `json:"from"` // an account
	To     string `json:"to"`   // an account elsewhere
	Amount int64  `json:"amount"`
}

// A Receipt is the bank's answer.
type Receipt struct {
	Number int64 `json:"number"` // of the payment
}

// Config changes how a [Service] works. Nil means all defaults.
type Config struct {
	// Answer is how long the bank may take to pay or refuse. Then the transfer is undone.
	//
	// Defaults to 10 minutes.
	Answer time.Duration

	// Deadline is after how long a transfer that has not ended is undone.
	//
	// Defaults to an hour.
	Deadline time.Duration

	// Verify checks that a webhook is the bank's, by its header and its body.
	//
	// Defaults to no check, which is for a network of the bank and the service alone.
	Verify func(header map[string][]string, body []byte) error

	// Lease is after how long another replica goes on with the work of a killed replica.
	//
	// Defaults to 10 seconds.
	Lease time.Duration

	// Logger receives the warnings of the parts.
	Logger logger.Logger
}

// A Service transfers money. Tx is the type of the store's transactions. Its methods are safe for
// concurrent use.
type Service[Tx any] struct {
	Transfers *saga.Saga[Transfer, Receipt]

	txs      *messagestore.TxStore[Tx]
	sql      SQL[Tx]
	config   Config
	orders   *inbox.Inbox[Tx]
	webhooks *inbox.Inbox[Tx]

	debited *saga.TxStep[Tx, Transfer, int64]
	paid    *saga.Ask[Transfer, Receipt]
}

// New returns the service over a store. See [OnSQLite] and [OnPostgres] for sql.
func New[Tx any](txs *messagestore.TxStore[Tx], sql SQL[Tx], config *Config) (*Service[Tx], error) {
	s := &Service[Tx]{txs: txs, sql: sql}
	if config != nil {
		s.config = *config
	}
	if s.config.Deadline == 0 {
		s.config.Deadline = time.Hour
	}
	var err error
	if s.orders, err = inbox.New(txs, "transfer", &inbox.Config{Logger: s.config.Logger}); err != nil {
		return nil, err
	}
	if s.webhooks, err = inbox.New(txs, "bank", &inbox.Config{Logger: s.config.Logger}); err != nil {
		return nil, err
	}
	s.debited = saga.NewTxStep("debited", txs, s.debit, s.giveBack, nil)
	s.paid = saga.NewAsk("paid", payOrder, cancelOrder, &saga.StepConfig{Timeout: s.config.Answer})
	s.Transfers, err = saga.New(txs.Store, "transfer", s.transfer, saga.Steps{s.debited, s.paid}, &saga.Config{
		Deadline: s.config.Deadline, Lease: s.config.Lease, Logger: s.config.Logger,
	})
	return s, err
}

// transfer is the saga. An error undoes the steps that began, the last first.
func (s *Service[Tx]) transfer(r *saga.Run, t Transfer) (Receipt, error) {
	if _, err := s.debited.Do(r, t); err != nil {
		return Receipt{}, err
	}
	return s.paid.Do(r, t)
}

// Run goes on with the transfers until ctx is done. Each replica of the service runs it.
func (s *Service[Tx]) Run(ctx context.Context) error { return s.Transfers.Run(ctx) }

// ToBank returns the relay that posts the commands to the bank. The commands of one order are sent
// in their order.
func (s *Service[Tx]) ToBank(url string, config *outbox.HTTPConfig) (*outbox.Relay, error) {
	bank, err := outbox.HTTP(url, config)
	if err != nil {
		return nil, err
	}
	return outbox.New(s.txs.Store, Outgoing, "tobank", bank, s.relaying())
}

// ToSink returns a relay that sends the events of accounts elsewhere, each account's in their
// order.
func (s *Service[Tx]) ToSink(name string, sink outbox.Sink) (*outbox.Relay, error) {
	return outbox.New(s.txs.Store, Accounts, name, sink, s.relaying())
}

func (s *Service[Tx]) relaying() *outbox.Config {
	return &outbox.Config{Lease: s.config.Lease, Logger: s.config.Logger}
}

// transact runs SQL in a transaction, and writes messages with it.
func (s *Service[Tx]) transact(ctx context.Context, f func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error)) error {
	_, err := s.txs.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		return f(ctx, tx)
	})
	return err
}
