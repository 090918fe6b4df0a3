package cli

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
)

// An epochCommand is dibs epoch: it shows the epoch, or raises it after a rollback of the store.
type epochCommand struct {
	Show  epochShowCommand  `cmd:"" default:"1" help:"Print the epoch, which a failover and a restore change."`
	Raise epochRaiseCommand `cmd:"" help:"Tell running consumers of a rollback of the store."`
}

type epochShowCommand struct{}

func (epochShowCommand) Run(ctx context.Context, a *app) error {
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		epoch, err := store.Epoch(ctx)
		if err == nil && epoch == "" {
			err = fmt.Errorf("the store of %s has no epoch: it cannot tell a rollback", a.origin)
		}
		if err != nil {
			return err
		}
		return a.out.tell(fields{"epoch", epoch}, "%s", epoch)
	})
}

type epochRaiseCommand struct{}

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
		return a.out.tell(fields{"epoch", epoch}, "%s", epoch)
	})
}
