package pglink

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAConnectionWhoseOtherEndIsGoneIsGivenUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	config, err := parse("postgres://postgres@127.0.0.1/any")
	require.NoError(t, err)

	conn, err := config.ConnConfig.DialFunc(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()

	tcp, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	raw, err := tcp.SyscallConn()
	require.NoError(t, err)
	option := func(level, name int) (value int) {
		var failed error
		require.NoError(t, raw.Control(func(fd uintptr) { value, failed = syscall.GetsockoptInt(int(fd), level, name) }))
		require.NoError(t, failed)
		return value
	}
	require.Equal(t, int(silence.Milliseconds()), option(syscall.IPPROTO_TCP, tcpUserTimeout))
	require.Equal(t, 1, option(syscall.SOL_SOCKET, syscall.SO_KEEPALIVE))
	idle, interval := option(syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE), option(syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL)
	require.LessOrEqual(t, float64(idle+interval*option(syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT)), silence.Seconds())
}

func TestASocketOfUnixIsDialedToo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer listener.Close()

	conn, err := dial(t.Context(), "unix", path)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
