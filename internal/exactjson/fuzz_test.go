package exactjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/seeds"
)

func FuzzCanonical(f *testing.F) {
	for _, seed := range seeds.JSONTexts() {
		f.Add([]byte(seed), []byte(`{}`))
		f.Add([]byte(seed), []byte(" "+seed+"\n"))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		one, err := exactjson.Canonical(a)
		if err != nil {
			return
		}
		require.True(t, json.Valid(one))
		again, err := exactjson.Canonical(one)
		require.NoError(t, err)
		require.Equal(t, string(one), string(again), "what is canonical stays as it is")
		require.True(t, exactjson.Equal(a, one))

		var compact, indented strings.Builder
		var value any
		require.NoError(t, unmarshalExact(a, &value))
		require.NoError(t, json.NewEncoder(&compact).Encode(value))
		e := json.NewEncoder(&indented)
		e.SetIndent(" ", "\t")
		require.NoError(t, e.Encode(value))
		require.True(t, exactjson.Equal(a, json.RawMessage(compact.String())))
		require.True(t, exactjson.Equal(a, json.RawMessage(indented.String())))

		if other, err := exactjson.Canonical(b); err == nil {
			require.Equal(t, string(one) == string(other), exactjson.Equal(a, b))
			require.Equal(t, exactjson.Equal(a, b), exactjson.Equal(b, a))
		}
	})
}

func unmarshalExact(raw []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	return d.Decode(into)
}
