package postgres

import (
	"errors"
	"sync"

	"github.com/dibs-go/dibs/messagestore"
)

// fences are where this driver believes the fences of categories to be, those that
// were raised at all.
//
// A write whose answer is lost may be on its way to the server still when somebody
// asks what became of it. So a Find that does not find raises the category's fence,
// and a write says where it believed that to be when its caller came: sent before,
// it comes too late, and sent after, it is turned away once and tried again.
//
// A store that went back, by a restore or a failover, may have its fences where they were
// before. So what the store says is believed, lower or not; and a fence is raised to the
// time, so that it is nowhere that any history of the store had it.
type fences struct {
	mu sync.Mutex
	by map[messagestore.Category]int64
}

// errUnwanted answers a write whose caller is gone.
var errUnwanted = errors.New("nobody waits for it")

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

// raised reports whether a write was turned away by a fence, and remembers where
// that is now.
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
}
