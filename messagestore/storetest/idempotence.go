package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of repeats: that the same message again is a duplicate, and another one with its id a
// conflict.
var idempotenceTests = []test{
	{"S5/SameMessageAgainReturnsTheFirst", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		message := raw("Opened", `{"name":"first"}`)
		message.Metadata = messagestore.Metadata{SchemaVersion: "2", Properties: messagestore.Properties{"tenant": "a"}}
		f.fill(t, stream, 1)
		first := f.write(t, stream, 0, message)
		f.fill(t, stream, 2)

		for _, expected := range anyExpectation {
			again, err := f.store.Write(t.Context(), stream, expected, message)

			require.NoError(t, err, "expected version %v", expected)
			want := first
			want.Duplicate = true
			require.Equal(t, want, again)
		}
		require.Len(t, f.read(t, stream), 4)
	}},
	{"S5/SameBatchAgainReturnsTheFirst", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		batch := []messagestore.Body{raw("Opened", `{"name":"a"}`), raw("Deposited", `{"amount":1}`), raw("Opened", `{"name":"b"}`)}
		first := f.write(t, stream, messagestore.NoStream, batch...)
		f.fill(t, stream, 2)

		for _, expected := range anyExpectation {
			again, err := f.store.Write(t.Context(), stream, expected, batch...)

			require.NoError(t, err, "expected version %v", expected)
			want := first
			want.Duplicate = true
			require.Equal(t, want, again)
		}
		require.Len(t, f.read(t, stream), 5)
	}},
	{"S5/EqualJSONIsTheSameContent", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		first := raw("Opened", `{"a":1,"b":[true,null,"é/"],"c":{"d":100,"e":12345678901234567890.5}}`)
		first.Metadata.Extra = map[string]json.RawMessage{"n": json.RawMessage(`1`), "o": json.RawMessage(`{"x":1,"y":2}`)}
		f.write(t, stream, messagestore.NoStream, first)

		for _, spelled := range []string{
			`{"a":1,"b":[true,null,"é/"],"c":{"d":100,"e":12345678901234567890.5}}`,
			` { "c" : { "e" : 12345678901234567890.50 , "d" : 1E+2 } , "b" : [ true , null , "\u00e9\/" ] , "a" : 1.0 } `,
			`{"a":10e-1,"b":[true,null,"\u00E9/"],"c":{"d":1e2,"e":1.23456789012345678905e19}}`,
		} {
			again := messagestore.Envelope{ID: first.ID, Body: messagestore.Raw{Type: "Opened", Data: json.RawMessage(spelled)}}
			again.Metadata.Extra = map[string]json.RawMessage{"o": json.RawMessage(`{ "y": 2.0, "x": 1 }`), "n": json.RawMessage(`1.0`)}
			written, err := f.store.Write(t.Context(), stream, messagestore.NoStream, again)
			require.NoError(t, err, spelled)
			require.True(t, written.Duplicate)
		}
		require.Len(t, f.read(t, stream), 1)
	}},
	{"S5/OtherTypeConflicts", 0, func(t *testing.T, f *fixture) {
		message := raw("Opened", `{"name":"first"}`)
		f.write(t, f.stream(), messagestore.NoStream, message)

		f.refuses(t, f.stream(), messagestore.Envelope{ID: message.ID, Body: messagestore.Raw{Type: "opened", Data: json.RawMessage(`{"name":"first"}`)}})
	}},
	{"S5/OtherDataConflicts", 0, func(t *testing.T, f *fixture) {
		first := `{"a":1,"b":[1,2],"c":"x","d":null,"e":12345678901234567890.123456789,"f":"é"}`
		message := raw("Opened", first)
		f.write(t, f.stream(), messagestore.NoStream, message)

		for _, changed := range []string{
			`{}`,
			`{"a":1,"b":[1,2],"c":"x","e":12345678901234567890.123456789,"f":"é"}`,
			`{"a":1,"b":[1,2],"c":"x","d":null,"e":12345678901234567890.123456789,"f":"é","g":null}`,
			`{"a":"1","b":[1,2],"c":"x","d":null,"e":12345678901234567890.123456789,"f":"é"}`,
			`{"a":1,"b":[2,1],"c":"x","d":null,"e":12345678901234567890.123456789,"f":"é"}`,
			`{"a":1,"b":[1,2],"c":"X","d":null,"e":12345678901234567890.123456789,"f":"é"}`,
			`{"a":1,"b":[1,2],"c":"x","d":false,"e":12345678901234567890.123456789,"f":"é"}`,
			`{"a":1,"b":[1,2],"c":"x","d":null,"e":12345678901234567890.123456788,"f":"é"}`,
			`{"a":1,"b":[1,2],"c":"x","d":null,"e":12345678901234567890.123456789,"f":"e\u0301"}`,
		} {
			f.refuses(t, f.stream(), messagestore.Envelope{ID: message.ID, Body: messagestore.Raw{Type: "Opened", Data: json.RawMessage(changed)}})
		}
	}},
	{"S5/OtherMetadataConflicts", 0, func(t *testing.T, f *fixture) {
		message := raw("Opened", `{}`)
		message.Metadata.Properties = messagestore.Properties{"tenant": "a"}
		f.write(t, f.stream(), messagestore.NoStream, message)
		bare := raw("Opened", `{}`)
		f.write(t, f.stream(), 0, bare)

		message.Metadata.Properties = messagestore.Properties{"tenant": "b"}
		f.refuses(t, f.stream(), message)
		message.Metadata = messagestore.Metadata{}
		f.refuses(t, f.stream(), message)
		bare.Metadata.SchemaVersion = "1"
		f.refuses(t, f.stream(), bare)
	}},
	{"S5/OtherStreamConflicts", 0, func(t *testing.T, f *fixture) {
		message := raw("Opened", `{"name":"first"}`)
		f.write(t, f.stream("1"), messagestore.NoStream, message)

		f.refuses(t, f.stream("2"), message)
		f.refuses(t, f.category.WithType("command").Stream("1"), message)
		require.Empty(t, f.read(t, f.stream("2")))
		require.Empty(t, f.read(t, f.category.WithType("command").Stream("1")))
	}},
	{"S5/PartOfABatchConflicts", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		a, b, c, d := raw("Opened", `{}`), raw("Opened", `{}`), raw("Opened", `{}`), raw("Opened", `{}`)
		f.write(t, stream, messagestore.NoStream, a, b)
		f.fill(t, stream, 1)
		f.write(t, stream, 2, c)

		f.refuses(t, stream, a, b, d)
		f.refuses(t, stream, d, a)
		f.refuses(t, stream, b, c) // all recorded, with another message between them
	}},
	{"S5/OtherOrderConflicts", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		a, b, c := raw("Opened", `{}`), raw("Opened", `{}`), raw("Opened", `{}`)
		f.write(t, stream, messagestore.NoStream, a, b, c)

		f.refuses(t, stream, b, a, c)
		f.refuses(t, stream, c, b, a)
		f.refuses(t, stream, a, c)
	}},
	{"S5/IDConflictTellsWhereTheIDIs", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		message := raw("Opened", `{"name":"first"}`)
		f.fill(t, stream, 2)
		f.write(t, stream, 1, message)
		where := messagestore.IDConflictError{ID: message.ID, Stream: stream, Position: 2}

		_, err := f.store.Write(t.Context(), stream, 2, messagestore.Envelope{ID: message.ID, Body: Opened{Name: "changed"}})
		require.Equal(t, where, idConflict(t, err))

		for _, expected := range anyExpectation {
			_, err = f.store.Write(t.Context(), f.stream("2"), expected, message)
			require.Equal(t, where, idConflict(t, err), "expected version %v", expected)
		}

		_, err = f.store.Write(t.Context(), stream, 2, raw("Opened", `{}`), message)
		require.Equal(t, where, idConflict(t, err))
	}},
	{"S5/ConcurrentRepeatsAreOneMessage", manyUsers, func(t *testing.T, f *fixture) {
		const rounds, writers = 20, 8
		for round := range rounds {
			stream := f.stream(fmt.Sprint(round))
			message := raw("Opened", `{"name":"once"}`)
			results := make([]messagestore.Written, writers)
			race(t, writers, func(i int) (err error) {
				expected := []messagestore.Version{messagestore.NoStream, messagestore.AnyVersion}[i%2]
				results[i], err = f.store.Write(t.Context(), stream, expected, message)
				return err
			})

			messages := f.read(t, stream)
			require.Equal(t, []uuid.UUID{message.ID}, ids(messages), "one message, however often it is written")
			firsts := slices.DeleteFunc(slices.Clone(results), func(w messagestore.Written) bool { return w.Duplicate })
			require.Len(t, firsts, 1, "one write was the first")
			for _, written := range results {
				written.Duplicate = false
				require.Equal(t, firsts[0], written)
			}
		}
	}},
}

// anyExpectation are versions that a repeated write may expect: the version of the first write, the
// current version, and wrong versions.
var anyExpectation = []messagestore.Version{messagestore.NoStream, 0, 1, 2, 3, 7, messagestore.AnyVersion}

// refuses writes bodies and requires an id conflict that changes nothing.
func (f *fixture) refuses(t *testing.T, stream messagestore.StreamName, bodies ...messagestore.Body) {
	t.Helper()
	before := f.readCategory(t, f.category, messagestore.Filter{})
	for _, expected := range anyExpectation {
		require.ErrorIs(t, testkit.ErrorOf(f.store.Write(t.Context(), stream, expected, bodies...)), messagestore.ErrIDConflict, "expected version %v", expected)
	}
	require.Equal(t, before, f.readCategory(t, f.category, messagestore.Filter{}), "a refused write changes nothing")
}
