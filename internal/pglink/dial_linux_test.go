package pglink

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

func TestAConnectionWhoseOtherEndIsGoneIsGivenUp(t *testing.T) {
	t.Parallel()
	listener := testkit.Do(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	config := testkit.Do(parse("postgres://postgres@127.0.0.1/any"))(t)

	conn := testkit.Do(config.ConnConfig.DialFunc(t.Context(), "tcp", listener.Addr().String()))(t)
	defer conn.Close()

	tcp, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	raw := testkit.Do(tcp.SyscallConn())(t)
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
	listener := testkit.Do(net.Listen("unix", path))(t)
	defer listener.Close()

	conn := testkit.Do(dial(t.Context(), "unix", path))(t)
	require.NoError(t, conn.Close())
}
