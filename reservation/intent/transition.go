package intent

import (
	"fmt"
	"slices"

	"github.com/dibs-go/dibs/messagestore"
)

// Transition returns nil if after may follow before as the next message of an intent's stream,
// and else an error that matches [ErrCorrupt] and names the broken rule. Before is nil for the
// first message. Since each message carries the whole state, a stream is right if each pair of
// its messages is; in one that was trimmed, the first message that is left is right if it can be
// read.
//
// It looks at no clock: see [TakenEarly].
func Transition(before, after *messagestore.Message) error {
	a, err := read(after)
	if err != nil {
		return err
	}
	b := &state{kind: "nothing", released: true}
	if before != nil {
		if b, err = read(before); err != nil {
			return err
		}
	}
	if rule := follows(b, a); rule != "" {
		return &corruptError{after.Stream, after.Position, fmt.Sprintf("%s after %s: %s", a.kind, b.kind, rule)}
	}
	return nil
}

// follows returns the rule that a breaks as the state after b, or "".
func follows(b, a *state) string {
	switch {
	case a.gone:
		return ""
	case b.done():
		return "nothing follows it"
	case a.kind == TypeReserved:
		return grantFollows(b, a)
	case b.at.ID == [16]byte{}:
		return "an intent begins with " + TypeReserved
	case a.token != b.token || a.Session != b.Session:
		return "it is another lease's"
	case a.Attempt != b.Attempt || a.TTL != b.TTL || a.Content != b.Content:
		return "a lease does not change"
	case a.kind == TypeWaiting:
		return lineFollows(b, a)
	case b.released:
		return "the lease is released"
	case a.kind == TypeConfirmed && len(a.Line) > 0:
		return "it has a line"
	case a.kind != TypeConfirmed && !slices.Equal(a.Line, b.Line):
		return "the line is another"
	}
	return ""
}

func grantFollows(b, a *state) string {
	rest := []string(nil)
	if i := slices.Index(b.Line, a.Session); i >= 0 {
		rest = b.Line[i+1:]
	}
	switch {
	case a.token <= b.token:
		return fmt.Sprintf("the token %d is not greater than %d", a.token, b.token)
	case a.after != b.token:
		return fmt.Sprintf("after: %d is not the token before, %d", a.after, b.token)
	case a.Attempt != b.Attempt+1:
		return fmt.Sprintf("attempt %d follows %d", a.Attempt, b.Attempt)
	case !b.released && a.Content != b.Content:
		return "the content is another"
	case !slices.Equal(a.Line, rest):
		return "the line is not the rest of the one before"
	}
	return ""
}

func lineFollows(b, a *state) string {
	grown := len(a.Line) == len(b.Line)+1 && slices.Equal(a.Line[:len(b.Line)], b.Line)
	shrunk := false
	if len(a.Line) == len(b.Line)-1 {
		for i := range b.Line {
			shrunk = shrunk || slices.Equal(a.Line, slices.Delete(slices.Clone(b.Line), i, i+1))
		}
	}
	switch {
	case !grown && !shrunk:
		return "the line has not one session more or less"
	case a.released != b.released || a.of != b.of || a.since.UnixMicro() != b.since.UnixMicro():
		return "a line does not change the lease"
	}
	return ""
}

// TakenEarly reports whether after grants an intent before the lease in before was over, by the
// times at which the store wrote them. That is no fault where the store's clock was put back, and
// where a waiter had seen no sign of the holder for the whole TTL.
func TakenEarly(before, after *messagestore.Message) bool {
	b, err := read(before)
	if err != nil || b.done() || after.Type != TypeReserved {
		return false
	}
	return after.Time.Before(b.free())
}
