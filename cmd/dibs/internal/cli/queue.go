package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

type queueCommand struct {
	Ls      queueLsCommand      `cmd:"" default:"1" help:"Print each queue: how many of its items are in which state."`
	Jobs    queueJobsCommand    `cmd:"" help:"Print the items of a queue that are not finished."`
	Show    queueShowCommand    `cmd:"" help:"Print one item: its state, its message, and each of its deliveries."`
	Blocked queueBlockedCommand `cmd:"" help:"Print why items are not taken."`
	Insert  queueInsertCommand  `cmd:"" help:"Insert an item."`
	Retry   queueRetryCommand   `cmd:"" help:"Have later and dead items offered now."`
	Drop    queueDropCommand    `cmd:"" help:"Finish later, held and dead items without a worker."`
	Cancel  queueCancelCommand  `cmd:"" help:"Finish items in any state."`
	Pause   queuePauseCommand   `cmd:"" help:"Have no process reserve an item until the queue is resumed."`
	Resume  queueResumeCommand  `cmd:"" help:"Have a paused queue go on."`
	Remove  queueRemoveCommand  `cmd:"" help:"End a queue that nothing works on any more."`
}

// Help is printed below the command's usage.
func (queueCommand) Help() string {
	return `Items are messages: dibs explain tells the story of one, and dibs forget removes those that all queues of their category have finished.`
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

// withQueue calls f with a queue that the store has.
func (a *app) withQueue(ctx context.Context, name string, f func(store *messagestore.Store, q *queue.Queue) error) error {
	if err := checkQueue(name); err != nil {
		return err
	}
	return a.withQueues(ctx, func(store *messagestore.Store, all []queue.Status) error {
		s, err := queueNamed(all, name)
		if err != nil {
			return err
		}
		q, err := queue.New(store, s.Category, &queue.Config{Name: name})
		if err != nil {
			return err
		}
		return f(store, q)
	})
}

// checkQueue returns an error for an empty name, which package queue takes for that of the category.
func checkQueue(name string) error {
	if name == "" {
		return messagestore.NewInvalidError("queue name", name, "it is empty")
	}
	return nil
}

// A withQueue calls f with a queue of a name.
type withQueue func(ctx context.Context, name string, f func(store *messagestore.Store, q *queue.Queue) error) error

// newQueue is a flag by which a queue is made.
type newQueue struct {
	Category string `placeholder:"CATEGORY" help:"The category that the queue reads, for ever. Needed only for a queue that no worker ever took from."`
}

// with returns a function that calls another with a queue, which the store need not have if its category is given.
func (c newQueue) with(a *app) withQueue {
	return func(ctx context.Context, name string, f func(store *messagestore.Store, q *queue.Queue) error) error {
		if c.Category == "" {
			err := a.withQueue(ctx, name, f)
			if _, unknown := errors.AsType[*unknownQueueError](err); unknown {
				return &hintedError{err, "if the name is right, give the category that it reads, for ever: --category CATEGORY"}
			}
			return err
		}
		category, err := toCategory(c.Category)
		if err = errors.Join(checkQueue(name), err); err != nil {
			return err
		}
		return a.withStore(ctx, 1, func(store *messagestore.Store) error {
			q, err := queue.New(store, category, &queue.Config{Name: name})
			if err != nil {
				return err
			}
			return f(store, q)
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

type queueLsCommand struct{}

// Help is printed below the command's usage.
func (queueLsCommand) Help() string {
	return `A line for each queue that a worker has asked for items: whether messages wait that no worker has met, how many items are out, later (and of these due), held and dead, the time of the oldest that is not dead, and how many deliveries were completed, given back and buried since the queue began.

Example:

    dibs queue ls`
}

// A queueLine is how a queue is printed as JSON.
type queueLine struct {
	Queue     string                      `json:"queue"`
	Category  messagestore.Category       `json:"category"`
	Paused    bool                        `json:"paused,omitempty"`
	Waiting   bool                        `json:"waiting"`
	Out       int64                       `json:"out"`
	Later     int64                       `json:"later"`
	Due       int64                       `json:"due"` // of them
	Suspended int64                       `json:"suspended,omitempty"`
	Held      int64                       `json:"held"`
	Dead      int64                       `json:"dead"`
	Oldest    string                      `json:"oldest,omitempty"`
	Cursor    messagestore.GlobalPosition `json:"cursor"`
	Taken     int64                       `json:"taken"`
	Finished  int64                       `json:"finished"`
	GivenBack int64                       `json:"givenBack"`
	Buried    int64                       `json:"buried"`
	Sessions  int64                       `json:"sessions"`

	ClockBehindSeconds float64 `json:"clockBehindSeconds,omitempty"`
}

// clockBehind is by how much the store's clock is behind what a queue has of it, 0 for not: it was ahead then, or was set back since.
func clockBehind(s queue.Status) time.Duration {
	latest := s.Changed
	if s.Oldest.After(latest) {
		latest = s.Oldest
	}
	if by := latest.Sub(s.Time); by > queuing.ClockTolerance {
		return by
	}
	return 0
}

// clockText says so, or is empty.
func clockText(s queue.Status) string {
	by := clockBehind(s)
	if by == 0 {
		return ""
	}
	return fmt.Sprintf("the store's clock is %v behind the times in the queue: it was ahead, or was set back", by.Round(time.Second))
}

func toQueueLine(s queue.Status) queueLine {
	return queueLine{
		s.Name, s.Category, s.Paused, s.Waiting, s.Out, s.Later, s.Due, s.Suspended, s.Held, s.Dead, timeOrNone(s.Oldest, ""), s.Cursor,
		s.Taken, s.Finished, s.Back, s.Buried, s.Sessions, clockBehind(s).Seconds(),
	}
}

// Run prints them.
func (c *queueLsCommand) Run(ctx context.Context, a *app) error {
	return a.withQueues(ctx, func(_ *messagestore.Store, all []queue.Status) error {
		if len(all) == 0 {
			a.nothing("no queue was ever worked on")
		}
		return a.printQueues(all, func(s queue.Status) any { return toQueueLine(s) })
	})
}

// printQueues prints a line for each queue, or an object of JSON.
func (a *app) printQueues(queues []queue.Status, object func(queue.Status) any) error {
	for i, s := range queues {
		if a.JSON {
			if err := a.out.object(object(s)); err != nil {
				return err
			}
			continue
		}
		if i == 0 {
			if err := a.out.row(queueHeader...); err != nil {
				return err
			}
		}
		if err := a.out.row(queueCells(s)...); err != nil {
			return err
		}
	}
	return nil
}

var queueHeader = []cell{
	{text: "queue"},
	{text: "category"},
	{text: "waiting"},
	{text: "out", right: true},
	{text: "later", right: true},
	{text: "due", right: true},
	{text: "held", right: true},
	{text: "dead", right: true},
	{text: "oldest"},
	{text: "finished", right: true},
	{text: "given back", right: true},
	{text: "buried", right: true},
	{text: ""},
}

func queueCells(s queue.Status) []cell {
	count := func(n int64) cell { return cell{text: strconv.FormatInt(n, 10), right: true} }
	dead := count(s.Dead)
	if s.Dead > 0 {
		dead.style = red
	}
	waiting, note := "no", cell{}
	if s.Waiting {
		waiting = "yes"
	}
	if s.Suspended > 0 { // of few queues
		note = cell{text: fmt.Sprintf("%d suspended", s.Suspended), style: red}
	}
	if s.Paused {
		note = cell{text: strings.TrimSuffix("paused, "+note.text, ", "), style: yellow}
	}
	if clock := clockText(s); clock != "" {
		note = cell{text: strings.TrimPrefix(note.text+", "+clock, ", "), style: red}
	}
	return []cell{
		{text: visible(s.Name), style: bold},
		{text: visible(string(s.Category))},
		{text: waiting},
		count(s.Out), count(s.Later), count(s.Due), count(s.Held), dead,
		{text: timeOrNone(s.Oldest, "-"), style: dim},
		count(s.Finished), count(s.Back), count(s.Buried), note,
	}
}

type queueJobsCommand struct {
	Queue string `arg:"" help:"The queue's name."`
	State string `placeholder:"STATE" enum:"waiting,out,later,suspended,held,dead,any" default:"any" help:"waiting, out, later, suspended, held or dead. Defaults to all."`
	From  int64  `placeholder:"POSITION" help:"The first position to print."`
	Limit int    `default:"100" placeholder:"N" help:"Print at most N of each state, 1 to 1000. Defaults to 100."`
}

// Help is printed below the command's usage.
func (queueJobsCommand) Help() string {
	return `A line for each item: its position, which names it to the other commands, its state, how often it was given back, its failures, the time before which it is not offered, the type and stream of its message, and the note of its handler on its progress, or the error of its last failure. An item is

    waiting    if no worker has met it yet
    out        at a worker
    later      if it is offered at a time, which may have come
    suspended  if a person, a message or its time has to bring a saga back
    held       behind another item of its key
    dead       after its last failure, until it is retried or dropped

Examples:

    dibs queue jobs mail
    dibs queue jobs mail --state dead`
}

// An itemLine is how an item is printed as JSON.
type itemLine struct {
	Position messagestore.GlobalPosition `json:"position"`
	State    queue.State                 `json:"state"`
	Version  int                         `json:"version"`
	Failures int                         `json:"failures"`
	Session  int64                       `json:"session,omitempty"`
	Until    string                      `json:"until,omitempty"`
	Due      string                      `json:"due,omitempty"`
	Behind   messagestore.GlobalPosition `json:"behind,omitempty"`
	Holds    bool                        `json:"holds,omitempty"`
	Error    string                      `json:"error,omitempty"`
	Note     string                      `json:"note,omitempty"`
	Message  *record                     `json:"message,omitempty"`
	Log      []entryLine                 `json:"log,omitempty"`
}

type entryLine struct {
	Version int    `json:"version"`
	What    string `json:"what"`
	Time    string `json:"time"`
	Session int64  `json:"session,omitempty"`
	Text    string `json:"text,omitempty"`
}

func toItemLine(i queue.Item) itemLine {
	l := itemLine{
		Position: i.Position, State: i.State, Version: i.Version, Failures: i.Failures, Session: i.Session, Until: timeOrNone(i.Until, ""),
		Due: timeOrNone(i.Due, ""), Behind: i.Behind, Holds: i.Closed, Error: i.Error, Note: i.Note,
	}
	if i.Message != nil {
		r := toRecord(i.Message)
		l.Message = &r
	}
	for _, e := range i.Log {
		l.Log = append(l.Log, entryLine{e.Version, e.What, timeText(e.Time), e.Session, e.Text})
	}
	return l
}

var itemStyles = map[queue.State]style{queue.Dead: red, queue.Suspended: red, queue.Out: yellow, queue.Finished: green}

// Run prints them.
func (c *queueJobsCommand) Run(ctx context.Context, a *app) error {
	if c.Limit < 1 || c.Limit > queuing.MaxItems {
		return usage("--limit=%d: it is 1 to %d", c.Limit, queuing.MaxItems)
	}
	if c.From < 0 {
		return usage("--from=%d: it is a position from 0", c.From)
	}
	states := []queue.State{queue.Dead, queue.Suspended, queue.Out, queue.Later, queue.Held, queue.Waiting}
	if c.State != "any" {
		states = []queue.State{queue.State(c.State)}
	}
	return a.withQueue(ctx, c.Queue, func(_ *messagestore.Store, q *queue.Queue) error {
		printed := 0
		for _, state := range states {
			left := c.Limit
			for from := messagestore.GlobalPosition(c.From); left > 0; {
				items, err := q.Items(ctx, state, from, left)
				if err != nil {
					return err
				}
				if len(items) == 0 {
					break
				}
				for _, item := range items {
					if err := c.print(a, item, printed == 0); err != nil {
						return err
					}
					printed++
					left--
					from = item.Position + 1
				}
			}
			if left == 0 && !a.JSON {
				a.warn("dibs: %d items that are %s; --limit and --from print more\n", c.Limit, state)
			}
		}
		if printed == 0 {
			a.nothing("no item of %s is %s", visible(c.Queue), map[bool]string{true: "open", false: c.State}[c.State == "any"])
		}
		return nil
	})
}

var itemHeader = []cell{
	{text: "position", right: true},
	{text: "state"},
	{text: "given back", right: true},
	{text: "failures", right: true},
	{text: "due"},
	{text: "type"},
	{text: "stream"},
	{text: ""},
}

func (c *queueJobsCommand) print(a *app, item queue.Item, first bool) error {
	if a.JSON {
		return a.out.object(toItemLine(item))
	}
	if first {
		if err := a.out.row(itemHeader...); err != nil {
			return err
		}
	}
	return a.out.row(itemCells(item)...)
}

func itemCells(item queue.Item) []cell {
	note, messageType, stream := visible(item.Error), "-", "-"
	switch {
	case item.Note != "":
		note = visible(item.Note)
	case item.State == queue.Held:
		note = fmt.Sprintf("behind %d", item.Behind)
	}
	if item.Message != nil {
		messageType, stream = visible(item.Message.Type), shorten(visible(string(item.Message.Stream)))
	}
	return []cell{
		{text: strconv.FormatInt(int64(item.Position), 10), right: true},
		{text: string(item.State), style: itemStyles[item.State]},
		{text: strconv.Itoa(item.Version), right: true},
		{text: strconv.Itoa(item.Failures), right: true},
		{text: timeOrNone(item.Due, "-"), style: dim},
		{text: messageType, style: bold},
		{text: stream},
		{text: shorten(note)},
	}
}

// itemsOf yields the items of a queue in a state, in order of position.
func itemsOf(ctx context.Context, q *queue.Queue, state queue.State) iter.Seq2[queue.Item, error] {
	return func(yield func(queue.Item, error) bool) {
		for from := messagestore.GlobalPosition(0); ; {
			items, err := q.Items(ctx, state, from, queuing.MaxItems)
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
	Queue    string `arg:"" help:"The queue's name."`
	Position int64  `arg:"" help:"The position of the item, as dibs queue jobs prints it."`
}

// Help is printed below the command's usage.
func (queueShowCommand) Help() string {
	return `It prints the state of an item, its message, and a line for each delivery that did not finish it: when it ended and why, and the session that had it. So the deliveries of an item are the lines and, if a worker has completed it, one more.

Example:

    dibs queue show mail 4711`
}

// Run prints it.
func (c *queueShowCommand) Run(ctx context.Context, a *app) error {
	return showItem(ctx, a, a.withQueue, c.Queue, c.Position, true)
}

func showItem(ctx context.Context, a *app, with withQueue, name string, position int64, data bool) error {
	if position < 1 {
		return usage("%d: the position of an item is at least 1", position)
	}
	return with(ctx, name, func(_ *messagestore.Store, q *queue.Queue) error {
		item, err := q.Item(ctx, messagestore.GlobalPosition(position))
		if errors.Is(err, messagestore.ErrNotFound) {
			return fmt.Errorf("%s has no item at position %d: %w", visible(q.Name()), position, messagestore.ErrNotFound)
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
			return a.out.object(toItemLine(item))
		}
		return printItem(a, item)
	})
}

func printItem(a *app, item queue.Item) error {
	name := fmt.Sprintf("position %d", item.Position)
	if item.Message != nil {
		name = visible(item.Message.String())
	}
	if err := a.out.line("%s", a.out.styled(name, bold)); err != nil {
		return err
	}
	state := string(item.State)
	if note := stateNote(item); note != "" {
		state += ", " + note
	}
	rows := [][2]string{{"state", state}, {"given back", strconv.Itoa(item.Version)}, {"failures", strconv.Itoa(item.Failures)}, {"due", timeOrNone(item.Due, "")}, {"progress", visible(item.Note)}}
	for i, line := range strings.Split(item.Error, "\n") { // the stack of a panic is below it
		rows = append(rows, [2]string{map[bool]string{true: "error", false: " "}[i == 0], visible(strings.ReplaceAll(line, "\t", "    "))})
	}
	if m := item.Message; m != nil {
		rows = append(rows, [2]string{"inserted", timeText(m.Time)}, [2]string{"id", m.ID.String()}, [2]string{"data", dataText(m.Data)})
		if m.Metadata.CausationStream != "" {
			rows = append(rows, [2]string{"by", visible(fmt.Sprintf("%s@%d", m.Metadata.CausationStream, m.Metadata.CausationPosition))})
		}
	}
	for _, row := range rows {
		if row[1] == "" {
			continue
		}
		if err := a.out.row(cell{text: row[0], style: dim}, cell{text: row[1]}); err != nil {
			return err
		}
	}
	if len(item.Log) == 0 {
		return nil
	}
	if err := a.out.line(""); err != nil {
		return err
	}
	for _, e := range item.Log {
		if err := a.out.row(entryCells(strconv.Itoa(e.Version), e)...); err != nil {
			return err
		}
	}
	return nil
}

type queueInsertCommand struct {
	Category string `arg:"" help:"The category that the queue reads."`
	Type     string `arg:"" help:"Type of the message, like Send."`
	Data     string `arg:"" optional:"" help:"Its data, a JSON object; - reads it from the standard input. Defaults to {}."`
	ID       string `name:"id" placeholder:"UUID" help:"The message's id. Inserting it again changes nothing. Defaults to a new one."`
	Key      string `placeholder:"KEY" help:"Items of one key are delivered one at a time, in order."`
	Unique   string `placeholder:"NAME" help:"A second item with this name is not inserted."`
	Until    string `enum:"forgotten,finished,delivered" default:"forgotten" placeholder:"WHEN" help:"Until when the item has that name: forgotten (default: as long as it is kept), finished (or dead), or delivered to a worker."`
	At       string `placeholder:"TIME" help:"The time before which the item is not delivered, like 2026-11-27T10:00:00Z."`
}

// Help is printed below the command's usage.
func (queueInsertCommand) Help() string {
	return `It writes the message that is the item, and prints its position. A queue gets every message of its category, however it was written: this command only gives it its stream and its date.

Example:

    dibs queue insert mail Send '{"to":"ann"}' --key ann`
}

// Run inserts it.
func (c *queueInsertCommand) Run(ctx context.Context, a *app) error {
	category, err := toCategory(c.Category)
	if err != nil {
		return err
	}
	w := writeCommand{Type: c.Type, Data: c.Data, ID: c.ID}
	m, err := w.message(ctx, a)
	if err != nil {
		return err
	}
	opts := &queue.InsertOpts{Key: c.Key, Unique: c.Unique, UniqueUntil: uniqueUntil[c.Until]}
	if c.At != "" {
		if opts.ScheduledAt, err = parseTime("at", c.At); err != nil {
			return err
		}
	}
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		q, err := queue.New(store, category, nil)
		if err != nil {
			return err
		}
		inserted, err := q.Insert(ctx, m, opts)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.out.object(insertedLine{inserted.Position, inserted.Stream, inserted.ID.String(), inserted.Duplicate})
		}
		note := ""
		if inserted.Duplicate {
			note = " (it was there before, and nothing was inserted)"
		}
		return a.out.line("position %d, in %s%s", inserted.Position, visible(string(inserted.Stream)), note)
	})
}

var uniqueUntil = map[string]queue.UniqueUntil{"finished": queue.UntilFinished, "delivered": queue.UntilDelivered}

type insertedLine struct {
	Position  messagestore.GlobalPosition `json:"position"`
	Stream    messagestore.StreamName     `json:"stream"`
	ID        string                      `json:"id"`
	Duplicate bool                        `json:"duplicate,omitempty"`
}

// queueItems are the items that a command changes.
type queueItems struct {
	Queue     string  `arg:"" help:"The queue's name."`
	Positions []int64 `arg:"" optional:"" help:"The positions of items, as dibs queue jobs prints them."`
	Reason    string  `placeholder:"TEXT" help:"Why, for the item's log."`
}

func (c *queueItems) positions() ([]messagestore.GlobalPosition, error) {
	if len(c.Positions) == 0 {
		return nil, usage("which items? Give their positions, as dibs queue jobs prints them")
	}
	all := make([]messagestore.GlobalPosition, len(c.Positions))
	for i, position := range c.Positions {
		if position < 1 {
			return nil, usage("%d: the position of an item is at least 1", position)
		}
		all[i] = messagestore.GlobalPosition(position)
	}
	return all, nil
}

type queueChanged struct {
	Queue     string                        `json:"queue"`
	Changed   []messagestore.GlobalPosition `json:"changed"`
	Unchanged []messagestore.GlobalPosition `json:"unchanged,omitempty"`
}

type queueChange func(q *queue.Queue, ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error)

func (c *queueItems) run(ctx context.Context, a *app, with withQueue, did, states string, do queueChange) error {
	positions, err := c.positions()
	if err != nil {
		return err
	}
	return with(ctx, c.Queue, func(_ *messagestore.Store, q *queue.Queue) error {
		changed, err := do(q, ctx, c.Reason, positions...)
		if err != nil {
			return err
		}
		is := map[messagestore.GlobalPosition]bool{}
		for _, position := range changed {
			is[position] = true
		}
		line := queueChanged{Queue: q.Name(), Changed: append([]messagestore.GlobalPosition{}, changed...)}
		var rest []string
		for _, position := range positions {
			if !is[position] {
				line.Unchanged = append(line.Unchanged, position)
				rest = append(rest, strconv.FormatInt(int64(position), 10))
			}
		}
		if a.JSON {
			err = a.out.object(line)
		} else {
			err = a.out.line("%s %s", did, number(int64(len(changed)), "item", "items"))
		}
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("not %s: no item that is %s is at position %s: %w", did, states, strings.Join(rest, ", "), messagestore.ErrNotFound)
		}
		return err
	})
}

type queueRetryCommand struct {
	queueItems

	AllDead bool `help:"Retry all dead items. Ask again for those that stay dead."`
}

// Help is printed below the command's usage.
func (queueRetryCommand) Help() string {
	return `Later and dead items are offered now. The failures of a dead item count anew, and it takes its place in its key again: it waits for the one that is out and for earlier ones that are open, and goes before all later ones. One that would wait for an item that a transaction is completing just then stays dead, also with --all-dead: ask again.

Examples:

    dibs queue retry mail 4711 4712
    dibs queue retry mail --all-dead --reason "the mail server is back"`
}

// Run retries them.
func (c *queueRetryCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, a.withQueue)
}

func (c *queueRetryCommand) run(ctx context.Context, a *app, with withQueue) error {
	if !c.AllDead {
		return c.queueItems.run(ctx, a, with, "retried", "later or dead", (*queue.Queue).Retry)
	}
	if len(c.Positions) > 0 {
		return usage("--all-dead goes without positions")
	}
	return with(ctx, c.Queue, func(_ *messagestore.Store, q *queue.Queue) error {
		retried := queueChanged{Queue: q.Name(), Changed: []messagestore.GlobalPosition{}}
		for from := messagestore.GlobalPosition(0); ; { // each once, also if it dies again at once
			items, err := q.Items(ctx, queue.Dead, from, queuing.MaxItems)
			if err != nil {
				return err
			}
			positions := make([]messagestore.GlobalPosition, len(items))
			for i, item := range items {
				positions[i] = item.Position
			}
			if len(positions) == 0 {
				break
			}
			changed, err := q.Retry(ctx, c.Reason, positions...)
			if err != nil {
				return err
			}
			retried.Changed = append(retried.Changed, changed...)
			from = positions[len(positions)-1] + 1
		}
		if a.JSON {
			return a.out.object(retried)
		}
		return a.out.line("retried %s", number(int64(len(retried.Changed)), "item", "items"))
	})
}

type queueDropCommand struct{ queueItems }

// Help is printed below the command's usage.
func (queueDropCommand) Help() string {
	return `Later, held and dead items are finished without a worker. Their messages stay, and the reason is in their log.

Example:

    dibs queue drop mail 4711 --reason "the account is closed"`
}

// Run drops them.
func (c *queueDropCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, a.withQueue, "dropped", "later, held or dead", (*queue.Queue).Drop)
}

type queueCancelCommand struct {
	queueItems
	newQueue
}

// Help is printed below the command's usage.
func (queueCancelCommand) Help() string {
	return `Items in any state are finished, also those that no worker has met yet; before the first worker of a queue, --category says which the queue reads. A handler that works on one is told within a third of its worker's lease, and what it completes after that is refused.

Example:

    dibs queue cancel mail 4711 --reason "sent by hand"
    dibs queue cancel mail 4711 --category mail`
}

// Run cancels them.
func (c *queueCancelCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, c.with(a), "cancelled", "not finished", (*queue.Queue).Cancel)
}

// with makes no queue that the store does not have if its category has no message at any of the positions.
func (c *queueCancelCommand) with(a *app) withQueue {
	return func(ctx context.Context, name string, f func(store *messagestore.Store, q *queue.Queue) error) error {
		return c.newQueue.with(a)(ctx, name, func(store *messagestore.Store, q *queue.Queue) error {
			all, err := queuesOf(ctx, store, "")
			if err != nil {
				return err
			}
			if _, err = queueNamed(all, name); err == nil {
				return f(store, q)
			}
			for _, position := range c.Positions {
				switch _, err := q.Item(ctx, messagestore.GlobalPosition(position)); {
				case err == nil:
					return f(store, q)
				case !errors.Is(err, messagestore.ErrNotFound):
					return err
				}
			}
			return notFound("%s has no item at the position, and queue %s, which no worker ever took from, is not made", visible(c.Category), visible(name))
		})
	}
}

type namedQueue struct {
	Queue string `arg:"" help:"The queue's name."`
}

func (c *namedQueue) run(ctx context.Context, a *app, with withQueue, did string, do func(*queue.Queue, context.Context) error) error {
	return with(ctx, c.Queue, func(_ *messagestore.Store, q *queue.Queue) error {
		if err := do(q, ctx); err != nil {
			return err
		}
		if a.JSON {
			return a.out.object(map[string]any{"queue": c.Queue, "paused": did == "paused", "time": timeText(time.Now())})
		}
		return a.out.line("%s is %s", visible(c.Queue), did)
	})
}

type queuePauseCommand struct {
	namedQueue
	newQueue
}

// Help is printed below the command's usage.
func (queuePauseCommand) Help() string {
	return `From then on no process reserves an item of the queue. Items that are out go on. The pause outlives restarts, and ends with dibs queue resume. A queue may be paused before its first worker runs: --category says which it reads.

Examples:

    dibs queue pause mail
    dibs queue pause mail --category mail`
}

// Run pauses.
func (c *queuePauseCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, c.with(a), "paused", (*queue.Queue).Pause)
}

type queueResumeCommand struct{ namedQueue }

// Help is printed below the command's usage.
func (queueResumeCommand) Help() string {
	return `Workers reserve items again, at most one poll interval later.

Example:

    dibs queue resume mail`
}

// Run resumes.
func (c *queueResumeCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, a.withQueue, "resumed", (*queue.Queue).Resume)
}

type queueRemoveCommand struct {
	namedQueue

	Unfinished bool   `help:"Remove it also if there are items that are not finished."`
	FreeName   bool   `help:"Keep no name: a worker of the queue begins again with the first message of the category. Also for a queue that was removed before, with --category."`
	Category   string `placeholder:"CATEGORY" help:"The category that the queue reads. Needed only to free the name of a queue that was removed before."`
	Yes        bool   `help:"Do not ask."`
}

// Help is printed below the command's usage.
func (queueRemoveCommand) Help() string {
	return `A queue or a relay keeps each message that it has not finished from dibs trim, delete and forget, also when nothing works on it any more. This command has the store forget the queue: its cursor, its items and their logs. The messages stay. It refuses, and counts, items that are not finished: dibs queue jobs lists them, and --unfinished removes the queue all the same.

The name is kept: a worker that still runs, or begins later, ends with "the queue was removed", and does not begin again with the first message of the category. The name of a queue that no worker ever took from, as a mistyped dibs queue pause makes it, is free. It needs the role dibs_admin.

Examples:

    dibs queue remove tobank --yes
    dibs queue remove tobank --free-name --category payments:outgoing --yes`
}

// Run removes it.
func (c *queueRemoveCommand) Run(ctx context.Context, a *app) error {
	if !c.Yes && !isTerminal(a.stdin) {
		return usage("there is no terminal to confirm on: give --yes to remove queue %s", visible(c.Queue))
	}
	with := newQueue{c.Category}.with(a)
	return with(ctx, c.Queue, func(_ *messagestore.Store, q *queue.Queue) error {
		if !c.Yes {
			question := fmt.Sprintf("remove queue %s of %s? What is known of its items does not come back. Type yes: ", visible(c.Queue), visible(string(q.Category())))
			if err := a.confirm(ctx, question, "nothing was removed"); err != nil {
				return err
			}
		}
		kept, err := q.Remove(ctx, &queue.RemoveOpts{Unfinished: c.Unfinished, FreeName: c.FreeName})
		if _, refused := errors.AsType[*queue.UnfinishedError](err); refused {
			return &hintedError{err, "dibs queue jobs lists them; --unfinished removes the queue all the same"}
		}
		if err != nil {
			return err
		}
		if a.JSON {
			return a.out.object(map[string]any{"queue": c.Queue, "removed": true, "nameKept": kept})
		}
		name := "its name is free"
		if kept {
			name = "its name is kept, and its workers end"
		}
		return a.out.line("%s is removed: %s", visible(c.Queue), name)
	})
}
