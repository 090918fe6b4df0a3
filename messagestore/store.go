package messagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
)

// A Store writes messages to streams and reads them back. It is safe for concurrent use, unless its
// driver is over a transaction.
type Store struct {
	driver  Driver
	config  Config
	watches watches
	outage  outage.Outage
	saidOwn sync.Map // of the callers that sayOwn has named
}

// Config configures a [Store]. nil means the defaults.
type Config struct {
	// BatchSize is how many messages one read asks the driver for: 1 to
	// [MaxReadMessages].
	//
	// Defaults to 1000.
	BatchSize int

	// Logger receives one debug event per write and per batch read. It receives a warning when the
	// store has to find out the outcome of a write, and when a handler writes to the category that
	// its consumer reads. It also receives an outage, if a watch is the first to notice it. Events
	// have names and numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// New returns a store that keeps its messages with driver. The error matches [ErrInvalid] and names
// each mistake: a nil driver, a batch size out of bounds.
func New(driver Driver, config *Config) (*Store, error) {
	s := &Store{driver: driver}
	if config != nil {
		s.config = *config
	}
	if s.config.BatchSize == 0 {
		s.config.BatchSize = 1000
	}
	var wrong []error
	if v := reflect.ValueOf(driver); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		wrong = append(wrong, NewInvalidError("driver", nil, "must not be nil"))
	}
	if size := s.config.BatchSize; size < 1 || size > MaxReadMessages {
		wrong = append(wrong, NewInvalidError("batch size", size, fmt.Sprintf("must be between 1 and %d", MaxReadMessages)))
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("store: %w", errors.Join(wrong...))
	}
	return s, nil
}

// use returns the driver, or an [*InvalidError] if the store has no driver or ctx is nil.
func (s *Store) use(ctx context.Context) (Driver, error) {
	switch {
	case s == nil:
		return nil, NewInvalidError("store", nil, "must not be nil")
	case s.driver == nil:
		return nil, NewInvalidError("store", nil, "must be made by New, and is the zero Store")
	case ctx == nil:
		return nil, NewInvalidError("context", nil, "must not be nil")
	}
	return s.driver, nil
}

// Driver returns the driver, for code that needs more than a Store offers. The error matches
// [ErrInvalid] if the store has no driver.
func (s *Store) Driver() (Driver, error) { return s.use(context.Background()) }

// Close closes the database handle if the driver opened it, by a URL or a path. A handle that you
// gave to the driver is yours to close.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	s.watches.endLinger(0)
	if s.driver == nil {
		return nil
	}
	return s.driver.Close()
}

// Write adds bodies to the end of stream if the stream is at the expected version. It adds them
// all, with no other message between them, or adds nothing.
//
// If the stream is at another version, the error matches [ErrVersionConflict]. A message whose id
// is recorded already is not written again: see [Written] and [ErrIDConflict]. If the error matches
// [ErrOutcomeUnknown], the messages may have been written; after any other error nothing was
// written. Invalid input is an [*InvalidError], before anything is sent.
func (s *Store) Write(ctx context.Context, stream StreamName, expected Version, bodies ...Body) (Written, error) {
	driver, err := s.use(ctx)
	var a Append
	if err == nil {
		a, err = encode(To(stream, expected, bodies...))
	}
	if err == nil && len(a.Records) == 0 {
		err = NewInvalidError("batch", nil, "must have a message")
	}
	if err == nil {
		err = validateBatch([]Append{a})
	}
	if err != nil {
		return Written{}, fmt.Errorf("write %s: %w", quoteName(stream), err)
	}
	written, err := settle(ctx, s, []Append{a}, func(ctx context.Context) ([]Written, error) {
		w, err := driver.Append(ctx, a)
		return []Written{w}, err
	})
	if err != nil {
		return Written{}, &writeError{stream, err}
	}
	return written[0], nil
}

// A writeError puts the stream in front of the cause. It makes the text only when asked for it:
// most conflicts are answers, and never printed.
type writeError struct {
	stream StreamName
	err    error
}

func (e *writeError) Error() string { return fmt.Sprintf("write %s: %v", quoteName(e.stream), e.err) }

func (e *writeError) Unwrap() error { return e.err }

// Over returns a store over your transaction on the same database: a pgx.Tx, on SQLite a *sql.Tx,
// or the transaction of a function of [TxStore.Transact], with that function's context. It makes no
// round trip. The store has one user and lives as long as the transaction, which commits or rolls
// back its writes. The error matches [ErrNotSupported] if the driver cannot write in this
// transaction.
func (s *Store) Over(ctx context.Context, tx any) (*Store, error) {
	driver, err := s.use(ctx)
	if v := reflect.ValueOf(tx); err == nil && (!v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()) {
		err = NewInvalidError("transaction", nil, "must not be nil")
	}
	if err == nil {
		driver, err = driver.Over(ctx, tx)
	}
	if err != nil {
		return nil, fmt.Errorf("store over a transaction: %w", err)
	}
	return &Store{driver: driver, config: s.config}, nil
}

// Stage writes body when your transaction, over which s is, commits. If you call [Store.Write]
// instead, later messages of the category wait for the end of your transaction; after Stage they
// wait only during COMMIT. Messages staged for one stream are written in the order of the calls.
//
// The message is left out if its ID is recorded by then with the same content, or if it expects
// [NoStream] and the stream begins with a message of the same type and data. If the stream is at
// another version, or the ID is taken, COMMIT fails and everything is rolled back: on PostgreSQL
// with SQLSTATE DB003. On SQLite, where one transaction writes at a time, Stage writes at once, and
// returns an error where COMMIT would fail. The error matches [ErrNotSupported] if s is not over a
// transaction of yours. Invalid input is an [*InvalidError], before anything is sent.
func (s *Store) Stage(ctx context.Context, stream StreamName, expected Version, body Body) error {
	err := s.stage(ctx, To(stream, expected, body))
	if err != nil {
		return fmt.Errorf("stage for %s: %w", quoteName(stream), err)
	}
	return nil
}

func (s *Store) stage(ctx context.Context, w StreamWrite) error {
	driver, err := s.use(ctx)
	if err != nil {
		return err
	}
	a, err := encode(w)
	if err == nil && a.Conditional() {
		err = NewInvalidError("expected version", a.Expected, "must be a version, NoStream or AnyVersion")
	}
	if err == nil {
		err = validateBatch([]Append{a})
	}
	if err != nil {
		return err
	}
	return driver.Stage(ctx, a)
}

// WriteInitial writes body as the first message of stream and reports whether it did. If another
// writer was first, it returns false and no error.
//
// If you may call it again for the same message, for example after an unknown outcome, give the
// message an id: then the second call returns true for its own first write.
func (s *Store) WriteInitial(ctx context.Context, stream StreamName, body Body) (wrote bool, err error) {
	written, err := s.Write(ctx, stream, NoStream, body)
	if errors.Is(err, ErrVersionConflict) {
		return false, nil
	}
	// The message may have been written before, at a later position.
	return err == nil && written.Version == 0, err
}

// settle runs a write until its outcome is known or the context is done. It may repeat the write
// because the messages have ids.
func settle(ctx context.Context, s *Store, appends []Append, write func(context.Context) ([]Written, error)) ([]Written, error) {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		written, err := write(ctx)
		unknown, ok := errors.AsType[*OutcomeUnknownError](err)
		if ok { // our own copy: a driver may give several callers the same error
			unknown = &OutcomeUnknownError{Writes: appends, Cause: unknown.Cause}
			err = unknown
		}
		if !ok || ctx.Err() != nil {
			if err == nil {
				s.wrote(ctx, written)
			}
			return written, err
		}
		s.config.Logger.Warn().Str("error", text.Log(unknown.Cause)).Str("stream", string(appends[0].Stream)).Int("attempt", attempt).Msg("outcome unknown")
		found, resolveErr := s.Resolve(ctx, unknown)
		conflict, used := errors.AsType[*IDConflictError](resolveErr)
		switch {
		case resolveErr == nil:
			s.wrote(ctx, found)
			return found, nil
		case used:
			return nil, conflict
		case !errors.Is(resolveErr, ErrNotWritten):
			return nil, err
		case attempt == attempts:
			return nil, fmt.Errorf("%w after %d attempts: %w", ErrNotWritten, attempts, unknown.Cause)
		}
	}
}

func (s *Store) wrote(ctx context.Context, written []Written) { s.wake(ctx, written, true) }

// wake wakes the waiters for messages that were written. Without inOrder, transactions that began
// earlier may still add messages before these, so the waiters do not learn a position.
func (s *Store) wake(ctx context.Context, written []Written, inOrder bool) {
	for _, w := range written {
		s.config.Logger.Debug().Str("stream", string(w.Stream)).Int64("version", int64(w.Version)).Bool("duplicate", w.Duplicate).Msg("write")
		if w.GlobalPosition > 0 { // else it was a check
			var head GlobalPosition // not known
			if inOrder {
				head = w.GlobalPosition
			}
			s.watches.heard(w.Stream.Category(), head)
			s.sayOwn(calling.CallerOf(ctx), w.Stream)
		}
	}
}

// sayOwn warns of a handler that writes to the category that its consumer reads: each such message
// is delivered to it, too, and it may go on for ever.
func (s *Store) sayOwn(by calling.Caller, stream StreamName) {
	if by.Category == "" || string(stream.Category()) != by.Category {
		return
	}
	if _, said := s.saidOwn.LoadOrStore([2]string{by.Category, by.Consumer}, true); !said {
		s.config.Logger.Warn().Str("consumer", by.Consumer).Str("category", by.Category).Str("stream", string(stream)).
			Msg("the handler writes to the category that its consumer reads: each message that it writes there is delivered to it, too")
	}
}

// Resolve finds out whether a write happened after an error that matches [ErrOutcomeUnknown]. It
// returns the result of the write; [ErrNotWritten] if it did not happen and never will; or
// [ErrIDConflict] if it failed because an id was used before for something else. After any other
// error the outcome is still unknown. Any store over the same database can resolve the write. In a
// transaction of yours the answer holds once the transaction is committed; above READ COMMITTED,
// PostgreSQL refuses to say that something was not written.
//
// Resolve does not find a message that has been trimmed, so call it within the time that trimming
// spares, by default 15 minutes. If the stream was deleted, the error matches [ErrDeleted].
func (s *Store) Resolve(ctx context.Context, err error) ([]Written, error) {
	driver, useErr := s.use(ctx)
	if useErr != nil {
		return nil, fmt.Errorf("resolve: %w", useErr)
	}
	unknown, ok := errors.AsType[*OutcomeUnknownError](err)
	if !ok {
		return nil, fmt.Errorf("resolve: not an unknown outcome: %w", err)
	}
	if !slices.ContainsFunc(unknown.Writes, func(a Append) bool { return len(a.Records) > 0 }) {
		return nil, fmt.Errorf("resolve: it wrote no message to look for: %w", err)
	}
	var all []Written
	for _, w := range unknown.Writes {
		ids := make([]uuid.UUID, len(w.Records))
		for i, r := range w.Records {
			ids[i] = r.ID
		}
		found, err := driver.Find(ctx, w.Stream, ids)
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", quoteName(w.Stream), err)
		}
		if len(found) != len(ids) { // all or none, so none
			return nil, fmt.Errorf("resolve %s: %w", quoteName(w.Stream), ErrNotWritten)
		}
		if conflict := notOf(w, found); conflict != nil {
			return nil, fmt.Errorf("resolve %s: %w", quoteName(w.Stream), conflict)
		}
		written := Written{Stream: w.Stream, Version: w.Expected, IDs: ids}
		if n := len(found); n > 0 {
			written.Version, written.GlobalPosition, written.Time = found[n-1].Position, found[n-1].GlobalPosition, found[n-1].Time
		}
		all = append(all, written)
	}
	return all, nil
}

// notOf returns nil if the append wrote the messages found, and an error if an id was used before
// for something else. If a record has no type, only its id is known and compared.
func notOf(a Append, found []*Message) error {
	for i, r := range a.Records {
		m := found[i]
		if r.Type == "" {
			continue
		}
		metadata, err := encodeMetadata(m.Metadata)
		if err != nil || m.Position != found[0].Position+Version(i) || !r.Same(m, metadata) {
			return &IDConflictError{ID: m.ID, Stream: m.Stream, Position: m.Position}
		}
	}
	return nil
}

// ReadStream yields the messages of stream from position from on, in order, up to the end,
// including messages written while it reads. A stream that does not exist yields nothing. It ends
// after an error.
func (s *Store) ReadStream(ctx context.Context, stream StreamName, from Version) iter.Seq2[*Message, error] {
	return s.stream(ctx, StreamQuery{Stream: stream, From: from})
}

// ReadStreamBackwards yields the messages of stream from position from down to the first. Start
// with the last message by [EndOfStream].
func (s *Store) ReadStreamBackwards(ctx context.Context, stream StreamName, from Version) iter.Seq2[*Message, error] {
	return s.stream(ctx, StreamQuery{Stream: stream, From: from, Backwards: true})
}

func (s *Store) stream(ctx context.Context, q StreamQuery) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		driver, err := s.use(ctx)
		if err == nil {
			q.Limit = s.config.BatchSize
			err = errors.Join(q.Stream.Validate(), validateFrom(q.From), validateLimit(q.Limit))
		}
		if err != nil {
			yield(nil, fmt.Errorf("read %s: %w", quoteName(q.Stream), err))
			return
		}
		for {
			batch, err := driver.ReadStream(ctx, q)
			if err != nil {
				yield(nil, fmt.Errorf("read %s: %w", quoteName(q.Stream), err))
				return
			}
			s.config.Logger.Debug().Str("stream", string(q.Stream)).Int64("from", int64(q.From)).Int("messages", len(batch)).Msg("read stream")
			for _, m := range batch {
				if !yield(m, nil) {
					return
				}
			}
			if len(batch) < q.Limit {
				return
			}
			last := batch[len(batch)-1].Position
			if q.From = last + 1; q.Backwards {
				q.From = last - 1
			}
			if q.From < 0 {
				return
			}
		}
	}
}

// ReadCategory yields the messages of every stream in category from global position from on, in
// order, as [Store.ReadStream] does for one stream. To know how far a filtered reader has looked,
// use [Store.ReadCategoryPage].
func (s *Store) ReadCategory(ctx context.Context, category Category, from GlobalPosition, filter Filter) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		if _, err := s.use(ctx); err != nil {
			yield(nil, fmt.Errorf("read category %s: %w", quoteName(category), err))
			return
		}
		for {
			page, err := s.ReadCategoryPage(ctx, CategoryQuery{Category: category, From: from, Limit: s.config.BatchSize, Filter: filter})
			if err != nil {
				yield(nil, err)
				return
			}
			for _, m := range page.Messages {
				if !yield(m, nil) {
					return
				}
			}
			if !page.More {
				return
			}
			from = page.Next
		}
	}
}

// ReadCategoryPage returns one batch of a category and the position at which to go on, even if the
// filter let nothing through.
func (s *Store) ReadCategoryPage(ctx context.Context, q CategoryQuery) (CategoryPage, error) {
	driver, err := s.use(ctx)
	if err == nil {
		err = errors.Join(q.Category.Validate(), validateFrom(q.From), validateLimit(q.Limit), q.Filter.Validate())
	}
	if err != nil {
		return CategoryPage{}, fmt.Errorf("read category %s: %w", quoteName(q.Category), err)
	}
	page, err := driver.ReadCategory(ctx, q)
	if err != nil {
		return CategoryPage{}, fmt.Errorf("read category %s: %w", quoteName(q.Category), err)
	}
	if n := len(page.Messages); n > 0 {
		if page.First.IsZero() {
			page.First = page.Messages[0].Mark()
		}
		if last := page.Messages[n-1]; page.Last.IsZero() && page.Next == last.GlobalPosition.Next() {
			page.Last = last.Mark()
		}
	}
	s.config.Logger.Debug().Str("category", string(q.Category)).Int64("from", int64(q.From)).
		Int64("next", int64(page.Next)).Int("messages", len(page.Messages)).Msg("read category")
	return page, nil
}

// Epoch returns a text that changes when the store may have lost committed messages: after any
// failover, after a point-in-time restore, and when an operator says so. It is "" if the driver
// cannot tell.
func (s *Store) Epoch(ctx context.Context) (string, error) {
	driver, err := s.use(ctx)
	if err != nil {
		return "", fmt.Errorf("read epoch: %w", err)
	}
	epoch, err := driver.Epoch(ctx)
	switch {
	case errors.Is(err, ErrNotSupported):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read epoch: %w", err)
	}
	return epoch, nil
}

// outages returns the state of the store's outage, which all packages of this module share, so that
// a process logs each outage once. They get it by [outage.Of], which also accepts a type that
// embeds a *Store.
func (s *Store) outages() *outage.Outage {
	if s == nil {
		return nil
	}
	return &s.outage
}

func init() {
	outage.OfStore = func(store any) *outage.Outage {
		if s, is := store.(interface{ outages() *outage.Outage }); is {
			return s.outages()
		}
		return nil
	}
}

// Connections returns how many connections the calls of all callers share, 0 if the driver has no
// bound.
func (s *Store) Connections() int {
	if s == nil || s.driver == nil {
		return 0
	}
	return s.driver.Connections()
}

// Last returns the last message of stream, or an error matching [ErrNotFound].
func (s *Store) Last(ctx context.Context, stream StreamName) (*Message, error) {
	return s.last(ctx, stream, "")
}

// LastOfType returns the last message of stream that has the given type, or an
// error matching [ErrNotFound].
func (s *Store) LastOfType(ctx context.Context, stream StreamName, messageType string) (*Message, error) {
	if err := validateKnownType(messageType); err != nil {
		return nil, fmt.Errorf("read last of %s: %w", quoteName(stream), err)
	}
	return s.last(ctx, stream, messageType)
}

func (s *Store) last(ctx context.Context, stream StreamName, messageType string) (*Message, error) {
	driver, err := s.use(ctx)
	if err == nil {
		err = stream.Validate()
	}
	if err == nil {
		var m *Message
		if m, err = driver.Last(ctx, stream, messageType); err == nil {
			return m, nil
		}
	}
	return nil, fmt.Errorf("read last of %s: %w", quoteName(stream), err)
}

// Version returns the version of stream: the position of its last message, or
// [NoStream] if it has none.
func (s *Store) Version(ctx context.Context, stream StreamName) (Version, error) {
	driver, err := s.use(ctx)
	if err == nil {
		err = stream.Validate()
	}
	if err == nil {
		var version Version
		if version, err = driver.Version(ctx, stream); err == nil {
			return version, nil
		}
	}
	return 0, fmt.Errorf("read version of %s: %w", quoteName(stream), err)
}

// Now returns the time of the store's clock, in UTC and microseconds: the clock that
// stamps the messages. See [Driver].
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	driver, err := s.use(ctx)
	var now time.Time
	if err == nil {
		now, err = driver.Now(ctx)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the store's clock: %w", err)
	}
	return now.UTC().Truncate(time.Microsecond), nil
}

// A StreamWrite is one stream's part of [Store.WriteStreams]. Without bodies it only checks that
// the stream is at the expected version, which then may not be [AnyVersion].
type StreamWrite struct {
	Stream   StreamName
	Expected Version
	Bodies   []Body

	// Past are up to 100 types of messages that may have been written since the expected version.
	// If every message since then has one of these types and is still there, the bodies are written
	// behind them; otherwise it is a version conflict. Past needs an expected version.
	//
	// Defaults to no types: the stream must be at the expected version.
	Past []string

	// After is the id of the message at the expected version. If another message is there, it is a
	// version conflict even if the versions are equal: this is another database, or a backup was
	// restored. After needs an expected version of at least 0.
	//
	// Defaults to [uuid.Nil]: the version alone decides.
	After uuid.UUID

	// Final makes [TxStore.Transact] return a version conflict of this write at once, instead of
	// calling its function again.
	//
	// Defaults to false.
	Final bool
}

// To returns the write of bodies to stream at the expected version.
func To(stream StreamName, expected Version, bodies ...Body) StreamWrite {
	return StreamWrite{Stream: stream, Expected: expected, Bodies: bodies}
}

// WriteStreams is [Store.Write] for up to [MaxWriteStreams] streams, each named once and at its own
// expected version. It writes everything or nothing. At least one stream must have bodies. If
// several conflict, the error names the first in the order given.
func (s *Store) WriteStreams(ctx context.Context, writes ...StreamWrite) ([]Written, error) {
	driver, err := s.use(ctx)
	if err != nil {
		return nil, fmt.Errorf("write streams: %w", err)
	}
	appends, err := encodeAll(writes)
	if err == nil {
		err = requireMessage(appends)
	}
	if err != nil {
		return nil, fmt.Errorf("write streams: %w", err)
	}
	written, err := settle(ctx, s, appends, func(ctx context.Context) ([]Written, error) {
		return driver.AppendAll(ctx, appends)
	})
	if err != nil {
		return nil, streamsError("write streams", err)
	}
	return written, nil
}

// TryWrite is [Store.Write], but if the stream is at another version it returns a Conflict instead
// of an error: the stream's last message and the time, from the same round trip. Then nothing was
// written.
//
// In a transaction of yours above READ COMMITTED a conflict is an error, like in Write.
func (s *Store) TryWrite(ctx context.Context, stream StreamName, expected Version, bodies ...Body) (Written, *Conflict, error) {
	written, met, err := s.TryWriteStreams(ctx, To(stream, expected, bodies...))
	if err != nil || met != nil {
		return Written{}, met, err
	}
	return written[0], nil, nil
}

// TryWriteStreams is [Store.WriteStreams] with the answer of [Store.TryWrite]: if one stream is at
// another version, it returns the last messages of all streams.
func (s *Store) TryWriteStreams(ctx context.Context, writes ...StreamWrite) ([]Written, *Conflict, error) {
	driver, err := s.use(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("try to write: %w", err)
	}
	appends, err := encodeAll(writes)
	if err == nil {
		err = requireMessage(appends)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("try to write: %w", err)
	}
	var met *Conflict
	written, err := settle(ctx, s, appends, func(ctx context.Context) (written []Written, err error) {
		written, met, err = driver.TryAppend(ctx, appends)
		return written, err
	})
	if err != nil {
		return nil, nil, streamsError("try to write", err)
	}
	if met != nil {
		s.config.Logger.Debug().Str("stream", string(writes[0].Stream)).Msg("write met another version")
		return nil, met, nil
	}
	return written, nil, nil
}

// streamsError puts the call in front of the cause and, for a conflict, the stream.
func streamsError(doing string, err error) error {
	if conflict, ok := errors.AsType[*VersionConflictError](err); ok {
		return fmt.Errorf("%s: %s: %w", doing, quoteName(conflict.Stream), err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Encode returns writes as a driver gets them, to be sent elsewhere. Each message has an id. The error
// matches [ErrInvalid] if a store would refuse them.
func Encode(writes ...StreamWrite) ([]Append, error) { return encodeAll(writes) }

func encodeAll(writes []StreamWrite) ([]Append, error) {
	if len(writes) > MaxWriteStreams {
		return nil, NewInvalidError("batch", len(writes), fmt.Sprintf("must be at most %d streams", MaxWriteStreams))
	}
	appends := make([]Append, 0, len(writes))
	seen := map[StreamName]bool(nil)
	if len(writes) > 1 {
		seen = make(map[StreamName]bool, len(writes))
	}
	for _, w := range writes {
		a, err := encode(w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", quoteName(w.Stream), err)
		}
		if seen[w.Stream] {
			return nil, NewInvalidError("batch", string(w.Stream), "must name each stream once")
		}
		if seen != nil {
			seen[w.Stream] = true
		}
		if len(w.Bodies) == 0 && w.Expected == AnyVersion {
			return nil, NewInvalidError("expected version", w.Expected, "must be a version if there are no messages, because such a write only checks it")
		}
		appends = append(appends, a)
	}
	return appends, validateBatch(appends)
}

func requireMessage(appends []Append) error {
	if slices.ContainsFunc(appends, func(a Append) bool { return len(a.Records) > 0 }) {
		return nil
	}
	return NewInvalidError("batch", nil, "must have a message")
}

// encode validates and encodes one stream's part of a write.
func encode(w StreamWrite) (Append, error) {
	if err := errors.Join(w.Stream.Validate(), validateExpected(w.Expected)); err != nil {
		return Append{}, err
	}
	if len(w.Bodies) > MaxWriteMessages {
		return Append{}, tooMany(len(w.Bodies))
	}
	if err := validatePast(w); err != nil {
		return Append{}, err
	}
	a := Append{Stream: w.Stream, Expected: w.Expected, Records: make([]Encoded, 0, len(w.Bodies)), Past: slices.Clone(w.Past), After: w.After}
	for i, body := range w.Bodies {
		record, err := encodeMessage(body)
		if err != nil {
			return Append{}, at(i, err)
		}
		a.Records = append(a.Records, record)
	}
	return a, nil
}

func validatePast(w StreamWrite) error {
	if len(w.Past) > maxFilterTypes {
		return NewInvalidError("past types", len(w.Past), fmt.Sprintf("must be at most %d", maxFilterTypes))
	}
	if len(w.Past) > 0 && w.Expected < NoStream {
		return NewInvalidError("expected version", w.Expected, "must be a version or NoStream, which the past messages came after")
	}
	if w.After != uuid.Nil && w.Expected < 0 {
		return NewInvalidError("expected version", w.Expected, "must be the version of the message in After")
	}
	for _, t := range w.Past {
		if err := validateKnownType(t); err != nil {
			return err
		}
	}
	return nil
}

func tooMany(messages int) error {
	return NewInvalidError("batch", messages, fmt.Sprintf("must be at most %d messages", MaxWriteMessages))
}

// validateBatch checks the rules for a write as a whole.
func validateBatch(appends []Append) error {
	if len(appends) == 1 && len(appends[0].Records) == 1 {
		return nil // one message within its bounds needs no check of the whole
	}
	ids := map[uuid.UUID]int{}
	messages, size := 0, 0
	for _, a := range appends {
		for _, r := range a.Records {
			if first, twice := ids[r.ID]; twice {
				return at(messages, NewInvalidError("message id", r.ID, fmt.Sprintf("must be unique in the batch, and message %d has it too", first)))
			}
			ids[r.ID] = messages
			messages++
			size += len(r.Data) + len(r.Metadata)
		}
	}
	if messages > MaxWriteMessages {
		return tooMany(messages)
	}
	if size > maxWriteBytes {
		return NewInvalidError("batch", size, fmt.Sprintf("must be at most %d bytes", maxWriteBytes))
	}
	return nil
}

func encodeMessage(body Body) (Encoded, error) {
	m := envelope(body)
	if nested, ok := isMessage(m.Body); ok {
		return Encoded{}, NewInvalidError("data", nested.MessageType(), "must not be a message: give its body")
	}
	if r, refused := m.Body.(refusedBody); refused {
		return Encoded{}, r.err
	}
	if isNil(m.Body) {
		return Encoded{}, NewInvalidError("data", nil, "must have a body")
	}
	r := Encoded{ID: m.ID, Type: m.Body.MessageType()}
	if err := validateType(r.Type); err != nil {
		return Encoded{}, err
	}
	if r.ID == uuid.Nil {
		id, err := uuid.NewV7()
		if err != nil {
			return Encoded{}, fmt.Errorf("new message id: %w", err)
		}
		r.ID = id
	}
	var err error
	if r.Data, err = encodeData(m.Body); err != nil {
		return Encoded{}, err
	}
	if r.Metadata, err = encodeMetadata(m.Metadata); err != nil {
		return Encoded{}, err
	}
	if size := len(r.Data) + len(r.Metadata); size > MaxMessageBytes {
		return Encoded{}, NewInvalidError("data", r.Type, fmt.Sprintf("must be at most %d bytes with the metadata, and is %d", MaxMessageBytes, size))
	}
	return r, nil
}

func isNil(body Body) bool {
	if body == nil {
		return true
	}
	v := reflect.ValueOf(body)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func encodeData(body Body) (json.RawMessage, error) {
	var data json.RawMessage
	validate := validateJSON
	switch b := body.(type) {
	case Raw:
		data = b.Data
	case *Raw:
		data = b.Data
		body = *b
	default:
		validate = validateEncoded
		encoded, err := exactjson.Marshal(body)
		if refusal, is := errors.AsType[*InvalidError](err); is { // the body's own
			return nil, refusal
		}
		if err != nil {
			return nil, NewInvalidError("data", body.MessageType(), fmt.Sprintf("must encode as JSON: %v", err))
		}
		if string(encoded) == "{}" && hidesAll(reflect.TypeOf(body)) {
			return nil, NewInvalidError("data", body.MessageType(), "must have an exported field, or nothing of it would be written: begin the names of fields with a capital letter")
		}
		data = encoded
	}
	if len(data) > MaxMessageBytes {
		return nil, NewInvalidError("data", []byte(data), fmt.Sprintf("must be at most %d bytes", MaxMessageBytes))
	}
	if len(data) == 0 {
		return nil, NewInvalidError("data", nil, "must not be empty")
	}
	if _, raw := body.(Raw); raw {
		data = slices.Clone(data) // the caller may use its buffer again while a driver still writes
	}
	return data, validate("data", data)
}

// hidesAll reports whether a type is a struct with fields, and encoding/json sees none.
func hidesAll(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return false
	}
	fields := 0
	for f := range t.Fields() {
		switch {
		case f.Name == "_":
			continue
		case f.IsExported() || f.Anonymous && !hidesAll(f.Type):
			return false
		}
		fields++
	}
	return fields > 0
}

var marshaler = reflect.TypeFor[json.Marshaler]()

func encodeMetadata(m Metadata) (json.RawMessage, error) {
	if m.IsZero() {
		return nil, nil
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	encoded, err := m.MarshalJSON() // as marshal would, which reads it once more
	if err != nil {
		return nil, NewInvalidError("metadata", nil, fmt.Sprintf("must encode as JSON: %v", err))
	}
	if len(m.Properties)+len(m.Local)+len(m.Extra) == 0 {
		return encoded, nil // of numbers and checked text alone
	}
	return encoded, validateEncoded("metadata", encoded)
}

// quoteName returns a name as error texts show it, quoted if it breaks the rules for names. For a
// stream of an invalid category it returns the text that was passed as the category.
func quoteName[N ~string](name N) string {
	if category, of := strings.CutPrefix(string(name), ofNoCategory); of && strings.Contains(category, "-") {
		return quoteName(category)
	}
	if text.NameRule(string(name)) == "" {
		return string(name)
	}
	return quote(string(name))
}
