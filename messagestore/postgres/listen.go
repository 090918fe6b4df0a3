package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// Listen implements [messagestore.Driver] over a pool, by LISTEN on an extra connection, made with
// the pool's configuration. It is not supported with [Config.NoNotify], nor through a pooler such
// as PgBouncer, which may pass the notification to another client.
func (d *Driver) Listen(ctx context.Context, heard func(category messagestore.Category, head messagestore.GlobalPosition)) error {
	if d.link.Pool() == nil || d.config.NoNotify {
		return fmt.Errorf("listen: %w", messagestore.ErrNotSupported)
	}
	conn, err := d.listener(ctx)
	if err != nil {
		return err
	}
	defer pglink.HangUp(ctx, conn)
	heard("", 0)
	prefix := notificationPrefix(d.config.Schema)
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
func (b *database) listener(ctx context.Context) (*pgx.Conn, error) {
	conn, pooled, err := b.link.ConnectApart(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", failed(err))
	}
	if pooled {
		err = messagestore.ErrNotSupported
	} else {
		_, err = conn.Exec(ctx, b.queries.listen)
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
