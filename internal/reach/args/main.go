// Command args prints the arguments with which go test runs the tests of this module that may run
// a program.
//
//	go test $(go run ./internal/reach/args)
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/reach"
)

func main() {
	tests, err := reach.Tests(".", "github.com/dibs-go/dibs")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
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
