package demo

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
	Done, Of int
	Count    int    // of what the rate is of
	Unit     string // its name
	Tail     string
}

// A Screen shows progress: on a terminal a line that changes, otherwise a new line every two
// seconds.
type Screen struct {
	out      io.Writer
	terminal bool
	began    time.Time
	shown    time.Time
	width    int
	counted  int // at a time
	at       time.Time
	rate     float64
	complete bool // has been shown
}

// NewScreen returns a screen that prints to out.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: out, began: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return s
}

// Show shows the progress, in the 80 columns of a terminal.
func (s *Screen) Show(p Progress) {
	if since := time.Since(s.at); since >= time.Second {
		s.rate = float64(p.Count-s.counted) / min(since, time.Since(s.began)).Seconds()
		s.counted, s.at = p.Count, time.Now()
	}
	const cells = 10
	filled := min(cells, p.Done*cells/max(p.Of, 1))
	line := fmt.Sprintf("%3d%% %s%s %s/%s, %s %s/s, %s, %ds",
		p.Done*100/max(p.Of, 1), strings.Repeat("█", filled), strings.Repeat("░", cells-filled),
		Count(p.Done), Count(p.Of), Count(int(s.rate)), p.Unit, p.Tail, int(time.Since(s.began).Seconds()))
	if s.terminal {
		blank := max(0, s.width-len([]rune(line)))
		fmt.Fprint(s.out, "\r", line, strings.Repeat(" ", blank))
		s.width = len([]rune(line))
	} else if time.Since(s.shown) >= 2*time.Second || p.Done == p.Of && !s.complete {
		s.shown, s.complete = time.Now(), p.Done == p.Of
		fmt.Fprintln(s.out, line)
	}
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
