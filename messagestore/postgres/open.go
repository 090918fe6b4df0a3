package postgres

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/messagestore"
)

// errInvalidURL does not show the URL, which may hold a password.
var errInvalidURL = messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "database URL", nil,
	"it is not one that PostgreSQL's clients know: postgres://user@host:5432/database")

// connectTimeout bounds how long one attempt to connect takes, unless the URL says
// otherwise.
const connectTimeout = 10 * time.Second

// Open returns a driver over a pool of its own, which Close closes, once it has
// reached the database and found it good: see [ErrUnsafeSettings], [ErrNotMigrated]
// and [ErrSchemaTooNew]. The URL is one that [pgxpool.ParseConfig] knows, with
// pool_max_conns and the like; a connection gives up after 10 seconds unless it has
// connect_timeout, and calls itself dibs unless it has application_name. One whose
// other end is gone without a word is given up after 30 seconds, on systems other than
// Linux after as long as they take; a pool of yours does as its DialFunc says. No error
// shows the URL or its password. Of several hosts the first is taken that answers, and with
// target_session_attrs=read-write the first that is no standby. One that is not this machine, and that the
// URL allows to be talked to in the clear, is logged.
func Open(ctx context.Context, url string, config *Config) (*Driver, error) {
	poolConfig, err := parse(url)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if host := inTheClear(poolConfig.ConnConfig); host != "" && config != nil {
		config.Logger.Warn().Str("host", host).Msg("the connection may not be encrypted: sslmode=verify-full in the URL sees to it, and to whom it is with")
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("open: %w", safe(err))
	}
	d := New(pool, config)
	d.close = pool.Close
	if err := d.with(ctx, func(DB) error { return nil }); err != nil {
		closeWithin(ctx, pool)
		return nil, fmt.Errorf("open: %w", err)
	}
	return d, nil
}

// parse returns what a pool of our own is like.
func parse(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errInvalidURL
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "dibs"
	}
	config.ConnConfig.DialFunc = dial
	WatchReplication(config.ConnConfig)
	return config, nil
}

// inTheClear returns a host that is not this machine, and to which what is sent may be read on the way, or "".
func inTheClear(c *pgx.ConnConfig) string {
	open := func(host string, secret *tls.Config) bool {
		here := host == "localhost" || net.ParseIP(host).IsLoopback()
		network, _ := pgconn.NetworkAddress(host, c.Port)
		return secret == nil && network != "unix" && !here
	}
	if open(c.Host, c.TLSConfig) {
		return c.Host
	}
	for _, f := range c.Fallbacks {
		if open(f.Host, f.TLSConfig) {
			return f.Host
		}
	}
	return ""
}

// closeWithin closes a pool, and returns before it is closed if the context ends: pgx
// waits for up to 15 seconds for a server that says nothing more.
func closeWithin(ctx context.Context, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
