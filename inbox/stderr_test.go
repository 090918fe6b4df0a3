package inbox_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// Nobody configured a logger: a key that two requests use is seen nevertheless.
//
//nolint:paralleltest // it replaces standard error
func TestAReusedKeyIsSeenWithoutALogger(t *testing.T) {
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "bank.db"), nil)
	require.NoError(t, err)
	defer driver.Close()
	txs, err := messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, nil)))
	require.NoError(t, err)
	u, err := inbox.New(txs, "payments", nil)
	require.NoError(t, err)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer stderr.Close()
	before := os.Stderr
	os.Stderr = stderr
	defer func() { os.Stderr = before }()

	for i, want := range []reservation.Outcome{reservation.Reserved, reservation.KeyReused} {
		result, err := u.Receive(t.Context(), inbox.Request{ID: "AAA", Data: []byte([]string{`{"amount":10}`, `{"amount":11}`}[i])},
			func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) { return nil, nil })
		require.NoError(t, err)
		require.Equal(t, want, result.Outcome)
	}

	text, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	require.Regexp(t, `^20\S+ WRN key reused: the request is refused outcome="key reused" reservation=payments:inbox-AAA\n$`, string(text))
}
