package letters

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// redriveRequested asks the consumer to deliver one parked message again. It is about the
// letter at one position of its stream: once that has a later outcome, the request is
// settled.
type redriveRequested struct {
	MessageID uuid.UUID               `json:"messageId"`
	Stream    messagestore.StreamName `json:"stream"` // of the parked message
	Parked    messagestore.Version    `json:"parked"` // the position in the dead letter's stream
}

func (redriveRequested) MessageType() string { return "RedriveRequested" }

// redrivesSettled says that all requests before Next are settled.
type redrivesSettled struct {
	Next messagestore.Version `json:"next"`
}

func (redrivesSettled) MessageType() string { return "RedrivesSettled" }

// Requests are the letters that [Letters.RequestRedrive] chose, in order of their
// messages' positions.
type Requests struct {
	Requested []*Letter // by this call
	Before    []*Letter // by an earlier one
}

// RequestRedrive asks the consumer to deliver parked messages again: see deadletter.Entries.RequestRedrive.
func (l *Letters) RequestRedrive(ctx context.Context, ids ...uuid.UUID) (*Requests, error) {
	requests, err := l.request(ctx, ids)
	if err != nil {
		return nil, l.failed("request redrive", err)
	}
	return requests, nil
}

// PreviewRedrive returns the result of [Letters.RequestRedrive], and requests nothing.
func (l *Letters) PreviewRedrive(ctx context.Context, ids ...uuid.UUID) (*Requests, error) {
	requests, err := l.choose(ctx, ids)
	if err != nil {
		return nil, l.failed("preview redrive", err)
	}
	return requests, nil
}

func (l *Letters) request(ctx context.Context, ids []uuid.UUID) (*Requests, error) {
	if err := l.consumer.Validate(); err != nil {
		return nil, err
	}
	for {
		// After another request between this read and the write, both are repeated.
		_, version, err := l.asked(ctx)
		if err != nil {
			return nil, err
		}
		requests, err := l.choose(ctx, ids)
		if err != nil {
			return nil, err
		}
		bodies := make([]messagestore.Body, len(requests.Requested))
		for i, p := range requests.Requested {
			bodies[i] = redriveRequested{MessageID: p.ID, Stream: p.Stream, Parked: p.outcome}
		}
		for batch := range slices.Chunk(bodies, messagestore.MaxWriteMessages) {
			var written messagestore.Written
			if written, err = l.store.Write(ctx, l.consumer.Requests(), version, batch...); err != nil {
				break
			}
			version = written.Version
		}
		if !errors.Is(err, messagestore.ErrVersionConflict) {
			return requests, err
		}
	}
}

// choose divides the open dead letters, or only the ones with one of the ids.
func (l *Letters) choose(ctx context.Context, ids []uuid.UUID) (*Requests, error) {
	open, corrupt, err := l.open(ctx, ids)
	if err != nil {
		return nil, err
	}
	if len(ids) > 0 && len(corrupt) > 0 { // of all, those that can be read are asked for
		return nil, corrupt[0]
	}
	requests, found := &Requests{}, map[uuid.UUID]bool{}
	for _, p := range open {
		found[p.ID] = true
		if p.Requested {
			requests.Before = append(requests.Before, p)
		} else {
			requests.Requested = append(requests.Requested, p)
		}
	}
	for _, id := range ids {
		if !found[id] {
			return nil, l.notParked(id)
		}
	}
	return requests, nil
}

// A Request asks for the redrive of one message, or for it to be parked.
type Request struct {
	redriveRequested
	park     *parkRequested       // nil for a redrive
	position messagestore.Version // in the stream of requests
}

// readRequests returns the requests from a position of their stream on, and the stream's version.
func (l *Letters) readRequests(ctx context.Context, from messagestore.Version) ([]Request, messagestore.Version, error) {
	var all []Request
	version := from - 1
	for m, err := range l.store.ReadStream(ctx, l.consumer.Requests(), from) {
		if err != nil {
			return nil, 0, err
		}
		version = m.Position
		r := Request{position: m.Position}
		var err error
		switch m.Type {
		case (redriveRequested{}).MessageType():
			err = json.Unmarshal(m.Data, &r.redriveRequested)
		case (parkRequested{}).MessageType():
			err = json.Unmarshal(m.Data, &r.park)
			if err == nil && r.park == nil {
				err = errors.New("it is null")
			}
			if err == nil {
				r.MessageID, r.Stream = r.park.MessageID, r.park.Stream
			}
		default:
			continue
		}
		if err != nil {
			continue // no consumer and no operator has asked for it so
		}
		all = append(all, r)
	}
	return all, version, nil
}

// settledBefore returns the position before which all requests are settled.
func (l *Letters) settledBefore(ctx context.Context) (messagestore.Version, error) {
	m, err := l.store.LastOfType(ctx, l.consumer.Requests(), redrivesSettled{}.MessageType())
	if errors.Is(err, messagestore.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var settled redrivesSettled
	if err := json.Unmarshal(m.Data, &settled); err != nil || settled.Next < 0 || settled.Next > m.Position {
		return 0, nil //nolint:nilerr // a note saves reading, and this is none
	}
	return settled.Next, nil
}

// asked returns the requests that may not be settled, and the version of their stream.
func (l *Letters) asked(ctx context.Context) (map[uuid.UUID]messagestore.Version, messagestore.Version, error) {
	from, err := l.settledBefore(ctx)
	if err != nil {
		return nil, 0, err
	}
	all, version, err := l.readRequests(ctx, from)
	if err != nil {
		return nil, 0, err
	}
	asked := map[uuid.UUID]messagestore.Version{}
	for _, r := range all {
		if r.park != nil {
			continue
		}
		asked[r.MessageID] = max(r.Parked, asked[r.MessageID])
	}
	return asked, version, nil
}
