package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// packages maps programs to their Debian packages, if the names differ.
var packages = map[string]string{"node": "nodejs", "pg_dump": "postgresql-client", "psql": "postgresql-client"}

// Missing ends a test that needs something missing on this machine. The test is skipped, or fails
// if CI is set, so that in CI green means that everything ran.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// Needs skips the test, or fails it if CI is set, if a program is not on the PATH.
func Needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		name := program
		if other, ok := packages[program]; ok {
			name = other
		}
		Missing(t, fmt.Sprintf("no %s: install the package %s", program, name))
	}
}

// version finds 15 in "pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
var version = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// NeedsAsNewAsServer is [Needs] for a client of PostgreSQL, such as pg_dump, that does not support
// servers newer than itself.
func NeedsAsNewAsServer(t testing.TB, client string) {
	t.Helper()
	Needs(t, client)
	said, err := exec.CommandContext(t.Context(), client, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	found := version.FindSubmatch(said)
	if found == nil {
		t.Fatalf("%s --version says %q", client, said)
	}
	has, _ := strconv.Atoi(string(found[1]))
	if server := ServerVersion(t); has < server {
		Missing(t, fmt.Sprintf("%s %d does not know a server of version %d", client, has, server))
	}
}

// versions has the major versions of the servers that this process has seen.
var versions sync.Map

// ServerVersion returns the major version of the server that the tests share.
func ServerVersion(t testing.TB) int {
	t.Helper()
	server := URL(t)
	known, _ := versions.Load(server)
	if major, is := known.(int); is {
		return major
	}
	conn := dial(t, server)
	defer conn.Close(t.Context())
	said := conn.PgConn().ParameterStatus("server_version") // 15.18 (Debian 15.18-0+deb12u1), 19beta1
	major, err := strconv.Atoi(said[:len(said)-len(strings.TrimLeft(said, "0123456789"))])
	if err != nil {
		t.Fatalf("the server says that it is PostgreSQL %q", said)
	}
	versions.Store(server, major)
	return major
}
