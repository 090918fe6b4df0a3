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
	q, err := queue.New(e.store, category, &queue.Config{Name: queues[0].Name})
	if err != nil {
		return nil, err
	}
	item, err := q.Item(ctx, messagestore.GlobalPosition(position))
	if errors.Is(err, messagestore.ErrNotFound) {
		return nil, nil
	}
	return item.Message, err
}

// queuesPart begins the story of a message that is an item: who inserted it, and the item of its key that is before it.
type queuesPart struct{}

func (queuesPart) tell(ctx context.Context, e *explainer, s *story) error {
	m := s.first
	queues, err := e.reading(ctx, s.of.Category())
	if err != nil || len(queues) == 0 || s.begun || m.IsTombstone() || m.Metadata.Local.Get(digestProperty) != "" {
		return err
	}
	if err := s.title(); err != nil {
		return err
	}
	s.roots = append(s.roots, m)
	if err := e.tellCause(ctx, s, m); err != nil {
		return err
	}
	if err := s.tell(inserted, m, dataText(m.Data)); err != nil {
		return err
	}
	if m.Position > 0 {
		s.note("behind", placeOf(m.Stream, m.Position-1), "the item before it of its key")
	}
	return nil
}

// tellCause tells the message that another one was written for, if it names one.
func (e *explainer) tellCause(ctx context.Context, s *story, m *messagestore.Message) error {
	stream, position := m.Metadata.CausationStream, m.Metadata.CausationPosition
	if stream == "" {
		return nil
	}
	source, err := messageAt(ctx, e.store, stream, position)
	switch {
	case errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid):
		s.note(roles[cause].label, placeOf(stream, position), "not in this store")
		return nil
	case err != nil:
		return err
	}
	return s.tell(cause, source, dataText(source.Data))
}

// itemsPart tells the deliveries of those messages of the story that are items of queues, and of all that a consumer has parked.
type itemsPart struct{}

func (itemsPart) tell(ctx context.Context, e *explainer, s *story) error {
	for _, m := range s.roots {
		if err := e.items(ctx, s, m, true); err != nil {
			return err
		}
	}
	for _, m := range s.messages {
		if slices.ContainsFunc(s.roots, func(root *messagestore.Message) bool { return root.ID == m.ID }) {
			continue
		}
		if err := e.items(ctx, s, m, false); err != nil {
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
		q, err := queue.New(e.store, of.Category, &queue.Config{Name: of.Name})
		if err != nil {
			return err
		}
		item, err := q.Item(ctx, m.GlobalPosition)
		if errors.Is(err, messagestore.ErrNotFound) {
			continue
		}
		if err == nil {
			err = s.item(of.Name, of.Parked, m, item)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// An itemEvent is how a delivery of an item, and its state in the end, is printed as JSON.
type itemEvent struct {
	Event string                  `json:"event"`
	Of    messagestore.StreamName `json:"of"`
	Key   string                  `json:"key,omitempty"`
	Queue string                  `json:"queue"`
	Item  *itemLine               `json:"item,omitempty"`
	Entry *entryLine              `json:"delivery,omitempty"`

	Position messagestore.GlobalPosition `json:"position"`
}

// item tells how an item of a queue went.
func (s *story) item(name string, parked bool, m *messagestore.Message, item queue.Item) error {
	if s.app.JSON {
		line := toItemLine(item)
		for i := range line.Log {
			if err := s.app.out.object(itemEvent{Event: "delivery", Of: s.of, Key: s.key, Queue: name, Position: item.Position, Entry: &line.Log[i]}); err != nil {
				return err
			}
		}
		line.Log, line.Message = nil, nil
		return s.app.out.object(itemEvent{Event: "item", Of: s.of, Key: s.key, Queue: name, Position: item.Position, Item: &line})
	}
	label := cell{text: "queue " + visible(name)}
	if parked {
		label.text = "parked by " + visible(name[strings.LastIndexByte(name, ':')+1:])
	}
	for _, e := range item.Log {
		if err := s.app.out.row(append([]cell{label}, entryCells(place(m), e)...)...); err != nil {
			return err
		}
	}
	return s.app.out.row(label, cell{}, cell{text: place(m)}, cell{text: string(item.State), style: itemStyles[item.State]}, cell{text: stateNote(item)})
}

// entryCells are the cells of an entry of an item's log: when, of which delivery, what ended it, and why.
func entryCells(of string, e queue.LogEntry) []cell {
	text := visible(e.Text)
	if e.Session != 0 {
		text = fmt.Sprintf("session %d", e.Session)
		if e.Text != "" {
			text += ": " + visible(e.Text)
		}
	}
	return []cell{{text: timeText(e.Time), style: dim}, {text: of}, {text: e.What, style: bold}, {text: text}}
}

// stateNote says more of the state of an item: where it is, and what it waits for.
func stateNote(item queue.Item) string {
	switch {
	case item.State == queue.Held:
		return fmt.Sprintf("behind position %d", item.Behind)
	case item.Closed:
		return "and holds what is behind it"
	case item.State == queue.Out:
		return strings.TrimSuffix(fmt.Sprintf("at session %d until %s", item.Session, timeOrNone(item.Until, "")), " until ")
	case item.State != queue.Later && item.State != queue.Suspended || item.Due.IsZero():
		return ""
	case item.Message != nil && item.Due.After(item.Message.Time.Add(queuing.MaxDelay/2)):
		return "until a message wakes it"
	}
	return "not before " + timeText(item.Due)
}
