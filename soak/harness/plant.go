package harness

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Mutant is a bug that a run has, to see whether it is found.
type Mutant struct {
	Go       string   // the name of one in Go: see package internal/mutant
	SQL      []Edit   // of the schema's functions
	Settings []string // of the server, as "fsync=off"
}

// An Edit puts New where Old is in the definition of a function. Old is there once, with
// whatever white space.
type Edit struct{ Function, Old, New string }

// Plant edits the functions of a database that was migrated. What is not there as the edit has
// it is an error: a bug that is not planted would be one that nobody finds.
func (m *Mutant) Plant(ctx context.Context, conn *pgx.Conn) error {
	for _, e := range m.SQL {
		if err := e.plant(ctx, conn); err != nil {
			return fmt.Errorf("plant a bug in %s: %w", e.Function, err)
		}
	}
	return nil
}

func (e Edit) plant(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'dibs'::regnamespace and proname = $1", e.Function)
	if err != nil {
		return err
	}
	definition, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	at := e.find().FindAllStringIndex(definition, -1)
	if len(at) != 1 {
		return fmt.Errorf("%q is there %d times, not once", e.Old, len(at))
	}
	_, err = conn.Exec(ctx, definition[:at[0][0]]+e.New+definition[at[0][1]:])
	return err
}

// find makes a pattern of Old.
func (e Edit) find() *regexp.Regexp {
	words := strings.Fields(e.Old)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	return regexp.MustCompile(strings.Join(words, `\s+`))
}
