package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
)

type intentsCommand struct {
	List    intentsListCommand    `cmd:"" default:"withargs" help:"Print the intents of a category, with their holders."`
	Show    intentsShowCommand    `cmd:"" help:"Print one intent: its state, and its history."`
	Release intentsReleaseCommand `cmd:"" help:"End the lease of an intent, of any holder."`
	Verify  intentsVerifyCommand  `cmd:"" help:"Check the history of each intent of a category."`
}

// errDry is the answer of a dryStore.
var errDry = errors.New("the arguments are valid")

// A dryStore lets a call be tried before there is a connection: a call that gets to the store has
// valid arguments.
type dryStore struct{ intent.CategoryStore }

func (dryStore) Last(context.Context, messagestore.StreamName) (*messagestore.Message, error) {
	return nil, errDry
}

func (dryStore) Now(context.Context) (time.Time, error) { return time.Time{}, errDry }

func (dryStore) PositionAt(context.Context, messagestore.Category, time.Time) (messagestore.GlobalPosition, error) {
	return 0, errDry
}

// withIntents calls f twice: with a manager over no store, where an error that is not of the
// arguments ends it, and then over the store.
func (a *app) withIntents(ctx context.Context, category string, config *intent.Config, f func(*intent.Manager, *messagestore.Store) error) error {
	name, err := toCategory(category)
	if err != nil {
		return err
	}
	dry, err := intent.New(dryStore{}, name, config)
	if err != nil {
		return err
	}
	if err := f(dry, nil); !errors.Is(err, errDry) {
		return err
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		m, err := intent.New(store, name, config)
		if err != nil {
			return err
		}
		return f(m, store)
	})
}

type intentsListCommand struct {
	Category string `arg:"" optional:"" help:"The category of the intents, like payment:intent. Defaults to all whose name ends so."`
	Held     bool   `help:"Print those that are held. This and lapsed are the default."`
	Lapsed   bool   `help:"Print those whose lease is over by time, and not taken since."`
	Released bool   `help:"Print those that were released, and not taken since."`
	Done     bool   `help:"Print those that are confirmed."`
	Scope    string `placeholder:"SCOPE" help:"Print those of this scope."`
	Since    string `placeholder:"TIME" help:"Print those with a message since this time, like 2026-11-21T10:00:00Z. Defaults to a day ago."`
	Limit    int    `default:"1000" placeholder:"N" help:"Print at most N, those granted first. Defaults to 1000."`
}

// Help is printed below the command's usage.
func (intentsListCommand) Help() string {
	return `A line for each intent, in the order of the grants: its state, its key, its scope if it has one, the session that holds it or did last, the attempt, the time of the grant, the time until which the lease lasts and how long that is, and the number of sessions in its line. Times are the store's.

It reads the messages of the last day: a lease that lives has one within its TTL. An older one that is released or done takes --since. A stream that is none of an intent's is named on the standard error after the others, and the exit code is 1.

Examples:

    dibs intents
    dibs intents list payment:intent
    dibs intents list payment:intent --lapsed --since 2026-11-01T00:00:00Z`
}

// Run prints them.
func (c *intentsListCommand) Run(ctx context.Context, a *app) error {
	filter := intent.Filter{Scope: c.Scope}
	if !c.Held && !c.Lapsed && !c.Released && !c.Done {
		c.Held, c.Lapsed = true, true
	}
	for status, wanted := range map[intent.Outcome]bool{intent.Held: c.Held, intent.Free: c.Lapsed || c.Released, intent.Done: c.Done} {
		if wanted {
			filter.Status = append(filter.Status, status)
		}
	}
	if c.Limit < 1 {
		return usage("--limit=%d: it is at least 1", c.Limit)
	}
	if c.Category == "" {
		return a.inEach(ctx, "intent", func(category string) error {
			one := *c
			one.Category = category
			return one.Run(ctx, a)
		})
	}
	if c.Since != "" {
		var err error
		if filter.Since, err = parseTime("since", c.Since); err != nil {
			return err
		}
	}
	return a.withIntents(ctx, c.Category, nil, func(m *intent.Manager, store *messagestore.Store) error {
		all, corrupt := m.List(ctx, filter)
		if corrupt != nil && !errors.Is(corrupt, intent.ErrCorrupt) {
			return corrupt
		}
		if len(all) == 0 && corrupt == nil {
			if err := requireCategory(ctx, store, m.Category()); err != nil {
				return err
			}
		}
		all = slices.DeleteFunc(all, func(i intent.Intent) bool {
			return i.Status == intent.Free && (i.Released && !c.Released || !i.Released && !c.Lapsed)
		})
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		return errors.Join(c.print(a, all, now, corrupt), corrupt)
	})
}

func (c *intentsListCommand) print(a *app, all []intent.Intent, now time.Time, corrupt error) error {
	for n, i := range all[:min(len(all), c.Limit)] {
		if a.JSON {
			if err := a.out.object(toIntentLine(i, now)); err != nil {
				return err
			}
			continue
		}
		if n == 0 {
			if err := a.out.row(intentsHeader...); err != nil {
				return err
			}
		}
		if err := a.printIntent(i, now); err != nil {
			return err
		}
	}
	switch {
	case a.JSON:
	case len(all) > c.Limit:
		a.warn("dibs: %d of %s; --limit prints more\n", c.Limit, counted(int64(len(all)), "intent"))
	case len(all) == 0 && corrupt == nil:
		a.nothing("%s", c.none())
	}
	return nil
}

// none says which intents there are not.
func (c *intentsListCommand) none() string {
	scope, since := "", "in the last day"
	if c.Scope != "" {
		scope = " in the scope " + shorten(visible(c.Scope))
	}
	if c.Since != "" {
		since = "since " + visible(c.Since)
	}
	var states []string
	for _, s := range []struct {
		name   string
		wanted bool
	}{{"held", c.Held}, {"lapsed", c.Lapsed}, {"released", c.Released}, {"done", c.Done}} {
		if s.wanted {
			states = append(states, s.name)
		}
	}
	return fmt.Sprintf("no intent of %s%s with a message %s is %s", visible(c.Category), scope, since, either(states))
}

// parseTime reads a flag that is a time.
func parseTime(flag, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return t, usage("--%s=%s: it is like 2026-11-21T10:00:00Z, or 2026-11-21T11:00:00+01:00", flag, visible(text))
	}
	return t, nil
}

var intentsHeader = []cell{
	{text: "state"},
	{text: "key"},
	{text: "scope"},
	{text: "session"},
	{text: "attempt", right: true},
	{text: "since"},
	{text: "until"},
	{text: "left", right: true},
	{text: "line", right: true},
	{text: ""},
}

// An intentLine is how an intent is printed as JSON.
type intentLine struct {
	Stream  messagestore.StreamName `json:"stream"`
	Scope   string                  `json:"scope,omitempty"`
	Key     string                  `json:"key"`
	State   string                  `json:"state"` // held, lapsed, released, done
	Session string                  `json:"session,omitempty"`
	Token   int64                   `json:"token,omitempty"`
	Attempt int                     `json:"attempt,omitempty"`
	Since   string                  `json:"since,omitempty"`
	Until   string                  `json:"until,omitempty"`
	Left    *float64                `json:"leftSeconds,omitempty"` // of a held intent
	Line    []string                `json:"line,omitempty"`
	Result  json.RawMessage         `json:"result,omitempty"`
	NotKept string                  `json:"notKept,omitempty"` // why there is no result
	Deleted bool                    `json:"deleted,omitempty"`
	By      string                  `json:"by,omitempty"`
	Reason  string                  `json:"reason,omitempty"`
}

func toIntentLine(i intent.Intent, now time.Time) intentLine {
	l := intentLine{
		Stream: i.Stream, Scope: i.Scope, Key: i.Key, State: intentState(i), Session: i.Session, Token: i.Token, Attempt: i.Attempt,
		Since: timeOrNone(i.Since, ""), Until: timeOrNone(i.Until, ""), Line: i.Line, Result: i.Result, NotKept: i.NotKept, Deleted: i.Forgotten, By: i.By, Reason: i.Reason,
	}
	if i.Status == intent.Held {
		seconds := i.Until.Sub(now).Seconds()
		l.Left = &seconds
	}
	return l
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

var intentStyles = map[string]style{"held": yellow, "lapsed": red, "done": green}

// leftText says how much of a lease is left.
func leftText(i intent.Intent, now time.Time) string {
	if i.Status != intent.Held {
		return "-"
	}
	return max(i.Until.Sub(now), 0).Truncate(100 * time.Millisecond).String()
}

func (a *app) printIntent(i intent.Intent, now time.Time) error {
	state := intentState(i)
	until, note := timeOrNone(i.Until, "-"), ""
	switch {
	case i.Forgotten:
		note = "deleted"
	case i.NotKept != "":
		note = "result not kept"
	}
	return a.out.row(
		cell{text: state, style: intentStyles[state]}, cell{text: shorten(visible(i.Key)), style: bold}, cell{text: orDash(shorten(visible(i.Scope)))},
		cell{text: orDash(visible(i.Session))}, cell{text: strconv.Itoa(i.Attempt), right: true}, cell{text: timeOrNone(i.Since, "-"), style: dim},
		cell{text: until, style: dim}, cell{text: leftText(i, now), right: true}, cell{text: strconv.Itoa(len(i.Line)), right: true}, cell{text: note})
}

func orDash(text string) string { return cmp.Or(text, "-") }

// intentArgs name an intent.
type intentArgs struct {
	Category string `arg:"" help:"The category of the intents, like payment:intent."`
	Key      string `arg:"" help:"The intent's key, as it is in the request."`
	Scope    string `placeholder:"SCOPE" help:"The scope of the key. Defaults to none."`
}

type intentsShowCommand struct {
	intentArgs
}

// Help is printed below the command's usage.
func (intentsShowCommand) Help() string {
	return `It prints the state, and then each message of the intent: time, position, type, session, token and the rest of what the message says. With --json the first line is the state, and the others are the messages, as dibs stream prints them.

Example:

    dibs intents show payment:intent 29401/1998-12 --scope acme`
}

// Run prints it.
func (c *intentsShowCommand) Run(ctx context.Context, a *app) error {
	return a.withIntents(ctx, c.Category, nil, func(m *intent.Manager, store *messagestore.Store) error {
		i, err := m.Lookup(ctx, c.Scope, c.Key)
		if err != nil {
			return c.notFound(ctx, store, err)
		}
		now, err := store.Now(ctx)
		if err == nil {
			err = c.printState(a, i, now)
		}
		if err != nil {
			return err
		}
		for m, err := range store.ReadStream(ctx, i.Stream, 0) {
			if err == nil {
				err = c.printStep(a, m)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// notFound says which intent there is not, or that its category is not there.
func (c *intentArgs) notFound(ctx context.Context, store *messagestore.Store, err error) error {
	if !errors.Is(err, messagestore.ErrNotFound) {
		return err
	}
	if err := requireCategory(ctx, store, messagestore.Category(c.Category)); err != nil {
		return err
	}
	scope := " without a scope; if its request has one, give --scope"
	if c.Scope != "" {
		scope = shorten(" in the scope " + c.Scope)
	}
	return fmt.Errorf("%s has no intent with the key %s%s: %w", c.Category, shorten(c.Key), scope, messagestore.ErrNotFound)
}

func (c *intentsShowCommand) printState(a *app, i intent.Intent, now time.Time) error {
	if a.JSON {
		return a.out.object(toIntentLine(i, now))
	}
	state := intentState(i)
	if err := a.out.line("%s", a.out.styled(visible(string(i.Stream)), bold)); err != nil {
		return err
	}
	rows := [][2]string{
		{"state", state},
		{"key", visible(i.Key)},
		{"scope", visible(i.Scope)},
		{"session", visible(i.Session)},
		{"token", numberOrNone(i.Token)},
		{"attempt", numberOrNone(int64(i.Attempt))},
		{"since", timeOrNone(i.Since, "")},
		{"until", timeOrNone(i.Until, "")},
		{"line", visible(strings.Join(i.Line, ", "))},
		{"by", visible(i.By)},
		{"reason", visible(i.Reason)},
		{"result", visible(string(i.Result))},
		{"not kept", visible(i.NotKept)},
	}
	if i.Status == intent.Held {
		rows = append(rows, [2]string{"left", leftText(i, now)})
	}
	if i.Forgotten {
		rows = append(rows, [2]string{"deleted", "the result was deleted, and the key stays taken"})
	}
	for _, row := range rows {
		if row[1] == "" {
			continue
		}
		if err := a.out.row(cell{text: row[0], style: dim}, cell{text: row[1]}); err != nil {
			return err
		}
	}
	return a.out.line("")
}

func numberOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func (c *intentsShowCommand) printStep(a *app, m *messagestore.Message) error {
	if a.JSON {
		return a.out.object(toRecord(m))
	}
	s, err := intentlog.Read(m)
	note := stepText(s, nil)
	if err != nil {
		note = "none of an intent's: " + err.Error()
	}
	return a.out.row(cell{text: timeText(m.Time), style: dim}, cell{text: strconv.FormatInt(int64(m.Position), 10), right: true},
		cell{text: visible(m.Type), style: bold}, cell{text: visible(note)})
}

// stepText returns the content of a step in words; before is the step before it, if that is known.
func stepText(s, before *intentlog.State) string {
	holder := fmt.Sprintf("session %s, token %d", s.Session, s.Token)
	switch s.Type {
	case intentlog.TypeReserved:
		return fmt.Sprintf("%s, attempt %d, TTL %v", holder, s.Attempt, s.Lasts())
	case intentlog.TypeExtended:
		return fmt.Sprintf("%s, until %s", holder, timeText(s.Until()))
	case intentlog.TypeWaiting:
		return lineText(s, before)
	case intentlog.TypeReleased:
		by := "the holder"
		if s.By != "" {
			by = "the operator " + s.By
		}
		if s.Reason != "" {
			by += ": " + s.Reason
		}
		return fmt.Sprintf("%s, by %s", holder, by)
	case intentlog.TypeConfirmed:
		if len(s.Result) == 0 {
			return holder + ", without a result"
		}
		return fmt.Sprintf("%s, result %s", holder, dataText(s.Result))
	}
	return "it stays taken"
}

// lineText says how the line changed.
func lineText(s, before *intentlog.State) string {
	line := number(int64(len(s.Line)), "session", "sessions") + " in the line"
	if before == nil {
		if len(s.Line) > 0 {
			line += ": " + shorten(strings.Join(s.Line, ", "))
		}
		return line
	}
	for _, session := range s.Line {
		if !slices.Contains(before.Line, session) {
			return fmt.Sprintf("session %s came, %s", session, line)
		}
	}
	for _, session := range before.Line {
		if !slices.Contains(s.Line, session) {
			return fmt.Sprintf("session %s left, %s", session, line)
		}
	}
	return line
}

type intentsReleaseCommand struct {
	intentArgs

	Reason string `required:"" placeholder:"TEXT" help:"The reason, which stays in the intent: at most 500 bytes."`
	By     string `placeholder:"NAME" help:"The operator's name, which stays too. Defaults to $USER, or else operator."`
}

// Help is printed below the command's usage.
func (intentsReleaseCommand) Help() string {
	return `The lease ends at once, and the next session may take it, with a greater token. Each step of the session that had it fails from then on, also a commit that is under way; what it does outside the store goes on, and only a resource that looks at the token refuses it. An intent that is confirmed is never released.

Example:

    dibs intents release payment:intent 29401/1998-12 --reason 'server lost'`
}

// Run releases it.
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
		return c.print(a, was)
	})
}

// A releaseLine is how a lease that was released is printed as JSON.
type releaseLine struct {
	Stream  messagestore.StreamName `json:"stream"`
	Session string                  `json:"session"`
	Token   int64                   `json:"token"`
	Was     string                  `json:"was"` // held, lapsed or released
}

func (c *intentsReleaseCommand) print(a *app, was intent.Intent) error {
	state := intentState(was)
	if a.JSON {
		return a.out.object(releaseLine{was.Stream, was.Session, was.Token, state})
	}
	stream := visible(string(was.Stream))
	if was.Released {
		return a.out.line("%s was released already, and nothing was done", stream)
	}
	over := ""
	if state == "lapsed" {
		over = ", whose time was over"
	}
	return a.out.line("released %s: it was session %s's, with token %d%s", stream, visible(was.Session), was.Token, over)
}
