// Package redisintent keeps the intents of package intent in Redis, for a service that has Redis
// and no PostgreSQL.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	store, err := redisintent.New(client, nil)
//	...
//	intents, err := intent.New(store, "payment:intent", nil)
//
// An intent is one hash, stored under the name of the intent's stream: the version, and the last
// message with its time, id, type, data and metadata. A step is one script, which compares the
// version and sets all of it, or returns the existing message with Redis's time. The last message's
// id makes a repeated step harmless. All promises that package intent makes without a clock hold
// here too, for as long as Redis loses nothing.
//
// # What is not promised
//
//   - An intent is as durable as Redis is set up to be. With appendfsync always, a step that was
//     answered survives the server's end; with everysec, the steps of the last second may be lost;
//     and a failover loses steps that no replica had. After the loss of a Confirmed message the
//     work is done again.
//   - After a loss, fencing tokens rise only with the clock: they do if the clock of the new server
//     is not behind the old one's by more than the time since the lost grant. The same is true of
//     versions, which also come from that clock, and by which a holder from before the loss is
//     refused. In a Redis Cluster each node has its own clock, and all of them have to agree.
//   - Only the last message is kept, so there is no history, no list of intents, and no message for
//     a consumer.
//   - Keys of several slots are not written in one step: a request with several keys
//     ([intent.Request.With]), writes to other streams in [intent.Lease.Confirm], and
//     [intent.Lease.Confirmation] in a transaction return an error that matches
//     [messagestore.ErrNotSupported]. Nothing is sent.
//   - An operator cannot remove intents, so [intent.Config.KeyLife] is refused.
//   - No message wakes a waiter: it asks every 50 ms.
//
// Redis forgets no intent unless it may evict keys: set maxmemory-policy to noeviction. If an
// intent's hash is deleted, the intent is free again. Redis 5 and later will do.
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

// Config changes how a [Store] works. Nil means all defaults.
type Config struct {
	// Logger receives a debug event for each step, and a warning for each step with an unknown
	// outcome. Its entries have names and numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Store keeps intents in Redis. It is safe for concurrent use. You close the client.
type Store struct{ store *messagestore.Store }

var _ intent.Store = (*Store)(nil)

// New returns a store over client: a [*redis.Client] or a [*redis.ClusterClient]. Its options must
// set ContextTimeoutEnabled, because otherwise a call could outlast its context's deadline. For any
// other client the error matches [messagestore.ErrInvalid]. New sends nothing.
func New(client redis.UniversalClient, config *Config) (*Store, error) {
	var heeds bool
	switch c := client.(type) {
	case *redis.Client:
		heeds = c != nil && c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		heeds = c != nil && c.Options().ContextTimeoutEnabled
	}
	if !heeds {
		return nil, messagestore.NewInvalidError("client", fmt.Sprintf("%T", client), "must be a client or cluster client of go-redis with ContextTimeoutEnabled")
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
// If the answer to a step is lost, the step is repeated, up to three times. If it still has no
// answer, the error matches [messagestore.ErrOutcomeUnknown]. So does each error of Redis, because
// go-redis may have sent the step once already.
func (s *Store) TryWrite(
	ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body,
) (messagestore.Written, *messagestore.Conflict, error) {
	return s.store.TryWrite(ctx, stream, expected, bodies...)
}

// TryWriteStreams implements [intent.Store], for one message in one stream. For any other write the
// error matches [messagestore.ErrNotSupported].
func (s *Store) TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	return s.store.TryWriteStreams(ctx, writes...)
}

// Last implements [intent.Store].
func (s *Store) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	return s.store.Last(ctx, stream)
}

// Now implements [intent.Store] with the clock of the Redis server, in a cluster of any server.
func (s *Store) Now(ctx context.Context) (time.Time, error) { return s.store.Now(ctx) }

// attempts is how often a step is sent if its answers are lost.
const attempts = 3

//go:embed append.lua
var appendLua string

var appendScript = redis.NewScript(appendLua)

// A driver has the calls of a message store that a Store makes. The other methods come from the nil
// Driver, and are never called.
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

// ended returns ctx's error. It also checks the deadline, because the context may notice that a
// moment later.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// A reply is the script's answer.
type reply struct {
	now      time.Time
	version  messagestore.Version // the intent's, after the script
	wrote    bool
	last     *messagestore.Message // nil for none, and if it wrote
	metadata []byte                // of last, as it is stored
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

// read reads the script's reply: the time; then the version if it wrote; otherwise the version and
// the parts of the last message, if there is one.
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

// Last implements [messagestore.Driver]. It uses the script, because no replica answers that.
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

// errOther is the error of a call that needs a history.
var errOther = fmt.Errorf("a call of a history that Redis does not keep: %w", messagestore.ErrNotSupported)

// Find implements [messagestore.Driver]. It cannot tell whether a step was written, because only
// the last message is kept.
func (*driver) Find(context.Context, messagestore.StreamName, []uuid.UUID) ([]*messagestore.Message, error) {
	return nil, errOther
}
