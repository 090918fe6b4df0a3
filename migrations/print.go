package migrations

import (
	_ "embed" // for SQL
	"errors"
	"fmt"
	"io"
	"strings"
)

// printHead begins the script that [Print] writes for psql.
const printHead = `-- Makes a message store in the schema %[1]s, or brings the one that is there up to date:
--
--	psql -X -d app -f dibs.sql
--
-- It is one transaction, and does what dibs migrate up does. A file that was applied
-- before is not applied again. It makes the roles dibs_owner, dibs_reader, dibs_writer,
-- dibs_worker, dibs_operator, dibs_admin and message_store where they are missing and the
-- user has CREATEROLE; nothing in it takes a superuser.
`

// Print writes the SQL of [Up] as a script for psql, which you can review and run by hand, on an
// empty database or on a database that an older release made. If the database has message-db, the
// script leaves out the schema message_store, and says so.
func Print(w io.Writer, config *Config) error {
	return write(w, config, printHead+"\\set ON_ERROR_STOP on\n\\o /dev/null\nbegin;\n", "\ncommit;\n\\o\n")
}

// PrintGoose writes the SQL of [Up] as a migration for goose. An upgrade of the library needs
// another migration, under the next number.
func PrintGoose(w io.Writer, config *Config) error {
	return write(w, config, "-- +goose Up\n-- +goose StatementBegin\n", "-- +goose StatementEnd\n")
}

var errNoWriter = errors.New("invalid writer: must not be nil")

func write(w io.Writer, config *Config, head, tail string) error {
	schema, err := config.schema()
	if err == nil && w == nil {
		err = errNoWriter
	}
	if err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	steps, err := script(schema, parts)
	if err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(head, "%[1]s", schema))
	before := ""
	for _, s := range steps {
		if s.file != before {
			fmt.Fprintf(&b, "\n-- %s\n\n", s.file)
		}
		before = s.file
		b.WriteString(s.sql)
	}
	b.WriteString(tail)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print migrations: %w", err)
	}
	return nil
}

//go:embed roles.sql
var roles string

// PrintRoles writes the SQL that makes the roles, for servers on which another user makes roles
// than the user who migrates. It needs CREATEROLE. It does not change a role that exists.
func PrintRoles(w io.Writer) error {
	if w == nil {
		return fmt.Errorf("print roles: %w", errNoWriter)
	}
	if _, err := io.WriteString(w, roles); err != nil {
		return fmt.Errorf("print roles: %w", err)
	}
	return nil
}
