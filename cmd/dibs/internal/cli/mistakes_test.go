package cli_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// The mistakes of an operator's day, and what each is told.
func TestMistakesAreTold(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	dibs.ok(t, "write", "booking:saga-1", "Opened")
	dibs.script(t, "mistakes", nil, nil)
}

// The mistakes that need a server.
func TestMistakesOnAServerAreTold(t *testing.T) {
	t.Parallel()
	empty := &shell{env: map[string]string{"DIBS_STORE": pgtest.Database(t)}}
	empty.script(t, "mistakes-not-migrated", nil, nil)
	dibs := newServer(t)
	dibs.ok(t, "write", "account-1", "Opened")
	dibs.ok(t, "write", "booking:saga-1", "Opened")
	dibs.script(t, "mistakes-postgres", nil, nil)
}
