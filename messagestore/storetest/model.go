package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests by random histories, which the driver and a simple model must answer alike.
var modelTests = []test{
	// This runs random histories of writes, repeats and reads on the driver and on a model of a few
	// lines, and the two must agree. If they differ, rapid shrinks the history to a short one.
	{"Model/AnyHistoryIsAsTheModelHasIt", 0, func(t *testing.T, f *fixture) {
		rapid.Check(t, func(t *rapid.T) {
			m := newModel(f)
			actions := map[string]func(*rapid.T){
				"write":          m.write,
				"write initial":  m.writeInitial,
				"repeat":         m.repeat,
				"repeat changed": m.repeatChanged,
				"read stream":    m.readStream,
				"read backwards": m.readBackwards,
				"read category":  m.readCategory,
				"last":           m.last,
				"write streams":  m.writeStreams,
				"try to write":   m.writeOrLast,
			}
			t.Repeat(actions)
		})
	}},
}

// A model is the simplest possible store, and the store under test.
type model struct {
	driver messagestore.Driver
	store  *messagestore.Store

	names      []messagestore.StreamName
	streams    map[messagestore.StreamName][]entry
	categories map[messagestore.Category][]entry
	writes     []past
}

// An entry is a message that was written.
type entry struct {
	stream      messagestore.StreamName
	message     messagestore.Envelope
	correlation messagestore.Category
}

// A past write can be repeated.
type past struct {
	writes []messagestore.StreamWrite
	result []messagestore.Written
}

func newModel(f *fixture) *model {
	m := &model{
		driver:     f.driver,
		store:      f.store,
		streams:    map[messagestore.StreamName][]entry{},
		categories: map[messagestore.Category][]entry{},
	}
	c := freshCategory()
	m.names = []messagestore.StreamName{c.Stream("1"), c.Stream("1").With("x"), c.Stream("2"), c.WithType("command").Stream("1")}
	return m
}

func (m *model) version(stream messagestore.StreamName) messagestore.Version {
	return messagestore.Version(len(m.streams[stream]) - 1)
}

func (m *model) drawStream(t *rapid.T) messagestore.StreamName {
	return rapid.SampledFrom(m.names).Draw(t, "stream")
}

func (m *model) drawExpected(t *rapid.T, stream messagestore.StreamName) messagestore.Version {
	version := m.version(stream)
	return rapid.SampledFrom([]messagestore.Version{
		version, version, version, messagestore.AnyVersion, messagestore.StreamExists, messagestore.StreamExists.Below(3), messagestore.NoStream, max(version-1, messagestore.NoStream), version + 1,
	}).Draw(t, "expected")
}

func drawMessages(t *rapid.T, least int) []messagestore.Body {
	bodies := make([]messagestore.Body, rapid.IntRange(least, 3).Draw(t, "messages"))
	for i := range bodies {
		message := raw(rapid.SampledFrom([]string{"Opened", "Deposited", "opened"}).Draw(t, "type"),
			fmt.Sprintf(`{"n":%d}`, rapid.Int64().Draw(t, "n")))
		message.Metadata.CorrelationStream = rapid.SampledFrom([]messagestore.StreamName{"", "process-1", "process:x-1"}).Draw(t, "correlation")
		bodies[i] = message
	}
	return bodies
}

// conflicts returns the version conflict that the writes must cause, or nil.
func (m *model) conflicts(writes []messagestore.StreamWrite) *messagestore.VersionConflictError {
	for _, w := range writes {
		if actual := m.version(w.Stream); w.Expected != messagestore.AnyVersion && w.Expected != actual && !m.goesPast(w) &&
			!exists(w.Expected, actual) {
			return &messagestore.VersionConflictError{Stream: w.Stream, Expected: w.Expected, Actual: actual}
		}
	}
	return nil
}

// exists reports whether expected asks for an existing stream, perhaps with a bound, and actual
// satisfies it.
func exists(expected, actual messagestore.Version) bool {
	_, within := expected.Exists(actual)
	return within && actual != messagestore.NoStream
}

// goesPast reports whether the write names the types of all messages since its version.
func (m *model) goesPast(w messagestore.StreamWrite) bool {
	if len(w.Past) == 0 || w.Expected > m.version(w.Stream) {
		return false
	}
	return !slices.ContainsFunc(m.streams[w.Stream][w.Expected+1:], func(e entry) bool {
		return !slices.Contains(w.Past, e.message.MessageType())
	})
}

// settle compares a write's result with the model's and writes to the model.
func (m *model) settle(t *rapid.T, writes []messagestore.StreamWrite, result []messagestore.Written, err error) {
	if want := m.conflicts(writes); want != nil {
		var got *messagestore.VersionConflictError
		require.ErrorAs(t, err, &got)
		require.Equal(t, want, got)
		return
	}
	require.NoError(t, err)
	for i, w := range writes {
		var ids []uuid.UUID
		for _, body := range w.Bodies {
			message := body.(messagestore.Envelope) //nolint:errcheck // as drawn
			e := entry{stream: w.Stream, message: message, correlation: message.Metadata.CorrelationStream.Category()}
			m.streams[w.Stream] = append(m.streams[w.Stream], e)
			m.categories[w.Stream.Category()] = append(m.categories[w.Stream.Category()], e)
			ids = append(ids, message.ID)
		}
		require.Equal(t, w.Stream, result[i].Stream)
		require.Equal(t, m.version(w.Stream), result[i].Version)
		require.Equal(t, ids, result[i].IDs)
		require.False(t, result[i].Duplicate)
	}
	m.writes = append(m.writes, past{writes, result})
}

// do runs writes on the store.
func (m *model) do(ctx context.Context, writes []messagestore.StreamWrite) ([]messagestore.Written, error) {
	if len(writes) > 1 {
		return m.store.WriteStreams(ctx, writes...)
	}
	written, err := m.store.Write(ctx, writes[0].Stream, writes[0].Expected, writes[0].Bodies...)
	return []messagestore.Written{written}, err
}

func (m *model) write(t *rapid.T) {
	stream := m.drawStream(t)
	writes := []messagestore.StreamWrite{messagestore.To(stream, m.drawExpected(t, stream), drawMessages(t, 1)...)}
	result, err := m.do(t.Context(), writes)
	m.settle(t, writes, result, err)
}

func (m *model) writeInitial(t *rapid.T) {
	stream := m.drawStream(t)
	message := drawMessages(t, 1)[0]
	wrote := testkit.Do(m.store.WriteInitial(t.Context(), stream, message))(t)
	require.Equal(t, len(m.streams[stream]) == 0, wrote)
	if wrote {
		written, err := m.store.Write(t.Context(), stream, messagestore.NoStream, message) // to learn where
		require.NoError(t, err)
		require.True(t, written.Duplicate)
		written.Duplicate = false
		m.settle(t, []messagestore.StreamWrite{messagestore.To(stream, messagestore.NoStream, message)}, []messagestore.Written{written}, nil)
	}
}

func (m *model) writeStreams(t *rapid.T) {
	writes := m.drawWrites(t)
	result, err := m.do(t.Context(), writes)
	m.settle(t, writes, result, err)
}

func (m *model) writeOrLast(t *rapid.T) {
	writes := m.drawWrites(t)
	result, met, err := m.store.TryWriteStreams(t.Context(), writes...)
	if m.conflicts(writes) == nil {
		require.Nil(t, met)
		m.settle(t, writes, result, err)
		return
	}
	require.NoError(t, err)
	require.NotNil(t, met)
	require.Len(t, met.Last, len(writes))
	for i, w := range writes {
		if m.version(w.Stream) == messagestore.NoStream {
			require.Nil(t, met.Last[i])
			continue
		}
		require.NotNil(t, met.Last[i])
		require.Equal(t, m.version(w.Stream), met.Last[i].Position)
		same(t, m.streams[w.Stream][m.version(w.Stream):], met.Last[i:i+1])
	}
}

// drawWrites draws a write of two streams or three, the second and the third perhaps checks.
func (m *model) drawWrites(t *rapid.T) []messagestore.StreamWrite {
	var writes []messagestore.StreamWrite
	names := rapid.Permutation(m.names).Draw(t, "streams")[:rapid.IntRange(2, 3).Draw(t, "n")]
	for i, stream := range names {
		least := 1
		if i > 0 {
			least = 0 // a check
		}
		w := messagestore.To(stream, m.drawExpected(t, stream), drawMessages(t, least)...)
		if len(w.Bodies) == 0 && w.Expected == messagestore.AnyVersion {
			w.Expected = m.version(stream)
		}
		if w.Expected >= messagestore.NoStream {
			w.Past = rapid.SampledFrom([][]string{nil, {"Opened"}, {"opened", "Deposited", "Opened"}}).Draw(t, "past")
		}
		writes = append(writes, w)
	}
	return writes
}

func (m *model) drawPast(t *rapid.T) past {
	if len(m.writes) == 0 {
		t.Skip("nothing is written yet")
	}
	p := m.writes[rapid.IntRange(0, len(m.writes)-1).Draw(t, "write")]
	writes := slices.Clone(p.writes)
	for i := range writes {
		if len(writes[i].Bodies) > 0 {
			writes[i].Expected, writes[i].Past = m.drawExpected(t, writes[i].Stream), nil
		}
	}
	return past{writes, p.result}
}

func (m *model) repeat(t *rapid.T) {
	p := m.drawPast(t)
	again := testkit.Do(m.do(t.Context(), p.writes))(t)
	for i, w := range p.writes {
		if len(w.Bodies) > 0 {
			want := p.result[i]
			want.Duplicate = true
			require.Equal(t, want, again[i])
		}
	}
}

func (m *model) repeatChanged(t *rapid.T) {
	p := m.drawPast(t)
	i := slices.IndexFunc(p.writes, func(w messagestore.StreamWrite) bool { return len(w.Bodies) > 0 })
	bodies := slices.Clone(p.writes[i].Bodies)
	n := rapid.IntRange(0, len(bodies)-1).Draw(t, "message")
	changed := bodies[n].(messagestore.Envelope) //nolint:errcheck // as drawn
	switch rapid.SampledFrom([]string{"data", "type", "metadata", "id", "order", "stream"}).Draw(t, "change") {
	case "data":
		changed.Body = messagestore.Raw{Type: changed.MessageType(), Data: json.RawMessage(`{"changed":true}`)}
	case "type":
		changed.Body = messagestore.Raw{Type: "Changed", Data: changed.Body.(messagestore.Raw).Data} //nolint:errcheck // as drawn
	case "metadata":
		changed.Metadata.SchemaVersion = "changed"
	case "id":
		if len(bodies) == 1 {
			t.Skip("a single message with a new id is a new message")
		}
		changed.ID = uuid.Must(uuid.NewV7())
	case "order":
		if len(bodies) == 1 {
			t.Skip("a single message has one order")
		}
		slices.Reverse(bodies)
		n, changed = 0, bodies[0].(messagestore.Envelope) //nolint:errcheck // as drawn
	case "stream":
		p.writes[i].Stream += "0"
	}
	bodies[n] = changed
	p.writes[i].Bodies = bodies
	require.ErrorIs(t, testkit.ErrorOf(m.do(t.Context(), p.writes)), messagestore.ErrIDConflict)
}

// same compares messages that were read with the entries that were written.
func same(t *rapid.T, want []entry, got []*messagestore.Message) {
	require.Len(t, got, len(want))
	for i, e := range want {
		require.Equal(t, e.message.ID, got[i].ID)
		require.Equal(t, e.stream, got[i].Stream)
		require.Equal(t, e.message.MessageType(), got[i].Type)
		require.Equal(t, e.message.Metadata, got[i].Metadata)
		require.True(t, exactjson.Equal(e.message.Body.(messagestore.Raw).Data, got[i].Data)) //nolint:errcheck // as drawn
	}
}

func (m *model) readStream(t *rapid.T) {
	stream := m.drawStream(t)
	all := m.streams[stream]
	from := rapid.IntRange(0, len(all)+1).Draw(t, "from")
	limit := rapid.IntRange(1, 5).Draw(t, "limit")
	got := testkit.Do(m.driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, From: messagestore.Version(from), Limit: limit}))(t)
	same(t, all[min(from, len(all)):min(from+limit, len(all))], got)
	for i, message := range got {
		require.Equal(t, messagestore.Version(from+i), message.Position)
	}
}

func (m *model) readBackwards(t *rapid.T) {
	stream := m.drawStream(t)
	all := slices.Clone(m.streams[stream])
	from := rapid.IntRange(0, len(all)+1).Draw(t, "from")
	limit := rapid.IntRange(1, 5).Draw(t, "limit")
	got := testkit.Do(m.driver.ReadStream(t.Context(), messagestore.StreamQuery{Stream: stream, From: messagestore.Version(from), Limit: limit, Backwards: true}))(t)
	want := all[:min(from+1, len(all))]
	slices.Reverse(want)
	same(t, want[:min(limit, len(want))], got)
}

func (m *model) readCategory(t *rapid.T) {
	category := m.drawStream(t).Category()
	all := m.categories[category]
	q := messagestore.CategoryQuery{Category: category, Limit: rapid.IntRange(1, 5).Draw(t, "limit")}
	q.Filter.Types = rapid.SampledFrom([][]string{nil, {"Opened"}, {"Deposited", "none"}}).Draw(t, "types")
	q.Filter.Correlation = rapid.SampledFrom([]messagestore.Category{"", "process", "process:x"}).Draw(t, "correlation")
	if size := rapid.IntRange(0, 3).Draw(t, "group"); size > 0 {
		q.Filter.GroupSize, q.Filter.GroupMember = size, rapid.IntRange(0, size-1).Draw(t, "member")
	}

	start := 0
	if len(m.writes) > 0 { // from a position that a writer got
		p := m.writes[rapid.IntRange(0, len(m.writes)-1).Draw(t, "cursor")]
		for _, w := range p.result {
			if w.Stream.Category() == category && len(w.IDs) > 0 {
				q.From = w.GlobalPosition
				start = slices.IndexFunc(all, func(e entry) bool { return e.message.ID == w.IDs[len(w.IDs)-1] })
			}
		}
	}

	var want []entry
	for _, e := range all[start:] {
		if (q.Filter.Types == nil || slices.Contains(q.Filter.Types, e.message.MessageType())) &&
			(q.Filter.Correlation == "" || e.correlation == q.Filter.Correlation) &&
			(q.Filter.GroupSize < 2 || e.stream.GroupMember(q.Filter.GroupSize) == q.Filter.GroupMember) {
			want = append(want, e)
		}
	}
	var got []*messagestore.Message
	for {
		page := testkit.Do(m.driver.ReadCategory(t.Context(), q))(t)
		require.NoError(t, honest(q, page))
		got = append(got, page.Messages...)
		if q.From = page.Next; !page.More {
			break
		}
	}
	same(t, want, got)
	require.True(t, slices.IsSortedFunc(got, func(a, b *messagestore.Message) int { return cmp.Compare(a.GlobalPosition, b.GlobalPosition) }))
}

func (m *model) last(t *rapid.T) {
	stream := m.drawStream(t)
	messageType := rapid.SampledFrom([]string{"", "Opened", "Deposited", "none"}).Draw(t, "type")
	version := testkit.Do(m.driver.Version(t.Context(), stream))(t)
	require.Equal(t, m.version(stream), version)

	got, err := m.driver.Last(t.Context(), stream, messageType)
	for _, e := range slices.Backward(m.streams[stream]) {
		if messageType == "" || e.message.MessageType() == messageType {
			require.NoError(t, err)
			same(t, []entry{e}, []*messagestore.Message{got})
			return
		}
	}
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}
