package reservation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// The local properties of a reservation's message. Local properties do not pass to messages that
// follow, so these do not either.
const (
	keyProperty     = "reservedKey"     // the key, escaped as in the stream's name
	digestProperty  = "reservedDigest"  // a hash of the content by which commands are compared
	nameProperty    = "reservedFor"     // the reserver's name
	handledProperty = "reservedHandled" // true if the command's effect was written with it, false if it comes with the copy's delivery
	answerProperty  = "reservedAnswer"  // the handler's answer, as JSON in a string
	eventsProperty  = "reservedEvents"  // the names of the streams that were written to with it
	byProperty      = "reservedBy"      // the consumer that delivered the command
)

// A Store is the part of [messagestore.Store] that reservations use.
type Store interface {
	TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error)
	WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error)
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadStreamBackwards(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
	Watch(category messagestore.Category, interval time.Duration) (wakeups <-chan messagestore.GlobalPosition, stop func())
	Forgets() bool
}

// Config changes how a [Reserver] works. Nil means all defaults.
type Config struct {
	// Consumers are the other names of the consumer whose handlers use the reserver: its former
	// names, and the name that it will get. Each reservation records the name of its consumer, and
	// a reservation that another consumer made stops the consumer, because its effect belongs to
	// another handler. So if you rename a consumer, list its old name here, and list the new name
	// in the release before if both run at once.
	//
	// Defaults to none.
	Consumers []string

	// KeyLife declares how long a key is taken at least, between 1 minute and 100 years: dibs
	// forget may remove older reservations, and their keys are free again. The first reserver of a
	// name in a category stores the value, at its first reservation there. Another value is refused
	// later, and so is any value if a key was reserved before one was stored, for example because
	// two processes raced: the error matches [messagestore.ErrInvalid], and stops the consumer.
	// [New] refuses KeyLife if keys cannot be removed from the store; they can in PostgreSQL and
	// SQLite only. The streams of [Initiate] are not removed.
	//
	// Defaults to for ever, or to the stored value.
	KeyLife time.Duration

	// OnOutcome is called with the outcome of each attempt, before anything is done about it.
	//
	// Defaults to nothing.
	OnOutcome func(ctx context.Context, source *messagestore.Message, result Result)

	// Logger receives a debug event for each reservation and each duplicate, and a warning for each
	// reused key and for copies that no consumer reads. Its entries have names and numbers, never
	// content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// A Reserver makes reservations. It is safe for concurrent use if its store is.
type Reserver struct {
	store  Store
	name   string
	config Config
	life   *removal.KeyLife

	consumer atomic.Pointer[string] // which it serves, once one has delivered to it
	known    atomic.Bool            // the store has a message of the consumer's
	read     atomic.Bool            // a consumer has read the category of the copies, or the warning was logged
}

// New returns a reserver that writes to store. The name stands for the purpose of its reservations;
// the consumer's name is a good choice. The key AAA of a command in account:command-123 is reserved
// in account:command+reservation+name-123+AAA, so reservers with different names reserve each key
// once each. Two consumers of one category need two reservers, with different names; if the
// handlers of two consumers use one reserver, the second consumer is stopped. A name has no dash,
// plus sign, colon, white space or hidden character.
//
// A new name makes every key free again, and copies under the old name that were not handled yet
// stay unhandled: change it only after all commands are done.
//
// Two commands with one key are compared by their type and their body. With a method
// ReservationContent() any the body chooses the content to compare, which is encoded with
// encoding/json: everything except the time of sending, for instance. Content that encodes as null,
// {}, [] or "" is refused with an error that matches [messagestore.ErrInvalid], because any two
// commands with one key would be duplicates. A struct without exported fields has such content.
// After you change the choice, a command that is sent again looks different: it is [KeyReused], so
// it is parked and not lost.
//
// The error names all mistakes in the arguments, and matches [messagestore.ErrInvalid]. A consumer
// over another store is refused when it starts.
func New(store Store, name string, config *Config) (*Reserver, error) {
	r := &Reserver{store: store, name: name}
	if config != nil {
		r.config = *config
		r.config.Consumers = slices.Clone(config.Consumers)
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("reserver %.80q: %w", name, err)
	}
	r.life = removal.NewKeyLife(r.config.KeyLife, store)
	return r, nil
}

// made returns an error for the zero Reserver.
func (r *Reserver) made() error {
	if r.store == nil {
		return messagestore.NewInvalidError("reserver", nil, "must be made by New, and is the zero Reserver")
	}
	return nil
}

func (r *Reserver) validate() error {
	var wrong []error
	if isNil(r.store) {
		wrong = append(wrong, messagestore.NewInvalidError("store", nil, "must not be nil"))
	} else {
		wrong = append(wrong, removal.ValidateKeyLife(r.config.KeyLife, r.store.Forgets()))
	}
	if rule := nameRule(r.name); rule != "" {
		wrong = append(wrong, messagestore.NewInvalidError("reserver name", r.name, rule))
	}
	for _, name := range r.config.Consumers {
		if rule := nameRule(name); rule != "" {
			wrong = append(wrong, messagestore.NewInvalidError("consumers", name, rule))
		}
	}
	return errors.Join(wrong...)
}

// nameRule returns the rule that a reserver's name breaks, or "". The name is one part of an
// identifier, and must not change the parts on either side.
func nameRule(name string) string {
	if name == "" {
		return "must not be empty: two consumers of one category could not tell their reservations apart"
	}
	if strings.ContainsAny(name, "+-:") {
		return "must not contain a dash, plus sign or colon, which divide the parts of stream names"
	}
	if err := messagestore.Category(name).Validate(); err != nil {
		if invalid, ok := errors.AsType[*messagestore.InvalidError](err); ok {
			return strings.Replace(invalid.Rule, "the category must not contain", "must not contain", 1)
		}
		return err.Error()
	}
	return ""
}

func isNil(v any) bool {
	value := reflect.ValueOf(v)
	return !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil()
}

// Category returns the category in which r reserves the keys of commands in the category commands:
// account:command+reservation+name for account:command. The copies of [Copy] need a consumer of it,
// with the same name and handlers as the commands' consumer.
func (r *Reserver) Category(commands messagestore.Category) messagestore.Category {
	return categoryOf(commands, r.name)
}

// reservationType is the type of the categories in which keys are reserved. The reserver's name
// follows it.
const reservationType = "reservation"

func categoryOf(commands messagestore.Category, name string) messagestore.Category {
	return commands.WithType(reservationType).WithType(name)
}

// has reports whether r reserves in category.
func (r *Reserver) has(category messagestore.Category) bool {
	types := category.Types()
	return len(types) >= 2 && types[len(types)-2] == reservationType && types[len(types)-1] == r.name
}

// Stream returns the name of the stream that reserves key for commands in the stream source. It
// refuses an invalid key, and a source that is itself a reservation of r.
func (r *Reserver) Stream(source messagestore.StreamName, key string) (messagestore.StreamName, error) {
	if err := r.made(); err != nil {
		return "", err
	}
	if err := source.Validate(); err != nil {
		return "", err
	}
	if r.has(source.Category()) {
		return "", &hopelessError{messagestore.NewInvalidError("command", string(source), fmt.Sprintf("must be a command, and is a reservation of reserver %q, which only the function of Copy takes", r.name))}
	}
	part, err := encodeKey(key, text.MaxNameBytes-len(r.join(source, "")))
	if err != nil {
		return "", err
	}
	stream := r.join(source, part)
	return stream, stream.Validate()
}

// join names the reservation of an encoded key. It joins the parts unchanged: the source may come
// from another client, and part is already encoded.
func (r *Reserver) join(source messagestore.StreamName, part string) messagestore.StreamName {
	return messagestore.StreamName(string(r.Category(source.Category())) + "-" + source.ID() + "+" + part)
}

// Reserve copies source to the stream of its key, if it is the first message with that key: the
// same type, the data byte for byte, and the metadata from [messagestore.Follow]. The id of the
// copy is derived from source's, so reserving again repeats the same write: [Redelivered].
//
// Commands are compared whole, by type and data. If another command made the reservation first,
// that is an outcome and not an error. After an error try the source again: nothing was written, or
// nobody knows. Only a version conflict counts as a duplicate. If source is a reservation of r
// itself, the error matches [messagestore.ErrInvalid], and if the stream begins with another
// message, it is a [*NoReservationError].
//
// If store uses a transaction of yours, the reservation is committed with your SQL, or not at all.
// So make the effect if the outcome is [Reserved], and not otherwise:
//
//	once, err := reservation.New(inTx, "accounts", nil)
//	...
//	result, err := once.Reserve(ctx, m, key)
//	if err != nil || result.Outcome != reservation.Reserved {
//		return errors.Join(err, result.Err())
//	}
//	_, err = tx.Exec(ctx, "insert into deposits values ($1)", key) // and then commit
//
// Otherwise the reservation is one write and the effect another: if a handler is killed between
// them, its message is delivered again, with the outcome [Redelivered]. The handler then makes the
// effect as for [Reserved], so the effect must be repeatable. [Copy] and [Inline] take care of
// [Redelivered], and so does [Transact], for an effect in SQL.
func (r *Reserver) Reserve(ctx context.Context, source *messagestore.Message, key string) (Result, error) {
	if err := r.serves(ctx, source); err != nil {
		return Result{}, err
	}
	c, err := r.copyOf(ctx, source, key, wholeDigest)
	if err != nil {
		return Result{}, fmt.Errorf("reserve for %s: %w", source, err)
	}
	return r.initial(ctx, c)
}

// serves returns an error for the zero Reserver, or if another consumer than the first delivers to
// the reserver, or a consumer over another store.
func (r *Reserver) serves(ctx context.Context, m *messagestore.Message) error {
	if err := r.made(); err != nil {
		return err
	}
	if m == nil {
		return messagestore.NewInvalidError("message", nil, "must not be nil")
	}
	name := calling.CallerOf(ctx).Consumer
	if name == "" {
		return nil
	}
	if !r.consumer.CompareAndSwap(nil, &name) {
		if first := *r.consumer.Load(); first != name {
			return &otherConsumerError{Reserver: r.name, Consumer: first, Other: name}
		}
	}
	return r.holds(ctx, m, name)
}

// holds returns an error if the reserver's store does not have the stream of m, which a consumer
// delivers. Reservations in another store would not be in one write with the events, and the
// consumer would not see them. Finding one message is enough.
func (r *Reserver) holds(ctx context.Context, m *messagestore.Message, consumer string) error {
	if r.known.Load() {
		return nil
	}
	for found, err := range r.store.ReadStream(ctx, m.Stream, m.Position) {
		switch {
		case err != nil:
			return fmt.Errorf("look for %s in the store of reserver %q: %w", m, r.name, err)
		case found.Position == m.Position && found.ID == m.ID:
			r.known.Store(true)
			return nil
		case found.Position > m.Position: // m was removed meanwhile
			return nil
		}
		break
	}
	return &otherStoreError{Reserver: r.name, Consumer: consumer, Message: m}
}

// ofOther returns an error if another consumer than the one in ctx made the reservation first, so
// that the effect of this consumer's handler would be missing.
func (r *Reserver) ofOther(ctx context.Context, first *messagestore.Message) error {
	by, name := first.Metadata.Local.Get(byProperty), calling.CallerOf(ctx).Consumer
	if by == "" || name == "" || by == name || slices.Contains(r.config.Consumers, by) {
		return nil
	}
	return &otherConsumerError{Reserver: r.name, Consumer: by, Other: name, Reservation: first.Stream}
}

// by records the consumer of ctx in the local properties of a reservation.
func by(ctx context.Context, local messagestore.Properties) {
	if name := calling.CallerOf(ctx).Consumer; name != "" {
		local[byProperty] = name
	}
}

// Lookup returns the reservation of key for commands in the stream source, even if it was deleted
// later. If the key is free, the error matches [messagestore.ErrNotFound].
func (r *Reserver) Lookup(ctx context.Context, source messagestore.StreamName, key string) (Result, error) {
	stream, err := r.Stream(source, key)
	if err != nil {
		return Result{}, fmt.Errorf("look up reservation: %w", err)
	}
	winner, err := r.first(ctx, stream)
	if err == nil && winner == nil {
		err = messagestore.ErrNotFound
	}
	if err != nil {
		return Result{}, fmt.Errorf("look up reservation %s: %w", stream, err)
	}
	if !r.isReservation(winner, stream) {
		return Result{}, fmt.Errorf("look up reservation: %w", &NoReservationError{stream, winner})
	}
	return Result{Outcome: Reserved, Key: key, Stream: stream, Winner: winner, Answer: answerOf(winner), Deleted: winner.IsTombstone()}, nil
}

// isReservation reports whether first, the first message of stream, made a reservation there, or is
// the tombstone of such a message: it has a digest, and its cause leads to the stream. Without a
// digest the cause is enough, because other clients copy commands too.
func (r *Reserver) isReservation(first *messagestore.Message, stream messagestore.StreamName) bool {
	if first.IsTombstone() {
		return first.Metadata.Local.Get(digestProperty) != ""
	}
	part := string(stream[strings.LastIndexByte(string(stream), '+')+1:])
	cause := first.Metadata.CausationStream
	return first.Position == 0 && cause != "" && r.join(cause, part) == stream
}

// A claim is an attempt to write the first message of a stream.
type claim struct {
	source *messagestore.Message
	key    string
	stream messagestore.StreamName
	body   messagestore.Envelope
	digest string // of the source's content

	// digestOf computes the digest of a winner without a stored one. It is nil if the winner is not
	// a command: in a claim of Initiate.
	digestOf digest
}

// begunBy reports whether first, the first message of the stream, is a reservation.
func (c claim) begunBy(r *Reserver, first *messagestore.Message) bool {
	if c.digestOf == nil {
		return first.Metadata.Local.Get(digestProperty) != ""
	}
	return r.isReservation(first, c.stream)
}

// declare stores the life of keys in the category of stream, once.
func (r *Reserver) declare(ctx context.Context, stream messagestore.StreamName) error {
	err := r.life.Declare(ctx, stream.Category())
	corrupt := (*removal.CorruptKeyLifeError)(nil)
	if errors.Is(err, messagestore.ErrInvalid) || errors.As(err, &corrupt) {
		return &lastingError{err}
	}
	return err
}

// copyOf returns the claim for Copy, Inline and Reserve.
func (r *Reserver) copyOf(ctx context.Context, source *messagestore.Message, key string, d digest) (claim, error) {
	stream, err := r.Stream(source.Stream, key)
	if err != nil {
		return claim{}, err
	}
	sum, err := d(source)
	if err != nil {
		return claim{}, err
	}
	if err := r.declare(ctx, stream); err != nil {
		return claim{}, err
	}
	body := messagestore.Follow(source, source.Body())
	body.ID = DeriveID(source, string(stream))
	body.Metadata.SchemaVersion = source.Metadata.SchemaVersion // it is the same body
	part := stream[strings.LastIndexByte(string(stream), '+')+1:]
	body.Metadata.Local = messagestore.Properties{keyProperty: string(part), digestProperty: sum, nameProperty: r.name}
	by(ctx, body.Metadata.Local)
	return claim{source: source, key: key, stream: stream, body: body, digest: sum, digestOf: d}, nil
}

// write returns the write that makes the claim.
func (c claim) write() messagestore.StreamWrite {
	return messagestore.To(c.stream, messagestore.NoStream, c.body)
}

// isCopy reports whether m, of a category in which r reserves, is a copy made by r or by a reserver
// of the same name. The property alone is not enough: m must be the first message of the very
// stream to which its cause and its key lead.
func (r *Reserver) isCopy(m *messagestore.Message) bool {
	local, cause := m.Metadata.Local, m.Metadata.CausationStream
	part := local.Get(keyProperty)
	return m.Position == 0 && local.Get(nameProperty) == r.name && part != "" && !strings.Contains(part, "+") && cause != "" &&
		r.join(cause, part) == m.Stream
}

// isHandled reports whether the command's effect was written with the copy m.
func isHandled(m *messagestore.Message) bool {
	handled, _ := m.Metadata.Local[handledProperty].(bool)
	return handled
}

// initial makes the claim by an initial write.
func (r *Reserver) initial(ctx context.Context, c claim) (Result, error) {
	written, met, err := r.store.TryWriteStreams(ctx, c.write())
	switch {
	case err != nil:
		return r.refused(ctx, c, err)
	case met != nil:
		return r.lost(ctx, c, met.Last[0])
	}
	return r.won(ctx, c, written[0]), nil
}

func (r *Reserver) writeStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	written, err := r.store.WriteStreams(ctx, writes...)
	return written, nil, err
}

// lost returns the outcome of a claim if its stream has a last message. Only if that is the first
// message is it the winner.
func (r *Reserver) lost(ctx context.Context, c claim, last *messagestore.Message) (Result, error) {
	winner := last
	var err error
	if last == nil || last.Position != 0 {
		winner, err = r.first(ctx, c.stream)
	}
	if err == nil && winner == nil {
		err = ErrWinnerUnseen
	}
	if err != nil {
		return Result{}, fmt.Errorf("reserve %s: %w", c.stream, err)
	}
	return r.compare(ctx, c, winner)
}

// refused returns the outcome of a failed write. A version conflict is an answer. So is an id
// conflict with the first message of the stream, with other content in fields that do not count:
// the claim was made before. Every other failure is returned.
func (r *Reserver) refused(ctx context.Context, c claim, failure error) (Result, error) {
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("reserve %s: %w", c.stream, err)
	}
	if !errors.Is(failure, messagestore.ErrVersionConflict) && !errors.Is(failure, messagestore.ErrIDConflict) {
		return fail(failure)
	}
	winner, err := r.first(ctx, c.stream)
	switch {
	case err != nil:
		return fail(err)
	case winner == nil && errors.Is(failure, messagestore.ErrVersionConflict):
		return fail(fmt.Errorf("%w: %w", ErrWinnerUnseen, failure))
	case winner == nil:
		return fail(failure)
	}
	return r.compare(ctx, c, winner)
}

// first returns the first message of stream, or nil. A deleted stream begins with its tombstone, at
// any position.
func (r *Reserver) first(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	// This reads one message, even if the stream is long.
	for m, err := range r.store.ReadStreamBackwards(ctx, stream, 0) {
		return m, err
	}
	return r.begin(ctx, stream)
}

func (r *Reserver) begin(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	for m, err := range r.store.ReadStream(ctx, stream, 0) {
		return m, err
	}
	return nil, nil
}

// won returns the result of a claim that was written.
func (r *Reserver) won(ctx context.Context, c claim, written messagestore.Written) Result {
	record := &messagestore.Message{
		Stream: c.stream, GlobalPosition: written.GlobalPosition, Time: written.Time, Type: c.body.MessageType(), Metadata: c.body.Metadata,
	}
	if len(written.IDs) > 0 {
		record.ID = written.IDs[0]
	}
	if raw, ok := c.body.Body.(messagestore.Raw); ok {
		record.Data = raw.Data
	}
	result := Result{Outcome: Reserved, Key: c.key, Stream: c.stream, Winner: record, Answer: answerOf(record)}
	if written.Duplicate {
		result.Outcome = Redelivered
	}
	return r.tell(ctx, c, result)
}

// compare returns the outcome of a claim if its stream begins with first. The error is a
// [*NoReservationError] or an *otherConsumerError.
func (r *Reserver) compare(ctx context.Context, c claim, first *messagestore.Message) (Result, error) {
	if !c.begunBy(r, first) {
		r.config.Logger.Warn().Str("type", c.source.Type).Str("stream", string(c.source.Stream)).Int64("position", int64(c.source.Position)).
			Str("reservation", string(c.stream)).Msg("no reservation in its place")
		return Result{}, fmt.Errorf("reserve %s: %w", c.stream, &NoReservationError{c.stream, first})
	}
	result := Result{Outcome: KeyReused, Key: c.key, Stream: c.stream, Winner: first, Answer: answerOf(first), Deleted: first.IsTombstone()}
	sum := first.Metadata.Local.Get(digestProperty)
	if sum == "" && first.Type == c.source.Type {
		if computed, err := c.digestOf(first); err == nil { // else it counts as other content
			sum = computed
		}
	}
	same := sum == c.digest
	causedBySource := first.Metadata.CausationStream == c.source.Stream && first.Metadata.CausationPosition == c.source.Position
	switch {
	case result.Deleted && same: // the tombstone keeps the winner's digest
		result.Outcome = Duplicate
	case result.Deleted:
	case first.ID == DeriveID(c.source, string(c.stream)), same && causedBySource:
		result.Outcome = Redelivered
	case same:
		result.Outcome = Duplicate
	}
	if err := r.ofOther(ctx, result.Winner); err != nil {
		return Result{}, fmt.Errorf("reserve %s: %w", c.stream, err)
	}
	return r.tell(ctx, c, result), nil
}

func (r *Reserver) tell(ctx context.Context, c claim, result Result) Result {
	begin, what := r.config.Logger.Debug, "reserve"
	if result.Outcome == KeyReused {
		begin, what = r.config.Logger.Warn, "key reused: the command is not carried out"
	}
	begin().Str("outcome", result.Outcome.String()).
		Str("type", c.source.Type).Str("stream", string(c.source.Stream)).Int64("position", int64(c.source.Position)).
		Str("reservation", string(result.Stream)).Msg(what)
	if r.config.OnOutcome != nil {
		r.config.OnOutcome(ctx, c.source, result)
	}
	return result
}

// readBy warns, once, if no consumer has read the category of the copies: the copies wait there, and
// the commands have no effect. A consumer that reads it stores positions.
func (r *Reserver) readBy(ctx context.Context, copies messagestore.Category) {
	if !r.read.CompareAndSwap(false, true) {
		return
	}
	by := calling.CallerOf(ctx)
	page, err := r.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: copies.WithType("position"), Limit: 1})
	switch {
	case err != nil:
		r.read.Store(false) // the next copy asks
	case len(page.Messages) == 0 && by.Consumer != "":
		r.config.Logger.Warn().Str("consumer", by.Consumer).Str("category", by.Category).Str("copies", string(copies)).
			Msg("no consumer has read the category of the copies yet, so they have no effect: is its name right, and does a consumer of it run?")
	}
}

// check returns an *otherStoreError if the store of r does not have m, a message of the consumer in
// ctx, and an *otherConsumerError if r serves another consumer. A consumer calls it when it starts,
// for each [handler.Handler] made with r; so does package handlertest, without a consumer.
func (r *Reserver) check(ctx context.Context, m *messagestore.Message) error {
	if err := r.serves(ctx, m); err != nil {
		return err
	}
	return r.holds(ctx, m, calling.CallerOf(ctx).Consumer)
}
