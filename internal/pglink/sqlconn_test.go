package pglink_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/testkit"
)

// A connector's first connections are bad, as those are that cancelled calls have closed.
type connector struct{ bad int }

func (c *connector) Connect(context.Context) (driver.Conn, error) {
	if c.bad > 0 {
		c.bad--
		return nil, driver.ErrBadConn
	}
	return idle{}, nil
}

func (c *connector) Driver() driver.Driver { return nil }

type idle struct{ driver.Conn }

func (idle) Close() error { return nil }

func TestAConnectionIsAskedForUntilOneIsGood(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(&connector{bad: 10})
	defer db.Close()

	conn := testkit.Do(pglink.SQLConn(t.Context(), db))(t)

	require.NoError(t, conn.Close())
	away := sql.OpenDB(&connector{bad: 1_000_000})
	defer away.Close()
	require.ErrorIs(t, testkit.ErrorOf(pglink.SQLConn(t.Context(), away)), driver.ErrBadConn)
}
