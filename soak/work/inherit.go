package work

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// A killed process leaves writes of unknown outcome. They are in its history, as they would be in the database
// or the inbox of a service, and the process that replaces it asks about them.

// mostInherited bounds how many writes a process asks about, since each question holds
// writers off.
const mostInherited = 8

// inherit resolves some of the unknown outcomes that the process before left.
func (w *caller) inherit() error {
	if w.task.Before == "" {
		return nil
	}
	left, err := unsettled(filepath.Join(w.task.History, w.task.Before+history.Ending))
	if err != nil {
		return err
	}
	w.random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	for _, o := range left[:min(len(left), mostInherited)] {
		question := &history.Event{Func: history.Resolve, Ref: history.Ref{Proc: o.Proc, Op: o.Op}}
		for _, a := range o.Appends {
			asked := history.Append{Stream: a.Stream, Expected: a.Expected}
			for _, m := range a.Messages {
				asked.Messages = append(asked.Messages, history.Message{ID: m.ID})
			}
			question.Appends = append(question.Appends, asked)
		}
		err := w.resolveBy(question, func(ctx context.Context) ([]messagestore.Written, error) { return w.find(ctx, o.Appends) })
		if err != nil {
			return err
		}
	}
	return nil
}

// unsettled returns the writes of a history whose outcome is not known, and was not
// resolved.
func unsettled(path string) ([]*history.Operation, error) {
	var unknown []*history.Operation
	settled := map[uint64]bool{}
	for o, err := range history.Operations(path) {
		switch {
		case err != nil:
			return nil, err
		case o.Func == history.Resolve && o.Kind != history.Info && o.Ref.Proc == o.Proc:
			settled[o.Ref.Op] = true
		case (o.Func == history.Write || o.Func == history.WriteTx) && o.Kind == history.Info:
			unknown = append(unknown, o)
		}
	}
	left := unknown[:0]
	for _, o := range unknown {
		if !settled[o.Op] {
			left = append(left, o)
		}
	}
	return left, nil
}

// find returns the outcome of writes whose sender is gone or sent them in a transaction. It waits for
// writes that are still in flight.
func (w *caller) find(ctx context.Context, sent []history.Append) ([]messagestore.Written, error) {
	var written []messagestore.Written
	for _, a := range sent {
		ids := make([]uuid.UUID, len(a.Messages))
		for i, m := range a.Messages {
			ids[i] = m.ID
		}
		found, err := w.store.driver.Find(ctx, a.Stream, ids)
		if err != nil {
			return nil, err
		}
		if len(found) != len(ids) { // all or none
			return nil, messagestore.ErrNotWritten
		}
		for i, m := range a.Messages {
			there, err := recordedOf(found[i])
			if err != nil {
				return nil, err
			}
			if there.ID != m.ID || there.Value != m.Value || there.Hash != m.Hash {
				return nil, fmt.Errorf("message %s: %w", m.ID, messagestore.ErrIDConflict)
			}
		}
		last := found[len(found)-1]
		written = append(written, messagestore.Written{Stream: last.Stream, Version: last.Position, GlobalPosition: last.GlobalPosition, IDs: ids})
	}
	return written, nil
}
