// Package pgschema puts the name of another schema into SQL that is written for
// the schema dibs.
package pgschema

import (
	"fmt"
	"regexp"
	"strings"
)

// Default is the schema that SQL files name.
const Default = "dibs"

var (
	// PostgreSQL cuts a longer identifier off without a word.
	valid = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

	// The underscore is part of a word, so that dibs_owner is not one. Settings and message types are the same for
	// every schema and keep their names.
	word = regexp.MustCompile(`\b` + Default + `\b(:|\.(?:allow_unsafe_settings|lock_timeout|caller_path|caller_role|retention|statement_timeout|transaction)\b)?`)
)

// Check returns the rule that name breaks as a schema's, or "". An empty name
// stands for [Default].
func Check(name string) string {
	switch {
	case name == "" || name == Default:
		return ""
	case !valid.MatchString(name):
		return "it is at most 63 lower-case letters, digits and underscores, and no digit comes first"
	case strings.HasPrefix(name, "pg_") || name == "information_schema":
		return "PostgreSQL keeps it for itself"
	}
	return ""
}

// Rename returns sql for the schema of the given name, which has been checked. It
// is quoted, since a name may be a word that SQL knows.
func Rename(sql, name string) string {
	if name == "" || name == Default {
		return sql
	}
	quoted := fmt.Sprintf("%q", name)
	return word.ReplaceAllStringFunc(sql, func(found string) string {
		if found != Default {
			return found
		}
		return quoted
	})
}

// Quote returns name, shortened, as an error may show it.
func Quote(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%.80q… (%d bytes)", name, len(name))
	}
	return fmt.Sprintf("%q", name)
}
