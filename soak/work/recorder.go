package work

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// connectTimeout bounds how long a client waits for a connection to PostgreSQL.
const connectTimeout = 5 * time.Second

// A recorder is a store that records each write and its outcome. It is safe for concurrent use.
type recorder struct {
	*messagestore.Store
	driver  messagestore.Driver
	history journal
	process string
	failed  *atomic.Bool // since a caller asked: a call, by no conflict
}

func newRecorder(store *messagestore.Store, driver messagestore.Driver, j journal, process string) *recorder {
	return &recorder{store, driver, j, process, &atomic.Bool{}}
}

// Write is like messagestore.Store.Write.
func (r *recorder) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	write := messagestore.StreamWrite{Stream: stream, Expected: expected, Bodies: identified(bodies)}
	call, err := r.begin(history.Write, write)
	if err != nil {
		return messagestore.Written{}, err
	}
	ctx, lost := withLost(ctx)
	written, err := r.Store.Write(ctx, stream, expected, write.Bodies...)
	if err == nil && lost.Load() {
		r.found(call, []messagestore.Written{written}, write)
		return written, nil
	}
	return written, r.end(call, []messagestore.Written{written}, err)
}

// WriteStreams is like messagestore.Store.WriteStreams.
func (r *recorder) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	for i := range writes {
		writes[i].Bodies = identified(writes[i].Bodies)
	}
	call, err := r.begin(history.Write, writes...)
	if err != nil {
		return nil, err
	}
	ctx, lost := withLost(ctx)
	written, err := r.Store.WriteStreams(ctx, writes...)
	if err == nil && lost.Load() {
		r.found(call, written, writes...)
		return written, nil
	}
	return written, r.end(call, written, err)
}

// TryWriteStreams is like messagestore.Store.TryWriteStreams. A [messagestore.Conflict] is a
// conflict in the history.
func (r *recorder) TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	for i := range writes {
		writes[i].Bodies = identified(writes[i].Bodies)
	}
	call, err := r.begin(history.Write, writes...)
	if err != nil {
		return nil, nil, err
	}
	ctx, lost := withLost(ctx)
	written, met, err := r.Store.TryWriteStreams(ctx, writes...)
	switch {
	case met != nil:
		_ = r.end(call, nil, conflictOf(writes, met))
		return nil, met, nil
	case err == nil && lost.Load():
		r.found(call, written, writes...)
		return written, nil, nil
	}
	return written, nil, r.end(call, written, err)
}

// conflictOf returns the conflict of a write without past types. If the write met something and no
// version differs, it returns a conflict with the expected version, which the checker will find.
func conflictOf(writes []messagestore.StreamWrite, met *messagestore.Conflict) *messagestore.VersionConflictError {
	for i, w := range writes {
		actual := messagestore.NoStream
		if met.Last[i] != nil {
			actual = met.Last[i].Position
		}
		if w.Expected != messagestore.AnyVersion && w.Expected != actual {
			return &messagestore.VersionConflictError{Stream: w.Stream, Expected: w.Expected, Actual: actual}
		}
	}
	return &messagestore.VersionConflictError{Stream: writes[0].Stream, Expected: writes[0].Expected, Actual: writes[0].Expected}
}

// Version is like messagestore.Store.Version. If a handler or a consumer decides by a version, the
// history has it.
func (r *recorder) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	call := r.history.begin(&history.Event{Call: history.Version, Appends: []history.Append{{Stream: stream}}})
	version, err := r.Store.Version(ctx, stream)
	if err != nil {
		r.failed.Store(true)
		r.history.end(call, history.Failed, &history.Event{Note: shorten(err.Error())})
		return version, err
	}
	r.history.end(call, history.OK, &history.Event{Actual: version})
	return version, nil
}

func (r *recorder) begin(f string, writes ...messagestore.StreamWrite) (call history.Event, err error) {
	sent, err := appendsOf(writes)
	if err != nil {
		return history.Event{}, err
	}
	return r.history.begin(&history.Event{Call: f, Appends: sent}), nil
}

// appendsOf returns the writes in the form of the history. Their messages have ids.
func appendsOf(writes []messagestore.StreamWrite) ([]history.Append, error) {
	var all []history.Append
	for _, w := range writes {
		a := history.Append{Stream: w.Stream, Expected: w.Expected}
		for _, body := range w.Bodies {
			m, err := messageOf(body)
			if err != nil {
				return nil, err
			}
			a.Messages = append(a.Messages, m)
		}
		all = append(all, a)
	}
	return all, nil
}

// An unknown is the error of a write of unknown outcome, with the operation that it was.
type unknown struct {
	op  int64
	err error
}

func (u *unknown) Error() string { return u.err.Error() }
func (u *unknown) Unwrap() error { return u.err }

// end writes down how a write ended, and returns its error.
func (r *recorder) end(call history.Event, written []messagestore.Written, err error) error {
	e, answer := ending(err)
	if err == nil {
		e.Appends = appends(written)
	}
	r.history.end(call, answer, e)
	if answer == history.Unknown || answer == history.Failed {
		r.failed.Store(true)
	}
	if answer == history.Unknown {
		return &unknown{call.Op, err}
	}
	return err
}

// found writes down that the answer to a write was lost, and that the store looked it up.
func (r *recorder) found(call history.Event, written []messagestore.Written, writes ...messagestore.StreamWrite) {
	r.history.end(call, history.Unknown, &history.Event{Note: "the answer was lost"})
	asked := r.history.begin(r.question(call.Op, writes))
	r.history.end(asked, history.Written, &history.Event{Appends: appends(written)})
}

// question asks for the outcome of a write.
func (r *recorder) question(op int64, writes []messagestore.StreamWrite) *history.Event {
	e := &history.Event{Call: history.Resolve, Ref: &history.Ref{Process: r.process, Op: op}}
	for _, write := range writes {
		a := history.Append{Stream: write.Stream, Expected: write.Expected}
		for _, body := range write.Bodies {
			a.Messages = append(a.Messages, history.Message{ID: body.(messagestore.Envelope).ID}) //nolint:errcheck // it was made so
		}
		e.Appends = append(e.Appends, a)
	}
	return e
}

func appends(written []messagestore.Written) []history.Append {
	all := make([]history.Append, len(written))
	for i, w := range written {
		all[i] = history.Append{Stream: w.Stream, Version: w.Version, Global: w.GlobalPosition, Duplicate: w.Duplicate}
	}
	return all
}

// ending returns the event and the answer of a write's error.
func ending(err error) (e *history.Event, answer string) {
	if err == nil {
		return &history.Event{}, history.OK
	}
	e = &history.Event{Note: shorten(err.Error())}
	if errors.Is(err, messagestore.ErrOutcomeUnknown) {
		return e, history.Unknown
	}
	switch conflict, ok := errors.AsType[*messagestore.VersionConflictError](err); {
	case ok:
		e.Actual = conflict.Actual
		e.Appends = []history.Append{{Stream: conflict.Stream}}
		return e, history.Conflict
	case errors.Is(err, messagestore.ErrIDConflict):
		return e, history.IDConflict
	case errors.Is(err, errRolledBack):
		return e, history.RolledBack
	case errors.Is(err, messagestore.ErrInvalid):
		return e, history.Refused
	}
	return e, history.Failed
}

func shorten(text string) string { return text[:min(len(text), 300)] }

// identified gives each body an id, so that it is known before it is written.
func identified(bodies []messagestore.Body) []messagestore.Body {
	all := make([]messagestore.Body, len(bodies))
	for i, body := range bodies {
		m, ok := body.(messagestore.Envelope)
		if !ok {
			m = messagestore.Envelope{Body: body}
		}
		if m.ID == uuid.Nil {
			m.ID = newID()
		}
		all[i] = m
	}
	return all
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// messageOf returns a body with an id in the form of the history.
func messageOf(body messagestore.Body) (history.Message, error) {
	m, ok := body.(messagestore.Envelope)
	if !ok {
		return history.Message{}, fmt.Errorf("%T has no id", body)
	}
	data, err := dataOf(m.Body)
	if err != nil {
		return history.Message{}, err
	}
	hash, err := hashOf(m.MessageType(), data, m.Metadata)
	return history.Message{ID: m.ID, Value: valueOf(data), Hash: hash}, err
}

func dataOf(body messagestore.Body) (json.RawMessage, error) {
	if raw, ok := body.(messagestore.Raw); ok {
		return raw.Data, nil
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false) // as the store encodes
	if err := encoder.Encode(body); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(encoded.Bytes(), []byte("\n")), nil
}

func hashOf(messageType string, data json.RawMessage, metadata messagestore.Metadata) (int64, error) {
	var encoded json.RawMessage
	if !metadata.IsZero() {
		var err error
		if encoded, err = json.Marshal(metadata); err != nil {
			return 0, err
		}
	}
	return history.Hash(messageType, data, encoded)
}

// Known returns a stored message in the form of the history.
func Known(m *messagestore.Message) (history.Message, error) { return recordedOf(m) }

// recordedOf returns a stored message in the form of the history.
func recordedOf(m *messagestore.Message) (history.Message, error) {
	hash, err := hashOf(m.Type, m.Data, m.Metadata)
	return history.Message{ID: m.ID, Value: valueOf(m.Data), Hash: hash, Position: m.Position, Global: m.GlobalPosition}, err
}

// valueOf returns the unique value of a message, or 0.
func valueOf(data json.RawMessage) uint64 {
	var body struct {
		Value uint64 `json:"value"`
	}
	_ = json.Unmarshal(data, &body) // or else it has none
	return body.Value
}

// A journal is the history of this process. If it cannot be written the process ends, by a panic:
// no step may go unrecorded. It is safe for concurrent use.
type journal struct{ *history.Recorder }

func (j journal) begin(e *history.Event) (call history.Event) { return j.Begin(*e) }

func (j journal) end(call history.Event, answer string, e *history.Event) {
	e.Answer = answer
	j.End(call, *e)
}

func (j journal) note(e *history.Event) { j.Begin(*e) }
