// Package exactjson writes and compares JSON with exact numbers. The store, its drivers and
// reservations all use it to decide whether two texts are the same value.
package exactjson

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/text"
)

// Canonical returns raw in the one spelling that all JSON equal to it shares. It has no white
// space, keys are sorted by their bytes, of equal keys the last is kept, and strings have the
// fewest escapes. Numbers are equal by value: 1.0 and 1e0 are 1, and no digit is lost. Content is
// hashed and compared in this form.
func Canonical(raw json.RawMessage) ([]byte, error) {
	canonical, _, err := AppendCanonical(nil, raw)
	return canonical, err
}

// AppendCanonical appends the canonical form of raw to b. Ambiguous reports whether another value
// may have the same form: an object in raw has a key twice, of which the last is kept, or a text in
// it has half a surrogate pair or is not UTF-8, which becomes U+FFFD.
func AppendCanonical(b []byte, raw json.RawMessage) (canonical []byte, ambiguous bool, err error) {
	if !json.Valid(raw) {
		var whole json.RawMessage
		return nil, false, fmt.Errorf("canonical JSON: %w", json.Unmarshal(raw, &whole)) // the error says where
	}
	return AppendCanonicalOf(b, raw)
}

// AppendCanonicalOf is [AppendCanonical] for valid JSON, for example right after encoding/json has
// made it. Do not call it with anything else.
func AppendCanonicalOf(b []byte, raw json.RawMessage) (canonical []byte, ambiguous bool, err error) {
	w := newWriter(raw, false)
	defer w.free()
	if err := w.all(); err != nil {
		return nil, false, err
	}
	return w.appendTo(b), w.ambiguous, nil
}

// OneReading returns a common spelling for all JSON that every decoder reads the same way as raw.
// White space, the order of an object's keys and escapes do not count. Numbers keep their spelling,
// because some decoders do not accept 1.0 as an integer. It is not ok if raw is invalid JSON, or if
// two decoders may read it as different values: an object has two keys that differ only in case, or
// a text has half a surrogate pair or is not UTF-8.
func OneReading(raw json.RawMessage) (spelling []byte, ok bool) {
	if !json.Valid(raw) {
		return nil, false
	}
	w := newWriter(raw, true)
	defer w.free()
	if err := w.all(); err != nil || w.ambiguous {
		return nil, false
	}
	return w.appendTo(nil), true
}

// A writer writes the canonical form of valid JSON while it reads it: each byte once, in the order
// of raw, and once more if the keys of any object are out of order. That second pass is at the end,
// for all objects together: moving the members of each object at its end would copy deeply nested
// bytes once per level.
type writer struct {
	raw []byte
	at  int // the next byte of raw to read
	b   []byte

	depth int // objects that have begun and not ended

	members []member // of the objects that have begun and not ended
	keys    []byte   // decoded, of those with an escape
	objects []object // objects with members out of order; an object comes after those within it
	parts   []part   // the last of those of the objects, with room for more
	sorting []entry  // of one object
	folded  []byte

	spelled   bool // numbers keep their spelling
	ambiguous bool // two decoders may differ; the case of keys counts only if numbers keep their spelling
	work      int  // bytes written plus keys compared; a test bounds it
}

// writers are reused: what they need beside the result would be most of what they allocate.
var writers = sync.Pool{New: func() any { return &writer{} }}

// newWriter returns a writer for valid JSON. Call free when its result is not needed any more.
func newWriter(raw []byte, spelled bool) *writer {
	w, _ := writers.Get().(*writer)
	*w = writer{
		raw: raw, b: slices.Grow(w.b[:0], len(raw)), spelled: spelled,
		members: w.members[:0], keys: w.keys[:0], objects: w.objects[:0], parts: w.parts[:0], sorting: w.sorting[:0], folded: w.folded[:0],
	}
	return w
}

// free lets another call use the writer, unless it has become large.
func (w *writer) free() {
	const most = maxKept / 64
	if max(cap(w.b), cap(w.keys), cap(w.folded)) <= maxKept && max(cap(w.members), cap(w.objects), cap(w.parts), cap(w.sorting)) <= most {
		w.raw = nil
		writers.Put(w)
	}
}

// A part of the output lies between two offsets. They have 32 bits, because a body may consist almost
// only of members.
type part struct {
	start, end      uint32
	objects, within uint32 // how many objects come before it, and how many are in it
}

// A member of an object.
type member struct {
	part
	key, keyEnd uint32 // in keys; empty if the key is in the output, unescaped, at the start of the part
}

// An object is an object with members out of order.
type object struct {
	part
	inOrder []part // its members
}

// An entry stands for a key that is being sorted. Most keys differ in their first bytes.
type entry struct {
	first  uint64
	at     uint32 // where the caller finds the key
	length uint32
}

func newEntry(key []byte, at int) entry {
	var first [8]byte
	copy(first[:], key)
	return entry{binary.BigEndian.Uint64(first[:]), uint32(at), uint32(len(key))}
}

// maxBytes bounds a text, so that any offset in the output fits into 32 bits: one byte becomes at
// most three.
const maxBytes = math.MaxUint32 / 4

// all writes the whole value.
func (w *writer) all() error {
	if len(w.raw) > maxBytes {
		return fmt.Errorf("canonical JSON: too long: at most %d bytes", maxBytes)
	}
	if err := w.value(); err != nil {
		return fmt.Errorf("canonical JSON: %w", err)
	}
	w.work += len(w.b)
	return nil
}

// appendTo appends the output, in order.
func (w *writer) appendTo(b []byte) []byte {
	switch {
	case len(w.objects) > 0:
		return w.order(b)
	case len(b) == 0 && cap(w.b) > maxKept: // it will not be kept
		return w.b
	}
	return append(b, w.b...)
}

// next skips white space, and returns the byte after it.
func (w *writer) next() byte {
	for {
		switch c := w.raw[w.at]; c {
		case ' ', '\t', '\r', '\n':
			w.at++
		default:
			return c
		}
	}
}

func (w *writer) value() error {
	switch w.next() {
	case '{':
		return w.object()
	case '[':
		return w.array()
	case '"':
		decoded := len(w.keys)
		w.text()
		w.keys = w.keys[:decoded]
	case 't', 'n':
		w.b = append(w.b, w.raw[w.at:w.at+4]...)
		w.at += 4
	case 'f':
		w.b = append(w.b, "false"...)
		w.at += 5
	default:
		return w.number()
	}
	return nil
}

func (w *writer) array() error {
	w.at++
	w.b = append(w.b, '[')
	for first := true; w.next() != ']'; first = false {
		if !first {
			w.at++ // a comma
			w.b = append(w.b, ',')
		}
		if err := w.value(); err != nil {
			return err
		}
	}
	w.at++
	w.b = append(w.b, ']')
	return nil
}

func (w *writer) object() error {
	w.at++
	w.depth++
	w.b = append(w.b, '{')
	first, keys, sorted := len(w.members), len(w.keys), true
	o := object{part: w.begin()}
	for w.next() != '}' {
		n := len(w.members)
		if n > first {
			w.at++ // a comma
			w.next()
			w.b = append(w.b, ',')
		}
		m := member{part: w.begin(), key: uint32(len(w.keys))}
		w.text()
		m.keyEnd = uint32(len(w.keys))
		w.next()
		w.at++ // a colon
		w.b = append(w.b, ':')
		sorted = sorted && (n == first || bytes.Compare(w.key(w.members[n-1]), w.key(m)) < 0)
		w.members = append(room(w.members, 1+w.left()/len(`"":0,`)), m)
		if err := w.value(); err != nil {
			return err
		}
		w.end(&w.members[n].part)
	}
	w.at++
	w.depth--
	members := w.members[first:]
	if w.spelled && !w.differInFold(members) {
		w.ambiguous = true
	}
	if !sorted {
		w.end(&o.part)
		o.inOrder = w.sort(members)
		w.objects = append(room(w.objects, 1+w.depth+w.left()/len(`{"":0,"":0}`)), o)
	}
	w.members, w.keys = w.members[:first], w.keys[:keys]
	w.b = append(w.b, '}')
	return nil
}

// room returns s with room for at least one more element: for about twice as many, but at most for
// the given number.
func room[T any](s []T, most int) []T {
	if len(s) < cap(s) {
		return s
	}
	return slices.Grow(s, min(len(s)+8, most))
}

// left returns how many bytes are left to read.
func (w *writer) left() int { return len(w.raw) - w.at }

// place returns the end of the output.
func (w *writer) place() uint32 { return uint32(len(w.b)) }

// begin returns a part that begins here.
func (w *writer) begin() part { return part{start: w.place(), objects: uint32(len(w.objects))} }

// end ends a part here.
func (w *writer) end(p *part) { p.end, p.within = w.place(), uint32(len(w.objects))-p.objects }

// written returns the output between two offsets.
func (w *writer) written(start, end uint32) []byte { return w.b[start:end] }

// key returns the decoded key of a member.
func (w *writer) key(m member) []byte {
	if m.key < m.keyEnd {
		return w.keys[m.key:m.keyEnd]
	}
	key := w.b[m.start+1:]
	return key[:bytes.IndexByte(key, '"')]
}

// compare returns a function that compares two keys. The function whole returns a key of more than
// eight bytes.
func (w *writer) compare(whole func(entry) []byte) func(a, b entry) int {
	return func(a, b entry) int {
		w.work++
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		case a.length <= 8 && b.length <= 8:
			return cmp.Compare(a.length, b.length)
		}
		return bytes.Compare(whole(a), whole(b))
	}
}

// sort returns the members of an object in the order of their keys; of members with equal keys it
// returns the last.
func (w *writer) sort(members []member) []part {
	w.sorting = slices.Grow(w.sorting[:0], len(members))
	for i, m := range members {
		w.sorting = append(w.sorting, newEntry(w.key(m), i))
	}
	compare := w.compare(func(e entry) []byte { return w.key(members[e.at]) })
	slices.SortFunc(w.sorting, compare)
	if cap(w.parts)-len(w.parts) < len(members) {
		w.parts = make([]part, 0, max(len(members), minParts))
	}
	begin := len(w.parts)
	inOrder := w.parts[begin:begin:cap(w.parts)]
	for i, e := range w.sorting {
		m := members[e.at].part
		if i == 0 || compare(w.sorting[i-1], e) != 0 {
			inOrder = append(inOrder, m)
			continue
		}
		w.ambiguous = true
		if last := &inOrder[len(inOrder)-1]; last.start < m.start {
			*last = m
		}
	}
	w.parts = w.parts[:begin+len(inOrder)]
	return inOrder
}

// minParts is for how many members of objects out of order there is room at once.
const minParts = 32

// order appends the output to b, with the members of all objects in order.
func (w *writer) order(b []byte) []byte {
	n := len(b)
	b = slices.Grow(b, len(w.b))[:n+len(w.b)]
	ordered := backwards{b[n:], len(w.b)}
	whole := part{}
	w.end(&whole)
	w.fill(&ordered, whole)
	w.work += len(w.b) - ordered.at
	return append(b[:n], ordered.b[ordered.at:]...) // to where it begins, if members are left out
}

// fill writes a part.
func (w *writer) fill(to *backwards, p part) {
	for p.within > 0 {
		o := w.objects[p.objects+p.within-1]
		to.put(w.written(o.end, p.end))
		for i, m := range slices.Backward(o.inOrder) {
			w.fill(to, m)
			if i > 0 {
				to.put([]byte{','})
			}
		}
		p.end, p.within = o.start, p.within-1-o.within
	}
	to.put(w.written(p.start, p.end))
}

// A backwards is written from its end to its beginning, because an object comes after those within
// it.
type backwards struct {
	b  []byte
	at int
}

func (w *backwards) put(text []byte) {
	w.at -= len(text)
	copy(w.b[w.at:], text)
}

// differInFold reports whether all keys differ for a decoder that ignores case, like encoding/json,
// and dashes and underscores, like encoding/json/v2.
func (w *writer) differInFold(members []member) bool {
	if len(members) < 2 {
		return true
	}
	w.sorting, w.folded = slices.Grow(w.sorting[:0], len(members)), w.folded[:0]
	for _, m := range members {
		start := len(w.folded)
		for key := w.key(m); len(key) > 0; {
			c, size := utf8.DecodeRune(key)
			if c = fold(c); c >= 0 {
				w.folded = utf8.AppendRune(w.folded, c)
			}
			key = key[size:]
		}
		w.sorting = append(w.sorting, newEntry(w.folded[start:], start))
	}
	compare := w.compare(func(e entry) []byte { return w.folded[e.at : e.at+e.length] })
	slices.SortFunc(w.sorting, compare)
	for i := range len(w.sorting) - 1 {
		if compare(w.sorting[i], w.sorting[i+1]) == 0 {
			return false
		}
	}
	return true
}

// fold returns the smallest of the characters that differ from c only in case. It returns no
// character for a dash or an underscore.
func fold(c rune) rune {
	if c == '-' || c == '_' {
		return -1
	}
	for {
		next := unicode.SimpleFold(c)
		if next <= c {
			return next
		}
		c = next
	}
}

// text writes a string. If the string has an escape, text also adds its decoded form to the keys.
func (w *writer) text() {
	start, asItIs, ascii := w.at, true, true
	for w.at++; w.raw[w.at] != '"'; w.at++ {
		switch c := w.raw[w.at]; {
		case c == '\\':
			asItIs = false
			w.at++
		case c == 0xE2: // the beginning of U+2028, which is escaped
			asItIs = false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	w.at++
	quoted := w.raw[start:w.at]
	if asItIs && (ascii || utf8.Valid(quoted)) {
		w.b = append(w.b, quoted...)
		return
	}
	decoded := len(w.keys)
	w.keys = slices.Grow(w.keys, len(quoted))
	w.decode(quoted[1 : len(quoted)-1])
	w.b = slices.Grow(w.b, len(w.keys)-decoded+len(`""`))
	w.quote(w.keys[decoded:])
}

// decode adds a text to the keys, decoded as by encoding/json: U+FFFD replaces half a surrogate
// pair, and bytes that are not UTF-8.
func (w *writer) decode(text []byte) {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(text[i:])
			w.ambiguous = w.ambiguous || r == utf8.RuneError && size == 1
			w.keys = utf8.AppendRune(w.keys, r)
			i += size
		case c != '\\':
			w.keys = append(w.keys, c)
			i++
		case text[i+1] != 'u':
			w.keys = append(w.keys, unescaped[text[i+1]])
			i += 2
		default:
			r, size := escaped(text[i:])
			w.ambiguous = w.ambiguous || r < 0
			w.keys = utf8.AppendRune(w.keys, r) // U+FFFD for what is less than 0
			i += size
		}
	}
}

// unescaped has the characters after a backslash, except for u.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escaped returns the character of the escape \uXXXX at the beginning of text, or of two escapes
// that form a surrogate pair; it is less than 0 for half a pair.
func escaped(text []byte) (r rune, size int) {
	r = codeUnit(text)
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(text) >= 12 && text[6] == '\\' && text[7] == 'u' {
		if r = utf16.DecodeRune(r, codeUnit(text[6:])); r != utf8.RuneError {
			return r, 12
		}
	}
	return -1, 6
}

func codeUnit(escape []byte) (unit rune) {
	for _, c := range escape[2:6] {
		switch {
		case c >= 'a':
			c -= 'a' - 10
		case c >= 'A':
			c -= 'A' - 10
		default:
			c -= '0'
		}
		unit = unit<<4 | rune(c)
	}
	return unit
}

// quote writes valid text in the same way as [Marshal].
func (w *writer) quote(text []byte) {
	const hex = "0123456789abcdef"
	w.b = append(w.b, '"')
	for i, c := range text {
		switch {
		case c == '"', c == '\\':
			w.b = append(w.b, '\\', c)
		case c < ' ':
			if short := strings.IndexByte("\b\f\n\r\t", c); short >= 0 {
				w.b = append(w.b, '\\', "bfnrt"[short])
			} else {
				w.b = append(w.b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
		case c&^1 == 0xA8 && i >= 2 && text[i-1] == 0x80 && text[i-2] == 0xE2: // U+2028 or U+2029
			w.b = append(w.b[:len(w.b)-2], '\\', 'u', '2', '0', '2', hex[c&15])
		default:
			w.b = append(w.b, c)
		}
	}
	w.b = append(w.b, '"')
}

func (w *writer) number() (err error) {
	start := w.at
	whole := true
	for ; w.at < len(w.raw); w.at++ {
		c := w.raw[w.at]
		if c == '.' || c == 'e' || c == 'E' {
			whole = false
		} else if c != '-' && c != '+' && (c < '0' || c > '9') {
			break
		}
	}
	literal := w.raw[start:w.at]
	if !w.spelled && whole {
		significant := bytes.TrimRight(literal, "0")
		if n := len(significant); n > 0 && n < len(literal) && significant[n-1] != '-' {
			w.b = strconv.AppendInt(append(append(w.b, significant...), 'e'), int64(len(literal)-n), 10)
			return nil
		}
	}
	if w.spelled || whole && literal[len(literal)-1] != '0' {
		w.b = append(w.b, literal...)
		return nil
	}
	w.b, err = appendNumber(w.b, string(literal))
	return err
}

// appendNumber appends the value as its significant digits and a power of ten.
func appendNumber(b []byte, literal string) ([]byte, error) {
	digits, exponent, ok := SplitNumber(literal)
	if !ok {
		return nil, fmt.Errorf("number out of range: %.48q", strings.Clone(literal)) // so that no other literal escapes to the heap
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	exponent -= len(fraction)
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return append(b, '0'), nil
	}
	significant := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(significant)
	if literal[0] == '-' {
		b = append(b, '-')
	}
	b = append(b, significant...)
	if exponent != 0 {
		b = strconv.AppendInt(append(b, 'e'), int64(exponent), 10)
	}
	return b, nil
}

// Equal reports whether a and b are the same JSON value, with exact numbers. Empty input only
// equals empty input.
func Equal(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	left, err := Canonical(a)
	if err != nil {
		return false
	}
	right, err := Canonical(b)
	return err == nil && bytes.Equal(left, right)
}

// SplitNumber splits a JSON number into its digits, which may have a decimal point, and its
// exponent. It drops the sign. It is not ok if the exponent is not between -2³⁰ and 2³⁰.
func SplitNumber(literal string) (digits string, exponent int, ok bool) {
	digits = strings.TrimPrefix(literal, "-")
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		e, err := strconv.ParseInt(digits[i+1:], 10, 64)
		if err != nil || e >= math.MaxInt32/2 || e <= -(math.MaxInt32/2) {
			return "", 0, false
		}
		digits, exponent = digits[:i], int(e)
	}
	return digits, exponent, true
}

// A buffered is a reusable buffer with an encoder into it. Without reuse they would be most of the
// memory that encoding a message allocates.
type buffered struct {
	buffer  bytes.Buffer
	encoder *json.Encoder
}

// maxKept bounds the buffers that are reused for the next message.
const maxKept = 64 << 10

var buffers = sync.Pool{New: func() any {
	b := &buffered{}
	b.encoder = json.NewEncoder(&b.buffer)
	b.encoder.SetEscapeHTML(false)
	return b
}}

type shortError struct{ error }

func (e shortError) Error() string { return text.Of(e.error) }
func (e shortError) Unwrap() error { return e.error }

// Marshal is json.Marshal without its escapes for HTML, which are useless to a database and to
// clients in other languages. A string that is not valid UTF-8 is an error, instead of being
// replaced as in json.Marshal. The text of an error is one short line, even if it comes from a
// type's own MarshalJSON.
func Marshal(v any) ([]byte, error) {
	b, _ := buffers.Get().(*buffered)
	b.buffer.Reset()
	if err := b.encoder.Encode(v); err != nil {
		return nil, shortError{err}
	}
	encoded := bytes.Clone(bytes.TrimSuffix(b.buffer.Bytes(), []byte("\n")))
	if b.buffer.Cap() <= maxKept {
		buffers.Put(b)
	}
	if coerced(encoded, v) {
		return nil, errNotUTF8
	}
	return encoded, nil
}
