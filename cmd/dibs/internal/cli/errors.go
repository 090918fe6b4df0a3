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
	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// A hintedError is an error with a command that helps, or one of the command line.
type hintedError struct {
	err   error
	hint  string
	usage bool
}

func usage(format string, args ...any) error {
	return &hintedError{err: fmt.Errorf(format, args...), usage: true}
}

// hinted returns an error with a hint, unless it has one.
func hinted(err error, hint string) error {
	if none, ok := errors.AsType[*operate.NotFoundError](err); ok && none.Hint != "" {
		return err
	}
	if told, ok := errors.AsType[*hintedError](err); !ok {
		return &hintedError{err: err, hint: hint}
	} else if told.hint == "" {
		told.hint = hint
	}
	return err
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }

func notFound(format string, args ...any) error {
	return &operate.NotFoundError{Text: fmt.Sprintf(format, args...)}
}

// is reports whether err is of a type.
func is[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
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
		a.note(p)
		return p.Exit
	}
	a.warn("dibs: %s", p.Error)
	if p.Hint != "" {
		a.warn("      %s", p.Hint)
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

// warn writes a line to the standard error.
func (a *app) warn(format string, args ...any) { a.say(visible(fmt.Sprintf(format, args...)) + "\n") }

// say writes text to the standard error as it is. If that fails there is nobody to tell.
func (a *app) say(text string) {
	a.warning.Lock()
	defer a.warning.Unlock()
	_, _ = io.WriteString(a.stderr, text)
}

// nothing tells a person that there is nothing to print, or not all. That is an answer, so it does not begin as errors and
// warnings do; it is on the standard error, since it is no row.
func (a *app) nothing(format string, args ...any) {
	if !a.JSON {
		a.warn(format, args...)
	}
}

// note writes an object to the standard error, where it is not taken for a result.
func (a *app) note(v any) {
	if text, err := oneLine(v); err == nil {
		a.say(string(text))
	}
}

// cut tells that not all rows were printed: without it a reader would take a part for the whole.
func (a *app) cut(object fields, format string, args ...any) {
	if a.JSON {
		a.note(append(fields{"kind", "cut"}, object...))
		return
	}
	a.warn("dibs: "+format, args...)
}

// closed reports whether err says that a pipe has no reader.
func closed(err error) bool {
	return !is[*lineError](err) && (errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe))
}

func matches(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

const seeOther = "use the release of dibs that migrated it, or a newer one"

// kinds are those of errors, with what helps. The first that matches counts; a text that says what helps needs no hint.
var kinds = []struct {
	is         func(error) bool
	kind, hint string
}{
	{matches(migrations.ErrAdopting), "adopting", "until then message-db is the store: see dibs migrate status"},
	{matches(messagedb.ErrCannotAdopt), "cannotAdopt", "nothing was changed"},
	{matches(messagedb.ErrCopyDiffers), "copyDiffers", "nothing was switched; dibs migrate adopt --undo throws the copy away"},
	{matches(messagedb.ErrLocked), "locked", "nothing was switched, and the copy stays: run it again when these sessions are done, or with more --lock-tries"},
	{matches(messagedb.ErrRunning), "adoptionRuns", "wait until it is done, or end it: its sessions are named dibs migrate adopt"},
	{matches(messagedb.ErrPooled), "pooled", "give the server's own address: --store or DATABASE_URL"},
	{matches(messagedb.ErrNothingToUndo), "nothingToUndo", "none was begun, it was undone already, or the old schema was dropped: see dibs migrate status"},
	{matches(messagestore.ErrInvalid), "invalid", ""},
	{matches(messagestore.ErrIDConflict), "idConflict", "an id is for one message; leave it out for a new one"},
	{is[*queue.KeyReusedError], "keyReused", "a unique name is for one item; the error names the one that has it"},
	{matches(messagestore.ErrOutcomeUnknown), "outcomeUnknown", "run it again with the same id: messages that are written already are not written again"},
	{matches(messagestore.ErrNotFound), "notFound", ""},
	{is[*saga.StateError], "sagaState", "see its state with: dibs saga show"},
	{is[*consumers.UnknownConsumerError], "unknownConsumer", ""},
	{matches(consumer.ErrPositionAhead), "positionAhead", ""},
	{matches(intent.ErrDone), "done", "nothing releases a result; see it with: dibs intents show"},
	{matches(intent.ErrCorrupt), "corrupt", "is this a category of intents? Check it with: dibs intents verify"},
	{matches(postgres.ErrNotMigrated), "notMigrated", ""},
	{matches(postgres.ErrSchemaTooNew), "schemaTooNew", seeOther},
	{matches(postgres.ErrUnsafeSettings), "unsafeSettings", "see the risk and the remedy with: dibs doctor"},
	{matches(migrations.ErrInvalidSchema), "invalid", ""},
	{matches(migrations.ErrTooNew), "failure", seeOther},
	{matches(migrations.ErrChanged), "failure", "nothing was done: another release, or an edited file, was applied under this name; see dibs migrate status, and dibs doctor for the differences"},
}

func (a *app) describe(err error) problem {
	p := problem{Error: err.Error(), Kind: "failure", Exit: exitFailure}
	if is[*pgconn.ParseConfigError](err) {
		// Its own text may hold all of the URL.
		err = messagestore.NewInvalidError("store URL", nil, "must be a URL for PostgreSQL, like postgres://user@host:5432/database")
		p.Error = err.Error()
	}
	if why, ok := strings.CutPrefix(p.Error[max(0, strings.Index(p.Error, notConnected)):], notConnected); ok {
		return a.unreachable(why)
	}
	for _, k := range kinds {
		if k.is(err) {
			p.Kind, p.Hint = k.kind, k.hint
			break
		}
	}
	if p.Kind == "invalid" {
		p.Exit = exitUsage
	}
	if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
		p.Kind, p.Exit = "versionConflict", exitConflict
		p.Stream, p.Expected, p.Actual = conflict.Stream, &conflict.Expected, &conflict.Actual
		p.Hint = fmt.Sprintf("the stream is not at the version that was expected; see the winner with: dibs stream '%s'", visible(string(conflict.Stream)))
	}
	if p.Kind == "cannotAdopt" {
		p.Hint += cannotAdoptHint(err)
	}
	if p.Kind == "notMigrated" && a.Schema != "" { // else its text names the command to run
		p.Hint = "for this schema: dibs migrate up --schema " + a.Schema
	}
	if e, ok := errors.AsType[*messagestore.InvalidError](err); ok && (slices.Contains([]string{"store URL", "database URL", "path"}, e.Field) || e.Field == "schema" && a.schemaOfURL) {
		p.Hint = "the store's URL is from " + a.origin
	}
	if none, ok := errors.AsType[*operate.NotFoundError](err); ok && none.Hint != "" {
		p.Hint = none.Hint
	}
	if mistake, ok := errors.AsType[*hintedError](err); ok {
		if mistake.hint != "" {
			p.Hint = mistake.hint
		}
		if mistake.usage && p.Kind == "failure" {
			p.Kind, p.Exit = "usage", exitUsage
		}
		if mistake.usage && len(p.Error) > maxMistake { // the parser repeats an argument, however long it is
			p.Error = strings.ToValidUTF8(p.Error[:maxMistake], "") + "…"
		}
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

// notConnected begins the text of pgconn's error for a connection that could not be made. The
// driver keeps only the text, because the error holds the password.
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

// states are SQLSTATEs of the server, with what helps. Those of kind refused ended the attempt to connect.
// (https://www.postgresql.org/docs/current/errcodes-appendix.html)
var states = map[string]struct{ kind, hint string }{
	"28P01": {"refused", "are the user and password right? They are from %s"},
	"28000": {"refused", "are the user and password right? They are from %s"},
	"3D000": {"refused", "make the database with createdb, or is it another? It is from %s"},
	"53300": {"refused", "try again"},
	"57P03": {"refused", "try again"},
	"42501": {"denied", "grant this user dibs_reader to read, dibs_writer to write, dibs_operator to change the items of queues too, dibs_admin to trim, delete and verify; to migrate, it needs the right to create in the database"},
	"57014": {"timeout", "the server's statement_timeout is too short for this; set another in the URL: options=-c%20statement_timeout%3D10min"},
	"55P03": {"locked", "another transaction holds a lock that this needs; see the holder with: dibs doctor"},
	"25006": {"readOnly", "is this server a replica?"},
}

// refused gives the remedy for an error of the server.
func (a *app) refused(p *problem, e *pgconn.PgError) {
	state, known := states[e.Code]
	switch {
	case !known && p.Hint == "":
		p.Hint = e.Hint
	case known:
		p.Kind, p.Hint = state.kind, state.hint
	}
	if state.kind == "refused" {
		p.Error = fmt.Sprintf("cannot connect to %s: %s", a.where(), e.Message)
		p.Hint = strings.Replace(state.hint, "%s", a.origin, 1)
	}
}
