// Package text makes the text of an error fit for a log and a JSON string, and has the rules for
// names and message types.
package text

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Max is the length of a text in bytes before it is cut.
const Max = 1024

// Of returns the text of an error, shortened. If the error's own method panics, the text
// says so.
func Of(err error) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("%T, whose text panics", err)
		}
	}()
	return Shorten(err.Error())
}

// Log returns the text of an error for a log: shortened, and without the values of invalid input,
// or of data that did not fit when it was read, because these may be content of a message. All logs
// of the library use it.
func Log(err error) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("%T, whose text panics", err)
		}
	}()
	return Shorten(withoutValues(err.Error(), err))
}

// withoutValues returns s, the text of an error that wraps err, without the values of err and of
// all errors that it wraps.
func withoutValues(s string, err error) string {
	switch e := err.(type) { //nolint:errorlint // each of the chain in its turn
	case interface{ WithoutValue() string }:
		s = strings.ReplaceAll(s, err.Error(), e.WithoutValue())
	case *json.UnmarshalTypeError: // "number 123"
		bare := *e
		bare.Value, _, _ = strings.Cut(e.Value, " ")
		s = strings.ReplaceAll(s, err.Error(), bare.Error())
	case *time.ParseError:
		s = strings.ReplaceAll(s, err.Error(), "a time that is not of the form "+strconv.Quote(e.Layout))
	}
	switch e := err.(type) { //nolint:errorlint // the same
	case interface{ Unwrap() error }:
		if wrapped := e.Unwrap(); wrapped != nil {
			return withoutValues(s, wrapped)
		}
	case interface{ Unwrap() []error }:
		for _, wrapped := range e.Unwrap() {
			s = withoutValues(s, wrapped)
		}
	}
	return s
}

// Shorten cuts a text to [Max] bytes, and replaces control characters and bytes that are
// not UTF-8.
func Shorten(s string) string {
	cut := len(s) > Max
	if cut {
		s = s[:Max]
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if cut {
		s += "…"
	}
	return s
}

// Word returns s as one word of a shell command line.
func Word(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.:+@%,/-", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Cut cuts a text that is longer than most characters.
func Cut(most int, s string) string {
	n := 0
	for i := range s {
		if n == most-1 && utf8.RuneCountInString(s[i:]) > 1 {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// Number returns a count with what is counted: "1 message", "2 messages". If the plural is not
// made with an s, of has both, as in "item is|items are".
func Number[N ~int | ~int64](n N, of string) string {
	one, many, irregular := strings.Cut(of, "|")
	if !irregular {
		many = one + "s"
	}
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Time returns a time in UTC with microseconds. It is always as long, so texts sort as times do.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
