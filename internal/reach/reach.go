// Package reach finds the tests that may call a function, through functions of the module.
//
// make test/bare runs those that may start a program of the machine, where no optional one is in
// reach. A function that names os.Args or os.Executable starts its own program, and does not count.
// A version's turn in make ci runs those that may use PostgreSQL.
//
// Functions are told apart by folder and name alone, methods by name. So a few tests are found that
// run nothing.
package reach

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A Function is a function of a package, or another declaration. Packages of the module are named
// by their folders, and others by their paths. The name of a method begins with a dot.
type Function struct{ Package, Name string }

// Programs returns the functions that find and start programs.
func Programs() []Function {
	return []Function{{"os/exec", "Command"}, {"os/exec", "CommandContext"}, {"os/exec", "LookPath"}}
}

// itself has the names of the program of the process.
var itself = []Function{{"os", "Args"}, {"os", "Executable"}}

// A graph has the functions that name each function.
type graph struct {
	module string
	users  map[Function][]Function
	tests  []Function
}

// Tests returns the names of the tests below dir, by folder, that may call one of the functions.
// dir has a module of that path; folders with a go.mod of their own are left out.
func Tests(dir, module string, to []Function) (map[string][]string, error) {
	g := &graph{module: module, users: map[Function][]Function{}}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") || hasModule(dir, name)):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err == nil {
			g.add(name, file)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return g.reaching(to), nil
}

func hasModule(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name, "go.mod"))
	return err == nil
}

// add notes the functions that each declaration of a file names.
func (g *graph) add(name string, file *ast.File) {
	folder := path.Dir(name)
	imported := map[string]string{} // folders by their names in the file
	for _, spec := range file.Imports {
		from := strings.Trim(spec.Path.Value, "`\"")
		local := path.Base(from)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if from == g.module {
			from = "."
		}
		imported[local] = strings.TrimPrefix(from, g.module+"/")
	}
	for _, decl := range file.Decls {
		var declared []Function
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv != nil {
				declared = []Function{{folder, "." + decl.Name.Name}}
				break
			}
			declared = []Function{{folder, decl.Name.Name}}
			if strings.HasSuffix(name, "_test.go") && isTest(decl.Name.Name) {
				g.tests = append(g.tests, declared[0])
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, ident := range spec.Names {
						declared = append(declared, Function{folder, ident.Name})
					}
				case *ast.TypeSpec:
					declared = append(declared, Function{folder, spec.Name.Name})
				}
			}
		}
		used := uses(folder, imported, decl)
		if slices.ContainsFunc(itself, func(n Function) bool { return used[n] }) {
			for _, n := range Programs() {
				delete(used, n)
			}
		}
		for n := range used {
			g.users[n] = append(g.users[n], declared...)
		}
	}
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example"))
}

// uses returns the functions that a declaration names.
func uses(folder string, imported map[string]string, decl ast.Decl) map[Function]bool {
	used := map[Function]bool{}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if from, ok := n.X.(*ast.Ident); ok && imported[from.Name] != "" {
				used[Function{imported[from.Name], n.Sel.Name}] = true
				return false
			}
			used[Function{folder, "." + n.Sel.Name}] = true
		case *ast.Ident:
			used[Function{folder, n.Name}] = true
		}
		return true
	})
	return used
}

// reaching returns the tests from which a path leads to one of the functions.
func (g *graph) reaching(to []Function) map[string][]string {
	reached := map[Function]bool{}
	next := slices.Clone(to)
	for len(next) > 0 {
		last := next[len(next)-1]
		next = next[:len(next)-1]
		for _, user := range g.users[last] {
			if !reached[user] {
				reached[user] = true
				next = append(next, user)
			}
		}
	}
	found := map[string]map[string]bool{}
	for _, test := range g.tests {
		if !reached[test] {
			continue
		}
		if found[test.Package] == nil {
			found[test.Package] = map[string]bool{}
		}
		found[test.Package][test.Name] = true
	}
	tests := map[string][]string{}
	for folder, names := range found {
		tests[folder] = slices.Sorted(maps.Keys(names))
	}
	return tests
}
