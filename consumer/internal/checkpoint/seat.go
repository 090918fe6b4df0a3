package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A seat is the place of a member in its group: the state that it last read or wrote.
type seat struct {
	// Set before the run, and never changed: any goroutine may read them. The run handles these
	// slots, each from its own position on; the member takes them before the run, and gives them up
	// after it.
	me     Member
	slots  SlotSet
	begins [Slots]messagestore.GlobalPosition
	ahead  messagestore.GlobalPosition // the highest of them

	// The writer's: see [Place].
	group   Group     // at the version that the place knows
	at      time.Time // when that was written, by the store's clock
	written messagestore.GlobalPosition
	clock   reading   // of the store's clock
	sent    time.Time // when this member's last message was sent, by the process's monotonic clock
	seen    time.Time // group was the last state then or later, by the same clock
}

// A reading of the store's clock has a time of that clock, and a local time at which it had
// certainly been reached.
type reading struct{ store, here time.Time }

// now returns a time that the store's clock has reached, provided that both clocks run at the same
// rate.
func (r reading) now(here time.Time) time.Time { return r.store.Add(here.Sub(r.here)) }

// read records a time that the store's clock has reached.
func (s *seat) read(store time.Time) {
	if here := time.Now(); s.clock.store.IsZero() || s.clock.now(here).Before(store) {
		s.clock = reading{store, here}
	}
}

// set records the current time of the store's clock, which may have gone back.
func (s *seat) set(store time.Time) { s.clock = reading{store, time.Now()} }

// Join takes a seat in the group for a member, or takes it again between two runs: it frees the
// slots above the member's share, or takes free ones up to it. No message of its slots may be in
// flight.
//
// A guest takes a seat only if the group has members. Otherwise it goes on without a lease, and the
// next member that joins fences it. While the consumer is paused, a guest gets [ErrPaused]: the
// members keep their slots then, and it would wait for them.
//
// The argument before is the checkpoint stream of a previous run, and read is the last message that
// it had read; both are zero without a previous run. Join looks for that message again: the
// previous run may have looked for it before the store was rolled back, and have read the epoch
// only afterwards, so it noticed nothing. Each call of the store has its own timeout.
func (l Log) Join(ctx context.Context, me Member, guest bool, before messagestore.StreamName, read messagestore.Mark) (*Place, error) {
	p, start, err := l.place(ctx, before, read)
	if err != nil {
		return nil, err
	}
	if guest && p.Paused() {
		return nil, ErrPaused
	}
	p.seat, p.version = &seat{me: me}, messagestore.NoStream
	for {
		if err := p.meet(ctx, start); err != nil {
			return nil, err
		}
		if guest && len(p.group.Members) == 0 {
			p.Checkpoint, p.Failing = p.group.Lowest(), p.group.Failing
			p.failing = Failing{p.Failing, len(p.Failing)}
			p.seat = nil
			break
		}
		if len(p.group.Members) > 0 {
			if err := p.ask(ctx); err != nil {
				return nil, err
			}
		}
		sent := time.Now()
		writing, cancel := context.WithTimeout(ctx, CallTimeout)
		body, written, err := p.append(writing, func() recorded {
			next := p.group.clone()
			if next.member(me.ID) == nil {
				next.Members = append(next.Members, me)
			}
			next.begin(me.ID, p.at, p.clock.now(time.Now()))
			next.settle(me.ID)
			next.member(me.ID).Failing = len(next.failures(me.ID)) // failures of an earlier run are not known
			return next.body()
		})
		cancel()
		if errors.Is(err, messagestore.ErrVersionConflict) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
		p.took(body, written, sent)
		break
	}
	if p.seat != nil {
		p.sit()
	}
	if p.Ready() {
		p.Mark, err = l.Recall(ctx, p.Stream, p.Checkpoint)
	}
	return p, err
}

// ask reads the time of the store's clock.
func (p *Place) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	now, err := p.log.Now(ctx)
	if err == nil {
		p.set(now)
	}
	return err
}

// meet reads the state. Start is where the generation begins.
func (p *Place) meet(ctx context.Context, start Checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	sent := time.Now()
	m, err := p.log.Last(ctx, p.Stream)
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		p.group, p.version = single(start), messagestore.NoStream
		return nil
	case err != nil:
		return fmt.Errorf("read checkpoint: %w", err)
	}
	group, err := DecodeGroup(m)
	if err == nil {
		err = p.log.checkAfter(ctx, m, group.Lowest(), start, p.version)
	}
	if err != nil {
		return err
	}
	p.group = group
	p.version, p.at, p.written, p.seen = m.Position, m.Time, m.GlobalPosition, sent
	p.read(m.Time)
	return nil
}

// took stores the state that the member has written.
func (p *Place) took(body recorded, written messagestore.Written, sent time.Time) {
	p.group = single(body.Checkpoint)
	p.group.Failing = body.Failing
	if body.Group != nil {
		p.group = *body.Group
	}
	p.at, p.written, p.sent, p.seen = written.Time, written.GlobalPosition, sent, sent
	p.set(written.Time)
}

// sit records which slots the run handles, and from where.
func (p *Place) sit() {
	p.Checkpoint = p.group.begins(p.me.ID)
	p.slots = p.group.Held(p.me.ID)
	for _, part := range p.group.Parts {
		for slot := range Slots {
			if part.Holder == p.me.ID && part.Slots.Has(slot) {
				p.begins[slot] = part.Position
				p.ahead = max(p.ahead, part.Position)
			}
		}
	}
	p.Failing = p.group.failures(p.me.ID)
}

// Ready reports whether there is something to handle: the member has slots.
func (p *Place) Ready() bool { return p.seat == nil || p.slots != 0 }

// Member returns the id of the member that has the place. The place must be leased.
func (p *Place) Member() uuid.UUID { return p.me.ID }

// SlotCount returns how many slots the member has. The place must be leased.
func (p *Place) SlotCount() int { return p.slots.Len() }

// Leased reports whether the place belongs to a member of a group.
func (p *Place) Leased() bool { return p.seat != nil }

// Class returns the filter for the store's reads: see [SlotSet.Class].
func (p *Place) Class() (size, member int) {
	if p.seat == nil {
		return 0, 0
	}
	if size, member = p.slots.Class(); size == 1 {
		size = 0
	}
	return size, member
}

// Mine reports whether the run handles a message that the store returned: the run has its slot, and
// the slot's previous member has not finished it.
func (p *Place) Mine(stream messagestore.StreamName, at messagestore.GlobalPosition) bool {
	if p.seat == nil || p.slots == AllSlots && at >= p.ahead {
		return true
	}
	slot := stream.GroupMember(Slots)
	return p.slots.Has(slot) && at >= p.begins[slot]
}

// Slots returns the run's slots, a bit each.
func (p *Place) Slots() uint32 {
	if p.seat == nil {
		return uint32(AllSlots)
	}
	return uint32(p.slots)
}

// MySlot is Mine for a message at any position.
func (p *Place) MySlot(stream messagestore.StreamName) bool {
	return p.seat == nil || p.slots.Has(stream.GroupMember(Slots))
}

// Leave frees the member's slots at their positions, and gives up its seat, if it has one. The
// member may have taken more slots since this place was found.
func (p *Place) Leave(ctx context.Context) error {
	if p.seat == nil {
		return nil
	}
	return p.step(ctx, Checkpoint{}, nil, true)
}

// step appends the next state of the group: the member is at a position and its lease starts again,
// or it leaves. If another member has written a state since, step reads it and tries again: as long
// as the member is in that state, its slots and their positions are unchanged.
func (p *Place) step(ctx context.Context, at Checkpoint, failing *Failing, leave bool) error {
	for p.group.member(p.me.ID) != nil {
		again := p.unsettled != nil
		sent := time.Now()
		body, written, err := p.append(ctx, func() recorded {
			next := p.group.clone()
			next.begin(p.me.ID, p.at, p.clock.now(time.Now()))
			next.advance(p.me.ID, at)
			if failing != nil {
				next.fails(p.me.ID, *failing)
			}
			if leave {
				next.remove(p.me.ID)
			}
			return next.body()
		})
		if conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); ok {
			if conflict.Actual < conflict.Expected {
				return p.fence(p.Stream, conflict.Expected, conflict.Actual)
			}
			if err := p.remeet(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
		p.took(body, written, sent)
		if !again {
			p.Checkpoint = at
			return nil
		}
	}
	return nil // it has left
}

// remeet reads the state after another member has written. It returns a [*FencedError] if this
// member is not in it.
func (p *Place) remeet(ctx context.Context) error {
	known := p.version
	err := p.meet(ctx, Checkpoint{})
	switch {
	case err == nil && p.version < known:
		return p.fence(p.Stream, known, p.version)
	case errors.Is(err, ErrCorrupt): // also if the stream was deleted
		return &FencedError{Stream: p.Stream, Expected: known, Actual: known + 1}
	case err == nil && p.group.member(p.me.ID) == nil:
		return &FencedError{Stream: p.Stream, Expected: known, Actual: p.version, TakenOver: true}
	}
	return err
}

// Look reads the state, which another member may have written, and checks whether an operator has
// reset the consumer. It does nothing while a write has an unknown outcome.
func (p *Place) Look(ctx context.Context) error {
	if p.unsettled != nil {
		return nil
	}
	if err := p.CheckEpoch(ctx); err != nil {
		return err
	}
	if err := p.CheckGeneration(ctx); err != nil {
		return err
	}
	return p.remeet(ctx)
}

// Meet reads the state. If the store went back and the message that was read last is lost too, the
// error is about that message. It does nothing while a write has an unknown outcome.
func (p *Place) Meet(ctx context.Context, read messagestore.Mark) error {
	if p.unsettled != nil {
		return nil
	}
	err := p.remeet(ctx)
	if errors.Is(err, ErrAhead) {
		if lost := p.log.checkMark(ctx, p.Stream, read); lost != nil {
			return lost
		}
	}
	return err
}

// A View is the state of the group for the run's loop.
type View struct {
	Unfair    bool      // the member has to give slots up, or can take free ones
	Extend    time.Time // when to extend the lease, zero for never
	Look      time.Time // when to read the state again before a message begins, because another member may have joined; zero for never
	Over      time.Time // when the lease may be over
	Gone      time.Time // when the lease of another member may be over, zero for none
	Written   messagestore.GlobalPosition
	Members   int
	Positions messagestore.StreamName
}

// View returns the state of the group at a time. The times are by the process's clock.
func (p *Place) View(here time.Time) (v View) {
	if p.seat == nil {
		return v
	}
	next := p.group.clone()
	next.begin(p.me.ID, p.at, p.clock.now(here))
	v = View{Unfair: next.unfair(p.me.ID) != 0, Written: p.written, Members: len(next.Members), Positions: p.Stream}
	for _, m := range p.group.Members {
		end, ends := m.Ends(p.at)
		switch {
		case m.ID == p.me.ID && !ends: // its lease counts from when another joins, so not before the state was seen
			if v.Over = p.seen.Add(m.Patience() * 9 / 10); p.unsettled == nil {
				v.Look = p.seen.Add(m.Patience() * 3 / 4)
			} else {
				v.Extend = p.seen.Add(m.Patience() * 3 / 4) // which settles the write
			}
		case !ends:
		case m.ID == p.me.ID:
			v.Extend = p.sent.Add(m.Patience() / 3)
			v.Over = p.sent.Add(m.Patience() * 9 / 10)
		default:
			if gone := here.Add(end.Sub(p.clock.now(here))); v.Gone.IsZero() || gone.Before(v.Gone) {
				v.Gone = gone
			}
		}
	}
	return v
}

// Next returns when the member has to write next, zero for never.
func (v View) Next() (at time.Time) {
	for _, t := range []time.Time{v.Extend, v.Gone} {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// NewMember returns a member that has not joined.
func NewMember(process string, lease time.Duration, whole bool) Member {
	return Member{ID: uuid.New(), Process: process, Lease: lease.Milliseconds(), Whole: whole}
}
