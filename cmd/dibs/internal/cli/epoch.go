package cli

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
)

type epochCommand struct {
	Show  epochShowCommand  `cmd:"" default:"1" help:"Print the epoch, which a failover and a restore change."`
	Raise epochRaiseCommand `cmd:"" help:"Tell running consumers of a rollback of the store."`
}

type epochShowCommand struct{}

// Help is printed below the command's usage.
func (epochShowCommand) Help() string {
	return `The epoch is the server's identifier, its timeline, which a failover and a restore to a moment change, and the number of times that the epoch was raised, with an id of the last. A part that the owner of the schema has no right to read is empty.

Examples:

    dibs epoch
    dibs epoch show --json`
}

// Run prints it.
func (epochShowCommand) Run(ctx context.Context, a *app) error {
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		epoch, err := store.Epoch(ctx)
		if err != nil {
			return err
		}
		if epoch == "" {
			return fmt.Errorf("the store of %s has no epoch: it cannot tell a rollback", a.origin)
		}
		return a.printEpoch(epoch)
	})
}

type epochRaiseCommand struct{}

// Help is printed below the command's usage.
func (epochRaiseCommand) Help() string {
	return `Run it after older files of a database were restored under running consumers, and before these reach the server. Consumers notice a failover, and a restore to a moment, by themselves. Each running consumer begins again at its checkpoint, at most 10 s later, and redelivers the messages since: the writes of their handlers may be lost. Where nothing is lost it does no harm.

Example:

    dibs epoch raise`
}

// Run raises it.
func (epochRaiseCommand) Run(ctx context.Context, a *app) error {
	return a.withPostgres(ctx, "epoch raise", func(conn *pgx.Conn) error {
		keeper, err := admin.New(conn, a.postgresConfig())
		if err != nil {
			return err
		}
		epoch, err := keeper.RaiseEpoch(ctx)
		if err != nil {
			return err
		}
		return a.printEpoch(epoch)
	})
}

// An epochLine is how an epoch is printed as JSON.
type epochLine struct {
	Epoch string `json:"epoch"`
}

func (a *app) printEpoch(epoch string) error {
	if a.JSON {
		return a.out.object(epochLine{epoch})
	}
	return a.out.line("%s", visible(epoch))
}
