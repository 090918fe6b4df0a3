package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A valueError is of a flag whose value is out of its bounds.
type valueError struct{ text string }

func (e *valueError) Error() string { return e.text }

// A bound is a number from 1 on.
type bound int

// Validate is called by the parser.
func (n bound) Validate() error {
	if n < 1 {
		return &valueError{fmt.Sprintf("%d: must be at least 1", n)}
	}
	return nil
}

// A few is a number that a queue returns at once.
type few int

// Validate is called by the parser.
func (n few) Validate() error {
	if n < 1 || n > queuing.MaxItems {
		return &valueError{fmt.Sprintf("%d: must be between 1 and %d", n, queuing.MaxItems)}
	}
	return nil
}

// A position is one of an item, as a queue prints it.
type position int64

// Validate is called by the parser.
func (p position) Validate() error {
	if p < 1 {
		return &valueError{fmt.Sprintf("%d: the position of an item must be at least 1", p)}
	}
	return nil
}

// A moment is a time in RFC 3339.
type moment struct{ time.Time }

// UnmarshalText is called by the parser.
func (m *moment) UnmarshalText(text []byte) (err error) {
	if m.Time, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
		return &valueError{strconv.Quote(shorten(string(text))) + ": must be a time, like 2026-11-21T10:00:00Z or 2026-11-21T11:00:00+01:00"}
	}
	return nil
}

// The mistakes of a command line whose texts are the parser's own, and the texts in their place.
var mistakes = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^(--[a-z-]+): expected a valid \d+ bit u?int but got ("(?s:.*)")$`), `$1=$2: must be a whole number of up to 18 digits`},
	{regexp.MustCompile(`^(--[a-z-]+): expected duration but got ("(?s:.*?)")(?:: (?s:.*))?$`), `$1=$2: must be a duration, like 90s, 15m or 48h`},
	{regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "EOL" \(<EOL>\)$`), `$1: must have a value`},
	{regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "(?s:.*)" \((?:short|long) flag\); perhaps try (?s:.*)=("(?s:.*)")\?$`), `$1: must have a value; give a value that begins with a dash as $1=$2`},
	{regexp.MustCompile(`^expected "(<[^"]*> <[^"]*>)[^"]*"$`), `arguments are missing: $1`},
	{regexp.MustCompile(`^expected "(<[^"]*>)[^"]*"$`), `an argument is missing: $1`},
	{regexp.MustCompile(`^expected one of ("(?s:.*))$`), `a command is missing: one of $1`},
}

// unexpected is the mistake whose argument the parser shows as it was given.
var unexpected = regexp.MustCompile(`^unexpected argument ((?s:.*?))(, did you mean (?:one of )?"[^"]*"(?:, "[^"]*")*\?)?$`)

// instead are the commands that take a stream where a category was given, and a category where a stream was.
var instead = map[string]string{
	"dibs stream stream name": "to print every stream of the category: dibs category ",
	"dibs category category":  "to print the stream: dibs stream ",
	"dibs tail category":      "to print the messages that the stream has: dibs stream ",
	"dibs trim category":      "to trim the stream: dibs trim ",
	"dibs trim stream name":   "to trim every stream of the category: dibs trim --category ",
	"dibs delete stream name": "streams are deleted one by one; to see the streams of the category: dibs report streams --category ",
}

// mistakeOf returns the parser's error about a command as it is told.
func mistakeOf(err error, command string) error {
	if value, ok := errors.AsType[*valueError](err); ok {
		if flag, _, _ := strings.Cut(err.Error(), ": "); strings.HasPrefix(flag, "--") {
			return usage("%s=%w", flag, value)
		}
		return usage("%w", value)
	}
	if name, ok := errors.AsType[*messagestore.InvalidError](err); ok {
		given, _ := strconv.Unquote(name.Value)
		hint := instead[command+" "+name.Field]
		if category := messagestore.Category(given); hint == "" || category.Validate() != nil && messagestore.StreamName(given).Validate() != nil {
			return name
		}
		return hinted(name, hint+given)
	}
	return hinted(&hintedError{err: inWords(err), usage: true}, "see "+command+" --help")
}

// inWords returns the parser's error in words of ours.
func inWords(err error) error {
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
