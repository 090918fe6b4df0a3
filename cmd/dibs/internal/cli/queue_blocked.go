package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
)

// A queueBlockedCommand is dibs queue blocked: it shows why items of a queue are not taken.
type queueBlockedCommand struct {
	Queue string `arg:"" optional:"" help:"The queue's name. Defaults to all."`
	Limit few    `default:"20" placeholder:"N" help:"Print at most N causes of each queue, 1 to 1000. Defaults to ${default}."`

	LongLock time.Duration `default:"5s" placeholder:"TIME" help:"Offer to end a writer's transaction that lasts this long. Defaults to ${default}."`
}

// blockedItems is how many items beyond a cursor are counted, and how many held and later ones looked at, at most.
const blockedItems = 10_000

// A blocker is a cause for which items of a queue are not taken.
type blocker struct {
	cause   string
	items   int64 // that it keeps
	atLeast bool
	says    string
	advice  string
	more    fields // of JSON
}

func (c *queueBlockedCommand) Run(ctx context.Context, a *app) error {
	if c.LongLock < 0 {
		return usage("--long-lock=%s: must be at least 0s", c.LongLock)
	}
	return a.withQueues(ctx, func(store *messagestore.Store, all []queue.Status) error {
		if c.Queue != "" {
			s, err := queueNamed(all, c.Queue)
			if err != nil {
				return err
			}
			all = []queue.Status{s}
		}
		a.out.table("queue", "cause", ">items", "")
		printed := false
		for _, s := range all {
			b := blocked{app: a, store: store, status: s, limit: int(c.Limit), longLock: c.LongLock}
			if err := b.look(ctx); err != nil {
				return fmt.Errorf("queue %s: %w", visible(s.Name), err)
			}
			b.print()
			printed = printed || len(b.found) > 0
		}
		switch {
		case printed:
		case len(all) == 0:
			a.nothing("no queue was ever worked on")
		case c.Queue != "":
			a.nothing("no item of %s is blocked: it has %s out, and none that waits", c.Queue, text.Number(all[0].Out, "item"))
		default:
			a.nothing("no item of %s is blocked", text.Number(len(all), "queue"))
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
	found []blocker
	rest  int   // causes that are not in found
	kept  int64 // items that they keep
	short bool  // not all held and later items were looked at
}

func (b *blocked) add(l blocker) { b.found = append(b.found, l) }

func (b *blocked) look(ctx context.Context) (err error) {
	if b.q, err = queueOf(b.store, b.status); err != nil {
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
		b.add(blocker{
			cause: "paused", items: b.status.Due + beyond, atLeast: atLeast,
			says: "no process reserves an item", advice: "dibs queue resume " + b.status.Name + " ends the pause",
		})
	}
	if clock := operate.ClockText(b.status); clock != "" {
		b.add(blocker{
			cause: "clock", items: b.status.Out + b.status.Later + b.status.Suspended - b.status.Due,
			says: clock, advice: "the next worker that looks has delays and leases count from then on; see to the server's clock",
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
	if err != nil || !isPostgres(u) { // a process that has the lock of a file keeps this one from opening it
		return 0, false, err
	}
	var locks []CategoryLock
	err = b.app.withConn(ctx, func(conn *pgx.Conn) error {
		locks, err = CategoryLocks(ctx, conn, &ExamineConfig{Schema: b.app.Schema, LongLock: b.longLock}, b.status.Category)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	for i := range locks {
		l := &locks[i]
		line := blocker{cause: "writer", says: l.Holder(), advice: l.Remedy()}
		if len(waiting) > 0 {
			if floor, is := l.Floor(waiting[0].Position); is {
				if line.items, line.atLeast, err = b.count(ctx, max(floor, b.status.Cursor)); err != nil {
					return 0, false, err
				}
				line.more = fields{"position?", floor}
				first = first || waiting[0].Position > floor
				if line.items > 0 {
					line.says = fmt.Sprintf("items behind position %d come when a transaction ends: of %s", floor, line.says)
				}
			}
		}
		heldBack = max(heldBack, line.items)
		switch waits := l.Waits(); {
		case line.items > 0 && waits != "":
			line.says += "; to insert " + waits
		case line.items > 0:
		case waits != "":
			line.says = fmt.Sprintf("to insert %s: the lock is held by %s", waits, line.says)
		default:
			continue
		}
		line.more = append(line.more, "writer", fields{ // a transaction that is only prepared has no process
			"pid?", l.PID, "hidden?", l.Hidden, "user?", l.User, "application?", l.Application, "state?", l.State,
			"query?", b.app.redact(l.Query), "since?", l.Since, "waiting?", l.Waiting,
		})
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
	line := blocker{
		cause: "no worker", items: ready, atLeast: atLeast, says: "no process has a session",
		advice: "is a worker running? Its log tells of an outage of the store, and its session is there from its first item on",
	}
	if s.Sessions > 0 {
		line.cause, line.advice = "workers", ""
		line.says = fmt.Sprintf("%s, with %s out: all are at work, or at their MaxOut or Rate", text.Number(s.Sessions, "session is there|sessions are there"), text.Number(s.Out, "item"))
	} else if s.Out > 0 {
		line.says += fmt.Sprintf(", and %s out of sessions that are over", text.Number(s.Out, "item is|items are"))
	}
	if len(waiting) > 0 && waiting[0].Message != nil {
		line.says += "; the first that no worker has met is of " + text.Time(waiting[0].Message.Time)
	}
	b.add(line)
}

// list returns the first blockedItems items that are in a state.
func (b *blocked) list(ctx context.Context, state queue.State) (all []queue.Item, err error) {
	for item, err := range itemsOf(ctx, b.q, state, 0, queuing.MaxItems) {
		if err != nil || len(all) >= blockedItems {
			return all, err
		}
		item.Message = nil // it may be large, and is not looked at
		all = append(all, item)
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
		b.add(blocker{
			cause: "suspended", items: b.status.Suspended, says: "a person, a message or their time has to bring them back",
			advice: fmt.Sprintf("dibs queue jobs %s --state suspended prints why", b.status.Name),
		})
	}
	dated := blocker{cause: "date"}
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
			dated.items++
			if soonest.IsZero() || item.Due.Before(soonest) {
				soonest = item.Due
			}
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		b.add(blocker{cause: "release", items: reasons[reason], says: "each " + reason})
	}
	positions := slices.SortedFunc(maps.Keys(keeps), func(x, y messagestore.GlobalPosition) int {
		return cmp.Or(cmp.Compare(keeps[y], keeps[x]), cmp.Compare(x, y))
	})
	for _, position := range positions {
		if len(b.found) >= b.limit {
			b.rest++
			b.kept += keeps[position]
			continue
		}
		line, err := b.item(ctx, position)
		if err != nil {
			return err
		}
		line.items = keeps[position]
		b.add(line)
	}
	if dated.items > 0 {
		dated.says, dated.more = "their date has not come; the first is "+text.Time(soonest), fields{"due", soonest}
		b.add(dated)
	}
	for _, l := range b.found[min(b.limit, len(b.found)):] {
		b.rest++
		b.kept += l.items
	}
	b.found = b.found[:min(b.limit, len(b.found))]
	return nil
}

// item tells of an item that is in the way. Of one that was cancelled while it was held the one before it is.
func (b *blocked) item(ctx context.Context, position messagestore.GlobalPosition) (blocker, error) {
	item, err := b.q.Item(ctx, position)
	for err == nil && item.State == queue.Finished && item.Behind > 0 {
		item, err = b.q.Item(ctx, item.Behind)
	}
	if errors.Is(err, messagestore.ErrNotFound) {
		item, err = queue.Item{Position: position, State: queue.Finished}, nil
	}
	if err != nil {
		return blocker{}, err
	}
	due := item.Due
	if item.State != queue.Later {
		due = time.Time{}
	}
	l := blocker{
		cause: string(item.State), says: fmt.Sprintf("item %d", item.Position),
		more: fields{"position?", item.Position, "session?", item.Session, "until?", item.Until, "due?", due, "failures?", item.Failures},
	}
	if item.Message != nil {
		l.says += " (" + shorten(place(item.Message)) + ")"
	}
	l.says += " is " + l.cause
	name, note := b.status.Name, operate.ItemText(item)
	switch {
	case item.State == queue.Out && !item.Until.After(b.status.Time):
		l.says += fmt.Sprintf(" at session %d, which is over: the next take of a worker offers it again", item.Session)
	case item.State == queue.Later && !item.Due.After(b.status.Time):
		l.says += ", and its time has come: the next take of a worker may have it"
	case note != "":
		l.says += ", " + note
	}
	switch {
	case item.State == queue.Later && item.Due.After(b.status.Time):
		l.advice = fmt.Sprintf("dibs queue retry %s %d offers it now", name, item.Position)
	case item.State == queue.Dead:
		l.advice = fmt.Sprintf("dibs queue retry or drop %s %d opens its key", name, item.Position)
	}
	if n := len(item.Log); n > 0 && item.State != queue.Finished {
		e := item.Log[n-1]
		l.more = append(l.more, "last", entryFields(e))
		l.says += "; last " + e.What
		if e.Text != "" {
			l.says += ": " + visible(e.Text)
		}
	}
	return l, nil
}

func (b *blocked) print() {
	a, name := b.app, b.status.Name
	for _, l := range b.found {
		says, items := a.redact(l.says), in(plain, l.items)
		object := append(fields{"queue", name, "cause", l.cause, "items", l.items, "itemsIsAtLeast?", l.atLeast}, l.more...)
		object = append(object, "says", says, "advice?", l.advice)
		if l.advice != "" {
			says += "; " + l.advice
		}
		if l.atLeast {
			items.text = ">" + items.text
		}
		a.out.row(object, in(bold, name), in(yellow, l.cause), items, says)
	}
	if a.JSON && (b.rest > 0 || b.short) {
		a.cut(fields{"queue", name, "rows", len(b.found), "of", len(b.found) + b.rest, "atLeast", b.short}, "")
		return
	}
	if b.rest > 0 {
		a.nothing("dibs: %s of %s, of %s; --limit prints more", text.Number(b.rest, "more cause"), name, text.Number(b.kept, "item"))
	}
	if b.short {
		a.nothing("dibs: the first %d held and later items of %s were looked at, of %d and %d", blockedItems, name, b.status.Held, b.status.Later)
	}
}
