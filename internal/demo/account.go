// Package demo has the programs of the examples, each with a demo, which runs the example in
// several processes, kills some, and compares the records with the requests. The demos share [Run],
// which starts, kills and stops processes; [Books], which has all records of a run as tables; and
// the verdict, which queries the books for its figures.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	senders   = 4
	consumers = 2 // processes
)

type accountGrammar struct {
	Demo accountDemo `cmd:"" help:"Run the component under fire and compare the books."`
	Run  accountRun  `cmd:"" help:"Handle commands until interrupted."`
}

// Account runs a command of examples/account and returns the exit code: see [Main].
func Account(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return Main(ctx, &accountGrammar{}, "account",
		"The account component, which keeps accounts by handling commands, each once, however often it is sent. A store is postgres://... or sqlite:FILE.",
		args, stdout, stderr)
}

type accountRun struct {
	Store       string        `env:"DIBS_STORE" placeholder:"URL" help:"The store."`
	Lease       time.Duration `default:"10s" placeholder:"TIME" help:"How long another process of the consumer waits for a silent one before it takes over. Defaults to ${default}."`
	Concurrency int           `default:"64" placeholder:"N" help:"The number of accounts in work at once. Defaults to ${default}."`
	Verbose     bool          `short:"v" help:"Log to standard error."`
}

// Run handles commands until ctx ends.
func (c *accountRun) Run(ctx context.Context, o *Output) error {
	log := logger.Silent()
	if c.Verbose {
		log = logger.Zerolog(zerolog.New(o.Stderr).With().Timestamp().Logger())
	}
	store, err := dibs.Open(ctx, c.Store, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()
	return account.Serve(ctx, store, &account.Config{Consumer: consumer.Config{Concurrency: c.Concurrency, Lease: c.Lease, Logger: log}})
}

// An accountDemo is the command, and one run of it.
type accountDemo struct {
	Flags
	OrderFlags

	plan    *accountPlan
	seen    watcher
	kills   int
	sent    atomic.Int64
	refused atomic.Int64 // by the store: the message id was there already
}

// Help is printed below the command's usage.
func (*accountDemo) Help() string {
	return `It starts two processes with the component's two consumers, and sends each command one to five times, by any of four senders. A process is killed with SIGKILL in mid-flight and started again.

Then it compares the file with the messages in the store, and tells what became of one withdrawal. The exit code is 0 if both agree, and 1 if not.`
}

// Run runs the component in processes, sends it every order several times, kills a process, and
// compares the books.
func (d *accountDemo) Run(ctx context.Context, o *Output) error {
	orders, seed, err := d.Read()
	if err != nil {
		return err
	}
	d.plan = newAccountPlan(orders, seed)
	fmt.Fprintf(o.Stdout, "%s standing orders, %d months: %s commands, each sent 1 to 5 times\nby any of %d senders: %s in all (seed %d)\n",
		Count(len(orders)), len(months), Count(d.plan.distinct), senders, Count(d.plan.sent), seed)
	return d.Play(ctx, o, account.Commands, d)
}

// Work implements [Show].
func (d *accountDemo) Work(ctx context.Context, r *Run) (err error) {
	var processes [consumers]*Process
	for i := range processes {
		if processes[i], err = r.Start(fmt.Sprintf("consumer %d", i+1), nil, "run", "--lease", "2s"); err != nil {
			return err
		}
	}
	var sent atomic.Bool
	withdrawals := len(d.plan.orders) * len(months)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := d.send(ctx, r.URL)
		sent.Store(err == nil)
		return err
	})
	group.Go(func() error {
		return Until(ctx, 50*time.Millisecond, func() (bool, error) {
			all := sent.Load()
			if err := d.seen.look(ctx, r.Store); err != nil {
				return false, err
			}
			lag := len(d.seen.commands) + len(d.seen.copies)
			r.Screen.Show(Progress{
				Done: d.seen.decided, Of: withdrawals, Count: d.seen.messages, Unit: "msg",
				Tail: fmt.Sprintf("%s duplicates, lag %s", Count(max(0, int(d.sent.Load())-d.seen.events-lag)), Count(lag)),
			})
			if d.kills == 0 && d.seen.decided > withdrawals/4 {
				d.kills++
				r.Screen.Say(fmt.Sprintf("consumer 1 killed with SIGKILL in mid-flight, %s behind; started again", Count(lag)))
				return false, processes[0].KillAndStart()
			}
			return all && lag == 0 && d.seen.decided >= withdrawals, nil
		})
	})
	return group.Wait()
}

// send has each sender send its part of each phase. All are done with one before the next.
func (d *accountDemo) send(ctx context.Context, url string) error {
	var stores [senders]*messagestore.Store
	for i := range stores {
		var err error
		if stores[i], err = dibs.Open(ctx, url, nil); err != nil {
			return err
		}
		defer stores[i].Close()
	}
	for phase := range d.plan.phases {
		var all errgroup.Group
		for sender, store := range stores {
			all.Go(func() error {
				sending, ctx := errgroup.WithContext(ctx)
				sending.SetLimit(16)
				for _, s := range d.plan.of(sender, phase) {
					sending.Go(func() error { return d.write(ctx, store, s) })
				}
				return sending.Wait()
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// write sends a command and, after a failure, sends the same message again: its id makes
// the repeat harmless, whether or not the first was written.
func (d *accountDemo) write(ctx context.Context, store *messagestore.Store, s sending) (err error) {
	m := messagestore.Envelope{ID: s.ID, Body: s.Body}
	m.Metadata.CorrelationStream = s.Origin
	if m.ID == uuid.Nil {
		m.ID = uuid.Must(uuid.NewV7())
		m.Metadata.Local = messagestore.Properties{"sender": fmt.Sprintf("sender-%d", s.Sender+1)}
	}
	for attempt := range 5 {
		var written messagestore.Written
		if written, err = store.Write(ctx, s.Stream, messagestore.AnyVersion, m); err == nil {
			d.sent.Add(1)
			if written.Duplicate {
				d.refused.Add(1)
			}
			return nil
		}
		if errors.Is(err, messagestore.ErrInvalid) || ctx.Err() != nil {
			break
		}
		Wait(ctx, 50*time.Millisecond<<attempt)
	}
	return fmt.Errorf("send: %w", err)
}

// A watcher follows the store from outside, with the rights of a reader.
type watcher struct {
	next             map[messagestore.Category]messagestore.GlobalPosition
	messages, events int
	decided          int                           // withdrawals with an effect
	commands, copies []messagestore.GlobalPosition // that their consumer has yet to pass
}

// look reads the messages written since the last look.
func (w *watcher) look(ctx context.Context, store *messagestore.Store) error {
	if w.next == nil {
		w.next = map[messagestore.Category]messagestore.GlobalPosition{}
	}
	for category, see := range map[messagestore.Category]func(*messagestore.Message) error{
		account.Commands:                      func(m *messagestore.Message) error { w.commands = append(w.commands, m.GlobalPosition); return nil },
		account.Copies:                        func(m *messagestore.Message) error { w.copies = append(w.copies, m.GlobalPosition); return nil },
		account.Commands.WithType("position"): passes(&w.commands),
		account.Copies.WithType("position"):   passes(&w.copies),
		account.Category: func(m *messagestore.Message) error {
			w.events++
			if m.Type == (account.Withdrawn{}).MessageType() || m.Type == (account.WithdrawalRejected{}).MessageType() {
				w.decided++
			}
			return nil
		},
	} {
		for m, err := range store.ReadCategory(ctx, category, w.next[category], messagestore.Filter{}) {
			if err != nil {
				return err
			}
			if err := see(m); err != nil {
				return err
			}
			w.messages++
			w.next[category] = m.GlobalPosition.Next()
		}
	}
	return nil
}

// passes has a checkpoint take the positions before it away.
func passes(behind *[]messagestore.GlobalPosition) func(*messagestore.Message) error {
	return func(m *messagestore.Message) error {
		var at struct{ Position *messagestore.GlobalPosition }
		if err := json.Unmarshal(m.Data, &at); err != nil || at.Position == nil || len(m.Stream.IDs()) < 2 {
			return err
		}
		for len(*behind) > 0 && (*behind)[0] < *at.Position {
			*behind = (*behind)[1:]
		}
		return nil
	}
}
