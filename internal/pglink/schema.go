package pglink

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultSchema is the schema in the SQL files.
const DefaultSchema = "dibs"

var (
	// PostgreSQL silently cuts off a longer identifier.
	validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

	// An underscore is part of a word, so dibs_owner does not match. Settings and message types are
	// the same for every schema and keep their names.
	schemaWord = regexp.MustCompile(`\b` + DefaultSchema + `\b(:|\.(?:allow_unsafe_settings|lock_timeout|caller_path|caller_role|retention|statement_timeout|transaction)\b)?`)
)

// CheckSchema returns the rule for schema names that name breaks, or "". An empty name stands for
// [DefaultSchema].
func CheckSchema(name string) string {
	switch {
	case name == "" || name == DefaultSchema:
		return ""
	case !validSchema.MatchString(name):
		return "must be at most 63 lower-case letters, digits and underscores, and must not begin with a digit"
	case strings.HasPrefix(name, "pg_") || name == "information_schema":
		return "must not be a name that PostgreSQL keeps for itself"
	}
	return ""
}

// InSchema returns sql for another schema. The name must be valid; it is quoted, because it may be
// a keyword of SQL.
func InSchema(sql, name string) string {
	if name == "" || name == DefaultSchema {
		return sql
	}
	quoted := fmt.Sprintf("%q", name)
	return schemaWord.ReplaceAllStringFunc(sql, func(found string) string {
		if found != DefaultSchema {
			return found
		}
		return quoted
	})
}

// QuoteSchema returns name, shortened and quoted, for an error.
func QuoteSchema(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%.80q… (%d bytes)", name, len(name))
	}
	return fmt.Sprintf("%q", name)
}
