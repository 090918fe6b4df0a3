package entity

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// tally is an entity whose fields JSON can spell in more than one way.
type tally struct {
	Sum   int64
	Notes []string
	ByDay map[string]int64
}

type counted struct{ N int64 }

func (counted) MessageType() string { return "Counted" }

func tallies(t *testing.T, store MessageStore, tag string) *Store[tally] {
	t.Helper()
	p := NewProjection[tally]()
	On(p, func(e tally, c counted) tally {
		e.Sum += c.N
		e.Notes = append(e.Notes, "counted")
		return e
	})
	s, err := New(store, "tally", p, &Config{CacheSize: NoCache, Snapshot: Snapshot{Every: 100, Tag: tag}})
	require.NoError(t, err)
	return s
}

// The messages of an entity have these, in their order.
var countedIDs = []uuid.UUID{
	uuid.MustParse("0198c6b1-4b4c-7000-8000-000000000001"),
	uuid.MustParse("0198c6b1-4b4c-7000-8000-000000000002"),
	uuid.MustParse("0198c6b1-4b4c-7000-8000-000000000003"),
}

// With any content in a snapshot's stream the entity is either folded from all its messages, or from the
// snapshot and the later messages: never an error, and never a mixture.
func FuzzASnapshotIsRestoredOrPassedOver(f *testing.F) {
	const whole, third = `"entity":{"Sum":40,"Notes":["kept"],"ByDay":{"monday":40}},`, `"last":"0198c6b1-4b4c-7000-8000-000000000003"`
	f.Add("Snapshot", []byte(`{`+whole+`"version":2,`+third+`,"tag":"v2"}`), "v1")                                                        // another tag
	f.Add("Counted", []byte(`{`+whole+`"version":2,`+third+`,"tag":"v1"}`), "v1")                                                         // another type
	f.Add("Snapshot", []byte(`{`+whole+`"version":2,`+third+`,"tag":"v1"}`), "v1")                                                        // at the last message
	f.Add("Snapshot", []byte(`{`+whole+`"version":1,"last":"0198c6b1-4b4c-7000-8000-000000000002","tag":"v1"}`), "v1")                    // before the last message
	f.Add("Snapshot", []byte(`{`+whole+`"version":2,`+third), "v1")                                                                       // cut off
	f.Add("Snapshot", []byte(`{"entity":null,"version":0,"last":"0198c6b1-4b4c-7000-8000-000000000001","tag":"v1"}`), "v1")               // entity null
	f.Add("Snapshot", []byte(`{"entity":{"Sum":7,"Notes":"kept"},"version":2,`+third+`,"tag":"v1"}`), "v1")                               // entity of another type
	f.Add("Snapshot", []byte(`{`+whole+`"version":9223372036854775807,`+third+`,"tag":"v1"}`), "v1")                                      // greatest version
	f.Add("Snapshot", []byte(`{"entity":{"Sum":1},"Entity":{"Notes":[]},"VERSION":1,"version":2,`+third+`,"tag":"v2","tag":"v1"}`), "v1") // names twice
	f.Add("Snapshot", []byte(`{`+whole+`"version":1,`+third+`,"tag":"v1"}`), "v1")                                                        // of another message
	f.Fuzz(func(t *testing.T, messageType string, data []byte, tag string) {
		restored, ok := restore[tally](&messagestore.Message{Stream: "tally:snapshot-1", Type: messageType, Data: data}, tag)
		if ok {
			require.Equal(t, "Snapshot", messageType)
			require.GreaterOrEqual(t, restored.version, messagestore.Version(0))
			require.Equal(t, restored.version, restored.kept)
			require.False(t, restored.deleted)
			var copied struct{ Entity json.RawMessage }
			require.NoError(t, json.Unmarshal(data, &copied))
			raw, err := json.Marshal(restored.entity)
			require.NoError(t, err)
			require.True(t, exactjson.Equal(raw, copied.Entity), "%s", data)
			requireRestored(t, restored, tag)
		}
		if tagRule(tag) != "" {
			return // no store has it
		}
		store := testkit.Must(messagestore.New(memory.New(), nil))
		for i, id := range countedIDs {
			_, err := store.Write(t.Context(), "tally-1", messagestore.Version(i-1), messagestore.Envelope{ID: id, Body: counted{int64(i)}})
			require.NoError(t, err)
		}
		if _, err := store.Write(t.Context(), "tally:snapshot-1", messagestore.NoStream, messagestore.Raw{Type: messageType, Data: data}); err != nil {
			return // the store refuses it, and so nobody can have written it
		}

		got, version, err := tallies(t, store, tag).Get(t.Context(), "1")

		require.NoError(t, err)
		require.Equal(t, messagestore.Version(len(countedIDs)-1), version)
		want, next := tally{}, 0
		if at := restored.version; ok && at < messagestore.Version(len(countedIDs)) && restored.last == countedIDs[at] {
			want, next = restored.entity, int(at)+1
		}
		for ; next < len(countedIDs); next++ {
			want.Sum += int64(next)
			want.Notes = append(want.Notes, "counted")
		}
		require.Equal(t, want, got)
	})
}

// requireRestored checks that a restored state can be kept and restored again.
func requireRestored(t *testing.T, restored state[tally], tag string) {
	t.Helper()
	raw, err := json.Marshal(restored.entity)
	require.NoError(t, err)
	data, err := json.Marshal(removal.Snapshot{Entity: raw, Version: restored.version, Last: restored.last, Tag: tag})
	require.NoError(t, err)
	again, ok := restore[tally](&messagestore.Message{Type: removal.Snapshot{}.MessageType(), Data: data}, tag)
	require.True(t, ok, "%s", data)
	require.Equal(t, restored, again)
}

// A kept snapshot is restored under its own tag and under no other.
func FuzzASnapshotIsRestoredAsItWasKept(f *testing.F) {
	third := countedIDs[2][:]
	f.Add(int64(40), "kept", "monday", int64(2), third, "v1", "v2")                                                   // as it mostly is
	f.Add(int64(1<<63-1), "\u2028<&>\\\"", "\U0001f600", int64(1<<63-1), bytes.Repeat([]byte{0xff}, 16), "v1", "v10") // greatest
	f.Add(int64(0), "", "", int64(0), []byte{}, "", "v1")                                                             // nothing
	f.Add(int64(-1), "\x00", "monday", int64(1), third, "v1", "v2")                                                   // nul
	f.Add(int64(1), "kept", "monday", int64(1), third, "v1", "V1")                                                    // tag of another case
	f.Add(int64(1), "\xff", "\xed\xa0\x80", int64(1), third, "v1", "v2")                                              // text that is none
	f.Fuzz(func(t *testing.T, sum int64, note, day string, version int64, last []byte, tag, other string) {
		if version < 0 || tagRule(tag) != "" {
			return // of an empty stream none is kept
		}
		loaded := state[tally]{
			entity:  tally{Sum: sum, Notes: []string{note, ""}, ByDay: map[string]int64{day: sum}},
			version: messagestore.Version(version), kept: messagestore.NoStream,
		}
		copy(loaded.last[:], last)
		store := testkit.Must(messagestore.New(memory.New(), nil))

		tallies(t, store, tag).keep(t.Context(), "tally-1", &loaded)

		m, err := store.Last(t.Context(), "tally:snapshot-1")
		if loaded.kept != loaded.version {
			require.ErrorIs(t, err, messagestore.ErrNotFound)
			return // the store has refused it, which is logged
		}
		require.NoError(t, err)
		restored, ok := restore[tally](m, tag)
		require.True(t, ok)
		require.Equal(t, loaded.version, restored.version)
		require.Equal(t, loaded.last, restored.last)
		if utf8.ValidString(note) && utf8.ValidString(day) {
			require.Equal(t, loaded, restored)
		}
		if other != tag {
			_, ok = restore[tally](m, other)
			require.False(t, ok)
		}
	})
}
