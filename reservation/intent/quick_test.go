package intent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func slowly(m *messagestore.Message) (body messagestore.Body, err error) {
	switch m.Type {
	case TypeReserved:
		return decode[ReservedMessage](m)
	case TypeExtended:
		return decode[Extended](m)
	default:
		return decode[Confirmed](m)
	}
}

func TestMessagesAsTheyAreWrittenAreDecodedQuickly(t *testing.T) {
	t.Parallel()
	grant := Grant{Session: "api-3/0193a2b4", Attempt: 2, TTL: 15_000, Content: "c-_9"}
	for _, body := range []messagestore.Body{
		ReservedMessage{grant, 0},
		ReservedMessage{grant, 1_764_000_000_000_000},
		Extended{grant, 1_764_000_000_000_000},
		Confirmed{grant, 1_764_000_000_000_000, nil},
		Confirmed{grant, 1_764_000_000_000_000, []byte(`{"status":201,"body":"{\"id\":\u00e9}","token":5}`)},
		Confirmed{grant, 1_764_000_000_000_000, []byte(`"}"`)},
	} {
		store := messagestore.New(memory.New(), nil)
		_, err := store.Write(t.Context(), "payment:intent-1", messagestore.NoStream, body)
		require.NoError(t, err)
		m, err := store.Last(t.Context(), "payment:intent-1")
		require.NoError(t, err)
		got, ok := quickly(m)
		require.True(t, ok, "%s", m.Data)
		require.Equal(t, body, got)
	}
}

func FuzzQuicklyIsAsEncodingJSON(f *testing.F) {
	const grant = `{"session":"a","attempt":1,"ttl":15000,"content":"c"`
	for _, data := range []string{
		grant + `,"after":0}`, grant + `,"after":12}`, grant + `,"token":12}`, grant + `,"token":12,"result":{"a":"}"}}`,
		grant + `,"token":12,"result": 1 }`, grant + `,"token":12,"result":1,"token":13}`, grant + `,"token":12,"result":null}`,
		grant + `,"token":012}`, grant + `,"token":-1}`, grant + `,"token":1e3}`, grant + `,"token":9999999999999999999}`,
		grant + `,"after":1,"after":2}`, grant + `,"after":1} `, grant + `,"after":1}}`, grant + `,"line":["b"],"after":1}`,
		`{"session":"\u0061","attempt":1,"ttl":1,"content":"c","after":1}`, `{"session":"é","attempt":1,"ttl":1,"content":"c","after":1}`,
		`{"session":"a","attempt":99999999999,"ttl":1,"content":"c","after":1}`, `{"session":"a"}`, `{}`, ``,
	} {
		for kind := range byte(3) {
			f.Add(kind, []byte(data))
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		m := &messagestore.Message{Type: []string{TypeReserved, TypeExtended, TypeConfirmed}[kind%3], Data: data}
		if got, ok := quickly(m); ok {
			want, err := slowly(m)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}
