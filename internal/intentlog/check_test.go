package intentlog_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
)

var began = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// A history is the messages of one intent.
type history []*messagestore.Message

// add adds a message, second seconds after the beginning.
func (h *history) add(second int, body messagestore.Body) {
	data, _ := json.Marshal(body)
	*h = append(*h, &messagestore.Message{
		Stream: "payment:intent-k", Position: messagestore.Version(len(*h)), GlobalPosition: messagestore.GlobalPosition(len(*h) + 1),
		Type: body.MessageType(), Time: began.Add(time.Duration(second) * time.Second), Data: data,
	})
}

func grant(session string, attempt int, line ...string) intentlog.Grant {
	return intentlog.Grant{Session: session, Attempt: attempt, TTL: 15000, Content: "c", Line: line}
}

func token(second int) int64 { return began.Add(time.Duration(second) * time.Second).UnixMicro() }

// whole is a history with every step and transition that there is.
func whole() history {
	var h history
	a, b := token(0), token(30)
	h.add(0, intentlog.Reserved{Grant: grant("A", 1)})
	h.add(5, intentlog.Extended{Grant: grant("A", 1), Token: a})
	h.add(6, intentlog.Waiting{Grant: grant("A", 1, "B"), Token: a, At: token(5), Of: 1})
	h.add(7, intentlog.Waiting{Grant: grant("A", 1, "B", "C"), Token: a, At: token(5), Of: 1})
	h.add(8, intentlog.Extended{Grant: grant("A", 1, "B", "C"), Token: a})
	h.add(30, intentlog.Reserved{Grant: grant("B", 2, "C"), After: a}) // lapsed
	h.add(31, intentlog.Waiting{Grant: grant("B", 2, "C", "D"), Token: b, At: token(30), Of: 5})
	h.add(32, intentlog.Waiting{Grant: grant("B", 2, "D"), Token: b, At: token(30), Of: 5})
	h.add(33, intentlog.Released{Grant: grant("B", 2, "D"), Token: b, By: "ann", Reason: "r"})
	h.add(34, intentlog.Waiting{Grant: grant("B", 2, "D", "E"), Token: b, At: token(33), Of: 8, Released: true, By: "ann", Reason: "r"})
	other := grant("F", 3)
	other.Content = "other" // of a released intent it may be
	h.add(40, intentlog.Reserved{Grant: other, After: b})
	h.add(41, intentlog.Confirmed{Grant: other, Token: token(40), Result: []byte(`{}`)})
	return h
}

// check returns the violations of a history, as RULE@POSITION.
func check(h history) (found []string, c *intentlog.Checker) {
	c = &intentlog.Checker{Found: func(v intentlog.Violation, at messagestore.Mark) {
		found = append(found, fmt.Sprintf("%s@%d", v.Rule, at.Position))
		if v.Expected == "" || v.Found == "" || at.Stream == "" {
			panic("a violation without its place or values")
		}
	}}
	for _, m := range h {
		c.Next(m)
	}
	return found, c
}

func TestWholeHistoryBreaksNoRule(t *testing.T) {
	t.Parallel()
	found, c := check(whole())
	require.Empty(t, found)
	require.Equal(t, []int64{12, 1, 1, 0}, []int64{c.Messages, c.Intents(), c.Done(), c.Early})
}

// Any beginning may have been trimmed, also while the category was read, and the stream may have
// been removed, key and all.
func TestTrimmedHistoryBreaksNoRule(t *testing.T) {
	t.Parallel()
	for from := range whole() {
		found, _ := check(whole()[from:])
		require.Empty(t, found, from)
		for upTo := range from {
			found, _ := check(append(whole()[:upTo], whole()[from:]...))
			require.Empty(t, found, "%d to %d", upTo, from)
		}
	}
	again := whole()
	h := history{}
	h.add(50, intentlog.Reserved{Grant: grant("A", 1)})
	found, c := check(append(again, h...))
	require.Empty(t, found)
	require.Equal(t, []int64{1, 0}, []int64{c.Intents(), c.Done()})
	h = history{}
	h.add(40, intentlog.Reserved{Grant: grant("A", 1)})
	found, _ = check(append(again, h...))
	require.Equal(t, []string{"token@0"}, found, "the token of the last grant again")
}

func TestDeletedIntentBreaksNoRule(t *testing.T) {
	t.Parallel()
	for upTo := 1; upTo <= len(whole()); upTo++ {
		h := whole()[:upTo]
		h.add(50, messagestore.Raw{Type: "dibs:Tombstone"})
		found, c := check(h)
		require.Empty(t, found, upTo)
		require.EqualValues(t, 1, c.Done())
		h.add(51, intentlog.Extended{Grant: grant("A", 1), Token: token(0)})
		found, _ = check(h)
		require.Equal(t, []string{fmt.Sprintf("transition@%d", upTo+1)}, found)
	}
}

func TestEachRuleIsFoundBroken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		position int
		old, by  string // of its data
		kind     string // in place of its type
		found    string
	}{
		"an attempt that begins at 2":       {0, `"attempt":1`, `"attempt":2`, "", "attempt@0 attempt@1"},
		"a token before the first":          {0, `"after":0`, `"after":7`, "", "token@0"},
		"a line at the beginning":           {0, `"content"`, `"line":["X"],"content"`, "", "line@0 line@1"},
		"an extension at the beginning":     {0, `"after":0`, fmt.Sprintf(`"token":%d`, token(0)), "Extended", "transition@0"},
		"another token":                     {1, `"token":17`, `"token":16`, "", "token@1 token@2"},
		"another session":                   {1, `"session":"A"`, `"session":"B"`, "", "grant@1 grant@2"},
		"another content":                   {1, `"content":"c"`, `"content":"d"`, "", "grant@1 grant@2"},
		"another TTL":                       {1, `"ttl":15000`, `"ttl":15001`, "", "grant@1 grant@2"},
		"another attempt":                   {1, `"attempt":1`, `"attempt":3`, "", "attempt@1 attempt@2"},
		"a line that grows by an extension": {4, `["B","C"]`, `["B","C","D"]`, "", "line@4 line@5"},
		"a session that pushes in":          {3, `["B","C"]`, `["C","B"]`, "", "line@3 line@4"},
		"two sessions at once":              {2, `["B"]`, `["X","Y","Z"]`, "", "line@2 line@3"},
		"a wait that extends":               {2, `"at":17`, `"at":18`, "", "transition@2"}, // the next one sets it back
		"a wait that extends one set back":  {2, `"at":17`, `"at":16`, "", "transition@3"},
		"a wait that counts from another":   {2, `"of":1`, `"of":0`, "", "transition@2 transition@3"},
		"a wait that counts from itself":    {2, `"of":1`, `"of":2`, "", "message@2"},
		"a wait that releases":              {2, `"at"`, `"released":true,"at"`, "", "transition@2 transition@3"},
		"a wait that takes":                 {9, `"released":true`, `"released":false`, "", "transition@9 grant@10"},
		"an attempt that is not counted":    {5, `"attempt":2`, `"attempt":1`, "", "attempt@5 attempt@6"},
		"another content after a lapse":     {5, `"content":"c"`, `"content":"d"`, "", "grant@5 grant@6"},
		"a token that is another's":         {5, `"after":17`, `"after":16`, "", "token@5"},
		"a line that the taker stays in":    {5, `["C"]`, `["B","C"]`, "", "line@5 line@6"},
		"an outsider who keeps the line":    {10, `"content"`, `"line":["D"],"content"`, "", "line@10"},
		"an extension after a release":      {9, `"released":true,`, ``, "Extended", "transition@9 line@9 grant@10"},
		"a release after a release":         {9, `"released":true,`, ``, "Released", "transition@9 line@9"},
		"a result after a release":          {9, `"released":true,`, ``, "Confirmed", "transition@9 line@9 transition@10 transition@11"},
		"a result and a line":               {11, `"content"`, `"line":["D"],"content"`, "", "line@11"},
		"a message that is no intent's":     {1, ``, ``, "Opened", "message@1"},
		"a message that does not decode":    {1, `"attempt":1`, `"attempt":"1"`, "", "message@1"},
		"a message without a session":       {1, `"session":"A"`, `"session":""`, "", "message@1"},
		"a session that is too long":        {1, `"session":"A"`, `"session":"` + strings.Repeat("A", 129) + `"`, "", "message@1"},
		"a message without content":         {1, `"content":"c"`, `"content":""`, "", "message@1"},
		"a TTL of a century":                {1, `"ttl":15000`, `"ttl":3155760000000`, "", "message@1"},
		"a token beyond the year 9999":      {1, `"token":17`, `"token":99917`, "", "message@1"},
		"attempt 0":                         {1, `"attempt":1`, `"attempt":0`, "", "message@1"},
		"a token before that is none":       {5, `"after":17`, `"after":-17`, "", "message@5"},
		"a wait beyond the year 9999":       {2, `"at":17`, `"at":99917`, "", "message@2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := whole()
			m := *h[c.position]
			data := string(m.Data)
			require.Contains(t, data, c.old)
			m.Data = []byte(strings.Replace(data, c.old, c.by, 1))
			if c.kind != "" {
				m.Type = c.kind
			}
			h[c.position] = &m

			found, _ := check(h)

			require.Equal(t, c.found, strings.Join(found, " "))
		})
	}
}

func TestTokenThatFallsIsFound(t *testing.T) {
	t.Parallel()
	h := whole()[:1]
	h.add(-5, intentlog.Reserved{Grant: grant("B", 2), After: token(0)}) // the clock was set back
	found, c := check(h)
	require.Empty(t, found, "one more than the token before it")
	require.EqualValues(t, 1, c.Early)

	h = whole()[:1]
	h.add(-5, intentlog.Reserved{Grant: grant("B", 2)})
	found, _ = check(h)
	require.Equal(t, []string{"token@1"}, found)
}

// A message that is none of an intent's does not hide those behind it, nor is it compared with them.
func TestAfterAMessageOfAnotherKindTheHistoryIsCheckedOn(t *testing.T) {
	t.Parallel()
	h := whole()
	first := *h[0]
	first.Type = "Opened"
	h[0] = &first
	h.add(50, intentlog.Extended{Grant: grant("A", 1), Token: token(0)})
	found, _ := check(h)
	require.Equal(t, []string{"message@0", "transition@12"}, found)
}
