package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// An intentsCommand is dibs intents: it lists, shows and checks intents, and releases a lease.
type intentsCommand struct {
	List    intentsListCommand    `cmd:"" default:"withargs" help:"Print the intents of a category, with their holders."`
	Show    intentsShowCommand    `cmd:"" help:"Print one intent: its state, and its history."`
	Release intentsReleaseCommand `cmd:"" help:"End the lease of an intent, of any holder."`
	Verify  intentsVerifyCommand  `cmd:"" help:"Check the history of each intent of a category."`
}

// withIntents calls f twice, as tried does.
func (a *app) withIntents(ctx context.Context, category messagestore.Category, config *intent.Config, f func(*intent.Manager, *messagestore.Store) error) error {
	return a.tried(ctx, func(store *messagestore.Store, dry bool) error {
		m, err := intent.New(store, category, config)
		if err != nil {
			return err
		}
		if dry {
			store = nil
		}
		return f(m, store)
	})
}

type intentsListCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category of the intents, like payment:intent. Defaults to all whose name ends so."`
	Held     bool                  `help:"Print those that are held. This and lapsed are the default."`
	Lapsed   bool                  `help:"Print those whose lease is over by time, and not taken since."`
	Released bool                  `help:"Print those that were released, and not taken since."`
	Done     bool                  `help:"Print those that are confirmed."`
	Scope    string                `placeholder:"SCOPE" help:"Print those of this scope."`
	Since    moment                `placeholder:"TIME" help:"Print those with a message since this time, like 2026-11-21T10:00:00Z. Defaults to a day ago."`
	Limit    bound                 `default:"1000" placeholder:"N" help:"Print at most N, those granted first. Defaults to 1000."`
}

// states are those that are asked for, in words.
func (c *intentsListCommand) states() (words []string) {
	for i, wanted := range []bool{c.Held, c.Lapsed, c.Released, c.Done} {
		if wanted {
			words = append(words, []string{"held", "lapsed", "released", "done"}[i])
		}
	}
	return words
}

func (c *intentsListCommand) Run(ctx context.Context, a *app) error {
	if c.states() == nil {
		c.Held, c.Lapsed = true, true
	}
	if c.Category == "" {
		return a.inEach(ctx, "intent", func(category messagestore.Category) error {
			one := *c
			one.Category = category
			return one.Run(ctx, a)
		})
	}
	filter := intent.Filter{Scope: c.Scope, Since: c.Since.Time}
	for status, wanted := range map[intent.Outcome]bool{intent.Held: c.Held, intent.Free: c.Lapsed || c.Released, intent.Done: c.Done} {
		if wanted {
			filter.Status = append(filter.Status, status)
		}
	}
	return a.withIntents(ctx, c.Category, nil, func(m *intent.Manager, store *messagestore.Store) error {
		all, corrupt := m.List(ctx, filter)
		if store == nil {
			return corrupt
		}
		if corrupt != nil && !errors.Is(corrupt, intent.ErrCorrupt) {
			return corrupt
		}
		if len(all) == 0 && corrupt == nil {
			if err := operate.RequireCategory(ctx, store, m.Category()); err != nil {
				return err
			}
		}
		all = slices.DeleteFunc(all, func(i intent.Intent) bool { return !slices.Contains(c.states(), intentState(i)) })
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		a.out.table("state", "key", "scope", "session", ">attempt", "since", "until", ">left", ">line", "")
		for _, i := range all[:min(len(all), int(c.Limit))] {
			state, note := intentState(i), ""
			switch {
			case i.Forgotten:
				note = "deleted"
			case i.NotKept != "":
				note = "result not kept"
			}
			a.out.row(intentFields(i, now), in(intentStyles[state], state), in(bold, shorten(visible(i.Key))), shorten(visible(i.Scope)),
				i.Session, i.Attempt, i.Since, i.Until, leftText(i, now), len(i.Line), note)
		}
		switch {
		case len(all) > int(c.Limit):
			a.nothing("dibs: %d of %s; --limit prints more", c.Limit, text.Number(len(all), "intent"))
		case len(all) == 0 && corrupt == nil:
			a.nothing("%s", c.none())
		}
		return corrupt
	})
}

// none says which intents there are not.
func (c *intentsListCommand) none() string {
	scope, since := "", "in the last day"
	if c.Scope != "" {
		scope = " in the scope " + shorten(visible(c.Scope))
	}
	if !c.Since.IsZero() {
		since = "since " + c.Since.Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("no intent of %s%s with a message %s is %s", c.Category, scope, since, either(c.states()))
}

// intentFields are how an intent is printed as JSON. Its state is held, lapsed, released or done.
func intentFields(i intent.Intent, now time.Time) fields {
	return fields{
		"stream", i.Stream, "scope?", i.Scope, "key", i.Key, "state", intentState(i), "session?", i.Session, "token?", i.Token, "attempt?", i.Attempt,
		"since?", i.Since, "until?", i.Until, "leftSeconds?", known(i.Status == intent.Held, i.Until.Sub(now).Seconds()), "line?", i.Line,
		"result?", i.Result, "notKept?", i.NotKept, "deleted?", i.Forgotten, "by?", i.By, "reason?", i.Reason,
	}
}

// intentState tells a lease that is over from a released one.
func intentState(i intent.Intent) string {
	switch {
	case i.Status != intent.Free:
		return i.Status.String()
	case i.Released:
		return "released"
	}
	return "lapsed"
}

var intentStyles = map[string]style{"held": yellow, "lapsed": red, "released": cyan, "done": green}

// leftText says how much of a lease is left.
func leftText(i intent.Intent, now time.Time) string {
	if i.Status != intent.Held {
		return ""
	}
	return max(i.Until.Sub(now), 0).Truncate(100 * time.Millisecond).String()
}

// anIntent names one.
type anIntent struct {
	Category messagestore.Category `arg:"" help:"The category of the intents, like payment:intent."`
	Key      string                `arg:"" help:"The intent's key, as it is in the request."`
	Scope    string                `placeholder:"SCOPE" help:"The scope of the key. Defaults to none."`
}

// notFound says which intent there is not, or that its category is not there.
func (c anIntent) notFound(ctx context.Context, store *messagestore.Store, err error) error {
	if !errors.Is(err, messagestore.ErrNotFound) || store == nil {
		return err
	}
	return operate.NoIntent(ctx, store, c.Category, c.Scope, c.Key)
}

type intentsShowCommand struct{ anIntent }

func (c *intentsShowCommand) Run(ctx context.Context, a *app) error {
	return a.withIntents(ctx, c.Category, nil, func(m *intent.Manager, store *messagestore.Store) error {
		i, err := m.Lookup(ctx, c.Scope, c.Key)
		if err != nil {
			return c.notFound(ctx, store, err)
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		a.out.object(intentFields(i, now))
		a.out.title(string(i.Stream))
		deleted := ""
		if i.Forgotten {
			deleted = "the result was deleted, and the key stays taken"
		}
		a.out.facts("state", in(intentStyles[intentState(i)], intentState(i)), "key", i.Key, "scope", i.Scope, "session", i.Session, "token", i.Token, "attempt", i.Attempt,
			"since", i.Since, "until", i.Until, "line", strings.Join(i.Line, ", "), "by", i.By, "reason", i.Reason,
			"result", string(i.Result), "not kept", i.NotKept, "left", leftText(i, now), "deleted", deleted)
		a.out.line("")
		for m, err := range store.ReadStream(ctx, i.Stream, 0) {
			if err != nil {
				return err
			}
			s, err := intentlog.Read(m)
			if err != nil {
				a.out.row(recordOf(m), m.Time, m.Position, in(bold, m.Type), "none of an intent's: "+err.Error())
				continue
			}
			a.out.row(recordOf(m), m.Time, m.Position, in(bold, m.Type), withData(s.Text(nil), s.Result))
		}
		return nil
	})
}

type intentsReleaseCommand struct {
	anIntent

	Reason string `required:"" placeholder:"TEXT" help:"The reason, which stays in the intent: at most 500 bytes."`
	By     string `placeholder:"NAME" help:"The operator's name, which stays too. Defaults to $USER, or else operator."`
}

func (c *intentsReleaseCommand) Run(ctx context.Context, a *app) error {
	config := &intent.Config{Name: cmp.Or(c.By, a.getenv("USER"))}
	return a.withIntents(ctx, c.Category, config, func(m *intent.Manager, store *messagestore.Store) error {
		if store == nil {
			return m.ForceRelease(ctx, c.Scope, c.Key, c.Reason)
		}
		was, err := m.Lookup(ctx, c.Scope, c.Key)
		if err == nil {
			err = m.ForceRelease(ctx, c.Scope, c.Key, c.Reason)
		}
		if err != nil {
			return c.notFound(ctx, store, err)
		}
		state := intentState(was)
		says := fmt.Sprintf("released %s: it was session %s's, with token %d", was.Stream, was.Session, was.Token)
		switch state {
		case "released":
			says = fmt.Sprintf("%s was released already, and nothing was done", was.Stream)
		case "lapsed":
			says += ", whose time was over"
		}
		return a.out.tell(fields{"stream", was.Stream, "session", was.Session, "token", was.Token, "was", state}, "%s", says)
	})
}
