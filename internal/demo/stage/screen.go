package stage

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Progress is how far a run is.
type Progress struct {
	Done, Of   int // withdrawals decided
	Duplicates int
	Lag        int // commands that the consumers have yet to see
	Written    int // messages in the store
	Elapsed    time.Duration

	Tail string // in place of duplicates and lag
}

// A Screen shows progress: one line that changes where there is a terminal, a
// line every two seconds where there is none.
type Screen struct {
	out      io.Writer
	terminal bool
	shown    time.Time
	width    int
	last     Progress
	rate     float64
}

// NewScreen returns a screen that prints to out.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: out}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return s
}

// Show shows the progress.
func (s *Screen) Show(p Progress) {
	if since := p.Elapsed - s.last.Elapsed; since >= time.Second || s.rate == 0 {
		s.rate = float64(p.Written-s.last.Written) / max(since.Seconds(), 0.001)
		s.last = p
	}
	line := s.line(p)
	if s.terminal {
		blank := max(0, s.width-len([]rune(line)))
		fmt.Fprint(s.out, "\r", line, strings.Repeat(" ", blank))
		s.width = len([]rune(line))
		return
	}
	if time.Since(s.shown) >= 2*time.Second || p.Done == p.Of && p.Lag == 0 {
		s.shown = time.Now()
		fmt.Fprintln(s.out, line)
	}
}

// line fits into the 80 columns of a terminal.
func (s *Screen) line(p Progress) string {
	const cells = 10
	filled := min(cells, p.Done*cells/max(p.Of, 1))
	if p.Tail != "" {
		return fmt.Sprintf("%3d%% %s%s %s/%s, %s req/s, %s, %ds",
			p.Done*100/max(p.Of, 1), strings.Repeat("█", filled), strings.Repeat("░", cells-filled),
			Count(p.Done), Count(p.Of), Count(int(s.rate)), p.Tail, int(p.Elapsed.Seconds()))
	}
	return fmt.Sprintf("%3d%% %s%s %s/%s, %s msg/s, %s duplicates, lag %s, %ds",
		p.Done*100/max(p.Of, 1), strings.Repeat("█", filled), strings.Repeat("░", cells-filled),
		Count(p.Done), Count(p.Of), Count(int(s.rate)), Count(p.Duplicates), Count(p.Lag), int(p.Elapsed.Seconds()))
}

// Say puts a sentence above the line that changes.
func (s *Screen) Say(sentence string) {
	s.Done()
	fmt.Fprintln(s.out, "     "+sentence)
}

// Done ends the line that changes.
func (s *Screen) Done() {
	if s.terminal && s.width > 0 {
		fmt.Fprintln(s.out)
	}
	s.width = 0
}

// Count returns n with separators between the thousands.
func Count(n int) string {
	if n < 0 {
		return "-" + Count(-n)
	}
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// A Row compares one figure of the file with the store's.
type Row struct {
	Name        string
	File, Store string
	Same        bool

	detail bool // of the store alone, nothing to compare
}

// Compare returns a row of two numbers that should be equal.
func Compare(name string, file, store int) Row {
	return Row{Name: name, File: Count(file), Store: Count(store), Same: file == store}
}

// Between returns a row of a number that should be between two: of those done for certain, and of those begun.
func Between(name string, least, most, store int) Row {
	if least == most {
		return Compare(name, most, store)
	}
	return Row{Name: name, File: Count(least) + " to " + Count(most), Store: Count(store), Same: least <= store && store <= most}
}

// Detail returns a row of a number with nothing to compare it to.
func Detail(name string, store int) Row {
	return Row{Name: "  " + name, Store: Count(store), detail: true, Same: true}
}

// PrintTable prints rows, and reports whether all agree.
func PrintTable(out io.Writer, file, store string, rows []Row) bool {
	same := true
	fmt.Fprintf(out, "\n%-38s %14s %14s\n", "", file, store)
	for _, r := range rows {
		mark := "ok"
		switch {
		case r.detail:
			mark = ""
		case !r.Same:
			mark, same = "DIFFERS", false
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%-38s %14s %14s  %s", r.Name, r.File, r.Store, mark), " "))
	}
	return same
}
