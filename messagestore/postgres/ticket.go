package postgres

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// groupTimeout bounds a group, which has no caller's context, and a write that goes straight
// through, which may have a context without deadline.
const groupTimeout = 30 * time.Second

// A ticket is a write in a shard. Until it is taken its caller may leave, and then it never
// happens. If the caller leaves later, the outcome is unknown until Find resolves it by a fence.
type ticket struct {
	appends  []messagestore.Append // all or nothing
	meet     bool                  // on a conflict, answer with the messages found
	fences   []int64               // as known when the caller came
	stop     *queuing.Stop         // of a worker whose next take may go along with it, or nil
	size     int
	messages int
	state    atomic.Int32
	token    bool // it holds a token of the shard
	done     chan struct{}

	written []messagestore.Written // once done
	met     *messagestore.Conflict
	err     error
}

const (
	waiting int32 = iota
	taken
	left
)

func newTicket(appends []messagestore.Append, meet bool, fences []int64) *ticket {
	t := &ticket{appends: appends, meet: meet, fences: fences, done: make(chan struct{})}
	for _, a := range appends {
		t.messages += len(a.Records)
		for _, r := range a.Records {
			t.size += len(r.Data) + len(r.Metadata)
		}
	}
	return t
}

// begin reports whether the caller still waits. After that the caller cannot leave with a definite
// answer. Call it once there is a connection for sending: a caller that left earlier got the answer
// that nothing is written.
func (t *ticket) begin() bool {
	return t.state.CompareAndSwap(waiting, taken) || t.state.Load() == taken
}

func (t *ticket) answer(written []messagestore.Written, err error) {
	t.written, t.err = written, err
	close(t.done)
}

func (t *ticket) isAnswered() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

func (t *ticket) answerConflict(met *messagestore.Conflict) {
	t.met = met
	close(t.done)
}

// categories returns the categories of appends, each once, sorted by name.
func categories(appends []messagestore.Append) []messagestore.Category {
	all := make([]messagestore.Category, len(appends))
	for i, a := range appends {
		all[i] = a.Stream.Category()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// those returns the elements that satisfy is, in a new slice, because another goroutine or a caller
// may hold the original.
func those[T any](all []T, is func(T) bool) []T {
	kept := make([]T, 0, len(all))
	for _, one := range all {
		if is(one) {
			kept = append(kept, one)
		}
	}
	return kept
}
