package saga

import (
	lru "container/list"
	"sync"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// The limits of the memory for sagas.
const (
	// maxKeptBytes bounds the memory that a definition uses for known sagas in a process. keptBytes
	// is the size of one saga without its values.
	maxKeptBytes = 8 << 20
	keptBytes    = 1 << 10
)

// kept holds the sagas that had a turn in this process or began in it and have not ended, the most
// recent ones. A turn that finds its saga here reads only the messages since. The entry may be out
// of date, because another process may have gone on with the saga. So a turn checks that the
// message at the version is the same one, and writes at the version that it has read.
type kept struct {
	mu       sync.Mutex
	byStream map[messagestore.StreamName]*lru.Element
	order    lru.List // of *keptSaga, the latest first
	size     int
}

// A keptSaga has no state while it begins or has a turn.
type keptSaga struct {
	stream  messagestore.StreamName
	first   messagestore.GlobalPosition // of its first message, 0 while it begins
	id      uuid.UUID                   // of its first message, where this process writes that
	state   *state
	version messagestore.Version
	seen    messagestore.GlobalPosition // of the message at the version
	begun   bool                        // by this process, and it has had no turn here
	size    int
}

func newKept() *kept { return &kept{byStream: map[messagestore.StreamName]*lru.Element{}} }

// begin notes that a saga begins, unless it is known.
func (k *kept) begin(stream messagestore.StreamName) *keptSaga {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byStream[stream] != nil {
		return nil
	}
	one := &keptSaga{stream: stream, id: uuid.Must(uuid.NewV7())}
	k.add(one)
	return one
}

// began stores the state of a saga that has begun, unless it had a turn meanwhile. The argument one
// is the result of begin, and may be nil.
func (k *kept) began(one *keptSaga, l *life) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one == nil || !k.has(one) || one.first != 0 {
		return
	}
	one.first, one.begun = l.seen, true
	k.fill(one, l)
}

// forget drops an entry that begin returned.
func (k *kept) forget(one *keptSaga) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one != nil && k.has(one) {
		k.remove(k.byStream[one.stream])
	}
}

// take returns the entry of the saga with this first message, and leaves the entry without its
// state. It returns nil if there is no entry. The first turn may come before Begin knows that the
// saga has begun: then the entry has no state yet.
func (k *kept) take(m *messagestore.Message) *keptSaga {
	k.mu.Lock()
	defer k.mu.Unlock()
	element := k.byStream[m.Stream]
	if element == nil {
		return nil
	}
	one := of(element)
	if one.first != m.GlobalPosition && one.first != 0 {
		k.remove(element)
		return nil
	}
	taken := *one
	one.first, one.state, one.begun = m.GlobalPosition, nil, false
	taken.begun = taken.begun || taken.first == 0 && taken.id == m.ID
	if taken.state == nil && !taken.begun {
		return nil
	}
	return &taken
}

// put stores a saga that waits. The state in l must not be changed afterwards.
func (k *kept) put(l *life) {
	k.mu.Lock()
	defer k.mu.Unlock()
	element := k.byStream[l.stream]
	if element == nil {
		k.add(&keptSaga{stream: l.stream})
		element = k.byStream[l.stream]
	}
	one := of(element)
	one.first, one.begun = l.cause.GlobalPosition, false
	k.order.MoveToFront(element)
	k.fill(one, l)
}

// drop drops a saga that has ended.
func (k *kept) drop(stream messagestore.StreamName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if element := k.byStream[stream]; element != nil {
		k.remove(element)
	}
}

// open returns the position of the first message of a saga that, as far as this process knows, has
// not ended.
func (k *kept) open(stream messagestore.StreamName) (first messagestore.GlobalPosition, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	element := k.byStream[stream]
	if element == nil || of(element).first == 0 {
		return 0, false
	}
	return of(element).first, true
}

func of(element *lru.Element) *keptSaga {
	one, _ := element.Value.(*keptSaga)
	return one
}

func (k *kept) has(one *keptSaga) bool {
	element := k.byStream[one.stream]
	return element != nil && of(element) == one
}

func (k *kept) add(one *keptSaga) {
	k.byStream[one.stream] = k.order.PushFront(one)
	k.resize(one, keptBytes)
}

func (k *kept) fill(one *keptSaga, l *life) {
	one.state, one.version, one.seen = l.state, l.version, l.seen
	k.resize(one, keptBytes+l.size())
}

// resize records the size of a saga, and drops the oldest entries if all are too large together.
func (k *kept) resize(one *keptSaga, size int) {
	k.size += size - one.size
	one.size = size
	for k.size > maxKeptBytes {
		k.remove(k.order.Back())
	}
}

func (k *kept) remove(element *lru.Element) {
	k.order.Remove(element)
	one := of(element)
	delete(k.byStream, one.stream)
	k.size -= one.size
}

// size is about how many bytes the state takes.
func (s *state) size() int {
	const each = 300 // bytes, beside the values
	n := len(s.started.Input) + each*(len(s.sleeps)+len(s.early)+len(s.replies)+len(s.received))
	for _, one := range s.steps {
		n += each + len(one.Input) + len(one.output) + len(one.err)
	}
	for _, value := range s.values {
		n += each + len(value)
	}
	for _, reply := range s.replies {
		n += len(reply.Output)
	}
	for _, signals := range s.signals {
		for _, value := range signals {
			n += each + len(value)
		}
	}
	return n
}
