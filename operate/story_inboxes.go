package operate

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// requestOf returns the stream of the request with the key that is asked for, or "" if the category is no inbox.
func (t *teller) requestOf(ctx context.Context) (messagestore.StreamName, error) {
	category := t.question.Category
	if !hasType(category, "inbox") {
		return "", nil
	}
	name := messagestore.Category(strings.TrimRight(strings.TrimSuffix(string(category), "inbox"), ":+"))
	u, err := inbox.New(&messagestore.TxStore[*sql.Tx]{Store: t.store}, name, nil)
	if err != nil {
		return "", err
	}
	stream, err := u.Stream(t.question.ID)
	if err != nil {
		return "", err
	}
	_, err = t.store.Last(ctx, stream)
	if errors.Is(err, messagestore.ErrNotFound) {
		err = t.notFound(ctx, "", "%s has no request with the key %.80q", category, t.question.ID)
	}
	return stream, err
}

// requestRoles are those of the messages of a request.
var requestRoles = map[string]Role{inbox.Received{}.MessageType(): "received", inbox.Undone{}.MessageType(): "undone"}

// requests tells a request from outside: that it was received, its undo, the messages that were committed with
// either, and the requests that were refused because they reused its key.
func (t *teller) requests(ctx context.Context, s *story) error {
	if s.begun || !hasType(s.of.Category(), "inbox") || requestRoles[s.first.Type] == "" {
		return nil
	}
	if s.key = t.key; s.key == "" {
		s.key, _ = reservation.KeyOf(s.of)
	}
	s.title("")
	for m, err := range t.store.ReadStream(ctx, s.of, 0) {
		if err == nil {
			err = t.request(ctx, s, m)
		}
		if err != nil {
			return err
		}
	}
	_, id, _ := strings.Cut(string(s.of), "-")
	refused := messagestore.StreamName(string(s.of.Category().WithType("refused")) + "-" + id)
	if refused.Validate() != nil {
		return nil // so none could be recorded
	}
	for m, err := range t.store.ReadStream(ctx, refused, 0) {
		if err != nil {
			return err
		}
		var body inbox.Refused
		if json.Unmarshal(m.Data, &body) == nil {
			s.tell(Event{Role: SameKey, Message: m, Text: fmt.Sprintf("refused, source %q: %s", body.Source, body.Error)})
		}
	}
	return nil
}

// request tells a message of an inbox, and the messages that were committed with it.
func (t *teller) request(ctx context.Context, s *story, m *messagestore.Message) error {
	var body struct {
		Source string
		Answer json.RawMessage
		Wrote  inbox.Wrote
	}
	role := requestRoles[m.Type]
	if role == "" || json.Unmarshal(m.Data, &body) != nil {
		return nil
	}
	note := fmt.Sprintf("source %q", body.Source)
	if len(body.Answer) > 0 {
		note += ", answer"
	}
	s.roots = append(s.roots, m)
	s.tell(Event{Role: role, Message: m, Text: note, Data: body.Answer})
	var found []*messagestore.Message
	for _, stream := range slices.Sorted(maps.Keys(body.Wrote)) {
		s.streams = append(s.streams, stream)
		for m, err := range t.store.ReadStream(ctx, stream, 0) {
			if errors.Is(err, messagestore.ErrInvalid) {
				break // of another client: no stream has such a name
			}
			if err != nil {
				return err
			}
			if slices.Contains(body.Wrote[stream], m.ID) {
				found = append(found, m)
			}
		}
	}
	slices.SortFunc(found, func(a, b *messagestore.Message) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Position, b.Position))
	})
	for _, m := range found {
		s.roots = append(s.roots, m)
		s.tell(Event{Role: Wrote, Message: m, Data: m.Data})
	}
	return nil
}
