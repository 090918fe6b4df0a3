package demo

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/messagestore"
)

// A book is the expected end of one account, computed from the file alone.
type book struct {
	Account  string
	Funding  account.Money
	Paid     int
	Rejected int
	Balance  account.Money
}

// keepBooks folds the file: the funding of each account and the outcome of its orders.
// Senders deliver withdrawals in any order, so the funding makes the number of rejections
// the same in every order:
//
//   - with one order, there is money for two of its three months, and a half;
//   - with several, there is money for all, unless the largest alone is more than
//     all the others of the three months: then for those, and half of the rest.
func keepBooks(orders []Order) (books []book) {
	amounts := map[string][]account.Money{}
	for _, o := range orders {
		amounts[o.Account] = append(amounts[o.Account], o.Amount)
	}
	n := len(months)
	for id, list := range amounts {
		var sum account.Money
		for _, amount := range list {
			sum += amount
		}
		largest := slices.Max(list)
		others := (sum - largest) * account.Money(n)
		switch {
		case len(list) == 1:
			left := largest / 2
			books = append(books, book{id, largest*account.Money(n-1) + left, n - 1, 1, left})
		case largest > others:
			left := (largest - others) / 2
			books = append(books, book{id, others + left, n * (len(list) - 1), n, left})
		default:
			left := account.Money(100_00)
			books = append(books, book{id, sum*account.Money(n) + left, n * len(list), 0, left})
		}
	}
	slices.SortFunc(books, func(a, b book) int { return cmp.Compare(a.Account, b.Account) })
	return books
}

// An accountPlan has the commands of each sender. It follows from the file and the seed.
type accountPlan struct {
	orders   []Order
	books    []book
	seed     uint64
	distinct int // commands, each however often it is sent
	sent     int
	often    string // a withdrawal that is sent most often

	phases [3][]sending
}

// A sending is one time that one sender sends one command.
type sending struct {
	Sender int
	Stream messagestore.StreamName
	Body   messagestore.Body
	ID     uuid.UUID // set where repeating means repeating the same write
	Origin messagestore.StreamName
}

// newAccountPlan sends every command one to five times, each time from any sender. The first phase
// opens the accounts, and the second funds them. The third has the withdrawals, and among them the
// remaining repeats of openings and deposits.
func newAccountPlan(orders []Order, seed uint64) *accountPlan {
	p := &accountPlan{orders: orders, books: keepBooks(orders), seed: seed}
	add := func(key string, first int, s sending) int {
		random := rand.New(rand.NewPCG(seed, Hash(key))) // it has to be repeatable, not secret
		times := 1 + random.IntN(5)
		for i := range times {
			phase := first
			if i > 0 && random.IntN(2) == 0 {
				phase = len(p.phases) - 1
			}
			s.Sender = random.IntN(senders)
			p.phases[phase] = append(p.phases[phase], s)
		}
		p.distinct++
		p.sent += times
		return times
	}
	for _, b := range p.books {
		stream := account.Commands.Stream(b.Account)
		add("open "+b.Account, 0, sending{Stream: stream, Body: account.Open{AccountID: b.Account, Owner: "owner of " + b.Account}})
		deposit := account.Deposit{AccountID: b.Account, DepositID: "funding-" + b.Account, Amount: b.Funding}
		add("deposit "+b.Account, 1, sending{
			Stream: stream, Body: deposit, ID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%d %s", seed, deposit.DepositID)),
		})
	}
	most := 1
	for _, o := range orders {
		for _, month := range months {
			w := account.Withdraw{AccountID: o.Account, WithdrawalID: o.ID + "/" + month, Amount: o.Amount, To: o.To}
			times := add("withdraw "+w.WithdrawalID, 2, sending{
				Stream: account.Commands.Stream(o.Account), Body: w, Origin: messagestore.Category("paymentOrder").Stream(o.ID),
			})
			if times > most {
				most, p.often = times, w.WithdrawalID
			}
		}
	}
	return p
}

// of returns the commands of a sender in a phase, in a different order for each sender.
func (p *accountPlan) of(sender, phase int) []sending {
	var mine []sending
	for _, s := range p.phases[phase] {
		if s.Sender == sender {
			mine = append(mine, s)
		}
	}
	random := rand.New(rand.NewPCG(p.seed, uint64(sender*len(p.phases)+phase))) //nolint:gosec // a few
	random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
	return mine
}

// accountViews name the messages of the component in the books.
const accountViews = `
create view command as select *, data->>'withdrawalId' withdrawal from messages where category = 'account:command';
create view copy as select *, data->>'withdrawalId' withdrawal from messages where category = 'account:command+reservation+accounts';
create view event as select *, data->>'amount' amount from messages where category = 'account';
create view actual as select subject account, sum(iif(type = 'Deposited', amount, 0)) funding, sum(type = 'Withdrawn') paid,
  sum(type = 'WithdrawalRejected') rejected, sum(case type when 'Deposited' then amount when 'Withdrawn' then -amount else 0 end) balance
  from event group by subject;`

// Verdict implements [Show]: it compares the store with the file, and shows the story of a
// withdrawal that was sent several times. "dibs explain" shows it for any reservation.
func (d *accountDemo) Verdict(ctx context.Context, r *Run, b *Books) (string, error) {
	b.Head("the file says", "the store says")
	b.Messages(ctx, r.URL)
	b.Exec(accountViews)
	Add(b, "expected", d.plan.books)
	withdrawals, byID := len(d.plan.orders)*len(months), int(d.refused.Load())
	byStream := b.Number("select (select count(*) from command where type = 'Open') - (select count(*) from event where type = 'Opened')")
	byKey := b.Number("select (select count(*) from command where type <> 'Open') - (select count(distinct stream) from copy)")
	b.Equal("commands sent", d.plan.sent, b.Number("select count(*) from command")+byID)
	b.Equal("distinct commands", d.plan.distinct, "select count(*) from (select distinct type, subject, data->>'depositId', withdrawal from command)")
	b.Equal("duplicates refused", d.plan.sent-d.plan.distinct, byID+byStream+byKey)
	b.Detail("by message id: the same write again", byID)
	b.Detail("by initiating: the account has begun", byStream)
	b.Detail("by reservation: the key is taken", byKey)
	b.Equal("reservations with exactly one winner", withdrawals+len(d.plan.books), "select count(*) from (select 1 from copy group by stream having count(*) = 1)")
	b.Equal("effects that happened exactly once", d.plan.distinct, `select count(*) from (select 1 from event
		group by coalesce('deposit ' || (data->>'depositId'), 'withdrawal ' || (data->>'withdrawalId'), 'open ' || subject) having count(*) = 1)`)
	b.Equal("withdrawals paid", "select sum(paid) from expected", "select sum(paid) from actual")
	b.Equal("withdrawals rejected", "select sum(rejected) from expected", "select sum(rejected) from actual")
	b.Equal("accounts", len(d.plan.books), "select count(*) from actual")
	b.Equal("accounts with another balance", 0, "select count(*) from (select * from expected except select * from actual)")
	b.Money("sum of all balances", "select sum(balance) from expected", "select sum(balance) from actual")
	b.Equal("processes killed and started again", 1, d.kills)
	b.None("select place from event where type not in ('Opened', 'Deposited', 'Withdrawn', 'WithdrawalRejected')")
	b.None("select place from copy where position <> 0")
	b.Story("Who won withdrawal "+d.plan.often+"?", `
		select at, (metadata->'localProperties'->>'sender') || ' sent it, ' || place || iif(place in (select cause from copy), ': won', ': refused') text
		  from command where withdrawal = ?1
		union all select at, 'copied to the first message of ' || stream from copy where withdrawal = ?1
		union all select at, type || ', ' || place from event where cause in (select place from copy where withdrawal = ?1)`, d.plan.often)
	return "Every command was handled exactly once, through a kill -9", nil
}
