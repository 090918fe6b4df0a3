package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/messagestore"
)

type parkedCommand struct {
	List    parkedListCommand    `cmd:"" default:"withargs" help:"Print parked messages and their errors."`
	Show    parkedShowCommand    `cmd:"" help:"Print one parked message in full."`
	Redrive parkedRedriveCommand `cmd:"" help:"Ask the consumer to deliver parked messages again."`
	Drop    parkedDropCommand    `cmd:"" help:"Close a dead letter without handling its message."`
}

type parkedListCommand struct {
	Category string `arg:"" optional:"" help:"The category that the consumers read. Defaults to all."`
	Name     string `arg:"" optional:"" help:"The consumer's name. Defaults to all of the category."`
}

// Help is printed below the command's usage.
func (parkedListCommand) Help() string {
	return `A line for each message: the time it was parked, its consumer, the number of tries, its place, type and id, its state, and the last error. It never prints data, but a handler's error may quote some.

A dead letter that cannot be read is named on the standard error after the others, and the exit code is 1; dibs parked drop closes it.

Example:

    dibs parked list account:command accounts`
}

// Run prints them.
func (c *parkedListCommand) Run(ctx context.Context, a *app) error {
	if c.Category != "" {
		_, err := toCategory(c.Category)
		if c.Name != "" {
			_, err = parseConsumer(c.Category, c.Name)
		}
		if err != nil {
			return err
		}
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		categories := []messagestore.Category{messagestore.Category(c.Category)}
		if c.Category == "" {
			var err error
			if categories, err = withSideCategory(ctx, store, "deadLetter"); err != nil {
				return err
			}
		}
		printed := false
		var wrong error
		for _, category := range categories {
			names := []string{c.Name}
			if c.Name == "" {
				counts, err := deadletter.Counts(ctx, store, category)
				if err != nil {
					return err
				}
				names = slices.Sorted(maps.Keys(counts))
			}
			for _, name := range names {
				for p, err := range deadletter.Of(store, category, name).All(ctx) {
					switch {
					case errors.Is(err, deadletter.ErrCorrupt):
						wrong = errors.Join(wrong, err)
						continue
					case err == nil:
						printed = true
						err = a.printParked(category, name, p)
					}
					if err != nil {
						return err
					}
				}
			}
		}
		if !printed && wrong == nil {
			return a.nothingParked(ctx, store, messagestore.Category(c.Category), c.Name)
		}
		return wrong
	})
}

// nothingParked says so. A consumer or category that there is not is an error: it has
// nothing parked because its name was misspelt.
func (a *app) nothingParked(ctx context.Context, store *messagestore.Store, category messagestore.Category, name string) error {
	by := ""
	switch {
	case name != "":
		if _, err := statusOf(ctx, store, category, name); isUnknownConsumer(err) {
			return err
		}
		by = fmt.Sprintf(" by %s of %s", visible(name), visible(string(category)))
	case category != "":
		if err := requireCategory(ctx, store, category); err != nil {
			return err
		}
		by = " by consumers of " + visible(string(category))
	}
	a.nothing("nothing is parked%s", by)
	return nil
}

// The state of a parked message.
const (
	stateParked    = "parked"
	stateRequested = "requested" // to be redriven
)

// A parkedLine is how a parked message is printed as JSON.
type parkedLine struct {
	Category      messagestore.Category   `json:"category"`
	Consumer      string                  `json:"consumer"`
	State         string                  `json:"state"`
	ParkedAt      string                  `json:"parkedAt"`
	FirstFailedAt string                  `json:"firstFailedAt,omitempty"`
	Attempts      int                     `json:"attempts"`
	Error         string                  `json:"error"`
	Stack         string                  `json:"stack,omitempty"`
	Reason        string                  `json:"reason,omitempty"`
	DeadLetter    messagestore.StreamName `json:"deadLetter"`
	Message       record                  `json:"message"`
}

func toParkedLine(category messagestore.Category, name string, p *deadletter.Entry) parkedLine {
	return parkedLine{
		Category: category, Consumer: name, State: stateOf(p), ParkedAt: timeText(p.ParkedAt), FirstFailedAt: timeOrNone(p.FirstFailedAt, ""),
		Attempts: p.Attempts, Error: p.Error, Stack: p.Stack, Reason: p.Reason, DeadLetter: p.DeadLetter,
		Message: record{Stream: p.Stream, Position: p.Position, GlobalPosition: p.GlobalPosition, Type: p.Type, ID: p.ID.String()},
	}
}

func stateOf(p *deadletter.Entry) string {
	if p.Requested {
		return stateRequested
	}
	return stateParked
}

func (a *app) printParked(category messagestore.Category, name string, p *deadletter.Entry) error {
	if a.JSON {
		return a.out.object(toParkedLine(category, name, p))
	}
	return a.out.row(
		cell{text: timeText(p.ParkedAt), style: dim},
		cell{text: visible(name)},
		cell{text: strconv.Itoa(p.Attempts), right: true},
		cell{text: placeOf(p.Stream, p.Position)},
		cell{text: visible(p.Type), style: bold},
		cell{text: p.ID.String()},
		cell{text: stateOf(p), style: yellow},
		cell{text: shorten(visible(p.Error)), style: red})
}

type parkedShowCommand struct {
	Category string `arg:"" help:"The category that the consumer reads."`
	Name     string `arg:"" help:"The consumer's name."`
	ID       string `arg:"" help:"The message's id."`
	Data     bool   `help:"Print the message's data and metadata too."`
}

// Help is printed below the command's usage.
func (parkedShowCommand) Help() string {
	return `Data belongs to the service's users, so it is printed only with --data.

Example:

    dibs parked show account mail 01a1fd9c-f797-77be-b0e5-a936700dfa27`
}

// Run prints it.
func (c *parkedShowCommand) Run(ctx context.Context, a *app) error {
	category, err := parseConsumer(c.Category, c.Name)
	if err != nil {
		return err
	}
	id, err := parseID(c.ID)
	if err != nil {
		return err
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		letters := deadletter.Of(store, category, c.Name)
		p, err := letters.Get(ctx, id)
		if err != nil {
			return err
		}
		m, err := letters.Message(ctx, p)
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
			return err
		}
		if a.JSON {
			l := toParkedLine(category, c.Name, p)
			if m != nil {
				l.Message = toRecord(m)
			}
			if !c.Data {
				l.Message.Data, l.Message.Metadata = nil, nil
			}
			return a.out.object(l)
		}
		return a.showParked(category, c.Name, p, m, c.Data)
	})
}

func (a *app) showParked(category messagestore.Category, name string, p *deadletter.Entry, m *messagestore.Message, data bool) error {
	lines := [][2]string{
		{"message", placeOf(p.Stream, p.Position) + fmt.Sprintf(", at %d of %s", p.GlobalPosition, visible(string(category)))},
		{"type", visible(p.Type)},
		{"id", p.ID.String()},
		{"consumer", visible(name)},
		{"state", stateOf(p)},
		{"attempts", strconv.Itoa(p.Attempts)},
		{"first failed", timeOrNone(p.FirstFailedAt, "")},
		{"parked", timeText(p.ParkedAt)},
		{"error", visible(p.Error)},
		{"reason", visible(p.Reason)},
		{"dead letter", visible(string(p.DeadLetter))},
	}
	if m == nil {
		lines = append(lines, [2]string{"data", "the message was removed"})
	} else {
		lines = append(lines, [2]string{"written", timeText(m.Time)})
		if cause := m.Metadata.CausationStream; cause != "" {
			lines = append(lines, [2]string{"caused by", placeOf(cause, m.Metadata.CausationPosition)})
		}
	}
	for i, line := range strings.Split(p.Stack, "\n") {
		name := "stack"
		if i > 0 {
			name = " "
		}
		lines = append(lines, [2]string{name, visible(strings.ReplaceAll(line, "\t", "    "))})
	}
	if m != nil && data {
		lines = append(lines, [2]string{"data", cmp.Or(visible(string(m.Data)), "none")})
		if !m.Metadata.IsZero() {
			text, err := oneLine(m.Metadata)
			if err != nil {
				return err
			}
			lines = append(lines, [2]string{"metadata", string(text[:len(text)-1])})
		}
	}
	for _, l := range lines {
		if l[1] == "" {
			continue
		}
		if err := a.out.row(cell{text: l[0], style: dim}, cell{text: l[1]}); err != nil {
			return err
		}
	}
	return nil
}

type parkedDropCommand struct {
	Category string `arg:"" help:"The category that the consumer reads."`
	Name     string `arg:"" help:"The consumer's name."`
	ID       string `arg:"" help:"The message's id."`
	Reason   string `required:"" placeholder:"TEXT" help:"The reason, which the dead letter keeps: one line, up to 1024 bytes."`
	DryRun   bool   `help:"Print the dead letter, and do nothing."`
}

// Help is printed below the command's usage.
func (parkedDropCommand) Help() string {
	return `The message is not handled, and can no longer be redriven. It stays in its stream, and its dead letter stays with the reason: dibs explain and dibs stream show both. A trim may then remove them.

Example:

    dibs parked drop account mail 01a1fd9c-f797-77be-b0e5-a936700dfa27 \
        --reason 'refunded by hand'`
}

// A dropLine is how a drop is printed as JSON.
type dropLine struct {
	parkedLine
	Dropped string `json:"dropped"`
	DryRun  bool   `json:"dryRun,omitempty"`
}

// Run drops it.
func (c *parkedDropCommand) Run(ctx context.Context, a *app) error {
	category, err := parseConsumer(c.Category, c.Name)
	if err != nil {
		return err
	}
	id, err := parseID(c.ID)
	if err == nil {
		err = deadletter.CheckReason(c.Reason)
	}
	if err != nil {
		return err
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		letters := deadletter.Of(store, category, c.Name)
		p, err := letters.Get(ctx, id)
		if (err == nil || errors.Is(err, deadletter.ErrCorrupt)) && !c.DryRun {
			p, err = letters.Drop(ctx, id, c.Reason)
		}
		if err != nil {
			return err
		}
		if a.JSON {
			return a.out.object(dropLine{toParkedLine(category, c.Name, p), c.Reason, c.DryRun})
		}
		if err := a.printParked(category, c.Name, p); err != nil {
			return err
		}
		if c.DryRun {
			return a.out.line("would be dropped: %s", visible(c.Reason))
		}
		return a.out.line("dropped: %s", visible(c.Reason))
	})
}

type parkedRedriveCommand struct {
	Category string   `arg:"" help:"The category that the consumer reads."`
	Name     string   `arg:"" help:"The consumer's name."`
	ID       []string `arg:"" optional:"" help:"The ids of the messages to redrive. Defaults to all that are parked."`
	DryRun   bool     `help:"Print the request, and do nothing."`
}

// Help is printed below the command's usage.
func (parkedRedriveCommand) Help() string {
	return `The handler is in the service, so this writes a request beside the dead letters. The running consumer finds it within 5 seconds, or a stopped one at its next start, and delivers each message once more, as it was and never together with another of its cardinal id. A message that fails again stays parked, with the new error. Requested twice, a message is redriven once. It is not written to its category again, which other consumers read too.

Later messages of its stream were handled before it: see "parked" in the documentation.

Examples:

    dibs parked redrive account mail --dry-run
    dibs parked redrive account mail 01a1fd9c-f797-77be-b0e5-a936700dfa27`
}

// A redriveLine is how a request is printed as JSON.
type redriveLine struct {
	parkedLine
	Requested bool `json:"requested"` // by this command, or would be
	DryRun    bool `json:"dryRun,omitempty"`
}

// Run asks for it.
func (c *parkedRedriveCommand) Run(ctx context.Context, a *app) error {
	category, err := parseConsumer(c.Category, c.Name)
	if err != nil {
		return err
	}
	var ids []uuid.UUID
	for _, text := range c.ID {
		id, err := parseID(text)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		letters := deadletter.Of(store, category, c.Name)
		ask := letters.RequestRedrive
		if c.DryRun {
			ask = letters.PreviewRedrive
		}
		requests, err := ask(ctx, ids...)
		if err != nil {
			return err
		}
		if len(requests.Requested)+len(requests.Before) == 0 {
			return a.nothingParked(ctx, store, category, c.Name)
		}
		if a.JSON {
			return a.redriveLines(category, c.Name, requests, c.DryRun)
		}
		for _, p := range slices.Concat(requests.Requested, requests.Before) {
			if err := a.printParked(category, c.Name, p); err != nil {
				return err
			}
		}
		n, before := int64(len(requests.Requested)), int64(len(requests.Before))
		if c.DryRun {
			return a.out.line("%s would be redriven, %d had been asked for", counted(n, "message"), before)
		}
		return a.out.line("asked to redrive %s, %d had been asked for", counted(n, "message"), before)
	})
}

func (a *app) redriveLines(category messagestore.Category, name string, requests *deadletter.Requests, dryRun bool) error {
	for i, p := range slices.Concat(requests.Requested, requests.Before) {
		l := redriveLine{toParkedLine(category, name, p), i < len(requests.Requested), dryRun}
		if err := a.out.object(l); err != nil {
			return err
		}
	}
	return nil
}
