package migrations

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Objects of the catalog, for seeds.
const (
	seedBegins   = "function dibs.begins_rightly(stream text, \"position\" bigint)\n  body 6d95d7c9e6f2c5059de67d93b29a5e3c\n  returns boolean\n  sql stable\n"
	seedCategory = "function dibs.category(stream_name text)\n  returns text\n  sql immutable parallel safe\n"
	seedEpoch    = "function dibs.epoch()\n  grant execute to dibs_admin\n  grant execute to dibs_reader\n  plpgsql volatile security definer\n"
)

// A catalog is read as it is written, and no line of it is lost.
func FuzzACatalogIsReadAsItIsWritten(f *testing.F) {
	for _, p := range parts {
		f.Add(Catalog(p.prefix))
	}
	f.Add("  returns text\n" + seedBegins)                                                                   // fact before all objects
	f.Add("schema dibs\n    owner\n\towner\n owner\n")                                                       // facts further in
	f.Add("function dibs.category(stream_name text)\r\n  returns text\r\n  sql immutable parallel safe\r\n") // line ends of another system
	f.Add("schema dibs\n  owner dibs")                                                                       // no end
	f.Add("\xff\n  \xff\x00\n\xed\xa0\x80")                                                                  // not text
	f.Add("")                                                                                                // nothing
	f.Add(seedCategory + "\n" + seedBegins + "\n" + seedCategory)                                            // object twice
	f.Add(seedBegins + "\n\nview message_store.messages\n  grant select to message_store\n")
	f.Add("  \n   \n \n" + seedCategory)    // spaces alone
	f.Add(seedBegins + "\n" + seedCategory) // two objects
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

// Two catalogs differ if and only if one has an object or a fact that the other lacks. A catalog
// that was mended by the found differences has no drift.
func FuzzWhatDriftedIsAllThatDiffers(f *testing.F) {
	f.Add(seedBegins+"\n"+seedCategory, seedCategory+"\n"+seedEpoch) // absent and foreign
	// another body
	f.Add(seedBegins, "function dibs.begins_rightly(stream text, \"position\" bigint)\n  body 0000d7c9e6f2c5059de67d93b29a5e3c\n  returns boolean\n  sql stable\n")
	f.Add("  returns text\n", "  \n")                    // fact before all objects
	f.Add(seedCategory+"  returns text\n", seedCategory) // fact twice
	f.Add("", seedCategory)                              // nothing
	f.Add(seedEpoch, seedEpoch)                          // nothing drifted
	// other order
	f.Add(seedCategory+"\n"+seedEpoch, "function dibs.epoch()\n  plpgsql volatile security definer\n  grant execute to dibs_reader\n  grant execute to dibs_admin\n\n"+seedCategory)
	f.Add(seedEpoch, seedEpoch+"  grant execute to public with grant option\n") // right given
	// right of nobody
	f.Add("table dibs.messages\n  grant select to \n  grant \n", "table dibs.messages\n  grant select to public to dibs_reader\n")
	f.Add(seedEpoch, "function dibs.epoch()\n  grant execute to dibs_admin\n  plpgsql volatile security definer\n") // right taken
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

		// No missing grant is reported for a role that does not exist.
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
