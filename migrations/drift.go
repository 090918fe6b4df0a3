package migrations

import (
	"context"
	_ "embed" // for SQL
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
)

//go:embed catalog.sql
var catalogSQL string

// A DriftReport has the differences between a database and the migrations.
type DriftReport struct {
	// Differences are sorted by object. Without differences nothing has drifted.
	Differences []Difference

	// AbsentRoles do not exist on this server, and so have no rights: the server's administrator
	// may choose that, so it is not a difference.
	AbsentRoles []string

	// NotApplied are the files that are not applied, with the reason if [Up] leaves them out. The
	// parts of the schema that are left out are not compared. It is nil if the user may not read
	// the table of migrations.
	NotApplied []Migration
}

// A Difference is an object that differs from the migrations.
type Difference struct {
	Object  string   // "function dibs.append(streams text[], ...)"
	Absent  bool     // the object is missing
	Foreign bool     // the object exists, and no migration made it
	Lacks   []string // facts that are missing, such as a column, a constraint, a right
	Has     []string // facts that are there instead, or in addition
}

// String returns the difference in one line.
func (d Difference) String() string {
	switch {
	case d.Absent:
		return d.Object + ": is not there"
	case d.Foreign:
		return d.Object + ": is not one of ours"
	}
	var said []string
	for _, fact := range d.Lacks {
		said = append(said, "lacks: "+fact)
	}
	for _, fact := range d.Has {
		said = append(said, "has: "+fact)
	}
	return d.Object + ": " + strings.Join(said, "; ")
}

// Drift compares the objects of a database with the objects that the migrations make: tables,
// indexes, constraints, triggers, views, functions, and the rights to them. It needs only the right
// to connect, takes no lock that others wait for, and changes nothing. It compares bodies of views,
// and of the few functions that are written without a string, by their references, and does not
// compare the expressions of checks and of generated columns.
//
// In a database that was not migrated there is nothing to compare, and NotApplied has all files.
// The connection may be in a transaction.
func Drift(ctx context.Context, conn interface {
	Begin(context.Context) (pgx.Tx, error)
}, config *Config,
) (*DriftReport, error) {
	schema, err := config.schema()
	if err == nil {
		connection := reflect.ValueOf(conn)
		err = given(ctx, "connection", conn == nil || connection.Kind() == reflect.Pointer && connection.IsNil())
	}
	if err != nil {
		return nil, fmt.Errorf("schema drift: %w", err)
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("schema drift: %w", plain(err))
	}
	report, err := drift(ctx, tx, schema, parts)
	// It is not committed, so that a surrounding transaction gets its settings back.
	if rollbackErr := tx.Rollback(context.WithoutCancel(ctx)); err == nil {
		err = rollbackErr
	}
	if err != nil {
		return nil, fmt.Errorf("schema drift: %w", plain(err))
	}
	return report, nil
}

func drift(ctx context.Context, tx pgx.Tx, schema string, parts []part) (*DriftReport, error) {
	report := &DriftReport{}
	is, err := readCatalog(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	a, err := accessOf(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	unknown := !a.readable && a.exists
	applied := map[string]bool{} // by the prefix of the part
	if !unknown {
		all, err := readStatus(ctx, tx, schema, parts)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if !m.Applied {
				report.NotApplied = append(report.NotApplied, m)
				continue
			}
			applied[prefixOf(m.Name)] = true
		}
		if len(report.NotApplied) == len(all) {
			return report, nil
		}
	}
	left, err := leftOut(ctx, tx, schema, parts)
	if err != nil {
		return nil, err
	}
	should := objects{}
	for _, p := range parts {
		made, err := p.catalog()
		if err != nil {
			return nil, err
		}
		if left[p.prefix] == "" && (applied[p.prefix] || unknown) {
			maps.Copy(should, made)
		} else if p.schema != pglink.DefaultSchema {
			maps.DeleteFunc(is, func(object string, _ []string) bool { return of(object, p.schema) })
		}
	}
	roles, err := existing(ctx, tx, should.roles())
	if err != nil {
		return nil, err
	}
	for _, role := range should.roles() {
		if !slices.Contains(roles, role) {
			report.AbsentRoles = append(report.AbsentRoles, role)
		}
	}
	report.Differences = compare(should, is, report.AbsentRoles)
	return report, nil
}

// catalog returns the objects that the part makes, from a file that a test writes: each object with
// its columns, constraints, hash, settings and rights indented below it.
func (p *part) catalog() (objects, error) {
	text, err := fs.ReadFile(p.files, "catalog.txt")
	return parseCatalog(string(text)), err
}

// objects maps each object to its facts.
type objects map[string][]string

func readCatalog(ctx context.Context, tx pgx.Tx, schema string) (objects, error) {
	if err := ownNames(ctx, tx); err != nil { // so that they are written with their schemas
		return nil, err
	}
	rows, err := tx.Query(ctx, catalogSQL, schema)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Object, Fact string }])
	if err != nil {
		return nil, err
	}
	all := objects{}
	for _, line := range lines {
		all.add(line.Object, line.Fact)
	}
	return all, nil
}

func parseCatalog(text string) objects {
	all := objects{}
	object := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if fact, indented := strings.CutPrefix(line, "  "); indented {
			all.add(object, fact)
		} else if line != "" {
			object = line
			all.add(object, "")
		}
	}
	return all
}

func (o objects) add(object, fact string) {
	if fact == "" {
		o[object] = slices.Clip(o[object])
		return
	}
	o[object] = append(o[object], fact)
}

func (o objects) String() string {
	var b strings.Builder
	for _, object := range slices.Sorted(maps.Keys(o)) {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(object + "\n")
		for _, fact := range slices.Sorted(slices.Values(o[object])) {
			b.WriteString("  " + fact + "\n")
		}
	}
	return b.String()
}

// of reports whether an object is in a schema: "function dibs.append(...)" and "schema dibs" are in
// dibs.
func of(object, schema string) bool {
	_, name, _ := strings.Cut(strings.TrimPrefix(object, "default privileges in "), " ")
	return name == schema || strings.HasPrefix(name, schema+".")
}

// roles returns the roles that have rights.
func (o objects) roles() []string {
	found := map[string]bool{}
	for _, facts := range o {
		for _, fact := range facts {
			if role := grantee(fact); role != "" {
				found[role] = true
			}
		}
	}
	delete(found, "public")
	return slices.Sorted(maps.Keys(found))
}

// grantee returns the role in "grant execute to dibs_reader", or "".
func grantee(fact string) string {
	if !strings.HasPrefix(fact, "grant ") {
		return ""
	}
	_, role, _ := strings.Cut(strings.TrimSuffix(fact, " with grant option"), " to ")
	return role
}

func existing(ctx context.Context, tx pgx.Tx, roles []string) ([]string, error) {
	rows, err := tx.Query(ctx, "select rolname::text from pg_roles where rolname = any ($1)", roles)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func compare(should, is objects, absent []string) []Difference {
	var all []Difference
	for _, object := range slices.Sorted(maps.Keys(should)) {
		facts, there := is[object]
		if !there {
			all = append(all, Difference{Object: object, Absent: true})
			continue
		}
		d := Difference{Object: object}
		for _, fact := range should[object] {
			if !slices.Contains(facts, fact) && !slices.Contains(absent, grantee(fact)) {
				d.Lacks = append(d.Lacks, fact)
			}
		}
		for _, fact := range facts {
			if !slices.Contains(should[object], fact) {
				d.Has = append(d.Has, fact)
			}
		}
		if len(d.Lacks)+len(d.Has) > 0 {
			all = append(all, d)
		}
	}
	for _, object := range slices.Sorted(maps.Keys(is)) {
		if _, ours := should[object]; !ours {
			all = append(all, Difference{Object: object, Foreign: true, Has: is[object]})
		}
	}
	slices.SortFunc(all, func(a, b Difference) int { return strings.Compare(a.Object, b.Object) })
	return all
}
