package mutants_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/mutants"
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/server"
)

func TestMain(m *testing.M) {
	server.RunKeeper()
	goleak.VerifyTestMain(m)
}

func TestEachMutantSaysWhatItIsAndWhatItBreaks(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range mutants.All() {
		require.False(t, names[m.Name], m.Name)
		names[m.Name] = true
		require.NotEmpty(t, m.Says, m.Name)
		require.NotEmpty(t, m.Breaks, m.Name)
		require.NotNil(t, m.Scene, m.Name)
		planted := 0
		for _, there := range []bool{len(m.Plant.Go) > 0, len(m.Plant.SQL) > 0, len(m.Plant.Settings) > 0} {
			if there {
				planted++
			}
		}
		require.Equal(t, 1, planted, m.Name)
	}
}

// An edit that no longer matches the source, or no longer compiles, is a bug that is not planted.
func TestEachMutantInGoCanBePlanted(t *testing.T) {
	t.Parallel()
	root, err := plant.Root(t.Context())
	require.NoError(t, err)
	types, err := loadTypes(t.Context(), root)
	require.NoError(t, err)
	for _, m := range mutants.All() {
		require.NoError(t, types.holds(&m.Plant), m.Name)
	}

	none := plant.Mutant{Go: []plant.Edit{{In: "consumer", Old: "defer calling.Catch(err)", New: "defer sunspots(err)"}}}
	require.ErrorContains(t, types.holds(&none), "undefined: sunspots")
}

func TestAnEditThatDoesNotMatchOnceIsRefused(t *testing.T) {
	t.Parallel()
	root, err := plant.Root(t.Context())
	require.NoError(t, err)
	for _, e := range []plant.Edit{{In: "consumer", Old: "return nil"}, {In: "consumer", Old: "sunspots"}, {In: "nowhere", Old: "return nil"}} {
		_, err := (&plant.Mutant{Go: []plant.Edit{e}}).Overlay(root)
		require.ErrorContains(t, err, "plant a bug in "+e.In)
		require.ErrorContains(t, err, "not once")
	}
}

func TestEachMutantInSQLCanBePlanted(t *testing.T) {
	t.Parallel()
	keeper, err := server.NewKeeper("/var/tmp")
	require.NoError(t, err)
	defer func() { require.NoError(t, keeper.Close()) }()
	p, err := server.NewPostgres(t.Context(), keeper.Dir(), "pg", &server.PostgresConfig{Settings: []string{"fsync=off"}})
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	require.NoError(t, migrations.Up(t.Context(), conn, nil))

	for _, m := range mutants.All() {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, m.Plant.Plant(t.Context(), conn), m.Name)
		for _, e := range m.Plant.SQL { // each is once: planted, it is not there any more
			if !strings.Contains(strings.Join(strings.Fields(e.New), " "), strings.Join(strings.Fields(e.Old), " ")) {
				again := plant.Mutant{SQL: []plant.Edit{e}}
				require.ErrorContains(t, again.Plant(t.Context(), conn), "is there 0 times", m.Name)
			}
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}

	twice := plant.Mutant{SQL: []plant.Edit{{In: "append_one", Old: "perform", New: ""}}}
	require.ErrorContains(t, twice.Plant(t.Context(), conn), "plant a bug in append_one")
	nowhere := plant.Mutant{SQL: []plant.Edit{{In: "append_two", Old: "begin", New: ""}}}
	require.ErrorIs(t, nowhere.Plant(t.Context(), conn), pgx.ErrNoRows)
}

func TestSoManyADayAreAllInSomeDays(t *testing.T) {
	t.Parallel()
	all := mutants.All()
	met := map[string]bool{}
	for day := range uint64(len(all)+3) / 4 {
		some := mutants.Some(4, day)
		require.Len(t, some, 4)
		for _, m := range some {
			met[m.Name] = true
		}
		require.Equal(t, some, mutants.Some(4, day))
	}
	require.Len(t, met, len(all))
	require.Equal(t, all, mutants.Some(0, 3))
	require.Len(t, slices.Compact(mutants.Some(len(all)+9, 3)), len(all))
}

func TestAMutantIsChosenByItsName(t *testing.T) {
	t.Parallel()
	found, err := mutants.Named("no-lock", "definite")
	require.NoError(t, err)
	require.Len(t, found, 2)
	_, err = mutants.Named("sunspots")
	require.EqualError(t, err, `there is no mutant "sunspots"`)
}
