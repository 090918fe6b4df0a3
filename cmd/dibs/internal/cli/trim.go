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
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

type trimCommand struct {
	Stream   string        `arg:"" optional:"" help:"Name of the stream."`
	Category string        `placeholder:"CATEGORY" help:"Trim every stream of this category."`
	Keep     *int64        `placeholder:"N" help:"Keep the last N messages, at least 1."`
	Before   string        `placeholder:"TIME" help:"Remove messages from before this time only, like 2026-11-21T10:00:00Z."`
	Behind   []string      `placeholder:"NAME" sep:"," help:"Remove only messages that this consumer of the category has passed. Several are given with commas between them."`
	MinAge   time.Duration `default:"15m" placeholder:"AGE" help:"Keep younger messages. Defaults to 15m."`
	Reason   string        `placeholder:"TEXT" help:"The reason, which is recorded."`
	DryRun   bool          `help:"Remove nothing, and print the effect."`
	Yes      bool          `help:"Trim streams of entities too that no snapshot covers."`
}

// Help is printed below the command's usage.
func (trimCommand) Help() string {
	return `The last message of a stream always stays, and all that stay keep their positions. The ids of removed messages are forgotten, so do not set --min-age below the time for which a writer may still resolve or repeat a write. The user, the messages removed and the reason are recorded, in account:retention-123 for account-123. A stream whose first message makes a reservation is left as it is. A message that a queue or a relay has not finished stays, with all behind it, from the first time on that it asked for items. So does one that a consumer has parked.

An entity is folded from all messages of its stream, or from a snapshot and those after it. So a trim of a category without a type, such as account, or of one with snapshots, looks for the snapshots first: in account:snapshot-123 for account-123. If messages would go that no snapshot has, nothing is removed without --yes.

With --behind, a message goes once each of the consumers has passed it, and not before. Their positions are read once, before anything is removed. A queue or a relay needs no --behind.

With --json there is a line for each stream; without, for each stream with messages that go or are held back.

Examples:

    dibs trim account-123 --before 2026-01-01T00:00:00Z --reason 'a year old'
    dibs trim --category account:command+position --keep 10 --dry-run
    dibs trim --category payments:outgoing --keep 1
    dibs trim --category account:command --behind accounts,summary`
}

// Run trims.
func (c *trimCommand) Run(ctx context.Context, a *app) error {
	options, err := c.options()
	if err != nil {
		return err
	}
	var category messagestore.Category
	if c.Category != "" {
		if category, err = parseCategory(c.Category, "to trim the stream: dibs trim "); err != nil {
			return err
		}
	}
	if c.Category == "" {
		if _, err := parseStream(c.Stream, "to trim every stream of the category: dibs trim --category "); err != nil {
			return err
		}
	}
	return a.withKeeper(ctx, "trim", func(k keeper, store *messagestore.Store) error {
		if category != "" {
			if err := requireCategory(ctx, store, category); err != nil {
				return err
			}
		}
		meter := &removalMeter{app: a, progress: progress{every: 2 * time.Second, now: time.Now}}
		meter.start()
		options.OnProgress = meter.removed
		of := cmp.Or(category, messagestore.StreamName(c.Stream).Category())
		if options.Below, err = passed(ctx, store, of, c.Behind); err != nil {
			return err
		}
		switch {
		case len(c.Behind) == 0 || options.Below > 0:
		case a.JSON:
			return nil
		default: // a bound of 0 is none
			return a.out.line("%s has passed no message yet: nothing was removed", visible(strings.Join(c.Behind, ", ")))
		}
		a.warnOfReaders(ctx, store, of, c.Behind...)
		trim := func(options *retention.TrimOptions) iter.Seq2[retention.Trimmed, error] {
			if c.Category == "" {
				return only(k.Trim(ctx, messagestore.StreamName(c.Stream), options))
			}
			return k.TrimCategory(ctx, category, options)
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
		if t.Removed == 0 {
			continue
		}
		category := t.Stream.Category()
		if _, known := entities[category]; !known {
			var err error
			if entities[category], err = hasEntities(ctx, store, category); err != nil {
				return nil, err
			}
		}
		if !entities[category] {
			continue
		}
		snapshot, err := store.Last(ctx, removal.SnapshotStream(t.Stream))
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) && !errors.Is(err, messagestore.ErrInvalid) {
			return nil, err
		}
		if err == nil {
			covered, err := covers(ctx, store, t, snapshot)
			if err != nil {
				return nil, err
			}
			if covered {
				continue
			}
		}
		bare = append(bare, t.Stream)
	}
	return bare, nil
}

// covers reports whether a snapshot has the messages that a trim removes. Any writer may have written it, so the message that it is behind
// has to be in its place.
func covers(ctx context.Context, store *messagestore.Store, t retention.Trimmed, m *messagestore.Message) (bool, error) {
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
	text := fmt.Sprintf("no snapshot has the messages of %s that would go", visible(string(bare[0])))
	if more := len(bare) - 1; more > 0 {
		text += fmt.Sprintf(", nor those of %s more", number(int64(more), "stream", "streams"))
	}
	text += ": an entity of that stream could not be loaded any more"
	if c.DryRun {
		a.warn("dibs: %s\n", text)
		return nil
	}
	return fmt.Errorf("%s. Nothing was removed. Have the service write snapshots first (entity.Config.Snapshot), or give --yes if no entity is folded from it", text)
}

func only(trimmed retention.Trimmed, err error) iter.Seq2[retention.Trimmed, error] {
	return func(yield func(retention.Trimmed, error) bool) { yield(trimmed, err) }
}

func (c *trimCommand) options() (*retention.TrimOptions, error) {
	if (c.Stream == "") == (c.Category == "") {
		return nil, usage("give either STREAM or --category")
	}
	if c.Keep == nil && c.Before == "" && len(c.Behind) == 0 {
		return nil, usage("give --keep, --before, --behind or several of them")
	}
	options := &retention.TrimOptions{MinAge: c.MinAge, Reason: c.Reason, DryRun: c.DryRun}
	if c.Keep != nil {
		if options.Keep = *c.Keep; options.Keep < 1 {
			return nil, usage("--keep=%d: it is at least 1", options.Keep)
		}
	}
	if c.Before != "" {
		before, err := time.Parse(time.RFC3339Nano, c.Before)
		if err != nil {
			return nil, usage("--before=%.80q: it is like 2026-11-21T10:00:00Z, or 2026-11-21T11:00:00+01:00", c.Before)
		}
		options.Before = before
	}
	switch {
	case c.MinAge < 0:
		return nil, usage("--min-age=%s: it is less than 0", c.MinAge)
	case c.MinAge == 0:
		options.MinAge = retention.AnyAge
	}
	return options, nil
}

// A trimLine is how a stream that was trimmed is printed as JSON.
type trimLine struct {
	Stream      messagestore.StreamName `json:"stream"`
	Removed     int64                   `json:"removed"`
	First       messagestore.Version    `json:"first"`
	Version     messagestore.Version    `json:"version"`
	Recent      bool                    `json:"recent,omitempty"`
	Reservation bool                    `json:"reservation,omitempty"`
	Queue       string                  `json:"queue,omitempty"`
	DryRun      bool                    `json:"dryRun,omitempty"`
}

// print prints each stream's result; after an error, those before it.
func (c *trimCommand) print(a *app, each iter.Seq2[retention.Trimmed, error]) error {
	var streams, removed int64
	for trimmed, err := range each {
		if err != nil && trimmed.Removed == 0 {
			return err
		}
		streams, removed = streams+1, removed+trimmed.Removed
		if printErr := c.printStream(a, trimmed); printErr != nil {
			return printErr
		}
		if err != nil {
			return err
		}
	}
	if a.JSON {
		return nil
	}
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	return a.out.line("%s %s of %s", verb, number(removed, "message", "messages"), number(streams, "stream", "streams"))
}

func (c *trimCommand) printStream(a *app, t retention.Trimmed) error {
	if a.JSON {
		return a.out.object(trimLine{t.Stream, t.Removed, t.First, t.Version, t.Recent, t.Reservation, t.Queue, c.DryRun})
	}
	var notes []string
	if t.Removed > 0 {
		verb := "removed"
		if c.DryRun {
			verb = "would remove"
		}
		notes = append(notes, fmt.Sprintf("%s %d, it begins at %d", verb, t.Removed, t.First))
	}
	switch {
	case t.Reservation:
		notes = append(notes, "left as it is: its first message makes a reservation")
	case t.Queue != "":
		notes = append(notes, fmt.Sprintf("messages from %d on stay: queue %s has not finished that one", t.First, visible(t.Queue)))
	case t.Recent:
		notes = append(notes, fmt.Sprintf("messages younger than %s stay", c.MinAge))
	case t.Version == messagestore.NoStream && c.Stream != "":
		notes = append(notes, "it has no messages")
	}
	if len(notes) == 0 {
		return nil
	}
	return a.out.row(cell{text: visible(string(t.Stream))}, cell{text: strings.Join(notes, "; ")})
}

// A removalMeter tells a person how far a removal is.
type removalMeter struct {
	*app
	progress

	total int64
}

func (m *removalMeter) removed(n int64) {
	m.total += n
	if m.due() && !m.JSON {
		m.warn("dibs: %s removed so far\n", number(m.total, "message", "messages"))
	}
}
