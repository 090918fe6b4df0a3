package intent

import (
	"encoding/json"
	"math"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

// quickly decodes the data of the messages that most requests meet, in the spelling in which this
// package writes them: the fields of the struct in their order and no white space. It is not ok
// for any other, which encoding/json decodes. That is a third of the client's time of a request
// for an intent that is held or done.
func quickly(m *messagestore.Message) (body messagestore.Body, ok bool) {
	q := quick{string(m.Data)}
	switch m.Type {
	case TypeReserved:
		b := ReservedMessage{}
		ok = q.grant(&b.Grant) && q.number(`,"after":`, &b.After) && q.rest == "}"
		return b, ok
	case TypeExtended:
		b := Extended{}
		ok = q.grant(&b.Grant) && q.number(`,"token":`, &b.Token) && q.rest == "}"
		return b, ok
	case TypeConfirmed:
		b := Confirmed{}
		ok = q.grant(&b.Grant) && q.number(`,"token":`, &b.Token)
		if result, found := strings.CutPrefix(q.rest, `,"result":`); ok && found && result != "" {
			b.Result = json.RawMessage(result[:len(result)-1])
			ok, q.rest = json.Valid(b.Result) && !spaced(b.Result), result[len(result)-1:]
		}
		return b, ok && q.rest == "}"
	}
	return nil, false
}

// spaced reports whether there is white space around valid JSON.
func spaced(raw json.RawMessage) bool { return raw[0] <= ' ' || raw[len(raw)-1] <= ' ' }

// A quick is the text that is not decoded yet.
type quick struct{ rest string }

func (q *quick) grant(g *Grant) bool {
	attempt := int64(0)
	ok := q.text(`{"session":"`, &g.Session) && q.number(`,"attempt":`, &attempt) && q.number(`,"ttl":`, &g.TTL) && q.text(`,"content":"`, &g.Content)
	g.Attempt = int(attempt)
	return ok && attempt <= math.MaxInt32
}

// text decodes a string behind its name. It leaves one with an escape, or that is not ASCII, to
// encoding/json.
func (q *quick) text(name string, into *string) bool {
	rest, ok := strings.CutPrefix(q.rest, name)
	if !ok {
		return false
	}
	for i := range len(rest) {
		switch c := rest[i]; {
		case c == '"':
			*into, q.rest = rest[:i], rest[i+1:]
			return true
		case c < ' ' || c > '~' || c == '\\':
			return false
		}
	}
	return false
}

// number decodes a whole number behind its name, from 0 up to 18 digits.
func (q *quick) number(name string, into *int64) bool {
	rest, ok := strings.CutPrefix(q.rest, name)
	n, i := int64(0), 0
	for ok && i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
		n = n*10 + int64(rest[i]-'0')
		i++
	}
	if i == 0 || i > 18 || i > 1 && rest[0] == '0' {
		return false
	}
	*into, q.rest = n, rest[i:]
	return true
}
