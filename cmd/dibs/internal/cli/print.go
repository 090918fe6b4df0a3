package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/messagestore"
)

// A printer prints rows of aligned cells, or objects of JSON.
type printer struct {
	w       *bufio.Writer
	json    bool
	colour  bool
	inPlace bool // a terminal: see clear
	rows    [][]cell
	widths  []int
}

type cell struct {
	text  string
	style style
	right bool // aligned
}

type style string

const (
	plain  style = ""
	bold   style = "\x1b[1m"
	dim    style = "\x1b[2m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	reset  style = "\x1b[0m"
)

// alignedRows is how many rows are aligned with each other before the first of
// them is printed.
const alignedRows = 200

func newPrinter(w io.Writer, getenv func(string) string) *printer {
	inPlace := isTerminal(w) && getenv("TERM") != "dumb"
	return &printer{
		w:       bufio.NewWriter(w),
		colour:  inPlace && getenv("NO_COLOR") == "",
		inPlace: inPlace,
	}
}

// isTerminal reports whether a person is at the other end of stream.
func isTerminal(stream any) bool {
	f, ok := stream.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device too, with nobody at it
	return err != nil || !os.SameFile(info, null)
}

// Write prints text as it is, after the text printed before.
func (p *printer) Write(text []byte) (int, error) {
	if err := p.align(); err != nil {
		return 0, err
	}
	return p.w.Write(text)
}

// clear begins a screen: what follows is drawn over what was printed. Where there is no terminal
// it follows what was printed.
func (p *printer) clear() {
	p.widths = nil
	if p.inPlace {
		_, _ = p.Write([]byte("\x1b[H\x1b[2J")) // flush returns the error
	}
}

// line prints one line of text.
func (p *printer) line(format string, args ...any) error {
	_, err := fmt.Fprintf(p, format+"\n", args...)
	return err
}

// object prints one line of JSON.
func (p *printer) object(v any) error {
	text, err := oneLine(v)
	if err != nil {
		return err
	}
	_, err = p.Write(text)
	return err
}

// row prints one line of cells. The last is not aligned with anything.
func (p *printer) row(cells ...cell) error {
	p.rows = append(p.rows, cells)
	if len(p.rows) < alignedRows {
		return nil
	}
	return p.align()
}

// flush sends everything on its way.
func (p *printer) flush() error {
	if err := p.align(); err != nil {
		return err
	}
	return p.w.Flush()
}

func (p *printer) align() error {
	for _, row := range p.rows {
		for i, c := range row {
			if i == len(p.widths) {
				p.widths = append(p.widths, 0)
			}
			if i < len(row)-1 {
				p.widths[i] = max(p.widths[i], utf8.RuneCountInString(c.text))
			}
		}
	}
	for _, row := range p.rows {
		var b strings.Builder
		for i, c := range row {
			pad := ""
			if i < len(row)-1 {
				pad = strings.Repeat(" ", p.widths[i]-utf8.RuneCountInString(c.text))
			}
			if c.right {
				b.WriteString(pad)
			}
			b.WriteString(p.styled(c.text, c.style))
			if i < len(row)-1 {
				if !c.right {
					b.WriteString(pad)
				}
				b.WriteString("  ")
			}
		}
		if _, err := p.w.WriteString(strings.TrimRight(b.String(), " ") + "\n"); err != nil {
			return err
		}
	}
	p.rows = p.rows[:0]
	return nil
}

func (p *printer) styled(text string, s style) string {
	if !p.colour || s == plain || text == "" {
		return text
	}
	return string(s) + text + string(reset)
}

// A record is how a message is printed as JSON. The command write reads it too.
type record struct {
	Stream         messagestore.StreamName     `json:"stream"`
	Position       messagestore.Version        `json:"position"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition"`
	Time           string                      `json:"time,omitempty"`
	Type           string                      `json:"type"`
	ID             string                      `json:"id"`
	Data           json.RawMessage             `json:"data,omitempty"`
	Metadata       *messagestore.Metadata      `json:"metadata,omitempty"`
}

func toRecord(m *messagestore.Message) record {
	r := record{
		Stream: m.Stream, Position: m.Position, GlobalPosition: m.GlobalPosition,
		Time: timeText(m.Time), Type: m.Type, ID: m.ID.String(), Data: m.Data,
	}
	if !m.Metadata.IsZero() {
		r.Metadata = &m.Metadata
	}
	return r
}

// timeText is always as long, so that columns and sorting are right.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// oneLine encodes v as one line of JSON that is safe to show on a terminal.
func oneLine(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("print: %w", err)
	}
	// A character that cannot be seen is inside a string, where its escape is
	// the same character.
	return append([]byte(visible(strings.TrimSuffix(b.String(), "\n"))), '\n'), nil
}

// dataText returns data as one short line.
func dataText(data json.RawMessage) string {
	if len(data) == 0 {
		return ""
	}
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return shorten(visible(string(data)))
	}
	return shorten(visible(b.String()))
}

func shorten(text string) string { return shortenTo(72, text) }

// shortenTo cuts text that is longer than most characters.
func shortenTo(most int, text string) string {
	n := 0
	for i := range text {
		if n == most-1 && utf8.RuneCountInString(text[i:]) > 1 {
			return text[:i] + "…"
		}
		n++
	}
	return text
}

// visible returns text with control characters and invisible characters written as JSON's
// escapes. Stored text may hold anything.
func visible(text string) string {
	hidden := func(r rune) bool {
		return r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	}
	if strings.IndexFunc(text, hidden) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hidden(r) || r == utf8.RuneError:
			b.WriteRune(r)
		case r > 0xFFFF:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
