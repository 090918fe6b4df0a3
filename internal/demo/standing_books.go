package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// The verdict reads only messages and tables, and does not call the queue, its schedules or the
// example.

// A planned is an expected payment.
type planned struct {
	Order, Account, Month string
	Cents                 int64
}

// plan returns the payments that the schedules ask for: on the day of each order, at six in the
// morning in Prague, from when the order was set up on.
func (d *standingDemo) plan(ctx context.Context) (all []planned, err error) {
	prague, err := time.LoadLocation("Europe/Prague")
	if err != nil {
		return nil, err
	}
	by := map[string]Order{}
	for _, o := range d.orders {
		by[o.ID] = o
	}
	for m, err := range d.run.Store.ReadCategory(ctx, "standing:schedule", 0, messagestore.Filter{}) {
		if err != nil {
			return nil, err
		}
		var set struct {
			Name string
			From time.Time
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
				all = append(all, planned{o.ID, o.Account, at.Format("2006-01"), int64(o.Amount)})
			}
		}
	}
	return all, nil
}

// reasons are why deliveries ended that did not finish their items, as the log of queues has them.
var reasons = []struct{ Letter, Text string }{
	{"e", "the session was over"},
	{"r", "the handler failed, or was abandoned"},
	{"u", "given back unhandled"},
	{"f", "deferred"},
	{"x", "buried"},
}

// standingViews name the records in the books. A tick's month is the one in which its time is in
// Prague, where six in the morning is on the same day as in UTC.
const standingViews = `
create view tick as select data->>'order' "order", strftime('%Y-%m', (metadata->>'tickAt') / 1000000, 'unixepoch') month from messages where category = 'standing';
create view payment as select *, data->>'order' "order", data->>'month' month from messages where category = 'standing:payment';
create view event as select *, data->>'order' "order", data->>'month' month, data->>'cents' cents from messages where category = 'account';
create index planned_order on planned ("order", month);`

// Verdict implements [Show].
func (d *standingDemo) Verdict(ctx context.Context, r *Run, b *Books) (string, error) {
	all, err := d.plan(ctx)
	if err != nil {
		return "", err
	}
	db, schema, err := OpenSQL(r.URL)
	if err != nil {
		return "", err
	}
	defer db.Close()
	b.Head("the file says", "the store says")
	b.Messages(ctx, r.URL)
	if r.OnSQLite() {
		b.Copy(ctx, db, "head", "select taken from dibs_queues")
		b.Copy(ctx, db, "log", "select position, version, what, session, at, text from dibs_queue_log")
	} else {
		b.Copy(ctx, db, "head", "select distinct on (queue) taken from "+schema+"queue_heads order by queue, version desc")
		b.Copy(ctx, db, "log", "select position, version, what::text what, coalesce(session, 0) session, (extract(epoch from at) * 1000000)::bigint at, coalesce(text, '') text from "+schema+"queue_log")
	}
	Add(b, "planned", all)
	Add(b, "made", d.bank.made)
	Add(b, "reason", reasons)
	b.Exec(standingViews)
	// The rows of the plan that exist once, minus all rows that are not in the plan.
	once := func(table string) string {
		return fmt.Sprintf(`select sum(iif(planned.account is null, -n, n = 1)) from (select "order", month, count(*) n from %s group by 1, 2) left join planned using ("order", month)`, table)
	}
	b.Equal("ticks, each once", len(all), once("tick"))
	b.Equal("payments, each once", len(all), once("payment"))
	b.Equal("payments at the bank, each once", len(all), once("made"))
	b.Equal("  of these in the order of the account", len(all), `select sum(position = before + 1) from (
		select position, coalesce(lag(position) over (partition by account order by rowid), -1) before from made)`)
	b.Equal("payments recorded, each once", len(all), once("event"))
	b.Equal("accounts with another balance", 0, `select count(*) from (select account, sum(cents) owed from planned group by 1) full join
		(select subject account, sum(cents) balance from event group by 1) using (account) where owed is not balance`)
	b.Equal("deliveries that finished no item", b.Number("select sum(taken) from head")-2*len(all), "select count(*) from log join reason on what = letter")
	count := map[string]int{}
	for _, reason := range reasons {
		count[reason.Letter] = b.Number("select count(*) from log where what = '" + reason.Letter + "'")
		b.Detail(reason.Text, count[reason.Letter])
	}
	b.Detail("requests that reached the bank", d.bank.asked)
	b.Detail("payments that were dead, and mended", d.dead)
	// A session that was over may have had orders that were due only.
	for _, m := range b.Texts("select payment.place from log join payment on global = log.position where what = 'e' order by global limit 1") {
		b.Story("Why was "+m+" delivered more than once?", `
			select at, 'inserted, following ' || cause text from payment where place = ?1
			union all select log.at, 'version ' || log.version || ': ' || reason.text || iif(session, ', session ' || session, '') || iif(log.text <> '', ': ' || log.text, '')
			  from log join payment on global = log.position join reason on letter = what where place = ?1`, m)
	}
	if d.dead == 0 || count["e"] == 0 || d.bank.refused == 0 || !d.bank.hung { // on a busy machine most refusals come to a session that is over
		return "", errors.New("the disturbances of the demo were not seen: an order that failed until it was dead, a session that was over, a handler that hung")
	}
	return "Every payment was made once, in the order of its account, and every delivery that finished no item has its reason", nil
}
