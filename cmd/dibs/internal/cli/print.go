package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A printer prints rows of aligned cells, or objects of JSON. The first error of writing ends the command, and nothing is
// printed after it.
type printer struct {
	w         *bufio.Writer
	json      bool
	colour    bool
	inPlace   bool       // a terminal: see clear
	columnsOf func() int // of the terminal, 0 without one
	width     int        // no line of a table is longer, 0 for any; see align
	err       error
	stop      func() // is called with the first error

	columns []string // of the table
	begun   bool     // its header is printed
	rows    [][]cell
	widths  []int
}

type cell struct {
	text  string
	style style
	right bool // aligned
	whole bool // not divided: a command to copy, where the terminal itself begins a line
}

type style string

const (
	plain  style = ""
	bold   style = "\x1b[1m"
	dim    style = "\x1b[2m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	cyan   style = "\x1b[36m"
	reset  style = "\x1b[0m"
)

// in returns a value as a cell in a style.
func in(s style, value any) cell {
	c := toCell(value)
	c.style = s
	return c
}

// toCell returns a value as it is printed: a number to the right, and a time dim.
func toCell(value any) cell {
	c := cell{}
	switch v := value.(type) {
	case cell:
		c = v
	case time.Time:
		c = cell{text: timeOrNone(v), style: dim}
	default:
		c.text = fmt.Sprint(value)
		_, err := strconv.Atoi(c.text)
		c.right = err == nil && reflect.ValueOf(value).CanInt()
	}
	c.text = visible(c.text)
	return c
}

// alignedRows is how many rows are aligned with each other before the first of
// them is printed.
const alignedRows = 200

func newPrinter(w io.Writer, getenv func(string) string, stop func()) *printer {
	terminal := isTerminal(w)
	inPlace := terminal && getenv("TERM") != "dumb"
	p := &printer{
		w: bufio.NewWriter(w), stop: stop,
		colour:    inPlace && getenv("NO_COLOR") == "",
		inPlace:   inPlace,
		columnsOf: func() int { return 0 },
	}
	if terminal {
		given, _ := strconv.Atoi(getenv("COLUMNS")) // 0 if it is none
		p.columnsOf = func() int { return max(cmp.Or(columnsOf(w), given, 80), narrowest) }
	}
	p.width = p.columnsOf()
	return p
}

// A terminal is taken to have at least narrowest columns. Where a row of a table is too long for it, the
// rest is below the row, indented by an indent.
const (
	narrowest = 20
	indent    = 4
)

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
	p.align()
	p.put(string(text))
	return len(text), p.err
}

func (p *printer) put(text string) {
	if p.err != nil {
		return
	}
	if _, p.err = p.w.WriteString(text); p.err != nil {
		p.stop()
	}
}

// clear begins a screen: what follows is drawn over what was printed. Where there is no terminal
// it follows what was printed.
func (p *printer) clear() {
	if p.inPlace {
		p.text("\x1b[H\x1b[2J")
		p.width = p.columnsOf() // it may be another size by now
	}
}

// text prints text as it is, which is JSON's or of no use with it.
func (p *printer) text(text string) { _, _ = p.Write([]byte(text)) } // flush returns the error

// line prints one line of text, but not with JSON.
func (p *printer) line(format string, args ...any) {
	if !p.json {
		p.text(p.lines([]cell{{text: visible(fmt.Sprintf(format, args...))}}))
	}
}

// title prints a line above others.
func (p *printer) title(text string) {
	if !p.json {
		p.text(p.lines([]cell{{text: visible(text), style: bold}}))
	}
}

// object prints one line of JSON, if that is asked for.
func (p *printer) object(v any) {
	if !p.json {
		return
	}
	text, err := oneLine(v)
	if err != nil {
		p.err = err
		p.stop()
	}
	p.text(string(text))
}

// tell prints an object of JSON, or a line of text.
func (p *printer) tell(object any, format string, args ...any) error {
	p.object(object)
	p.line(format, args...)
	return p.err
}

// table begins a table of columns, of which those that begin with > are aligned right. Its header is printed with its first
// row. A cell with nothing in it is a dash in a column that has a name.
func (p *printer) table(columns ...string) {
	p.align()
	p.columns, p.begun, p.widths = columns, false, nil
}

// row prints one line of cells, or an object of JSON. The last cell is not aligned with anything.
func (p *printer) row(object any, values ...any) {
	if p.json {
		if object != nil {
			p.object(object)
		}
		return
	}
	p.header()
	cells := make([]cell, len(values))
	for i, value := range values {
		cells[i] = toCell(value)
		if len(values) < len(p.columns) || i >= len(p.columns) {
			continue
		}
		name, right := strings.CutPrefix(p.columns[i], ">")
		cells[i].right = cells[i].right || right
		if name != "" && cells[i].text == "" {
			cells[i].text = "-"
		}
	}
	if p.rows = append(p.rows, cells); len(p.rows) >= alignedRows {
		p.align()
	}
}

// header prints that of the table, if no row did.
func (p *printer) header() {
	if p.begun || p.columns == nil || p.json {
		return
	}
	p.begun = true
	header := make([]cell, len(p.columns))
	for i, name := range p.columns {
		header[i].text, header[i].right = strings.CutPrefix(name, ">")
	}
	p.rows = append(p.rows, header)
}

// facts prints names and values by turns, a line for each value that is not empty.
func (p *printer) facts(all ...any) {
	for i := 0; i < len(all); i += 2 {
		if value := reflect.ValueOf(all[i+1]); value.IsValid() && !value.IsZero() {
			p.row(nil, in(dim, all[i]), toCell(all[i+1]))
		}
	}
}

// flush sends everything on its way, and returns the first error.
func (p *printer) flush() error {
	p.align()
	if p.err == nil {
		p.err = p.w.Flush()
	}
	return p.err
}

// align prints the rows that wait for it, with their cells below each other. A cell that has no place on a line of a
// terminal begins another, and the last one, which is often a text, goes on there.
func (p *printer) align() {
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
		p.put(p.lines(row))
	}
	p.rows = p.rows[:0]
}

// lines returns a row, with what is below it.
func (p *printer) lines(row []cell) string {
	var all, line strings.Builder
	end := func() {
		if text := strings.TrimRight(line.String(), " "); text != "" || all.Len() == 0 {
			all.WriteString(text + "\n")
		}
		line.Reset()
	}
	at := 0 // of the cell in the line
	for i, c := range row {
		size, last := utf8.RuneCountInString(c.text), i == len(row)-1
		width := size
		if !last {
			width = p.widths[i]
		}
		if from := at; p.width > 0 && at+width > p.width && !c.whole {
			if !last || i == 0 || at > p.width/2 {
				from = indent
			}
			if from != at && i > 0 {
				end()
				line.WriteString(strings.Repeat(" ", indent))
				at = indent
			}
			parts := wrap(c.text, p.width-at, p.width-from)
			for _, part := range parts[:len(parts)-1] {
				line.WriteString(p.styled(part, c.style))
				end()
				line.WriteString(strings.Repeat(" ", from))
				at = from
			}
			c.text = parts[len(parts)-1]
			size = utf8.RuneCountInString(c.text)
		}
		pad := ""
		if !last {
			pad = strings.Repeat(" ", max(0, min(width, p.room(at))-size))
		}
		if c.right {
			line.WriteString(pad)
		}
		line.WriteString(p.styled(c.text, c.style))
		if !last {
			if !c.right {
				line.WriteString(pad)
			}
			line.WriteString("  ")
		}
		at += size + len(pad) + 2
	}
	end()
	return all.String()
}

// room returns how many characters have their place in a line behind a first few.
func (p *printer) room(at int) int {
	if p.width == 0 {
		return math.MaxInt
	}
	return p.width - at
}

// wrap divides a text in parts, between words where it can: the first has at most first characters, and the others at most
// width.
func wrap(text string, first, width int) (parts []string) {
	rest, most := []rune(text), first
	for len(rest) > most {
		n := most
		for n > most/2 && rest[n] != ' ' {
			n--
		}
		if rest[n] != ' ' {
			n = most
		}
		parts = append(parts, strings.TrimRight(string(rest[:n]), " "))
		for n < len(rest) && rest[n] == ' ' {
			n++
		}
		rest, most = rest[n:], width
	}
	return append(parts, string(rest))
}

func (p *printer) styled(text string, s style) string {
	if !p.colour || s == plain || text == "" {
		return text
	}
	return string(s) + text + string(reset)
}

// fields are the names and values of an object of JSON, in their order. One whose name ends with ? is left out if its value
// is none: zero, empty or nil.
type fields []any

// MarshalJSON encodes a time as it is printed, and an error as its text.
func (f fields) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	separator := byte('{')
	for i := 0; i < len(f); i += 2 {
		value := f[i+1]
		switch v := value.(type) {
		case time.Time:
			value = timeOrNone(v)
		case error:
			value = v.Error()
		}
		name, optional := strings.CutSuffix(f[i].(string), "?") //nolint:errcheck // all names are texts
		if v := reflect.ValueOf(value); optional && (!v.IsValid() || v.IsZero() || slices.Contains([]reflect.Kind{reflect.Slice, reflect.Map}, v.Kind()) && v.Len() == 0) {
			continue
		}
		b.WriteByte(separator)
		separator = ','
		if err := e.Encode(name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := e.Encode(value); err != nil {
			return nil, err
		}
	}
	if separator == '{' {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// known returns a value that is left out of fields, where it may be 0, only if it is not known.
func known[T any](is bool, value T) any {
	if !is {
		return nil
	}
	return &value
}

// recordOf is how a message is printed as JSON. The command write reads it too.
func recordOf(m *messagestore.Message) fields {
	return append(headOf(m), "data?", m.Data, "metadata?", known(!m.Metadata.IsZero(), m.Metadata))
}

// headOf is a record without what the message holds.
func headOf(m *messagestore.Message) fields {
	return fields{
		"stream", m.Stream, "position", m.Position, "globalPosition", m.GlobalPosition, "time?", m.Time, "type", m.Type, "id", m.ID,
	}
}

// timeOrNone is empty for no time.
func timeOrNone(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return text.Time(t)
}

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

// withData returns a text with data behind it, as one short line.
func withData(text string, data json.RawMessage) string {
	return strings.TrimSuffix(strings.TrimPrefix(text+": "+dataText(data), ": "), ": ")
}

func shorten(s string) string { return text.Cut(72, s) }

// cause returns an error as one line of a cell. Where it is too long for a line of a terminal, its end stays, which
// tells the cause: that of its first line, if it has several, as that of a panic has.
func (p *printer) cause(s string) string {
	all, most := []rune(visible(s)), max(72, p.width-indent)
	if p.width == 0 || len(all) <= most {
		return string(all)
	}
	first, _, several := strings.Cut(s, "\n")
	if all = []rune(visible(first)); several {
		all = append(all, '…')
	}
	if len(all) > most {
		all = append([]rune{'…'}, all[len(all)-most+1:]...)
	}
	return string(all)
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
