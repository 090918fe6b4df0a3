// Command count prints for each folder how many sentences its comments and
// Markdown have, the share of those with a free pronoun, and how many have a
// phrase that docs/naming.md replaces.
//
//	go run ./internal/prose/count [-v] [-w] [-ext .go,.sql] DIR...
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/prose"
)

func main() {
	list := flag.Bool("v", false, "list the sentences with a free pronoun")
	words := flag.Bool("w", false, "list the sentences with a phrase that docs/naming.md replaces, and its word")
	ends := flag.String("ext", "", "only files whose names end so, as in .go,.sql")
	flag.Parse()

	var wanted []string
	if *ends != "" {
		wanted = strings.Split(*ends, ",")
	}
	keep := func(path string) bool { return wanted == nil || slices.Contains(wanted, filepath.Ext(path)) }
	dirs := flag.Args()
	if len(dirs) == 0 {
		dirs = []string{"."}
	}

	var total prose.Share
	for _, dir := range dirs {
		share, err := prose.Count(dir, keep)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if *list {
			for _, found := range share.Free {
				fmt.Println(found)
			}
		}
		if *words {
			for _, found := range share.Old {
				fmt.Printf("%s:%d: (%s) %s\n", found.Path, found.Line, found.Old, found.Text)
			}
		}
		row(dir, share)
		total.Sentences += share.Sentences
		total.Free = append(total.Free, share.Free...)
		total.Old = append(total.Old, share.Old...)
	}
	if len(dirs) > 1 {
		row("total", total)
	}
}

func row(name string, share prose.Share) {
	fmt.Printf("%-40s %6d sentences %5d free %5.1f %% %5d old words\n", name, share.Sentences, len(share.Free), share.Percent(), len(share.Old))
}
