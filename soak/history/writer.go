package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Ending is how the name of a history's file ends.
const Ending = ".history"

// A Writer appends the events of one process to its file. Goroutines may share it.
type Writer struct {
	mu   sync.Mutex
	file *os.File
	line []byte
	op   uint64
	err  error
}

// Create makes the file of process proc in dir, and fails if there is one: a process that is
// started in another's place has a name of its own. Proc is not empty and has no separator of
// paths in it. Close the Writer when the process ends by itself.
func Create(dir, proc string) (*Writer, error) {
	if proc == "" || strings.ContainsRune(proc, filepath.Separator) {
		return nil, fmt.Errorf("%q cannot be the name of a process", proc)
	}
	file, err := os.OpenFile(filepath.Join(dir, proc+Ending), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("creating a history: %w", err)
	}
	return &Writer{file: file}, nil
}

// Begin gives e the next number of an operation, dates it, writes it as an invoke, and
// returns the number. After an error the operation must not be done.
func (w *Writer) Begin(e *Event) (op uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.op++
	e.Kind, e.Op = Invoke, w.op
	return e.Op, w.write(e)
}

// End dates e and writes it as the end of operation op, of kind OK, Fail or Info. Its Func is the
// Func of the invoke.
func (w *Writer) End(op uint64, kind Kind, e *Event) error {
	if kind == Invoke {
		return errors.New("an invoke is no end of an operation")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Kind, e.Op = kind, op
	return w.write(e)
}

// Note dates e and writes it as an operation that is over at once, an OK without an invoke.
func (w *Writer) Note(e *Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.op++
	e.Kind, e.Op = OK, w.op
	return w.write(e)
}

// Close closes the file.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.Close()
}

// write dates the event under the lock, so that the file is in order of time. After a write
// that failed the file may end within a line: nothing more is written then.
func (w *Writer) write(e *Event) error {
	if w.err != nil {
		return w.err
	}
	var err error
	if e.Time, err = Now(); err == nil {
		w.line, err = e.AppendText(w.line[:0])
	}
	if err == nil {
		w.line = append(w.line, '\n')
		_, err = w.file.Write(w.line)
	}
	if err != nil {
		w.err = fmt.Errorf("writing a history: %w", err)
	}
	return w.err
}

// Now returns CLOCK_MONOTONIC in nanoseconds, the time that events are dated by.
func Now() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, err
	}
	return now.Nano(), nil
}
