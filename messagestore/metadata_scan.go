package messagestore

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// scanMetadata reads metadata of the shape that nearly all has: on one line, fields that
// [Metadata] knows, with whole numbers and with texts that stand there as they are. It gives
// the same result as encoding/json, in a fraction of the time: a page of 1,000 small messages
// of a SQLite file is read 1.5 times as fast or more; ok says that the text is of that shape.
// The result refers to parts of the text.
func scanMetadata(text string) (m Metadata, ok bool) {
	if !isPlain(text) {
		return Metadata{}, false
	}
	s := scanner{text: text}
	cause := 0
	ok = s.object(func(name string) bool {
		switch name {
		case causationStreamField:
			cause |= 1
			return scanText(&s, &m.CausationStream) && m.CausationStream != ""
		case causationPositionField:
			cause |= 2
			return scanWhole(&s, &m.CausationPosition)
		case causationGlobalPositionField:
			cause |= 4
			return scanWhole(&s, &m.CausationGlobalPosition)
		case correlationStreamField:
			return scanText(&s, &m.CorrelationStream)
		case replyStreamField:
			return scanText(&s, &m.ReplyStream)
		case propertiesField:
			return s.properties(&m.Properties)
		case localPropertiesField:
			return s.properties(&m.Local)
		case schemaVersionField:
			return scanText(&s, &m.SchemaVersion)
		}
		return false
	})
	s.skipSpace()
	if !ok || s.at < len(text) || cause != 0 && cause != 1|2|4 {
		return Metadata{}, false
	}
	return m, true
}

// isPlain reports whether text is valid UTF-8 in which there is nothing escaped and no
// control character. It looks at eight bytes at once, since all metadata is looked at.
func isPlain(text string) bool {
	const (
		each      = 0x01_01_01_01_01_01_01_01
		high      = 0x80 * each
		space     = ' ' * each
		backslash = '\\' * each
	)
	other := uint64(0)
	for rest := text; len(rest) > 0; {
		eight := [8]byte{' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '}
		rest = rest[copy(eight[:], rest):]
		w := binary.LittleEndian.Uint64(eight[:])
		escape := w ^ backslash
		// The high bit of a byte is set where it was below a space, and where it was a backslash.
		if ((w-space)&^w|(escape-each)&^escape)&high != 0 {
			return false
		}
		other |= w
	}
	return other&high == 0 || utf8.ValidString(text)
}

// A scanner goes through JSON that is plain, from its beginning. Its methods report whether the
// token that they look for is there; if it is not, the scanner's position means nothing.
type scanner struct {
	text string
	at   int
}

// object calls field at the value of each field, which it passes.
func (s *scanner) object(field func(name string) bool) bool {
	if !s.pass('{') {
		return false
	}
	if s.pass('}') {
		return true
	}
	for {
		name, ok := s.string()
		if !ok || !s.pass(':') || !field(name) {
			return false
		}
		if !s.pass(',') {
			return s.pass('}')
		}
	}
}

// properties scans an object of texts.
func (s *scanner) properties(into *Properties) bool {
	values := Properties{}
	*into = values
	return s.object(func(name string) bool {
		value, ok := s.string()
		values[name] = value
		return ok
	})
}

func scanText[T ~string](s *scanner, into *T) bool {
	text, ok := s.string()
	*into = T(text)
	return ok
}

// scanWhole scans a number from 0 up that an int64 surely holds, without fraction and
// exponent.
func scanWhole[T ~int64](s *scanner, into *T) bool {
	s.skipSpace()
	begin, n := s.at, int64(0)
	for ; s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9'; s.at++ {
		n = n*10 + int64(s.text[s.at]-'0')
	}
	digits := s.at - begin
	*into = T(n)
	return digits == 1 || digits > 1 && digits <= 18 && s.text[begin] != '0'
}

// string scans a string.
func (s *scanner) string() (string, bool) {
	if !s.pass('"') {
		return "", false
	}
	length := strings.IndexByte(s.text[s.at:], '"')
	if length < 0 {
		return "", false
	}
	text := s.text[s.at : s.at+length]
	s.at += length + 1
	return text, true
}

// pass passes one byte, and the space before it.
func (s *scanner) pass(c byte) bool {
	s.skipSpace()
	if s.at == len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) skipSpace() {
	for s.at < len(s.text) && s.text[s.at] == ' ' {
		s.at++
	}
}
