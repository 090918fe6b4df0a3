package messagestore

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// scanMetadata reads metadata of the usual shape: one line of fields that [Metadata] knows, with
// whole numbers and unescaped texts. ok reports whether text has that shape. encoding/json gives
// the same result more slowly: a page of 1,000 small messages of a SQLite file is read at least 1.5
// times as fast. The result refers to parts of text.
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

// isPlain reports whether text is valid UTF-8 without escapes and control characters. It looks at
// eight bytes at once, because it runs for all metadata.
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
		// This sets the high bit of each byte that was below a space or was a backslash.
		if ((w-space)&^w|(escape-each)&^escape)&high != 0 {
			return false
		}
		other |= w
	}
	return other&high == 0 || utf8.ValidString(text)
}

// A scanner goes through plain JSON from the beginning. Its methods report whether the token that
// they look for is there; if not, the scanner's position has no meaning.
type scanner struct {
	text string
	at   int
}

// object calls field for each field, with the scanner at the field's value; field passes the value.
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

// scanWhole scans a number of at least 0 without fraction and exponent, short enough for an int64.
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

// pass passes the byte c and the space before it.
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
