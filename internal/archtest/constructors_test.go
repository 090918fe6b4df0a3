package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Each constructor that returns no error is named here, with the reason.
var withoutError = map[string]string{
	"entity.NewProjection":                   "it takes no argument; On keeps mistakes, and entity.New returns them",
	"handler.New":                            "it takes no argument; the functions that register keep mistakes, and consumer.New returns them",
	"handler.NewHandler":                     "its error is an argument; Register keeps it, and consumer.New returns it",
	"messagestore.NewInvalidError":           "its result is an error",
	"messagestore/memory.New":                "it takes no argument",
	"messagestore/memory.NewWithClock":       "it refuses nothing: a clock that is nil is time.Now",
	"saga.NewAsk":                            "a step is a variable of a package, where an error has no reader; saga.New returns its mistakes",
	"saga.NewStep":                           "as saga.NewAsk",
	"saga.NewTxStep":                         "as saga.NewAsk",
	"handler/handlertest.New":                "it fails the test",
	"messagestore/postgres/postgrestest.New": "it fails the test",
}

// A public package's constructor refuses mistakes at once, by an error, and not by a panic or at the first call.
func TestConstructorsReturnErrors(t *testing.T) {
	sources := files(t, ".go")
	for _, dir := range append([]string{"observe", "serve", "intent/redisintent"}, brokerModules...) {
		maps.Copy(sources, filesIn(t, dir, ".go"))
	}
	found, unused := 0, maps.Clone(withoutError)
	for _, file := range slices.Sorted(maps.Keys(sources)) {
		pkg := path.Dir(filepath.ToSlash(file))
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(pkg, "serve/gen/") || !isPublic(pkg) { // gen is generated
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, sources[file], parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			f, is := decl.(*ast.FuncDecl)
			if !is || !isConstructor(f) {
				continue
			}
			found++
			name := pkg + "." + f.Name.Name
			_, excepted := withoutError[name]
			delete(unused, name)
			switch returns := returnsError(f); {
			case !returns && !excepted:
				t.Errorf("%s: %s returns no error as its last result", set.Position(f.Pos()), name)
			case returns && excepted:
				t.Errorf("%s: %s returns an error: take it off withoutError", set.Position(f.Pos()), name)
			}
		}
	}
	for name := range unused {
		t.Errorf("%s is in withoutError, and there is no such constructor", name)
	}
	if found < 25 {
		t.Errorf("only %d constructors were found: the test looks for another shape than the code has", found)
	}
}

// isPublic reports whether a user of the library imports the package.
func isPublic(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !slices.Contains([]string{"cmd", "examples", "scripts"}, first) && !slices.Contains(strings.Split(pkg, "/"), "internal")
}

// isConstructor reports whether f is called New, or New and a name: Newest is neither.
func isConstructor(f *ast.FuncDecl) bool {
	rest, is := strings.CutPrefix(f.Name.Name, "New")
	next, _ := utf8.DecodeRuneInString(rest)
	return is && f.Recv == nil && (rest == "" || unicode.IsUpper(next))
}

func returnsError(f *ast.FuncDecl) bool {
	if f.Type.Results == nil {
		return false
	}
	last, is := f.Type.Results.List[len(f.Type.Results.List)-1].Type.(*ast.Ident)
	return is && last.Name == "error"
}
