package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
)

// The books are read with the clients of the three stores alone: SQL for the accounts and the
// messages, SQL for the bank's ledger, and the client of JetStream.

// Verdict implements [demo.Show].
func (d *messagingDemo) Verdict(ctx context.Context, r *demo.Run, b *demo.Books) (string, error) {
	b.Messages(ctx, r.URL)
	store, schema, err := demo.OpenSQL(r.URL)
	if err != nil {
		return "", err
	}
	defer store.Close()
	b.Copy(ctx, store, "account", "select id, balance from "+schema+"accounts")
	ledger, err := bank.Open(ctx, d.ledger())
	if err != nil {
		return "", err
	}
	defer ledger.Close()
	b.Copy(ctx, ledger, "payment", "select order_id id, number, state, at, ended from payments")
	b.Copy(ctx, ledger, "entry", "select order_id id, amount from entries")
	b.Copy(ctx, ledger, "webhook", "select copies, sent from webhooks")
	there, err := readStream(ctx, d.brokerURL())
	if err != nil {
		return "", fmt.Errorf("read JetStream: %w", err)
	}
	demo.Add(b, "there", there)
	d.judge(b)
	return fmt.Sprintf("Every order was carried out once or undone, through %d kills and a broker that was gone", d.killed), nil
}

// A sunk is a message of JetStream.
type sunk struct {
	ID, Stream string
	Position   int64
	Type, Data string
	At         time.Time
}

func readStream(ctx context.Context, broker string) (all []sunk, err error) {
	conn, err := connect(broker)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	for want := int(s.CachedInfo().State.Msgs); len(all) < want; { //nolint:gosec // some thousands
		batch, err := c.Fetch(min(want-len(all), 1000), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for m := range batch.Messages() {
			h := m.Headers()
			position, err := strconv.ParseInt(h.Get("dibs-position"), 10, 64)
			if err != nil {
				return nil, err
			}
			metadata, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			all = append(all, sunk{strings.ReplaceAll(h.Get("dibs-id"), "-", ""), h.Get("dibs-stream"), position, h.Get("dibs-type"), string(m.Data()), metadata.Timestamp})
		}
		if err := batch.Error(); err != nil {
			return nil, err
		}
		if len(all) == before {
			return nil, fmt.Errorf("%d messages of the stream do not come", want-before)
		}
	}
	return all, nil
}

// An opening is the opening of an account.
type opening struct {
	Account string
	Balance int64
}

// views name the records, order by order. The balance after an event follows from the one before.
const views = `
create view saga as select * from messages where category = 'transfer:saga';
create table event as select id, stream, subject account, position, type, data, place, at, data->>'transfer' "order", data->>'amount' amount,
  data->>'balance' balance, lag(data->>'balance') over (partition by subject order by position) before from messages where category = 'account';
create index event_id on event (id);
create index event_account on event (account, position);
create unique index orders_id on orders (id);
create table done as select o.*, coalesce(debits, 0) debits, coalesce(returns, 0) returns, coalesce(completed, 0) completed, coalesce(undone, 0) undone,
    coalesce(atbank, 0) atbank from orders o
  left join (select "order" id, sum(type = 'Debited') debits, sum(type = 'Returned') returns from event group by 1) using (id)
  left join (select subject id, sum(type = 'Completed') completed, sum(type = 'Compensated') undone from saga group by 1) using (id)
  left join (select id, sum(amount) atbank from entry group by 1) using (id);
create table arrived as select t.*, rank, e.id is null or e.stream <> t.stream or e.position <> t.position or json(e.data) <> json(t.data) odd
  from (select rowid rank, *, row_number() over (partition by id order by rowid) copy from there) t left join event e using (id) where copy = 1;`

// judge fills the rows from the records.
func (d *messagingDemo) judge(b *demo.Books) {
	var openings []opening
	for id, balance := range d.plan.balances {
		openings = append(openings, opening{id, balance})
	}
	all := len(d.plan.orders)
	demo.Add(b, "opening", openings)
	demo.Add(b, "orders", d.plan.orders)
	b.Exec(views)
	b.Money("money before and after", "select sum(balance) from opening", "select (select sum(balance) from account) + (select coalesce(sum(amount), 0) from entry)")
	b.MoneyDetail("in the accounts", "select sum(balance) from account")
	b.MoneyDetail("at the bank", "select coalesce(sum(amount), 0) from entry")
	b.Equal("orders received, each once", all, "select count(*) from messages where category = 'transfer:inbox' and type = 'Received'")
	b.Equal("sagas started", all, "select count(*) from saga where type = 'Started'")
	b.Equal("sagas open", 0, "select count(*) from (select 1 from saga group by subject having sum(type in ('Completed', 'Compensated')) <> 1)")
	b.Equal("orders paid once and debited once, or neither", all, "select count(*) from done where atbank = amount and debits - returns = 1 or atbank = 0 and debits = returns")
	b.Detail("paid and debited", "select count(*) from done where atbank = amount and debits - returns = 1")
	b.Detail("neither", "select count(*) from done where atbank = 0 and debits = returns")
	b.Equal("orders torn", 0, "select count(*) from done where not (atbank = amount and debits - returns = 1 or atbank = 0 and debits = returns)")
	b.Equal("orders that the bank paid twice", 0, "select count(*) from (select 1 from entry where amount > 0 group by id having count(*) > 1)")
	b.Equal("orders debited or given back twice", 0, "select count(*) from done where debits > 1 or returns > 1")
	b.Equal("sagas whose end the bank denies", 0, "select count(*) from done where (completed = 1) <> (atbank = amount)")
	b.Equal("amounts that differ from the file", 0, `select
		(select count(*) from event e left join orders o on o.id = e."order" where type <> 'Opened' and (o."from" is not account or o.amount is not e.amount)) +
		(select count(*) from entry e left join orders o using (id) where o.amount is not abs(e.amount))`)
	b.Equal("rows that differ from the last event", 0, "select count(*) from account a where balance is not (select balance from event where account = a.id order by position desc limit 1)")
	b.Equal("accounts", len(openings), "select count(*) from account")
	b.Equal("events missing in JetStream", 0, "select count(*) from event where id not in (select id from there)")
	b.Equal("events there that were rolled back", 0, "select count(*) from arrived where odd")
	b.Equal("events there twice", 0, "select count(*) - count(distinct id) from there")
	b.Equal("events there out of order", 0, `select count(*) from (
		select position, lag(position, 1, -1) over (partition by stream order by rank) before from arrived where not odd) where position <> before + 1`)
	b.Detail("events there", "select count(*) from there")
	b.Equal("webhooks unsent", 0, "select coalesce(sum(copies), 0) from webhook")
	b.Equal("reused keys refused with 422", d.plan.planted, int(d.turned.Load()))
	b.Equal("and recorded as refused", d.plan.planted, "select count(*) from messages where category = 'transfer:inbox+refused'")
	b.Equal("answers of another kind", 0, len(d.odd))
	b.Equal("times that JetStream was gone", 1, d.gone)
	b.Detail("refused by the bank", "select count(*) from payment where state = 'refused'")
	b.Detail("cancelled before the bank had paid", "select count(*) from payment where state = 'cancelled'")
	b.Detail("cancelled when the bank had paid", "select count(*) from payment where state = 'reversed'")
	b.Detail("webhooks sent", "select coalesce(sum(sent), 0) from webhook")
	b.Detail("requests sent", int(d.sent.Load()))
	b.Detail("sent again, after a kill", int(d.again.Load()))
	b.Detail("processes killed and started again", d.killed)
	b.None(`select place || ', a ' || type || ' of ' || coalesce(amount, 0) || ', leaves ' || coalesce(balance, '?') || ' of ' || coalesce(before, '?') from event
		where not coalesce(case type when 'Opened' then before is null and balance = (select balance from opening o where o.account = event.account)
			when 'Debited' then balance = before - amount when 'Returned' then balance = before + amount end, 0)`)
	slices.Sort(d.odd)
	for _, odd := range d.odd {
		b.Odd(odd)
	}
	d.story(b)
}

// story shows, from all three stores, the undone transfer with the longest story: the bank had paid
// it.
func (d *messagingDemo) story(b *demo.Books) {
	longest := b.Texts(`select id from done left join payment using (id) where undone > 0
		order by returns + case state when 'reversed' then 6 when 'cancelled' then 4 when 'refused' then 2 else 0 end desc, id limit 1`)
	for _, id := range longest {
		b.Story("What became of order "+id+"?", `
			select at, told || ', ' || place text from (select *, case category
			  when 'transfer:inbox' then iif(subject = ?1, 'the order is received', null)
			  when 'transfer:outgoing' then iif(subject = ?1, 'to the bank: ' || type, null)
			  when 'bank:inbox' then iif(subject like '%/' || ?1, 'the bank says: ' || substr(subject, 1, instr(subject, '/') - 1), null)
			  when 'transfer:saga' then iif(subject = ?1, concat_ws(' ', 'the saga:', type, nullif(data->>'for', ''), data->>'step', data->>'reason', data->>'error'), null)
			  when 'account' then iif(data->>'transfer' = ?1, lower(type) || printf(', and %d.%02d left', (data->>'balance') / 100, (data->>'balance') % 100), null)
			  end told from messages) where told is not null
			union all select at, 'JetStream has the ' || type from there where data->>'transfer' = ?1
			union all select at, case state when 'reversed' then 'the bank pays, with number ' || number when 'cancelled' then 'the bank cancels the order, which it has not paid'
			  else 'the bank has it ' || state end from payment where id = ?1
			union all select ended, 'the bank takes the payment back' from payment where id = ?1 and state = 'reversed'`, id)
	}
}
