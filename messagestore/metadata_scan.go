package messagestore

import "unicode/utf8"

// scanMetadata reads metadata of the shape that nearly all has: fields that
// [Metadata] knows, with whole numbers and with texts that stand there as they are.
// It makes of them what encoding/json does, in a fraction of the time; ok says that
// the text is of that shape. What it returns are parts of the text.
func scanMetadata(text string) (m Metadata, ok bool) {
	if !utf8.ValidString(text) {
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

// A scanner goes through JSON from its beginning. Its methods report whether what
// they look for is there; if it is not, where the scanner stands means nothing.
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
		name, ok := s.plain()
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
		value, ok := s.plain()
		values[name] = value
		return ok
	})
}

func scanText[T ~string](s *scanner, into *T) bool {
	text, ok := s.plain()
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

// plain scans a string that has nothing escaped in it.
func (s *scanner) plain() (string, bool) {
	if !s.pass('"') {
		return "", false
	}
	for begin := s.at; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return s.text[begin : s.at-1], true
		case c == '\\' || c < ' ':
			return "", false
		}
	}
	return "", false
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
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}
