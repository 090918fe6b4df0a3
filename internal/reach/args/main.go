// Command args prints the arguments with which go test runs the tests of this module that may call
// one of some functions. By default these are the functions that start programs.
//
//	go test $(go run ./internal/reach/args [-to FOLDER.FUNCTION] [FOLDER...])
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/reach"
)

func main() {
	to := flag.String("to", "", "the function, as in internal/pgtest.URL")
	flag.Parse()

	functions := reach.Programs()
	if folder, name, ok := strings.Cut(*to, "."); ok {
		functions = []reach.Function{{Package: folder, Name: name}}
	}
	tests, err := reach.Tests(".", "github.com/dibs-go/dibs", functions)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	maps.DeleteFunc(tests, func(folder string, _ []string) bool { return !wanted(folder, flag.Args()) })
	if len(tests) == 0 {
		fmt.Fprintln(os.Stderr, "args: there is no such test")
		os.Exit(1)
	}
	var names []string
	for _, of := range tests {
		names = append(names, of...)
	}
	slices.Sort(names)
	fmt.Printf("-run ^(%s)$", strings.Join(slices.Compact(names), "|"))
	for _, folder := range slices.Sorted(maps.Keys(tests)) {
		fmt.Print(" ./", folder)
	}
	fmt.Println()
}

// wanted reports whether a folder is in one of these trees; without any all are wanted.
func wanted(folder string, trees []string) bool {
	return len(trees) == 0 || slices.ContainsFunc(trees, func(tree string) bool {
		return folder == tree || strings.HasPrefix(folder, tree+"/")
	})
}
