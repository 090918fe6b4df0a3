package check_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

const stream = messagestore.StreamName("account-1")

// Each case is a bug as it would look in a history, and breaks exactly one invariant.
func TestEachPlantedBugBreaksExactlyItsPromise(t *testing.T) {
	t.Parallel()
	for _, planted := range []struct {
		name   string
		broken promise.Rule
		plant  func(w *world)
	}{
		{"an acknowledged message is gone", "S1a", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1)
			w.write(30, 40, stream, anyVersion, 1)
			w.rows = w.rows[:1]
		}},
		{"a message without a writer", "S4a", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1)
			w.commit(stream, w.message())
		}},
		{"a write that was rolled back is there", "S4a", func(w *world) {
			a := w.try(10, 20, stream, anyVersion, 1, history.RolledBack)
			w.commit(stream, a.invoke.Appends[0].Messages...)
		}},
		{"what another process found not to be written is there", "S4a", func(w *world) {
			a := w.try(10, 20, stream, anyVersion, 1, history.Unknown)
			w.resolve(30, 40, a, history.NotWritten)
			w.acts[1].invoke.Ref = nil
			w.commit(stream, a.invoke.Appends[0].Messages...)
		}},
		{"one stream of two", "S2a", func(w *world) {
			a := w.try(10, 20, stream, anyVersion, 1, history.Unknown)
			a.invoke.Appends = append(a.invoke.Appends, history.Append{Stream: "account-2", Expected: anyVersion, Messages: w.messages(1)})
			w.commit(stream, a.invoke.Appends[0].Messages...)
		}},
		{"a foreign message in a batch", "S2b", func(w *world) {
			a := w.try(10, 50, stream, anyVersion, 2, history.OK)
			w.commit(stream, a.invoke.Appends[0].Messages[0])
			w.write(10, 50, stream, anyVersion, 1)
			a.end.Appends = []history.Append{w.commit(stream, a.invoke.Appends[0].Messages[1])}
		}},
		{"something else that has the id was resolved as written", "S5b", func(w *world) {
			_, other := w.reuse()
			w.resolve(60, 70, other, history.Written)
		}},
		{"a gap in a stream", "S3a", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1)
			a := w.write(30, 40, stream, anyVersion, 1)
			w.row(a, 0).Position = 2
			a.end.Appends[0].Version = 2
		}},
		{"a position that is another", "S5a", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1).end.Appends[0].Version = 1
		}},
		{"the neighbour's outcome", "S5a", func(w *world) {
			a, b := w.write(10, 40, stream, anyVersion, 1), w.write(10, 40, "account-2", anyVersion, 1)
			a.end.Appends[0].Global, b.end.Appends[0].Global = b.end.Appends[0].Global, a.end.Appends[0].Global
		}},
		{"other content", "S5b", func(w *world) {
			w.row(w.write(10, 20, stream, anyVersion, 1), 0).Hash++
		}},
		{"what is there is refused for its version", "S5e", func(w *world) {
			a := w.write(10, 20, stream, noStream, 2)
			w.conflict(30, 40, stream, noStream, 1)
			w.acts[1].invoke.Appends[0].Messages = a.invoke.Appends[0].Messages
		}},
		{"two that were first", "S5c", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			w.do("writer-2", 15, 40, history.OK, *a.invoke, *a.end)
		}},
		{"a duplicate of nothing", "S5d", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			a.end.Appends[0].Duplicate = true
		}},
		{"one id twice", "S5g", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			w.commit("account-2", a.invoke.Appends[0].Messages...)
		}},
		{"one position twice", "S3b", func(w *world) {
			w.write(10, 20, "plain-1", anyVersion, 1)
			a := w.write(10, 20, "plain-1", anyVersion, 1)
			w.row(a, 0).Position = 0
			a.end.Appends[0].Version = 0
		}},
		{"one global position twice", "S6a", func(w *world) {
			w.write(10, 40, stream, anyVersion, 1)
			a := w.write(10, 40, "account-2", anyVersion, 1)
			w.row(a, 0).Global = 1
			a.end.Appends[0].Global = 1
		}},
		{"global positions of a stream the other way round", "S6b", func(w *world) {
			w.swap(w.write(10, 40, stream, anyVersion, 1), w.write(10, 40, stream, anyVersion, 1))
		}},
		{"global positions of a category against time", "S6c", func(w *world) {
			w.swap(w.write(10, 20, stream, anyVersion, 1), w.write(30, 40, "account-2", anyVersion, 1))
		}},
		{"what was found written, before one that began later", "S6c", func(w *world) {
			a := w.try(10, 20, stream, anyVersion, 1, history.Unknown)
			answer := w.commit(stream, a.invoke.Appends[0].Messages...)
			answer.Global = 2
			w.resolve(30, 40, a, history.Written)
			w.acts[1].end.Appends[0].Global = answer.Global
			b := w.write(50, 60, "account-2", anyVersion, 1)
			w.row(a, 0).Global, w.row(b, 0).Global = 2, 1
			b.end.Appends[0].Global = 1
		}},
		{"an old version", "S3c", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1)
			w.write(30, 40, stream, anyVersion, 1)
			w.ask(50, 60, stream, 0)
		}},
		{"a version that never was", "S3d", func(w *world) {
			w.write(10, 20, stream, anyVersion, 2)
			w.ask(30, 40, stream, 0)
		}},
		{"an expected version that was not checked", "S3e", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1)
			w.write(30, 40, stream, noStream, 1)
		}},
		{"a duplicate before its message", "S3c", func(w *world) {
			a := w.try(30, 40, stream, anyVersion, 1, history.Unknown)
			answer := w.commit(stream, a.invoke.Appends[0].Messages...)
			answer.Duplicate = true
			w.do("writer-3", 10, 20, history.OK, *a.invoke, history.Event{Appends: []history.Append{answer}})
		}},
		{"a read that ends too early", "S3c", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			w.write(30, 40, stream, anyVersion, 1)
			w.readFrom(0, 50, 60, w.row(a, 0))
		}},
		{"an id that is said to be taken, and is not", "S5f", func(w *world) {
			w.try(10, 20, stream, anyVersion, 1, history.IDConflict)
		}},
		{"a conflict with the expected version", "S3f", func(w *world) {
			w.write(10, 20, stream, anyVersion, 1)
			w.conflict(30, 40, stream, 0, 0)
		}},
		{"a message that was never handled", "C1a", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			b := w.write(30, 40, "account-2", anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			l.handle(50, 55, w.row(a, 0))
			l.handle(60, 65, w.row(b, 0)).end.Answer = history.Failed
		}},
		{"a position that was recorded before its messages were handled", "C1b", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			l.record(40, 60, 2)
			l.handle(50, 55, w.row(a, 0))
		}},
		{"a position behind a message that was given up on, and is nowhere", "C1b", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 45, 10, 10)
			l.handle(25, 30, w.row(a, 0)).end.Answer = history.Failed
			l.park(31, 35, w.row(a, 0)).end.Answer = history.Unknown
			l.record(36, 40, 2)
			m := w.consume("consumer-2", "audit", 50, 100, 10, 10) // where it is not given up on
			m.handle(60, 65, w.row(a, 0))
		}},
		{"first deliveries the other way round", "C2a", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 2)
			l := w.consume("consumer-1", "audit", 5, 45, 10, 10)
			m := w.consume("consumer-2", "audit", 5, 100, 10, 10)
			l.handle(30, 35, w.row(a, 1))
			m.handle(50, 55, w.row(a, 0))
		}},
		{"the next one before the one before was done", "C2b", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 2)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			l.handle(30, 50, w.row(a, 0))
			l.handle(40, 60, w.row(a, 1))
		}},
		{"a run that begins beyond what was done", "C2b", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 2)
			l := w.consume("consumer-1", "audit", 5, 35, 10, 10)
			l.handle(30, 35, w.row(a, 0)).end = nil
			m := w.consume("consumer-2", "audit", 40, 100, 10, 10)
			m.handle(50, 55, w.row(a, 1))
			n := w.consume("consumer-3", "audit", 110, 200, 10, 10)
			n.handle(120, 125, w.row(a, 0))
		}},
		{"a position that goes back", "C1e", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			l.handle(30, 35, w.row(a, 0))
			l.record(40, 45, 2)
			l.record(50, 55, 1)
		}},
		{"a position beyond what was answered", "C1d", func(w *world) {
			a, b := w.write(10, 20, stream, anyVersion, 1), w.write(20, 25, stream, anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			l.fetch(28, 2)
			l.handle(30, 35, w.row(a, 0))
			l.handle(36, 38, w.row(b, 0))
			l.record(40, 45, 3)
		}},
		{"two runs that record in turn", "C3a", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			m := w.consume("consumer-2", "audit", 5, 100, 10, 10)
			l.handle(30, 35, w.row(a, 0))
			l.record(40, 45, 1)
			m.record(50, 55, 1)
			l.record(60, 65, 2)
		}},
		{"more again in one run than a crash allows, and in the others nothing", "C4a", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 5)
			first := w.consume("consumer-1", "audit", 5, 90, 2, 2)
			for n := range 5 {
				first.handle(30+5*int64(n), 32+5*int64(n), w.row(a, n))
			}
			for run := int64(1); run < 10; run++ {
				w.consume("consumer-1", "audit", 100*run+5, 100*run+90, 2, 2)
			}
			last := w.consume("consumer-1", "audit", 1005, 1090, 2, 2)
			for n := range 5 {
				last.handle(1030+5*int64(n), 1032+5*int64(n), w.row(a, n))
			}
		}},
		{"a dirty read", "S4b", func(w *world) {
			a := w.try(10, 20, stream, anyVersion, 1, history.RolledBack)
			m := a.invoke.Appends[0].Messages[0]
			w.read(12, 15, history.Append{Stream: stream, Messages: []history.Message{m}})
		}},
		{"a read with a gap", "S6d", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 4)
			w.readFrom(1, 30, 40, w.row(a, 1), w.row(a, 3))
		}},
		{"a message read elsewhere", "S4b", func(w *world) {
			a := w.write(10, 20, stream, anyVersion, 1)
			r := seen(w.row(a, 0))
			r.Messages[0].Position++
			w.read(30, 40, r)
		}},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			planted.plant(w)
			v := w.verdict(t, "plain")
			require.False(t, v.Passed())
			require.Equal(t, []promise.Rule{planted.broken}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		})
	}
}

// Two writes of unknown outcome may have one id: the second was refused for it.
func TestAnIDThatWasUsedForSomethingElseIsOfWhoWroteIt(t *testing.T) {
	t.Parallel()
	for asked := range 3 {
		w := &world{}
		first, other := w.reuse()
		if asked > 0 {
			w.resolve(60, 65, first, history.Written)
		}
		if asked > 1 {
			w.resolve(60, 70, other, history.IDConflict)
		}
		v := w.verdict(t)
		require.True(t, v.Passed(), "%v", v)
	}
}

// A consumer that does not know whether a message was parked parks it again before it goes on.
func TestAMessageThatMayBeParkedIsNotDone(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"Parked": history.OK, "Unknown": history.Unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			a := w.write(10, 20, stream, anyVersion, 1)
			l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
			l.handle(25, 30, w.row(a, 0)).end.Answer = history.Failed
			l.park(31, 35, w.row(a, 0)).end.Answer = answer
			l.record(36, 40, 2)
			v := w.verdict(t)
			require.Equal(t, answer == history.OK, v.Passed(), "%v", v)
		})
	}
}

// reuse has one write whose outcome is unknown, and another, of something else under its id,
// that comes to nothing.
func (w *world) reuse() (first, other *act) {
	first = w.try(10, 20, stream, anyVersion, 1, history.Unknown)
	w.commit(stream, first.invoke.Appends[0].Messages...)
	other = w.try(30, 40, stream, anyVersion, 1, history.Unknown)
	other.invoke.Appends[0].Messages[0].ID = first.invoke.Appends[0].Messages[0].ID
	return first, other
}

// resolve asks for the outcome of a write.
func (w *world) resolve(from, to int64, of *act, class string) {
	asked := history.Append{Stream: of.invoke.Appends[0].Stream, Messages: of.invoke.Appends[0].Messages}
	answer := history.Event{}
	if class == history.Written {
		answer.Appends = []history.Append{{Stream: asked.Stream}}
		if r := w.byID[asked.Messages[len(asked.Messages)-1].ID]; r != nil {
			answer.Appends[0].Version, answer.Appends[0].Global = r.Position, r.Global
		}
	}
	w.do("writer-3", from, to, class, history.Event{
		Call: history.Resolve, Ref: &history.Ref{Process: of.proc, Op: of.invoke.Op}, Appends: []history.Append{asked},
	}, answer)
}

// swap gives each of two writes the other's global position.
func (w *world) swap(a, b *act) {
	x, y := w.row(a, 0), w.row(b, 0)
	x.Global, y.Global = y.Global, x.Global
	a.end.Appends[0].Global, b.end.Appends[0].Global = x.Global, y.Global
}

// readFrom reads stream from a position on, to its end.
func (w *world) readFrom(position messagestore.Version, from, to int64, rows ...*check.Row) {
	answer := history.Append{Stream: stream}
	for _, r := range rows {
		answer.Messages = append(answer.Messages, seen(r).Messages...)
	}
	w.do("reader-1", from, to, history.OK,
		history.Event{Call: history.Read, Appends: []history.Append{{Stream: stream, Expected: position}}}, history.Event{Appends: []history.Append{answer}})
}

func (w *world) read(from, to int64, what ...history.Append) {
	w.do("reader-1", from, to, history.OK, history.Event{Call: history.Read, Category: "account"}, history.Event{Appends: what})
}
