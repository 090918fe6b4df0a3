package history

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files returns the paths of the histories in dir, sorted.
func Files(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+Ending))
	slices.Sort(paths)
	return paths, err
}

// Events yields the events of the file at path, in their order. The event is the reader's own
// and valid until the next; its slices and strings may be kept. A last line without its end is
// left out, for it was torn when the process was killed; anything else that is not an event is
// an error, which ends the sequence.
func Events(path string) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		file, err := os.Open(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = file.Close() }()
		proc := strings.TrimSuffix(filepath.Base(path), Ending)
		for e, err := range lines(file, proc) {
			if err != nil {
				err = fmt.Errorf("%s: %w", path, err)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func lines(from io.Reader, proc string) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		r := bufio.NewReaderSize(from, 64<<10)
		var e Event
		var long []byte
		for n := 1; ; n++ {
			line, err := r.ReadSlice('\n')
			for long = long[:0]; errors.Is(err, bufio.ErrBufferFull); {
				long = append(long, line...)
				line, err = r.ReadSlice('\n')
			}
			if len(long) > 0 {
				line = append(long, line...)
				long = line
			}
			if errors.Is(err, io.EOF) {
				return // the rest of a torn line is ignored
			}
			if err == nil {
				err = parseLine(line[:len(line)-1], &e)
				e.Proc = proc
			}
			if err != nil {
				yield(nil, fmt.Errorf("line %d: %w", n, err))
				return
			}
			if !yield(&e, nil) {
				return
			}
		}
	}
}

// A Tail reads the lines that were added to files since it looked last: it has how far each file is read.
type Tail map[string]int64

// Lines calls f with each whole line that was added to a file.
func (t Tail) Lines(path string, f func(line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(t[path], io.SeekStart); err != nil {
		return err
	}
	for r := bufio.NewReaderSize(file, 64<<10); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // the beginning of the last line is read with the rest of it
		}
		if err != nil {
			return err
		}
		t[path] += int64(len(line))
		if err := f(bytes.TrimSpace(line)); err != nil {
			return err
		}
	}
}
