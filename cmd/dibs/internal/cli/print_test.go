package cli

import (
	"bufio"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
)

// tableOf prints rows as a table where lines are at most width characters.
func tableOf(width int, rows [][]any) string {
	var b strings.Builder
	p := &printer{w: bufio.NewWriter(&b), stop: func() {}, width: width, columnsOf: func() int { return width }}
	if len(rows) > 0 {
		columns := make([]string, len(rows[0]))
		for i := range columns {
			columns[i] = []string{"", ">"}[i%2] + strings.Repeat("c", i+1)
		}
		p.table(columns...)
	}
	for _, row := range rows {
		p.row(nil, row...)
	}
	_ = p.flush()
	return b.String()
}

// Whatever the cells are, no line is too long, and all that they hold is there in its order.
func FuzzATableFitsItsTerminal(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, int(20+seed*3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, width int) {
		if width < narrowest || width > 300 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // any numbers do
		columns := 1 + r.IntN(12)
		rows := make([][]any, r.IntN(8))
		for i := range rows {
			n := columns
			if i > 0 && r.IntN(4) == 0 {
				n = 1 + r.IntN(columns)
			}
			rows[i] = make([]any, n)
			for j := range rows[i] {
				longest := []int{1, 4, 12, 40, 400}[r.IntN(5)]
				var b strings.Builder
				for range r.IntN(longest) {
					b.WriteString([]string{"a", "b", "é", " ", "-", "界"}[r.IntN(6)])
				}
				rows[i][j] = b.String()
			}
		}
		printed := tableOf(width, rows)
		for line := range strings.Lines(printed) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, "%s", printed)
		}
		squeezed := func(s string) string { return strings.Join(strings.Fields(s), "") }
		require.Equal(t, squeezed(tableOf(0, rows)), squeezed(printed))
	})
}

// A command that was copied from several lines would be several commands.
func TestACommandToCopyIsOneLine(t *testing.T) {
	t.Parallel()
	command := "dibs queue retry mail --like " + strings.Repeat("x ", 60)
	require.Contains(t, tableOf(80, [][]any{{"", cell{text: command, whole: true}}}), strings.TrimSpace(command)+"\n")
}

// The end of an error tells its cause.
func TestAnErrorIsCutAtItsBeginning(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("wrapped: ", 20) + "the cause"
	require.Equal(t, long, (&printer{}).cause(long))
	for width, most := range map[int]int{20: 72, 80: 76, 100: 96} {
		cut := (&printer{width: width}).cause(long)
		require.Equal(t, most, utf8.RuneCountInString(cut))
		require.True(t, strings.HasPrefix(cut, "…") && strings.HasSuffix(cut, "wrapped: the cause"), cut)
	}
	require.Equal(t, long, (&printer{width: 300}).cause(long))
	require.Equal(t, `a\u000ab`, (&printer{}).cause("a\nb"))
	require.Equal(t, "panic: no seat…", (&printer{width: 80}).cause("panic: no seat\n\n"+long))
}

func TestEveryStateHasAColour(t *testing.T) {
	t.Parallel()
	for _, state := range []queue.State{queue.Waiting, queue.Out, queue.Later, queue.Suspended, queue.Held, queue.Dead, queue.Finished} {
		require.NotEmpty(t, itemStyles[state], state)
	}
	for _, state := range []saga.State{saga.StateRunning, saga.StateCompensating, saga.StateSuspended, saga.StateCompleted, saga.StateCompensated, saga.StateResolved} {
		require.NotEmpty(t, sagaStyles[state], state)
	}
	for _, state := range []string{"held", "lapsed", "released", "done"} {
		require.NotEmpty(t, intentStyles[state], state)
	}
}
