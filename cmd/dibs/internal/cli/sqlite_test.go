package cli_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mistyped name is not a new store.
func TestFileThatIsNotThereIsMadeByWriteOnly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "typo.db")
	s := &shell{env: map[string]string{}}
	for _, form := range []string{"sqlite:" + path, "sqlite://" + path, "SQLite:" + path} {
		for _, args := range []string{
			"category a", "stream a-1", "tail a", "explain a-1+b", "report", "consumers list", "parked list", "intents list a:intent", "epoch show",
			"trim a-1 --keep 1", "delete a-1 --yes", "verify", "doctor", "consumers reset a b --start --yes",
		} {
			r := s.run(t, append([]string{"--store", form}, strings.Fields(args)...)...)
			require.NotEqual(t, 0, r.code, args)
			if r.code == 1 {
				require.Contains(t, r.stderr, "there is no file "+path+", which --store names", args)
				require.Contains(t, r.stderr, "dibs write makes a new one", args)
			}
			require.NoFileExists(t, path, args)
		}
	}
	r := s.run(t, "--store", "sqlite:"+path, "write", "a-1", "Opened")
	require.Equal(t, 0, r.code, r.stderr)
	require.FileExists(t, path)
	require.Equal(t, 0, s.run(t, "--store", "sqlite:"+path, "category", "a").code)
}

func TestFileIsTrimmedDeletedVerifiedAndExamined(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for range 5 {
		dibs.ok(t, "write", "account-1", "Opened")
	}
	require.Contains(t, dibs.ok(t, "trim", "account-1", "--keep", "2", "--yes"), "messages younger than 15m0s stay")
	require.Contains(t, dibs.ok(t, "trim", "account-1", "--keep", "2", "--min-age", "0s", "--dry-run"), "would remove 3, it begins at 3")
	require.Contains(t, dibs.ok(t, "trim", "--category", "account", "--keep", "2", "--min-age", "0s", "--reason", "old", "--yes"), "removed 3 messages of 1 stream")
	require.Contains(t, dibs.ok(t, "stream", "account:retention-1"), "dibs:Trimmed")

	dibs.ok(t, "write", "account:command-1", "Deposit", `{"n":1}`)
	dibs.ok(t, "write", "account-2", "Opened")
	require.Equal(t, 3, dibs.run(t, "delete", "account-2", "--expect", "7", "--yes").code)
	require.Contains(t, dibs.ok(t, "delete", "account-2", "--dry-run"), "would delete 1 message of account-2, which is at version 0")
	require.Contains(t, dibs.ok(t, "delete", "account-2", "--yes", "--reason", "asked"), "deleted 1 message of account-2: its tombstone is at position 1 of account-2")
	require.Contains(t, dibs.ok(t, "delete", "account-2", "--yes"), "is deleted already")
	require.Equal(t, 3, dibs.run(t, "write", "account-2", "Opened", "--expected", "no-stream").code)
	require.Contains(t, dibs.run(t, "delete", "account-1", "--erase-name", "--yes").stderr, "erase the name on SQLite: not supported")
	require.Contains(t, dibs.run(t, "delete", "account-9", "--yes").stderr, "no such message")

	require.Contains(t, dibs.ok(t, "verify"), "no violation")
	require.Contains(t, dibs.ok(t, "doctor"), "journal_mode is wal, and synchronous 2")
	require.Contains(t, dibs.ok(t, "doctor"), "a service with this URL can read and write messages")
	require.Contains(t, dibs.run(t, "verify", "--amcheck").stderr, "amcheck needs PostgreSQL")
}
