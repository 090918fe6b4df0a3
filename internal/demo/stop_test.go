package demo

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
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
			r := &Run{URL: "postgres://" + silent.Addr().String() + "/a-server-that-says-nothing?sslmode=disable"}
			socket, _, err := r.Listen()
			require.NoError(t, err)
			defer socket.Close()
			p, err := r.Start(args[0], socket, args...)
			require.NoError(t, err)
			defer p.Kill()
			accepting, ok := silent.(*net.TCPListener)
			require.True(t, ok)
			require.NoError(t, accepting.SetDeadline(time.Now().Add(testkit.WaitLimit)))
			conn, err := silent.Accept() // so it is about to open its store
			require.NoError(t, err)
			defer conn.Close()

			require.NoError(t, p.Stop()) // which would fail the run, too
		})
	}
}

// A process that ends by itself ends the demo, with what it said.
func TestADemoWhoseProcessFailsEnds(t *testing.T) {
	r, err := Flags{Limit: testkit.WaitLimit}.Open(t.Context(), &Output{Stdout: t.Output()}, "none")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()

	err = r.Play(t.Context(), failing{})

	require.ErrorContains(t, err, "a run of no store ended: exit status 1")
	require.ErrorContains(t, err, "open store")
}

// failing is a demo whose process has no store.
type failing struct{}

func (failing) Work(ctx context.Context, r *Run) error {
	r.URL = "postgres://127.0.0.1:1/a?sslmode=disable"
	if _, err := r.Start("a run of no store", nil, "run"); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (failing) Verdict(context.Context, *Run, *Books) (string, error) { return "", nil }
