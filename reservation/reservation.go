package reservation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// The local properties of a reservation's message. Local properties do not pass to
// the messages that follow, so neither does the mark.
const (
	keyProperty      = "reservedKey"     // the key, as it is in the stream's name
	digestProperty   = "reservedDigest"  // what counts of the command, as a hash
	nameProperty     = "reservedFor"     // the reserver's name, if it has one
	consumerProperty = "reservedBy"      // the consumer whose effect that is
	handledProperty  = "reservedHandled" // true if the command's effect was written with it
)

// A Store is what reservations need of a [messagestore.Store].
type Store interface {
	Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error)
	ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
	ReadStreamBackwards(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error]
}

// Config changes how a [Reserver] works. A nil *Config is a good one.
type Config struct {
	// Category is a category of its own for reservations: the key AAA of a command in
	// account:command-123 is then reserved in Category-123+AAA. It may not be the one
	// that is consumed.
	//
	// Defaults to the command's own category, and its whole identifier.
	Category messagestore.Category

	// From is the category that is consumed. It is needed with Category, to see that
	// they are two, and then a command of any other is refused.
	//
	// Defaults to any.
	From messagestore.Category

	// Name says what is reserved for; the consumer's name is a good one. The key AAA of a
	// command in account:command-123 is then reserved in account:command-123+Name+AAA,
	// or in Category-123+Name+AAA. Reservers with different names do not get into each
	// other's way. A name is needed as soon as two consumers of one category each
	// reserve. It has no dash, plus sign, colon, white space or hidden character.
	//
	// To change the name makes every key free again, and a copy under the old name that
	// was not handled yet is passed over: change it only after all commands are done.
	//
	// Defaults to none: then a key is taken once for all consumers of the category, and
	// of two of which one uses [Inline] the second stops with an [*OtherConsumerError].
	Name string

	// OnOutcome is called for each attempt that has an outcome, before it is acted on.
	//
	// Defaults to nothing.
	OnOutcome func(ctx context.Context, source *messagestore.Message, result Result)

	// Logger receives a debug event for each reservation and each duplicate, and a
	// warning for each key that is reused, of names and numbers, never of content.
	//
	// Defaults to silence.
	Logger zerolog.Logger
}

// A Reserver makes reservations. It is safe for concurrent use if its store is.
type Reserver struct {
	store  Store
	config Config
}

// New returns a reserver that writes to store. What it refuses is an error that
// matches [messagestore.ErrInvalid], or [ErrLoop].
func New(store Store, config *Config) (*Reserver, error) {
	r := &Reserver{store: store}
	if config != nil {
		r.config = *config
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("new reserver: %w", err)
	}
	return r, nil
}

func (r *Reserver) validate() error {
	if isNil(r.store) {
		return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "store", nil, "it is nil")
	}
	if rule := nameRule(r.config.Name); rule != "" {
		return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "reserver name", r.config.Name, rule)
	}
	if r.config.From != "" {
		if err := r.config.From.Validate(); err != nil {
			return err
		}
	}
	if r.config.Category == "" {
		return nil
	}
	if err := r.config.Category.Validate(); err != nil {
		return err
	}
	if r.config.From == "" {
		return messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "category", string(r.config.Category), "a category of its own needs From, the one that is consumed")
	}
	if r.config.From == r.config.Category {
		return &LoopError{r.config.Category}
	}
	return nil
}

// nameRule returns the rule that a reserver's name breaks, or "". The name is one part
// of an identifier, so that the parts on either side of it stay what they are.
func nameRule(name string) string {
	if name == "" {
		return ""
	}
	if strings.ContainsAny(name, "+-:") {
		return "it holds a dash, plus sign or colon, which divide the parts of stream names"
	}
	if err := messagestore.Category(name).Validate(); err != nil {
		if invalid, ok := errors.AsType[*messagestore.InvalidError](err); ok {
			return strings.Replace(invalid.Rule, "the category holds", "it holds", 1)
		}
		return err.Error()
	}
	return ""
}

func isNil(v any) bool {
	value := reflect.ValueOf(v)
	return !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil()
}

// Stream returns the name of the stream that key is reserved in, for a command in
// the stream source. It is refused if the key or the name is invalid, if source
// is itself in the category that reservations are made in and, where they have one of
// their own, if source is not in [Config.From].
func (r *Reserver) Stream(source messagestore.StreamName, key string) (messagestore.StreamName, error) {
	if err := source.Validate(); err != nil {
		return "", err
	}
	if r.config.Category != "" && source.Category() == r.config.Category {
		return "", &LoopError{r.config.Category}
	}
	if r.config.Category != "" && source.Category() != r.config.From {
		return "", messagestore.NewInvalidError(messagestore.ErrInvalidStreamName, "stream name", string(source),
			fmt.Sprintf("it is not of category %.80q, which the reserver is for: one of another category would have the same reservations", string(r.config.From)))
	}
	part, err := encodeKey(key, messagestore.MaxNameBytes-len(r.join(source, "")))
	if err != nil {
		return "", err
	}
	stream := r.join(source, part)
	return stream, stream.Validate()
}

// join names the reservation of an encoded key.
func (r *Reserver) join(source messagestore.StreamName, part string) messagestore.StreamName {
	return join(r.config.Category, source, r.config.Name, part)
}

func join(category messagestore.Category, source messagestore.StreamName, name, part string) messagestore.StreamName {
	if category != "" {
		source = category.Stream(source.CardinalID())
	}
	if name != "" {
		source = source.With(name)
	}
	return source.With(part)
}

// Reserve copies source to the stream of its key, if it is the first to: the same
// type, the data byte for byte, the metadata as [messagestore.Follow] has it. The
// copy has an id derived from source's, so that to reserve again, after whatever
// went wrong, is the same write, and still [Reserved].
//
// Commands are compared whole, by type and data. That somebody else was first is an
// outcome and no error. An error says that nobody knows yet, or that nothing was
// written: the source is to be tried again. No error but a version conflict is ever
// taken for a duplicate.
func (r *Reserver) Reserve(ctx context.Context, source *messagestore.Message, key string) (Result, error) {
	return r.reserve(ctx, source, key, wholeDigest)
}

func (r *Reserver) reserve(ctx context.Context, source *messagestore.Message, key string, d digest) (Result, error) {
	c, err := r.copyOf(source, key, d)
	if err != nil {
		return Result{}, fmt.Errorf("reserve for %s: %w", source, err)
	}
	return r.initial(ctx, c)
}

// Lookup returns who has the reservation of key for commands in the stream source, also
// if it was deleted since. If nobody has, the error matches
// [messagestore.ErrNotFound].
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
	return Result{Reserved, key, stream, winner, winner.IsTombstone()}, nil
}

// A claim is an attempt to be the first in a stream.
type claim struct {
	source *messagestore.Message
	key    string
	stream messagestore.StreamName
	body   messagestore.Envelope
	digest string // what counts of source

	// digestOf computes it for a winner that carries none; nil if such a winner is
	// no command.
	digestOf digest
}

// copyOf returns the claim that Copy, Inline and Reserve make.
func (r *Reserver) copyOf(source *messagestore.Message, key string, d digest) (claim, error) {
	stream, err := r.Stream(source.Stream, key)
	if err != nil {
		return claim{}, err
	}
	sum, err := d(source)
	if err != nil {
		return claim{}, err
	}
	body := messagestore.Follow(source, source.Body())
	body.ID = DeriveID(source, string(stream))
	body.Metadata.SchemaVersion = source.Metadata.SchemaVersion // it is the same body
	ids := stream.IDs()
	body.Metadata.Local = messagestore.Properties{keyProperty: ids[len(ids)-1], digestProperty: sum}
	if r.config.Name != "" {
		body.Metadata.Local[nameProperty] = r.config.Name
	}
	return claim{source, key, stream, body, sum, d}, nil
}

// isCopy reports whether m is a copy that this reserver, or one like it, made. The
// property alone does not make it one: m is the first message of the very stream
// that its cause and its key lead to.
func (r *Reserver) isCopy(m *messagestore.Message) bool {
	return m.Metadata.Local.Get(nameProperty) == r.config.Name && isCopyIn(r.config.Category, m)
}

// passesOver reports whether m is a copy that a reserver of another name made. Its
// command is in the same category, and is what this reserver reserves: to take the
// copy for a command too would handle it twice, and to copy it would never end, for
// the other reserver would do the same.
func (r *Reserver) passesOver(m *messagestore.Message) bool {
	name := m.Metadata.Local.Get(nameProperty)
	if name == r.config.Name || !isCopyIn("", m) && !isCopyIn(r.config.Category, m) {
		return false
	}
	r.config.Logger.Debug().Str("reservation", string(m.Stream)).Str("for", name).Msg("pass over")
	return true
}

// isCopyIn reports whether m is a copy, of whatever name, that is reserved in the
// given category, or in that of its command if none is given.
func isCopyIn(category messagestore.Category, m *messagestore.Message) bool {
	local, cause := m.Metadata.Local, m.Metadata.CausationStream
	part, name := local.Get(keyProperty), local.Get(nameProperty)
	return m.Position == 0 && part != "" && cause != "" && !strings.Contains(part, "+") && nameRule(name) == "" &&
		join(category, cause, name, part) == m.Stream
}

// isHandled reports whether the command's effect was written with the copy m.
func isHandled(m *messagestore.Message) bool {
	handled, _ := m.Metadata.Local[handledProperty].(bool)
	return handled
}

// elsewhere returns an [*OtherConsumerError] if winner was written with the effect of
// another consumer than the one that ctx comes from, and no name says that the two do
// the same.
func (r *Reserver) elsewhere(ctx context.Context, winner *messagestore.Message) error {
	if r.config.Name != "" || winner == nil || !isHandled(winner) {
		return nil
	}
	by, here := winner.Metadata.Local.Get(consumerProperty), consumer.Name(ctx)
	if by == "" || here == "" || by == here {
		return nil
	}
	return &OtherConsumerError{Consumer: by, Stream: winner.Stream}
}

// initial makes the claim by an initial write.
func (r *Reserver) initial(ctx context.Context, c claim) (Result, error) {
	written, err := r.store.Write(ctx, c.stream, messagestore.NoStream, c.body)
	if err != nil {
		return r.refused(ctx, c, err)
	}
	return r.won(ctx, c, written), nil
}

// refused finds out what a failed write means. A version conflict is an answer, and
// so is an id that is recorded as the first in the stream, with content that differs
// in what does not count: the claim was made before. Everything else is returned.
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
	return r.compare(ctx, c, winner), nil
}

// first returns the first message of stream, or nil. One that was deleted begins with
// its tombstone, at whatever position.
func (r *Reserver) first(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	// This way it reads one message, however long the stream is.
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
		Stream: c.stream, GlobalPosition: written.GlobalPosition, Type: c.body.MessageType(), Metadata: c.body.Metadata,
	}
	if len(written.IDs) > 0 {
		record.ID = written.IDs[0]
	}
	if raw, ok := c.body.Body.(messagestore.Raw); ok {
		record.Data = raw.Data
	}
	return r.tell(ctx, c, Result{Reserved, c.key, c.stream, record, false})
}

// compare returns the outcome of a claim that winner was ahead of, or is.
func (r *Reserver) compare(ctx context.Context, c claim, winner *messagestore.Message) Result {
	if winner.IsTombstone() {
		return r.tell(ctx, c, Result{r.compareDeleted(c, winner), c.key, c.stream, winner, true})
	}
	sum := winner.Metadata.Local.Get(digestProperty)
	if sum == "" && c.digestOf != nil && winner.Type == c.source.Type {
		if computed, err := c.digestOf(winner); err == nil { // what cannot be compared is not the same
			sum = computed
		}
	}
	same := sum == c.digest && !r.isForAnother(winner)
	causedBySource := winner.Metadata.CausationStream == c.source.Stream && winner.Metadata.CausationPosition == c.source.Position
	result := Result{KeyReused, c.key, c.stream, winner, false}
	switch {
	case winner.ID == DeriveID(c.source, string(c.stream)), same && causedBySource:
		result.Outcome = Reserved
	case same:
		result.Outcome = Duplicate
	}
	return r.tell(ctx, c, result)
}

// compareDeleted returns the outcome of a claim whose winner was deleted. The tombstone
// keeps what counted of it, as a hash. Without one it was written by another client, as a
// copy: what cannot be compared any more is a duplicate, so that what was done once is
// not done again. What is no copy began in another way.
func (r *Reserver) compareDeleted(c claim, tombstone *messagestore.Message) Outcome {
	local := tombstone.Metadata.Local
	sum, name := local.Get(digestProperty), local.Get(nameProperty)
	switch {
	case sum == "" && c.digestOf != nil, sum == c.digest && (name == r.config.Name || name == "" && local.Get(keyProperty) == ""):
		return Duplicate
	}
	return KeyReused
}

// isForAnother reports whether a reserver of another name made winner. Their streams
// are different, unless the source of one is compound and ends in the other's name:
// then whoever comes second is told, and does not take it for a duplicate.
func (r *Reserver) isForAnother(winner *messagestore.Message) bool {
	local := winner.Metadata.Local
	return local.Get(keyProperty) != "" && local.Get(nameProperty) != r.config.Name
}

func (r *Reserver) tell(ctx context.Context, c claim, result Result) Result {
	level := zerolog.DebugLevel
	if result.Outcome == KeyReused {
		level = zerolog.WarnLevel
	}
	r.config.Logger.WithLevel(level).Str("outcome", result.Outcome.String()).
		Str("type", c.source.Type).Str("stream", string(c.source.Stream)).Int64("position", int64(c.source.Position)).
		Str("reservation", string(result.Stream)).Msg("reserve")
	if r.config.OnOutcome != nil {
		r.config.OnOutcome(ctx, c.source, result)
	}
	return result
}

// err returns what a handler returns: nothing for a reservation and a duplicate.
func (r Result) err() error {
	if r.Outcome == KeyReused {
		return &KeyReusedError{r.Key, r.Stream, r.Winner}
	}
	return nil
}
