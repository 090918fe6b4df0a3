package check_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

const (
	anyVersion = messagestore.AnyVersion
	noStream   = messagestore.NoStream

	never = promise.Never
)

// A world is a history and the table that came of it, in memory, to be told rightly or wrongly.
type world struct {
	acts   []*act
	events []*nemesis
	rows   []*check.Row
	byID   map[uuid.UUID]*check.Row
	facts  check.Facts
	serial uint64
	global messagestore.GlobalPosition
}

// An act is a call and its answer, nil for none.
type act struct {
	proc   string
	invoke *history.Event
	end    *history.Event
}

// A nemesis is a record of the nemesis.
type nemesis struct{ call, answer crew.Event }

// message makes up a message.
func (w *world) message() history.Message {
	w.serial++
	m := history.Message{Value: w.serial, Hash: int64(w.serial) * 31}
	binary.BigEndian.PutUint64(m.ID[8:], w.serial)
	m.ID[6], m.ID[0] = 0x40, 1
	return m
}

func (w *world) messages(n int) []history.Message {
	messages := make([]history.Message, n)
	for i := range messages {
		messages[i] = w.message()
	}
	return messages
}

// do adds a call of proc that takes from one time to another, or for ever.
func (w *world) do(proc string, from, to int64, answer string, invoke, end history.Event) *act {
	w.serial++
	a := &act{proc: proc}
	invoke.At, invoke.Op = from, int64(w.serial)
	a.invoke = &invoke
	if to != never {
		end.At, end.Op, end.Call, end.Answer = to, int64(w.serial), invoke.Call, answer
		a.end = &end
	}
	w.acts = append(w.acts, a)
	return a
}

// strike adds something that the nemesis did.
func (w *world) strike(from, to int64, call, answer crew.Event) {
	call.At, answer.At, answer.Answer = from, to, crew.OK
	w.events = append(w.events, &nemesis{call, answer})
}

func (w *world) fault(from, to int64, name, target string) {
	w.strike(from, to, crew.Event{Call: crew.Faulted, Name: name, Target: target}, crew.Event{})
}

func (w *world) version(stream messagestore.StreamName) messagestore.Version {
	for _, r := range slices.Backward(w.rows) {
		if r.Stream == stream {
			return r.Position
		}
	}
	return noStream
}

// commit puts messages into the table.
func (w *world) commit(stream messagestore.StreamName, messages ...history.Message) history.Append {
	a := history.Append{Stream: stream, Version: w.version(stream)}
	for _, m := range messages {
		w.global++
		a.Version++
		a.Global = w.global
		w.add(&check.Row{Stream: stream, Position: a.Version, Global: a.Global, ID: m.ID, Value: m.Value, Hash: m.Hash})
	}
	return a
}

func (w *world) add(r *check.Row) {
	if w.byID == nil {
		w.byID = map[uuid.UUID]*check.Row{}
	}
	w.rows = append(w.rows, r)
	w.byID[r.ID] = r
}

// write is a write of n messages that is done and acknowledged.
func (w *world) write(from, to int64, stream messagestore.StreamName, expected messagestore.Version, n int) *act {
	messages := w.messages(n)
	answer := w.commit(stream, messages...)
	return w.do("writer-1", from, to, history.OK,
		history.Event{Call: history.Write, Appends: []history.Append{{Stream: stream, Expected: expected, Messages: messages}}},
		history.Event{Appends: []history.Append{answer}})
}

// try is a write of n messages that is not done.
func (w *world) try(from, to int64, stream messagestore.StreamName, expected messagestore.Version, n int, answer string) *act {
	return w.do("writer-2", from, to, answer,
		history.Event{Call: history.Write, Appends: []history.Append{{Stream: stream, Expected: expected, Messages: w.messages(n)}}}, history.Event{})
}

// conflict is a write that meets a version.
func (w *world) conflict(from, to int64, stream messagestore.StreamName, expected, actual messagestore.Version) {
	a := w.try(from, to, stream, expected, 1, history.Conflict)
	a.end.Actual = actual
	a.end.Appends = []history.Append{{Stream: stream}}
}

// ask is a question for a version.
func (w *world) ask(from, to int64, stream messagestore.StreamName, answer messagestore.Version) {
	w.do("writer-3", from, to, history.OK,
		history.Event{Call: history.Version, Appends: []history.Append{{Stream: stream}}}, history.Event{Actual: answer})
}

// row returns the row of a write's message number n.
func (w *world) row(a *act, n int) *check.Row {
	return w.byID[a.invoke.Appends[0].Messages[n].ID]
}

// seen is a message that was read.
func seen(r *check.Row) history.Append {
	return history.Append{Stream: r.Stream, Messages: []history.Message{
		{ID: r.ID, Value: r.Value, Hash: r.Hash, Position: r.Position, Global: r.Global},
	}}
}

// consumer is a consumer of category account.
func (w *world) consume(proc, name string, from, to int64, interval, batch int) *life {
	e := history.Event{Call: history.Run, Consumer: name, Category: "account", Alone: true, Interval: interval, Batch: batch}
	a := w.do(proc, from, to, history.OK, e, history.Event{})
	return &life{w, a, history.Event{Consumer: name, Category: "account", Run: a.invoke.Op}}
}

type life struct {
	w    *world
	run  *act
	base history.Event
}

func (l *life) handle(from, to int64, r *check.Row) *act {
	e := l.base
	e.Call, e.Appends, e.Attempt = history.Handle, []history.Append{seen(r)}, 1
	return l.w.do(l.run.proc, from, to, history.OK, e, history.Event{})
}

func (l *life) park(from, to int64, r *check.Row) *act {
	a := l.handle(from, to, r)
	a.invoke.Call, a.end.Call = history.Park, history.Park
	return a
}

func (l *life) record(from, to int64, position messagestore.GlobalPosition) *act {
	e := l.base
	e.Call, e.Position = history.Position, position
	return l.w.do(l.run.proc, from, to, history.OK, e, history.Event{})
}

func (l *life) fetch(at int64, next messagestore.GlobalPosition) {
	e := l.base
	e.Call, e.Position = history.Fetch, next
	l.w.do(l.run.proc, at, never, "", e, history.Event{})
}

// judged is a test, or one draw of a property's.
type judged interface {
	require.TestingT
	Context() context.Context
}

// verdict is the verdict on the world, but for the writers to some categories.
func (w *world) verdict(t judged, unrecorded ...messagestore.Category) *promise.Verdict {
	if t, is := t.(*testing.T); is {
		t.Helper()
	}
	ctx := t.Context()
	dir, err := os.MkdirTemp("", "soak")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	h, err := promise.Open(ctx, dir, check.Promises)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	calls := &table{}
	call := func(process string, op int64, call string, at, end int64, answer string, asked, told any) {
		a, err := json.Marshal(asked)
		require.NoError(t, err)
		b, err := json.Marshal(told)
		require.NoError(t, err)
		calls.rows = append(calls.rows, []any{process, op, call, at, end, answer, string(a), string(b)})
	}
	for _, a := range w.acts {
		if a.end == nil {
			call(a.proc, a.invoke.Op, a.invoke.Call, a.invoke.At, never, "", a.invoke, struct{}{})
			continue
		}
		call(a.proc, a.invoke.Op, a.invoke.Call, a.invoke.At, a.end.At, a.end.Answer, a.invoke, a.end)
	}
	for i, n := range w.events {
		call("nemesis", int64(i), n.call.Call, n.call.At, n.answer.At, n.answer.Answer, n.call, n.answer)
	}
	require.NoError(t, h.Fill(ctx, "calls", calls))
	messages := &table{}
	for _, r := range w.rows {
		values, err := r.Values()
		require.NoError(t, err)
		messages.rows = append(messages.rows, values)
	}
	require.NoError(t, h.Fill(ctx, "messages", messages))
	require.NoError(t, check.Note(ctx, h, w.facts, unrecorded...))
	v, err := h.Check(ctx)
	require.NoError(t, err)
	return v
}

// A table has rows in memory.
type table struct{ rows [][]any }

func (t *table) Next() bool { return len(t.rows) > 0 }

func (t *table) Values() ([]any, error) {
	values := t.rows[0]
	t.rows = t.rows[1:]
	return values, nil
}

func (t *table) Err() error { return nil }
