package main

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo"
)

// The sizes of a plan.
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
	balances map[string]int64 // of accounts, at first
	orders   []transfer.Transfer
	planted  int // with another amount
	sendings []sending
}

// A sending is one copy of an order.
type sending struct {
	transfer.Transfer
	at      int  // the place of the order among all
	place   int  // in which it is sent
	planted bool // it has another amount, under the key of an order that was accepted
}

func newPlan(orders []demo.Order, seed uint64) *plan {
	p := &plan{balances: map[string]int64{}}
	random := rand.New(rand.NewPCG(seed, 0)) // it has to be repeatable, not secret
	largest := map[string]int64{}
	for _, o := range orders {
		t := transfer.Transfer{ID: o.ID, From: o.Account, To: o.To, Amount: int64(o.Amount)}
		p.orders = append(p.orders, t)
		p.balances[t.From] += t.Amount
		largest[t.From] = max(largest[t.From], t.Amount)
	}
	for id := range p.balances {
		if p.balances[id] += 100_00; demo.Hash(id)%poorEvery == 0 {
			p.balances[id] -= 100_00 + (largest[id]+1)/2
		}
	}
	random.Shuffle(len(p.orders), func(i, j int) { p.orders[i], p.orders[j] = p.orders[j], p.orders[i] })
	for i, t := range p.orders {
		place := i
		for n := range 1 + random.IntN(maxCopies) {
			if n > 0 && random.IntN(2) == 0 {
				place = i + random.IntN(near)
			}
			p.sendings = append(p.sendings, sending{t, i, place, false})
		}
		if i%plantEvery == 0 {
			t.Amount++
			p.sendings = append(p.sendings, sending{t, i, i + 2*near, true})
			p.planted++
		}
	}
	slices.SortStableFunc(p.sendings, func(a, b sending) int { return cmp.Compare(a.place, b.place) })
	return p
}
