package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// The parameter of heads.
var headsOIDs = []uint32{pgtype.TextArrayOID}

// Heads implements [messagestore.Driver]. It is supported over a pool only: a connection or a
// transaction has its own user.
func (d *Driver) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	if d.link.Pool() == nil {
		return nil, fmt.Errorf("heads of categories: %w", messagestore.ErrNotSupported)
	}
	size := 20
	for _, category := range categories {
		size += 4 + len(category)
	}
	e := pglink.Encoder{Buffer: make([]byte, 0, size)}
	e.Array(pgtype.TextOID, len(categories))
	for _, category := range categories {
		pglink.Element(&e, category)
	}
	var heads []messagestore.GlobalPosition
	err := d.with(ctx, func(db DB) error {
		return failed(d.link.Exec(ctx, pglink.Conn(db), d.queries.heads, headsOIDs, e.Parameters(), func(columns [][]byte) error {
			found, err := pglink.Int8s(columns[0])
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

// Listen implements [messagestore.Driver] over a pool, by LISTEN on an extra connection, made with
// the pool's configuration. It is not supported with [Config.NoNotify], nor through a pooler such
// as PgBouncer, which may pass the notification to another client.
func (d *Driver) Listen(ctx context.Context, heard func(category messagestore.Category, head messagestore.GlobalPosition)) error {
	if d.link.Pool() == nil || !d.notify {
		return fmt.Errorf("listen: %w", messagestore.ErrNotSupported)
	}
	conn, err := d.listener(ctx)
	if err != nil {
		return err
	}
	defer pglink.HangUp(ctx, conn)
	heard("", 0)
	prefix := notificationPrefix(d.schema)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen: %w", failed(err))
		}
		if rest, ours := strings.CutPrefix(n.Payload, prefix); ours {
			heard(parseNotification(rest))
		}
	}
}

// listener returns a connection that listens.
func (d *Driver) listener(ctx context.Context) (*pgx.Conn, error) {
	conn, pooled, err := d.link.ConnectApart(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", failed(err))
	}
	if pooled {
		err = messagestore.ErrNotSupported
	} else {
		_, err = conn.Exec(ctx, d.queries.listen)
	}
	if err != nil {
		pglink.HangUp(ctx, conn)
		return nil, fmt.Errorf("listen: %w", failed(err))
	}
	return conn, nil
}

// notificationPrefix begins the payload of a notification about messages in a schema. All schemas
// share one channel, because its name has no room for theirs.
func notificationPrefix(schema string) string { return pglink.InSchema("dibs.", schema) }

// parseNotification parses the rest of the payload: a category, a dash, which no category has,
// and the position of a message in it.
func parseNotification(text string) (messagestore.Category, messagestore.GlobalPosition) {
	category, position, _ := strings.Cut(text, "-")
	head, err := strconv.ParseInt(position, 10, 64)
	if err != nil || head < 0 {
		head = 0
	}
	return messagestore.Category(category), messagestore.GlobalPosition(head)
}
