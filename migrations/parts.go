package migrations

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/pglink"
)

//go:embed schema.sql tables functions catalog.txt
var embedded embed.FS

// messageStore has the functions, types and views that message-db's clients call, over the tables
// of the schema dibs.
//
//go:embed message_store
var messageStore embed.FS

const (
	// messageStoreTaken is SQL for whether message_store.messages is a table, like in message-db;
	// in this store it is a view.
	messageStoreTaken = `exists (select from pg_catalog.pg_class where relnamespace = to_regnamespace('message_store') and relname = 'messages' and relkind in ('r', 'p'))`

	// messageStoreLeftOut is the reason for leaving out the schema message_store while it is
	// message-db's own, until dibs migrate adopt takes over its messages.
	messageStoreLeftOut = "message_store is message-db's own, until it is adopted"
)

// A part is the SQL of one system: its tables, functions and rights.
//
// The folder tables has numbered files, each applied once. In the folder functions each file makes
// the function or the view of its name, and is applied again if it has changed; if a file is gone,
// its function is dropped. Table files come before all functions, and call no functions.
type part struct {
	prefix  string // of the names of its files: "", "message_store/"
	schema  string // of its functions, unless a file's name says another: "dibs.take.sql"
	version int    // raised with the first change after a release
	files   fs.FS

	// If this SQL is true, the part is left out. It is for the schema dibs only.
	leftOutWhere string
	leftOut      string
}

// parts are all systems, in the order of applying them.
var parts = []part{
	{schema: pglink.DefaultSchema, version: 9, files: embedded},
	{
		prefix: "message_store/", schema: "message_store", version: 1, files: folder(messageStore, "message_store"),
		leftOutWhere: messageStoreTaken, leftOut: messageStoreLeftOut,
	},
}

// folder returns a folder of embedded files.
func folder(files embed.FS, name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // the name is a constant
	}
	return sub
}

// A file is a file of SQL, written for the schema dibs.
type file struct {
	part   *part
	name   string   // "tables/0001_messages.sql"
	sha256 string   // of the whole file
	sql    string   // without the grants
	grants []string // each to one role
}

// numbered reports whether the file is applied only once, and never changes after a release.
func (f file) numbered() bool { return strings.HasPrefix(f.name, f.part.prefix+"tables/") }

// prefixOf returns the prefix of the part that has the file.
func prefixOf(name string) string {
	folder, _ := path.Split(name)
	return strings.TrimSuffix(strings.TrimSuffix(folder, "tables/"), "functions/")
}

// object returns the function or view that a file of the folder functions makes.
func (f file) object() string {
	name := strings.TrimSuffix(path.Base(f.name), ".sql")
	if strings.Contains(name, ".") {
		return name
	}
	return f.part.schema + "." + name
}

// first is the file that makes the schema and the function that installs all others.
const first = "schema.sql"

func newFile(p *part, name string, text []byte) file {
	f := file{part: p, name: p.prefix + name, sha256: fmt.Sprintf("%x", sha256.Sum256(text))}
	f.sql, f.grants = cutGrants(string(text))
	return f
}

// cutGrants cuts the grants out of a file: statements that begin at the start of a line and end at
// the end of a line. Lines keep their numbers. Each migration reads all files, so this does not use
// a regular expression, which took longer than everything else.
func cutGrants(text string) (sql string, grants []string) {
	var b strings.Builder
	for text != "" {
		statement, after, ends := "", "", false
		if strings.HasPrefix(text, "grant ") {
			statement, after, ends = strings.Cut(text, ";\n")
		}
		to := strings.LastIndex(statement, " to ")
		if !ends || to < 0 || strings.Contains(statement, ";") {
			_, rest, _ := strings.Cut(text, "\n")
			b.WriteString(text[:len(text)-len(rest)])
			text = rest
			continue
		}
		for role := range strings.SplitSeq(statement[to+len(" to "):], ",") {
			grants = append(grants, strings.Join(strings.Fields(statement[:to]+" to "+role), " "))
		}
		b.WriteString(strings.Repeat("\n", strings.Count(statement, "\n")+1))
		text = after
	}
	return b.String(), grants
}

// named returns the names with a schema in SQL, without names in comments.
func named(sql string) (names []string) {
	for line := range strings.Lines(sql) {
		code, _, _ := strings.Cut(line, "--")
		for _, word := range strings.FieldsFunc(code, func(r rune) bool { return r != '.' && r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
			if parts := strings.SplitN(word, ".", 3); len(parts) > 1 {
				names = append(names, parts[0]+"."+parts[1])
			}
		}
	}
	return names
}

// read returns the files of all parts, in the order of applying them.
func read(parts []part) ([]file, error) {
	text, err := embedded.ReadFile(first)
	if err != nil {
		return nil, err
	}
	all := []file{newFile(&parts[0], first, text)}
	for i := range parts {
		p := &parts[i]
		for _, folder := range []string{"tables", "functions"} {
			names, err := fs.Glob(p.files, folder+"/*.sql")
			if err != nil {
				return nil, err
			}
			var of []file
			for _, name := range names {
				text, err := fs.ReadFile(p.files, name)
				if err != nil {
					return nil, err
				}
				of = append(of, newFile(p, name, text))
			}
			if folder == "functions" {
				if of, err = ordered(of); err != nil {
					return nil, err
				}
			}
			all = append(all, of...)
		}
	}
	return all, nil
}

// ordered puts each file behind the files that make the functions and views it needs. PostgreSQL
// checks them when it creates a view, a trigger or a function in SQL, but not for a function in
// PL/pgSQL.
func ordered(files []file) ([]file, error) {
	byObject, needs := map[string]file{}, map[string][]string{}
	for _, f := range files {
		byObject[f.object()] = f
	}
	for object, f := range byObject {
		if strings.Contains(f.sql, "\nlanguage plpgsql") {
			continue
		}
		for _, name := range named(f.sql) {
			if _, ok := byObject[name]; ok && name != object {
				needs[object] = append(needs[object], name)
			}
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var all []file
	const begun, done = 1, 2
	state := map[string]int{}
	var visit func(object string) error
	visit = func(object string) error {
		switch state[object] {
		case begun:
			return errors.New(object + " needs itself")
		case done:
			return nil
		}
		state[object] = begun
		for _, need := range slices.Sorted(slices.Values(needs[object])) {
			if err := visit(need); err != nil {
				return fmt.Errorf("%s: %w", object, err)
			}
		}
		state[object] = done
		all = append(all, byObject[object])
		return nil
	}
	for _, f := range files {
		if err := visit(f.object()); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// A step is a part of the script, and the file that it applies.
type step struct {
	file string
	sql  string
}

// script returns SQL that brings a database from any state to the state of the files. It must run
// in one transaction.
func script(schema string, parts []part) ([]step, error) {
	parts = within(schema, parts)
	files, err := read(parts)
	if err != nil {
		return nil, err
	}
	var steps []step
	add := func(name, sql string) { steps = append(steps, step{name, pglink.InSchema(sql, schema)}) }
	for _, f := range files {
		if f.name == first {
			add(f.name, f.sql)
			f.sql = ""
		}
		add(f.name, fmt.Sprintf("select dibs.install('%s', '%s', %d, %s, $file$\n%s$file$)%s;\n",
			f.name, f.sha256, f.part.version, array(f.grants), f.sql, f.part.where()))
	}
	for i := range parts {
		p := &parts[i]
		if p.leftOutWhere != "" {
			add("", fmt.Sprintf("do $left_out$ begin if %s then raise warning '%s is left out: %s'; end if; end $left_out$;\n",
				p.leftOutWhere, strings.TrimSuffix(p.prefix, "/"), strings.ReplaceAll(p.leftOut, "'", "''")))
		}
		var kept []string
		for _, f := range files {
			if f.part == p && strings.HasPrefix(f.name, p.prefix+"functions/") {
				kept = append(kept, f.name)
			}
		}
		add("", fmt.Sprintf("select dibs.uninstall('%s', '%s', %s)%s;\n", p.prefix, p.schema, array(kept), p.where()))
		add("", fmt.Sprintf("select dibs.revoke_defaults('%s')%s;\n", p.schema, p.where()))
	}
	add("", "select dibs.grant_rights();\n")
	add("", "select set_config('role', current_setting('dibs.caller_role'), true), set_config('search_path', current_setting('dibs.caller_path'), true);\n")
	return steps, nil
}

// within returns the parts of a store in the schema.
func within(schema string, parts []part) []part {
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return schema != pglink.DefaultSchema && p.leftOutWhere != ""
	})
}

func (p *part) where() string {
	if p.leftOutWhere == "" {
		return ""
	}
	return " where not " + p.leftOutWhere
}

func array(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	return "array[" + strings.Join(quoted, ", ") + "]::text[]"
}
