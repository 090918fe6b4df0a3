package migrations

import (
	"context"
	_ "embed" // for SQL
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pglink"
)

// A record is a row of dibs.migrations.
type record struct {
	Name    string
	SHA256  string
	At      time.Time
	Version int // of its part, when it was applied
}

// An access says how this user may read dibs.migrations: a user may be able to act as the owner
// without having the owner's rights.
type access struct {
	exists   bool
	before   string // the session's role
	role     string // the role to read with
	readable bool
}

//go:embed reader.sql
var findAccess string

func accessOf(ctx context.Context, tx pgx.Tx, schema string) (a access, err error) {
	err = tx.QueryRow(ctx, findAccess, schema).Scan(&a.exists, &a.before, &a.role, &a.readable)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return a, err
}

// readRecords returns the rows of dibs.migrations, by name.
func readRecords(ctx context.Context, tx pgx.Tx, schema string) (map[string]record, error) {
	a, err := accessOf(ctx, tx, schema)
	if err != nil || !a.exists {
		return nil, err
	}
	if err := setRole(ctx, tx, a.role); err != nil {
		return nil, err
	}
	const applied = "select name, sha256, applied_at, version from dibs.migrations"
	rows, err := tx.Query(ctx, pglink.InSchema(applied, schema))
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[record])
	if err != nil {
		return nil, err
	}
	records := map[string]record{}
	for _, r := range lines {
		records[r.Name] = r
	}
	return records, setRole(ctx, tx, a.before)
}

func setRole(ctx context.Context, tx pgx.Tx, role string) error {
	_, err := tx.Exec(ctx, "select set_config('role', $1::text, true)", role)
	return err
}

func readStatus(ctx context.Context, tx pgx.Tx, schema string, parts []part) ([]Migration, error) {
	files, err := read(parts)
	if err != nil {
		return nil, err
	}
	records, err := readRecords(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	left, err := leftOut(ctx, tx, schema, parts)
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, f := range files {
		m := Migration{Name: f.name}
		r, found := records[f.name]
		delete(records, f.name)
		if found {
			m.AppliedAt = r.At.UTC()
			m.Applied = f.numbered() || r.SHA256 == f.sha256
			m.Changed = f.numbered() && r.SHA256 != f.sha256
			m.Unknown = r.Version > f.part.version
		}
		if !m.Applied {
			m.LeftOut = left[f.part.prefix]
		}
		all = append(all, m)
	}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		m := Migration{Name: name, Applied: true, AppliedAt: records[name].At.UTC()}
		i := slices.IndexFunc(parts, func(p part) bool { return p.prefix == prefixOf(name) })
		m.Gone = i >= 0 && m.Function() && records[name].Version <= parts[i].version
		m.Unknown = !m.Gone
		all = append(all, m)
	}
	return all, nil
}

// leftOut returns the reasons why parts are left out in this database, by prefix.
func leftOut(ctx context.Context, tx pgx.Tx, schema string, parts []part) (map[string]string, error) {
	all := map[string]string{}
	for _, p := range parts {
		if p.leftOutWhere == "" {
			continue
		}
		if schema != pglink.DefaultSchema {
			all[p.prefix] = "it is only for the store in the schema dibs"
			continue
		}
		var is bool
		if err := tx.QueryRow(ctx, "select "+p.leftOutWhere).Scan(&is); err != nil {
			return nil, err
		}
		if is {
			all[p.prefix] = p.leftOut
		}
	}
	return all, nil
}

// fit returns an error if a newer release migrated the database, or a numbered file was
// changed.
func fit(all []Migration) error {
	var newer []string
	for _, m := range all {
		if m.Unknown {
			newer = append(newer, m.Name)
		}
	}
	if len(newer) > 0 {
		return fmt.Errorf("%w: it has %s", ErrTooNew, strings.Join(newer, ", "))
	}
	for _, m := range all {
		if m.Changed {
			return fmt.Errorf("%s: %w", m.Name, ErrChanged)
		}
	}
	return nil
}
