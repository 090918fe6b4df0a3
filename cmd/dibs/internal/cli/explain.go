package cli

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// An explainCommand is dibs explain: it tells the story of a stream, from its first message to the
// messages that followed from it.
type explainCommand struct {
	Target   string                  `arg:"" name:"stream" help:"Name of a stream, or with --category an idempotence key."`
	Category messagestore.Category   `placeholder:"CATEGORY" help:"Search all of this category for streams reserved with the key. In a category of intents or sagas, or an inbox, the one with the key; in one of a queue, the item at a position."`
	Scope    string                  `placeholder:"SCOPE" help:"The scope of an intent's key. Defaults to none."`
	In       []messagestore.Category `sep:"none" placeholder:"CATEGORY" help:"Search all of this category too for messages that followed. May be repeated."`
}

func (c *explainCommand) Run(ctx context.Context, a *app) error {
	progress := a.progress()
	q := operate.Question{ID: c.Target, Category: c.Category, Scope: c.Scope, In: c.In, Progress: func(category messagestore.Category, n int) {
		progress.tell("looked at %d messages of %s", n, category)
	}}
	if err := q.Check(); err != nil {
		if c.Category == "" && messagestore.StreamName(c.Target).Validate() != nil {
			return usage("%w; to look for a key, give its --category", err)
		}
		return err
	}
	if c.Scope != "" && c.Category == "" {
		return usage("--scope is of an intent's key: give its --category too")
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		begun := false
		for e, err := range operate.Story(ctx, store, q) {
			if err != nil {
				return err
			}
			if e.Role == operate.Title && begun {
				a.out.line("")
			}
			begun = true
			a.printEvent(e)
		}
		return nil
	})
}

// labels are of roles that are printed as other words. A role is the event's name in JSON.
var labels = map[operate.Role]string{
	operate.FirstWrite: "first write", operate.CausedBy: "caused by", operate.Unreserved: "command", operate.SameKey: "same key", "takenOver": "taken over",
	"undoFailed": "undo failed", "cancelRequested": "cancelled", "setBack": "clock set back",
}

var roleStyles = map[operate.Role]style{
	operate.FirstWrite: green, operate.Winner: green, "received": green, operate.Inserted: green, "reserved": green, "confirmed": green, "started": green,
	"done": green, "completed": green, "resumed": green,
	operate.Unreserved: yellow, operate.Duplicate: yellow, "undone": yellow, "takenOver": yellow, "released": yellow, "compensating": yellow,
	"compensated": yellow, "cancelRequested": yellow, "resolved": yellow, "setBack": yellow,
	operate.SameKey: red, operate.Deleted: red, operate.Lapsed: red, "failed": red, "undoFailed": red, "suspended": red, operate.Unknown: red,
}

// isPosition reports whether a text is a place in a stream that is not named, such as @4.
func isPosition(at string) bool {
	n, is := strings.CutPrefix(at, "@")
	_, err := strconv.ParseUint(n, 10, 64)
	return is && err == nil
}

// printEvent prints a line of a story.
func (a *app) printEvent(e operate.Event) {
	switch e.Role {
	case operate.Title:
		a.out.title(e.Text)
		return
	case operate.Note:
		a.out.row(nil, cmp.Or(labels[operate.Role(e.Label)], e.Label), "", e.Place, e.Text)
		return
	}
	place := e.Place
	if at, own := strings.CutPrefix(place, string(e.Of)); own && (at == "" || isPosition(at)) {
		place = at
	}
	object := fields{"event", e.Role, "of", e.Of, "scope?", e.Scope, "key?", e.Key}
	label, what := in(roleStyles[e.Role], cmp.Or(labels[e.Role], string(e.Role))), in(bold, e.What)
	switch e.Role {
	case operate.Delivery, operate.AnItem:
		label = in(plain, e.QueueText())
		object = append(object, "queue", e.Queue)
		if e.Delivery != nil {
			object = append(object, "delivery", entryFields(*e.Delivery))
		} else {
			object = append(object, "item", itemFields(*e.Item))
			what = in(itemStyles[e.Item.State], e.What)
		}
		object = append(object, "position", e.Item.Position)
	case operate.ASaga:
		object = append(object, "saga", sagaFields(*e.Saga, e.Now))
		label, what = in(plain, string(e.Role)), in(sagaStyles[e.Saga.State], e.What)
	default:
		if e.Lease != nil {
			object = append(object, "session?", e.Lease.Session, "token?", e.Lease.Token, "attempt?", e.Lease.Attempt, "until?", e.Lease.Until)
		}
		object = append(object, "times?", e.Times, "step?", e.Step)
		if e.Step != "" {
			object = append(object, "attempt?", e.Attempt)
		}
		object = append(object, "text?", e.Text)
		if e.Message != nil {
			object = append(object, "message", recordOf(e.Message))
		}
	}
	a.out.row(object, label, e.Time, place, what, withData(e.Text, e.Data))
}
