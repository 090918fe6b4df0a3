package history

import (
	"fmt"
	"iter"
	"math"
	"slices"
)

// Never is the end of an operation that has none.
const Never = math.MaxInt64

// An Operation is an invoke and its end together: the arguments and the reply.
type Operation struct {
	// Event is the invoke, with the Kind, Class, Actual and Note of the end, and the Version, Global
	// and Duplicate of each append as they were answered. Its Kind is Info if there is no end. Its
	// Time is the time of the invoke.
	Event

	// End is when it ended, or [Never]. An operation of unknown outcome may still happen
	// after its end.
	End int64

	// Answer are the end's appends: the messages of a read, the stream of a conflict.
	Answer []Append
}

// Operations yields the operations of the file at path: each when it ends, and after them the operations
// without an end, in the order in which they began. A caller may keep what it gets. Operations itself has
// in memory only the ones in flight.
func Operations(path string) iter.Seq2[*Operation, error] {
	return func(yield func(*Operation, error) bool) {
		open := map[uint64]*Operation{}
		for e, err := range Events(path) {
			if err != nil {
				yield(nil, err)
				return
			}
			if e.Kind == Invoke {
				if open[e.Op] != nil {
					yield(nil, fmt.Errorf("%s: operation %d begins twice", path, e.Op))
					return
				}
				open[e.Op] = &Operation{Event: *e, End: Never}
				continue
			}
			o := open[e.Op]
			delete(open, e.Op)
			if o == nil {
				o = &Operation{Event: *e}
			} else if err := o.end(e); err != nil {
				yield(nil, fmt.Errorf("%s: %w", path, err))
				return
			}
			o.End = e.Time
			if !yield(o, nil) {
				return
			}
		}
		left := make([]*Operation, 0, len(open))
		for _, o := range open {
			o.Kind = Info
			left = append(left, o)
		}
		slices.SortFunc(left, func(a, b *Operation) int { return int(int64(a.Op) - int64(b.Op)) })
		for _, o := range left {
			if !yield(o, nil) {
				return
			}
		}
	}
}

func (o *Operation) end(e *Event) error {
	if e.Func != o.Func {
		return fmt.Errorf("operation %d begins as %s and ends as %s", e.Op, o.Func, e.Func)
	}
	o.Kind, o.Actual, o.Note, o.Answer = e.Kind, e.Actual, e.Note, e.Appends
	if e.Class != "" {
		o.Class = e.Class
	}
	if o.Func != Write && o.Func != WriteTx && o.Func != Resolve || e.Kind != OK || len(e.Appends) == 0 {
		return nil
	}
	if len(e.Appends) != len(o.Appends) {
		return fmt.Errorf("operation %d writes to %d streams and is answered for %d", e.Op, len(o.Appends), len(e.Appends))
	}
	for i := range o.Appends {
		answer := &e.Appends[i]
		if answer.Stream != o.Appends[i].Stream {
			return fmt.Errorf("operation %d writes to %s and is answered for %s", e.Op, o.Appends[i].Stream, answer.Stream)
		}
		o.Appends[i].Version, o.Appends[i].Global, o.Appends[i].Duplicate = answer.Version, answer.Global, answer.Duplicate
	}
	return nil
}
