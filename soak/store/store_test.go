package store

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/server"
)

func TestMain(m *testing.M) {
	server.RunKeeper() // a server has this program for its keeper
	goleak.VerifyTestMain(m)
}

func TestEveryFaultComesAsOftenAsItsWeight(t *testing.T) {
	t.Parallel()
	p := &phase{faults: faults}
	random, counts, total := rand.New(rand.NewPCG(1, 2)), map[string]int{}, 0
	for _, f := range faults {
		total += f.weight
	}
	for range 1000 * total {
		counts[p.draw(random).name]++
	}
	for _, f := range faults {
		require.InEpsilon(t, 1000*f.weight, counts[f.name], 0.2, f.name)
	}
}

func TestARunWithGoalsKillsTheServerAndThenLeavesItAloneUntilAllAreReached(t *testing.T) {
	t.Parallel()
	o := Options{Options: crew.Options{Duration: 20 * time.Minute, Goals: promise.Goals{"serverKills": 150, "messages": 10}}, Phases: []string{Mixed, Kills, Calm}, Gap: time.Second}
	phases, err := o.phases(faults)
	require.NoError(t, err)
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{Mixed, Kills, Calm}, names)
	require.Nil(t, phases[0].Until)
	require.Equal(t, promise.Goals{"serverKills": 150}, phases[1].Until)
	require.Equal(t, o.Goals, phases[2].Until)
	require.Len(t, phases[1].faults, len(crashing))
	require.Greater(t, phases[1].least+aloneBefore, aloneAfter) // each alone
	require.Len(t, phases[2].faults, len(sparing))

	o.Duration, o.Goals = time.Hour, promise.Goals{"serverKills": 2000}
	phases, err = o.phases(faults)
	require.NoError(t, err)
	require.Positive(t, phases[1].alone)
	require.Less(t, phases[1].most, aloneAfter)

	o.Phases, o.Goals = []string{Kills}, nil
	require.ElementsMatch(t, crashing, o.Chosen())

	o.Phases = []string{"earthquakes"}
	_, err = o.phases(faults)
	require.EqualError(t, err, `there is no phase "earthquakes"`)
}

func TestEachFaultComesOnceBeforeAnyComesAgain(t *testing.T) {
	t.Parallel()
	o := (&phase{faults: faults}).opening(rand.New(rand.NewPCG(1, 2)))
	seen := map[string]bool{}
	for f, more := o.next(); more; f, more = o.next() {
		seen[f.name] = true
	}
	require.Len(t, seen, len(faults))
}

func TestErrorsAreFoundInTheLog(t *testing.T) {
	t.Parallel()
	log := "2026-01-02 03:04:05.678 UTC [12] 00000 LOG:  checkpoint starting\n" +
		"2026-01-02 03:04:05.678 UTC [12] 40P01 ERROR:  deadlock detected\n" +
		"2026-01-02 03:04:05.679 UTC [13] 40P01 ERROR:  deadlock detected\n" +
		"2026-01-02 03:04:05.678 UTC [12] XX001 PANIC:  could not read\n"
	require.Equal(t, []string{"40P01 deadlock detected", "XX001 could not read"}, errorsIn([]byte(log)))

	for i := range 2 * textsOfEach {
		log = fmt.Sprintf("2026-01-02 03:04:05.678 UTC [12] 57014 ERROR:  number %d\n", i) + log
	}
	require.Len(t, errorsIn([]byte(log)), textsOfEach+2)
}

func TestWhatIsKeptWhenAllIsDoneIsFound(t *testing.T) {
	t.Parallel()
	keeper, err := server.NewKeeper("/var/tmp")
	require.NoError(t, err)
	defer func() { require.NoError(t, keeper.Close()) }()
	pg, err := server.NewPostgres(t.Context(), keeper.Dir(), "pg", nil)
	require.NoError(t, err)
	_, err = pg.NewDatabase(t.Context(), database)
	require.NoError(t, err)
	h, err := promise.Open(t.Context(), t.TempDir(), check.Promises)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	r := &run{Crew: &crew.Crew{Postgres: pg, History: h}}
	kept := func() (all []string) {
		require.NoError(t, r.held(t.Context()))
		require.NoError(t, h.Each(t.Context(), "select what || ': ' || name from facts", func(scan func(...any) error) error {
			var one string
			err := scan(&one)
			all = append(all, one)
			return err
		}))
		return all
	}
	require.Empty(t, kept())
	conn, err := pgx.Connect(t.Context(), pg.URL(database))
	require.NoError(t, err)
	defer conn.Close(t.Context())

	_, err = conn.Exec(t.Context(), "begin; select pg_advisory_xact_lock(7)")

	require.NoError(t, err)
	testkit.Await(t, "a lock and a transaction that are held", func() (bool, any) {
		all := strings.Join(kept(), "\n")
		return strings.Contains(all, "lock: advisory ExclusiveLock") && strings.Contains(all, "idle in transaction"), all
	})
}
