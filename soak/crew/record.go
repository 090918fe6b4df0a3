package crew

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/soak/history"
)

// A Head points to what each record has: the number of its call in the file, its time, and its name. A call has the
// time before it, and its answer the time after it; number and name are the same in both.
type Head struct {
	Op, At *int64
	Call   *string
}

// A Record is a line of a history: a call before it is made, or its answer.
type Record[R any] interface {
	*R
	Head() Head
}

// Never is the end of a call whose process did not live to see it.
const Never = int64(1)<<62 - 1

// Ending ends the name of the file of a process's calls.
const Ending = ".calls"

// Now is the time, in microseconds since 1970.
func Now() int64 { return time.Now().UnixMicro() }

// A Recorder appends to the file of one process. It is safe for concurrent use.
type Recorder[R any, P Record[R]] struct {
	mu   sync.Mutex
	file *os.File
	op   int64
}

// NewRecorder makes the file of a process. The recorder's user closes it.
func NewRecorder[R any, P Record[R]](dir, process string) (*Recorder[R, P], error) {
	file, err := os.OpenFile(filepath.Join(dir, process+Ending), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // to be read
	return &Recorder[R, P]{file: file}, err
}

// Begin writes a call down. A process that cannot must not go on, and panics.
func (r *Recorder[R, P]) Begin(c R) R { return r.Since(Now(), c) }

// Since writes a call down that was made before, and changed nothing if it has no answer.
func (r *Recorder[R, P]) Since(at int64, c R) R {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.op++
	head := P(&c).Head()
	*head.Op, *head.At = r.op, at
	r.write(c)
	return c
}

// End writes the answer down.
func (r *Recorder[R, P]) End(c, answer R) {
	of, head := P(&c).Head(), P(&answer).Head()
	*head.Op, *head.Call, *head.At = *of.Op, *of.Call, Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(answer)
}

// write writes a line at once, so that a kill tears the last one at most.
func (r *Recorder[R, P]) write(c R) {
	line, err := json.Marshal(c)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("writing a history: %v", err))
	}
}

// Close closes the file.
func (r *Recorder[R, P]) Close() error { return r.file.Close() }

// EachCall calls f with each call of all processes in dir, those of a process in their order, and its answer, nil for
// none.
func EachCall[R any, P Record[R]](dir string, f func(process string, call, answer *R)) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+Ending))
	if err != nil {
		return err
	}
	type pair struct{ call, answer *R }
	for _, path := range paths {
		var all []*pair
		open := map[int64]*pair{}
		err := EachLine(path, func(r *R) {
			op := *P(r).Head().Op
			if p := open[op]; p != nil {
				p.answer = r
				return
			}
			open[op] = &pair{call: r}
			all = append(all, open[op])
		})
		if err != nil {
			return err
		}
		process := strings.TrimSuffix(filepath.Base(path), Ending)
		for _, p := range all {
			f(process, p.call, p.answer)
		}
	}
	return nil
}

// EachLine reads a file of JSON lines, without the last one if that was torn.
func EachLine[T any](path string, f func(*T)) error {
	n := 0
	err := history.Tail{}.Lines(path, func(line []byte) error {
		n++
		v := new(T)
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		f(v)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s, %w", path, err)
	}
	return nil
}

// WriteLines writes a file of JSON lines.
func WriteLines[T any](path string, all []T) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffered := bufio.NewWriter(file)
	encoder := json.NewEncoder(buffered)
	for _, v := range all {
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// Calls calls f with each record that was added to the histories in dir.
func Calls[R any](t history.Tail, dir string, f func(path string, r *R)) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+Ending))
	if err != nil {
		return err
	}
	for _, path := range paths {
		err := t.Lines(path, func(line []byte) error {
			r := new(R)
			if err := json.Unmarshal(line, r); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			f(path, r)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
