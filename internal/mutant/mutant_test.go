package mutant_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/mutant"
)

func TestMain(m *testing.M) {
	if os.Getenv("DIBS_MUTANT_CHILD") != "" {
		if mutant.On("a/bug") {
			fmt.Print("on")
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestABugIsOnWhereItIsNamedAndTheProgramWasBuiltWithIt(t *testing.T) {
	t.Parallel()
	for named, on := range map[string]bool{"a/bug": mutant.Planted, "another/bug": false, "": false} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "DIBS_MUTANT_CHILD=1", mutant.Variable+"="+named)
		said, err := child.Output()
		require.NoError(t, err)
		require.Equal(t, on, string(said) == "on", named)
	}
}

var place = regexp.MustCompile(`mutant\.On\("([^"]+)"\)`)

// The names of bugs are nowhere else, so a program that has none of them has none of the bugs.
func TestNoReleaseHasABug(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, found := range place.FindAllStringSubmatch(string(src), -1) {
			names[found[1]] = true
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, names)

	program := filepath.Join(t.TempDir(), "dibs")
	build := exec.Command("go", "build", "-o", program, "../../cmd/dibs")
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	binary, err := os.ReadFile(program)
	require.NoError(t, err)
	for name := range names {
		require.False(t, bytes.Contains(binary, []byte(name)), name)
	}
}
