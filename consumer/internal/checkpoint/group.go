package checkpoint

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// Slots is the number of slots of a category. A slot is the messages of the cardinal ids
// with one remainder of their hash by Slots, which is a [messagestore.Filter] with GroupSize Slots. A
// member of a consumer's group holds some slots, so at most so many members have work.
const Slots = 32

// A SlotSet has bit i for slot i.
type SlotSet uint32

// AllSlots is the whole category.
const AllSlots SlotSet = 1<<Slots - 1

// Len returns the number of slots.
func (s SlotSet) Len() int { return bits.OnesCount32(uint32(s)) }

// Has reports whether a slot is in s.
func (s SlotSet) Has(slot int) bool { return s&(1<<slot) != 0 }

// Class returns the smallest part of the category that has all of s and that a store can
// filter by, as the group size and the group member of a filter. Size 1 is all.
func (s SlotSet) Class() (size, member int) {
	for size = Slots; size > 1; size /= 2 {
		var class SlotSet
		member = bits.TrailingZeros32(uint32(s)) % size
		for slot := member; slot < Slots; slot += size {
			class |= 1 << slot
		}
		if s&^class == 0 {
			return size, member
		}
	}
	return 1, 0
}

// Classes returns the group members of filters, by group size, that have s together: the whole if s is
// one class, and otherwise each slot by itself.
func (s SlotSet) Classes() map[int][]int {
	if size, member := s.Class(); s.Len() == Slots/size {
		return map[int][]int{size: {member}}
	}
	slots := []int{}
	for slot := range Slots {
		if s.Has(slot) {
			slots = append(slots, slot)
		}
	}
	return map[int][]int{Slots: slots}
}

// some returns n slots of s: the first in the order of their numbers' bits read backwards, or the
// last. So half of a class is again a class.
func (s SlotSet) some(n int, last bool) (some SlotSet) {
	for i := range Slots {
		if last {
			i = Slots - 1 - i
		}
		if slot := int(bits.Reverse32(uint32(i)) >> (32 - slotBits)); n > 0 && s.Has(slot) {
			some |= 1 << slot
			n--
		}
	}
	return some
}

var slotBits = bits.Len(Slots - 1)

// A Group is the members of a consumer, and their slots. Each checkpoint has all of it, so the last message of the stream of checkpoints is the state of the group, and every
// step of a member is an append at the version that it was decided on.
//
// A member changes only its own part: it adds and removes itself, moves the positions of
// its slots, frees them and takes free ones. And it removes a member whose lease is over, by
// which that member's slots become free. So a member that finds itself in the state has the
// slots that it took, at the positions that it wrote.
type Group struct {
	By      uuid.UUID `json:"by"`      // the member that wrote the message
	Members []Member  `json:"members"` // in the order in which they joined
	Parts   []Part    `json:"parts"`   // all slots, each once

	// Failing is stored beside the group: see [recorded]. A failure stays with its slot, whoever holds it.
	Failing []Failure `json:"-"`
}

// A Member is a run of a process that has joined the group.
type Member struct {
	ID      uuid.UUID `json:"id"`
	Process string    `json:"process"` // for operators
	Lease   int64     `json:"lease"`   // in milliseconds

	// At is when the lease began to count last, by the store's clock. If it is missing, the
	// lease counts from the time of the message.
	At time.Time `json:"at,omitzero"`

	// Resting says that the member does not extend its lease, because there is no other to
	// take over. The first that joins has the lease count from then on.
	Resting bool `json:"resting,omitempty"`

	// Whole says that the member handles the category in order, and so has all slots or none.
	Whole bool `json:"whole,omitempty"`

	// Failing is how many messages of the member are failing, stored ones included.
	Failing int `json:"failing,omitempty"`
}

// MaxLease is the longest lease of a member.
const MaxLease = time.Hour

// Patience returns how long the member may be silent: no longer than [MaxLease], whatever another writer wrote.
func (m *Member) Patience() time.Duration {
	return time.Duration(min(m.Lease, MaxLease.Milliseconds())) * time.Millisecond
}

// Ends returns when the lease is over, in a message that was written at a time. It is never
// over while the member rests.
func (m *Member) Ends(written time.Time) (time.Time, bool) {
	if m.At.IsZero() {
		return written.Add(m.Patience()), !m.Resting
	}
	return m.At.Add(m.Patience()), !m.Resting
}

// A Part is slots that are at one position.
type Part struct {
	Holder uuid.UUID `json:"holder,omitzero"` // none if they are free
	Slots  SlotSet   `json:"slots"`
	Checkpoint
}

// single returns the group that a checkpoint without one stands for: all slots are free.
func single(at Checkpoint) Group { return Group{Parts: []Part{{Slots: AllSlots, Checkpoint: at}}} }

func (g *Group) clone() Group {
	return Group{By: g.By, Members: slices.Clone(g.Members), Parts: slices.Clone(g.Parts), Failing: g.Failing}
}

// Lowest returns the lowest position of all slots: every message before it is handled.
func (g *Group) Lowest() Checkpoint {
	return slices.MinFunc(g.Parts, byPosition).Checkpoint
}

func byPosition(a, b Part) int { return cmp.Compare(a.Position, b.Position) }

// member returns a member, nil if it is not in the group.
func (g *Group) member(id uuid.UUID) *Member {
	if i := slices.IndexFunc(g.Members, func(m Member) bool { return m.ID == id }); i >= 0 {
		return &g.Members[i]
	}
	return nil
}

// Held returns the slots of a member. [uuid.Nil] holds the free slots.
func (g *Group) Held(id uuid.UUID) (held SlotSet) {
	for _, p := range g.Parts {
		if p.Holder == id {
			held |= p.Slots
		}
	}
	return held
}

// Of returns the parts that a member holds.
func (g *Group) Of(id uuid.UUID) (parts []Part) {
	for _, p := range g.Parts {
		if p.Holder == id {
			parts = append(parts, p)
		}
	}
	return parts
}

// begins returns the lowest position of a member's slots.
func (g *Group) begins(id uuid.UUID) Checkpoint {
	parts := g.Of(id)
	if len(parts) == 0 {
		return Checkpoint{}
	}
	return slices.MinFunc(parts, byPosition).Checkpoint
}

// share returns how many slots a member should have: all of them or none, if a member
// handles the category in order, and otherwise as many as the others.
func (g *Group) share(id uuid.UUID) int {
	i := slices.IndexFunc(g.Members, func(m Member) bool { return m.ID == id })
	switch {
	case i < 0:
		return 0
	case slices.ContainsFunc(g.Members, func(m Member) bool { return m.Whole }):
		if i == 0 {
			return Slots
		}
		return 0
	}
	n := len(g.Members)
	share := Slots / n
	if i < Slots%n {
		share++
	}
	return share
}

// unfair returns how many slots a member has above its share, or, below zero, how many free
// ones it should take.
func (g *Group) unfair(id uuid.UUID) int {
	surplus := g.Held(id).Len() - g.share(id)
	return max(surplus, -g.Held(uuid.Nil).Len())
}

// begin begins the next message of a member, after a message that was written at a time: the leases of the
// others count on, a lease that rests counts from now on, and a member whose lease is over is removed. The
// member itself extends its lease, and rests if it is alone. A lease that began after now, since the
// store's clock went back, counts from now on.
func (g *Group) begin(by uuid.UUID, written, now time.Time) {
	g.By = by
	for _, m := range slices.Clone(g.Members) {
		if end, ends := m.Ends(written); m.ID != by && ends && !now.Before(end) {
			g.remove(m.ID)
		}
	}
	for i := range g.Members {
		m := &g.Members[i]
		switch {
		case m.ID == by:
			m.At, m.Resting = time.Time{}, len(g.Members) == 1
		case m.Resting:
			m.At, m.Resting = time.Time{}, false
		default:
			if m.At.IsZero() {
				m.At = written
			}
			if m.At.After(now) {
				m.At = now
			}
		}
	}
}

// remove removes a member, and frees its slots.
func (g *Group) remove(id uuid.UUID) {
	g.Members = slices.DeleteFunc(g.Members, func(m Member) bool { return m.ID == id })
	for i := range g.Parts {
		if g.Parts[i].Holder == id {
			g.Parts[i].Holder = uuid.Nil
		}
	}
	g.join()
}

// settle frees the slots that a member has above its share, or takes free ones. No message
// of them may be in flight.
func (g *Group) settle(id uuid.UUID) {
	switch n := g.unfair(id); {
	case n > 0:
		g.move(g.Held(id).some(n, true), uuid.Nil)
	case n < 0:
		g.move(g.Held(uuid.Nil).some(-n, false), id)
	}
}

// move gives slots to a holder.
func (g *Group) move(slots SlotSet, to uuid.UUID) {
	var parts []Part
	for _, p := range g.Parts {
		if moved := p.Slots & slots; moved != 0 {
			parts = append(parts, Part{to, moved, p.Checkpoint})
			p.Slots &^= slots
		}
		if p.Slots != 0 {
			parts = append(parts, p)
		}
	}
	g.Parts = parts
	g.join()
}

// advance moves the slots of a member that are behind a position to it. A slot may be ahead, if
// the member took it from a member that was further.
func (g *Group) advance(id uuid.UUID, to Checkpoint) {
	for i := range g.Parts {
		if p := &g.Parts[i]; p.Holder == id && p.Position < to.Position {
			p.Checkpoint = to
		}
	}
	g.join()
}

// join makes one part of those with one holder and one position.
func (g *Group) join() {
	var parts []Part
	for _, p := range g.Parts {
		i := slices.IndexFunc(parts, func(q Part) bool { return q.Holder == p.Holder && q.Checkpoint == p.Checkpoint })
		if i < 0 {
			parts = append(parts, p)
			continue
		}
		parts[i].Slots |= p.Slots
	}
	g.Parts = parts
}

// body returns the message that stores g. A group without members, with all slots at one
// position, is stored as a checkpoint alone.
func (g *Group) body() recorded {
	if len(g.Members) == 0 && len(g.Parts) == 1 {
		return recorded{Checkpoint: g.Parts[0].Checkpoint, Failing: g.Failing}
	}
	return recorded{Checkpoint: g.Lowest(), Failing: g.Failing, Group: g}
}

// mistake returns the rule that a stored group breaks, "" for none.
func (g *Group) mistake(lowest messagestore.GlobalPosition) string {
	var all SlotSet
	for _, p := range g.Parts {
		switch {
		case p.Position < 0:
			return fmt.Sprintf("position %d of its slots is less than 0", p.Position)
		case all&p.Slots != 0:
			return "two of its parts have one slot"
		case p.Holder != uuid.Nil && g.member(p.Holder) == nil:
			return fmt.Sprintf("%s holds slots and is no member", p.Holder)
		}
		all |= p.Slots
	}
	switch {
	case all != AllSlots:
		return "no part has all of its slots"
	case g.Lowest().Position != lowest:
		return fmt.Sprintf("its position %d is not the lowest of its slots", lowest)
	}
	return ""
}
