package migrations_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/migrations"
)

// Databases of every state there was come to the schema of a new one. The files in
// testdata/releases are the scripts that releases printed, by their version.
func TestEveryEarlierStateIsUpgraded(t *testing.T) {
	t.Parallel()
	states := map[string]func(t *testing.T, url string){}
	releases := must.Do(filepath.Glob("testdata/releases/*.sql"))(t)
	for _, name := range releases {
		states[name] = func(t *testing.T, url string) {
			t.Helper()
			run(t, exec.CommandContext(t.Context(), "psql", "-X", "-q", "-f", name, "-d", url))
		}
	}
	for prefix, tables := range migrations.Tables() {
		for n := 1; n <= tables; n++ {
			states[fmt.Sprintf("%d tables of part %q", n, prefix)] = func(t *testing.T, url string) {
				t.Helper()
				require.NoError(t, migrations.UpToTables(t.Context(), connect(t, url), prefix, n))
			}
		}
	}
	want := dumpOfUp(t)
	all := ways(t)
	for i, name := range slices.Sorted(maps.Keys(states)) {
		make := states[name]
		for j, with := range slices.Sorted(maps.Keys(all)) {
			// Each state by one way for every change, by another each day.
			if !tier.Long() && j != (i+tier.Turn(len(all)))%len(all) {
				continue
			}
			migrate := all[with]
			t.Run(name+" by "+with, func(t *testing.T) {
				t.Parallel()
				url := pgtest.Database(t)
				make(t, url)
				status := must.Do(migrations.Status(t.Context(), connect(t, url), nil))(t)
				for _, m := range status {
					require.False(t, m.Changed || m.Unknown, m.Name)
				}

				migrate(url)

				conn := connect(t, url)
				requireSame(t, want, dump(t, url))
				require.Empty(t, drift(t, conn, nil).Differences)
				requireWorks(t, conn, "dibs")
			})
		}
	}
}

// The script that a release printed is that of its version for ever: the first change after it
// takes the next version.
func TestReleasedVersionIsNotChanged(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	released, err := os.ReadFile(fmt.Sprintf("testdata/releases/%04d.sql", one[int](t, conn, "select version from dibs.schema_version()")))
	if os.IsNotExist(err) {
		return // not released yet
	}
	require.NoError(t, err)
	require.Equal(t, string(released), printed(t), "raise the version in parts.go and functions/schema_version.sql")
}
