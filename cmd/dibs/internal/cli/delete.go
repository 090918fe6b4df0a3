package cli

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// A deleteCommand is dibs delete: it replaces a stream by a tombstone.
type deleteCommand struct {
	Stream    messagestore.StreamName `arg:"" help:"Name of the stream."`
	EraseName bool                    `help:"Remove the name too, and leave a hash of it."`
	Expect    string                  `placeholder:"VERSION" help:"Delete it only at this version, the position of its last message."`
	Reason    string                  `placeholder:"TEXT" help:"The reason, which is recorded and stays."`
	DryRun    bool                    `help:"Delete nothing, and print the effect."`
	Yes       bool                    `help:"Do not ask."`
}

func (c *deleteCommand) Run(ctx context.Context, a *app) error {
	expected := messagestore.AnyVersion
	if c.Expect != "" {
		var err error
		if expected, err = parseExpected(c.Expect); err != nil || expected < 0 {
			return usage("--expect=%.80q: must be the position of the last message, from 0", c.Expect)
		}
	}
	if err := removal.CheckReason(c.Reason); err != nil {
		return err
	}
	if err := a.canAsk(c.Yes || c.DryRun, fmt.Sprintf("give --yes to delete %s, or --dry-run", c.Stream)); err != nil {
		return err
	}
	return a.withKeeper(ctx, "delete", func(k keeper, store *messagestore.Store) error {
		options := &retention.DeleteOptions{EraseName: c.EraseName, Reason: c.Reason, DryRun: true}
		planned, err := k.Delete(ctx, c.Stream, expected, options)
		if err != nil {
			return err
		}
		if !planned.Already {
			a.warnOfReaders(ctx, store, c.Stream.Category())
		}
		if c.DryRun || planned.Already {
			return c.print(a, planned)
		}
		name := ""
		if c.EraseName {
			name = " and its name,"
		}
		question := fmt.Sprintf("delete %s%s with %s? What is deleted does not come back.", c.Stream, name, text.Number(planned.Messages, "message"))
		if err := a.confirm(ctx, c.Yes, question, "nothing was deleted"); err != nil {
			return err
		}
		if !c.Yes && expected == messagestore.AnyVersion {
			expected = planned.Version - 1 // the version that the answer was about
		}
		progress := a.progress()
		options.DryRun = false
		options.OnProgress = func() { progress.tell("%s is deleted, and its messages are being removed", c.Stream) }
		deleted, err := k.Delete(ctx, c.Stream, expected, options)
		if err != nil && deleted.Tombstone != "" {
			a.nothing("dibs: %s is deleted, and not all of its messages are removed yet: run it again to go on", c.Stream)
		}
		if err != nil {
			return err
		}
		return c.print(a, deleted)
	})
}

func (c *deleteCommand) print(a *app, d retention.Deleted) error {
	says := fmt.Sprintf("deleted %s of %s: its tombstone is at position %d of %s", text.Number(d.Messages, "message"), d.Stream, d.Version, d.Tombstone)
	switch {
	case d.Already:
		says = fmt.Sprintf("%s is deleted already: its tombstone is at position %d of %s", d.Stream, d.Version, d.Tombstone)
	case c.DryRun:
		says = fmt.Sprintf("would delete %s of %s, which is at version %d", text.Number(d.Messages, "message"), d.Stream, d.Version-1)
	}
	return a.out.tell(fields{
		"stream", d.Stream, "messages", d.Messages, "version", d.Version, "tombstone", d.Tombstone, "nameErased?", d.Tombstone != d.Stream,
		"already?", d.Already, "dryRun?", c.DryRun,
	}, "%s", says)
}
