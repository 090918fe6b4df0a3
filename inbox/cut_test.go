package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/reservation"
)

var errCut = errors.New("the connection was cut")

// A cutConn is cut when the server's answer to COMMIT arrives, if deaf is set, or before COMMIT is sent,
// if mute is.
type cutConn struct {
	net.Conn
	deaf, mute *atomic.Bool
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("COMMIT\x00")) && c.deaf.CompareAndSwap(true, false) {
		c.Close()
		return 0, errCut
	}
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("commit\x00")) && c.mute.CompareAndSwap(true, false) {
		c.Close()
		return 0, errCut
	}
	return c.Conn.Write(b)
}

// U4: the transaction whose COMMIT the server has answered is not run again, and the one whose COMMIT it
// never got is.
func TestACommitThatIsCutIsToldAsItWas(t *testing.T) {
	t.Parallel()
	name := newName()
	prepare(t, "pgx", name)
	var deaf, mute atomic.Bool
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return &cutConn{conn, &deaf, &mute}, err
		}
	})
	driver := testkit.Must(postgres.New(pool, nil))
	t.Cleanup(func() { require.NoError(t, driver.Close()) }) // the connections beside the pool
	d, err := newDesk(driver, name, func(ctx context.Context, tx pgx.Tx, key string) error {
		_, err := tx.Exec(ctx, "insert into "+name+" values ($1)", key)
		return err
	}, func(ctx context.Context, tx pgx.Tx, key string) (n int, err error) {
		return n, tx.QueryRow(ctx, "select count(*) from "+name+" where key = $1 or $1 = ''", key).Scan(&n)
	})
	require.NoError(t, err)
	for _, test := range []struct {
		cut   *atomic.Bool
		calls int
	}{{&deaf, 1}, {&mute, 2}} {
		m := inbox.Request{ID: newName()}
		for _, undo := range []bool{false, true} {
			call, want, row := d.receive, reservation.Reserved, m.ID
			if undo {
				call, want, row = d.undo, reservation.Undone, "undone "+m.ID
			}
			calls := 0
			test.cut.Store(true)

			result, err := call(t.Context(), m, func() (doneWith, error) {
				calls++
				return doneWith{Answer: accepted{row}}, nil
			})

			require.NoError(t, err)
			require.False(t, test.cut.Load(), "nothing was cut")
			require.Equal(t, want, result.Outcome)
			require.JSONEq(t, `{"row":"`+row+`"}`, string(result.Answer))
			require.Equal(t, test.calls, calls)
			d.requireRows(t, row, 1)
		}
	}
}
