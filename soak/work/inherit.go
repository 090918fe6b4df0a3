package work

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

// A killed process leaves writes of unknown outcome. They are in its history, where a service would
// have them in its database or inbox, and the process that replaces it resolves them.

// mostInherited bounds how many writes a process asks about, since each question holds
// writers off.
const mostInherited = 8

// inherit resolves some of the unknown outcomes that the process before left.
func (w *caller) inherit() error {
	if w.task.Before == "" {
		return nil
	}
	left, err := unsettled(filepath.Join(w.task.History, w.task.Before+promise.Ending))
	if err != nil {
		return err
	}
	w.random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	for _, o := range left[:min(len(left), mostInherited)] {
		question := &history.Event{Call: history.Resolve, Ref: &history.Ref{Process: w.task.Before, Op: o.Op}}
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

// unsettled returns the writes of a history with unknown outcomes that were not resolved.
func unsettled(path string) (left []history.Event, err error) {
	lines, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	open := map[int64]history.Event{}
	asked := map[int64]int64{} // by the call that asks: the call that it asks about
	for line := range bytes.Lines(lines) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it was torn when the process was killed
		}
		var e history.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		switch {
		case e.Answer == "" && (e.Call == history.Write || e.Call == history.WriteTx):
			open[e.Op] = e
		case e.Answer == "" && e.Call == history.Resolve && e.Ref.Process == strings.TrimSuffix(filepath.Base(path), promise.Ending):
			asked[e.Op] = e.Ref.Op
		case e.Answer == history.Unknown:
		case e.Call == history.Resolve:
			delete(open, asked[e.Op])
		default:
			delete(open, e.Op)
		}
	}
	for _, op := range slices.Sorted(maps.Keys(open)) {
		left = append(left, open[op])
	}
	return left, nil
}

// find returns the outcome of writes if their sender is gone or sent them in a transaction. It
// waits for writes that are still in flight.
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
