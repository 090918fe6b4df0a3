package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pgschema"
	"github.com/dibs-go/dibs/messagestore"
)

var (
	_ messagestore.HeadsDriver     = (*Driver)(nil)
	_ messagestore.ListeningDriver = (*Driver)(nil)
)

var (
	//go:embed sql/heads.sql
	headsSQL string
	//go:embed sql/listen.sql
	listenSQL string
)

// The parameter of heads.
var headsOIDs = []uint32{pgtype.TextArrayOID}

// Heads implements [messagestore.HeadsDriver]. It is supported over a pool: what else a
// driver may be over has a user who did not ask for it.
func (d *Driver) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if d.pool == nil {
		return nil, fmt.Errorf("heads of categories: %w", messagestore.ErrNotSupported)
	}
	size := 20
	for _, category := range categories {
		size += 4 + len(category)
	}
	e := encoder{buffer: make([]byte, 0, size)}
	e.array(pgtype.TextOID, len(categories))
	for _, category := range categories {
		element(&e, category)
	}
	var heads []messagestore.GlobalPosition
	err := d.with(ctx, func(db DB) error {
		return d.failed(d.exec(ctx, connOf(db), d.queries.heads, headsOIDs, e.parameters(), func(columns [][]byte) error {
			found, err := int8s(columns[0])
			heads = make([]messagestore.GlobalPosition, len(found))
			for i, head := range found {
				heads[i] = messagestore.GlobalPosition(head)
			}
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return heads, nil
}

// Listen implements [messagestore.ListeningDriver], over a pool, by LISTEN on a
// connection of its own, made as the pool's are, and not one of them. It is not
// supported with [Config.NoNotify], nor through a pooler such as PgBouncer, which may
// have another client hear what was meant for this one.
func (d *Driver) Listen(ctx context.Context, heard func(category messagestore.Category, head messagestore.GlobalPosition)) error {
	if d.invalid != nil {
		return d.invalid
	}
	if d.pool == nil || !d.notify {
		return fmt.Errorf("listen: %w", messagestore.ErrNotSupported)
	}
	conn, err := d.listener(ctx)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	heard("", 0)
	prefix := notificationPrefix(d.schema)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen: %w", d.failed(err))
		}
		if rest, ours := strings.CutPrefix(n.Payload, prefix); ours {
			heard(parseNotification(rest))
		}
	}
}

// listener returns a connection that listens.
func (d *Driver) listener(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config := d.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, fmt.Errorf("listen: %w", safe(err))
		}
	}
	config.ConnConfig.OnNotification = nil // it is for the pool's connections, and we wait for ours
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", safe(err))
	}
	if config.AfterConnect != nil {
		err = config.AfterConnect(ctx, conn)
	}
	if err == nil {
		err = d.listenOn(ctx, conn)
	}
	if err != nil {
		hangUp(ctx, conn)
		return nil, fmt.Errorf("listen: %w", d.failed(err))
	}
	return conn, nil
}

func (d *Driver) listenOn(ctx context.Context, conn *pgx.Conn) error {
	mark, err := d.check(ctx, conn)
	if err != nil {
		return err
	}
	if mark.pooled {
		return messagestore.ErrNotSupported
	}
	_, err = conn.Exec(ctx, d.queries.listen)
	return err
}

// hangUp says goodbye to the server, if that takes no time.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn.Close(ctx)
}

// notificationPrefix begins what is notified of messages in a schema. The channel is
// one for all schemas: its name has no room for theirs.
func notificationPrefix(schema string) string { return pgschema.Rename("dibs.", schema) }

// parseNotification takes apart what comes after the prefix: a category, and after a
// dash, which no category has, the position of a message in it.
func parseNotification(text string) (messagestore.Category, messagestore.GlobalPosition) {
	category, position, _ := strings.Cut(text, "-")
	head, err := strconv.ParseInt(position, 10, 64)
	if err != nil || head < 0 {
		head = 0
	}
	return messagestore.Category(category), messagestore.GlobalPosition(head)
}
