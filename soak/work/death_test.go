package work

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/crew"
)

func TestOnlyStatementsThatWriteArePointsOfTheTracer(t *testing.T) {
	t.Parallel()
	d := &crew.Doom{Death: crew.Death{Point: Sent, Turn: 99}}
	tracer := doomedTracer{d}
	for sql, writes := range map[string]bool{
		"select dibs.append_one($1)": true, "select * from dibs.append($1, $2)": true, "commit": true, "begin": false, "select * from dibs.read_stream($1)": false,
	} {
		before := d.Passed()
		tracer.TraceQueryEnd(tracer.TraceQueryStart(t.Context(), nil, pgx.TraceQueryStartData{SQL: sql}), nil, pgx.TraceQueryEndData{})
		require.Equal(t, writes, d.Passed() > before, sql)
	}
}
