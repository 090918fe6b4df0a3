package crew

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/soak/server"
)

const variable = "DIBS_SOAK_CREW_TEST"

type testTask struct {
	File string // that is made once there are no more faults
	Ends bool   // then
}

func TestMain(m *testing.M) {
	server.RunKeeper()
	RunProcess(variable, func(t testTask) error {
		healed, ended := make(chan struct{}), make(chan struct{})
		go Listen(func() { close(healed) }, func() { close(ended) })
		<-healed
		err := os.WriteFile(t.File, nil, 0o600)
		if !t.Ends {
			<-ended
		}
		return err
	})
	goleak.VerifyTestMain(m)
}

// newCrew has two slots; the process of the second ends without being told.
func newCrew(t *testing.T) *Crew {
	t.Helper()
	c, err := New(t.Context(), Config{
		Options: Options{Out: t.TempDir(), Dir: "/var/tmp"}, Variable: variable, Log: zerolog.Nop(),
		Promises: fstest.MapFS{"schema.sql": {}, "figures.sql": {Data: []byte("select 'kills', 'kills', count(*) from calls where call = 'kill'")}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	for name, ends := range map[string]bool{"stays": false, "ends": true} {
		_, err := c.Add(Client{Name: name, Ends: ends, Task: func(p Place) any { return testTask{filepath.Join(c.Out, p.Process), ends} }})
		require.NoError(t, err)
	}
	return c
}

func (c *Crew) slot(name string) *Slot {
	for _, s := range c.Slots() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// told waits until a process of a slot, other than before, has learned that the faults are over.
func told(t *testing.T, s *Slot, before string) {
	t.Helper()
	testkit.AwaitTrue(t, "a process is told that there are no more faults", func() bool {
		_, process := s.Process()
		_, err := os.Stat(filepath.Join(s.crew.Out, process))
		return process != before && err == nil
	})
}

// recorded waits until one kill is in the history.
func recorded(t *testing.T, c *Crew) {
	t.Helper()
	testkit.AwaitTrue(t, "the kill is in the history", func() bool {
		counted, err := c.count(t.Context())
		require.NoError(t, err)
		return counted.Of("kills") == 1
	})
}

func TestAKilledProcessIsReplacedAndAllEnd(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	_, first := c.slot("stays").Process()

	c.slot("stays").Kill()

	recorded(t, c)
	testkit.AwaitTrue(t, "another takes its place", func() bool {
		_, second := c.slot("stays").Process()
		return second != first
	})
	c.Heal()
	told(t, c.slot("stays"), first)
	told(t, c.slot("ends"), "")
	c.Stop(Grace)
	require.Empty(t, c.complaints)
	require.Len(t, c.Survivors(), 2)
}

func TestAProcessThatStartsAfterTheFaultsIsToldSo(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.Heal()
	_, first := c.slot("stays").Process()

	c.slot("stays").Kill()

	recorded(t, c)
	told(t, c.slot("stays"), first)
}
