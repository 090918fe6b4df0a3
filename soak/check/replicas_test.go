package check_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

// A seated life is a run of a member of a group.
type seated struct {
	*life
	id string
}

const ms = int64(1000) // microseconds

// A groupState is a checkpoint's data about a group. Without parts all slots are free, at its
// position.
type groupState struct {
	Position messagestore.GlobalPosition `json:"-"`
	By       string                      `json:"by,omitempty"`
	Members  []member                    `json:"members,omitempty"`
	Parts    []part                      `json:"parts,omitempty"`
}

type member struct {
	ID      string `json:"id"`
	Lease   int64  `json:"lease"`
	Resting bool   `json:"resting,omitempty"`
	Whole   bool   `json:"whole,omitempty"`
}

type part struct {
	Holder   string                      `json:"holder,omitempty"`
	Slots    uint32                      `json:"slots"`
	Position messagestore.GlobalPosition `json:"position"`
}

// note makes a checkpoint of a message.
func (s *groupState) note(r *check.Row, at int64) {
	data := testkit.Must(json.Marshal(map[string]any{"position": s.Position, "group": s}))
	r.State, r.Time = string(data), at
}

// seat is a run of a member from one time to another, in milliseconds.
func (w *world) seat(id string, from, to int64) *seated {
	l := w.consume("replica-"+id, "audit", from*ms, to*ms, 2, 2)
	l.run.invoke.Alone = false
	return &seated{l, id}
}

// handles has the member handle a message.
func (l *seated) handles(from, to int64, r *check.Row) { l.handle(from*ms, to*ms, r) }

// state has the member store the state of its group.
func (l *seated) state(from, to int64, s groupState) *act {
	m := l.w.message()
	stream := messagestore.StreamName("account:position-audit+0")
	l.w.commit(stream, m)
	if s.By == "" && len(s.Members) > 0 {
		s.By = l.id
	}
	s.note(l.w.byID[m.ID], from*ms)
	a := l.record(from*ms, to*ms, s.Position)
	a.invoke.Target = s.By
	a.invoke.Appends = []history.Append{{Stream: stream, Messages: []history.Message{m}}}
	return a
}

// members are some that have a lease of a second, and rest if one is alone.
func members(ids ...string) (all []member) {
	for _, id := range ids {
		all = append(all, member{ID: id, Lease: 1000, Resting: len(ids) == 1})
	}
	return all
}

const (
	all  uint32 = 1<<32 - 1
	even uint32 = 0x55555555
	odd  uint32 = even << 1
)

func parts(parts ...part) []part { return parts }

// inSlots returns a stream in an even slot and a stream in an odd slot.
func inSlots() (ofEven, ofOdd messagestore.StreamName) {
	for _, name := range []messagestore.StreamName{"account-1", "account-2", "account-3", "account-4", "account-5", "account-6"} {
		if name.GroupMember(32)%2 == 0 {
			ofEven = name
		} else {
			ofOdd = name
		}
	}
	return ofEven, ofOdd
}

func TestAGroupWhoseMembersComeAndGoKeepsItsPromises(t *testing.T) {
	t.Parallel()
	w := &world{}
	e, o := inSlots()
	one, two := w.write(10, 20, e, anyVersion, 2), w.write(30, 40, o, anyVersion, 2)

	// A is alone, then B joins, and A gives half of the slots up.
	a := w.seat("a", 1, 100)
	a.state(2, 3, groupState{Members: members("a"), Parts: parts(part{Holder: "a", Slots: all})})
	a.handles(5, 6, w.row(one, 0))
	b := w.seat("b", 10, 150)
	b.state(11, 12, groupState{Members: members("a", "b"), Parts: parts(part{Holder: "a", Slots: all})})
	at := w.row(one, 0).Global + 1
	a.state(20, 21, groupState{Position: at, Members: members("a", "b"), Parts: parts(part{Holder: "a", Slots: all, Position: at})})
	again := w.seat("a", 101, 5000) // its next run
	again.state(110, 111, groupState{Position: at, Members: members("a", "b"), Parts: parts(
		part{Holder: "a", Slots: even, Position: at}, part{Slots: odd, Position: at},
	)})
	b2 := w.seat("b", 151, 900)
	b2.state(160, 161, groupState{Position: at, Members: members("a", "b"), Parts: parts(
		part{Holder: "a", Slots: even, Position: at}, part{Holder: "b", Slots: odd, Position: at},
	)})
	again.handles(170, 180, w.row(one, 1))
	b2.handles(171, 175, w.row(two, 0))
	b2.handles(176, 179, w.row(two, 1))

	// B leaves in order, and A is stopped beyond its lease.
	end := w.row(two, 1).Global + 1
	left := members("a")
	left[0].Resting = false
	b2.state(200, 201, groupState{By: "b", Position: at, Members: left, Parts: parts(
		part{Holder: "a", Slots: even, Position: at}, part{Slots: odd, Position: end},
	)})
	w.fault(210*ms, 4000*ms, "stop-member", "replica-a")
	c := w.seat("c", 205, 5000)
	c.state(310, 311, groupState{Position: at, Members: members("a", "c"), Parts: parts(
		part{Holder: "a", Slots: even, Position: at}, part{Holder: "c", Slots: odd, Position: end},
	)})
	c2 := w.seat("c", 1200, 5000)
	c2.state(1210, 1211, groupState{Position: at, Members: members("c"), Parts: parts(
		part{Holder: "c", Slots: even, Position: at}, part{Holder: "c", Slots: odd, Position: end},
	)})
	c2.handles(1220, 1225, w.row(one, 1))
	refused := again.record(4100*ms, 4101*ms, end)
	refused.end.Answer = history.Conflict

	v := w.verdict(t, "account:position")
	require.True(t, v.Passed(), "%v", v)
	for key, n := range map[string]int{
		"joins": 3, "leaves": 1, "takenOver": 1, "memberStops": 1, "gaps": 1, "gapsWithin": 1, "gapMax": 1001, "lease": 1000, "grouped": 5, "groupedAgain": 1, "late": 0,
	} {
		require.Equal(t, n, v.Figures.Of(key), key)
	}
}

func TestEachPlantedBugOfAGroupBreaksExactlyItsPromise(t *testing.T) {
	t.Parallel()
	e, o := inSlots()
	whole := func(id string, at messagestore.GlobalPosition) groupState {
		return groupState{Position: at, Members: members(id), Parts: parts(part{Holder: id, Slots: all, Position: at})}
	}
	two := func(by string, p ...part) groupState {
		lowest := p[0].Position
		for _, part := range p {
			lowest = min(lowest, part.Position)
		}
		return groupState{By: by, Position: lowest, Members: members("a", "b"), Parts: p}
	}
	for _, planted := range []struct {
		name   string
		broken promise.Rule
		plant  func(w *world)
	}{
		{"a slot of two holders", "C3b", func(w *world) {
			a := w.seat("a", 1, 100)
			s := whole("a", 0)
			s.Parts = append(s.Parts, part{Holder: "a", Slots: 1})
			a.state(2, 3, s)
		}},
		{"a slot that is given to another", "C3c", func(w *world) {
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			w.seat("b", 10, 100).state(11, 12, two("b", part{Holder: "a", Slots: all}))
			a.state(20, 21, two("a", part{Holder: "a", Slots: even}, part{Holder: "b", Slots: odd}))
		}},
		{"a lease that was not over", "C3e", func(w *world) {
			w.seat("a", 1, 100).state(2, 3, whole("a", 0))
			b := w.seat("b", 10, 2000)
			b.state(11, 12, two("b", part{Holder: "a", Slots: all})) // from here on it counts
			b.state(900, 901, whole("b", 0))
		}},
		{"a member that goes on though it was removed", "C3d", func(w *world) {
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			b := w.seat("b", 10, 2000)
			b.state(11, 12, two("b", part{Holder: "a", Slots: all}))
			b.state(1100, 1101, whole("b", 0))
			a.state(1200, 1201, two("a", part{Holder: "b", Slots: all}))
		}},
		{"a message of a slot of another", "C3g", func(w *world) {
			one := w.write(10, 20, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			b := w.seat("b", 10, 100)
			b.state(11, 12, two("b", part{Holder: "a", Slots: all}))
			b.handles(20, 30, w.row(one, 0))
		}},
		{"a position that another moves", "C3f", func(w *world) {
			one := w.write(10, 20, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			a.handles(5, 6, w.row(one, 0))
			w.seat("b", 10, 100).state(11, 12, two("b", part{Holder: "a", Slots: all, Position: 2}))
		}},
		{"a position of a slot that goes back", "C1e", func(w *world) {
			one := w.write(10, 20, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			a.handles(5, 6, w.row(one, 0))
			a.state(11, 12, whole("a", 2))
			a.state(21, 22, groupState{Members: members("a"), Position: 1, Parts: parts(
				part{Holder: "a", Slots: even, Position: 1}, part{Holder: "a", Slots: odd, Position: 2},
			)})
		}},
		{"a position of a slot beyond what was answered", "C1d", func(w *world) {
			one := w.write(10, 20, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			a.fetch(4*ms, 2)
			a.handles(5, 6, w.row(one, 0))
			a.state(11, 12, whole("a", 9))
		}},
		{"a position of a slot before its messages were handled", "C1c", func(w *world) {
			one := w.write(10, 20, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			a.state(11, 12, whole("a", 2))
			a.handles(5, 15, w.row(one, 0))
		}},
		{"a message that no member handled", "C1a", func(w *world) {
			w.write(10, 20, o, anyVersion, 1)
			w.seat("a", 1, 100).state(2, 3, whole("a", 0))
		}},
		{"a member that leaves without its position", "C4c", func(w *world) {
			one, other := w.write(10, 20, e, anyVersion, 1), w.write(10, 20, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			a.state(2, 3, whole("a", 0))
			a.handles(5, 6, w.row(one, 0))
			a.handles(7, 8, w.row(other, 0))
			a.state(11, 12, whole("a", 2))
			s := groupState{Position: 2} // and the other is behind it
			a.state(21, 22, s).invoke.Target = "a"
			w.fault(15*ms, 40*ms, "join-leave", "replica-a")
		}},
		{"more again than the holders of its slots may leave", "C4b", func(w *world) {
			one := w.write(10, 20, o, anyVersion, 10) // of whom one may leave four, and a run be redelivered as many
			a := w.seat("a", 1, 50)
			a.state(2, 3, whole("a", 0))
			for n := range 10 {
				a.handles(5+2*int64(n), 6+2*int64(n), w.row(one, n))
			}
			again := w.seat("a", 51, 100)
			again.state(60, 61, whole("a", 0))
			for n := range 10 {
				again.handles(65+2*int64(n), 66+2*int64(n), w.row(one, n))
			}
		}},
		{"a category that is not handled in order", "C2c", func(w *world) {
			one, other := w.write(10, 20, e, anyVersion, 1), w.write(30, 40, o, anyVersion, 1)
			a := w.seat("a", 1, 100)
			s := whole("a", 0)
			s.Members[0].Whole = true
			a.state(2, 3, s)
			a.handles(5, 6, w.row(other, 0))
			a.handles(7, 8, w.row(one, 0))
		}},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			planted.plant(w)
			v := w.verdict(t, "account:position")
			require.False(t, v.Passed())
			require.Equal(t, []promise.Rule{planted.broken}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		})
	}
}

// A member that was killed between two checkpoints leaves messages that come again: as many as it
// may.
func TestAMemberThatIsKilledLeavesAsMuchAsItMay(t *testing.T) {
	t.Parallel()
	_, o := inSlots()
	w := &world{}
	one := w.write(10, 20, o, anyVersion, 4)
	a := w.seat("a", 1, 50)
	a.state(2, 3, groupState{Members: members("a"), Parts: parts(part{Holder: "a", Slots: all})})
	for n := range 4 {
		a.handles(5+2*int64(n), 6+2*int64(n), w.row(one, n))
	}
	a.run.end = nil
	w.fault(40*ms, 41*ms, "kill-member", "replica-a")
	b := w.seat("b", 30, 3000)
	b.state(31, 32, groupState{By: "b", Members: members("a", "b"), Parts: parts(part{Holder: "a", Slots: all})})
	b2 := w.seat("b", 1040, 3000)
	b2.state(1050, 1051, groupState{Members: members("b"), Parts: parts(part{Holder: "b", Slots: all})})
	for n := range 4 {
		b2.handles(1100+2*int64(n), 1101+2*int64(n), w.row(one, n))
	}
	v := w.verdict(t, "account:position")
	require.True(t, v.Passed(), "%v", v)
	for key, n := range map[string]int{"groupedAgain": 4, "memberKills": 1, "gapMax": 1011} {
		require.Equal(t, n, v.Figures.Of(key), key)
	}
}
