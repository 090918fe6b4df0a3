package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// maxLineBytes bounds a line of input: a message of the largest size, and room
// for its names and white space.
const maxLineBytes = 2 << 20

var bom = []byte("\xef\xbb\xbf")

// many writes the messages of lines of JSON.
func (c *writeCommand) many(ctx context.Context, a *app) error {
	if c.Stream != nil || c.ID != "" || c.Expected != "" || c.Metadata != "" || c.Follow != "" {
		return usage("lines say their own stream, id, version and metadata: give either STREAM and TYPE, or --from")
	}
	input := a.stdin
	switch c.From {
	case "":
		if isTerminal(a.stdin) {
			return usage("expected STREAM and TYPE, or --from FILE, or lines of JSON on the standard input")
		}
	case "-":
	default:
		file, err := os.Open(c.From)
		if err != nil {
			return usage("%w", err)
		}
		defer file.Close()
		input = file
	}
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		return a.writeLines(ctx, store, input, c.NewIDs)
	})
}

func (a *app) writeLines(ctx context.Context, store *messagestore.Store, input io.Reader, newIDs bool) error {
	var written, before, number int
	fail := func(err error) error { return &lineError{Line: number, Written: written, Before: before, err: err} }
	ids := deriver{seen: map[uuid.UUID]uint64{}}
	progress := a.progress()
	for raw, err := range linesOf(ctx, input) {
		number++
		if err != nil {
			return fail(err)
		}
		if number == 1 {
			raw = bytes.TrimPrefix(raw, bom)
		}
		if len(bytes.TrimSpace(raw)) == 0 {
			continue
		}
		l, err := parseLine(raw)
		if err != nil {
			return fail(err)
		}
		if l.message.ID == uuid.Nil && !newIDs {
			l.message.ID = ids.derive(l)
		}
		w, err := store.Write(ctx, l.stream, l.expected, l.message)
		if err != nil {
			return fail(err)
		}
		if w.Duplicate {
			before++
		} else {
			written++
		}
		if a.JSON {
			if err := a.printWritten(number, w); err != nil {
				return fail(fmt.Errorf("written, but not reported: %w", err))
			}
		}
		progress.tell("%d written, %d had been already", written, before)
	}
	a.out.line("%d written, %d had been already", written, before)
	return nil
}

// linesOf yields the lines of input without their ends. It stops when ctx ends,
// even while a read waits for a person to type.
func linesOf(ctx context.Context, input io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		r := bufio.NewReaderSize(input, 64<<10)
		for {
			line, err := promptly(ctx, func() ([]byte, error) { return readLine(r) })
			if errors.Is(err, io.EOF) || !yield(line, err) || err != nil {
				return
			}
		}
	}
}

// readLine returns the next line, or io.EOF after the last.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLineBytes {
			return nil, messagestore.NewInvalidError("line", line, fmt.Sprintf("must be at most %d bytes", maxLineBytes))
		}
		line = append(line, part...)
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// A line is one message of the input.
type line struct {
	stream   messagestore.StreamName
	expected messagestore.Version
	message  messagestore.Envelope
	content  []json.RawMessage // that an id is made of
}

// parseLine reads one line. It refuses a misspelt or repeated name, which would otherwise be lost
// silently.
func parseLine(raw []byte) (line, error) {
	fields, err := fieldsOf(raw)
	if err != nil {
		return line{}, err
	}
	l := line{expected: messagestore.AnyVersion}
	for _, name := range []string{"stream", "type"} {
		if fields[name] == nil {
			return line{}, invalidLine(raw, fmt.Sprintf("must have %q", name))
		}
	}
	stream, err := textField(fields, "stream")
	if err != nil {
		return line{}, err
	}
	l.stream = messagestore.StreamName(stream)
	if err := l.stream.Validate(); err != nil {
		return line{}, err
	}
	body := messagestore.Raw{Data: json.RawMessage("{}")}
	if body.Type, err = textField(fields, "type"); err != nil {
		return line{}, err
	}
	if data := fields["data"]; data != nil {
		body.Data = data
	}
	l.message.Body = body
	expected := string(fields["expected"])
	if fields["id"] != nil {
		var id string
		if id, err = textField(fields, "id"); err == nil {
			l.message.ID, err = parseID(id)
		}
	}
	if metadata := fields["metadata"]; err == nil && metadata != nil {
		l.message.Metadata, err = parseMetadata(metadata)
	}
	if err == nil && expected != "" && expected[0] == '"' {
		expected, err = textField(fields, "expected")
	}
	if err == nil && fields["expected"] != nil {
		l.expected, err = parseExpected(expected)
	}
	if err != nil {
		return line{}, err
	}
	l.content = []json.RawMessage{fields["stream"], fields["type"], body.Data, fields["metadata"]}
	return l, nil
}

var (
	lineFields  = []string{"stream", "type", "data", "metadata", "id", "expected"}
	otherFields = []string{"position", "globalPosition", "time"} // of a record
)

func fieldsOf(raw []byte) (map[string]json.RawMessage, error) {
	if i := invalidUTF8(raw); i >= 0 {
		return nil, invalidLine(raw, fmt.Sprintf("must be valid UTF-8: error at byte %d", i))
	}
	var whole json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, invalidLine(raw, fmt.Sprintf("must be valid JSON: error at byte %d: %v", syntax.Offset, syntax))
		}
		return nil, invalidLine(raw, err.Error())
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return nil, invalidLine(raw, "must be a JSON object")
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		var value json.RawMessage
		token, err := d.Token()
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return nil, invalidLine(raw, err.Error())
		}
		name := fmt.Sprint(token)
		switch {
		case !slices.Contains(lineFields, name) && !slices.Contains(otherFields, name):
			return nil, messagestore.NewInvalidError("field", name, "must be stream, type, data, metadata, id or expected")
		case fields[name] != nil:
			return nil, messagestore.NewInvalidError("field", name, "must not be in the line twice")
		}
		fields[name] = value
	}
	return fields, nil
}

// invalidUTF8 returns where raw stops being UTF-8, or -1.
func invalidUTF8(raw []byte) int {
	for i := 0; i < len(raw); {
		r, size := utf8.DecodeRune(raw[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

func invalidLine(raw []byte, rule string) error {
	return messagestore.NewInvalidError("line", raw, rule)
}

func textField(fields map[string]json.RawMessage, name string) (string, error) {
	raw := fields[name]
	var text string
	rule := ""
	if err := checkText(raw); err != nil {
		rule = err.Error()
	} else if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		rule = "must be a string"
	}
	if rule != "" {
		return "", messagestore.NewInvalidError(name, []byte(raw), rule)
	}
	return text, nil
}

// checkText refuses bytes that encoding/json would replace without a word: invalid UTF-8,
// and half of a surrogate pair.
func checkText(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("must be valid UTF-8")
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		switch unit := codeUnit(raw[min(i, len(raw)):]); {
		case unit >= 0xD800 && unit < 0xDC00:
			if i+6 > len(raw) || raw[i+5] != '\\' {
				return errors.New("must not contain half of a surrogate pair")
			}
			if low := codeUnit(raw[i+6:]); low < 0xDC00 || low > 0xDFFF {
				return errors.New("must not contain half of a surrogate pair")
			}
			i += 10
		case unit >= 0xDC00 && unit <= 0xDFFF:
			return errors.New("must not contain half of a surrogate pair")
		}
	}
	return nil
}

// codeUnit returns the number that text begins with, as u and four digits, or -1.
func codeUnit(text []byte) int64 {
	if len(text) < 5 || text[0] != 'u' {
		return -1
	}
	unit, err := strconv.ParseInt(string(text[1:5]), 16, 32)
	if err != nil {
		return -1
	}
	return unit
}

// derived is the name space of the ids that lines without one get. It must never
// change: the same input would be written again.
var derived = uuid.MustParse("7d1b5b1e-5a0c-8d1b-9f0e-64696273206c")

// A deriver makes the id of a line from its content, and from the number of equal lines before it.
// So equal lines of one input are different messages, and the same input given again is the same
// messages.
type deriver struct {
	seen map[uuid.UUID]uint64
}

func (d *deriver) derive(l line) uuid.UUID {
	var content []byte
	for _, part := range l.content {
		canonical, err := exactjson.Canonical(part)
		if err != nil {
			canonical = part // missing, or about to be refused
		}
		content = append(append(content, canonical...), 0)
	}
	like := uuid.NewHash(sha256.New(), derived, content, 8)
	n := d.seen[like]
	d.seen[like]++
	if n == 0 {
		return like
	}
	return uuid.NewHash(sha256.New(), like, strconv.AppendUint(nil, n, 10), 8)
}
