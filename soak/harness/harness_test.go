package harness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/work"
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

func TestRecoveryIsUntilAMessageThatWasHandedOverAfterTheCrashIsHandled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := history.Create(dir, "consumer-1.7")
	require.NoError(t, err)
	before, err := w.Begin(&history.Event{Func: history.Handle})
	require.NoError(t, err)
	killed, err := history.Now()
	require.NoError(t, err)
	require.NoError(t, w.End(before, history.OK, &history.Event{Func: history.Handle})) // was in flight before
	after, err := w.Begin(&history.Event{Func: history.Handle})
	require.NoError(t, err)
	require.NoError(t, w.End(after, history.OK, &history.Event{Func: history.Handle}))
	end, err := history.Now()
	require.NoError(t, err)
	require.NoError(t, w.Close())

	second := end + 10*time.Second.Nanoseconds()
	took, err := recoveries(dir, []crash{{killed, killed}, {second, second}}, []string{"consumer-1"})
	require.NoError(t, err)

	require.Len(t, took.First, 1) // after the second nothing was handled
	require.Equal(t, 1, took.Never)
	require.Equal(t, took.First, took.Each)
	require.Positive(t, took.First[0])
	require.LessOrEqual(t, took.First[0], time.Duration(end-killed))
	require.Empty(t, took.FirstOfMany)

	took, err = recoveries(dir, []crash{{killed, end}}, []string{"consumer-1"})
	require.NoError(t, err)
	require.Empty(t, took.First, "a message was handled, by a process of the server that was not gone yet")
}

func TestRecoveryThatTakesLongerThanUntilTheNextKillIsNotLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := history.Create(dir, "consumer-1.7")
	require.NoError(t, err)
	op, err := w.Begin(&history.Event{Func: history.Handle})
	require.NoError(t, err)
	require.NoError(t, w.End(op, history.OK, &history.Event{Func: history.Handle}))
	now, err := history.Now()
	require.NoError(t, err)
	require.NoError(t, w.Close())
	before := func(d time.Duration) int64 { return now - d.Nanoseconds() }

	took, err := recoveries(dir, []crash{{before(9 * time.Second), before(9 * time.Second)}, {before(4 * time.Second), before(4 * time.Second)}}, []string{"consumer-1"})
	require.NoError(t, err)

	require.Len(t, took.Each, 2)
	require.GreaterOrEqual(t, took.Each[1], 8*time.Second)
}

func TestAKillIsAloneIfNothingElseIsWrongAroundIt(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) int64 { return time.Hour.Nanoseconds() + d.Nanoseconds() }
	own := span{"kill-server", at(-time.Second / 10), at(time.Second)}
	for what, c := range map[string]struct {
		crashes []time.Duration
		faults  []span
		alone   bool
	}{
		"nothing else":          {[]time.Duration{0}, []span{own}, true},
		"another kill long ago": {[]time.Duration{-3 * time.Second, 0}, []span{own}, true},
		"another kill before":   {[]time.Duration{-time.Second / 2, 0}, []span{own}, false},
		"another kill after":    {[]time.Duration{0, time.Second}, []span{own}, false},
		"a cut meanwhile":       {[]time.Duration{0}, []span{own, {"cut", at(-time.Minute), at(time.Minute)}}, false},
		"a cut after":           {[]time.Duration{0}, []span{own, {"cut", at(time.Second), at(time.Minute)}}, false},
		"a cut much later":      {[]time.Duration{0}, []span{own, {"cut", at(3 * time.Second), at(time.Minute)}}, true},
	} {
		var crashes []crash
		for _, d := range c.crashes {
			crashes = append(crashes, crash{at(d), at(d)})
		}
		require.Equal(t, c.alone, isAlone(at(0), crashes, c.faults), what)
	}
}

func TestARunWithGoalsKillsTheServerAndThenLeavesItAloneUntilAllAreReached(t *testing.T) {
	t.Parallel()
	o := Options{Duration: 20 * time.Minute, Goals: &CI, Phases: []string{Mixed, Kills, Calm}, Gap: time.Second}
	phases, err := o.phases(faults)
	require.NoError(t, err)
	var names []string
	for _, p := range phases {
		names = append(names, p.name)
	}
	require.Equal(t, []string{Mixed, Kills, Calm}, names)
	require.Equal(t, CI.ServerKills, phases[1].crashes)
	require.Len(t, phases[1].faults, len(crashing))
	require.Greater(t, phases[1].least+aloneBefore, aloneAfter) // each alone
	require.Len(t, phases[2].faults, len(sparing))

	random := rand.New(rand.NewPCG(1, 2))
	o.Duration, o.Goals = time.Hour, &Long
	phases, err = o.phases(faults)
	require.NoError(t, err)
	require.Positive(t, phases[1].alone)
	require.Less(t, phases[1].wait(random, false, false), aloneAfter)
	require.GreaterOrEqual(t, phases[1].wait(random, true, false), aloneAfter)
	require.GreaterOrEqual(t, phases[1].wait(random, false, true), aloneAfter)

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

func TestATallyReadsEachLineOnceAndATornOneLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "writer-1.1"+history.Ending))
	require.NoError(t, err)
	defer file.Close()
	done := newTally(dir)
	say := func(text string) {
		_, err := file.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, done.read())
	}
	say("1 invoke write 1 stream=a-1 expected=3\n2 ok write 1 stream=a-1 version=4 stream=a-2 version=0 duplicate=1\n3 fail write 2 class=conf")
	require.Equal(t, 1, done.checked)
	say("lict actual=7\n4 fail write 3 class=error\n5 info write 4\n6 ok version 5 actual=1\n7 info resolve 6\n8 ok resolve 7 class=written stream=a-1\n")
	require.Equal(t, 3, done.checked)
	require.Equal(t, 1, done.resolved)
	require.Equal(t, 8, done.lines)
}

func TestAClientDiesAtAPointThatItComesTo(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		for _, role := range []work.Role{work.Writer, work.Opposed, work.Consumer, work.Handler} {
			d := doom(random, role.Points(), 1000)
			require.Contains(t, role.Points(), d.Point)
			require.Positive(t, d.Turn)
			require.LessOrEqual(t, d.Turn, int64(1000))
		}
	}
	require.Zero(t, doom(random, work.Reader.Points(), 1000))
}

func TestErrorsAreFoundInTheLog(t *testing.T) {
	t.Parallel()
	log := "2026-01-02 03:04:05.678 UTC [12] 00000 LOG:  checkpoint starting\n" +
		"2026-01-02 03:04:05.678 UTC [12] 40P01 ERROR:  deadlock detected\n" +
		"2026-01-02 03:04:05.679 UTC [13] 40P01 ERROR:  deadlock detected\n" +
		"2026-01-02 03:04:05.678 UTC [12] XX001 PANIC:  could not read\n"
	require.Equal(t, []check.LogLine{{SQLState: "40P01", Text: "deadlock detected"}, {SQLState: "XX001", Text: "could not read"}}, errorsIn([]byte(log)))

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
	r := &run{url: pg.URL("postgres")}
	kept, err := r.held(t.Context())
	require.NoError(t, err)
	require.Empty(t, kept.locks)
	require.Empty(t, kept.transactions)
	conn, err := pgx.Connect(t.Context(), r.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())

	_, err = conn.Exec(t.Context(), "begin; select pg_advisory_xact_lock(7)")

	require.NoError(t, err)
	await.That(t, "a lock and a transaction that are held", func() (bool, any) {
		kept, err = r.held(t.Context())
		require.NoError(t, err)
		return len(kept.locks) > 0 && len(kept.transactions) > 0, kept
	})
	require.Contains(t, strings.Join(kept.locks, "\n"), "advisory ExclusiveLock")
	require.Contains(t, kept.transactions[0], "idle in transaction")
}
