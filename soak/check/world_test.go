package check_test

import (
	"context"
	"encoding/binary"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

const (
	anyVersion = messagestore.AnyVersion
	noStream   = messagestore.NoStream
)

// A world is a history and the table that came of it, in memory, to be told rightly or wrongly.
type world struct {
	acts   []*act
	rows   []*check.Row
	byID   map[uuid.UUID]*check.Row
	facts  *check.Facts
	serial uint64
	global messagestore.GlobalPosition
}

// An act is an operation: its invoke, nil for none, and its end, nil for none.
type act struct {
	proc   string
	invoke *history.Event
	end    *history.Event
}

// message makes up a message.
func (w *world) message() history.Message {
	w.serial++
	m := history.Message{Value: w.serial, Hash: w.serial * 31}
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

// do adds an operation of proc that takes from one time to another, or for ever.
func (w *world) do(proc string, from, to int64, kind history.Kind, invoke, end history.Event) *act {
	w.serial++
	a := &act{proc: proc}
	if from != 0 {
		invoke.Time, invoke.Kind, invoke.Op = from, history.Invoke, w.serial
		a.invoke = &invoke
	}
	if to != history.Never {
		end.Time, end.Kind, end.Op, end.Func = to, kind, w.serial, invoke.Func
		a.end = &end
	}
	w.acts = append(w.acts, a)
	return a
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
		history.Event{Func: history.Write, Appends: []history.Append{{Stream: stream, Expected: expected, Messages: messages}}},
		history.Event{Appends: []history.Append{answer}})
}

// try is a write of n messages that is not done, and ends as kind and class.
func (w *world) try(from, to int64, stream messagestore.StreamName, expected messagestore.Version, n int, kind history.Kind, class string) *act {
	return w.do("writer-2", from, to, kind,
		history.Event{Func: history.Write, Appends: []history.Append{{Stream: stream, Expected: expected, Messages: w.messages(n)}}},
		history.Event{Class: class})
}

// conflict is a write that meets a version.
func (w *world) conflict(from, to int64, stream messagestore.StreamName, expected, actual messagestore.Version) {
	a := w.try(from, to, stream, expected, 1, history.Fail, history.Conflict)
	a.end.Actual = actual
	a.end.Appends = []history.Append{{Stream: stream}}
}

// ask is a question for a version.
func (w *world) ask(from, to int64, stream messagestore.StreamName, answer messagestore.Version) {
	w.do("writer-3", from, to, history.OK,
		history.Event{Func: history.Version, Appends: []history.Append{{Stream: stream}}}, history.Event{Actual: answer})
}

// row returns the row of a write's message number n.
func (w *world) row(a *act, n int) *check.Row {
	return w.byID[a.invoke.Appends[0].Messages[n].ID]
}

// seen is a message as it is read.
func seen(r *check.Row) history.Append {
	return history.Append{Stream: r.Stream, Messages: []history.Message{
		{ID: r.ID, Value: r.Value, Hash: r.Hash, Position: r.Position, Global: r.Global},
	}}
}

// consumer is one that reads category account.
func (w *world) consume(proc, name string, from, to int64, interval, batch int) *life {
	e := history.Event{Func: history.Run, Consumer: name, Category: "account", Alone: true, Interval: interval, Batch: batch}
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
	e.Func, e.Appends, e.Attempt = history.Handle, []history.Append{seen(r)}, 1
	return l.w.do(l.run.proc, from, to, history.OK, e, history.Event{})
}

func (l *life) park(from, to int64, r *check.Row) *act {
	a := l.handle(from, to, r)
	a.invoke.Func, a.end.Func = history.Park, history.Park
	return a
}

func (l *life) record(from, to int64, position messagestore.GlobalPosition) *act {
	e := l.base
	e.Func, e.Position = history.Position, position
	return l.w.do(l.run.proc, from, to, history.OK, e, history.Event{})
}

func (l *life) fetch(at int64, next messagestore.GlobalPosition) {
	e := l.base
	e.Func, e.Position, e.Time, e.Kind = history.Fetch, next, at, history.OK
	l.w.serial++
	e.Op = l.w.serial
	l.w.acts = append(l.w.acts, &act{proc: l.run.proc, end: &e})
}

// files writes the histories down.
func (w *world) files(t require.TestingT, dir string) {
	byProc := map[string][]*history.Event{}
	for _, a := range w.acts {
		for _, e := range []*history.Event{a.invoke, a.end} {
			if e != nil {
				byProc[a.proc] = append(byProc[a.proc], e)
			}
		}
	}
	for proc, events := range byProc {
		slices.SortStableFunc(events, func(a, b *history.Event) int { return int(a.Time - b.Time) })
		var text []byte
		for _, e := range events {
			line, err := e.AppendText(text)
			require.NoError(t, err)
			text = append(line, '\n')
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, proc+history.Ending), text, 0o600))
	}
}

func (w *world) table() iter.Seq2[*check.Row, error] {
	return func(yield func(*check.Row, error) bool) {
		for i := range w.rows {
			if !yield(w.rows[i], nil) {
				return
			}
		}
	}
}

// verdict is the checker's verdict on the world, however little happened in it.
func (w *world) verdict(t *testing.T, cfg *check.Config) *check.Verdict {
	t.Helper()
	dir := t.TempDir()
	w.files(t, dir)
	return w.judge(t.Context(), t, dir, cfg)
}

func (w *world) judge(ctx context.Context, t require.TestingT, dir string, cfg *check.Config) *check.Verdict {
	c := check.Config{}
	if cfg != nil {
		c = *cfg
	}
	if c.Guards == nil {
		c.Guards = &check.Guards{}
	}
	v, err := check.Run(ctx, check.Inputs{Histories: dir, Rows: w.table(), Facts: w.facts}, &c)
	require.NoError(t, err)
	return v
}
