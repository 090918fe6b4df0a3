package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// queuesOf returns the queues that read a category, and those of parked messages.
func (t *teller) queuesOf(ctx context.Context, category messagestore.Category) ([]queue.Status, error) {
	if t.queues == nil {
		t.queues = map[messagestore.Category][]queue.Status{}
		all, err := queue.All(ctx, t.store)
		if err != nil && !errors.Is(err, messagestore.ErrNotSupported) {
			return nil, err
		}
		for _, s := range all {
			t.queues[s.Category] = append(t.queues[s.Category], s)
		}
	}
	return t.queues[category], nil
}

// reading returns the queues that read a category.
func (t *teller) reading(ctx context.Context, category messagestore.Category) ([]queue.Status, error) {
	all, err := t.queuesOf(ctx, category)
	return slices.DeleteFunc(slices.Clone(all), func(s queue.Status) bool { return s.Parked }), err
}

// itemAt returns the message of the item that a text names by its position, or nil for a text or a category of
// another kind.
func (t *teller) itemAt(ctx context.Context, category messagestore.Category, text string) (*messagestore.Message, error) {
	position, _ := strconv.ParseInt(text, 10, 64)
	if position < 1 {
		return nil, nil
	}
	queues, err := t.reading(ctx, category)
	if err != nil || len(queues) == 0 {
		return nil, err
	}
	q, err := queueOf(t.store, queues[0])
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
func (t *teller) insertion(ctx context.Context, s *story) error {
	m := s.first
	queues, err := t.reading(ctx, s.of.Category())
	if err != nil || len(queues) == 0 || s.begun || m.IsTombstone() || m.Metadata.Local.Get(digestProperty) != "" {
		return err
	}
	s.title("")
	s.roots = append(s.roots, m)
	if err := t.tellCause(ctx, s, m); err != nil {
		return err
	}
	s.tell(Event{Role: Inserted, Message: m, Data: m.Data})
	if m.Position > 0 {
		s.note("behind", ref{m.Stream, m.Position - 1}.String(), "the item before it of its key")
	}
	return nil
}

// deliveries tells those of the messages of the story that are items of queues, and of all that a consumer has parked.
func (t *teller) deliveries(ctx context.Context, s *story) error {
	isRoot := func(m *messagestore.Message) bool {
		return slices.ContainsFunc(s.roots, func(root *messagestore.Message) bool { return root.ID == m.ID })
	}
	for _, m := range append(slices.Clone(s.roots), slices.DeleteFunc(slices.Clone(s.messages), isRoot)...) {
		if err := t.items(ctx, s, m, isRoot(m)); err != nil {
			return err
		}
	}
	return nil
}

// items tells the deliveries of a message by each queue in which it is an item, or by those of parked messages alone.
func (t *teller) items(ctx context.Context, s *story, m *messagestore.Message, all bool) error {
	queues, err := t.queuesOf(ctx, m.Stream.Category())
	if err != nil {
		return err
	}
	for _, of := range queues {
		if !all && !of.Parked {
			continue
		}
		q, err := queueOf(t.store, of)
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
		for i := range item.Log {
			entry := &item.Log[i]
			s.event(Event{
				Role: Delivery, Queue: of.Name, Parked: of.Parked, Message: m, Delivery: entry, Item: &item,
				Time: entry.Time, Place: refOf(m).String(), What: entry.What, Text: DeliveryText(*entry),
			})
		}
		s.event(Event{Role: AnItem, Queue: of.Name, Parked: of.Parked, Message: m, Item: &item, Place: refOf(m).String(), What: string(item.State), Text: ItemText(item)})
	}
	return nil
}

// DeliveryText says of which session a log's entry is, and why it was written.
func DeliveryText(e queue.LogEntry) string {
	if e.Session == 0 {
		return e.Text
	}
	return strings.TrimSuffix(fmt.Sprintf("session %d: %s", e.Session, e.Text), ": ")
}

// ItemText says more of the state of an item: where it is, and what it waits for.
func ItemText(item queue.Item) string {
	switch {
	case item.State == queue.Held:
		return fmt.Sprintf("behind position %d", item.Behind)
	case item.Closed:
		return "and holds what is behind it"
	case item.State == queue.Out && item.Until.IsZero():
		return fmt.Sprintf("at session %d", item.Session)
	case item.State == queue.Out:
		return fmt.Sprintf("at session %d until %s", item.Session, text.Time(item.Until))
	case item.State != queue.Later && item.State != queue.Suspended || item.Due.IsZero():
		return ""
	case item.Message != nil && item.Due.After(item.Message.Time.Add(queuing.MaxDelay/2)):
		return "until a message wakes it"
	}
	return "not before " + text.Time(item.Due)
}

// queueOf returns the queue of a status.
func queueOf(store *messagestore.Store, s queue.Status) (*queue.Queue, error) {
	return queue.New(store, s.Category, &queue.Config{Name: s.Name})
}
