package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dibs-go/dibs/messagestore"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// stores is the StoreService.
type stores struct{ s *Server }

func messageOf(m *messagestore.Message) *v1.Message {
	if m == nil {
		return nil
	}
	out := &v1.Message{
		Id: m.ID.String(), Stream: string(m.Stream), Position: int64(m.Position), GlobalPosition: int64(m.GlobalPosition),
		Time: timestamppb.New(m.Time), Type: m.Type, DataJson: string(m.Data),
	}
	if !m.Metadata.IsZero() {
		if raw, err := json.Marshal(m.Metadata); err == nil { // what a store has returned encodes
			out.MetadataJson = string(raw)
		}
	}
	return out
}

func messagesOf(all []*messagestore.Message) []*v1.Message {
	out := make([]*v1.Message, len(all))
	for i, m := range all {
		out[i] = messageOf(m)
	}
	return out
}

// parseID reads a required id of the client's.
func parseID(field, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil || len(text) != 36 {
		return uuid.Nil, invalid(field, text, "must be a UUID that the client makes, and sends again with a repeated call")
	}
	return id, nil
}

func bodyOf(field string, m *v1.NewMessage) (messagestore.Envelope, error) {
	id, err := parseID(field+".id", m.GetId())
	if err != nil {
		return messagestore.Envelope{}, err
	}
	e := messagestore.Envelope{ID: id, Body: messagestore.Raw{Type: m.GetType(), Data: json.RawMessage(m.GetDataJson())}}
	if m.GetMetadataJson() != "" {
		e.Metadata = messagestore.ParseMetadata(m.GetMetadataJson())
	}
	return e, nil
}

// writesOf returns the writes of a request, if the caller may make them.
func writesOf(ctx context.Context, all []*v1.StreamWrite) ([]messagestore.StreamWrite, error) {
	writes := make([]messagestore.StreamWrite, len(all))
	for i, w := range all {
		stream := messagestore.StreamName(w.GetStream())
		field := fmt.Sprintf("writes[%d]", i)
		if err := stream.Validate(); err != nil {
			return nil, fail(err)
		}
		if _, err := allow(ctx, below(Write, stream.Category()), stream.Category()); err != nil {
			return nil, err
		}
		if w.ExpectedVersion == nil {
			return nil, invalid(field+".expected_version", nil, "must be given: -1 if the stream must not exist, -2 for any version")
		}
		writes[i] = messagestore.StreamWrite{Stream: stream, Expected: messagestore.Version(w.GetExpectedVersion()), Past: w.GetPastTypes()}
		if w.GetAfterId() != "" {
			after, err := parseID(field+".after_id", w.GetAfterId())
			if err != nil {
				return nil, err
			}
			writes[i].After = after
		}
		for j, m := range w.GetMessages() {
			body, err := bodyOf(fmt.Sprintf("%s.messages[%d]", field, j), m)
			if err != nil {
				return nil, err
			}
			writes[i].Bodies = append(writes[i].Bodies, body)
		}
	}
	return writes, nil
}

// maxWrites is to how many streams one call writes.
const maxWrites = 100

// Write appends to streams.
func (h stores) Write(ctx context.Context, r *v1.WriteRequest) (*v1.WriteResponse, error) {
	if n := len(r.GetWrites()); n < 1 || n > maxWrites {
		return nil, invalid("writes", n, fmt.Sprintf("must be between 1 and %d", maxWrites))
	}
	writes, err := writesOf(ctx, r.GetWrites())
	if err != nil {
		return nil, err
	}
	written, met, err := h.s.store.TryWriteStreams(ctx, writes...)
	switch {
	case errors.Is(err, messagestore.ErrIDConflict):
		return &v1.WriteResponse{Outcome: v1.WriteOutcome_WRITE_OUTCOME_ID_CONFLICT}, nil
	case err != nil:
		return nil, fail(err)
	case met != nil:
		res := &v1.WriteResponse{Outcome: v1.WriteOutcome_WRITE_OUTCOME_VERSION_CONFLICT, Time: timestamppb.New(met.Time)}
		for _, m := range met.Last {
			res.Last = append(res.Last, &v1.Last{Message: messageOf(m)})
		}
		return res, nil
	}
	res := &v1.WriteResponse{Outcome: v1.WriteOutcome_WRITE_OUTCOME_WRITTEN}
	for _, w := range written {
		res.Written = append(res.Written, &v1.Written{
			Stream: string(w.Stream), Version: int64(w.Version), GlobalPosition: int64(w.GlobalPosition), Time: timestamppb.New(w.Time), Duplicate: w.Duplicate,
		})
	}
	return res, nil
}

// GetLast returns a stream's last message.
func (h stores) GetLast(ctx context.Context, r *v1.GetLastRequest) (*v1.GetLastResponse, error) {
	res := &v1.GetLastResponse{}
	if r.GetStream() != "" {
		stream, err := readable(ctx, r.GetStream())
		if err != nil {
			return nil, err
		}
		last, err := h.s.store.Last(ctx, stream)
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
			return nil, fail(err)
		}
		res.Message = messageOf(last)
	}
	now, err := h.s.store.Now(ctx)
	if err != nil {
		return nil, fail(err)
	}
	res.Time = timestamppb.New(now)
	return res, nil
}

// readable returns a stream that the caller may read.
func readable(ctx context.Context, name string) (messagestore.StreamName, error) {
	stream := messagestore.StreamName(name)
	if err := stream.Validate(); err != nil {
		return "", fail(err)
	}
	_, err := allow(ctx, below(Read, stream.Category()), stream.Category())
	return stream, err
}

// pageSize returns how many entries a page has.
func pageSize(want int32) (int, error) {
	if want == 0 {
		return 100, nil
	}
	if want < 1 || want > 1000 {
		return 0, invalid("page_size", want, "must be between 1 and 1000")
	}
	return int(want), nil
}

// maxPageBytes is how much data a page has before it ends early.
const maxPageBytes = 2 << 20

// ReadStream returns a page of a stream.
func (h stores) ReadStream(ctx context.Context, r *v1.ReadStreamRequest) (*v1.ReadStreamResponse, error) {
	stream, err := readable(ctx, r.GetStream())
	if err != nil {
		return nil, err
	}
	size, err := pageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	if r.GetFromVersion() < 0 {
		return nil, invalid("from_version", r.GetFromVersion(), "must not be negative")
	}
	res := &v1.ReadStreamResponse{NextVersion: r.GetFromVersion()}
	bytes := 0
	for m, err := range h.s.store.ReadStream(ctx, stream, messagestore.Version(r.GetFromVersion())) {
		if err != nil {
			return nil, fail(err)
		}
		res.Messages = append(res.Messages, messageOf(m))
		res.NextVersion = int64(m.Position) + 1
		if bytes += len(m.Data); len(res.Messages) == size || bytes > maxPageBytes {
			res.More = true
			break
		}
	}
	return res, nil
}

// maxFollowed is how many messages a follower is sent at a time.
const maxFollowed = 200

// followSilence is how long a follower hears nothing before it is told that there is nothing new.
const followSilence = 15 * time.Second

// FollowCategory sends the messages of a category as they come. A follower that does not read holds
// one page.
func (h stores) FollowCategory(ctx context.Context, r *v1.FollowCategoryRequest, out *connect.ServerStream[v1.FollowCategoryResponse]) error {
	category := messagestore.Category(r.GetCategory())
	if _, err := allow(ctx, below(Read, category), category); err != nil {
		return err
	}
	if r.GetFromPosition() < 0 {
		return invalid("from_position", r.GetFromPosition(), "must not be negative")
	}
	ctx, done, err := h.s.waits(ctx)
	if err != nil {
		return err
	}
	defer done()
	wakeups, stop := h.s.store.Watch(category, keysWatch)
	defer stop()
	next := messagestore.GlobalPosition(r.GetFromPosition())
	silence := time.NewTicker(followSilence)
	defer silence.Stop()
	size := 4 // so that a page has some 2 MiB, whatever the messages have
	for tell := true; ; {
		for more := true; more; {
			page, err := h.s.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, From: next, Limit: size})
			if err != nil {
				return ended(ctx, err)
			}
			next, more = page.Next, page.More
			bytes := 0
			for _, m := range page.Messages {
				bytes += len(m.Data)
			}
			if bytes > maxPageBytes {
				size = max(size/2, 1)
			} else if len(page.Messages) == size {
				size = min(2*size, maxFollowed)
			}
			if len(page.Messages) == 0 && !tell {
				break
			}
			for some := range chunks(page.Messages) {
				res := &v1.FollowCategoryResponse{Messages: messagesOf(some), NextPosition: int64(next)}
				if len(some) < len(page.Messages) && some[len(some)-1] != page.Messages[len(page.Messages)-1] {
					res.NextPosition = int64(some[len(some)-1].GlobalPosition.Next())
				} else {
					res.AtEnd = !page.More
				}
				if err := out.Send(res); err != nil {
					return err
				}
			}
			silence.Reset(followSilence)
		}
		if r.GetUntilEnd() {
			return nil
		}
		tell = false
		select {
		case <-ctx.Done():
			return ended(ctx, ctx.Err())
		case <-wakeups:
		case <-silence.C:
			tell = true
		}
	}
}

// chunks returns messages in parts that a client takes in one frame, and one empty part if there
// are none.
func chunks(all []*messagestore.Message) iter.Seq[[]*messagestore.Message] {
	return func(yield func([]*messagestore.Message) bool) {
		for begin, end, bytes := 0, 0, 0; ; end++ {
			if end == len(all) {
				yield(all[begin:])
				return
			}
			if bytes += len(all[end].Data); bytes > maxPageBytes && end > begin {
				if !yield(all[begin:end]) {
					return
				}
				begin, bytes = end, len(all[end].Data)
			}
		}
	}
}
