package demo

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A progress is how far a run is.
type progress struct {
	Done, Of   int // withdrawals decided
	Duplicates int
	Lag        int // commands that the consumers have yet to see
	Written    int // messages in the store
	Elapsed    time.Duration

	Tail string // in place of duplicates and lag
}

// A screen shows progress: one line that changes where there is a terminal, a
// line every two seconds where there is none.
type screen struct {
	out      io.Writer
	terminal bool
	shown    time.Time
	width    int
	last     progress
	rate     float64
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return s
}

func (s *screen) show(p progress) {
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
func (s *screen) line(p progress) string {
	const cells = 10
	filled := min(cells, p.Done*cells/max(p.Of, 1))
	if p.Tail != "" {
		return fmt.Sprintf("%3d%% %s%s %s/%s, %s req/s, %s, %ds",
			p.Done*100/max(p.Of, 1), strings.Repeat("█", filled), strings.Repeat("░", cells-filled),
			count(p.Done), count(p.Of), count(int(s.rate)), p.Tail, int(p.Elapsed.Seconds()))
	}
	return fmt.Sprintf("%3d%% %s%s %s/%s, %s msg/s, %s duplicates, lag %s, %ds",
		p.Done*100/max(p.Of, 1), strings.Repeat("█", filled), strings.Repeat("░", cells-filled),
		count(p.Done), count(p.Of), count(int(s.rate)), count(p.Duplicates), count(p.Lag), int(p.Elapsed.Seconds()))
}

// say puts a sentence above the line that changes.
func (s *screen) say(sentence string) {
	s.done()
	fmt.Fprintln(s.out, "     "+sentence)
}

// done ends the line that changes.
func (s *screen) done() {
	if s.terminal && s.width > 0 {
		fmt.Fprintln(s.out)
	}
	s.width = 0
}

// count returns n with separators between the thousands.
func count(n int) string {
	if n < 0 {
		return "-" + count(-n)
	}
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
