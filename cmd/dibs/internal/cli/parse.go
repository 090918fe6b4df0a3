package cli

import (
	"errors"
	"regexp"
	"strconv"

	"github.com/alecthomas/kong"
)

// The mistakes of a command line whose texts are the parser's own, and the texts in their place.
var mistakes = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^(--[a-z-]+): expected a valid \d+ bit u?int but got ("(?s:.*)")$`), `$1=$2: it is a whole number of up to 18 digits`},
	{regexp.MustCompile(`^(--[a-z-]+): expected duration but got ("(?s:.*?)")(?:: (?s:.*))?$`), `$1=$2: it is a duration, like 90s, 15m or 48h`},
	{regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "EOL" \(<EOL>\)$`), `$1: its value is missing`},
	{regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "(?s:.*)" \((?:short|long) flag\); perhaps try (?s:.*)=("(?s:.*)")\?$`), `$1: its value is missing; a value that begins with a dash is given as $1=$2`},
	{regexp.MustCompile(`^expected "(<[^"]*> <[^"]*>)[^"]*"$`), `arguments are missing: $1`},
	{regexp.MustCompile(`^expected "(<[^"]*>)[^"]*"$`), `an argument is missing: $1`},
	{regexp.MustCompile(`^expected one of ("(?s:.*))$`), `a command is missing: one of $1`},
}

// unexpected is the mistake whose argument the parser shows as it was given.
var unexpected = regexp.MustCompile(`^unexpected argument ((?s:.*?))(, did you mean (?:one of )?"[^"]*"(?:, "[^"]*")*\?)?$`)

// mistakeOf returns the parser's error as it is told.
func mistakeOf(err error) error {
	text := err.Error()
	if found := unexpected.FindStringSubmatch(text); found != nil {
		what := "unexpected argument "
		if wantsCommand(err) {
			what = "unknown command "
		}
		return errors.New(what + strconv.Quote(shorten(found[1])) + found[2])
	}
	for _, m := range mistakes {
		if m.from.MatchString(text) {
			return errors.New(m.from.ReplaceAllString(text, m.to))
		}
	}
	return err
}

// wantsCommand reports whether the name of a command belongs where the command line is wrong.
func wantsCommand(err error) bool {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || parse.Context == nil {
		return false
	}
	node := parse.Context.Selected()
	return node == nil || len(node.Children) > 0
}
