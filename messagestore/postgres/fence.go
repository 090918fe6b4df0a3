package postgres

import (
	"errors"
	"slices"
	"sync"

	"github.com/dibs-go/dibs/messagestore"
)

// fences are the positions of the categories' fences that were raised, as this driver believes
// them to be.
//
// A write whose answer is lost may still be on its way to the server when its caller resolves
// it. So a Find that does not find raises the category's fence, and each write carries the
// fence that the driver believed in when the caller came. A write that was sent before the
// Find is then refused. A write that was sent after it is refused once, and tried again with
// the fence that the refusal names.
//
// After a rollback of the store, by a restore or a failover, fences may be lower again. So the
// driver believes the store whether its fence is lower or not. A fence is raised to the
// current time, so that no history of the store has had it before.
type fences struct {
	mu sync.Mutex
	by map[messagestore.Category]int64

	doubtful map[messagestore.Category]bool // a Find of this driver has raised it since
	shared   map[messagestore.Category]bool // a transaction of this driver has shared the category's lock
}

// errUnwanted is the error of a write whose caller has left.
var errUnwanted = errors.New("its caller has left")

// of returns the fences for a write to appends.
func (f *fences) of(appends []messagestore.Append) []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := make([]int64, len(appends))
	for i, a := range appends {
		at[i] = f.by[a.Stream.Category()]
	}
	return at
}

// raised reports whether a write was refused by a fence, and learns the fence.
func (f *fences) raised(answers []answer) bool {
	if len(answers) != 1 || answers[0].outcome != "fenced" {
		return false
	}
	f.learn(messagestore.StreamName(answers[0].stream).Category(), int64(answers[0].version))
	return true
}

func (f *fences) learn(category messagestore.Category, fence int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[messagestore.Category]int64{}
	}
	f.by[category] = fence
	delete(f.doubtful, category)
}

// doubt records that a fence was raised to an unknown position.
func (f *fences) doubt(category messagestore.Category) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.doubtful == nil {
		f.doubtful = map[messagestore.Category]bool{}
	}
	f.doubtful[category] = true
}

// inDoubt reports whether the fence of one of the categories is in doubt.
func (f *fences) inDoubt(appends []messagestore.Append) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(appends, func(a messagestore.Append) bool { return f.doubtful[a.Stream.Category()] })
}

// trust ends the doubt: a write with these fences was not refused by one.
func (f *fences) trust(appends []messagestore.Append) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range appends {
		delete(f.doubtful, a.Stream.Category())
	}
}

// marked reports of each append whether its category is marked as one whose lock is shared. A store
// that was put back may have lost the mark: a write that finds that out is refused.
func (f *fences) marked(appends []messagestore.Append) []bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	marked := make([]bool, len(appends))
	for i, a := range appends {
		marked[i] = f.shared[a.Stream.Category()]
	}
	return marked
}

// mark records that a transaction with these appends has been committed.
func (f *fences) mark(appends []messagestore.Append) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shared == nil {
		f.shared = map[messagestore.Category]bool{}
	}
	for _, a := range appends {
		f.shared[a.Stream.Category()] = true
	}
}

// unmark forgets the marks: one may be gone.
func (f *fences) unmark(appends []messagestore.Append) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range appends {
		delete(f.shared, a.Stream.Category())
	}
}
