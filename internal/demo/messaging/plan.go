package main

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo"
)

const (
	maxCopies = 5

	// near is how far apart the copies of an order are, in orders.
	near = 40

	// plantEvery is one in how many orders comes with another amount once more.
	plantEvery = 100

	// poorEvery is one in how many accounts has not enough money for all its orders.
	poorEvery = 12
)

// A plan lists the requests, in their order. It follows from the file and the seed.
type plan struct {
	Balances map[string]int64 // of accounts, at first
	Money    int64            // their sum
	Orders   map[string]transfer.Transfer
	Sent     int // copies
	Planted  int // with another amount

	// Open are, in a part of a plan, the orders that were sent and have not come to their end.
	Open map[string]transfer.Transfer

	sendings []sending
}

// A sending is one copy of an order.
type sending struct {
	transfer.Transfer
	At      int  // the place of the order among all
	Planted bool // it has another amount, under the key of an order that was accepted
}

func newPlan(orders []demo.Order, seed uint64) *plan {
	p := &plan{Balances: map[string]int64{}, Orders: map[string]transfer.Transfer{}}
	random := rand.New(rand.NewPCG(seed, 0)) // it has to be repeatable, not secret
	all := make([]transfer.Transfer, len(orders))
	largest := map[string]int64{}
	for i, o := range orders {
		t := transfer.Transfer{ID: o.ID, From: o.Account, To: o.To, Amount: int64(o.Amount)}
		all[i], p.Orders[o.ID] = t, t
		p.Balances[t.From] += t.Amount
		largest[t.From] = max(largest[t.From], t.Amount)
	}
	for id := range p.Balances {
		if p.Balances[id] += 100_00; hash(id)%poorEvery == 0 {
			p.Balances[id] -= 100_00 + (largest[id]+1)/2
		}
		p.Money += p.Balances[id]
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	type placed struct {
		sending
		place int
	}
	var copies []placed
	for i, t := range all {
		first := i
		for n := range 1 + random.IntN(maxCopies) {
			if n > 0 && random.IntN(2) == 0 {
				first = i + random.IntN(near)
			}
			copies = append(copies, placed{sending{Transfer: t, At: i}, first})
			p.Sent++
		}
		if i%plantEvery == 0 {
			t.Amount++
			copies = append(copies, placed{sending{Transfer: t, At: i, Planted: true}, i + 2*near})
			p.Planted++
		}
	}
	slices.SortStableFunc(copies, func(a, b placed) int { return a.place - b.place })
	for _, c := range copies {
		p.sendings = append(p.sendings, c.sending)
	}
	return p
}

// part returns the plan of the orders that were sent, if the limit ended before all were: of the done
// ones, and of the others, which are open.
func (p *plan) part(sent map[string]bool) *plan {
	part := &plan{Balances: p.Balances, Money: p.Money, Orders: map[string]transfer.Transfer{}, Open: map[string]transfer.Transfer{}}
	for id, done := range sent {
		if done {
			part.Orders[id] = p.Orders[id]
			continue
		}
		part.Open[id] = p.Orders[id]
	}
	return part
}

// find returns an order that was sent, and whether it is open.
func (p *plan) find(id string) (order transfer.Transfer, open, ok bool) {
	if order, ok = p.Open[id]; ok {
		return order, true, true
	}
	order, ok = p.Orders[id]
	return order, false, ok
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s)) // a hash takes every write
	return h.Sum64()
}
