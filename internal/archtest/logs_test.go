package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The logger writes a duration of its own as a number, of which no reader knows the unit.
func TestDurationsInLogsHaveUnits(t *testing.T) {
	t.Parallel()
	bare := regexp.MustCompile(`\.(Durs?|TimeDiff)\("`)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Empty(t, bare.FindAllString(string(text), -1), "%s: Stringer writes a duration with its unit", path)
		return nil
	}))
}
