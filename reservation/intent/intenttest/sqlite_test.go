package intenttest_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation/intent"
	"github.com/dibs-go/dibs/reservation/intent/intenttest"
)

func openSQLite(t *testing.T) *messagestore.Store {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "intents.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return messagestore.New(driver, nil)
}

func TestIntentsOnSQLite(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, intenttest.Options{Open: func(t *testing.T) intent.Store { return openSQLite(t) }})
}
