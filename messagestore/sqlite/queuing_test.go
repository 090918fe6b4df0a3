package sqlite_test

import (
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/queuetest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

func TestQueuesOnSQLite(t *testing.T) {
	t.Parallel()
	var files sync.Map // by driver
	opened := func(t *testing.T) *sqlite.Driver {
		file := newFile(t)
		driver := open(t, file, nil)
		files.Store(driver, file)
		return driver
	}
	queuetest.Run(t, queuetest.Options{
		Open: func(t *testing.T) queuing.Driver { return opened(t) },
		OpenWithClock: func(t *testing.T) (queuing.Driver, func(time.Duration)) {
			driver, stood, ahead := opened(t), time.Now(), time.Duration(0)
			driver.SetClock(func() time.Time { return stood.Add(ahead) })
			return driver, func(by time.Duration) { ahead = by }
		},
		Begin: func(t *testing.T, driver queuing.Driver) (queuing.Driver, func() error, func() error) {
			file, _ := files.Load(driver)
			db, err := sql.Open("sqlite", "file:"+file.(string)+"?_txlock=immediate&_pragma=busy_timeout(10000)") //nolint:errcheck // so stored
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			tx := must.Do(db.BeginTx(t.Context(), nil))(t)
			return must.New(sqlite.New(tx)), tx.Commit, tx.Rollback
		},
	})
}
