// Package reach finds the tests that may run a program of the machine: those that come to os/exec
// through functions of the module. make test/bare runs them where no optional program is in reach.
// A function that names os.Args or os.Executable runs its own program, and does not count.
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

// A node is a declaration of a package, by the package and its name. Packages of the module are
// named by their folders. The name of a method begins with a dot.
type node struct{ folder, name string }

// The functions that find and start programs, and those that name the program itself.
var (
	starts = []node{{"os/exec", "Command"}, {"os/exec", "CommandContext"}, {"os/exec", "LookPath"}}
	itself = []node{{"os", "Args"}, {"os", "Executable"}}
)

// A graph has the nodes that name each node.
type graph struct {
	module string
	users  map[node][]node
	tests  []node
}

// Tests returns the names of the tests below dir, by folder, that may run a program. dir has a
// module of that path; folders with a go.mod of their own are left out.
func Tests(dir, module string) (map[string][]string, error) {
	g := &graph{module: module, users: map[node][]node{}}
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
	return g.reaching(), nil
}

func hasModule(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name, "go.mod"))
	return err == nil
}

// add notes the nodes that each declaration of a file names.
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
		var declared []node
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv != nil {
				declared = []node{{folder, "." + decl.Name.Name}}
				break
			}
			declared = []node{{folder, decl.Name.Name}}
			if strings.HasSuffix(name, "_test.go") && isTest(decl.Name.Name) {
				g.tests = append(g.tests, declared[0])
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, ident := range spec.Names {
						declared = append(declared, node{folder, ident.Name})
					}
				case *ast.TypeSpec:
					declared = append(declared, node{folder, spec.Name.Name})
				}
			}
		}
		used := uses(folder, imported, decl)
		if slices.ContainsFunc(itself, func(n node) bool { return used[n] }) {
			for _, n := range starts {
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

// uses returns the nodes that a declaration names.
func uses(folder string, imported map[string]string, decl ast.Decl) map[node]bool {
	used := map[node]bool{}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if from, ok := n.X.(*ast.Ident); ok && imported[from.Name] != "" {
				used[node{imported[from.Name], n.Sel.Name}] = true
				return false
			}
			used[node{folder, "." + n.Sel.Name}] = true
		case *ast.Ident:
			used[node{folder, n.Name}] = true
		}
		return true
	})
	return used
}

// reaching returns the tests from which a path leads to the functions that start programs.
func (g *graph) reaching() map[string][]string {
	reached := map[node]bool{}
	next := slices.Clone(starts)
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
		if found[test.folder] == nil {
			found[test.folder] = map[string]bool{}
		}
		found[test.folder][test.name] = true
	}
	tests := map[string][]string{}
	for folder, names := range found {
		tests[folder] = slices.Sorted(maps.Keys(names))
	}
	return tests
}
