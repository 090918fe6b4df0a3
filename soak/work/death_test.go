package work

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestAClientDiesAtItsPointAndTurnOnly(t *testing.T) {
	t.Parallel()
	d := &Doom{Death: Death{Sent, 2}}
	require.False(t, d.due(Send))
	require.False(t, d.due(Sent))
	require.False(t, d.due(Send))
	require.True(t, d.due(Sent))
	require.False(t, d.due(Sent))

	require.False(t, (&Doom{}).due(Send))

	lifted := &Doom{Death: Death{Sent, 1}}
	lifted.Lift()
	require.False(t, lifted.due(Sent))
}

func TestOnlyStatementsThatWriteArePointsOfTheTracer(t *testing.T) {
	t.Parallel()
	d := &Doom{Death: Death{Sent, 99}}
	tracer := doomedTracer{d}
	for sql, writes := range map[string]bool{
		"select dibs.append_one($1)": true, "select * from dibs.append($1, $2)": true, "commit": true, "begin": false, "select * from dibs.read_stream($1)": false,
	} {
		before := d.passed.Load()
		tracer.TraceQueryEnd(tracer.TraceQueryStart(t.Context(), nil, pgx.TraceQueryStartData{SQL: sql}), nil, pgx.TraceQueryEndData{})
		require.Equal(t, writes, d.passed.Load() > before, sql)
	}
}
