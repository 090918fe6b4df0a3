package pglink

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/calling"
)

// connectTimeout bounds one attempt to connect, unless the URL has connect_timeout.
const connectTimeout = 10 * time.Second

// Open returns a pool of connections to the database at a URL that [pgxpool.ParseConfig] knows. It
// does not connect yet. A connection has the application_name dibs unless the URL sets it, is
// watched by [WatchReplication], and is closed after the server has been silent for 30 seconds.
// Errors do not show the URL or its password.
//
// clear is another machine to which the URL allows an unencrypted connection, or "".
func Open(ctx context.Context, url string) (pool *pgxpool.Pool, clear string, err error) {
	config, err := parse(url)
	if err != nil {
		return nil, "", err
	}
	pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, "", Safe(err)
	}
	return pool, inTheClear(config.ConnConfig), nil
}

// parse returns the configuration of a pool.
func parse(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, ErrInvalidURL
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

// inTheClear returns another machine to which unencrypted connections are allowed, or "".
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

// CloseWithin closes a pool. It returns earlier if the context ends: pgx waits up to 15 seconds for
// a server that does not answer.
func CloseWithin(ctx context.Context, pool *pgxpool.Pool) {
	closed := calling.Go(func() error { pool.Close(); return nil })
	select {
	case <-closed: //nolint:errcheck // a pool that panics is closed too
	case <-ctx.Done():
	}
}
