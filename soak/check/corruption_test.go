package check_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

// A corruption changes one thing in a history that was right. It is false if there is nothing to change.
type corruption struct {
	name    string
	corrupt func(s *simulation) bool
}

var corruptions = []corruption{
	{"an acknowledged row is removed", func(s *simulation) bool {
		a := s.any(s.written)
		if a == nil {
			return false
		}
		r := s.row(a, 0)
		s.rows = slices.DeleteFunc(s.rows, func(x *check.Row) bool { return x == r })
		return true
	}},
	{"a row appears", func(s *simulation) bool {
		s.commit(s.stream(), s.message())
		return true
	}},
	{"two neighbours change places", func(s *simulation) bool {
		r := s.anyAccount(func(r *check.Row) bool { return r.Position > 0 })
		if r == nil {
			return false
		}
		for _, x := range s.accounts {
			if x.Stream == r.Stream && x.Position == r.Position-1 {
				x.Position, r.Position = r.Position, x.Position
				return true
			}
		}
		return false
	}},
	{"two rows change ids", func(s *simulation) bool {
		a, b := s.anyAccount(nil), s.anyAccount(nil)
		if a == b {
			return false
		}
		a.ID, b.ID = b.ID, a.ID
		return true
	}},
	{"content changes", func(s *simulation) bool {
		r := s.anyAccount(nil)
		if r != nil {
			r.Hash++
		}
		return r != nil
	}},
	{"a number changes", func(s *simulation) bool {
		r := s.anyAccount(nil)
		if r != nil {
			r.Value++
		}
		return r != nil
	}},
	{"an answer's position changes", func(s *simulation) bool {
		a := s.any(s.written)
		if a != nil {
			a.end.Appends[0].Version++
		}
		return a != nil
	}},
	{"an answer's global position changes", func(s *simulation) bool {
		a := s.any(s.written)
		if a != nil {
			a.end.Appends[0].Global++
		}
		return a != nil
	}},
	{"a write that was done is said not to be", func(s *simulation) bool {
		a := s.any(s.written)
		if a != nil {
			a.end.Answer = "busy"
		}
		return a != nil
	}},
	{"a version is asked for and never was", func(s *simulation) bool {
		a := s.anyOf(history.Version, nil)
		if a != nil {
			a.end.Actual += 1000
		}
		return a != nil
	}},
	{"a conflict with the version that was expected", func(s *simulation) bool {
		a := s.anyOf("", func(a *act) bool { return a.end.Answer == history.Conflict })
		if a == nil {
			return false
		}
		for _, x := range a.invoke.Appends {
			if x.Stream == a.end.Appends[0].Stream {
				a.end.Actual = x.Expected
			}
		}
		return true
	}},
	{"a write is another time that it was done", func(s *simulation) bool {
		// One that another of its category was begun after.
		a := s.any(s.written)
		if a == nil || s.row(a, 0) == s.accounts[len(s.accounts)-1] {
			return false
		}
		last := s.anyOf(history.Write, func(x *act) bool {
			return x.invoke.Appends[0].Stream.Category() == "account" && s.row(x, 0) != nil && x.end.Answer == history.OK &&
				!x.end.Appends[0].Duplicate && x.end.Appends[0].Global > a.end.Appends[0].Global
		})
		if last == nil {
			return false
		}
		a.invoke.At, a.end.At = last.end.At+1, last.end.At+2
		return true
	}},
	{"a repeat is told that it was first", func(s *simulation) bool {
		a := s.any(s.written)
		if a == nil {
			return false
		}
		s.do("writer-9", a.invoke.At, a.end.At, history.OK, *a.invoke, history.Event{Appends: a.end.Appends})
		return true
	}},
	{"what was written is resolved as not written", func(s *simulation) bool {
		a := s.anyOf(history.Resolve, func(a *act) bool { return a.end.Answer == history.Written })
		if a != nil {
			a.end.Answer, a.end.Appends = history.NotWritten, nil
		}
		return a != nil
	}},
	{"what was not written is resolved as written", func(s *simulation) bool {
		a := s.anyOf(history.Resolve, func(a *act) bool { return a.end.Answer == history.NotWritten })
		if a == nil {
			return false
		}
		a.end.Answer = history.Written
		a.end.Appends = []history.Append{{Stream: a.invoke.Appends[0].Stream, Version: 10_000}}
		return true
	}},
	{"a message is never handled", func(s *simulation) bool {
		r := s.anyAccount(nil)
		if r == nil {
			return false
		}
		for _, a := range s.acts {
			if a.end != nil && (a.end.Call == history.Handle || a.end.Call == history.Park) && a.invoke.Appends[0].Messages[0].ID == r.ID {
				a.end.Answer = history.Failed
			}
		}
		return true
	}},
	{"a message is first delivered before the one before", func(s *simulation) bool {
		r := s.anyAccount(func(r *check.Row) bool { return r.Position > 0 })
		if r == nil {
			return false
		}
		for _, a := range s.acts {
			if a.end != nil && a.end.Call == history.Handle && a.invoke.Appends[0].Messages[0].ID == r.ID {
				a.invoke.At = 1
				return true
			}
		}
		return false
	}},
	{"a position is recorded before its messages are handled", func(s *simulation) bool {
		a := s.anyOf(history.Position, nil)
		if a != nil {
			a.invoke.At, a.end.At = 1, 2
		}
		return a != nil
	}},
	{"a position is recorded beyond the end", func(s *simulation) bool {
		a := s.anyOf(history.Position, nil)
		if a != nil {
			a.invoke.Position += 1_000_000
		}
		return a != nil
	}},
	{"a message is delivered from elsewhere", func(s *simulation) bool {
		a := s.anyOf(history.Handle, nil)
		if a != nil {
			a.invoke.Appends[0].Messages[0].Position++
		}
		return a != nil
	}},
	{"a message is read that is not there", func(s *simulation) bool {
		a := s.anyOf(history.Read, func(a *act) bool { return len(a.end.Appends) > 0 })
		if a != nil {
			a.end.Appends[0].Messages[0] = s.message()
		}
		return a != nil
	}},
	{"a key is reserved twice", func(s *simulation) bool {
		for key := range s.keys {
			s.world.commit(reservation(key), s.message())
			return true
		}
		return false
	}},
	{"an effect is missing", func(s *simulation) bool {
		n := slices.IndexFunc(s.rows, func(r *check.Row) bool { return r.Effect != "" })
		if n < 0 {
			return false
		}
		s.rows[n].Effect = ""
		return true
	}},
	{"an effect happens twice", func(s *simulation) bool {
		for key := range s.keys {
			s.commands.effect(key)
			return true
		}
		return false
	}},
	{"a reused key is not told", func(s *simulation) bool {
		a := s.anyOf(history.Reserve, func(a *act) bool { return a.end.Answer == history.KeyReused })
		if a != nil {
			a.end.Answer = "busy"
		}
		return a != nil
	}},
}

func (s *simulation) any(acts []*act) *act {
	acts = slices.DeleteFunc(slices.Clone(acts), func(a *act) bool { return a.invoke.Call == history.Resolve })
	if len(acts) == 0 {
		return nil
	}
	return acts[s.rng.IntN(len(acts))]
}

// anyOf returns an operation of a kind, "" for all, that was answered.
func (s *simulation) anyOf(f string, is func(*act) bool) *act {
	var some []*act
	for _, a := range s.acts {
		if a.end != nil && a.invoke != nil && (f == "" || a.end.Call == f) && (is == nil || is(a)) {
			some = append(some, a)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[s.rng.IntN(len(some))]
}

func (s *simulation) anyAccount(is func(*check.Row) bool) *check.Row {
	some := slices.DeleteFunc(slices.Clone(s.accounts), func(r *check.Row) bool { return is != nil && !is(r) })
	if len(some) == 0 {
		return nil
	}
	return some[s.rng.IntN(len(some))]
}

func TestAnySingleCorruptionIsCaught(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, len(corruptions)-1).Draw(t, "corruption")
		caught(t, corruptions[n], rapid.Uint64().Draw(t, "seed"), rapid.IntRange(50, 200).Draw(t, "steps"))
	})
}

func TestEachCorruptionIsCaught(t *testing.T) {
	t.Parallel()
	for _, c := range corruptions {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := 0
			for seed := range uint64(3) {
				if caught(t, c, seed, 300) {
					n++
				}
			}
			require.Positive(t, n, "there was never anything to corrupt")
		})
	}
}

// caught corrupts a simulation and requires that it is found out. It is false if there was nothing to corrupt.
func caught(t judged, c corruption, seed uint64, steps int) bool {
	s := simulate(rand.New(rand.NewPCG(1, seed)), steps)
	if !c.corrupt(s) {
		return false
	}
	v := s.verdict(t, unrecordedEffects...)
	require.NotEmpty(t, v.Broken, "%s: %v", c.name, v)
	return true
}
