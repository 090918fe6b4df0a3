package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// A usageError is one of the command line.
type usageError struct {
	err  error
	hint string
}

func usage(format string, args ...any) error { return &usageError{err: fmt.Errorf(format, args...)} }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// A hintedError is an error with a command that helps.
type hintedError struct {
	err  error
	hint string
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }

// A notFoundError says by itself what there is not: it matches [messagestore.ErrNotFound].
type notFoundError string

func notFound(format string, args ...any) error { return notFoundError(fmt.Sprintf(format, args...)) }

func (e notFoundError) Error() string      { return string(e) }
func (notFoundError) Is(target error) bool { return target == messagestore.ErrNotFound }

// parseStream returns the name of a stream. If it is a category's, the error hints at the command for that, to which
// the category is added.
func parseStream(name, hint string) (messagestore.StreamName, error) {
	stream, err := toStream(name)
	if err != nil && messagestore.Category(name).Validate() == nil {
		return "", &hintedError{err, hint + name}
	}
	return stream, err
}

// parseCategory returns a category. If it is the name of a stream, the error hints at the command for that, to which
// the name is added.
func parseCategory(name, hint string) (messagestore.Category, error) {
	category, err := toCategory(name)
	if err != nil && messagestore.StreamName(name).Validate() == nil {
		return "", &hintedError{err, hint + name}
	}
	return category, err
}

// A lineError ends the writing of many lines.
type lineError struct {
	Line    int // from 1
	Written int // of the lines before it
	Before  int // of the lines before it, written by an earlier run
	err     error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// A problem is how an error is shown.
type problem struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	Kind  string `json:"kind"`
	Exit  int    `json:"exitCode"`

	Stream   messagestore.StreamName `json:"stream,omitempty"`
	Expected *messagestore.Version   `json:"expected,omitempty"`
	Actual   *messagestore.Version   `json:"actual,omitempty"`

	Line          int  `json:"line,omitempty"`
	Written       *int `json:"written,omitempty"`
	WrittenBefore *int `json:"writtenBefore,omitempty"`
}

// maxMistake bounds an error about a command line, in bytes.
const maxMistake = 500

// fail shows err and returns the exit code. A reader that closed the output wanted no more,
// which is no failure.
func (a *app) fail(ctx context.Context, err error) int {
	if closed(err) {
		return exitOK
	}
	p := a.describe(err)
	if ctx.Err() != nil {
		p.Kind, p.Exit = "interrupted", exitInterrupted
		if p.Line == 0 && !errors.Is(err, messagestore.ErrOutcomeUnknown) {
			return p.Exit // nothing to tell that its user does not know
		}
	}
	p.Error, p.Hint = a.redact(visible(oneLineOf(a.redact(p.Error)))), a.redact(p.Hint)
	if a.JSON {
		if text, encodeErr := oneLine(p); encodeErr == nil {
			a.warn("%s", text)
			return p.Exit
		}
	}
	a.warn("dibs: %s\n", p.Error)
	if p.Hint != "" {
		a.warn("      %s\n", p.Hint)
	}
	return p.Exit
}

// oneLineOf joins the lines of an error that holds several.
func oneLineOf(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "; ")
}

// warn writes to the standard error. If that fails there is nobody to tell.
func (a *app) warn(format string, args ...any) {
	a.warning.Lock()
	defer a.warning.Unlock()
	fmt.Fprintf(a.stderr, format, args...)
}

// closed reports whether err says that a pipe has no reader.
func closed(err error) bool {
	_, writing := errors.AsType[*lineError](err)
	return !writing && (errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe))
}

func isSagaState(err error) bool {
	_, is := errors.AsType[*saga.StateError](err)
	return is
}

func isKeyReused(err error) bool {
	_, is := errors.AsType[*queue.KeyReusedError](err)
	return is
}

func (a *app) describe(err error) problem {
	p := problem{Error: err.Error(), Kind: "failure", Exit: exitFailure}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		// Its own text may hold all of the URL.
		err = messagestore.NewInvalidError("store URL", nil, "it is not one that PostgreSQL's clients know")
		p.Error = err.Error()
	}
	if why, ok := strings.CutPrefix(p.Error[max(0, strings.Index(p.Error, notConnected)):], notConnected); ok {
		return a.unreachable(why)
	}
	if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
		p.Kind, p.Exit = "versionConflict", exitConflict
		p.Stream, p.Expected, p.Actual = conflict.Stream, &conflict.Expected, &conflict.Actual
		p.Hint = fmt.Sprintf("the stream is not at the version that was expected; see the winner with: dibs stream '%s'", visible(string(conflict.Stream)))
	}
	if mistake, ok := errors.AsType[*usageError](err); ok {
		p.Kind, p.Exit, p.Hint = "usage", exitUsage, mistake.hint
		if len(p.Error) > maxMistake { // the parser repeats an argument, however long it is
			p.Error = strings.ToValidUTF8(p.Error[:maxMistake], "") + "…"
		}
	}
	switch {
	case errors.Is(err, messagestore.ErrInvalid):
		p.Kind, p.Exit = "invalid", exitUsage
	case errors.Is(err, messagestore.ErrIDConflict):
		p.Kind = "idConflict"
		p.Hint = "an id is for one message; leave it out for a new one"
	case isKeyReused(err):
		p.Kind = "keyReused"
		p.Hint = "a unique name is for one item; the error names the one that has it"
	case errors.Is(err, messagestore.ErrOutcomeUnknown):
		p.Kind = "outcomeUnknown"
		p.Hint = "run it again with the same id: messages that are written already are not written again"
	case isMissingFile(err):
		p.Kind = "notFound"
		p.Hint = "is the name right? dibs write makes a new one"
	case isNoCategory(err):
		p.Kind = "notFound"
		p.Hint = "is the name right? See those that there are with: dibs report categories"
	case errors.Is(err, messagestore.ErrNotFound):
		p.Kind = "notFound"
	case isSagaState(err):
		p.Kind = "sagaState"
		p.Hint = "see its state with: dibs saga show"
	case isUnknownConsumer(err):
		p.Kind = "unknownConsumer"
	case errors.Is(err, consumer.ErrPositionAhead):
		p.Kind = "positionAhead"
	case errors.Is(err, intent.ErrDone):
		p.Kind = "done"
		p.Hint = "nothing releases a result; see it with: dibs intents show"
	case errors.Is(err, intent.ErrCorrupt):
		p.Kind = "corrupt"
		p.Hint = "is this a category of intents? Check it with: dibs intents verify"
	case errors.Is(err, postgres.ErrNotMigrated):
		p.Kind = "notMigrated" // its text names the command to run
		if a.Schema != "" {
			p.Hint = "for this schema: dibs migrate up --schema " + a.Schema
		}
	case errors.Is(err, postgres.ErrSchemaTooNew):
		p.Kind = "schemaTooNew"
		p.Hint = "use the release of dibs that migrated it, or a newer one"
	case errors.Is(err, postgres.ErrUnsafeSettings):
		p.Kind = "unsafeSettings"
		p.Hint = "see the risk and the remedy with: dibs doctor"
	case errors.Is(err, migrations.ErrInvalidSchema):
		p.Kind, p.Exit = "invalid", exitUsage
	case errors.Is(err, migrations.ErrTooNew):
		p.Hint = "use the release of dibs that migrated it, or a newer one"
	case errors.Is(err, migrations.ErrChanged):
		p.Hint = "nothing was done: another release, or an edited file, was applied under this name; see dibs migrate status, and dibs doctor for the differences"
	}
	if kind, hint := adoptionHint(err); kind != "" {
		p.Kind, p.Hint = kind, hint
	}
	if e, ok := errors.AsType[*messagestore.InvalidError](err); ok && (slices.Contains([]string{"store URL", "database URL", "path"}, e.Field) || e.Field == "schema" && a.schemaOfURL) {
		p.Hint = "the store's URL is from " + a.origin
	}
	if hinted, ok := errors.AsType[*hintedError](err); ok {
		p.Hint = hinted.hint
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		a.refused(&p, server)
		if pglink.Explained(err) && server.Code != "57014" {
			p.Hint = "" // the error says it
		}
	}
	if at, ok := errors.AsType[*lineError](err); ok {
		p.Line, p.Written, p.WrittenBefore = at.Line, &at.Written, &at.Before
		p.Error += fmt.Sprintf(" (%d written before it, and %d that had been already)", at.Written, at.Before)
		if p.Exit == exitUsage {
			p.Exit = exitFailure // the command line was right
		}
	}
	return p
}

// notConnected begins the text of pgconn's error for a connection that could not
// be made. The driver keeps the text only, since the error holds the password.
const notConnected = "failed to connect to "

// unreachable names the server's address and the obstacle. The error's own text repeats the
// whole attempt for each address.
func (a *app) unreachable(text string) problem {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n\t\t")
	why := line[strings.LastIndex(line, ": ")+1:]
	return problem{
		Error: fmt.Sprintf("cannot connect to %s: %s", a.where(), strings.TrimSpace(why)),
		Hint:  fmt.Sprintf("is the server running, and is the address right? It is from %s", a.origin),
		Kind:  "unreachable", Exit: exitFailure,
	}
}

// where names the server, the user and the database, and nothing else of the URL.
func (a *app) where() string {
	config, err := pgconn.ParseConfig(a.server)
	if err != nil {
		return "PostgreSQL"
	}
	address := net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
	if strings.HasPrefix(config.Host, "/") {
		address = fmt.Sprintf("%s/.s.PGSQL.%d", config.Host, config.Port)
	}
	return fmt.Sprintf("PostgreSQL at %s as user %s, database %s", address, config.User, config.Database)
}

// refused gives the remedy for an error of the server, by its SQLSTATE.
// (https://www.postgresql.org/docs/current/errcodes-appendix.html)
func (a *app) refused(p *problem, e *pgconn.PgError) {
	var hint string
	switch e.Code {
	case "28P01", "28000":
		hint = "are the user and password right? They are from " + a.origin
	case "3D000":
		hint = "make the database with createdb, or is it another? It is from " + a.origin
	case "53300", "57P03":
		hint = "try again"
	case "42501":
		p.Kind, p.Hint = "denied", "grant this user dibs_reader to read, dibs_writer to write, dibs_operator to change the items of queues too, dibs_admin to trim, delete and verify; to migrate, it needs the right to create in the database"
		return
	case "57014":
		p.Kind, p.Hint = "timeout", "the server's statement_timeout is too short for this; set another in the URL: options=-c%20statement_timeout%3D10min"
		return
	case "55P03":
		p.Kind, p.Hint = "locked", "another transaction holds a lock that this needs; see the holder with: dibs doctor"
		return
	case "25006":
		p.Kind, p.Hint = "readOnly", "is this server a replica?"
		return
	default:
		if p.Hint == "" {
			p.Hint = e.Hint
		}
		return
	}
	p.Error, p.Hint, p.Kind = fmt.Sprintf("cannot connect to %s: %s", a.where(), e.Message), hint, "refused"
}

func isMissingFile(err error) bool {
	_, is := errors.AsType[*missingFileError](err)
	return is
}

func isNoCategory(err error) bool {
	_, is := errors.AsType[*noCategoryError](err)
	return is
}

func isUnknownConsumer(err error) bool {
	_, is := errors.AsType[*operate.UnknownConsumerError](err)
	return is
}

// toCategory returns a text as a category, or an error that says why it is none.
func toCategory(text string) (messagestore.Category, error) {
	category := messagestore.Category(text)
	return category, category.Validate()
}

// toStream returns a text as the name of a stream, or an error that says why it is none.
func toStream(text string) (messagestore.StreamName, error) {
	stream := messagestore.StreamName(text)
	return stream, stream.Validate()
}
