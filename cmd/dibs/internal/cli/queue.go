package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
)

// A queueCommand is dibs queue: it shows queues and their items, inserts and changes items, and
// pauses and removes queues.
type queueCommand struct {
	Ls      queueLsCommand      `cmd:"" default:"withargs" help:"Print each queue: how many of its items are in which state."`
	Jobs    queueJobsCommand    `cmd:"" help:"Print the items of a queue that are not finished."`
	Show    queueShowCommand    `cmd:"" help:"Print one item: its state, its message, and each of its deliveries."`
	Blocked queueBlockedCommand `cmd:"" help:"Print why items are not taken."`
	Insert  queueInsertCommand  `cmd:"" help:"Insert an item."`
	Retry   queueRetryCommand   `cmd:"" help:"Have later, suspended and dead items offered now."`
	Drop    queueDropCommand    `cmd:"" help:"Finish later, suspended, held and dead items without a worker."`
	Cancel  queueCancelCommand  `cmd:"" help:"Finish items in any state."`
	Pause   queuePauseCommand   `cmd:"" help:"Have no process reserve an item until the queue is resumed."`
	Resume  queueResumeCommand  `cmd:"" help:"Have a paused queue go on."`
	Remove  queueRemoveCommand  `cmd:"" help:"End a queue that nothing works on any more."`
}

// withQueues calls f with the queues that the store has.
func (a *app) withQueues(ctx context.Context, f func(store *messagestore.Store, all []queue.Status) error) error {
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		all, err := queue.All(ctx, store)
		if err != nil {
			return err
		}
		return f(store, all)
	})
}

// queueOf returns the queue of a status.
func queueOf(store *messagestore.Store, s queue.Status) (*queue.Queue, error) {
	return queue.New(store, s.Category, &queue.Config{Name: s.Name})
}

// A withQueue calls f with a queue.
type withQueue func(ctx context.Context, f func(q *queue.Queue) error) error

// aQueue names one that the store has.
type aQueue struct {
	Queue string `arg:"" help:"The queue's name."`
}

func (c aQueue) with(a *app) withQueue {
	return func(ctx context.Context, f func(q *queue.Queue) error) error {
		if err := c.check(); err != nil {
			return err
		}
		return a.withQueues(ctx, func(store *messagestore.Store, all []queue.Status) error {
			s, err := queueNamed(all, c.Queue)
			if err != nil {
				return err
			}
			q, err := queueOf(store, s)
			if err != nil {
				return err
			}
			return f(q)
		})
	}
}

// check returns an error for an empty name, which package queue takes for that of the category.
func (c aQueue) check() error {
	if c.Queue == "" {
		return messagestore.NewInvalidError("queue name", c.Queue, "must not be empty")
	}
	return nil
}

// newQueue is a flag by which a queue is made.
type newQueue struct {
	Category messagestore.Category `placeholder:"CATEGORY" help:"The category that the queue reads, for ever. Needed only for a queue that no worker ever took from."`
}

// with calls f with a queue, which the store need not have if its category is given.
func (c newQueue) with(a *app, named aQueue) withQueue {
	return func(ctx context.Context, f func(q *queue.Queue) error) error {
		if c.Category == "" {
			err := named.with(a)(ctx, f)
			if is[*unknownQueueError](err) {
				return hinted(err, "if the name is right, give the category that it reads, for ever: --category CATEGORY")
			}
			return err
		}
		if err := named.check(); err != nil {
			return err
		}
		return a.withStore(ctx, 1, func(store *messagestore.Store) error {
			q, err := queueOf(store, queue.Status{Name: named.Queue, Category: c.Category})
			if err != nil {
				return err
			}
			return f(q)
		})
	}
}

// An unknownQueueError is of a name that the store has no queue of.
type unknownQueueError struct{ error }

func (e *unknownQueueError) Unwrap() error { return e.error }

// queueNamed returns the queue of a name, and names those that there are if there is none.
func queueNamed(all []queue.Status, name string) (queue.Status, error) {
	var names []string
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
		names = append(names, visible(s.Name))
	}
	there := "nor from another"
	if len(names) > 0 {
		there = "there is " + shorten(strings.Join(names, ", "))
	}
	return queue.Status{}, &unknownQueueError{notFound("queue %s: no worker ever took from it, and the store does not know which category it reads; %s", shorten(visible(name)), there)}
}

type queueLsCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category that the queues read. Defaults to all."`
}

// queueFields are how a queue is printed as JSON. Due items are some of the later ones.
func queueFields(s queue.Status) fields {
	return fields{
		"queue", s.Name, "category", s.Category, "paused?", s.Paused, "waiting", s.Waiting, "out", s.Out, "later", s.Later, "due", s.Due,
		"suspended?", s.Suspended, "held", s.Held, "dead", s.Dead, "oldest?", s.Oldest, "cursor", s.Cursor, "taken", s.Taken,
		"finished", s.Finished, "givenBack", s.Back, "buried", s.Buried, "sessions", s.Sessions, "clockBehindSeconds?", operate.ClockBehind(s).Seconds(),
	}
}

func (c *queueLsCommand) Run(ctx context.Context, a *app) error {
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		all, err := queue.All(ctx, store)
		if err != nil {
			return err
		}
		printed := 0
		a.queueTable()
		for _, s := range all {
			if c.Category == "" || s.Category == c.Category {
				if err := a.printQueue(ctx, store, s, queueFields(s)); err != nil {
					return err
				}
				printed++
			}
		}
		switch {
		case printed > 0:
		case c.Category == "":
			a.nothing("no queue was ever worked on")
		default:
			if err := operate.RequireCategory(ctx, store, c.Category); err != nil {
				return err
			}
			a.nothing("no queue of %s was ever worked on", c.Category)
		}
		return nil
	})
}

// mostWaiting is how many items that no worker has met are counted, at most.
const mostWaiting = 10_000

func (a *app) queueTable() {
	a.out.table("queue", "category", ">waiting", ">out", ">later", ">due", ">held", ">dead", ">oldest", ">finished", ">given back", ">buried", "")
}

// printQueue prints a queue, and counts the items that wait.
func (a *app) printQueue(ctx context.Context, store *messagestore.Store, s queue.Status, object fields) error {
	n, note := int64(0), cell{}
	if s.Waiting {
		var err error
		if n, err = store.Count(ctx, messagestore.CategoryQuery{Category: s.Category, From: s.Cursor + 1, Limit: mostWaiting + 1}); err != nil {
			return fmt.Errorf("queue %s: %w", visible(s.Name), err)
		}
	}
	object = append(object, "waitingItems", min(n, mostWaiting), "waitingItemsIsAtLeast?", n > mostWaiting)
	waiting := toCell(n)
	if n > mostWaiting {
		waiting.text = "> 10,000"
	}
	if s.Suspended > 0 { // of few queues
		note = in(red, fmt.Sprintf("%d suspended", s.Suspended))
	}
	if s.Paused {
		note = in(yellow, strings.TrimSuffix("paused, "+note.text, ", "))
	}
	if clock := operate.ClockText(s); clock != "" {
		note = in(red, strings.TrimPrefix(note.text+", "+clock, ", "))
	}
	a.out.row(object, in(bold, s.Name), s.Category, waiting, s.Out, s.Later, s.Due, s.Held, alarming(s.Dead), in(dim, operate.Age(s.Time, s.Oldest)), s.Finished, s.Back, s.Buried, note)
	return nil
}

// alarming is a number that is better 0.
func alarming[N int | int64](n N) cell {
	if n > 0 {
		return in(red, n)
	}
	return toCell(n)
}

type queueJobsCommand struct {
	aQueue
	State string `placeholder:"STATE" enum:"waiting,out,later,suspended,held,dead,any" default:"any" help:"waiting, out, later, suspended, held or dead. Defaults to all."`
	From  int64  `placeholder:"POSITION" help:"The first position to print."`
	Limit few    `default:"100" placeholder:"N" help:"Print at most N of each state, 1 to 1000. Defaults to 100."`
}

// itemFields are how an item is printed as JSON.
func itemFields(i queue.Item) fields {
	return fields{
		"position", i.Position, "state", i.State, "version", i.Version, "failures", i.Failures, "session?", i.Session, "until?", i.Until, "due?", i.Due,
		"behind?", i.Behind, "holds?", i.Closed, "error?", i.Error, "note?", i.Note,
	}
}

// wholeItem are those fields with the message and the log.
func wholeItem(i queue.Item, message fields) fields {
	var log []fields
	for _, e := range i.Log {
		log = append(log, entryFields(e))
	}
	return append(itemFields(i), "message?", message, "log?", log)
}

func entryFields(e queue.LogEntry) fields {
	return fields{"version", e.Version, "what", e.What, "time", e.Time, "session?", e.Session, "text?", e.Text}
}

// messageOf is the message of an item as JSON, if it is known.
func messageOf(i queue.Item, of func(*messagestore.Message) fields) fields {
	if i.Message == nil {
		return nil
	}
	return of(i.Message)
}

var itemStyles = map[queue.State]style{
	queue.Waiting: cyan, queue.Later: cyan, queue.Held: cyan, queue.Out: yellow, queue.Suspended: red, queue.Dead: red, queue.Finished: green,
}

func (c *queueJobsCommand) Run(ctx context.Context, a *app) error {
	if c.From < 0 {
		return usage("--from=%d: must be a position from 0", c.From)
	}
	states, open := []queue.State{queue.State(c.State)}, c.State
	if c.State == "any" {
		states, open = []queue.State{queue.Dead, queue.Suspended, queue.Out, queue.Later, queue.Held, queue.Waiting}, "open"
	}
	return c.with(a)(ctx, func(q *queue.Queue) error {
		printed := 0
		a.out.table(itemColumns...)
		for _, state := range states {
			left := int(c.Limit)
			for item, err := range itemsOf(ctx, q, state, messagestore.GlobalPosition(c.From), left) {
				if err != nil {
					return err
				}
				a.out.row(wholeItem(item, messageOf(item, recordOf)), a.itemCells(item)...)
				printed++
				if left--; left == 0 {
					a.nothing("dibs: %d items that are %s; --limit and --from print more", c.Limit, state)
					break
				}
			}
		}
		if printed == 0 {
			a.nothing("no item of %s is %s", c.Queue, open)
		}
		return nil
	})
}

var itemColumns = []string{">position", "state", ">given back", ">failures", "due", "type", "stream", ""}

func (a *app) itemCells(item queue.Item) []any {
	note, messageType, stream := a.out.cause(item.Error), "", ""
	switch {
	case item.Note != "":
		note = shorten(visible(item.Note))
	case item.State == queue.Held:
		note = fmt.Sprintf("behind %d", item.Behind)
	}
	if item.Message != nil {
		messageType, stream = item.Message.Type, shorten(visible(string(item.Message.Stream)))
	}
	return []any{
		item.Position, in(itemStyles[item.State], item.State), item.Version, item.Failures, item.Due, in(bold, messageType), stream, note,
	}
}

// itemsOf yields the items of a queue in a state, in order of position, a few at a time.
func itemsOf(ctx context.Context, q *queue.Queue, state queue.State, from messagestore.GlobalPosition, few int) iter.Seq2[queue.Item, error] {
	return func(yield func(queue.Item, error) bool) {
		for {
			items, err := q.Items(ctx, state, from, few)
			if err != nil {
				yield(queue.Item{}, err)
			}
			if err != nil || len(items) == 0 {
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
				from = item.Position + 1
			}
		}
	}
}

type queueShowCommand struct {
	aQueue
	Position position `arg:"" help:"The position of the item, as dibs queue jobs prints it."`
}

func (c *queueShowCommand) Run(ctx context.Context, a *app) error {
	return a.showItem(ctx, c.with(a), c.Position, true)
}

func (a *app) showItem(ctx context.Context, with withQueue, at position, data bool) error {
	return with(ctx, func(q *queue.Queue) error {
		item, err := q.Item(ctx, messagestore.GlobalPosition(at))
		if errors.Is(err, messagestore.ErrNotFound) {
			return fmt.Errorf("%s has no item at position %d: %w", visible(q.Name()), at, messagestore.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if item.Message != nil && !data {
			m := *item.Message
			m.Data, m.Metadata.Properties, m.Metadata.Local = nil, nil, nil
			item.Message = &m
		}
		if a.JSON {
			a.out.object(wholeItem(item, messageOf(item, recordOf)))
			return nil
		}
		a.printItem(item)
		return nil
	})
}

func (a *app) printItem(item queue.Item) {
	name := fmt.Sprintf("position %d", item.Position)
	if item.Message != nil {
		name = item.Message.String()
	}
	a.out.title(name)
	state := string(item.State)
	if note := operate.ItemText(item); note != "" {
		state += ", " + note
	}
	a.out.facts("state", in(itemStyles[item.State], state), "given back", fmt.Sprint(item.Version), "failures", fmt.Sprint(item.Failures), "due", item.Due, "progress", item.Note)
	for i, line := range strings.Split(item.Error, "\n") { // the stack of a panic is below it
		a.out.facts(map[bool]string{true: "error", false: " "}[i == 0], strings.ReplaceAll(line, "\t", "    "))
	}
	if m := item.Message; m != nil {
		a.out.facts("inserted", text.Time(m.Time), "id", m.ID, "data", dataText(m.Data))
		if m.Metadata.CausationStream != "" {
			a.out.facts("by", placeOf(m.Metadata.CausationStream, m.Metadata.CausationPosition))
		}
	}
	if len(item.Log) > 0 {
		a.out.line("")
	}
	for _, e := range item.Log {
		a.out.row(nil, e.Time, fmt.Sprint(e.Version), in(bold, e.What), operate.DeliveryText(e))
	}
}

type queueInsertCommand struct {
	Category messagestore.Category `arg:"" help:"The category that the queue reads."`
	Type     string                `arg:"" help:"Type of the message, like Send."`
	Data     string                `arg:"" optional:"" help:"Its data, a JSON object; - reads it from the standard input. Defaults to {}."`
	ID       string                `name:"id" placeholder:"UUID" help:"The message's id. Inserting it again changes nothing. Defaults to a new one."`
	Key      string                `placeholder:"KEY" help:"Items of one key are delivered one at a time, in order."`
	Unique   string                `placeholder:"NAME" help:"A second item with this name is not inserted."`
	Until    string                `enum:"forgotten,finished,delivered" default:"forgotten" placeholder:"WHEN" help:"Until when the item has that name: forgotten (default: as long as it is kept), finished (or dead), or delivered to a worker."`
	At       moment                `placeholder:"TIME" help:"The time before which the item is not delivered, like 2026-11-27T10:00:00Z."`
}

func (c *queueInsertCommand) Run(ctx context.Context, a *app) error {
	w := writeCommand{Type: c.Type, Data: c.Data, ID: c.ID}
	m, err := w.message(ctx, a)
	if err != nil {
		return err
	}
	opts := &queue.InsertOpts{Key: c.Key, Unique: c.Unique, UniqueUntil: uniqueUntil[c.Until], ScheduledAt: c.At.Time}
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		q, err := queue.New(store, c.Category, nil)
		if err != nil {
			return err
		}
		inserted, err := q.Insert(ctx, m, opts)
		if err != nil {
			return err
		}
		note := ""
		if inserted.Duplicate {
			note = " (it was there before, and nothing was inserted)"
		}
		object := fields{"position", inserted.Position, "stream", inserted.Stream, "id", inserted.ID, "duplicate?", inserted.Duplicate}
		return a.out.tell(object, "position %d, in %s%s", inserted.Position, inserted.Stream, note)
	})
}

var uniqueUntil = map[string]queue.UniqueUntil{"finished": queue.UntilFinished, "delivered": queue.UntilDelivered}

// someItems are the items that a command changes, and why.
type someItems struct {
	Positions []position `arg:"" optional:"" help:"The positions of items, as dibs queue jobs prints them."`
	Reason    string     `placeholder:"TEXT" help:"Why, for the item's log."`

	matchingItems
}

// matchingItems are those that a filter chooses.
type matchingItems struct {
	All       bool          `help:"All items in the state."`
	State     string        `placeholder:"STATE" enum:"waiting,out,later,suspended,held,dead,any," default:"" help:"Those in this state, or any. Defaults to dead; to any if they are cancelled."`
	Error     string        `placeholder:"TEXT" help:"Those whose error has this text."`
	Like      string        `placeholder:"ERROR" help:"Those whose error is this one, but for words with a digit."`
	Type      string        `placeholder:"TYPE" help:"Those of this type of message."`
	Key       string        `placeholder:"KEY" help:"Those that were inserted with this key."`
	OlderThan time.Duration `placeholder:"DURATION" help:"Those whose message was written longer ago, like 36h."`
	DryRun    bool          `help:"Change nothing: print how many there are, by error."`
	Rate      float64       `placeholder:"N" help:"Change at most N items a second."`
}

func (c matchingItems) set() bool { return c.All || c.filters() }

func (c matchingItems) filters() bool {
	return c.State != "" || c.Error != "" || c.Like != "" || c.Type != "" || c.Key != "" || c.OlderThan != 0
}

// run changes the items that match, or prints how many there are.
func (c matchingItems) run(ctx context.Context, a *app, with withQueue, action operate.Action, did, reason string) error {
	f := operate.Filter{Error: c.Error, Like: c.Like, Type: c.Type, Key: c.Key, OlderThan: c.OlderThan}
	if state := cmp.Or(c.State, map[bool]string{true: "any", false: "dead"}[action == operate.Cancel]); state != "any" {
		f.State = queue.State(state)
	}
	return with(ctx, func(q *queue.Queue) error {
		if c.DryRun {
			groups, err := operate.Groups(operate.Items(ctx, q, action, f))
			if err != nil {
				return err
			}
			return a.printGroups("item", fields{"queue", q.Name()}, groups)
		}
		progress := a.progress()
		changed, err := operate.Change(ctx, q, action, f, &operate.ChangeOpts{Reason: reason, Rate: c.Rate, Progress: func(changed int) {
			progress.tell("%s %s so far", did, text.Number(changed, "item"))
		}})
		if err != nil && changed > 0 {
			err = fmt.Errorf("%s %s; run it again for the others: %w", did, text.Number(changed, "item"), err)
		}
		if err != nil {
			return err
		}
		return a.out.tell(fields{"queue", q.Name(), "count", changed}, "%s %s", did, text.Number(changed, "item"))
	})
}

// printGroups prints what a command would change.
func (a *app) printGroups(what string, in fields, groups []operate.Group) error {
	count := 0
	a.out.table(">count", "oldest", "newest", what, "error")
	for _, g := range groups {
		count += g.Count
		var newest any = g.Position
		if g.ID != "" {
			newest = visible(g.ID)
		}
		a.out.row(append(slices.Clip(in), "count", g.Count, "oldest?", g.Oldest, "newest?", g.Newest, what, newest, "error?", g.Error), g.Count, g.Oldest, g.Newest, newest, a.out.cause(g.Error))
	}
	a.nothing("%s would be changed", text.Number(count, what))
	return nil
}

type queueChange func(q *queue.Queue, ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error)

func (c *someItems) run(ctx context.Context, a *app, with withQueue, action operate.Action, did, states string, do queueChange) error {
	switch {
	case c.set() && len(c.Positions) > 0:
		return usage("give either positions, or what the items have in common")
	case c.set():
		return c.matchingItems.run(ctx, a, with, action, did, c.Reason)
	case len(c.Positions) == 0:
		return usage("which items? Give their positions, as dibs queue jobs prints them, or --all, --state, --error, --like, --type, --key or --older-than")
	case c.DryRun || c.Rate != 0:
		return usage("--dry-run and --rate go without positions")
	}
	positions := make([]messagestore.GlobalPosition, len(c.Positions))
	for i, position := range c.Positions {
		if err := position.Validate(); err != nil {
			return usage("%w", err)
		}
		positions[i] = messagestore.GlobalPosition(position)
	}
	return with(ctx, func(q *queue.Queue) error {
		changed, err := do(q, ctx, c.Reason, positions...)
		if err != nil {
			return err
		}
		is := map[messagestore.GlobalPosition]bool{}
		for _, position := range changed {
			is[position] = true
		}
		var unchanged []messagestore.GlobalPosition
		var rest []string
		for _, position := range positions {
			if !is[position] {
				unchanged = append(unchanged, position)
				rest = append(rest, fmt.Sprint(position))
			}
		}
		if err := a.printChanged(q, did, changed, unchanged); err != nil || len(rest) == 0 {
			return err
		}
		return fmt.Errorf("not %s: no item that is %s is at position %s: %w", did, states, strings.Join(rest, ", "), messagestore.ErrNotFound)
	})
}

func (a *app) printChanged(q *queue.Queue, did string, changed, unchanged []messagestore.GlobalPosition) error {
	changed = append([]messagestore.GlobalPosition{}, changed...) // a list in JSON, also of none
	return a.out.tell(fields{"queue", q.Name(), "changed", changed, "unchanged?", unchanged}, "%s %s", did, text.Number(len(changed), "item"))
}

type queueRetryCommand struct {
	aQueue
	someItems
}

func (c *queueRetryCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, c.with(a), operate.Retry, "retried", "later, suspended or dead", (*queue.Queue).Retry)
}

type queueDropCommand struct {
	aQueue
	someItems
}

func (c *queueDropCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, c.with(a), operate.Drop, "dropped", "later, suspended, held or dead", (*queue.Queue).Drop)
}

type queueCancelCommand struct {
	aQueue
	someItems
	newQueue
}

// Run cancels them. It makes no queue that the store does not have if its category has no message at any of the positions.
func (c *queueCancelCommand) Run(ctx context.Context, a *app) error {
	with := func(ctx context.Context, f func(q *queue.Queue) error) error {
		return c.newQueue.with(a, c.aQueue)(ctx, func(q *queue.Queue) error {
			_, err := q.Status(ctx)
			for i := 0; errors.Is(err, messagestore.ErrNotFound) && i < len(c.Positions); i++ {
				_, err = q.Item(ctx, messagestore.GlobalPosition(c.Positions[i]))
			}
			switch {
			case errors.Is(err, messagestore.ErrNotFound):
				return notFound("%s has no item at the position, and queue %s, which no worker ever took from, is not made", c.Category, c.Queue)
			case err != nil:
				return err
			}
			return f(q)
		})
	}
	return c.run(ctx, a, with, operate.Cancel, "cancelled", "not finished", (*queue.Queue).Cancel)
}

// setPaused pauses a queue, or has it go on.
func (a *app) setPaused(ctx context.Context, with withQueue, did string, do func(*queue.Queue, context.Context) error) error {
	return with(ctx, func(q *queue.Queue) error {
		if err := do(q, ctx); err != nil {
			return err
		}
		return a.out.tell(fields{"queue", q.Name(), "paused", did == "paused", "time", time.Now()}, "%s is %s", q.Name(), did)
	})
}

type queuePauseCommand struct {
	aQueue
	newQueue
}

func (c *queuePauseCommand) Run(ctx context.Context, a *app) error {
	return a.setPaused(ctx, c.newQueue.with(a, c.aQueue), "paused", (*queue.Queue).Pause)
}

type queueResumeCommand struct{ aQueue }

func (c *queueResumeCommand) Run(ctx context.Context, a *app) error {
	return a.setPaused(ctx, c.with(a), "resumed", (*queue.Queue).Resume)
}

type queueRemoveCommand struct {
	aQueue

	Unfinished bool                  `help:"Remove it also if there are items that are not finished."`
	FreeName   bool                  `help:"Keep no name: a worker of the queue begins again with the first message of the category. Also for a queue that was removed before, with --category."`
	Category   messagestore.Category `placeholder:"CATEGORY" help:"The category that the queue reads. Needed only to free the name of a queue that was removed before."`
	Yes        bool                  `help:"Do not ask."`
}

func (c *queueRemoveCommand) Run(ctx context.Context, a *app) error {
	if err := a.canAsk(c.Yes, "give --yes to remove queue "+c.Queue); err != nil {
		return err
	}
	return newQueue{c.Category}.with(a, c.aQueue)(ctx, func(q *queue.Queue) error {
		question := fmt.Sprintf("remove queue %s of %s? What is known of its items does not come back.", c.Queue, q.Category())
		if err := a.confirm(ctx, c.Yes, question, "nothing was removed"); err != nil {
			return err
		}
		kept, err := q.Remove(ctx, &queue.RemoveOpts{Unfinished: c.Unfinished, FreeName: c.FreeName})
		if is[*queue.UnfinishedError](err) {
			return hinted(err, "dibs queue jobs lists them; --unfinished removes the queue all the same")
		}
		if err != nil {
			return err
		}
		name := "its name is free"
		if kept {
			name = "its name is kept, and its workers end"
		}
		return a.out.tell(fields{"queue", c.Queue, "removed", true, "nameKept", kept}, "%s is removed: %s", c.Queue, name)
	})
}
