// Package redisintent keeps the intents of package intent in Redis, for a service that has Redis
// and no PostgreSQL.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	store, err := redisintent.New(client, nil)
//	...
//	intents, err := intent.New(store, "payment:intent", nil)
//
// An intent is one hash, whose key is the name of the intent's stream: the version, and the last
// message with its time, id, type, data and metadata. A step is one script, which compares the
// version and sets all of it, or answers with the message that is there and with Redis's time.
// The last message's id makes a repeated step harmless. All that package intent promises without
// a clock holds here too, for as long as Redis loses nothing.
//
// # What is not promised
//
//   - An intent is as durable as Redis is set up to be. With appendfsync always a step that was
//     answered survives the server's end; with everysec the steps of the last second may be lost; and a
//     failover loses steps that no replica had. A lost Confirmed is done again.
//   - After a loss fencing tokens rise by the clock alone: they do if the clock of the server that
//     answers then is not behind the old one's by more than the time since the lost grant. So do
//     versions, which are of that clock too, and by which a holder from before the loss is refused.
//     In a Redis Cluster each node has a clock of its own, and all of them have to agree.
//   - Only the last message is kept, so there is no history, no list of intents, and no message for
//     a consumer.
//   - Keys of several slots are not written in one step: a request of several keys
//     ([intent.Request.With]), writes to other streams in [intent.Lease.Confirm] and
//     [intent.Lease.Confirmation] in a transaction of the caller's match
//     [messagestore.ErrNotSupported]. Nothing of theirs is sent.
//   - No operator forgets intents, so [intent.Config.KeyLife] is refused.
//   - A waiter is woken by no message: it asks every 50 ms.
//
// Redis forgets no intent by itself unless it may evict keys: set maxmemory-policy to noeviction.
// An intent whose hash is deleted is free again. Redis 5 and later will do.
package redisintent

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Config changes how a [Store] works. A nil *Config is a good one.
type Config struct {
	// Logger receives a debug event for each step, and a warning for each whose outcome is not
	// known, of names and numbers, never of content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Store keeps intents in Redis. It is safe for concurrent use. The client stays the caller's to
// close.
type Store struct{ store *messagestore.Store }

var _ intent.Store = (*Store)(nil)

// New returns a store over client: a [*redis.Client] or a [*redis.ClusterClient] whose options
// have ContextTimeoutEnabled, without which a call would outlast its context's deadline. Another
// is refused with an error that matches [messagestore.ErrInvalid]. Nothing is sent yet.
func New(client redis.UniversalClient, config *Config) (*Store, error) {
	var heeds bool
	switch c := client.(type) {
	case *redis.Client:
		heeds = c != nil && c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		heeds = c != nil && c.Options().ContextTimeoutEnabled
	}
	if !heeds {
		return nil, messagestore.NewInvalidError("client", fmt.Sprintf("%T", client), "it is a client or cluster client of go-redis with ContextTimeoutEnabled")
	}
	if config == nil {
		config = &Config{}
	}
	store, err := messagestore.New(&driver{client: client, script: appendScript}, &messagestore.Config{Logger: config.Logger})
	if err != nil {
		return nil, err
	}
	return &Store{store}, nil
}

// TryWrite implements [intent.Store], for one message.
//
// A step whose answer is lost is repeated, up to three times. The error of a step that still has
// no answer matches [messagestore.ErrOutcomeUnknown], and so does each error of Redis: go-redis
// may have sent the step before.
func (s *Store) TryWrite(
	ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body,
) (messagestore.Written, *messagestore.Conflict, error) {
	return s.store.TryWrite(ctx, stream, expected, bodies...)
}

// TryWriteStreams implements [intent.Store], for one message of one stream. The error of any
// other write matches [messagestore.ErrNotSupported].
func (s *Store) TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	return s.store.TryWriteStreams(ctx, writes...)
}

// Last implements [intent.Store].
func (s *Store) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	return s.store.Last(ctx, stream)
}

// Now implements [intent.Store] with the clock of the Redis server, in a cluster of any of them.
func (s *Store) Now(ctx context.Context) (time.Time, error) { return s.store.Now(ctx) }

// attempts is how often a step is sent whose answer is lost.
const attempts = 3

//go:embed append.lua
var appendLua string

var appendScript = redis.NewScript(appendLua)

// A driver has the calls of a message store that a Store makes. The others are those of the nil
// Driver, and are not called.
type driver struct {
	messagestore.Driver
	client redis.UniversalClient
	script *redis.Script
}

// TryAppend implements [messagestore.Driver], for one message of one stream.
func (d *driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	a := appends[0]
	switch {
	case len(appends) > 1:
		return nil, nil, fmt.Errorf("several streams in Redis: %w", messagestore.ErrNotSupported)
	case len(a.Past) > 0:
		return nil, nil, fmt.Errorf("a write past messages that Redis does not keep: %w", messagestore.ErrNotSupported)
	case len(a.Records) != 1:
		return nil, nil, fmt.Errorf("a write of %d messages in Redis: %w", len(a.Records), messagestore.ErrNotSupported)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	r := a.Records[0]
	var reply *reply
	var err error
	for attempt := 1; ; attempt++ {
		reply, err = d.run(ctx, a.Stream, a.Expected, r)
		if err == nil {
			break
		}
		if attempt == attempts || ended(ctx) != nil {
			return nil, nil, &messagestore.OutcomeUnknownError{Cause: err}
		}
	}
	written := messagestore.Written{Stream: a.Stream, Version: reply.version, Time: reply.now, IDs: []uuid.UUID{r.ID}}
	switch last := reply.last; {
	case reply.wrote:
	case last == nil || last.ID != r.ID:
		return nil, &messagestore.Conflict{Time: reply.now, Last: []*messagestore.Message{last}}, nil
	case !r.Same(last, reply.metadata):
		return nil, nil, &messagestore.IDConflictError{ID: r.ID, Stream: a.Stream, Position: last.Position}
	default:
		written.Version, written.Time, written.Duplicate = last.Position, last.Time, true
	}
	return []messagestore.Written{written}, nil, nil
}

// ended returns ctx's error, also right before the context itself has seen that its time is over.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// A reply is the script's.
type reply struct {
	now      time.Time
	version  messagestore.Version // the intent's, after the script
	wrote    bool
	last     *messagestore.Message // nil for none, and if it wrote
	metadata []byte                // of last, as it is kept
}

// run runs the script.
func (d *driver) run(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, r messagestore.Encoded) (*reply, error) {
	id := ""
	if r.ID != uuid.Nil {
		id = r.ID.String()
	}
	said, err := d.script.Run(ctx, d.client, []string{string(stream)},
		int64(expected), id, r.Type, []byte(r.Data), []byte(r.Metadata)).StringSlice()
	if err != nil {
		return nil, errors.Join(err, ended(ctx))
	}
	return read(stream, said)
}

// read reads the script's reply: the time; if it wrote, the version; and else the version of the
// last message, if there is one, and that.
func read(stream messagestore.StreamName, said []string) (*reply, error) {
	const onlyTime, wrote, met = 1, 2, 7
	var numbers [3]int64
	if n := len(said); n != onlyTime && n != wrote && n != met {
		return nil, fmt.Errorf("malformed reply of %d values for %s", n, stream)
	}
	for i := range min(len(said), len(numbers)) {
		n, err := strconv.ParseInt(said[i], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("malformed reply for %s: %w", stream, err)
		}
		numbers[i] = n
	}
	r := &reply{now: micros(numbers[0]), version: messagestore.Version(numbers[1]), wrote: len(said) == wrote}
	if len(said) == met {
		id, _ := uuid.Parse(said[3]) // another program's hash has none
		r.metadata = []byte(said[6])
		r.last = &messagestore.Message{
			ID: id, Stream: stream, Position: r.version, Time: micros(numbers[2]),
			Type: said[4], Data: []byte(said[5]), Metadata: messagestore.ParseMetadata(said[6]),
		}
	}
	return r, nil
}

func micros(n int64) time.Time { return time.UnixMicro(n).UTC() }

// Last implements [messagestore.Driver]. It asks by the script, which no replica answers.
func (d *driver) Last(ctx context.Context, stream messagestore.StreamName, _ string) (*messagestore.Message, error) {
	reply, err := d.run(ctx, stream, messagestore.NoStream, messagestore.Encoded{})
	if err != nil {
		return nil, err
	}
	if reply.last == nil {
		return nil, messagestore.ErrNotFound
	}
	return reply.last, nil
}

// Now implements [messagestore.Driver].
func (d *driver) Now(ctx context.Context) (time.Time, error) { return d.client.Time(ctx).Result() }

// errOther is the error of a look for a step.
var errOther = fmt.Errorf("a call of a history that Redis does not keep: %w", messagestore.ErrNotSupported)

// Find implements [messagestore.Driver]. That a step is not the last message says nothing of it.
func (*driver) Find(context.Context, messagestore.StreamName, []uuid.UUID) ([]*messagestore.Message, error) {
	return nil, errOther
}
