package queues

import (
	"cmp"
	"slices"
	"sort"
)

// staged holds the items that were staged against the rows of their transactions.
func (c *checker) staged() {
	type transaction struct {
		process string
		op      int64
	}
	rows, committed := map[transaction]int{}, map[string]int{} // of a transaction, and of an id
	for _, row := range c.Inserted {
		rows[transaction{row.Process, row.Op}]++
		committed[row.ID]++
	}
	before := c.answered()
	tried := map[string]int{} // transactions that have staged an id
	for _, call := range c.Calls {
		ids := map[string]bool{}
		for _, n := range call.New {
			ids[n.ID] = ids[n.ID] || call.Call == Stage && !n.Back
		}
		for id, staged := range ids {
			if staged {
				tried[id]++
			}
		}
	}
	named := map[string]bool{} // streams of unique names that were looked at
	for _, call := range c.Calls {
		if call.Call != Stage {
			continue
		}
		want, got := 0, rows[transaction{call.Process, call.Op}]
		for _, n := range call.New {
			if !n.Back {
				want++
			}
		}
		switch a := call.Answer.Answer; {
		case a == OK && got != want:
			c.Broke(Staged, "the transaction %d of %s was committed with %d rows, and has %d", call.Op, call.Process, want, got)
		case (a == Undone || a == Reused || a == Failed) && got > 0:
			c.Broke(Staged, "the transaction %d of %s was rolled back (%s), and has %d rows", call.Op, call.Process, a, got)
		case got != 0 && got != want:
			c.Broke(Staged, "the transaction %d of %s has %d of its %d rows", call.Op, call.Process, got, want)
		}
		var last *Message
		met := map[string]bool{}
		for _, n := range call.New {
			m := c.there[n.ID]
			if m != nil && committed[n.ID] == 0 {
				c.Broke(Staged, "item %d of %s was staged by %s, and no row of it was committed (%s)", m.Position, m.Stream, call.Process, call.Answer.Answer)
			}
			if got == 0 || n.Back {
				continue
			}
			if n.Unique {
				if !named[n.Stream] && len(c.byStream[n.Stream]) > 1 {
					c.Broke(Staged, "%d items are in %s, which has a unique name", len(c.byStream[n.Stream]), n.Stream)
				}
				named[n.Stream] = true
				m = nil
				if first := c.byStream[n.Stream][0]; first != nil {
					m = first.Message
				}
			}
			switch {
			case m == nil:
				c.Broke(Staged, "the row of %s is there, which %s staged for %s, and its item is not", n.ID, call.Process, n.Stream)
				continue
			case m.Stream != n.Stream || m.N != n.N:
				c.Broke(Staged, "%s was staged with %d for %s and committed, and item %d of %s has %d", n.ID, n.N, n.Stream, m.Position, m.Stream, m.N)
			}
			if m.ID != n.ID || tried[n.ID] > 1 || met[n.ID] { // another transaction may have been first, or it was itself
				continue
			}
			met[n.ID] = true
			if last != nil && last.Position > m.Position {
				c.Broke(Placed, "%s staged item %d of %s after item %d, in one transaction", call.Process, m.Position, m.Stream, last.Position)
			}
			last = m
			if sent := call.Answer.Sent; sent > 0 {
				if p := before(sent - slack); p > m.Position {
					c.Broke(Placed, "item %d of %s was staged by %s, and item %d, behind it, was inserted before COMMIT", m.Position, m.Stream, call.Process, p)
				}
			}
		}
	}
}

// answered returns a function that tells the highest position of an item whose insertion was answered before a time.
func (c *checker) answered() func(at int64) int64 {
	type known struct{ at, highest int64 }
	var all []known
	for _, call := range c.Calls {
		if !call.inserts() || call.Answer.Answer != OK {
			continue
		}
		for _, n := range call.New {
			if m := c.there[n.ID]; m != nil && !n.Back {
				all = append(all, known{call.End, m.Position})
			}
		}
	}
	slices.SortFunc(all, func(a, b known) int { return cmp.Compare(a.at, b.at) })
	for i := range all {
		if i > 0 {
			all[i].highest = max(all[i].highest, all[i-1].highest)
		}
	}
	return func(at int64) int64 {
		i := sort.Search(len(all), func(i int) bool { return all[i].at >= at })
		if i == 0 {
			return 0
		}
		return all[i-1].highest
	}
}
