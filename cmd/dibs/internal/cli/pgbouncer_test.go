package cli_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// Each command is a connection of its own, to a server that another has used.
func TestCommandsWorkThroughPgBouncer(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DATABASE_URL": pgtest.PgBouncer(t, pgtest.Database(t)).URL}}
	for range 2 {
		dibs.ok(t, "migrate", "up")
		dibs.ok(t, "migrate", "status")
		dibs.ok(t, "write", "account-1", "Opened", "{}")
		dibs.ok(t, "stream", "account-1")
		dibs.ok(t, "category", "account")
		dibs.ok(t, "report", "streams")
		dibs.ok(t, "consumers", "account")
		dibs.ok(t, "verify")
	}
}
