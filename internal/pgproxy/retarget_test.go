package pgproxy_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestNewConnectionsLeadToTheServerThatTheProxyWasToldOf(t *testing.T) {
	t.Parallel()
	config := pgtest.Connect(t, pgtest.URL(t)).Config().ConnConfig
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	proxy := must.Do(pgproxy.New(network, nowhere(network)))(t)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	through := config.Copy()
	through.Host, through.Port, through.TLSConfig, through.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	connect := func() error {
		conn, err := pgx.ConnectConfig(t.Context(), through)
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err
	}
	require.Error(t, connect())

	proxy.Retarget(address)

	require.NoError(t, connect())
}

// nowhere is an address at which nobody listens.
func nowhere(network string) string {
	if network == "unix" {
		return "/nonexistent"
	}
	return "127.0.0.1:1"
}
