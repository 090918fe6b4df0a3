package pgproxy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/pgproxy"
)

func TestWhoWaitsForAnAnswerThatWasLostHearsOfItWhenTheConnectionIsSevered(t *testing.T) {
	t.Parallel()
	b := set(t)
	lost := make(chan struct{})
	b.proxy.SetRule(func(m pgproxy.Message) pgproxy.Fault {
		if m.Name != "CommandComplete" {
			return pgproxy.Pass
		}
		close(lost)
		return pgproxy.Lose
	})
	ended := await.Go(func() error { return b.write(t.Context()) })
	await.Receive(t, "the message is lost", lost)

	b.proxy.SetRule(nil)
	b.proxy.Sever()

	require.Error(t, await.Receive(t, "the call ends", ended))
	require.Equal(t, 1, b.written())
	b.conn = b.connect()
	require.NoError(t, b.write(t.Context()))
}
