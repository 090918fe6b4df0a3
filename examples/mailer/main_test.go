package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachMailIsSentOnceInOrder(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer

	dead, err := run(t.Context(), &out)

	require.NoError(t, err)
	require.Equal(t, "ann@home.example gets \"First\"\nann@home.example gets \"Second\"\nann@home.example gets \"Third\"\n", out.String())
	require.Len(t, dead, 1)
	require.Contains(t, dead[0].Error, "no such address")
}
