package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) messagestore.Driver { return open(t, newFile(t), nil) })
}

func newFile(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "messages.db")
}

func open(t testing.TB, path string, config *sqlite.Config) *sqlite.Driver {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), path, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return driver
}
