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

// Slots is the number of slots of a category. A slot is a part of the category by the hash of the
// cardinal id, as a [messagestore.Filter] with a GroupSize of Slots selects it. A member of a
// consumer's group holds some slots, so at most this many members have work.
const Slots = 32

// A SlotSet has bit i for slot i.
type SlotSet uint32

// AllSlots is the whole category.
const AllSlots SlotSet = 1<<Slots - 1

// Len returns the number of slots.
func (s SlotSet) Len() int { return bits.OnesCount32(uint32(s)) }

// Has reports whether a slot is in s.
func (s SlotSet) Has(slot int) bool { return s&(1<<slot) != 0 }

// Class returns the smallest part of the category that includes all of s and by which a store can
// filter, as the group size and the group member of a filter. Size 1 means all.
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

// Classes returns the filters that together cover s, as group members by group size: one filter if
// s is a class (see [SlotSet.Class]), and otherwise one for each slot.
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

// A Group has the members of a consumer, and their slots. Each checkpoint includes all of it, so
// the last message of the stream of checkpoints is the state of the group. Every step of a member
// is an append at the version at which it was decided.
//
// A member changes only its own part: it adds and removes itself, moves the positions of its slots,
// frees them and takes free ones. It also removes a member after its lease has ended, which frees
// that member's slots. So if a member finds itself in the state, it still has the slots that it
// took, at the positions that it wrote.
type Group struct {
	By      uuid.UUID `json:"by"`      // the member that wrote the message
	Members []Member  `json:"members"` // in the order in which they joined
	Parts   []Part    `json:"parts"`   // all slots, each once

	// Failing is stored separately: see [recorded]. A failure stays with its slot, even if the slot
	// moves to another member.
	Failing []Failure `json:"-"`
}

// A Member is a run of a process that has joined the group.
type Member struct {
	ID      uuid.UUID `json:"id"`
	Process string    `json:"process"` // for operators
	Lease   int64     `json:"lease"`   // in milliseconds

	// At is when the lease last started, by the store's clock. If it is missing, the lease starts
	// at the time of the message.
	At time.Time `json:"at,omitzero"`

	// Resting says that the member does not extend its lease, because nobody could take over. When
	// another member joins, the lease starts.
	Resting bool `json:"resting,omitempty"`

	// Whole says that the member handles the category in order, so it has either all slots or none.
	Whole bool `json:"whole,omitempty"`

	// Failing is how many of the member's messages are failing, including the stored ones.
	Failing int `json:"failing,omitempty"`
}

// MaxLease is the longest lease of a member.
const MaxLease = time.Hour

// Patience returns how long the member may be silent. It is at most [MaxLease], even if another
// writer wrote more.
func (m *Member) Patience() time.Duration {
	return time.Duration(min(m.Lease, MaxLease.Milliseconds())) * time.Millisecond
}

// Ends returns when the lease ends, if the message was written at the given time. The lease of a
// resting member does not end.
func (m *Member) Ends(written time.Time) (time.Time, bool) {
	if m.At.IsZero() {
		return written.Add(m.Patience()), !m.Resting
	}
	return m.At.Add(m.Patience()), !m.Resting
}

// A Part is a set of slots at one position.
type Part struct {
	Holder uuid.UUID `json:"holder,omitzero"` // zero if they are free
	Slots  SlotSet   `json:"slots"`
	Checkpoint
}

// single returns the group for a checkpoint without one: all slots are free.
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

// Held returns the slots of a member. The free slots belong to [uuid.Nil].
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

// share returns how many slots a member should have: all or none if a member handles the category
// in order, and otherwise about as many as each of the others.
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

// unfair returns how many slots a member has above its share. A negative number says how many free
// ones it should take.
func (g *Group) unfair(id uuid.UUID) int {
	surplus := g.Held(id).Len() - g.share(id)
	return max(surplus, -g.Held(uuid.Nil).Len())
}

// begin begins the next message of a member, after a message that was written at the given time.
// The leases of the others continue, resting leases start now, and members are removed if their
// leases are over. The member itself extends its lease, and rests if it is alone. A lease that
// began after now, because the store's clock went back, starts now.
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

// settle frees the slots that a member has above its share, or takes free ones. Their messages must
// not be in flight.
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

// advance moves those slots of a member that are behind a position to that position. A slot may be
// ahead, if the member took it from a member that was further.
func (g *Group) advance(id uuid.UUID, to Checkpoint) {
	for i := range g.Parts {
		if p := &g.Parts[i]; p.Holder == id && p.Position < to.Position {
			p.Checkpoint = to
		}
	}
	g.join()
}

// join merges the parts with the same holder and position.
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

// body returns the message that stores g. A group without members, with all slots at one position,
// is stored as a plain checkpoint.
func (g *Group) body() recorded {
	if len(g.Members) == 0 && len(g.Parts) == 1 {
		return recorded{Checkpoint: g.Parts[0].Checkpoint, Failing: g.Failing}
	}
	return recorded{Checkpoint: g.Lowest(), Failing: g.Failing, Group: g}
}

// mistake returns the rule that a stored group breaks, or "".
func (g *Group) mistake(lowest messagestore.GlobalPosition) string {
	var all SlotSet
	for _, p := range g.Parts {
		switch {
		case p.Position < 0:
			return fmt.Sprintf("position %d of its slots is less than 0", p.Position)
		case all&p.Slots != 0:
			return "two of its parts have the same slot"
		case p.Holder != uuid.Nil && g.member(p.Holder) == nil:
			return fmt.Sprintf("%s holds slots and is not a member", p.Holder)
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
