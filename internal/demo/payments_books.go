package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/intent"
)

// The sizes of a plan of payments.
const (
	maxCopies = 6
	// plantEvery is one in how many keys comes with another amount once more.
	plantEvery = 100
)

// A paymentPlan lists the requests of each client, in their order. It follows from the file and the
// seed.
type paymentPlan struct {
	all     []payments.Payment // drawn
	seed    uint64
	sent    int // requests, but for repeats of requests that were cut off
	planted int // requests with another amount
	tasks   int
	of      [apiClients][]paymentTask
}

// A paymentTask is one client's share of a payment: several requests at once, and then one after
// the other until there is an answer.
type paymentTask struct {
	payments.Payment
	copies int
	plant  bool // and then one with another amount
}

// newPaymentPlan sends every payment one to six times, seldom six, each time from any client. All
// clients have the payments in the same order, so that the copies of one are on their way together.
func newPaymentPlan(orders []Order, seed uint64) *paymentPlan {
	p := &paymentPlan{seed: seed}
	random := rand.New(rand.NewPCG(seed, 0)) // it has to be repeatable, not secret
	for _, o := range orders {
		for _, month := range months {
			p.all = append(p.all, payments.Payment{ID: o.ID + "/" + month, Account: o.Account, To: o.To, Amount: int64(o.Amount)})
		}
	}
	random.Shuffle(len(p.all), func(i, j int) { p.all[i], p.all[j] = p.all[j], p.all[i] })
	for n, payment := range p.all {
		var copies [apiClients]int
		times := 1 + min(random.IntN(maxCopies), random.IntN(maxCopies))
		p.sent += times
		for range times {
			copies[random.IntN(apiClients)]++
		}
		plant := n%plantEvery == 0
		for i, c := range copies {
			if c == 0 {
				continue
			}
			p.of[i] = append(p.of[i], paymentTask{payment, c, plant})
			p.tasks++
			if plant {
				p.planted++
				plant = false
			}
		}
	}
	return p
}

// paymentViews name the records in the books. A call is judged by the greatest token that the bank
// had seen for its payment.
const paymentViews = `
create table intent as select *, substr(subject, length(entity) + 2) key, data->>'attempt' attempt,
  data->>'session' session from messages where category = 'payment:intent';
create index intent_key on intent (key, type);
create table judged as select c.*, p.id is null or number = 0 and token >= highest untrue, number = 0 and token < highest late from (
  select *, coalesce(max(iif(number > 0, token, null)) over (partition by payment order by rowid rows between unbounded preceding and 1 preceding), 0) highest
  from call) c left join payment p on p.id = c.payment and p.amount = c.amount and p.account = c.account;
create table keyed as select p.id, (select coalesce(max(attempt), 0) from intent where key = p.id and type = 'Reserved') attempts,
  (select count(distinct sum) from answer where key = p.id and not planted and status = 201) responses,
  (select count(*) from answer where key = p.id and not planted and status = 201) answers,
  transfers, late from payment p left join (select payment key, sum(number > 0) transfers, max(late) late from judged group by payment) on key = p.id;`

// Verdict implements [Show]: it compares the file with the payments table, the bank's log, the
// intents and the answers.
func (d *paymentsDemo) Verdict(ctx context.Context, r *Run, b *Books) (string, error) {
	calls, err := ReadLines[payments.Call](d.bankLog)
	if err != nil {
		return "", err
	}
	db, schema, err := OpenSQL(r.URL)
	if err != nil {
		return "", err
	}
	defer db.Close()
	b.Messages(ctx, r.URL)
	b.Copy(ctx, db, "paid", "select id, account, amount from "+schema+"payments")
	Add(b, "call", calls)
	Add(b, "answer", d.answers)
	intents, err := intent.New(r.Store, payments.Intents, nil)
	if err != nil {
		return "", err
	}
	open, err := intents.List(ctx, intent.Filter{})
	if err != nil {
		return "", err
	}
	lost := 0
	for _, p := range d.servers {
		lost += strings.Count(p.Errors.String(), `"message":"lease lost"`)
	}
	d.judge(b, len(open), lost)
	return fmt.Sprintf("Every payment was made once, and all its requests got one response, through %d kills and a stop", d.killed), nil
}

// judge fills the rows from the records.
func (d *paymentsDemo) judge(b *Books, open, lost int) {
	all, sum := len(d.plan.all), "select sum(amount) from payment"
	b.Head("the file says", "the books say")
	Add(b, "payment", d.plan.all)
	b.Exec("create index answer_key on answer (key); create unique index payment_id on payment (id)")
	b.Exec(paymentViews)
	b.Equal("payments in the table", all, "select count(*) from paid")
	b.Equal("rows that differ from the file", 0, `select (select count(*) from paid left join payment p using (id, account, amount) where p."to" is null)
		+ (select count(*) - count(distinct id) from paid)`)
	b.Money("sum of the table", sum, "select sum(amount) from paid")
	b.Equal("keys with exactly one Confirmed", all, "select count(*) from (select 1 from intent where type = 'Confirmed' group by key having count(*) = 1)")
	b.Equal("keys of the bank's transfers", all, "select count(distinct payment) from call where number > 0")
	b.Money("sum of the bank's transfers, each once", sum, "select sum(amount) from (select amount, min(number) from call where number > 0 group by payment)")
	b.Equal("transfers with a token that fell", 0, "select count(*) from judged where number > 0 and token < highest and not untrue")
	b.Equal("calls that the bank was wrong about", 0, "select count(*) from judged where untrue")
	b.Equal("keys with more transfers than attempts", 0, "select count(*) from keyed where transfers > attempts")
	b.Bound("late calls that the bank refused", ">=", len(d.held), "select count(*) from judged where late and not untrue")
	b.Detail("leases that servers found lost", lost)
	b.Bound("transfers repeated, at most takeovers", "<=", "select count(*) from intent where type = 'Reserved' and attempt > 1",
		"select count(*) - count(distinct payment) from call where number > 0")
	b.Equal("payments without one response for all", 0, "select count(*) from keyed where responses <> 1")
	b.Equal("reused keys refused with 422", d.plan.planted, "select count(*) from answer where planted and status = 422")
	b.Equal("answers of another kind", 0, "select count(*) from answer where status <> iif(planted, 422, 201)")
	b.Equal("leases held in the end", 0, open)
	b.Detail("requests sent", int(d.sent.Load()))
	b.Detail("replays among the answers", int(d.replayed.Load()))
	b.Detail("requests cut off by the client", int(d.cut.Load()))
	b.Detail("told that it is in progress, 409", int(d.busy.Load()))
	b.Detail("failed, or the server was killed", int(d.failed.Load()))
	b.Detail("servers killed and started again", d.killed)
	b.Equal("servers stopped, and gone on too late", 1, min(len(d.held), 1))
	b.None("select place || ' after a Confirmed' from intent i where exists (select 1 from intent where key = i.key and type = 'Confirmed' and position < i.position)")
	b.None(`select place || ' is attempt ' || attempt || ' after ' || before from (
		select *, coalesce(lag(attempt) over (partition by key order by position), 0) before from intent where type = 'Reserved') where attempt <> before + 1`)
	b.None("select place from intent where type not in ('Reserved', 'Extended', 'Released', 'Confirmed', 'Waiting')")
	d.story(b)
}

// story shows a payment with a late order that the bank refused, or that was taken over and paid
// for twice, or else the nearest to these.
func (d *paymentsDemo) story(b *Books) {
	for _, key := range b.Texts("select id from keyed order by 100 * coalesce(late, 0) + 4 * min(transfers, 2) + 2 * min(attempts, 2) + (responses = 1) desc limit 1") {
		b.Story("What became of payment "+key+"?", `
			select at, case type
				when 'Reserved' then iif(attempt > 1, 'taken over, attempt ' || attempt || ', by ', 'reserved by ') || short ||
				  ' with token ' || max((data->>'after') + 1, at) || ', for ' || (data->>'ttl') || ' ms'
				when 'Released' then 'released by ' || short || ': ' || (data->>'reason')
				when 'Confirmed' then 'confirmed by ' || short || ' with its response'
				else lower(type) || ' by ' || short end || ', ' || place text
			  from (select *, substr(session, 1, instr(session, '/')) || '…' || substr(session, -4) short from intent where key = ?1)
			union all select at, iif(number = 0, 'the bank refuses the order of ' || session || ': token ' || token || ' is too late',
			    'the bank makes transfer ' || number || ', for token ' || token) from call where payment = ?1`, key)
		b.Say("  %d requests got that response, byte for byte", b.Number("select answers from keyed where id = '"+key+"'"))
	}
}
