package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// The sizes of the case of a whole component, which handles commands to accounts, and the name of a
// contender.
const (
	// withdrawals is how many commands each account gets after it was opened and filled.
	withdrawals     = 18
	accountCommands = withdrawals + 2

	accountCallers = 64

	dibsOneAtATime = "Dibs, one at a time"
)

// Account returns the case of a whole component.
func Account() []measure.Case {
	return []measure.Case{{
		Name:  "account/end-to-end",
		Shows: "The account component: commands that are reserved, handled and answered with an event, 64 at a time",
		Contenders: []measure.Contender{
			{Name: dibs, Run: runAccounts(accountCallers)},
			{Name: dibsOneAtATime, Run: runAccounts(1)},
		},
	}}
}

// runAccounts sends commands, which is not measured, and measures how the component handles them,
// with the given concurrency.
func runAccounts(concurrency int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		return inDibs(ctx, cell, func(store *dibsStore) error {
			n := size(cell, 20, 100, 1000)
			if concurrency == 1 {
				n /= 10
			}
			commands := int64(n * accountCommands)
			if err := sendCommands(ctx, store.Store, n); err != nil {
				return err
			}

			first, second, err := account.Consumers(store.Store, &account.Config{Consumer: consumer.Config{Concurrency: concurrency, Logger: logger.Silent()}})
			if err != nil {
				return err
			}
			if err := second.CatchUp(ctx); err != nil { // it is there before the first makes a copy
				return err
			}
			err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
				return commands, errors.Join(first.CatchUp(ctx), second.CatchUp(ctx))
			})
			if err != nil {
				return err
			}
			var events, withdrawn int64
			err = store.pool.QueryRow(ctx, "select count(*), count(*) filter (where type = 'Withdrawn') from dibs.messages where category = $1",
				string(account.Category)).Scan(&events, &withdrawn)
			return errors.Join(err, cell.Check("events", events, commands), cell.Check("withdrawals", withdrawn, int64(n*withdrawals)))
		})
	}
}

// sendCommands writes all commands, to the accounts in turn.
func sendCommands(ctx context.Context, store *messagestore.Store, accounts int) error {
	ids := make([]string, accounts)
	for i := range ids {
		ids[i] = newID().String()
	}
	for command := range accountCommands {
		err := atOnce(accountCallers, accounts, func(i int) error {
			var body messagestore.Body
			switch command {
			case 0:
				body = account.Open{AccountID: ids[i], Owner: "Ann"}
			case 1:
				body = account.Deposit{AccountID: ids[i], DepositID: newID().String(), Amount: 100 * withdrawals}
			default:
				body = account.Withdraw{AccountID: ids[i], WithdrawalID: newID().String(), Amount: 100}
			}
			_, err := store.Write(ctx, account.Commands.Stream(ids[i]), messagestore.AnyVersion, body)
			return err
		})
		if err != nil {
			return fmt.Errorf("send commands: %w", err)
		}
	}
	return nil
}
