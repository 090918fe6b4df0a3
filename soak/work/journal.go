package work

import (
	"fmt"
	"os"

	"github.com/dibs-go/dibs/soak/history"
)

// A journal is the history of this process. If it cannot be written the process ends: no step may go
// unrecorded. It is safe for concurrent use.
type journal struct {
	writer *history.Writer
}

func (j journal) begin(e *history.Event) (op uint64) {
	op, err := j.writer.Begin(e)
	j.must(err)
	return op
}

func (j journal) end(op uint64, kind history.Kind, e *history.Event) {
	j.must(j.writer.End(op, kind, e))
}

func (j journal) note(e *history.Event) { j.must(j.writer.Note(e)) }

func (j journal) must(err error) {
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1) //nolint:forbidigo // see above
}
