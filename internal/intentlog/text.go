package intentlog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/text"
)

// Text describes a step in words, for a person. Before is the step before it, nil if that is not
// known. The result of a confirmation is not in it.
func (s *State) Text(before *State) string {
	holder := fmt.Sprintf("session %s, token %d", s.Session, s.Token)
	switch s.Type {
	case TypeReserved:
		return fmt.Sprintf("%s, attempt %d, TTL %v", holder, s.Attempt, s.Lasts())
	case TypeExtended:
		return fmt.Sprintf("%s, until %s", holder, text.Time(s.Until()))
	case TypeWaiting:
		return s.lineText(before)
	case TypeReleased:
		by := "the holder"
		if s.By != "" {
			by = "the operator " + s.By
		}
		if s.Reason != "" {
			by += ": " + s.Reason
		}
		return fmt.Sprintf("%s, by %s", holder, by)
	case TypeConfirmed:
		if len(s.Result) == 0 {
			return holder + ", without a result"
		}
		return holder + ", result"
	}
	return "it stays taken"
}

// lineText says how the line changed.
func (s *State) lineText(before *State) string {
	line := text.Number(len(s.Line), "session") + " in the line"
	if before == nil {
		if len(s.Line) > 0 {
			line += ": " + text.Cut(72, strings.Join(s.Line, ", "))
		}
		return line
	}
	for _, session := range s.Line {
		if !slices.Contains(before.Line, session) {
			return fmt.Sprintf("session %s came, %s", session, line)
		}
	}
	for _, session := range before.Line {
		if !slices.Contains(s.Line, session) {
			return fmt.Sprintf("session %s left, %s", session, line)
		}
	}
	return line
}
