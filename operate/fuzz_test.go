package operate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

// A key is found among values of any kind.
func FuzzAKeyIsFoundAmongValues(f *testing.F) {
	f.Add(`{"a":[{"b":"AAA"}]}`, "AAA")
	f.Add(`{"a":1.10}`, "1.10")
	f.Add(`[`, "")
	f.Add(strings.Repeat("[", 10_001), "x")
	for _, data := range testkit.SeedJSON("a") {
		f.Add(data, "1")
	}
	f.Fuzz(func(t *testing.T, data, key string) {
		found := holds(json.RawMessage(data), key)
		if found {
			quoted, err := json.Marshal(key)
			require.NoError(t, err)
			require.True(t, holds(json.RawMessage("["+string(quoted)+"]"), key))
		}
		if wrapped := `{"x":[` + data + `]}`; json.Valid([]byte(wrapped)) && json.Valid([]byte(data)) {
			require.Equal(t, found, holds(json.RawMessage(wrapped), key))
		}
	})
}
