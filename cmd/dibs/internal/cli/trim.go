package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/operate"
)

// A trimCommand is dibs trim: it removes the first messages of a stream, or of each stream of a
// category.
type trimCommand struct {
	Stream   messagestore.StreamName `arg:"" optional:"" help:"Name of the stream."`
	Category messagestore.Category   `placeholder:"CATEGORY" help:"Trim every stream of this category."`
	Keep     *bound                  `placeholder:"N" help:"Keep the last N messages, at least 1."`
	Before   moment                  `placeholder:"TIME" help:"Remove messages from before this time only, like 2026-11-21T10:00:00Z."`
	Behind   []string                `placeholder:"NAME" sep:"," help:"Remove only messages that this consumer of the category has passed. Several are given with commas between them."`
	MinAge   time.Duration           `default:"15m" placeholder:"AGE" help:"Keep younger messages. Defaults to 15m."`
	Reason   string                  `placeholder:"TEXT" help:"The reason, which is recorded."`
	DryRun   bool                    `help:"Remove nothing, and print the effect."`
	Yes      bool                    `help:"Trim streams of entities too that no snapshot covers."`
}

func (c *trimCommand) Run(ctx context.Context, a *app) error {
	options := &retention.TrimOptions{MinAge: c.MinAge, Before: c.Before.Time, Reason: c.Reason, DryRun: c.DryRun}
	switch {
	case (c.Stream == "") == (c.Category == ""):
		return usage("give either STREAM or --category")
	case c.Keep == nil && c.Before.IsZero() && len(c.Behind) == 0:
		return usage("give --keep, --before, --behind or several of them")
	case c.MinAge < 0:
		return usage("--min-age=%s: must be at least 0s", c.MinAge)
	case c.MinAge == 0:
		options.MinAge = retention.AnyAge
	}
	if c.Keep != nil {
		options.Keep = int64(*c.Keep)
	}
	return a.withKeeper(ctx, "trim", func(k keeper, store *messagestore.Store) error {
		if err := operate.RequireCategory(ctx, store, c.Category); err != nil {
			return err
		}
		options.OnProgress = a.removed()
		of := cmp.Or(c.Category, c.Stream.Category())
		var err error
		if options.Below, err = passed(ctx, store, of, c.Behind); err != nil {
			return err
		}
		if len(c.Behind) > 0 && options.Below == 0 { // a bound of 0 is none
			a.out.line("%s has passed no message yet: nothing was removed", strings.Join(c.Behind, ", "))
			return nil
		}
		a.warnOfReaders(ctx, store, of, c.Behind...)
		trim := func(options *retention.TrimOptions) iter.Seq2[retention.Trimmed, error] {
			if c.Category == "" {
				return only(k.Trim(ctx, c.Stream, options))
			}
			return k.TrimCategory(ctx, c.Category, options)
		}
		if !c.Yes {
			dry := *options
			dry.DryRun = true
			bare, err := bareStreams(ctx, store, trim(&dry))
			if err == nil {
				err = c.refuse(a, bare)
			}
			if err != nil {
				return err
			}
		}
		return c.print(a, trim(options))
	})
}

// bareStreams returns, in order, the streams that would lose messages that an entity needs, since
// no snapshot has them.
func bareStreams(ctx context.Context, store *messagestore.Store, each iter.Seq2[retention.Trimmed, error]) ([]messagestore.StreamName, error) {
	entities := map[messagestore.Category]bool{}
	var bare []messagestore.StreamName
	for t, err := range each {
		if err != nil {
			return bare, nil // the trim itself returns err
		}
		category := t.Stream.Category()
		is, known := entities[category]
		if t.Removed > 0 && !known {
			if is, err = hasEntities(ctx, store, category); err != nil {
				return nil, err
			}
			entities[category] = is
		}
		if t.Removed == 0 || !is {
			continue
		}
		covered, err := covers(ctx, store, t)
		if err != nil {
			return nil, err
		}
		if !covered {
			bare = append(bare, t.Stream)
		}
	}
	return bare, nil
}

// covers reports whether a snapshot has the messages that a trim removes. Any writer may have
// written it, so the message that it is behind has to be in its place.
func covers(ctx context.Context, store *messagestore.Store, t retention.Trimmed) (bool, error) {
	m, err := store.Last(ctx, removal.SnapshotStream(t.Stream))
	if errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	snapshot, ok := removal.SnapshotOf(m)
	if !ok || snapshot.Version < t.First-1 {
		return false, nil
	}
	for last, err := range store.ReadStream(ctx, t.Stream, snapshot.Version) {
		return err == nil && last.Position == snapshot.Version && last.ID == snapshot.Last, err
	}
	return false, nil
}

// hasEntities reports whether a category may have the streams of entities: it has no type, as
// commands and positions have, or it has snapshots.
func hasEntities(ctx context.Context, store *messagestore.Store, category messagestore.Category) (bool, error) {
	if len(category.Types()) == 0 {
		return true, nil
	}
	return hasSnapshots(ctx, store, category)
}

func hasSnapshots(ctx context.Context, store *messagestore.Store, category messagestore.Category) (bool, error) {
	snapshots := category.WithType("snapshot")
	if snapshots.Validate() != nil {
		return false, nil
	}
	for _, err := range store.ReadCategory(ctx, snapshots, 0, messagestore.Filter{}) {
		return err == nil, err
	}
	return false, nil
}

// refuse returns an error if there are bare streams, or warns of them before a dry run.
func (c *trimCommand) refuse(a *app, bare []messagestore.StreamName) error {
	if len(bare) == 0 {
		return nil
	}
	says := fmt.Sprintf("no snapshot has the messages of %s that would go", bare[0])
	if more := len(bare) - 1; more > 0 {
		says += fmt.Sprintf(", nor those of %s more", text.Number(more, "stream"))
	}
	says += ": an entity of that stream could not be loaded any more"
	if c.DryRun {
		a.warn("dibs: %s", says)
		return nil
	}
	return fmt.Errorf("%s. Nothing was removed. Have the service write snapshots first (entity.Config.Snapshot), or give --yes if no entity is folded from it", says)
}

func only(trimmed retention.Trimmed, err error) iter.Seq2[retention.Trimmed, error] {
	return func(yield func(retention.Trimmed, error) bool) { yield(trimmed, err) }
}

// print prints each stream's result; after an error, those before it.
func (c *trimCommand) print(a *app, each iter.Seq2[retention.Trimmed, error]) error {
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	var streams, removed int64
	for t, err := range each {
		if err != nil && t.Removed == 0 {
			return err
		}
		streams, removed = streams+1, removed+t.Removed
		c.printStream(a, t, verb)
		if err != nil {
			return err
		}
	}
	a.out.line("%s %s of %s", verb, text.Number(removed, "message"), text.Number(streams, "stream"))
	return nil
}

func (c *trimCommand) printStream(a *app, t retention.Trimmed, verb string) {
	var notes []string
	if t.Removed > 0 {
		notes = append(notes, fmt.Sprintf("%s %d, it begins at %d", verb, t.Removed, t.First))
	}
	switch {
	case t.Reservation:
		notes = append(notes, "left as it is: its first message makes a reservation")
	case t.Queue != "":
		notes = append(notes, fmt.Sprintf("messages from %d on stay: queue %s has not finished that one", t.First, t.Queue))
	case t.Recent:
		notes = append(notes, fmt.Sprintf("messages younger than %s stay", c.MinAge))
	case t.Version == messagestore.NoStream && c.Stream != "":
		notes = append(notes, "it has no messages")
	}
	if len(notes) == 0 && !a.JSON {
		return
	}
	a.out.row(fields{
		"stream", t.Stream, "removed", t.Removed, "first", t.First, "version", t.Version, "recent?", t.Recent, "reservation?", t.Reservation,
		"queue?", t.Queue, "dryRun?", c.DryRun,
	}, t.Stream, strings.Join(notes, "; "))
}
