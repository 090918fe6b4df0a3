package migrations

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
)

// A Part is a system of which only a test knows.
type Part struct {
	Prefix  string
	Schema  string // defaults to dibs
	Version int    // defaults to 1
	Files   map[string]string
}

func with(extra []Part) []part {
	all := slices.Clone(parts)
	for _, p := range extra {
		files := fstest.MapFS{}
		for name, text := range p.Files {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		all = append(all, part{prefix: p.Prefix, schema: cmp.Or(p.Schema, "dibs"), version: cmp.Or(p.Version, 1), files: files})
	}
	return all
}

// UpWith is Up with more parts.
func UpWith(ctx context.Context, conn *pgx.Conn, config *Config, extra ...Part) error {
	return up(ctx, conn, config, with(extra))
}

// StatusWith is Status with more parts.
func StatusWith(ctx context.Context, conn *pgx.Conn, config *Config, extra ...Part) ([]Migration, error) {
	return status(ctx, conn, config, with(extra))
}

// DriftWith is Drift with more parts.
func DriftWith(ctx context.Context, conn *pgx.Conn, extra ...Part) (report *DriftReport, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		report, err = drift(ctx, tx, "dibs", with(extra))
		return err
	})
	return report, err
}

// A File is an embedded file of SQL.
type File struct {
	Name, SQL, SHA256 string
	Object            string   // that a function file makes
	Grants            []string // to one role each
}

// Files returns the embedded ones, in the order that they are applied in.
func Files() []File {
	files, err := read(parts)
	if err != nil {
		panic(err)
	}
	all := make([]File, len(files))
	for i, f := range files {
		all[i] = File{f.name, f.sql, f.sha256, "", f.grants}
		if !f.numbered() && f.name != first {
			all[i].Object = f.object()
		}
	}
	return all
}

// Order returns the names of function files in the order that they are applied in.
func Order(files map[string]string) ([]string, error) {
	of := with([]Part{{Prefix: "test/", Files: files}})[len(parts):]
	all, err := read(append(slices.Clone(parts[:1]), of...))
	var names []string
	for _, f := range all {
		if f.part.prefix == "test/" {
			names = append(names, strings.TrimPrefix(f.name, "test/"))
		}
	}
	return names, err
}

// UpToTables is Up as far as so many of the numbered files of a part, and without functions
// but those that every state has.
func UpToTables(ctx context.Context, conn *pgx.Conn, prefix string, n int) error {
	all := slices.Clone(parts)
	for i, p := range all {
		if p.prefix != prefix {
			continue
		}
		files := fstest.MapFS{}
		names, err := fs.Glob(p.files, "tables/*.sql")
		if err != nil {
			return err
		}
		for _, name := range append(names[:n], "functions/grant_rights.sql", "functions/revoke_defaults.sql") {
			if text, err := fs.ReadFile(p.files, name); err == nil {
				files[name] = &fstest.MapFile{Data: text}
			}
		}
		all[i].files = files
		return up(ctx, conn, nil, all[:i+1])
	}
	return fmt.Errorf("no part %s", prefix)
}

// Tables returns how many numbered files each part has, by its prefix.
func Tables() map[string]int {
	all := map[string]int{}
	for _, f := range Files() {
		if f.Object == "" && f.Name != first {
			all[prefixOf(f.Name)]++
		}
	}
	return all
}

// ReadCatalogs returns the catalog of each part, by its prefix, from databases with one,
// two and more of the parts.
func ReadCatalogs(ctx context.Context, connect func() *pgx.Conn) (map[string]string, error) {
	texts, before := map[string]string{}, objects{}
	for i, p := range parts {
		conn := connect()
		if err := up(ctx, conn, nil, parts[:i+1]); err != nil {
			return nil, err
		}
		var all objects
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			all, err = readCatalog(ctx, tx, "dibs")
			return err
		})
		if err != nil {
			return nil, err
		}
		made := objects{}
		for object, facts := range all {
			was, there := before[object]
			if there && !slices.Equal(slices.Sorted(slices.Values(facts)), slices.Sorted(slices.Values(was))) {
				return nil, fmt.Errorf("the part %s changes %s", p.prefix, object)
			}
			if !there {
				made[object] = facts
			}
		}
		before, texts[p.prefix] = all, made.String()
	}
	return texts, nil
}

// Catalog is the file of the part with the prefix.
func Catalog(prefix string) string {
	for _, p := range parts {
		if text, err := fs.ReadFile(p.files, "catalog.txt"); err == nil && p.prefix == prefix {
			return string(text)
		}
	}
	return ""
}
