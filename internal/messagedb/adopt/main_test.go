package adopt_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/messagedb/adopt"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/tier"
)

func TestMain(m *testing.M) {
	if !tier.Changed() {
		return // see tier.NeedsChange
	}
	tier.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

// patient returns the configuration of an adoption in small steps, which gets its locks however
// long the machine takes.
func patient(progress func(adopt.Progress)) *adopt.Config {
	return &adopt.Config{RangeMessages: 50, Progress: progress, LockTimeout: 10 * time.Second, LockTries: 30}
}

// adoptPatiently adopts, and waits for the sessions of a process that was killed.
func adoptPatiently(ctx context.Context, url string, config *adopt.Config) (*adopt.Adoption, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*await.Limit)
	defer cancel()
	for {
		done, err := adopt.Run(ctx, connector(url), config)
		if !errors.Is(err, adopt.ErrRunning) {
			return done, err
		}
	}
}

func connector(url string) adopt.Connect {
	return func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, url) }
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := must.Do(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// connectAs returns a connection of a new user with the right to create in the database.
func connectAs(t *testing.T, url, attributes string) (*pgx.Conn, string) {
	t.Helper()
	config := must.Do(pgx.ParseConfig(url))(t)
	admin := connect(t, url)
	user, password := "test_"+strings.ToLower(rand.Text()), rand.Text()
	do(t, admin, fmt.Sprintf("create role %s login password '%s' %s; grant create on database %s to %[1]s", user, password, attributes, config.Database))
	t.Cleanup(func() {
		// Before the database is dropped, while the user's objects can be named.
		must.Do(admin.Exec(context.WithoutCancel(t.Context()), "drop owned by "+user+" cascade; drop role "+user))(t)
	})
	config.User, config.Password = user, password
	conn := must.Do(pgx.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn, user
}

func one[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	rows := must.Do(conn.Query(t.Context(), sql, args...))(t)
	return must.Do(pgx.CollectExactlyOneRow(rows, pgx.RowTo[T]))(t)
}
