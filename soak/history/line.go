package history

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// AppendText adds e's line to b, without its end. The error is nil.
func (e *Event) AppendText(b []byte) ([]byte, error) {
	b = strconv.AppendInt(b, e.Time, 10)
	b = append(append(b, ' '), e.Kind...)
	b = append(append(b, ' '), e.Func...)
	b = strconv.AppendUint(append(b, ' '), e.Op, 10)
	if e.Ref != (Ref{}) {
		b = escape(append(b, " ref="...), e.Ref.Proc)
		b = strconv.AppendUint(append(b, ','), e.Ref.Op, 10)
	}
	b = text(b, "class", e.Class)
	b = text(b, "target", e.Target)
	b = number(b, "actual", int64(e.Actual))
	b = text(b, "consumer", e.Consumer)
	b = text(b, "category", string(e.Category))
	if e.Alone {
		b = append(b, " alone=1"...)
	}
	b = unsigned(b, "run", e.Run)
	b = number(b, "interval", int64(e.Interval))
	b = number(b, "batch", int64(e.Batch))
	b = number(b, "attempt", int64(e.Attempt))
	b = number(b, "position", int64(e.Position))
	b = text(b, "key", e.Key)
	b = unsigned(b, "value", e.Value)
	for i := range e.Appends {
		b = appendAppend(b, &e.Appends[i])
	}
	return text(b, "note", e.Note), nil
}

func appendAppend(b []byte, a *Append) []byte {
	b = escape(append(b, " stream="...), string(a.Stream))
	b = number(b, "expected", int64(a.Expected))
	b = number(b, "version", int64(a.Version))
	b = number(b, "global", int64(a.Global))
	if a.Duplicate {
		b = append(b, " duplicate=1"...)
	}
	for i := range a.Messages {
		m := &a.Messages[i]
		var id [36]byte
		b = append(append(b, " id="...), encodeUUID(&id, m.ID)...)
		b = strconv.AppendUint(append(b, ','), m.Value, 10)
		b = strconv.AppendUint(append(b, ','), m.Hash, 16)
		if m.Position != 0 || m.Global != 0 {
			b = strconv.AppendInt(append(b, ','), int64(m.Position), 10)
			b = strconv.AppendInt(append(b, ','), int64(m.Global), 10)
		}
	}
	return b
}

func encodeUUID(to *[36]byte, id uuid.UUID) []byte {
	const digits = "0123456789abcdef"
	out := to[:0]
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			out = append(out, '-')
		}
		out = append(out, digits[c>>4], digits[c&15])
	}
	return out
}

func text(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(append(append(b, ' '), name...), '=')
	return escape(b, value)
}

func number(b []byte, name string, value int64) []byte {
	if value == 0 {
		return b
	}
	b = append(append(append(b, ' '), name...), '=')
	return strconv.AppendInt(b, value, 10)
}

func unsigned(b []byte, name string, value uint64) []byte {
	if value == 0 {
		return b
	}
	b = append(append(append(b, ' '), name...), '=')
	return strconv.AppendUint(b, value, 10)
}

func escape(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f || c == '%' || c == ',' {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

func unescape(s []byte) (string, error) {
	if bytes.IndexByte(s, '%') < 0 {
		return string(s), nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			if i+2 >= len(s) {
				return "", errors.New("% without two digits")
			}
			n, err := strconv.ParseUint(string(s[i+1:i+3]), 16, 8)
			if err != nil {
				return "", err
			}
			c = byte(n)
			i += 2
		}
		out = append(out, c)
	}
	return string(out), nil
}

// parseLine reads a line without its end.
func parseLine(line []byte, e *Event) error {
	*e = Event{}
	p := parser{rest: line}
	e.Time = p.number(p.word())
	e.Kind = p.kind(p.word())
	e.Func = Func(known(p.word()))
	e.Op = p.unsigned(p.word())
	if e.Func == "" {
		p.fail(errors.New("no function"))
	}
	for len(p.rest) > 0 && p.err == nil {
		name, value, ok := bytes.Cut(p.word(), []byte{'='})
		if !ok {
			return fmt.Errorf("%q is not a name and a value", name)
		}
		p.field(e, string(name), value)
	}
	return p.err
}

type parser struct {
	rest []byte
	err  error
}

func (p *parser) field(e *Event, name string, value []byte) {
	switch name {
	case "id":
		if a := p.last(e); a != nil {
			a.Messages = append(a.Messages, p.message(value))
		}
	case "stream":
		e.Appends = append(e.Appends, Append{Stream: messagestore.StreamName(p.text(value))})
	case "expected":
		if a := p.last(e); a != nil {
			a.Expected = messagestore.Version(p.number(value))
		}
	case "version":
		if a := p.last(e); a != nil {
			a.Version = messagestore.Version(p.number(value))
		}
	case "global":
		if a := p.last(e); a != nil {
			a.Global = messagestore.GlobalPosition(p.number(value))
		}
	case "duplicate":
		if a := p.last(e); a != nil {
			a.Duplicate = true
		}
	case "ref":
		proc, op, _ := bytes.Cut(value, []byte{','})
		e.Ref = Ref{Proc: p.text(proc), Op: p.unsigned(op)}
	case "class":
		e.Class = p.text(value)
	case "target":
		e.Target = p.text(value)
	case "actual":
		e.Actual = messagestore.Version(p.number(value))
	case "consumer":
		e.Consumer = p.text(value)
	case "category":
		e.Category = messagestore.Category(p.text(value))
	case "alone":
		e.Alone = true
	case "run":
		e.Run = p.unsigned(value)
	case "interval":
		e.Interval = int(p.number(value))
	case "batch":
		e.Batch = int(p.number(value))
	case "attempt":
		e.Attempt = int(p.number(value))
	case "position":
		e.Position = messagestore.GlobalPosition(p.number(value))
	case "key":
		e.Key = p.text(value)
	case "value":
		e.Value = p.unsigned(value)
	case "note":
		e.Note = p.text(value)
	default:
		p.fail(fmt.Errorf("unknown name %q", name))
	}
}

func (p *parser) word() []byte {
	word, rest, _ := bytes.Cut(p.rest, []byte{' '})
	p.rest = rest
	return word
}

func (p *parser) last(e *Event) *Append {
	if len(e.Appends) == 0 {
		p.fail(errors.New("no stream before an attribute of one"))
		return nil
	}
	return &e.Appends[len(e.Appends)-1]
}

func (p *parser) message(value []byte) (m Message) {
	var parts [5][]byte
	n := 0
	for rest, more := value, true; more; n++ {
		if n == len(parts) {
			p.fail(errors.New("a message of more than five parts"))
			return m
		}
		parts[n], rest, more = bytes.Cut(rest, []byte{','})
	}
	if n != 3 && n != 5 {
		p.fail(fmt.Errorf("a message of %d parts", n))
		return m
	}
	id, err := uuid.ParseBytes(parts[0])
	p.fail(err)
	m.ID = id
	m.Value = p.unsigned(parts[1])
	hash, err := strconv.ParseUint(string(parts[2]), 16, 64)
	p.fail(err)
	m.Hash = hash
	if n == 5 {
		m.Position = messagestore.Version(p.number(parts[3]))
		m.Global = messagestore.GlobalPosition(p.number(parts[4]))
	}
	return m
}

func (p *parser) kind(word []byte) Kind {
	switch string(word) {
	case "invoke":
		return Invoke
	case "ok":
		return OK
	case "fail":
		return Fail
	case "info":
		return Info
	}
	p.fail(fmt.Errorf("unknown kind %q", word))
	return ""
}

func (p *parser) text(value []byte) string {
	s, err := unescape(value)
	p.fail(err)
	return s
}

func (p *parser) number(value []byte) int64 {
	n, err := strconv.ParseInt(string(value), 10, 64)
	p.fail(err)
	return n
}

func (p *parser) unsigned(value []byte) uint64 {
	n, err := strconv.ParseUint(string(value), 10, 64)
	p.fail(err)
	return n
}

// fail keeps the first error.
func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// known returns the word without a copy of it for each line.
func known(word []byte) string {
	for _, f := range [...]Func{
		Write, WriteTx, Version, Read, Resolve, Run, Fetch, Handle, Park, Position, Reserve, Effect, Fault, Failover, Heal,
	} {
		if string(word) == string(f) {
			return string(f)
		}
	}
	return strings.Clone(string(word))
}
