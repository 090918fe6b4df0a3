package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// queuesOf returns the queues that read a category, and those of parked messages.
func (e *explainer) queuesOf(ctx context.Context, category messagestore.Category) ([]queue.Status, error) {
	if e.queues == nil {
		e.queues = map[messagestore.Category][]queue.Status{}
		all, err := queue.All(ctx, e.store)
		if err != nil && !errors.Is(err, messagestore.ErrNotSupported) {
			return nil, err
		}
		for _, s := range all {
			e.queues[s.Category] = append(e.queues[s.Category], s)
		}
	}
	return e.queues[category], nil
}

// reading returns the queues that read a category.
func (e *explainer) reading(ctx context.Context, category messagestore.Category) ([]queue.Status, error) {
	all, err := e.queuesOf(ctx, category)
	return slices.DeleteFunc(slices.Clone(all), func(s queue.Status) bool { return s.Parked }), err
}

// itemAt returns the message of the item that a text names by its position, or nil for a text or a category of
// another kind.
func (e *explainer) itemAt(ctx context.Context, category messagestore.Category, text string) (*messagestore.Message, error) {
	position, _ := strconv.ParseInt(text, 10, 64)
	if position < 1 {
		return nil, nil
	}
	queues, err := e.reading(ctx, category)
	if err != nil || len(queues) == 0 {
		return nil, err
	}
	q, err := queueOf(e.store, queues[0])
	if err != nil {
		return nil, err
	}
	item, err := q.Item(ctx, messagestore.GlobalPosition(position))
	if errors.Is(err, messagestore.ErrNotFound) {
		return nil, nil
	}
	return item.Message, err
}

// insertion begins the story of a message that is an item: who inserted it, and the item of its key that is before it.
func (e *explainer) insertion(ctx context.Context, s *story) error {
	m := s.first
	queues, err := e.reading(ctx, s.of.Category())
	if err != nil || len(queues) == 0 || s.begun || m.IsTombstone() || m.Metadata.Local.Get(digestProperty) != "" {
		return err
	}
	s.title("")
	s.roots = append(s.roots, m)
	if err := e.tellCause(ctx, s, m); err != nil {
		return err
	}
	s.tell("inserted", m, dataText(m.Data))
	if m.Position > 0 {
		s.note("behind", placeOf(m.Stream, m.Position-1), "the item before it of its key")
	}
	return nil
}

// deliveries tells those of the messages of the story that are items of queues, and of all that a consumer has parked.
func (e *explainer) deliveries(ctx context.Context, s *story) error {
	isRoot := func(m *messagestore.Message) bool {
		return slices.ContainsFunc(s.roots, func(root *messagestore.Message) bool { return root.ID == m.ID })
	}
	for _, m := range append(slices.Clone(s.roots), slices.DeleteFunc(slices.Clone(s.messages), isRoot)...) {
		if err := e.items(ctx, s, m, isRoot(m)); err != nil {
			return err
		}
	}
	return nil
}

// items tells the deliveries of a message by each queue in which it is an item, or by those of parked messages alone.
func (e *explainer) items(ctx context.Context, s *story, m *messagestore.Message, all bool) error {
	queues, err := e.queuesOf(ctx, m.Stream.Category())
	if err != nil {
		return err
	}
	for _, of := range queues {
		if !all && !of.Parked {
			continue
		}
		q, err := queueOf(e.store, of)
		if err != nil {
			return err
		}
		item, err := q.Item(ctx, m.GlobalPosition)
		if errors.Is(err, messagestore.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		label := "queue " + of.Name
		if of.Parked {
			label = "parked by " + of.Name[strings.LastIndexByte(of.Name, ':')+1:]
		}
		for _, entry := range item.Log {
			s.out.row(s.event("delivery", "queue", of.Name, "delivery", entryFields(entry), "position", item.Position), append([]any{label}, entryCells(place(m), entry)...)...)
		}
		s.out.row(s.event("item", "queue", of.Name, "item", itemFields(item), "position", item.Position),
			label, "", place(m), in(itemStyles[item.State], item.State), stateNote(item))
	}
	return nil
}

// entryCells are the cells of an entry of an item's log: when, of which delivery, what ended it, and why.
func entryCells(of string, e queue.LogEntry) []any {
	text := e.Text
	if e.Session != 0 {
		text = strings.TrimSuffix(fmt.Sprintf("session %d: %s", e.Session, e.Text), ": ")
	}
	return []any{e.Time, of, in(bold, e.What), text}
}

// stateNote says more of the state of an item: where it is, and what it waits for.
func stateNote(item queue.Item) string {
	switch {
	case item.State == queue.Held:
		return fmt.Sprintf("behind position %d", item.Behind)
	case item.Closed:
		return "and holds what is behind it"
	case item.State == queue.Out:
		return strings.TrimSuffix(fmt.Sprintf("at session %d until %s", item.Session, timeOrNone(item.Until)), " until ")
	case item.State != queue.Later && item.State != queue.Suspended || item.Due.IsZero():
		return ""
	case item.Message != nil && item.Due.After(item.Message.Time.Add(queuing.MaxDelay/2)):
		return "until a message wakes it"
	}
	return "not before " + timeText(item.Due)
}
