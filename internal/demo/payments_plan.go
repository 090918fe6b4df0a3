package demo

import (
	"maps"
	"math/rand/v2"

	"github.com/dibs-go/dibs/examples/payments"
)

const (
	maxCopies = 6
	// plantEvery is one in how many keys comes with another amount once more.
	plantEvery = 100
)

// A paymentPlan lists the requests of each client, in their order. It follows from the file and
// the seed, so every process computes the same plan.
type paymentPlan struct {
	Payments map[string]payments.Payment
	Sum      int64
	Sent     int // requests, but for repeats of requests that were cut off
	Planted  int // requests with another amount
	Tasks    int
	Open     map[string]payments.Payment // in a part of a plan: those without an answer

	tasks [apiClients][]paymentTask
	order []string // of the keys, drawn
}

// A paymentTask is one client's share of one payment: so many requests at once, then until there
// is an answer one after the other.
type paymentTask struct {
	payments.Payment
	Copies int
	Plant  bool // and then one with another amount
}

// newPaymentPlan sends every payment one to six times, seldom six, each time from any client. All
// clients have the payments in the same order, so that the copies of one are on their way together.
func newPaymentPlan(orders []Order, seed uint64) *paymentPlan {
	p := &paymentPlan{Payments: map[string]payments.Payment{}}
	random := rand.New(rand.NewPCG(seed, 0)) // it has to be repeatable, not secret
	var all []payments.Payment
	for _, o := range orders {
		for _, month := range months {
			all = append(all, payments.Payment{ID: o.ID + "/" + month, Account: o.Account, To: o.To, Amount: int64(o.Amount)})
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for n, payment := range all {
		p.Payments[payment.ID] = payment
		p.order = append(p.order, payment.ID)
		p.Sum += payment.Amount
		var copies [apiClients]int
		times := 1 + min(random.IntN(maxCopies), random.IntN(maxCopies))
		p.Sent += times
		for range times {
			copies[random.IntN(apiClients)]++
		}
		plant := n%plantEvery == 0
		for i, c := range copies {
			if c == 0 {
				continue
			}
			p.tasks[i] = append(p.tasks[i], paymentTask{payment, c, plant})
			p.Tasks++
			if plant {
				p.Planted++
				plant = false
			}
		}
	}
	return p
}

// part returns the plan of the payments that were answered, if the limit ended before all were.
func (p *paymentPlan) part(answers map[string]map[string]int) *paymentPlan {
	part := &paymentPlan{Payments: map[string]payments.Payment{}, Open: map[string]payments.Payment{}, Planted: p.Planted, Tasks: p.Tasks}
	for _, key := range p.order {
		payment := p.Payments[key]
		if len(answers[key]) == 0 {
			part.Open[key] = payment
			continue
		}
		part.Payments[key] = payment
		part.order = append(part.order, key)
		part.Sum += payment.Amount
	}
	return part
}

// find returns a payment, and whether it is one without an answer.
func (p *paymentPlan) find(key string) (payment payments.Payment, open, ok bool) {
	if payment, ok = p.Open[key]; ok {
		return payment, true, true
	}
	payment, ok = p.Payments[key]
	return payment, false, ok
}

// closed returns the counts of the payments that are not open.
func (p *paymentPlan) closed(counts map[string]int) map[string]int {
	counts = maps.Clone(counts)
	for key := range p.Open {
		delete(counts, key)
	}
	return counts
}
