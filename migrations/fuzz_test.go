package migrations

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A catalog is read as it is written, and no line of it is lost.
func FuzzACatalogIsReadAsItIsWritten(f *testing.F) {
	f.Add(catalog)
	f.Fuzz(func(t *testing.T, text string) {
		read := parseCatalog(text)
		if len(read[""]) == 0 {
			delete(read, "") // two spaces before all objects say nothing
		}

		named, facts := map[string]bool{}, 0
		for line := range strings.SplitSeq(text, "\n") {
			switch fact, indented := strings.CutPrefix(line, "  "); {
			case !indented && line != "":
				named[line] = true
			case indented && fact != "":
				facts++
			}
		}
		for object, its := range read {
			require.True(t, named[object] || object == "", "%q", object)
			delete(named, object)
			require.NotContains(t, its, "")
			facts -= len(its)
		}
		require.Empty(t, named)
		require.Zero(t, facts)
		again := parseCatalog(read.String())
		require.Equal(t, sets(read), sets(again))
		require.Equal(t, read.String(), again.String())
	})
}

// Two catalogs differ if and only if one has what the other has not; and to put right what
// is found is to have no drift.
func FuzzWhatDriftedIsAllThatDiffers(f *testing.F) {
	f.Fuzz(func(t *testing.T, made, found string) {
		should, is := parseCatalog(made), parseCatalog(found)

		differences := compare(should, is, nil)

		same := maps.EqualFunc(sets(should), sets(is), slices.Equal)
		require.Equal(t, same, len(differences) == 0)
		mended := maps.Clone(is)
		for i, d := range differences {
			require.True(t, i == 0 || differences[i-1].Object < d.Object, "each object is there once, in its order")
			require.True(t, strings.HasPrefix(d.String(), d.Object+": "))
			switch {
			case d.Absent:
				mended[d.Object] = should[d.Object]
			case d.Foreign:
				delete(mended, d.Object)
			default:
				has := slices.DeleteFunc(slices.Clone(is[d.Object]), func(fact string) bool { return slices.Contains(d.Has, fact) })
				mended[d.Object] = append(has, d.Lacks...)
			}
		}
		require.Empty(t, compare(should, mended, nil))

		// Of who does not exist no right is missed.
		roles := should.roles()
		require.NotContains(t, roles, "")
		require.NotContains(t, roles, "public")
		for _, d := range compare(should, is, roles) {
			for _, fact := range d.Lacks {
				require.NotContains(t, roles, grantee(fact))
			}
		}
	})
}

// sets returns the facts of each object, sorted, each once.
func sets(all objects) map[string][]string {
	found := map[string][]string{}
	for object, facts := range all {
		found[object] = slices.Compact(slices.Sorted(slices.Values(facts)))
	}
	return found
}
