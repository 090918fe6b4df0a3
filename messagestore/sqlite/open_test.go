package sqlite_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// An error of a path is one short line, with what the operating system says.
func TestTheErrorOfALongPathIsShort(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/" + strings.Repeat("x", 1<<20):                   "file name too long",
		filepath.Join(t.TempDir(), "a\nb\x1b", "store.db"): "no such file or directory",
	} {
		_, err := sqlite.Open(t.Context(), path, nil)

		require.Error(t, err)
		require.Less(t, len(err.Error()), 2500)
		require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err.Error())
		require.ErrorContains(t, err, want)
	}
}

func TestBadPathsAndConfigsAreRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "a\x00b", ":memory:"} {
		_, err := sqlite.Open(t.Context(), path, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", path)
		require.ErrorContains(t, err, "path")
	}
	for _, config := range []sqlite.Config{{BusyTimeout: -1}, {MaxGroup: -1}, {Readers: -1}} {
		require.ErrorIs(t, testkit.ErrorOf(sqlite.Open(t.Context(), newFile(t), &config)), messagestore.ErrInvalid)
	}
}

func TestWhatIsNoStoreIsNotOpened(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	text := filepath.Join(folder, "notes.txt")
	require.NoError(t, os.WriteFile(text, []byte("These are no messages, and there are more than sixteen bytes of it. "), 0o600))
	foreign := filepath.Join(folder, "foreign.db")
	db := database(t, foreign)
	execute(t, db, "CREATE TABLE invoices (id TEXT PRIMARY KEY)")

	for _, c := range []struct {
		path, says string
		is         error
	}{
		{folder, "it is a folder", nil},
		{filepath.Join(folder, "none", "messages.db"), "its folder cannot be used", os.ErrNotExist},
		{os.DevNull, "it is not a regular file", nil},
		{text, "it is not an SQLite database", sqlite.ErrNotAStore},
		{foreign, "give another path", sqlite.ErrNotAStore},
	} {
		_, err := sqlite.Open(t.Context(), c.path, nil)
		require.ErrorContains(t, err, "open "+strconv.Quote(c.path)+": ")
		require.ErrorContains(t, err, c.says)
		if c.is != nil {
			require.ErrorIs(t, err, c.is)
		}
	}

	require.Contains(t, string(testkit.Do(os.ReadFile(text))(t)), "These are no messages")
	var mode string
	require.NoError(t, db.QueryRow("PRAGMA journal_mode").Scan(&mode))
	require.Equal(t, "delete", mode, "a foreign database is left as it is")
}

func TestNewerSchemaIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	open(t, path, nil)
	db := database(t, path)
	execute(t, db, "UPDATE dibs_store SET version = 99")

	_, err := sqlite.Open(t.Context(), path, nil)
	require.ErrorIs(t, err, sqlite.ErrNewerSchema)
	require.ErrorContains(t, err, "found version 99, this program knows up to 5: upgrade it")
	tx := begin(t, db)
	require.ErrorIs(t, sqlite.Schema(t.Context(), tx), sqlite.ErrNewerSchema)
	require.NoError(t, tx.Rollback())
}

func TestFileThatCannotBeWrittenSaysSo(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	open(t, path, nil)
	for _, at := range []string{"PRAGMA journal_mode = wal", "BEGIN IMMEDIATE"} { // in such a folder; such a file in another
		driver := faulty(t, func(statement string, _ faultyConn) error {
			if statement == at {
				return sqliteError(8) // SQLITE_READONLY; root may write to any file
			}
			return nil
		})

		_, err := sqlite.OpenWith(t.Context(), driver, path, nil)

		require.ErrorContains(t, err, "it is not writable: check the rights", at)
		require.ErrorIs(t, err, sqliteError(8))
	}
}

func TestOpeningWaitsForAnother(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	holder := begin(t, database(t, path)) // of a new file

	require.ErrorIs(t, testkit.ErrorOf(sqlite.Open(t.Context(), path, &sqlite.Config{BusyTimeout: 20 * time.Millisecond})), sqlite.ErrBusy)

	require.NoError(t, holder.Rollback())
	open(t, path, nil)
}

func TestManyOpenANewFileAtOnce(t *testing.T) {
	t.Parallel()
	for range 2 {
		path := newFile(t)
		var opened sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			opened.Go(func() {
				driver, err := sqlite.Open(t.Context(), path, patient)
				if err == nil {
					_, err = driver.Append(t.Context(), appendOf("account-1", messagestore.AnyVersion, 1))
					defer driver.Close()
				}
				errs[i] = err
			})
		}
		awaitAll(t, "all have opened it", &opened)
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.EqualValues(t, len(errs)-1, testkit.Do(open(t, path, nil).Version(t.Context(), "account-1"))(t))
	}
}

// A process finds the tables that another creates at any moment of its opening.
func TestTablesMayAppearWhileOpening(t *testing.T) {
	t.Parallel()
	statements := []string{
		"SELECT count(*) FROM sqlite_schema", "PRAGMA journal_mode = wal", "BEGIN IMMEDIATE",
	}
	for _, at := range statements {
		path := newFile(t)
		var created atomic.Bool
		driver, err := sqlite.OpenWith(t.Context(), faulty(t, func(statement string, _ faultyConn) error {
			if statement == at && created.CompareAndSwap(false, true) {
				_, err := open(t, path, nil).Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1))
				return err
			}
			return nil
		}), path, patient)
		require.NoError(t, err, at)
		require.True(t, created.Load(), at)
		testkit.Do(driver.Append(t.Context(), appendOf("account-1", 0, 1)))(t)
		require.NoError(t, driver.Close())
	}
}

func TestAnyPathOfAFileWillDo(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"a b?mode=memory#c.db", "100%41.db", "ünï\ncode", "file:x", "-"} {
		path := filepath.Join(folder, name)
		driver := open(t, path, nil)
		testkit.Do(driver.Append(t.Context(), appendOf("account-1", messagestore.NoStream, 1)))(t)
		info := testkit.Do(os.Stat(path))(t)
		require.Positive(t, info.Size())
	}
	require.Len(t, testkit.Do(filepath.Glob(filepath.Join(folder, "*")))(t), 5*3, "each a file, a log and its index")
}

func TestFileIsDurable(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)

	settings := testkit.Do(driver.Settings(t.Context()))(t)
	require.Equal(t, map[string]string{"journal_mode": "wal", "synchronous": "2", "fullfsync": "1", "checkpoint_fullfsync": "1", "query_only": "0"}, settings)
	require.Error(t, driver.WriteOnReader(t.Context()), "what reads cannot write")
}

// A process that is killed may leave a commit that was never flushed. The next reads it as
// written, and must not say so before it is on the disk.
func TestOpeningFlushesWhatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	open(t, path, nil)
	commits := func() (n int) {
		require.NoError(t, database(t, path).QueryRow("SELECT settled FROM dibs_store").Scan(&n))
		return n
	}
	before := commits()

	open(t, path, nil)

	require.Equal(t, before+1, commits())
}

// What is in a store is its user's: a new file is for no other to read, whatever the umask lets
// through.
func TestANewFileIsItsUsersAlone(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	modes := func(path string) (modes []string) {
		t.Helper()
		for _, suffix := range []string{"", "-wal", "-shm"} {
			info := testkit.Do(os.Stat(path + suffix))(t)
			modes = append(modes, info.Mode().Perm().String())
		}
		return modes
	}
	open := func(path string) {
		t.Helper()
		driver := testkit.Must(sqlite.Open(t.Context(), path, nil))
		t.Cleanup(func() { require.NoError(t, driver.Close()) })
		testkit.Do(testkit.Must(messagestore.New(driver, nil)).Write(t.Context(), "account-1", messagestore.AnyVersion, messagestore.Raw{Type: "T", Data: []byte(`{}`)}))(t)
	}

	made := filepath.Join(folder, "made.db")
	open(made)
	require.Equal(t, []string{"-rw-------", "-rw-------", "-rw-------"}, modes(made))

	there := filepath.Join(folder, "there.db")
	require.NoError(t, os.WriteFile(there, nil, 0o600))
	require.NoError(t, os.Chmod(there, 0o640))
	open(there)
	require.Equal(t, []string{"-rw-r-----", "-rw-r-----", "-rw-r-----"}, modes(there))
}
