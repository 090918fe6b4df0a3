package letters

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// blockedPage is how many messages of dead letters one read asks for.
const blockedPage = 500

// Blocked knows the open letters of a consumer by cardinal id, for a run that parks in order. It follows
// the category of dead letters, and is told of the letters that the run itself writes, so that it
// knows those at once. Its methods are safe for concurrent use, but for Read.
type Blocked struct {
	letters *Letters
	next    messagestore.GlobalPosition // of the category, to read from

	mu    sync.Mutex
	keys  map[string][]*Letter // the open letters of a cardinal id, in order of their messages
	known map[uuid.UUID]known
	own   map[uuid.UUID]struct{} // letters that the run is writing
}

// A known is the last that is known of a dead letter. A closed dead letter is known until the category
// was read so far.
type known struct {
	outcome messagestore.Version
	letter  *Letter // nil if it is closed
	read    bool    // in the category
}

// Blocked returns an empty Blocked, to be filled by Read.
func (l *Letters) Blocked() *Blocked {
	return &Blocked{letters: l, keys: map[string][]*Letter{}, known: map[uuid.UUID]known{}, own: map[uuid.UUID]struct{}{}}
}

// Read takes in the next page of the dead letters, and reports whether there are more.
func (b *Blocked) Read(ctx context.Context) (more bool, err error) {
	category := b.letters.consumer.Category
	page, err := b.letters.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{
		Category: b.letters.consumer.Requests().Category(), From: b.next, Limit: blockedPage,
	})
	if err != nil {
		return false, err
	}
	for _, m := range page.Messages {
		if !isLetter(category, m.Stream) || m.Stream.CardinalID() != b.letters.consumer.Name {
			continue
		}
		s := &state{Letter: Letter{outcome: messagestore.NoStream}}
		if err := s.take(m); err != nil {
			return false, err
		}
		id, err := uuid.Parse(m.Stream.IDs()[1])
		if err != nil {
			return false, err
		}
		switch {
		case m.IsTombstone():
			b.note(id, m.Position, nil, true)
		case s.outcome == m.Position && s.open:
			b.note(id, m.Position, &s.Letter, true)
		case s.outcome == m.Position:
			b.note(id, m.Position, nil, true)
		}
	}
	b.next = page.Next
	return page.More, nil
}

// Writing says that the run begins to write the letter of a message, until end is called. So a
// note of the run about that letter does not hide a later outcome that was read meanwhile.
func (b *Blocked) Writing(id uuid.UUID) (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own[id] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.own, id)
		b.forget(id)
	}
}

// Add notes a letter that the run has written.
func (b *Blocked) Add(p *Letter) { b.note(p.ID, p.outcome, p, false) }

// Refresh notes a letter as it is in the store.
func (b *Blocked) Refresh(ctx context.Context, id uuid.UUID) error {
	s, err := b.letters.read(ctx, b.letters.consumer.DeadLetter(id))
	switch {
	case err != nil:
		return err
	case s.open:
		b.note(id, s.outcome, &s.Letter, false)
	default:
		b.note(id, s.outcome, nil, false)
	}
	return nil
}

// note takes in the outcome at a position of a dead letter's stream, nil for a letter that it closes, unless a
// later one is known.
func (b *Blocked) note(id uuid.UUID, outcome messagestore.Version, letter *Letter, read bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, is := b.known[id]
	switch {
	case is && before.outcome > outcome:
		return
	case before.letter != nil:
		b.remove(before.letter)
	}
	b.known[id] = known{outcome, letter, read || is && before.read && before.outcome == outcome}
	if letter != nil {
		key := letter.Stream.CardinalID()
		at, _ := slices.BinarySearchFunc(b.keys[key], letter, byPlace)
		b.keys[key] = slices.Insert(b.keys[key], at, letter)
	}
	b.forget(id)
}

// forget forgets a letter that is closed, when nothing earlier of it can come any more. The caller holds
// mu.
func (b *Blocked) forget(id uuid.UUID) {
	k := b.known[id]
	if _, own := b.own[id]; k.letter == nil && k.read && !own {
		delete(b.known, id)
	}
}

func (b *Blocked) remove(p *Letter) {
	key := p.Stream.CardinalID()
	rest := slices.DeleteFunc(b.keys[key], func(q *Letter) bool { return q.ID == p.ID })
	if b.keys[key] = rest; len(rest) == 0 {
		delete(b.keys, key)
	}
}

func byPlace(a, b *Letter) int { return cmp.Compare(a.GlobalPosition, b.GlobalPosition) }

// By reports whether a message is not to be delivered, because it is parked itself, or because of the
// letter of an earlier one of its cardinal id, which is returned.
func (b *Blocked) By(m *messagestore.Message) (first *Letter, parked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.keys) == 0 {
		return nil, false
	}
	if b.known[m.ID].letter != nil {
		return nil, true
	}
	if open := b.keys[m.Stream.CardinalID()]; len(open) > 0 && open[0].GlobalPosition < m.GlobalPosition {
		return open[0], false
	}
	return nil, false
}

// Any reports whether there is an open letter.
func (b *Blocked) Any() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.keys) > 0
}

// First returns the first open letter of a cardinal id, nil for none.
func (b *Blocked) First(key string) *Letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if open := b.keys[key]; len(open) > 0 {
		return open[0]
	}
	return nil
}

// InTurn reports whether a request to redrive is of the first open letter of its cardinal id, or of none
// that is open.
func (b *Blocked) InTurn(q Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.known[q.MessageID].letter
	return p == nil || b.keys[p.Stream.CardinalID()][0] == p
}

// Waiting returns the first open letter of each cardinal id whose message was not delivered, because it
// was behind another that is not open any more.
func (b *Blocked) Waiting() (all []*Letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, open := range b.keys {
		if open[0].Behind {
			all = append(all, open[0])
		}
	}
	slices.SortFunc(all, byPlace)
	return all
}

// Request returns a request to redrive a letter, as it is.
func (p *Letter) Request() Request {
	return Request{redriveRequested: redriveRequested{MessageID: p.ID, Stream: p.Stream, Parked: p.outcome}}
}

// Is reports whether q asks for the redrive of the letter as it is.
func (p *Letter) Is(q Request) bool { return q.MessageID == p.ID && q.Parked == p.outcome }

// take takes in a message of a dead letter's stream.
func (s *state) take(m *messagestore.Message) error {
	switch m.Type {
	case parked{}.MessageType():
		var p parked
		if err := json.Unmarshal(m.Data, &p); err != nil {
			return fmt.Errorf("decode %s: %w", m, err)
		}
		s.open = true
		s.Letter = Letter{outcome: m.Position, Entry: Entry{
			ID: p.MessageID, Type: p.Type, Stream: p.Stream, Position: p.Position, GlobalPosition: p.GlobalPosition,
			Error: p.Error, Stack: p.Stack, Reason: p.Reason, Behind: p.Behind, Attempts: p.Attempts, FirstFailedAt: p.FirstFailedAt, ParkedAt: m.Time,
			DeadLetter: m.Stream,
		}}
	case redriven{}.MessageType():
		var out redriven
		if err := json.Unmarshal(m.Data, &out); err != nil {
			return fmt.Errorf("decode %s: %w", m, err)
		}
		s.open = false
		s.outcome = m.Position
		if out.Dropped == "" {
			s.Attempts++ // with the attempt that succeeded
		}
	}
	s.version = m.Position
	return nil
}

// errBehind is the failure of a message that was not delivered.
func errBehind(first *Letter) error {
	m := &messagestore.Message{Type: first.Type, Stream: first.Stream, Position: first.Position}
	return fmt.Errorf("behind %s, which is parked", m)
}
