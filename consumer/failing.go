package consumer

import (
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
)

// failingInterval is the shortest time between two checkpoints that are written only to store
// failing messages. A message that succeeds at its second attempt is finished by then, and costs no
// checkpoint.
const failingInterval = time.Second

// A failing holds the failing messages of a run. They are stored with each checkpoint, for
// operators. The lock of progress guards it. For a message that does not fail, the only cost is a
// look at the length of a map.
type failing struct {
	messages  map[messagestore.GlobalPosition]checkpoint.Failure
	changes   int64
	changedAt time.Time // since when it differs from the stored state, zero if it does not
	stored    bool      // a failing message is stored, or may be
}

// newFailing starts with the failures that were found with the checkpoint.
func newFailing(p *checkpoint.Place) failing {
	f := failing{messages: map[messagestore.GlobalPosition]checkpoint.Failure{}, stored: len(p.Failing) > 0}
	for _, found := range p.Failing {
		f.messages[found.GlobalPosition] = found
	}
	return f
}

// changed notes that the failing messages differ from the stored ones.
func (f *failing) changed() {
	f.changes++
	if f.changedAt.IsZero() {
		f.changedAt = time.Now()
	}
	if len(f.messages) == 0 && !f.stored {
		f.changedAt = time.Time{} // what failed has passed before it was stored
	}
}

// remove removes a message that is finished, and reports whether a checkpoint has to store that.
func (f *failing) remove(at messagestore.GlobalPosition) (wake bool) {
	if len(f.messages) == 0 {
		return false
	}
	if _, fails := f.messages[at]; !fails {
		return false
	}
	delete(f.messages, at)
	f.changed()
	return !f.changedAt.IsZero()
}

// toStore returns the failing messages at a position. From now on they may be stored, even if the
// write fails.
func (f *failing) toStore(position messagestore.GlobalPosition) checkpoint.Failing {
	var all []checkpoint.Failure
	for at, m := range f.messages {
		if at < position { // a run before this has left it, and this one did not deliver it
			delete(f.messages, at)
			continue
		}
		all = append(all, m)
	}
	f.stored = f.stored || len(all) > 0
	return checkpoint.Failing{First: checkpoint.Oldest(all), Count: len(all)}
}

// failed records the failure of a handler. Earlier failures of the message count, even in earlier
// runs.
func (p *progress) failed(failure checkpoint.Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, is := p.failing.messages[failure.GlobalPosition]; is && before.MessageID == failure.MessageID {
		failure.Attempts, failure.FirstFailedAt = before.Attempts+1, before.FirstFailedAt
	}
	p.failing.messages[failure.GlobalPosition] = failure
	p.failing.changed()
}

// failingDue returns when a checkpoint is due because of the failing messages, if they differ from
// the stored ones.
func (p *progress) failingDue() (due time.Time, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failing.changedAt.Add(failingInterval), !p.failing.changedAt.IsZero()
}

// failingNotStored has the next checkpoint because of failing messages wait.
func (p *progress) failingNotStored() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.failing.changedAt.IsZero() {
		p.failing.changedAt = time.Now()
	}
}
