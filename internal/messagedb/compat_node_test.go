package messagedb_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// The client that is run, and the PostgreSQL client that it is over.
const (
	npmClient = "message-db-connector@0.0.10"
	pg        = "pg@8.23.1"
)

// message-db's client for Node behaves the same on our schema and on message-db, to the letter of
// every error.
func TestClientInNodeCannotTellOursFromMessageDB(t *testing.T) {
	t.Parallel()
	ours := pgtest.Migrated(t)

	want := runInNode(t, pgtest.MessageDB(t))
	got := runInNode(t, ours)

	require.Len(t, want, 26)
	require.Equal(t, want, got)
	require.Contains(t, want[3], `"message":"Wrong expected version: -1 (Stream: account:command-123, Stream Version: 1)"`)
	require.Equal(t, 7, strings.Count(want[25], "P0001 Wrong expected version: -1 "), "one of eight is first: %s", want[25])
}

// runInNode runs the client on a database and returns its output.
func runInNode(t *testing.T, database string) []string {
	t.Helper()
	pgtest.Needs(t, "node", "npm")
	modules, err := nodeClient()
	if err != nil {
		pgtest.Missing(t, fmt.Sprintf("no client of message-db, which npm did not install: %v", err))
	}
	config := testkit.Do(pgx.ParseConfig(database))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node := osexec.CommandContext(ctx, "node", filepath.Join("testdata", "client.cjs"))
	node.Env = append(os.Environ(), "NODE_PATH="+modules, "PGHOST="+config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGDATABASE="+config.Database,
		"PGOPTIONS=-c lock_timeout=0 -c idle_in_transaction_session_timeout=0") // instead of the role's, which a busy machine may take
	var stdout, stderr bytes.Buffer
	node.Stdout, node.Stderr = &stdout, &stderr
	require.NoError(t, node.Run(), "%s\n%s", &stdout, &stderr)
	var steps []string
	for line := range strings.Lines(stdout.String()) {
		if strings.HasPrefix(line, `{"step":`) { // other lines are the client's log
			steps = append(steps, strings.TrimSpace(line))
		}
	}
	return steps
}

var nodeClient = sync.OnceValues(func() (string, error) { return pgtest.NPMModules(npmClient+"-"+pg, npmClient, pg) })
