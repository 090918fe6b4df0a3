// Package promise keeps the history of a run in SQLite, and checks it against promises, each of
// which is one query.
//
// Each process of a run writes a line to its own file before each call, and another after it: a
// kill -9 does not lose written lines. [History.Gather] copies these lines into the table calls of
// history.db, during and after the run, and the final content of the store is copied into other
// tables. So a run leaves one file that sqlite3 can open, and a check needs the same memory for a
// longer run.
//
// A scenario is checked by a folder of SQL:
//
//   - schema.sql has its tables, in addition to calls;
//   - tables.sql, which runs first in a check, derives tables that several promises use;
//   - figures.sql returns how much was done, in rows of a key, a name and a number: [Goals] refer
//     to the key;
//   - each other file is a promise, named after its id in docs/guarantees.md, with a letter if a
//     promise has several queries. Its first line is a comment with the promise, and each row of
//     its result is a breach.
//
// The SQL does not depend on how Dibs works. Tests check each promise with histories that break it.
package promise

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/dibs-go/dibs/messagestore/sqlite" // has the driver
)

// Never is the end of a call if the process died before the answer.
const Never = int64(1)<<62 - 1

// Ending is the extension of a file with a process's calls.
const Ending = ".calls"

// File is the name of a history's database, in the folder of its run.
const File = "history.db"

// calls has each call and its answer, from the lines of the process's file. A call without an
// answer ends at Never.
const calls = `
	create table if not exists calls (
		process text not null,
		op      integer not null, -- the number of the call in its file
		call    text not null,
		at      integer not null, -- microseconds since 1970, before the call
		ended   integer not null default 4611686018427387903, -- after it; never
		answer  text not null default '',
		asked   text not null,    -- as JSON
		told    text not null default '{}',
		primary key (process, op)
	);
	create index if not exists calls_call on calls (call)`

// A History has the calls of a run's processes, and the final content of the store. It is safe for
// concurrent use.
type History struct {
	dir   string
	files fs.FS
	db    *sql.DB
	tail  map[string]int64 // how far each file is read
}

// Open opens the history of the run in a folder, or begins it. The caller closes it.
func Open(ctx context.Context, dir string, files fs.FS) (*History, error) {
	const pragmas = "?_pragma=journal_mode(memory)&_pragma=synchronous(off)&_pragma=cache_size(-65536)&_pragma=temp_store(file)"
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, File)+pragmas)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	h := &History{dir: dir, files: files, db: db, tail: map[string]int64{}}
	if _, err = db.ExecContext(ctx, calls); err == nil {
		err = h.run(ctx, "schema.sql")
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return h, nil
}

// Close closes the history.
func (h *History) Close() error { return h.db.Close() }

// Exec runs a statement that changes the history.
func (h *History) Exec(ctx context.Context, statement string, args ...any) error {
	_, err := h.db.ExecContext(ctx, statement, args...)
	return err
}

func (h *History) read(name string) (string, error) {
	text, err := fs.ReadFile(h.files, name)
	return string(text), err
}

func (h *History) run(ctx context.Context, name string) error {
	text, err := h.read(name)
	if err == nil {
		err = h.Exec(ctx, text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Gather adds the new lines of the processes' files to the history. It leaves out an incomplete
// last line.
func (h *History) Gather(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(h.dir, "*"+Ending))
	if err != nil {
		return err
	}
	tx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // unless it was committed
	called, err := tx.PrepareContext(ctx, "insert into calls (process, op, call, at, asked) values (?, ?, ?, ?, ?)")
	if err != nil {
		return err
	}
	defer called.Close()
	answered, err := tx.PrepareContext(ctx, "update calls set ended = ?, answer = ?, told = ? where process = ? and op = ?")
	if err != nil {
		return err
	}
	defer answered.Close()
	for _, path := range paths {
		process := strings.TrimSuffix(filepath.Base(path), Ending)
		err := h.lines(path, func(line []byte) error {
			var head struct {
				Op, At   int64
				Call, Is string
			}
			err := json.Unmarshal(line, &head)
			switch {
			case err != nil:
			case head.Is == "":
				_, err = called.ExecContext(ctx, process, head.Op, head.Call, head.At, string(line))
			default:
				_, err = answered.ExecContext(ctx, head.At, head.Is, string(line), process, head.Op)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return tx.Commit()
}

// lines calls f with each whole line that was added to a file.
func (h *History) lines(path string, f func(line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(h.tail[path], io.SeekStart); err != nil {
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
		h.tail[path] += int64(len(line))
		if err := f(bytes.TrimSpace(line)); err != nil {
			return err
		}
	}
}

// Rows are the rows of a query of the store.
type Rows interface {
	Next() bool
	Values() ([]any, error)
	Err() error
}

// Fill inserts rows into a table. The values are in the order of the table's columns.
func (h *History) Fill(ctx context.Context, table string, rows Rows) error {
	tx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // unless it was committed
	var insert *sql.Stmt
	for rows.Next() {
		values, err := rows.Values()
		if err == nil && insert == nil {
			insert, err = tx.PrepareContext(ctx, "insert into "+table+" values (?"+strings.Repeat(", ?", len(values)-1)+")")
		}
		if err == nil {
			_, err = insert.ExecContext(ctx, values...)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return tx.Commit()
}

// A Rule is the id of a promise, or of a part of a promise with its own query.
type Rule string

// A Verdict is the outcome of a check.
type Verdict struct {
	Broken  map[Rule]int
	Figures Figures

	first  []string // findings of each rule
	titles []string // of the rules
}

const findingsEach = 5

// Passed reports whether all rules hold.
func (v *Verdict) Passed() bool { return len(v.Broken) == 0 }

// String returns whether each rule holds, and then the findings.
func (v *Verdict) String() string {
	var b strings.Builder
	width := 0
	for _, title := range v.titles {
		width = max(width, len(title))
	}
	for _, title := range v.titles {
		outcome := "holds"
		id, _, _ := strings.Cut(title, " ")
		if n := v.Broken[Rule(id)]; n > 0 {
			outcome = fmt.Sprintf("a promise was broken %d times", n)
		}
		fmt.Fprintf(&b, "%-*s %s\n", width, title, outcome)
	}
	for _, finding := range v.first {
		fmt.Fprintln(&b, finding)
	}
	return b.String()
}

// Rules returns the promises of a folder.
func Rules(files fs.FS) (all []Rule, err error) {
	names, err := fs.Glob(files, "*.sql")
	for _, name := range names {
		if id := strings.TrimSuffix(name, ".sql"); !slices.Contains([]string{"schema", "tables", "figures"}, id) {
			all = append(all, Rule(id))
		}
	}
	return all, err
}

// Check checks the history against each promise.
func (h *History) Check(ctx context.Context) (*Verdict, error) {
	v := &Verdict{Broken: map[Rule]int{}}
	if err := h.run(ctx, "tables.sql"); err != nil {
		return nil, err
	}
	rules, err := Rules(h.files)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		query, err := h.read(string(r) + ".sql")
		if err != nil {
			return nil, err
		}
		said, _, _ := bufio.NewReader(strings.NewReader(query)).ReadLine()
		v.titles = append(v.titles, string(r)+" "+strings.TrimPrefix(string(said), "-- "))
		if err := h.Each(ctx, query, func(scan func(...any) error) error {
			var finding string
			err := scan(&finding)
			if v.Broken[r]++; v.Broken[r] <= findingsEach {
				v.first = append(v.first, fmt.Sprintf("%s: %s", r, finding))
			}
			return err
		}); err != nil {
			return nil, fmt.Errorf("%s.sql: %w", r, err)
		}
	}
	v.Figures, err = h.Figures(ctx)
	return v, err
}

// Each calls f with each row of a query.
func (h *History) Each(ctx context.Context, query string, f func(scan func(...any) error) error) error {
	rows, err := h.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Figures returns how much was done, up to the last Gather.
func (h *History) Figures(ctx context.Context) (all Figures, err error) {
	query, err := h.read("figures.sql")
	if err != nil {
		return nil, err
	}
	err = h.Each(ctx, query, func(scan func(...any) error) error {
		var f Figure
		err := scan(&f.Key, &f.Name, &f.N)
		all = append(all, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("figures.sql: %w", err)
	}
	return all, nil
}

// Check checks the history of the run in a folder against the promises of a scenario.
func Check(ctx context.Context, dir string, files fs.FS) (*Verdict, error) {
	h, err := Open(ctx, dir, files)
	if err != nil {
		return nil, err
	}
	v, err := h.Check(ctx)
	return v, errors.Join(err, h.Close())
}
