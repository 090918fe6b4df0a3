package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/cmd/dibs/internal/doctor"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

type queueBlockedCommand struct {
	Queue string `arg:"" optional:"" help:"The queue's name. Defaults to all."`
	Limit int    `default:"20" placeholder:"N" help:"Print at most N causes of each queue, 1 to 1000. Defaults to ${default}."`

	LongLock time.Duration `default:"5s" placeholder:"TIME" help:"Offer to end a writer's transaction that lasts this long. Defaults to ${default}."`
}

// Help is printed below the command's usage.
func (queueBlockedCommand) Help() string {
	return `A line for each cause for which items are not taken: how many items it keeps, and the remedy. Causes of the whole queue come first, then those that keep most items.

    paused     an operator has paused the queue
    clock      the store's clock was ahead, or was set back; the next worker
               that looks has delays and leases count from then on
    writer     PostgreSQL: a transaction appended to the category early, and no
               worker reads the messages behind until it ends; or inserts wait
               for it. Its process is named; its user, application, state and
               last statement too, if this user may see them (pg_monitor)
    no worker  no process has a session
    workers    sessions are there, and all their workers are at work, or at
               their MaxOut or Rate, which the store does not know
    out        a session has the item before them of their key
    later      the item is offered again at a time, after a failure, a deferral
               or a lost session; later items of its key wait too
    dead       a dead item keeps its key closed (WhenDead: Hold)
    finished   the item before them was finished or removed: an idle worker lets
               them go within a second
    suspended  a person, a message or their time has to bring sagas back
    date       their date has not come

It looks at the first 1000 held and the first 1000 later items of a queue, counts up to 10000 that no worker has met, and changes nothing.

Examples:

    dibs queue blocked
    dibs queue blocked mail --json`
}

// blockedItems is how many items beyond a cursor are counted, and how many held and later ones looked at, at most.
const blockedItems = 10_000

// A blockedLine is a cause for which items of a queue are not taken, and how it is printed as JSON.
type blockedLine struct {
	Queue   string `json:"queue"`
	Cause   string `json:"cause"`
	Items   int64  `json:"items"` // that it keeps
	AtLeast bool   `json:"itemsIsAtLeast,omitempty"`

	Position messagestore.GlobalPosition `json:"position,omitempty"` // of the item in the way, or the last before what a writer keeps
	Session  int64                       `json:"session,omitempty"`
	Until    string                      `json:"until,omitempty"` // the end of the session
	Due      string                      `json:"due,omitempty"`
	Failures int                         `json:"failures,omitempty"`
	Last     *entryLine                  `json:"last,omitempty"` // of the item's log

	Writer *writerLine `json:"writer,omitempty"`

	Says   string `json:"says"`
	Advice string `json:"advice,omitempty"`
}

// A writerLine is the session that holds a lock of a category.
type writerLine struct {
	PID         int    `json:"pid,omitempty"` // none of a transaction that is only prepared
	Hidden      bool   `json:"hidden,omitempty"`
	User        string `json:"user,omitempty"`
	Application string `json:"application,omitempty"`
	State       string `json:"state,omitempty"`
	Query       string `json:"query,omitempty"`
	Since       string `json:"since,omitempty"`
	Waiting     int64  `json:"waiting,omitempty"` // sessions
}

// Run prints the causes.
func (c *queueBlockedCommand) Run(ctx context.Context, a *app) error {
	if c.Limit < 1 || c.Limit > queuing.MaxItems {
		return usage("--limit=%d: it is 1 to %d", c.Limit, queuing.MaxItems)
	}
	if c.LongLock < 0 {
		return usage("--long-lock=%s: it is less than 0", c.LongLock)
	}
	return a.withQueues(ctx, func(store *messagestore.Store, all []queue.Status) error {
		if c.Queue != "" {
			s, err := queueNamed(all, c.Queue)
			if err != nil {
				return err
			}
			all = []queue.Status{s}
		}
		printed := false
		for _, s := range all {
			b := blocked{app: a, store: store, status: s, limit: c.Limit, longLock: c.LongLock}
			if err := b.look(ctx); err != nil {
				return fmt.Errorf("queue %s: %w", visible(s.Name), err)
			}
			if err := b.print(!printed); err != nil {
				return err
			}
			printed = printed || len(b.lines) > 0
		}
		switch {
		case printed:
		case len(all) == 0:
			a.nothing("no queue was ever worked on")
		case c.Queue != "":
			a.nothing("no item of %s is blocked: it has %s out, and none that waits", visible(c.Queue), number(all[0].Out, "item", "items"))
		default:
			a.nothing("no item of %s is blocked", number(int64(len(all)), "queue", "queues"))
		}
		return nil
	})
}

// blocked is a look at one queue.
type blocked struct {
	app    *app
	store  *messagestore.Store
	status queue.Status
	limit  int

	longLock time.Duration

	q     *queue.Queue
	lines []blockedLine
	rest  int   // causes that are not in lines
	kept  int64 // items that they keep
	short bool  // not all held and later items were looked at
}

func (b *blocked) add(l blockedLine) {
	l.Queue, l.Says = b.status.Name, b.app.redact(l.Says)
	if l.Writer != nil {
		l.Writer.Query = b.app.redact(l.Writer.Query)
	}
	b.lines = append(b.lines, l)
}

func (b *blocked) look(ctx context.Context) (err error) {
	if b.q, err = queue.New(b.store, b.status.Category, &queue.Config{Name: b.status.Name}); err != nil {
		return err
	}
	waiting, err := b.q.Items(ctx, queue.Waiting, 0, 1)
	if err != nil {
		return err
	}
	beyond, atLeast := int64(0), false // items that no worker has met
	if len(waiting) > 0 {
		if beyond, atLeast, err = b.count(ctx, b.status.Cursor); err != nil {
			return err
		}
	}
	if b.status.Paused {
		b.add(blockedLine{
			Cause: "paused", Items: b.status.Due + beyond, AtLeast: atLeast,
			Says: "no process reserves an item", Advice: "dibs queue resume " + visible(b.status.Name) + " ends the pause",
		})
	}
	if clock := clockText(b.status); clock != "" {
		b.add(blockedLine{
			Cause: "clock", Items: b.status.Out + b.status.Later + b.status.Suspended - b.status.Due,
			Says: clock, Advice: "the next worker that looks has delays and leases count from then on; see to the server's clock",
		})
	}
	heldBack, first, err := b.writers(ctx, waiting)
	if err != nil {
		return err
	}
	readable := beyond - heldBack
	if atLeast && !first {
		readable = max(readable, 1) // where both counts have reached their end
	}
	b.workers(waiting, b.status.Due+readable, atLeast)
	return b.items(ctx)
}

// count returns how many messages the category has behind a position.
func (b *blocked) count(ctx context.Context, after messagestore.GlobalPosition) (n int64, atLeast bool, err error) {
	n, err = b.store.Count(ctx, messagestore.CategoryQuery{Category: b.status.Category, From: after + 1, Limit: blockedItems})
	return n, n == blockedItems, err
}

// writers finds the transactions that keep workers from reading items, or others from inserting. It returns how many items of those
// that no worker has met cannot be read, and whether the first is one of them.
func (b *blocked) writers(ctx context.Context, waiting []queue.Item) (heldBack int64, first bool, err error) {
	u, err := b.app.storeURL()
	if err != nil {
		return 0, false, err
	}
	if !isPostgres(u) { // a process that has the lock of a file keeps this one from opening it
		return 0, false, nil
	}
	var locks []doctor.CategoryLock
	err = b.app.withConn(ctx, func(conn *pgx.Conn) error {
		locks, err = doctor.CategoryLocks(ctx, conn, &doctor.Config{Schema: b.app.Schema, LongLock: b.longLock}, b.status.Category)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	for i := range locks {
		l := &locks[i]
		line := blockedLine{
			Cause: "writer", Says: l.Holder(), Advice: l.Remedy(),
			Writer: &writerLine{l.PID, l.Hidden, l.User, l.Application, l.State, l.Query, timeOrNone(l.Since, ""), l.Waiting},
		}
		if len(waiting) > 0 {
			if floor, is := l.Floor(waiting[0].Position); is {
				if line.Items, line.AtLeast, err = b.count(ctx, max(floor, b.status.Cursor)); err != nil {
					return 0, false, err
				}
				line.Position = floor
				first = first || waiting[0].Position > floor
			}
		}
		heldBack = max(heldBack, line.Items)
		switch waits := l.Waits(); {
		case line.Items > 0:
			line.Says = fmt.Sprintf("items behind position %d come when a transaction ends: of %s", line.Position, line.Says)
			if waits != "" {
				line.Says += "; to insert " + waits
			}
		case waits != "":
			line.Says = fmt.Sprintf("to insert %s: the lock is held by %s", waits, line.Says)
		default:
			continue
		}
		b.add(line)
	}
	return heldBack, first, nil
}

// workers tells what keeps items that are ready from being taken, if the queue is not paused.
func (b *blocked) workers(waiting []queue.Item, ready int64, atLeast bool) {
	s := b.status
	if s.Sessions == 0 {
		ready += s.Out // of sessions that are over
	}
	if s.Paused || ready <= 0 {
		return
	}
	line := blockedLine{Cause: "no worker", Items: ready, AtLeast: atLeast, Says: "no process has a session", Advice: "is a worker running? Its log tells of an outage of the store, and its session is there from its first item on"}
	if s.Sessions > 0 {
		line.Cause, line.Advice = "workers", ""
		line.Says = fmt.Sprintf("%s, with %s out: all are at work, or at their MaxOut or Rate", number(s.Sessions, "session is there", "sessions are there"), number(s.Out, "item", "items"))
	} else if s.Out > 0 {
		line.Says += fmt.Sprintf(", and %s out of sessions that are over", number(s.Out, "item is", "items are"))
	}
	if len(waiting) > 0 && waiting[0].Message != nil {
		line.Says += "; the first that no worker has met is of " + timeText(waiting[0].Message.Time)
	}
	b.add(line)
}

// list returns the first blockedItems items that are in a state.
func (b *blocked) list(ctx context.Context, state queue.State) (all []queue.Item, err error) {
	for from := messagestore.GlobalPosition(0); len(all) < blockedItems; from = all[len(all)-1].Position.Next() {
		items, err := b.q.Items(ctx, state, from, queuing.MaxItems)
		if err != nil || len(items) == 0 { // a page of large items is shorter
			return all, err
		}
		for i := range items {
			items[i].Message = nil // it may be large, and is not looked at
		}
		all = append(all, items...)
	}
	return all, nil
}

// items tells of the items that are in the way of others of their key, or not offered yet.
func (b *blocked) items(ctx context.Context) error {
	held, err := b.list(ctx, queue.Held)
	if err != nil {
		return err
	}
	later, err := b.list(ctx, queue.Later)
	if err != nil {
		return err
	}
	b.short = int64(len(held)) < b.status.Held || int64(len(later)) < b.status.Later
	keeps := map[messagestore.GlobalPosition]int64{} // how many items the item at a position keeps
	first := map[messagestore.GlobalPosition]messagestore.GlobalPosition{}
	for _, item := range held { // in order, and each is held by one before it
		first[item.Position] = cmp.Or(first[item.Behind], item.Behind)
		keeps[first[item.Position]]++
	}
	if b.status.Suspended > 0 {
		b.add(blockedLine{
			Cause: "suspended", Items: b.status.Suspended, Says: "a person, a message or their time has to bring them back",
			Advice: fmt.Sprintf("dibs queue jobs %s --state suspended prints why", visible(b.status.Name)),
		})
	}
	dated := blockedLine{Cause: "date"}
	reasons := map[string]int64{}
	var soonest time.Time
	for _, item := range later {
		switch {
		case !item.Due.After(b.status.Time):
		case b.status.Streams && item.Failures == 0 && item.Error != "": // it waits for something that no message brings
			reasons[item.Error]++
		case b.status.Streams && item.Failures == 0: // it waits for a message, as the most do
		case item.Version > 0 || keeps[item.Position] > 0:
			keeps[item.Position]++
		default:
			dated.Items++
			if soonest.IsZero() || item.Due.Before(soonest) {
				soonest = item.Due
			}
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		b.add(blockedLine{Cause: "release", Items: reasons[reason], Says: "each " + reason})
	}
	if dated.Items > 0 {
		dated.Due = timeText(soonest)
		dated.Says = "their date has not come; the first is " + dated.Due
	}
	positions := slices.SortedFunc(maps.Keys(keeps), func(x, y messagestore.GlobalPosition) int {
		return cmp.Or(cmp.Compare(keeps[y], keeps[x]), cmp.Compare(x, y))
	})
	for _, position := range positions {
		if len(b.lines) >= b.limit {
			b.rest++
			b.kept += keeps[position]
			continue
		}
		line, err := b.item(ctx, position)
		if err != nil {
			return err
		}
		line.Items = keeps[position]
		b.add(line)
	}
	if dated.Items > 0 {
		b.add(dated)
	}
	if over := len(b.lines) - b.limit; over > 0 {
		for _, l := range b.lines[b.limit:] {
			b.rest++
			b.kept += l.Items
		}
		b.lines = b.lines[:b.limit]
	}
	return nil
}

// item tells of an item that is in the way. Of one that was cancelled while it was held the one before it is.
func (b *blocked) item(ctx context.Context, position messagestore.GlobalPosition) (blockedLine, error) {
	item, err := b.q.Item(ctx, position)
	for err == nil && item.State == queue.Finished && item.Behind > 0 {
		item, err = b.q.Item(ctx, item.Behind)
	}
	if errors.Is(err, messagestore.ErrNotFound) {
		item, err = queue.Item{Position: position, State: queue.Finished}, nil
	}
	if err != nil {
		return blockedLine{}, err
	}
	l := blockedLine{Cause: string(item.State), Position: item.Position, Session: item.Session, Until: timeOrNone(item.Until, ""), Failures: item.Failures}
	l.Says = fmt.Sprintf("item %d", item.Position)
	if item.Message != nil {
		l.Says += " (" + shorten(place(item.Message)) + ")"
	}
	l.Says += " is " + l.Cause
	switch {
	case item.State == queue.Out && !item.Until.After(b.status.Time):
		l.Says += fmt.Sprintf(" at session %d, which is over: the next take of a worker offers it again", item.Session)
	case item.State == queue.Later && !item.Due.After(b.status.Time):
		l.Due = timeOrNone(item.Due, "")
		l.Says += ", and its time has come: the next take of a worker may have it"
	case item.State == queue.Later:
		l.Due = timeOrNone(item.Due, "")
		l.Says += ", " + stateNote(item)
		l.Advice = fmt.Sprintf("dibs queue retry %s %d offers it now", visible(b.status.Name), item.Position)
	case item.State == queue.Dead:
		l.Says += ", " + stateNote(item)
		l.Advice = fmt.Sprintf("dibs queue retry or drop %s %d opens its key", visible(b.status.Name), item.Position)
	case stateNote(item) != "":
		l.Says += ", " + stateNote(item)
	}
	if n := len(item.Log); n > 0 && item.State != queue.Finished {
		e := item.Log[n-1]
		l.Last = &entryLine{e.Version, e.What, timeText(e.Time), e.Session, e.Text}
		l.Says += "; last " + e.What
		if e.Text != "" {
			l.Says += ": " + shortenTo(200, visible(e.Text))
		}
	}
	return l, nil
}

func (b *blocked) print(first bool) error {
	a := b.app
	for i, l := range b.lines {
		if a.JSON {
			if err := a.out.object(l); err != nil {
				return err
			}
			continue
		}
		if first && i == 0 {
			if err := a.out.row(cell{text: "queue"}, cell{text: "cause"}, cell{text: "items", right: true}, cell{text: ""}); err != nil {
				return err
			}
		}
		says, items := l.Says, strconv.FormatInt(l.Items, 10)
		if l.Advice != "" {
			says += "; " + l.Advice
		}
		if l.AtLeast {
			items = ">" + items
		}
		if err := a.out.row(cell{text: visible(l.Queue), style: bold}, cell{text: l.Cause, style: yellow}, cell{text: items, right: true}, cell{text: visible(says)}); err != nil {
			return err
		}
	}
	if b.rest == 0 && !b.short {
		return nil
	}
	if a.JSON { // without it a reader would take a part for the whole
		return a.note(map[string]any{"kind": "cut", "queue": b.status.Name, "rows": len(b.lines), "of": len(b.lines) + b.rest, "atLeast": b.short})
	}
	if b.rest > 0 {
		a.warn("dibs: %s of %s, of %s; --limit prints more\n", number(int64(b.rest), "more cause", "more causes"), visible(b.status.Name), number(b.kept, "item", "items"))
	}
	if b.short {
		a.warn("dibs: the first %d held and later items of %s were looked at, of %d and %d\n", blockedItems, visible(b.status.Name), b.status.Held, b.status.Later)
	}
	return nil
}
