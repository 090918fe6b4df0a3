package harness

import (
	"bytes"

	"github.com/dibs-go/dibs/soak/history"
)

// A tally counts the events in the histories of a run that is under way. It reads each
// line once.
type tally struct {
	dir  string
	tail history.Tail

	lines    int
	checked  int // operations that say something of a stream's version
	resolved int // unknown outcomes that were found out about
}

func newTally(dir string) *tally { return &tally{dir: dir, tail: history.Tail{}} }

// read counts the lines that were written since it was called last.
func (t *tally) read() error {
	files, err := history.Files(t.dir)
	if err != nil {
		return err
	}
	for _, path := range files {
		if err := t.tail.Lines(path, t.count); err != nil {
			return err
		}
	}
	return nil
}

// count reads the first words of a line: time, kind and function.
func (t *tally) count(line []byte) error {
	t.lines++
	_, rest, _ := bytes.Cut(line, []byte{' '})
	kind, rest, _ := bytes.Cut(rest, []byte{' '})
	name, rest, _ := bytes.Cut(rest, []byte{' '})
	switch f := history.Func(name); history.Kind(kind) {
	case history.OK:
		switch f {
		case history.Version:
			t.checked++
		case history.Write, history.WriteTx:
			t.checked += bytes.Count(rest, []byte(" stream=")) - bytes.Count(rest, []byte(" duplicate=1"))
		case history.Resolve:
			t.resolved++
		}
	case history.Fail:
		if bytes.Contains(rest, []byte(" class="+history.Conflict)) && (f == history.Write || f == history.WriteTx) {
			t.checked++
		}
	}
	return nil
}
