// Package cli is the command dibs: its arguments, its output and its exit codes.
//
//	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
package cli

import (
	"context"
	_ "embed" // the help
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/messagestore"
)

// How a command ends.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitConflict    = 3
	exitInterrupted = 130 // 128 and SIGINT, as shells have it
)

// help has the long help of each command, behind a line with its name.
//
//go:embed help.txt
var help string

// helpOf returns the long help of a command.
func helpOf(command string) string {
	_, text, _ := strings.Cut(help, "# "+command+"\n\n")
	text, _, _ = strings.Cut(text, "\n\n# dibs ")
	return strings.TrimSuffix(text, "\n")
}

// A parser is one of the grammar.
type parser struct {
	*kong.Kong
	grammar
}

// parsers are not in use. To build one takes longer than many a command does.
var parsers sync.Pool

func newParser() (*parser, error) {
	if p, is := parsers.Get().(*parser); is {
		return p, nil
	}
	p := &parser{}
	var err error
	p.Kong, err = kong.New(&p.grammar, kong.Name("dibs"), kong.Description(helpOf("dibs")), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 80}))
	if err != nil {
		return nil, err
	}
	for _, command := range p.Model.Children {
		addHelp(command)
	}
	return p, nil
}

// free lets others have the parser, without what it knows of a command line.
func (p *parser) free(command *kong.Context) {
	for _, path := range command.Path {
		switch {
		case path.Flag != nil:
			path.Flag.Set = false
		case path.Positional != nil:
			path.Positional.Set = false
		case path.Command != nil:
			path.Command.Active = false
		}
	}
	p.Stdout, p.Stderr = nil, nil
	parsers.Put(p)
}

// addHelp gives a command and its own commands their long help.
func addHelp(node *kong.Node) {
	node.Detail = helpOf(node.FullPath())
	for _, child := range node.Children {
		addHelp(child)
	}
}

// globals are the flags of every command.
type globals struct {
	Store  string `placeholder:"URL" help:"URL of the store. Defaults to the environment's."`
	Schema string `placeholder:"NAME" help:"The schema in a PostgreSQL database. Defaults to dibs."`
	JSON   bool   `name:"json" help:"Print JSON, one object a line."`
}

type grammar struct {
	globals

	Migrate   migrateCommand   `cmd:"" help:"Make or update the schema of a PostgreSQL database."`
	Write     writeCommand     `cmd:"" help:"Write one message, or many from lines of JSON."`
	Stream    streamCommand    `cmd:"" help:"Print the messages of one stream."`
	Category  categoryCommand  `cmd:"" help:"Print the messages of every stream of a category."`
	Tail      tailCommand      `cmd:"" help:"Print the messages of a category as they come."`
	Explain   explainCommand   `cmd:"" help:"Show the winner of a reservation, its duplicates, and the messages that followed."`
	Report    reportCommand    `cmd:"" help:"Count messages by stream, type or category."`
	Consumers consumersCommand `cmd:"" help:"Show consumer positions and lag; reset a position."`
	Top       topCommand       `cmd:"" help:"Watch the lag of consumers, those furthest behind first, and queues."`
	Parked    parkedCommand    `cmd:"" help:"List parked messages; redrive or drop them."`
	Intents   intentsCommand   `cmd:"" help:"List, show and check intents; release a lease."`
	Queue     queueCommand     `cmd:"" help:"Show queues and their items; insert, retry, drop, cancel, pause."`
	Cron      cronCommand      `cmd:"" help:"List, show, set, remove and run schedules of items of queues."`
	Serve     serveCommand     `cmd:"" help:"Offer intents, queues and the store to programs in any language."`
	Keys      keysCommand      `cmd:"" help:"List, add and revoke the keys of clients of dibs serve."`
	Saga      sagaCommand      `cmd:"" help:"List and show sagas; cancel, resume, retry, suspend or resolve one."`
	Trim      trimCommand      `cmd:"" help:"Remove the first messages of a stream, or of each stream of a category."`
	Delete    deleteCommand    `cmd:"" help:"Delete a stream and leave a tombstone; erase its name on request."`
	Forget    forgetCommand    `cmd:"" help:"Forget old keys of an inbox, of intents or of reservations."`
	Epoch     epochCommand     `cmd:"" help:"Show the epoch; raise it after a rollback of the store."`
	UI        uiCommand        `cmd:"" name:"ui" help:"Show a page for a browser: what needs you, the story of any id, and every queue."`
	Doctor    doctorCommand    `cmd:"" help:"Examine server, schema, roles, locks and sizes, with a remedy for each finding."`
	Verify    verifyCommand    `cmd:"" help:"Check the invariants of a store in use."`
	Version   versionCommand   `cmd:"" help:"Print the version of dibs."`
}

// An app is one run of the command.
type app struct {
	globals

	stdin  io.Reader
	out    *printer
	stderr io.Writer
	getenv func(string) string
	open   func(ctx context.Context, url string, config *messagestore.Config) (*messagestore.Store, error)

	mayCreate bool // the command may make a file for a store on SQLite

	patience time.Duration // between two notes that a report goes on; 0 is 10 s
	warning  sync.Mutex    // held while stderr is written to

	origin string // of the store's URL, as errors name it
	server string // the URL, if it is PostgreSQL's

	schemaOfURL bool // and no flag's

	masks *strings.Replacer // of the places of the store's URL that nothing printed may hold; nil before it is known
}

// Run runs the command in args, which are without the program's name, and returns its exit
// code. It reads the environment with getenv only; PostgreSQL's client reads its own
// variables itself. It ends soon after ctx does.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	a := &app{stdin: stdin, stderr: stderr, getenv: getenv, open: dibs.Open}
	return a.run(ctx, args, stdout)
}

func (a *app) run(ctx context.Context, args []string, stdout io.Writer) int {
	bounded, stop := context.WithCancel(ctx)
	defer stop()
	a.out = newPrinter(stdout, a.getenv, stop)
	// Known before the arguments are parsed, since parsing may fail.
	a.JSON = slices.Contains(args, "--json")

	for _, arg := range args {
		// The parser would take another character for it without a word.
		if i := invalidUTF8([]byte(arg)); i >= 0 {
			return a.fail(ctx, usage("argument %s: must be valid UTF-8: error at byte %d", strconv.QuoteToASCII(arg[:min(i+1, 48)]), i))
		}
	}

	p, err := newParser()
	if err != nil {
		return a.fail(ctx, fmt.Errorf("command line: %w", err))
	}
	helped := false
	p.Stdout, p.Stderr, p.Exit = a.out, a.stderr, func(int) { helped = true }
	command, err := p.Parse(args)
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		command = parse.Context
	}
	if command != nil {
		defer p.free(command)
	}
	if helped {
		return a.end(ctx, nil)
	}
	if err != nil {
		return a.end(ctx, mistakeOf(err, usageOf(err)))
	}
	if err := emptyFlag(command); err != nil {
		return a.end(ctx, err)
	}
	a.globals = p.globals
	a.out.json = a.JSON
	command.BindTo(bounded, (*context.Context)(nil))
	return a.end(ctx, command.Run(a))
}

// emptyFlag returns an error for a flag that was given with an empty text, such as a variable of a shell that is not set. It
// would be taken for one that was not given.
func emptyFlag(command *kong.Context) error {
	for _, path := range command.Path {
		if path.Flag == nil || path.Flag.Target.Kind() != reflect.String {
			continue
		}
		if reflect.ValueOf(command.FlagValue(path.Flag)).String() == "" {
			return hinted(usage("--%s: the value must not be empty", path.Flag.Name), "leave the flag out, or give it a value")
		}
	}
	return nil
}

// end flushes the output, prints err, and returns the exit code.
func (a *app) end(ctx context.Context, err error) int {
	_, writing := errors.AsType[*lineError](err)
	if stopped := a.out.err != nil; a.out.flush() != nil && (err == nil || stopped && !writing) {
		err = a.out.err // which has ended the command
	}
	if err == nil {
		return exitOK
	}
	return a.fail(ctx, err)
}

// usageOf returns the command whose arguments were wrong.
func usageOf(err error) string {
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil {
			return node.FullPath()
		}
	}
	return "dibs"
}
