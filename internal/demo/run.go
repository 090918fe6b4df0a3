package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// StoreVariable is the environment variable with the store's URL.
const StoreVariable = "DIBS_STORE"

var (
	// ErrUsage is returned when the command line is wrong.
	ErrUsage = errors.New("wrong call")

	// ErrBooksDiffer is returned when the records of a run do not agree.
	ErrBooksDiffer = errors.New("the books differ")

	// errNotDone is returned when the limit of a run ended before its work was done.
	errNotDone = errors.New("not done")
)

// Output is where a command prints.
type Output struct{ Stdout, Stderr io.Writer }

// The exit codes of a command that was interrupted before its work was done, the same as in shells
// for Ctrl-C, and of a run that reached its limit first.
const (
	interrupted = 130
	notDone     = 3
)

// A Program runs the command of args, and returns the exit code.
type Program func(ctx context.Context, args []string, stdout, stderr io.Writer) int

// Run runs the program of this process until it is interrupted.
func (p Program) Run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return p(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Main runs the command of args and returns the exit code: 0 for success, 1 for a failure, 2 for a
// wrong command line, 3 if the limit of a run ended before its work was done, 130 if the command
// failed because ctx ended.
func Main(ctx context.Context, commands any, name, description string, args []string, stdout, stderr io.Writer) int {
	helped := false
	parser, err := kong.New(commands,
		kong.Name(name), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 80}),
		kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(&Output{stdout, stderr}))
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if helped {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	err = command.Run()
	if err != nil {
		fmt.Fprintf(stderr, "%s %s: %v\n", name, command.Command(), err)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUsage):
		return 2
	case errors.Is(err, errNotDone):
		return notDone
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return interrupted
	}
	return 1
}

// Flags are the flags of all demos.
type Flags struct {
	Store string        `env:"DIBS_STORE" placeholder:"URL" help:"The store: sqlite:FILE or postgres://... Defaults to SQLite in a throwaway folder."`
	Limit time.Duration `default:"30m" placeholder:"TIME" help:"Give up after this time: the exit code is then 3. Defaults to ${default}."`
}

// A Run is a demo under way.
type Run struct {
	URL     string // of the store, which is the run's own
	Dir     string // for files of the run
	Store   *messagestore.Store
	Out     io.Writer
	Screen  *Screen
	Started time.Time

	limit     time.Duration
	fail      context.CancelCauseFunc
	processes []*Process
	atEnd     []func() error
}

// A Show is one demo.
type Show interface {
	// Work starts the processes and ends when all is done, or ctx. The context ends if a process
	// fails.
	Work(ctx context.Context, r *Run) error
	// Verdict checks the run when the processes have been stopped. It puts what it finds in the
	// books, and returns the text to show if all is well.
	Verdict(ctx context.Context, r *Run, b *Books) (good string, err error)
}

// Play runs a demo over its own store, which must have no messages in a category.
func (f Flags) Play(ctx context.Context, o *Output, empty messagestore.Category, show Show) (err error) {
	r, err := f.Open(ctx, o, empty)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Play(ctx, show)
}

// Open opens a run, for a demo that needs the category to be without messages.
func (f Flags) Open(ctx context.Context, o *Output, empty messagestore.Category) (_ *Run, err error) {
	r := &Run{Out: o.Stdout, Screen: NewScreen(o.Stdout), Started: time.Now(), limit: f.Limit}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.Dir, err = os.MkdirTemp("", "dibs-demo-"); err != nil {
		return nil, err
	}
	r.atEnd = append(r.atEnd, func() error { return os.RemoveAll(r.Dir) })
	const least = 2 * time.Minute // a limit that is short is the work's
	preparing, cancel := context.WithTimeoutCause(ctx, max(least, f.Limit), errors.New("the store is not prepared in time"))
	defer cancel()
	var cleanUp func() error
	if r.URL, cleanUp, err = prepareStore(preparing, f.Store, r.Dir); err != nil {
		return nil, cause(preparing, err)
	}
	r.atEnd = append(r.atEnd, cleanUp)
	if r.Store, err = dibs.Open(preparing, r.URL, &messagestore.Config{Logger: logger.Silent()}); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	r.atEnd = append(r.atEnd, r.Store.Close)
	page, err := r.Store.ReadCategoryPage(preparing, messagestore.CategoryQuery{Category: empty, Limit: 1})
	if err == nil && len(page.Messages) > 0 {
		err = fmt.Errorf("%w: the store holds messages of %s already, and the demo counts on an empty one", ErrUsage, empty)
	}
	return r, cause(preparing, err)
}

// Close closes everything that the run has opened, in reverse order.
func (r *Run) Close() error {
	for _, p := range r.processes {
		p.Kill()
	}
	r.Screen.Done()
	var errs []error
	for _, end := range slices.Backward(r.atEnd) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// Play does the work within the limit, stops the processes, and prints the verdict.
func (r *Run) Play(ctx context.Context, show Show) error {
	ctx, r.fail = context.WithCancelCause(ctx)
	defer r.fail(nil)
	working, cancel := context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("%w after %v", errNotDone, r.limit))
	defer cancel()
	if err := show.Work(working, r); err != nil {
		return cause(working, err)
	}
	if err := r.stopAll(); err != nil {
		return err
	}
	r.Screen.Done()
	const most = 10 * time.Minute // the books of a store that stands still cannot be read
	judging, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("the books cannot be read in %v", most))
	defer cancel()
	b, err := OpenBooks()
	if err != nil {
		return err
	}
	defer b.Close()
	good, err := show.Verdict(judging, r, b)
	if err = errors.Join(err, b.err); err != nil {
		return cause(judging, err)
	}
	return b.print(r.Out, good, time.Since(r.Started))
}

// cause prefers why the context ended to the error that its end led to.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
