package migrations

import (
	"context"
	_ "embed" // for the catalog
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The catalog is what the migrations make, in words: an object, and below it,
// indented, what is known of it.
//
//go:embed catalog.txt
var catalog string

// separator is before what only the file for message_store makes.
const separator = "-- " + compatible

//go:embed catalog.sql
var catalogSQL string

// Catalog returns what is in the schemas dibs and message_store after [Up], as text
// for people: each object, and below it, indented, its columns, constraints, hash,
// settings, rights. It is what [Drift] compares a database with.
func Catalog() string { return catalog }

// A DriftReport says how a database differs from what the migrations make.
type DriftReport struct {
	// Differences are sorted by object. None means that nothing drifted.
	Differences []Difference

	// AbsentRoles do not exist on this server, and so have no rights: that is the
	// choice of whoever makes roles there, and no difference.
	AbsentRoles []string

	// NotApplied says of the files that have not been applied why [Up] leaves them
	// out, or that it would apply them. What they make is not compared. It is nil for
	// a user who may not know, as who may only call functions.
	NotApplied []Migration
}

// A Difference is an object that is not as it was made.
type Difference struct {
	Object  string   // "function dibs.append(streams text[], ...)"
	Absent  bool     // whether it is not there
	Foreign bool     // whether it is there, and no migration made it
	Lacks   []string // what it should have, as in [Catalog]
	Has     []string // what it has instead or besides
}

// String says it in one line.
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

// Drift compares what is in a database with what the migrations make there: tables,
// indexes, constraints, triggers, views, functions, and who has rights to them. It
// needs no rights but to connect, takes no lock that anybody waits for, and
// changes nothing. The bodies of views, and of the few functions that are written
// without a string, are compared by what they refer to; the expressions of checks and
// of generated columns are not compared.
//
// A database that was not migrated has nothing to compare, and all files in
// NotApplied. The connection may be in a transaction.
func Drift(ctx context.Context, conn interface {
	Begin(context.Context) (pgx.Tx, error)
}, config *Config,
) (*DriftReport, error) {
	schema, err := config.schema()
	if err != nil {
		return nil, fmt.Errorf("schema drift: %w", err)
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("schema drift: %w", plain(err))
	}
	report, err := drift(ctx, tx, schema)
	// Not committed, so that a transaction around it has its settings back.
	if rollbackErr := tx.Rollback(context.WithoutCancel(ctx)); err == nil {
		err = rollbackErr
	}
	if err != nil {
		return nil, fmt.Errorf("schema drift: %w", plain(err))
	}
	return report, nil
}

func drift(ctx context.Context, tx pgx.Tx, schema string) (*DriftReport, error) {
	report := &DriftReport{}
	is, err := readCatalog(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	r, err := readerOf(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	_, hasCompatible := is["view "+compatibleSchema+".messages"] // as message-db has not
	if r.readable || !r.exists {
		all, err := readStatus(ctx, tx, schema, files)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if !m.Applied {
				report.NotApplied = append(report.NotApplied, m)
			}
			if m.Name == compatible {
				hasCompatible = m.Applied
			}
		}
		if len(report.NotApplied) == len(all) {
			return report, nil
		}
	}
	native, messageStore, _ := strings.Cut(catalog, separator+"\n")
	should := parseCatalog(native)
	if hasCompatible {
		maps.Copy(should, parseCatalog(messageStore))
	} else {
		maps.DeleteFunc(is, func(object string, _ []string) bool { return of(object, compatibleSchema) })
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

// objects are facts by the object that they are of.
type objects map[string][]string

func readCatalog(ctx context.Context, tx pgx.Tx, schema string) (objects, error) {
	if err := ownNames(ctx, tx); err != nil { // which are written with their schemas then
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

// of reports whether an object is in a schema, as "function dibs.append(...)" and
// "schema dibs" are in dibs.
func of(object, schema string) bool {
	_, name, _ := strings.Cut(strings.TrimPrefix(object, "default privileges in "), " ")
	return name == schema || strings.HasPrefix(name, schema+".")
}

// roles returns those that have rights.
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
