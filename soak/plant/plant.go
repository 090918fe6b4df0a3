// Package plant puts bugs into Dibs, to show that a soak finds them.
package plant

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Mutant is a bug in a run, to show that the soak finds it.
type Mutant struct {
	Go       []Edit   // of the clients' program: In is a folder of a package, from the repository's root
	SQL      []Edit   // of the schema: In is a function
	Settings []string // of the server, as "fsync=off"
}

// An Edit replaces Old by New. Old must occur exactly once; differences in white space do not
// count.
type Edit struct{ In, Old, New string }

// Plant edits the functions of a migrated database. An edit that does not match is an error,
// because a run without the bug would be meaningless.
func (m *Mutant) Plant(ctx context.Context, conn *pgx.Conn) error {
	for _, e := range m.SQL {
		if err := e.plant(ctx, conn); err != nil {
			return fmt.Errorf("plant a bug in %s: %w", e.In, err)
		}
	}
	return nil
}

func (e Edit) plant(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'dibs'::regnamespace and proname = $1", e.In)
	if err != nil {
		return err
	}
	definition, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	at := e.find(definition)
	if len(at) != 1 {
		return e.errNotOnce(len(at))
	}
	_, err = conn.Exec(ctx, e.replace(definition, at[0]))
	return err
}

// Overlay returns the source files that the bug changes, each with its changed text, by path below
// root: the repository.
func (m *Mutant) Overlay(root string) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range m.Go {
		if err := e.overlay(root, changed); err != nil {
			return nil, fmt.Errorf("plant a bug in %s: %w", e.In, err)
		}
	}
	return changed, nil
}

// overlay looks for Old in all files of the package, so that an edit still applies once code has
// moved from one file to another.
func (e Edit) overlay(root string, changed map[string]string) error {
	paths, err := filepath.Glob(filepath.Join(root, e.In, "*.go"))
	if err != nil {
		return err
	}
	times := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, ok := changed[path]
		if !ok {
			read, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(read)
		}
		at := e.find(text)
		if len(at) == 1 {
			changed[path] = e.replace(text, at[0])
		}
		times += len(at)
	}
	if times != 1 {
		return e.errNotOnce(times)
	}
	return nil
}

func (e Edit) errNotOnce(times int) error {
	return fmt.Errorf("%q is there %d times, not once", e.Old, times)
}

func (e Edit) replace(text string, at []int) string { return text[:at[0]] + e.New + text[at[1]:] }

// find returns the places of Old in text.
func (e Edit) find(text string) [][]int {
	words := strings.Fields(e.Old)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	return regexp.MustCompile(strings.Join(words, `\s+`)).FindAllStringIndex(text, -1)
}

// Root returns the repository's root. The working folder must be in the soak's module.
func Root(ctx context.Context) (string, error) {
	said, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/dibs-go/dibs").Output()
	if err != nil {
		return "", fmt.Errorf("find the source of Dibs: run this in the folder soak of its repository: %w", err)
	}
	return strings.TrimSpace(string(said)), nil
}

// Build builds the soak with the bug and returns the program's path, in dir. go build reads the bug
// from an overlay, so no file of the repository changes.
func (m *Mutant) Build(ctx context.Context, root, dir string) (program string, err error) {
	overlay, err := m.writeOverlay(root, dir)
	if err != nil {
		return "", err
	}
	if program, err = filepath.Abs(filepath.Join(dir, "soak")); err != nil {
		return "", err
	}
	return program, goBuild(ctx, filepath.Join(root, "soak"), "-overlay", overlay, "-o", program, ".")
}

func goBuild(ctx context.Context, dir string, args ...string) error {
	build := exec.CommandContext(ctx, "go", append([]string{"build"}, args...)...)
	build.Dir = dir
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build with a bug: %w\n%s", err, said)
	}
	return nil
}

// writeOverlay writes the changed files, and the list of them for go build, to dir.
func (m *Mutant) writeOverlay(root, dir string) (path string, err error) {
	changed, err := m.Overlay(root)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range changed {
		replace[path] = filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}
