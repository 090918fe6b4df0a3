package demo

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/queuing"
)

// standingEnds is when the clock of the simulation stands still.
var standingEnds = time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)

// The verdict reads messages and tables, and calls nothing of the queue, of its schedules or of the example.

// A plannedTick is a payment that is to be.
type plannedTick struct{ order, month string }

// planned returns the payments that the schedules ask for: on the day of each order, at six in the morning in Prague, from when the order
// was set up on.
func (d *standingDemo) planned(ctx context.Context) (map[plannedTick]Order, error) {
	prague, err := time.LoadLocation("Europe/Prague")
	if err != nil {
		return nil, err
	}
	by := map[string]Order{}
	for _, o := range d.orders {
		by[o.ID] = o
	}
	ticks := map[plannedTick]Order{}
	for m, err := range d.store.ReadCategory(ctx, "standing:schedule", 0, messagestore.Filter{}) {
		if err != nil {
			return nil, err
		}
		var set struct {
			Name string    `json:"name"`
			From time.Time `json:"from"`
		}
		if err := json.Unmarshal(m.Data, &set); err != nil {
			return nil, err
		}
		o, ok := by[set.Name]
		if !ok || m.Position != 0 {
			return nil, fmt.Errorf("%s sets up no order of the file, or one again", m)
		}
		for month := time.January; month <= time.March; month++ {
			at := time.Date(2026, month, dayOf(o.ID), 6, 0, 0, 0, prague)
			if at.After(set.From) && !at.After(standingEnds) {
				ticks[plannedTick{o.ID, at.Format("2006-01")}] = o
			}
		}
	}
	return ticks, nil
}

// A reason is why deliveries ended that did not finish their items.
type reason struct {
	letter, text string
}

var reasons = []reason{
	{"e", "the session was over"},
	{"r", "the handler failed, or was abandoned"},
	{"u", "given back unhandled"},
	{"f", "deferred"},
	{"x", "buried"},
}

// deliveries reads how many deliveries the queues count, and why so many did not finish their items.
func (d *standingDemo) deliveries(ctx context.Context) (taken int, by map[string]int, err error) {
	by = map[string]int{}
	const heads, log = "select sum(taken) from %s", "select what, count(*) from %s group by what"
	if path, is := strings.CutPrefix(d.url, "sqlite:"); is {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			return 0, nil, err
		}
		defer db.Close()
		if err := db.QueryRowContext(ctx, fmt.Sprintf(heads, "dibs_queues")).Scan(&taken); err != nil {
			return 0, nil, err
		}
		rows, err := db.QueryContext(ctx, fmt.Sprintf(log, "dibs_queue_log"))
		if err != nil {
			return 0, nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var what string
			var n int
			if err := rows.Scan(&what, &n); err != nil {
				return 0, nil, err
			}
			by[what] = n
		}
		return taken, by, rows.Err()
	}
	u, err := url.Parse(d.url)
	if err != nil {
		return 0, nil, err
	}
	query := u.Query()
	schema := query.Get("schema")
	query.Del("schema")
	u.RawQuery = query.Encode()
	conn, err := stage.Connect(ctx, u.String())
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	last := "(select distinct on (queue) taken from " + schema + ".queue_heads order by queue, version desc) h"
	if err := conn.QueryRow(ctx, fmt.Sprintf(heads, last)).Scan(&taken); err != nil {
		return 0, nil, err
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(strings.Replace(log, "what,", "what::text,", 1), schema+".queue_log"))
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var what string
		var n int
		if err := rows.Scan(&what, &n); err != nil {
			return 0, nil, err
		}
		by[what] = n
	}
	return taken, by, rows.Err()
}

// A paidEvent is an event of an account, as the verdict reads it.
type paidEvent struct {
	Order   string `json:"order"`
	Account string `json:"account"`
	Month   string `json:"month"`
	Cents   int64  `json:"cents"`
}

// read returns the messages of a category, decoded.
func (d *standingDemo) read(ctx context.Context, category messagestore.Category, each func(m *messagestore.Message, p paidEvent) error) error {
	for m, err := range d.store.ReadCategory(ctx, category, 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		var p paidEvent
		if err := json.Unmarshal(m.Data, &p); err != nil {
			return err
		}
		if err := each(m, p); err != nil {
			return err
		}
	}
	return nil
}

func (d *standingDemo) verdict(ctx context.Context) error {
	planned, err := d.planned(ctx)
	if err != nil {
		return err
	}
	ticks, payments, events := map[plannedTick]int{}, map[plannedTick]int{}, map[plannedTick]int{}
	balances, owed := map[string]int64{}, map[string]int64{}
	for at, o := range planned {
		owed[o.Account] += int64(o.Amount)
		_ = at
	}
	err = errors.Join(
		d.read(ctx, "standing", func(m *messagestore.Message, p paidEvent) error {
			var at int64
			if err := json.Unmarshal(m.Metadata.Extra["tickAt"], &at); err != nil {
				return fmt.Errorf("%s has no time: %w", m, err)
			}
			prague, err := time.LoadLocation("Europe/Prague")
			ticks[plannedTick{p.Order, time.UnixMicro(at).In(prague).Format("2006-01")}]++
			return err
		}),
		d.read(ctx, "standing:payment", func(_ *messagestore.Message, p paidEvent) error {
			payments[plannedTick{p.Order, p.Month}]++
			return nil
		}),
		d.read(ctx, "account", func(m *messagestore.Message, p paidEvent) error {
			events[plannedTick{p.Order, p.Month}]++
			balances[m.Stream.ID()] += p.Cents
			return nil
		}),
	)
	if err != nil {
		return err
	}
	made, orderly, wrong := map[plannedTick]int{}, 0, 0
	last := map[string]int64{}
	d.bank.mu.Lock()
	for _, p := range d.bank.made {
		made[plannedTick{p.Order, p.Month}]++
		if before, is := last[p.Account]; !is && p.Position == 0 || is && p.Position == before+1 {
			orderly++
		}
		last[p.Account] = p.Position
	}
	asked, refused, hung := d.bank.asked, d.bank.refused, d.bank.hung
	d.bank.mu.Unlock()
	for account, sum := range owed {
		if balances[account] != sum {
			wrong++
		}
	}
	for account := range balances {
		if _, is := owed[account]; !is {
			wrong++
		}
	}
	taken, by, err := d.deliveries(ctx)
	if err != nil {
		return err
	}
	once := func(of map[plannedTick]int) int {
		n := 0
		for at := range planned {
			if of[at] == 1 {
				n++
			}
		}
		for at, count := range of {
			if _, is := planned[at]; !is {
				n -= count // of no order of the file
			}
		}
		return n
	}
	explained := 0
	rows := []stage.Row{
		stage.Compare("ticks, each once", len(planned), once(ticks)),
		stage.Compare("payments, each once", len(planned), once(payments)),
		stage.Compare("payments at the bank, each once", len(planned), once(made)),
		stage.Compare("  of these in the order of the account", len(planned), orderly),
		stage.Compare("payments recorded, each once", len(planned), once(events)),
		stage.Compare("accounts with another balance", 0, wrong),
	}
	var details []stage.Row
	for _, r := range reasons {
		explained += by[r.letter]
		details = append(details, stage.Detail(r.text, by[r.letter]))
	}
	rows = append(rows, stage.Compare("deliveries that finished no item", taken-2*len(planned), explained))
	rows = append(rows, details...)
	rows = append(rows, stage.Detail("requests that reached the bank", asked), stage.Detail("payments that were dead, and mended", d.dead))
	if !stage.PrintTable(d.out, "the file says", "the store says", rows) {
		return errors.New("the books do not agree")
	}
	if d.dead == 0 || by["e"] == 0 || refused == 0 || !hung { // on a busy machine most refusals come to a session that is over
		return errors.New("the disturbances of the demo were not seen: an order that failed until it was dead, a session that was over, a handler that hung")
	}
	return d.printTwice(ctx)
}

const clockFormat = "15:04:05.000000"

// whyEnded tells why a delivery ended.
func whyEnded(e queuing.Entry) string {
	why := string(e.What)
	for _, r := range reasons {
		if r.letter == why {
			why = r.text
		}
	}
	if e.Session != 0 {
		why += fmt.Sprintf(", session %d", e.Session)
	}
	if e.Text != "" {
		why += ": " + e.Text
	}
	return why
}

// printTwice tells of an item that was delivered twice because a session was over.
func (d *standingDemo) printTwice(ctx context.Context) error {
	var found *messagestore.Message
	for m, err := range d.store.ReadCategory(ctx, "standing:payment", 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		item, err := d.service.Payments.Item(ctx, m.GlobalPosition)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(item.Log, func(e queuing.Entry) bool { return e.What == queuing.SessionOver }) {
			found = m
			fmt.Fprintf(d.out, "\nWhy was %s delivered %d times?\n", m, item.Version+1)
			fmt.Fprintf(d.out, "  %s  inserted, following %s@%d\n", m.Time.Format(clockFormat), m.Metadata.CausationStream, m.Metadata.CausationPosition)
			for _, e := range item.Log {
				fmt.Fprintf(d.out, "  %s  version %d: %s\n", e.Time.Format(clockFormat), e.Version, whyEnded(e))
			}
			fmt.Fprintf(d.out, "  version %d was completed\n", item.Version)
			break
		}
	}
	if found == nil {
		fmt.Fprintln(d.out, "\nNo payment was delivered twice because a session was over: those were all orders that were due.")
	}
	return nil
}
