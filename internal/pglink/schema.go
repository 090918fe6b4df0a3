package pglink

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultSchema is the schema that SQL files name.
const DefaultSchema = "dibs"

var (
	// PostgreSQL cuts off a longer identifier, and does not say so.
	validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

	// The underscore is part of a word, so that dibs_owner is not one. Settings and message types
	// are the same for every schema and keep their names.
	schemaWord = regexp.MustCompile(`\b` + DefaultSchema + `\b(:|\.(?:allow_unsafe_settings|lock_timeout|caller_path|caller_role|retention|statement_timeout|transaction)\b)?`)
)

// CheckSchema returns the rule that name breaks as a schema's, or "". An empty name
// stands for [DefaultSchema].
func CheckSchema(name string) string {
	switch {
	case name == "" || name == DefaultSchema:
		return ""
	case !validSchema.MatchString(name):
		return "it is at most 63 lower-case letters, digits and underscores, and no digit comes first"
	case strings.HasPrefix(name, "pg_") || name == "information_schema":
		return "PostgreSQL keeps it for itself"
	}
	return ""
}

// InSchema returns sql for the schema of the given name, which has been checked. It
// is quoted, since a name may be a word that SQL knows.
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

// QuoteSchema returns name, shortened, as an error may show it.
func QuoteSchema(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%.80q… (%d bytes)", name, len(name))
	}
	return fmt.Sprintf("%q", name)
}
