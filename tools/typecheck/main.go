// Command typecheck type-checks the packages and tests of modules, each given by its folder. It reads
// the declarations of all that they import and builds nothing, so where nothing was built before it
// takes a small part of the time of go vet.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	wrong := 0
	for _, folder := range os.Args[1:] {
		n, err := check(folder)
		if err != nil {
			fmt.Fprintf(os.Stderr, "typecheck: %s: %v\n", folder, err)
			wrong++
		}
		wrong += n
	}
	if wrong > 0 {
		os.Exit(1)
	}
}

// check prints the errors in a module's own files, and returns their number.
func check(folder string) (wrong int, err error) {
	folder, err = filepath.Abs(folder)
	if err != nil {
		return 0, err
	}
	found, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedCompiledGoFiles,
		Dir:  folder, Env: append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off"), Tests: true,
		ParseFile: func(files *token.FileSet, name string, source []byte) (*ast.File, error) {
			file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
			if file == nil || strings.HasPrefix(name, folder+"/") || !strings.HasSuffix(name, ".go") { // or a main of go test
				return file, err
			}
			for _, d := range file.Decls { // of what a module imports, only the declarations count
				if f, ok := d.(*ast.FuncDecl); ok {
					f.Body = nil
				}
			}
			return file, err
		},
	}, "./...")
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no packages")
	}
	for _, p := range found {
		for _, e := range p.Errors {
			fmt.Fprintln(os.Stderr, e)
			wrong++
		}
	}
	return wrong, err
}
