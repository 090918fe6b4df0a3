// Package letters keeps the dead letters of consumers, and the requests about them: for the consumer that parks and
// redrives, and for package deadletter, by which operators do.
package letters

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/internal/names"
	"github.com/dibs-go/dibs/consumer/internal/tails"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// A Store has the methods of a [messagestore.Store] that dead letters need.
type Store interface {
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	LastOfType(ctx context.Context, stream messagestore.StreamName, messageType string) (*messagestore.Message, error)
	Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error)
}

// Letters are the dead letters of one consumer. Its methods are safe for concurrent use.
type Letters struct {
	store    Store
	consumer names.Consumer
}

// Of returns the dead letters of the consumer of category with a name. It reads nothing,
// and the methods report a store that is nil, and a wrong category or name.
func Of(store Store, category messagestore.Category, consumer string) *Letters {
	return &Letters{store, names.Consumer{Category: category, Name: consumer}}
}

// An Entry refers to a message that is parked. It has the fields of deadletter.Entry, which tells what they are.
type Entry struct {
	ID             uuid.UUID
	Type           string
	Stream         messagestore.StreamName
	Position       messagestore.Version
	GlobalPosition messagestore.GlobalPosition

	Error         string
	Stack         string
	Reason        string
	Attempts      int
	FirstFailedAt time.Time
	ParkedAt      time.Time

	DeadLetter messagestore.StreamName
	Requested  bool
}

// A Letter is a dead letter at one position of its stream.
type Letter struct {
	Entry
	outcome messagestore.Version // the position in DeadLetter of the last message that parked or redrove it
}

// parked is the first message of a dead letter's stream, and each later one after a
// redrive that failed.
type parked struct {
	Consumer       string                      `json:"consumer"`
	MessageID      uuid.UUID                   `json:"messageId"`
	Type           string                      `json:"type"`
	Stream         messagestore.StreamName     `json:"stream"`
	Position       messagestore.Version        `json:"position"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition"`
	Error          string                      `json:"error"`
	Attempts       int                         `json:"attempts"`
	FirstFailedAt  time.Time                   `json:"firstFailedAt"`
	Stack          string                      `json:"stack,omitempty"`
	Reason         string                      `json:"reason,omitempty"`
}

func (parked) MessageType() string { return "Parked" }

// redriven closes a dead letter, until its message is parked again.
type redriven struct {
	Attempts int    `json:"attempts"`
	Deleted  bool   `json:"deleted,omitempty"` // the stream of the message was: it was not delivered
	Skipped  string `json:"skipped,omitempty"` // the handler's reason to skip the message
	Dropped  string `json:"dropped,omitempty"` // the operator's reason to drop the letter: the message was not handled
}

func (redriven) MessageType() string { return "Redriven" }

// ErrCorrupt is matched by the error for a dead letter that cannot be read.
var ErrCorrupt = errors.New("corrupt dead letter")

// A CorruptError names a stored message that is no dead letter, though its stream is one's. It matches [ErrCorrupt].
type CorruptError struct {
	Stream   messagestore.StreamName
	Position messagestore.Version // of the message in the stream
	Reason   string
}

// Error names the message and its fault.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt dead letter: %s@%d: %s", e.Stream, e.Position, e.Reason)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// All yields the open letters in order of their messages' positions, and behind them a [*CorruptError] for each that
// cannot be read. After another error it yields nothing more. It first looks through all dead letters of the category, so it is
// for operators and jobs, not for a handler.
func (l *Letters) All(ctx context.Context) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		for p, err := range l.withIDs(ctx, nil) {
			if err != nil {
				err = l.failed("dead letters", err)
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// Get returns the open letter for the message with an id, or a [*NotParkedError].
func (l *Letters) Get(ctx context.Context, id uuid.UUID) (*Letter, error) {
	for p, err := range l.withIDs(ctx, []uuid.UUID{id}) {
		if err != nil {
			err = l.failed("dead letter", err)
		}
		return p, err
	}
	return nil, l.notParked(id)
}

// failed names the consumer and the call in an error. A [*NotParkedError] names them by itself.
func (l *Letters) failed(doing string, err error) error {
	if _, is := errors.AsType[*NotParkedError](err); is {
		return err
	}
	return l.consumer.Wrap(fmt.Errorf("%s: %w", doing, err))
}

func (l *Letters) notParked(id uuid.UUID) error {
	return &NotParkedError{ID: id, Category: l.consumer.Category, Consumer: l.consumer.Name}
}

// A NotParkedError says that a message is not parked.
type NotParkedError struct {
	ID       uuid.UUID
	Category messagestore.Category
	Consumer string
}

// Error names the message and the consumer.
func (e *NotParkedError) Error() string {
	return fmt.Sprintf("message %s is not parked by consumer %s of %s", e.ID, names.Shown(e.Consumer), names.Shown(string(e.Category)))
}

// Message reads the message that a letter refers to. The error matches
// [messagestore.ErrNotFound] if the message was removed.
func (l *Letters) Message(ctx context.Context, p *Entry) (*messagestore.Message, error) {
	if p == nil {
		return nil, l.failed("message", messagestore.NewInvalidError("dead letter", nil, "it is nil"))
	}
	page, err := l.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: l.consumer.Category, From: p.GlobalPosition, Limit: 1})
	if err == nil && (len(page.Messages) == 0 || page.Messages[0].ID != p.ID) {
		err = fmt.Errorf("%s %s@%d, which is parked: %w", p.Type, p.Stream, p.Position, messagestore.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return page.Messages[0], nil
}

// Counts returns the number of open letters of each consumer of category that has any.
func Counts(ctx context.Context, store Store, category messagestore.Category) (map[string]int, error) {
	if err := category.Validate(); err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	open, err := openLetters(ctx, store, category)
	if err != nil {
		return nil, fmt.Errorf("count dead letters of the consumers of %s: %w", category, err)
	}
	counts := map[string]int{}
	for _, stream := range open {
		counts[stream.CardinalID()]++
	}
	return counts, nil
}

// openLetters returns the streams of the open letters of all consumers of category.
func openLetters(ctx context.Context, store Store, category messagestore.Category) ([]messagestore.StreamName, error) {
	letters := names.DeadLetters(category)
	if letters.Validate() != nil {
		return nil, nil //nolint:nilerr // the name is too long for any
	}
	streams, err := tails.Of(ctx, store, letters, []string{parked{}.MessageType(), redriven{}.MessageType()})
	if err != nil {
		return nil, err
	}
	var open []messagestore.StreamName
	for stream, types := range streams {
		in, out := types[parked{}.MessageType()], types[redriven{}.MessageType()]
		if types.Has(parked{}) && isLetter(category, stream) && (!types.Has(redriven{}) || in.Position > out.Position) {
			open = append(open, stream)
		}
	}
	slices.Sort(open)
	return open, nil
}

// isLetter reports whether a stream has the name of a dead letter: other clients may write
// other streams to the category.
func isLetter(category messagestore.Category, stream messagestore.StreamName) bool {
	ids := stream.IDs()
	if len(ids) != 2 {
		return false
	}
	c := names.Consumer{Category: category, Name: ids[0]}
	id, err := uuid.Parse(ids[1])
	return err == nil && c.Validate() == nil && stream == c.DeadLetter(id)
}

// withIDs yields the open dead letters, or only the ones for messages with one of the ids.
func (l *Letters) withIDs(ctx context.Context, ids []uuid.UUID) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		letters, corrupt, err := l.open(ctx, ids)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, p := range letters {
			if !yield(p, nil) {
				return
			}
		}
		for _, e := range corrupt {
			if !yield(nil, e) {
				return
			}
		}
	}
}

// open returns the open dead letters, or only the ones for messages with one of the ids, in order
// of the messages' positions, and which cannot be read.
func (l *Letters) open(ctx context.Context, ids []uuid.UUID) (open []*Letter, corrupt []*CorruptError, err error) {
	if err := l.consumer.Validate(); err != nil {
		return nil, nil, err
	}
	asked, _, err := l.asked(ctx)
	if err != nil {
		return nil, nil, err
	}
	var streams []messagestore.StreamName
	for _, id := range ids {
		streams = append(streams, l.consumer.DeadLetter(id))
	}
	if len(ids) == 0 {
		all, err := openLetters(ctx, l.store, l.consumer.Category)
		if err != nil {
			return nil, nil, err
		}
		streams = slices.DeleteFunc(all, func(s messagestore.StreamName) bool { return s.CardinalID() != l.consumer.Name })
	}
	for _, stream := range streams {
		s, err := l.read(ctx, stream)
		if err != nil {
			return nil, nil, err
		}
		if s.corrupt != nil {
			corrupt = append(corrupt, s.corrupt)
		}
		if s.open {
			requested, ok := asked[s.ID]
			s.Requested = ok && requested == s.outcome
			open = append(open, &s.Letter)
		}
	}
	slices.SortFunc(open, func(a, b *Letter) int { return cmp.Compare(a.GlobalPosition, b.GlobalPosition) })
	return slices.CompactFunc(open, func(a, b *Letter) bool { return a.DeadLetter == b.DeadLetter }), corrupt, nil
}

// A state is a dead letter's stream as it was read.
type state struct {
	Letter
	open    bool                 // the message is parked, not redriven
	corrupt *CorruptError        // the last message that parked or redrove it cannot be read
	version messagestore.Version // of the stream
}

// read returns the state of a dead letter's stream.
func (l *Letters) read(ctx context.Context, stream messagestore.StreamName) (*state, error) {
	s := &state{version: messagestore.NoStream, Letter: Letter{outcome: messagestore.NoStream}}
	for m, err := range l.store.ReadStream(ctx, stream, 0) {
		if err != nil {
			return nil, err
		}
		rule := s.take(m)
		if rule == "" && s.open && stream != l.consumer.DeadLetter(s.ID) {
			rule = fmt.Sprintf("message %s is not that of the stream", s.ID)
		}
		if rule != "" { // any writer of the store may have written it
			s.Letter = Letter{outcome: m.Position, Entry: Entry{DeadLetter: stream}}
			s.open, s.corrupt = false, &CorruptError{Stream: stream, Position: m.Position, Reason: text.Shorten(rule)}
		}
	}
	return s, nil
}

// take takes in a message of a dead letter's stream, or returns the rule that it breaks.
func (s *state) take(m *messagestore.Message) (rule string) {
	s.version = m.Position
	switch m.Type {
	case parked{}.MessageType():
		var p parked
		if err := json.Unmarshal(m.Data, &p); err != nil {
			return err.Error()
		}
		switch {
		case p.Position < 0 || p.GlobalPosition < 0:
			return "a position is less than 0"
		case p.Attempts < 0:
			return "its attempts are less than 0"
		}
		s.open, s.corrupt = true, nil
		s.Letter = Letter{outcome: m.Position, Entry: Entry{
			ID: p.MessageID, Type: p.Type, Stream: p.Stream, Position: p.Position, GlobalPosition: p.GlobalPosition,
			Error: p.Error, Stack: p.Stack, Reason: p.Reason, Attempts: p.Attempts, FirstFailedAt: p.FirstFailedAt, ParkedAt: m.Time,
			DeadLetter: m.Stream,
		}}
	case redriven{}.MessageType():
		var out redriven
		if err := json.Unmarshal(m.Data, &out); err != nil {
			return err.Error()
		}
		s.open, s.corrupt = false, nil
		s.outcome = m.Position
		if out.Dropped == "" {
			s.Attempts++ // with the attempt that succeeded
		}
	}
	return ""
}

// A Failure is a message that a consumer gives up on.
type Failure struct {
	Message       *messagestore.Message
	Err           error
	Stack         string // of a panic, shortened
	Reason        string // of an operator; then there may be no Err
	Attempts      int
	FirstFailedAt time.Time
}

// Park writes a dead letter, and returns it. A consumer calls it. A message that is parked
// already stays as it is, and the result is nil: the consumer ended between parking the
// message and its next checkpoint. A message that was redriven since is parked anew.
func (l *Letters) Park(ctx context.Context, f Failure) (*Letter, error) {
	m := f.Message
	switch {
	case m == nil:
		return nil, l.failed("park", messagestore.NewInvalidError("message", nil, "it is nil"))
	case f.Err != nil:
	default:
		f.Err = errors.New("parked by an operator: " + f.Reason)
	}
	p := parked{
		Consumer: l.consumer.Name, MessageID: m.ID, Type: m.Type, Stream: m.Stream, Position: m.Position, GlobalPosition: m.GlobalPosition,
		Error: text.Of(f.Err), Stack: f.Stack, Reason: f.Reason,
		Attempts: f.Attempts, FirstFailedAt: f.FirstFailedAt.UTC(),
	}
	stream := l.consumer.DeadLetter(m.ID)
	for version := messagestore.NoStream; ; {
		written, err := l.write(ctx, stream, version, about(m, p))
		if err == nil {
			return &Letter{outcome: written.Version, Entry: Entry{
				ID: m.ID, Type: p.Type, Stream: p.Stream, Position: p.Position, GlobalPosition: p.GlobalPosition,
				Error: p.Error, Stack: p.Stack, Reason: p.Reason, Attempts: p.Attempts, FirstFailedAt: p.FirstFailedAt,
				DeadLetter: stream,
			}}, nil
		}
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return nil, fmt.Errorf("park: %w", err)
		}
		s, readErr := l.read(ctx, stream)
		switch {
		case readErr != nil:
			return nil, fmt.Errorf("park: %w", readErr)
		case s.open:
			return nil, nil
		case s.version <= version:
			return nil, fmt.Errorf("park: %w", err) // no other write came first: it is not a conflict
		}
		version = s.version
		p.Attempts = s.Attempts + f.Attempts
		if !s.FirstFailedAt.IsZero() {
			p.FirstFailedAt = s.FirstFailedAt
		}
	}
}

// about returns an envelope for a body about m: m is its cause, and both have one
// correlation. It does not grow with m's metadata.
func about(m *messagestore.Message, body messagestore.Body) messagestore.Envelope {
	return messagestore.Envelope{Body: body, Metadata: messagestore.Metadata{
		CausationStream:         m.Stream,
		CausationPosition:       m.Position,
		CausationGlobalPosition: m.GlobalPosition,
		CorrelationStream:       m.Metadata.CorrelationStream,
	}}
}

// write writes an envelope, without its metadata if the store refuses them: other clients
// may have given the message names that Dibs does not write.
func (l *Letters) write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, e messagestore.Envelope) (messagestore.Written, error) {
	written, err := l.store.Write(ctx, stream, expected, e)
	if errors.Is(err, messagestore.ErrInvalid) {
		e.Metadata = messagestore.Metadata{}
		written, err = l.store.Write(ctx, stream, expected, e)
	}
	return written, err
}
