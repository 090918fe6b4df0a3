package main

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/internal/demo"
)

// views name the records in the books.
const views = `
create view item as select *, data->>'order' "order", data->>'by' by from messages where category = 'standing';
create view paid as select *, data->>'order' "order", data->>'cents' cents, data->>'by' by, data->>'payer' payer from messages where category = 'payment';
create view confirmed as select *  from messages where category = 'payment:intent' and type = 'Confirmed';`

// reasons are why deliveries ended that did not finish their items, as the log of queues has them.
var reasons = []struct{ Letter, Text string }{
	{"e", "the session was over"},
	{"r", "the worker failed"},
	{"u", "given back"},
	{"f", "deferred: another had the intent"},
	{"x", "buried"},
}

// Verdict implements [demo.Show].
func (d *run) Verdict(ctx context.Context, r *demo.Run, b *demo.Books) (string, error) {
	db, schema, err := demo.OpenSQL(r.URL)
	if err != nil {
		return "", err
	}
	defer db.Close()
	b.Head("the file says", "the store says")
	b.Messages(ctx, r.URL)
	if r.OnSQLite() {
		b.Copy(ctx, db, "head", "select taken from dibs_queues")
		b.Copy(ctx, db, "log", "select what from dibs_queue_log")
	} else {
		b.Copy(ctx, db, "head", "select distinct on (queue) taken from "+schema+"queue_heads order by queue, version desc")
		b.Copy(ctx, db, "log", "select what::text what from "+schema+"queue_log")
	}
	return d.judge(b)
}

// judge compares the books, which have the store's messages, its queue and its log.
func (d *run) judge(b *demo.Books) (string, error) {
	demo.Add(b, "planned", d.orders)
	demo.Add(b, "reason", reasons)
	b.Exec(views)
	once := func(table string) string {
		return `select sum(iif(planned.account is null, -n, n = 1)) from (select "order", count(*) n from ` + table + ` group by 1) left join planned using ("order")`
	}
	n := len(d.orders)
	b.Equal("orders, each once", n, once("item"))
	b.Equal("payments, each once", n, once("paid"))
	b.Money("  their sum", b.Number("select sum(cents) from planned"), "select sum(cents) from paid")
	b.Equal("intents confirmed", n, "select count(distinct stream) from confirmed")
	b.Equal("confirmations", n, "select count(*) from confirmed")
	b.Equal("deliveries that finished no order", b.Number("select sum(taken) from head")-n, "select count(*) from log join reason on what = letter")
	for _, reason := range reasons {
		b.Detail("  "+reason.Text, "select count(*) from log where what = '"+reason.Letter+"'")
	}
	for _, by := range []string{"go", "typescript", "shell"} {
		b.Detail("orders sent by "+by, "select count(*) from item where by = '"+by+"'")
	}
	for _, by := range []string{"go", "typescript"} {
		b.Detail("payments made by "+by, "select count(*) from paid where payer = '"+by+"'")
	}
	if !d.killed || !d.stopped || b.Number("select count(distinct payer) from paid") < 2 || b.Number("select count(distinct by) from item") < 3 {
		return "", errors.New("the run was too short: it must kill a server, stop a server, make payments in two languages, and send orders in three")
	}
	return "Every order was paid once, though servers failed and clients sent everything again", nil
}
