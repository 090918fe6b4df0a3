package dibs_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prose"
)

// The share of sentences without a subject of their own, in percent, that each
// part of the project may have: [prose] counts them. It only falls: a change that lowers a share
// lowers its number here, and none raises it.
var mostFree = []struct {
	part    string
	percent float64
	old     int // sentences with a phrase that docs/naming.md replaces
	has     func(path string) bool
}{
	{"code", 2, 55, func(path string) bool {
		return isCode(path) && !strings.HasPrefix(path, "soak/") && !strings.HasPrefix(path, "bench/")
	}},
	{"soak", 1, 0, func(path string) bool { return isCode(path) && strings.HasPrefix(path, "soak/") }},
	{"bench", 1, 0, func(path string) bool { return isCode(path) && strings.HasPrefix(path, "bench/") }},
	{"docs", 1, 2, func(path string) bool { return !isCode(path) }},
}

func isCode(path string) bool { return filepath.Ext(path) == ".go" || filepath.Ext(path) == ".sql" }

func TestSentencesNameTheirSubjects(t *testing.T) {
	for _, most := range mostFree {
		t.Run(most.part, func(t *testing.T) {
			share, err := prose.Count(".", func(path string) bool { return most.has(filepath.ToSlash(path)) })
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d of %d sentences, %.2f %%, have a free who or what", len(share.Free), share.Sentences, share.Percent())
			if share.Sentences == 0 {
				t.Fatal("found no sentences")
			}
			if share.Percent() > most.percent {
				t.Errorf("%.2f %% of the sentences in %s have a free who or what, more than %.2f %%: "+
					"name the thing or the person, in the words of docs/naming.md, or leave the sentence out. "+
					"To list them: go run ./internal/prose/count -v DIR...",
					share.Percent(), most.part, most.percent)
			}
			if len(share.Old) > most.old {
				t.Errorf("%d sentences in %s have a phrase that docs/naming.md replaces, more than %d: "+
					"to list them: go run ./internal/prose/count -w DIR...", len(share.Old), most.part, most.old)
			}
		})
	}
}
