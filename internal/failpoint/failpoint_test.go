//go:build failpoint

package failpoint

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if child := os.Getenv("DIBS_FAILPOINT_CHILD"); child != "" {
		if child == "disarmed" {
			Disarm()
		}
		for range 1000 {
			_ = Hit("a/point")
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestAPointKillsItsProcessAndSaysWhere(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "DIBS_FAILPOINT_CHILD=1", Variable+"=seed=1,a/point=kill:0.5")
	said, err := child.CombinedOutput()

	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.Equal(t, "failpoint: killed at a/point\n", string(said))
}

func TestAPointThatIsNotNamedDoesNothing(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "DIBS_FAILPOINT_CHILD=1", Variable+"=seed=1,another/point=kill:1")
	said, err := child.CombinedOutput()

	require.NoError(t, err)
	require.Empty(t, string(said))
}

func TestNoPointDoesAnythingOnceTheyAreDisarmed(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "DIBS_FAILPOINT_CHILD=disarmed", Variable+"=seed=1,a/point=kill:1")
	said, err := child.CombinedOutput()

	require.NoError(t, err)
	require.Empty(t, string(said))
}

func TestOneSeedHitsAtOnePlace(t *testing.T) {
	t.Parallel()
	hits := func(spec string) (at []int) {
		t.Helper()
		parsed, err := parse(spec)
		require.NoError(t, err)
		for i := range 1000 {
			if hit, _ := parsed["a/point"].pass(); hit {
				at = append(at, i+1)
			}
		}
		return at
	}

	require.NotEmpty(t, hits("seed=1,a/point=err:0.1"))
	require.Equal(t, hits("seed=1,a/point=err:0.1"), hits("a/point=err:0.1,seed=1"))
	require.NotEqual(t, hits("seed=1,a/point=err:0.1"), hits("seed=2,a/point=err:0.1"))
	require.Equal(t, []int{250}, hits("a/point=err:@250"))
}

func TestWhatIsNoSpecificationIsRefused(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"a/point", "a/point=kill", "a/point=kill:often", "a/point=kill:@often", "a/point=explode:1", "seed=one"} {
		_, err := parse(spec)
		require.Error(t, err, spec)
	}
}
