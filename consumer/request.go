package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// redriveRequested asks the consumer to hand one parked message over again. It is
// about the message as it was parked at one position of its dead-letter stream: once
// that has a later outcome, nothing is left to do.
type redriveRequested struct {
	MessageID uuid.UUID               `json:"messageId"`
	Stream    messagestore.StreamName `json:"stream"` // of the message that is parked
	Parked    messagestore.Version    `json:"parked"` // the position, in the dead-letter stream, of what parked it
}

func (redriveRequested) MessageType() string { return "RedriveRequested" }

// redrivesSettled says that nothing is left to do for all requests before Next.
type redrivesSettled struct {
	Next messagestore.Version `json:"next"`
}

func (redrivesSettled) MessageType() string { return "RedrivesSettled" }

// A request is one that was read.
type request struct {
	redriveRequested
	position messagestore.Version
}

// requests returns the stream of what the consumer is asked to redrive.
func (c *Consumer) requests() messagestore.StreamName {
	return c.deadLetters().Stream(c.name).With("requests")
}

// readRequests returns the requests of the stream from a position on, and how far the
// stream goes.
func (c *Consumer) readRequests(ctx context.Context, from messagestore.Version) ([]request, messagestore.Version, error) {
	var all []request
	version := from - 1
	for m, err := range c.store.ReadStream(ctx, c.requests(), from) {
		if err != nil {
			return nil, 0, err
		}
		version = m.Position
		if m.Type != (redriveRequested{}).MessageType() {
			continue
		}
		r := request{position: m.Position}
		if err := json.Unmarshal(m.Data, &r.redriveRequested); err != nil {
			return nil, 0, fmt.Errorf("decode %s: %w", m, err)
		}
		all = append(all, r)
	}
	return all, version, nil
}

// settledBefore returns the position before which all requests are settled.
func (c *Consumer) settledBefore(ctx context.Context) (messagestore.Version, error) {
	m, err := c.store.LastOfType(ctx, c.requests(), redrivesSettled{}.MessageType())
	if errors.Is(err, messagestore.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var settled redrivesSettled
	if err := json.Unmarshal(m.Data, &settled); err != nil {
		return 0, fmt.Errorf("decode %s: %w", m, err)
	}
	return max(settled.Next, 0), nil
}

// asked returns what requests there may still be something to do for, and how far the
// stream of requests goes.
func (c *Consumer) asked(ctx context.Context) (map[uuid.UUID]messagestore.Version, messagestore.Version, error) {
	from, err := c.settledBefore(ctx)
	if err != nil {
		return nil, 0, err
	}
	all, version, err := c.readRequests(ctx, from)
	if err != nil {
		return nil, 0, err
	}
	asked := map[uuid.UUID]messagestore.Version{}
	for _, r := range all {
		asked[r.MessageID] = max(r.Parked, asked[r.MessageID])
	}
	return asked, version, nil
}

// wanted reports whether there is still something to do for a request, l being the
// dead letter that it is about.
func (l *deadLetter) wanted(r redriveRequested) bool { return l.open && l.outcome == r.Parked }

// Parked yields the messages of category that the consumer with the name has parked,
// as [Consumer.Parked] does, to those who do not have the consumer.
func Parked(ctx context.Context, store Store, category messagestore.Category, name string) iter.Seq2[*ParkedMessage, error] {
	return func(yield func(*ParkedMessage, error) bool) {
		c, err := inspect(store, category, name)
		if err != nil {
			yield(nil, fmt.Errorf("parked: %w", err))
			return
		}
		c.Parked(ctx)(yield)
	}
}

// ParkedMessageOf returns one message that the consumer with the name has parked. The
// error matches [ErrNotParked] if it has not.
func ParkedMessageOf(ctx context.Context, store Store, category messagestore.Category, name string, id uuid.UUID) (*ParkedMessage, error) {
	c, err := inspect(store, category, name)
	if err != nil {
		return nil, fmt.Errorf("parked: %w", err)
	}
	for p, err := range c.parkedAs(ctx, []uuid.UUID{id}) {
		if err != nil {
			err = c.wrap(err)
		}
		return p, err
	}
	return nil, &NotParkedError{ID: id, Category: category, Consumer: name}
}

// ParkedBy returns the names of the consumers of category that have parked messages,
// and how many each.
func ParkedBy(ctx context.Context, store Store, category messagestore.Category) (map[string]int, error) {
	if err := category.Validate(); err != nil {
		return nil, fmt.Errorf("parked: %w", err)
	}
	counts, err := parkedCounts(ctx, store, category)
	if err != nil {
		return nil, fmt.Errorf("parked by the consumers of %s: %w", category, err)
	}
	return counts, nil
}

func parkedCounts(ctx context.Context, store Store, category messagestore.Category) (map[string]int, error) {
	open, err := openLetters(ctx, store, category)
	counts := map[string]int{}
	for _, stream := range open {
		counts[stream.CardinalID()]++
	}
	return counts, err
}

// openLetters returns the streams of the messages of category that are parked.
func openLetters(ctx context.Context, store Store, category messagestore.Category) ([]messagestore.StreamName, error) {
	letters := category.WithType("deadLetter")
	if letters.Validate() != nil {
		return nil, nil //nolint:nilerr // too long a name to have any
	}
	streams, err := tails(ctx, store, letters, []string{parked{}.MessageType(), redriven{}.MessageType()})
	if err != nil {
		return nil, err
	}
	var open []messagestore.StreamName
	for stream, types := range streams {
		in, isParked := types[parked{}.MessageType()]
		out, isRedriven := types[redriven{}.MessageType()]
		isParked = isParked && isLetter(store, category, stream)
		if isParked && (!isRedriven || in.position > out.position) {
			open = append(open, stream)
		}
	}
	slices.Sort(open)
	return open, nil
}

// isLetter reports whether a stream is one that a consumer parks a message in: another
// client may have written to others.
func isLetter(store Store, category messagestore.Category, stream messagestore.StreamName) bool {
	ids := stream.IDs()
	if len(ids) != 2 {
		return false
	}
	c, err := inspect(store, category, ids[0])
	if err != nil {
		return false
	}
	id, err := uuid.Parse(ids[1])
	return err == nil && stream == c.deadLetter(id)
}

// ErrNotParked says that a message that was to be redriven is not parked.
var ErrNotParked = errors.New("not parked")

// A NotParkedError says which.
type NotParkedError struct {
	ID       uuid.UUID
	Category messagestore.Category
	Consumer string
}

// Error names the message and the consumer.
func (e *NotParkedError) Error() string {
	return fmt.Sprintf("message %s is not parked by consumer %s of %s", e.ID, shorten(e.Consumer), shorten(string(e.Category)))
}

// Is reports whether target is [ErrNotParked].
func (e *NotParkedError) Is(target error) bool { return target == ErrNotParked }

// RedriveRequests says what [RequestRedrive] asked for, in order of the messages'
// positions.
type RedriveRequests struct {
	Requested []*ParkedMessage // asked for now
	Before    []*ParkedMessage // had been asked for
}

// RequestRedrive asks the consumer of category with the name to hand parked messages
// over again: those with the ids, or all if there are none. It is for those who do not
// have the consumer's handler, as an operator; who has calls [Consumer.Redrive].
//
// The request is written beside the dead letters. The consumer finds it within
// [Config.RedriveInterval], wherever it runs, or when it is started next; of a group
// the member that the message's stream belongs to. It takes the message in hand as
// Redrive does, but in its turn: never together with another of its cardinal id. A
// request is for one handing over of a message as it is parked now. If that succeeds,
// or fails and the message is parked again, or somebody else has redriven it, the
// request is settled, however often it was made; if the process is killed in between,
// the next one goes on.
//
// The message is not written to its category a second time, since all that read the
// category would be given it again, and an entity's stream would tell of two events
// where there was one.
//
// The error matches [ErrNotParked] for an id that is not parked; then nothing is asked
// for.
func RequestRedrive(ctx context.Context, store Store, category messagestore.Category, name string, ids ...uuid.UUID) (*RedriveRequests, error) {
	c, err := inspect(store, category, name)
	if err != nil {
		return nil, fmt.Errorf("request redrive: %w", err)
	}
	requests, err := c.requestRedrive(ctx, ids)
	if err != nil {
		return nil, c.wrap(fmt.Errorf("request redrive: %w", err))
	}
	return requests, nil
}

// PreviewRedrive returns what [RequestRedrive] would ask for, and asks for nothing.
func PreviewRedrive(ctx context.Context, store Store, category messagestore.Category, name string, ids ...uuid.UUID) (*RedriveRequests, error) {
	c, err := inspect(store, category, name)
	if err != nil {
		return nil, fmt.Errorf("preview redrive: %w", err)
	}
	requests, err := c.choose(ctx, ids)
	if err != nil {
		return nil, c.wrap(fmt.Errorf("preview redrive: %w", err))
	}
	return requests, nil
}

func (c *Consumer) requestRedrive(ctx context.Context, ids []uuid.UUID) (*RedriveRequests, error) {
	for {
		// Nobody else's request comes between the look and the write, or it is made anew.
		_, version, err := c.asked(ctx)
		if err != nil {
			return nil, err
		}
		requests, err := c.choose(ctx, ids)
		if err != nil {
			return nil, err
		}
		bodies := make([]messagestore.Body, len(requests.Requested))
		for i, p := range requests.Requested {
			bodies[i] = redriveRequested{MessageID: p.ID, Stream: p.Stream, Parked: p.outcome}
		}
		for batch := range slices.Chunk(bodies, messagestore.MaxWriteMessages) {
			var written messagestore.Written
			if written, err = c.store.Write(ctx, c.requests(), version, batch...); err != nil {
				break
			}
			version = written.Version
		}
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return requests, err
		}
	}
}

// choose divides what is parked, or what of it has one of the ids.
func (c *Consumer) choose(ctx context.Context, ids []uuid.UUID) (*RedriveRequests, error) {
	left := map[uuid.UUID]bool{}
	for _, id := range ids {
		left[id] = true
	}
	requests := &RedriveRequests{}
	for p, err := range c.parkedAs(ctx, ids) {
		switch {
		case err != nil:
			return nil, err
		case p.Requested:
			requests.Before = append(requests.Before, p)
		default:
			requests.Requested = append(requests.Requested, p)
		}
		delete(left, p.ID)
	}
	for _, id := range ids {
		if left[id] {
			return nil, &NotParkedError{ID: id, Category: c.category, Consumer: c.name}
		}
	}
	return requests, nil
}
