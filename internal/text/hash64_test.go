package text_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/text"
)

func TestHashIsMessageDBs(t *testing.T) {
	for value, want := range map[string]int64{
		"someStream": 2053039834977696644, "account": -2132379389342958165, "account:command": 4331363904667975395, "": -3162216497309240828,
		"123": 2318431741638412123, "abc": -8070080442485551184, "1": -4266524885998034046, "2": -4026655064267673757, "é": 7412306613632936882,
	} {
		require.Equal(t, want, text.Hash64(value), "%q", value)
	}
}
