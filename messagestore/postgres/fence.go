package postgres

import (
	"errors"
	"slices"
	"sync"

	"github.com/dibs-go/dibs/messagestore"
)

// fences are the raised fences of the categories, as far as this driver knows.
//
// If the answer to a write is lost, the write may still be on its way to the server when its caller
// resolves it. So a Find that does not find a message raises the category's fence, and each write
// carries the fence that the driver knew when the caller came. The server then refuses a write that
// was sent before the Find. A write that was sent after it may be refused once, and is tried again
// with the fence that the refusal names.
//
// After a restore or a failover fences may be lower again, so the driver accepts the store's fence
// even if it is lower. A fence is raised to the current time, so that its value is new in every
// history of the store.
type fences struct {
	mu sync.Mutex
	by map[messagestore.Category]int64

	doubtful map[messagestore.Category]bool // a Find of this driver has raised the fence since
	shared   map[messagestore.Category]bool // a transaction of this driver has shared the category's lock
}

// errUnwanted is the error of a write after its caller has left.
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

// raised reports whether a fence refused a write, and stores the fence.
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

// inDoubt reports whether the fence of any of the categories is in doubt.
func (f *fences) inDoubt(appends []messagestore.Append) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(appends, func(a messagestore.Append) bool { return f.doubtful[a.Stream.Category()] })
}

// trust ends the doubt: no fence has refused a write with these fences.
func (f *fences) trust(appends []messagestore.Append) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range appends {
		delete(f.doubtful, a.Stream.Category())
	}
}

// marked reports for each append whether the database has marked its category as having a shared
// lock. A restored store may have lost the mark: it then refuses the write.
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

// unmark forgets the marks, because the store may have lost one.
func (f *fences) unmark(appends []messagestore.Append) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range appends {
		delete(f.shared, a.Stream.Category())
	}
}
