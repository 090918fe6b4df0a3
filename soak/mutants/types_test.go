package mutants_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dibs-go/dibs/soak/plant"
)

// packageTypes holds the types of all packages of the repository, to check a package with a planted
// bug without a build.
type packageTypes struct {
	root    string
	exports map[string]string   // by import path: the file of its types
	files   map[string][]string // by folder: its Go files
	paths   map[string]string   // by folder: its import path
}

// loadTypes has the packages below root compiled, as far as they have changed since, and finds
// their types.
func loadTypes(ctx context.Context, root string) (*packageTypes, error) {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles", "./...")
	list.Dir, list.Stderr = root, os.Stderr
	said, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	t := &packageTypes{root: root, exports: map[string]string{}, files: map[string][]string{}, paths: map[string]string{}}
	for decoder := json.NewDecoder(strings.NewReader(string(said))); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return t, nil
		} else if err != nil {
			return nil, err
		}
		t.exports[p.ImportPath], t.files[p.Dir], t.paths[p.Dir] = p.Export, p.GoFiles, p.ImportPath
	}
}

// holds returns an error unless the packages that the bug is in still compile.
func (t *packageTypes) holds(m *plant.Mutant) error {
	changed, err := m.Overlay(t.root)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	for path := range changed {
		dirs[filepath.Dir(path)] = true
	}
	for dir := range dirs {
		if err := t.check(dir, changed); err != nil {
			return err
		}
	}
	return nil
}

func (t *packageTypes) check(dir string, changed map[string]string) error {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range t.files[dir] {
		path := filepath.Join(dir, name)
		var text any
		if edited, ok := changed[path]; ok {
			text = edited
		}
		file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(t.exports[path]) })}
	_, err := config.Check(t.paths[dir], set, files, nil)
	return err
}
