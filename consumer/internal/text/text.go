// Package text makes the text of an error fit for a log and a JSON string.
package text

import (
	"fmt"
	"strings"
	"unicode"
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
