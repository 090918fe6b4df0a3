package sqlite_test

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A write that panics, or ends its goroutine, is an error of the calls that are committed together,
// and the next is written.
func TestAPanicIsAnErrorOfTheWritesThatWentTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	driver := must.New(sqlite.Open(t.Context(), path, nil))
	defer driver.Close()
	for what, breaks := range map[string]func(){"a panic": func() { panic("broken") }, "the end of a goroutine": runtime.Goexit} {
		release := hold(t, path)
		errs := make(chan error, 3)
		for i, f := range []func(){func() {}, func() {}, breaks} {
			go func() { errs <- driver.Write(t.Context(), f, messagestore.ErrOutcomeUnknown) }()
			awaitQueue(t, driver, i)
		}
		release()
		for range 3 {
			err := await.Receive(t, "a write", errs)
			require.NotNil(t, failure.PanicOf(err), "%s: %v", what, err)
			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		}
		require.NoError(t, driver.Write(t.Context(), func() {}, nil))
	}
}
