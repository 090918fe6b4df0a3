package demo

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

func TestAProcessThatIsToldToEndBeforeItHasBegunHasNotFailed(t *testing.T) {
	for _, args := range [][]string{
		{"run"},
		{"serve", "--bank", "http://127.0.0.1:1", "--name", "server-1"},
		{"replica", "--mail", "http://127.0.0.1:1", "--lease", "2s"},
	} {
		t.Run(args[0], func(t *testing.T) {
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer silent.Close()
			socket, _, err := stage.Listen()
			require.NoError(t, err)
			defer socket.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			store := "postgres://" + silent.Addr().String() + "/a-server-that-says-nothing?sslmode=disable"
			p, err := stage.StartProcess(args[0], store, cancel, func(c *exec.Cmd) error {
				c.ExtraFiles = []*os.File{socket}
				return nil
			}, args...)
			require.NoError(t, err)
			defer p.End()
			accepting, ok := silent.(*net.TCPListener)
			require.True(t, ok)
			require.NoError(t, accepting.SetDeadline(time.Now().Add(await.Limit)))
			conn, err := silent.Accept() // so it is about to open its store
			require.NoError(t, err)
			defer conn.Close()

			require.NoError(t, p.Stop(await.Limit))
			require.NoError(t, context.Cause(ctx), "nor has the demo")
		})
	}
}

func TestAProcessThatFailsIsToldWhenItIsStopped(t *testing.T) {
	_, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	p, err := stage.StartProcess("a run of no store", "postgres://127.0.0.1:1/a?sslmode=disable", cancel, nil, "run")
	require.NoError(t, err)
	await.Receive(t, "the end of a run of no store", p.Ended)
	require.ErrorContains(t, p.Stop(await.Limit), "a run of no store")
	require.ErrorContains(t, stage.Finish(await.Limit, p), "a run of no store ended: exit status 1")
}
