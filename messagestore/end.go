package messagestore

import (
	"context"
	"time"
)

// PositionAt returns the global position from which the messages of category were written at t or
// later, by the store's clock, or the end without such messages. Reset a consumer to it to handle
// everything since t again.
//
// Times within a category follow the positions, with small exceptions: clocks are set back, and
// clients of message-db date a message with the beginning of their transaction. So PositionAt steps
// back from the position that it found while there are messages of t or later, and stops after 100
// in a row that are before t. The position may be earlier than necessary, and is hardly ever later.
func (s *Store) PositionAt(ctx context.Context, category Category, t time.Time) (GlobalPosition, error) {
	end, err := s.End(ctx, category)
	if err != nil {
		return 0, err
	}
	var low GlobalPosition
	for high := end; low < high; {
		middle := low + (high-low)/2
		m, err := s.firstOf(ctx, CategoryQuery{Category: category, From: middle})
		switch {
		case err != nil:
			return 0, err
		case m == nil || !m.Time.Before(t):
			high = middle
		default:
			low = m.GlobalPosition.Next()
		}
	}
	at, err := s.stepBack(ctx, category, low, t)
	if err != nil || at >= end {
		return at, err
	}
	m, err := s.firstOf(ctx, CategoryQuery{Category: category, From: at})
	if err != nil || m == nil {
		return at, err
	}
	return m.GlobalPosition, nil
}

// calmBefore is how many messages in a row must be before a time for [Store.PositionAt] to look no
// further back.
const calmBefore = 100

// stepBack returns the position of the first message of t or later that is before at, or at. It
// stops looking after calmBefore messages in a row that are before t.
func (s *Store) stepBack(ctx context.Context, category Category, at GlobalPosition, t time.Time) (GlobalPosition, error) {
	width := GlobalPosition(calmBefore)
	for at > 0 {
		from := max(0, at-width)
		var calm int
		found := GlobalPosition(-1)
		q := CategoryQuery{Category: category, From: from, Limit: calmBefore}
	window:
		for more := true; more; {
			page, err := s.ReadCategoryPage(ctx, q)
			if err != nil {
				return 0, err
			}
			for _, m := range page.Messages {
				if m.GlobalPosition >= at {
					break window
				}
				if !m.Time.Before(t) {
					found = m.GlobalPosition
					break window
				}
				calm++
			}
			q.From, more = page.Next, page.More
		}
		switch {
		case found >= 0:
			at, width = found, calmBefore
		case calm >= calmBefore || from == 0:
			return at, nil
		default:
			width *= 2
		}
	}
	return at, nil
}

// End returns the global position after the last message of category, or 0 if it is empty. It takes
// some fifty reads of one message: it steps forward in growing steps, and then halves the gap
// between the last message that it found and the first position without one after it.
func (s *Store) End(ctx context.Context, category Category) (GlobalPosition, error) {
	next := func(from GlobalPosition) (GlobalPosition, bool, error) {
		// If the query began at from, it could return a message there although an earlier write is
		// still under way.
		page, err := s.ReadCategoryPage(ctx, CategoryQuery{Category: category, From: max(0, from-1), Limit: 2})
		for _, m := range page.Messages {
			if m.GlobalPosition >= from {
				return m.GlobalPosition, true, err
			}
		}
		return 0, false, err
	}
	last, found, err := next(0)
	if err != nil || !found {
		return 0, err
	}
	const far = GlobalPosition(1) << 62
	empty, step := far, GlobalPosition(1)
	for last+1 < empty {
		// Step forward until there is no message, then halve the gap.
		probe := last + step
		if empty < far || probe >= far || probe < last {
			probe = last + (empty-last)/2
		}
		at, found, err := next(probe)
		switch {
		case err != nil:
			return 0, err
		case found:
			last, step = at, step*2
		default:
			empty = probe
		}
	}
	return last + 1, nil
}

// firstOf returns the first message for q, or nil.
func (s *Store) firstOf(ctx context.Context, q CategoryQuery) (*Message, error) {
	q.Limit = 1
	for {
		page, err := s.ReadCategoryPage(ctx, q)
		switch {
		case err != nil:
			return nil, err
		case len(page.Messages) > 0:
			return page.Messages[0], nil
		case !page.More:
			return nil, nil
		}
		q.From = page.Next
	}
}
