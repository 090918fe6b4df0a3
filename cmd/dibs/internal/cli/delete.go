package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

type deleteCommand struct {
	Stream    string `arg:"" help:"Name of the stream."`
	EraseName bool   `help:"Remove the name too, and leave a hash of it."`
	Expect    string `placeholder:"VERSION" help:"Delete it only at this version, the position of its last message."`
	Reason    string `placeholder:"TEXT" help:"The reason, which is recorded and stays."`
	DryRun    bool   `help:"Delete nothing, and print the effect."`
	Yes       bool   `help:"Do not ask."`
}

// Help is printed below the command's usage.
func (deleteCommand) Help() string {
	return `All messages of the stream are removed. A tombstone takes their place, and keeps the stream's version: no later write is the first again, and a key that was reserved in it stays taken. Consumers pass the tombstone.

Other streams that belong to it are deleted by themselves: snapshots (account:snapshot-123), commands and reservations (account:command-123, account:command+reservation+accounts-123+AAA), which hold copies.

Examples:

    dibs delete account-123 --dry-run
    dibs delete account-123 --erase-name --expect 41 --reason 'on request' --yes`
}

// Run deletes.
func (c *deleteCommand) Run(ctx context.Context, a *app) error {
	stream, err := parseStream(c.Stream, "streams are deleted one by one; to see the streams of the category: dibs report streams --category ")
	if err != nil {
		return err
	}
	expected := messagestore.AnyVersion
	if c.Expect != "" {
		if expected, err = parseExpected(c.Expect); err != nil || expected < 0 {
			return usage("--expect=%.80q: it is the position of the last message, from 0", c.Expect)
		}
	}
	if err := removal.CheckReason(c.Reason); err != nil {
		return err
	}
	if !c.Yes && !c.DryRun && !isTerminal(a.stdin) {
		return usage("there is no terminal to confirm on: give --yes to delete %s, or --dry-run", visible(c.Stream))
	}
	return a.withKeeper(ctx, "delete", func(k keeper, store *messagestore.Store) error {
		options := &retention.DeleteOptions{EraseName: c.EraseName, Reason: c.Reason, DryRun: true}
		planned, err := k.Delete(ctx, stream, expected, options)
		if err == nil && !planned.Already {
			a.warnOfReaders(ctx, store, stream.Category())
		}
		if err != nil || c.DryRun || planned.Already {
			return c.print(a, planned, err)
		}
		if !c.Yes {
			name := ""
			if c.EraseName {
				name = " and its name,"
			}
			question := fmt.Sprintf("delete %s%s with %s? What is deleted does not come back. Type yes: ", visible(c.Stream), name, number(planned.Messages, "message", "messages"))
			if err := a.confirm(ctx, question, "nothing was deleted"); err != nil {
				return err
			}
			if expected == messagestore.AnyVersion {
				expected = planned.Version - 1 // the version that the answer was about
			}
		}
		meter := progress{every: 2 * time.Second, now: time.Now}
		meter.start()
		options.DryRun = false
		options.OnProgress = func() {
			if meter.due() && !a.JSON {
				a.warn("dibs: %s is deleted, and its messages are being removed\n", visible(c.Stream))
			}
		}
		deleted, err := k.Delete(ctx, stream, expected, options)
		if err != nil && deleted.Tombstone != "" && !a.JSON {
			a.warn("dibs: %s is deleted, and not all of its messages are removed yet: run it again to go on\n", visible(c.Stream))
		}
		return c.print(a, deleted, err)
	})
}

// confirm asks the operator, and takes only a full answer; any other is the refusal.
func (a *app) confirm(ctx context.Context, question, refusal string) error {
	a.warn("%s", question)
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(a.stdin).ReadString('\n')
		answered <- answer{text, err}
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case given := <-answered:
		if given.err != nil && !errors.Is(given.err, io.EOF) {
			return given.err
		}
		if strings.TrimSpace(given.text) != "yes" {
			return errors.New(refusal)
		}
		return nil
	}
}

// A deleteLine is how a stream that was deleted is printed as JSON.
type deleteLine struct {
	Stream     messagestore.StreamName `json:"stream"`
	Messages   int64                   `json:"messages"`
	Version    messagestore.Version    `json:"version"`
	Tombstone  messagestore.StreamName `json:"tombstone"`
	NameErased bool                    `json:"nameErased,omitempty"`
	Already    bool                    `json:"already,omitempty"`
	DryRun     bool                    `json:"dryRun,omitempty"`
}

func (c *deleteCommand) print(a *app, d retention.Deleted, err error) error {
	if err != nil {
		return err
	}
	if a.JSON {
		return a.out.object(deleteLine{d.Stream, d.Messages, d.Version, d.Tombstone, d.Tombstone != d.Stream, d.Already, c.DryRun})
	}
	switch {
	case d.Already:
		return a.out.line("%s is deleted already: its tombstone is at position %d of %s", visible(string(d.Stream)), d.Version, visible(string(d.Tombstone)))
	case c.DryRun:
		return a.out.line("would delete %s of %s, which is at version %d", number(d.Messages, "message", "messages"), visible(string(d.Stream)), d.Version-1)
	}
	return a.out.line("deleted %s of %s: its tombstone is at position %d of %s",
		number(d.Messages, "message", "messages"), visible(string(d.Stream)), d.Version, visible(string(d.Tombstone)))
}
