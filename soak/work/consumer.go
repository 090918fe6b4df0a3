package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/soak/history"
)

// A watched consumer records each message that it gets and each step that it takes.
type watched struct {
	*client
	run  atomic.Pointer[history.Event]
	once *reservation.Reserver // of a handler
	asks bool                  // which effect is the last, before it writes the next

	mu       sync.Mutex
	random   *rand.Rand
	attempts map[messagestore.GlobalPosition]int
	failed   map[messagestore.GlobalPosition]history.Append // the message that the handler failed for last
}

func (c *client) consume(ctx context.Context) error {
	w := c.newWatched()
	return w.consume(ctx, handler.HandlerFunc(w.effect))
}

// handle runs a consumer of commands that does each key's once.
func (c *client) handle(ctx context.Context) error {
	w := c.newWatched()
	once := testkit.Must(reservation.New(c.store, c.task.Consumer, &reservation.Config{OnOutcome: w.outcome, Logger: logger.Zerolog(c.log)}))
	w.once = once
	mux := handler.New()
	commands := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		return w.reserve(ctx, m, mux.Handle)
	})
	if c.task.Inline {
		handler.Register(mux, reservation.Inline(once, Do.key, w.decide))
		return w.consume(ctx, commands)
	}
	handler.Register(mux, reservation.Copy(once, Do.key, w.do))
	ofCopies := *c
	ofCopies.task.Category = CopiesOf(c.task)
	copies := ofCopies.newWatched()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- w.consume(ctx, commands) }()
	go func() { ended <- copies.consume(ctx, handler.HandlerFunc(mux.Handle)) }()
	err := <-ended
	if errors.Is(err, consumer.ErrPositionAhead) {
		// A failover undid the messages that this consumer had read. The other consumer notices it
		// too if it is ahead.
		select {
		case other := <-ended:
			return errors.Join(err, other)
		case <-time.After(toldWithin):
		}
	}
	stop()
	return errors.Join(err, <-ended)
}

// toldWithin is how long a consumer may take to find out that it is ahead of the store: it polls
// each 50 ms.
const toldWithin = 10 * time.Second

// CopiesOf is the category of the copies that a handler makes of its commands by Copy.
func CopiesOf(task Task) messagestore.Category {
	return task.Category.WithType("reservation").WithType(task.Consumer)
}

func (c *client) newWatched() *watched {
	random := rand.New(rand.NewPCG(c.task.Seed, 0xc0))
	return &watched{client: c, random: random, asks: random.IntN(3) == 0, attempts: map[messagestore.GlobalPosition]int{}, failed: map[messagestore.GlobalPosition]history.Append{}}
}

// event is one of this consumer's.
func (w *watched) event(f string) *history.Event {
	return &history.Event{Call: f, Consumer: w.task.Consumer, Category: w.task.Category, Run: w.run.Load().Op}
}

func (w *watched) consume(ctx context.Context, h consumer.Handler) error {
	config := &consumer.Config{
		Lease: w.task.Lease, Concurrency: 1 + w.random.IntN(w.task.Load.Lanes),
		BatchSize: w.task.Load.Batch, CheckpointMessages: w.task.Load.Interval,
		PollInterval: 50 * time.Millisecond, CheckpointInterval: 200 * time.Millisecond, Grace: 2 * time.Second,
		Logger: logger.Zerolog(w.log),
		Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: 500 * time.Millisecond}},
	}
	switch {
	case w.task.InOrder:
		config.Concurrency = 1
	case !w.task.Alone: // the members share the category, if there are several
		config.Concurrency = max(2, config.Concurrency)
	}
	c, err := consumer.New(&watchedStore{recorder: w.store, watched: w}, w.task.Category, w.task.Consumer, doomedHandler{w.doom, &watchedHandler{w, h}}, config)
	if err != nil {
		return err
	}
	w.begin()
	err = c.Run(ctx)
	end, answer := &history.Event{}, history.OK
	if err != nil {
		answer, end.Note = history.Failed, shorten(err.Error())
	}
	switch {
	case errors.Is(err, consumer.ErrPositionAhead):
		answer = history.Ahead
	case ctx.Err() != nil && err != nil && strings.Contains(err.Error(), "another epoch"): // it was stopped before it began again
		answer = history.Epoch
		err = nil
	}
	w.history.end(*w.run.Load(), answer, end)
	return err
}

func (w *watched) begin() {
	life := w.history.begin(&history.Event{
		Call: history.Run, Consumer: w.task.Consumer, Category: w.task.Category, Alone: w.task.Alone, Interval: w.task.Load.Interval, Batch: w.task.Load.Batch,
	})
	w.run.Store(&life)
}

// again ends one run and begins the next, which a consumer does in a new epoch of the store, and
// whenever its slots change.
func (w *watched) again(answer string) {
	w.history.end(*w.run.Load(), answer, &history.Event{})
	w.begin()
}

// A watchedHandler writes down each call.
type watchedHandler struct {
	*watched
	next consumer.Handler
}

// Handle implements [consumer.Handler].
func (h *watchedHandler) Handle(ctx context.Context, m *messagestore.Message) error {
	known, err := recordedOf(m)
	if err != nil {
		return err
	}
	begin := h.event(history.Handle)
	begin.Appends = []history.Append{{Stream: m.Stream, Messages: []history.Message{known}}}
	if m.Type == commandType {
		if begin.Key, err = keyOf(m.Data); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.attempts[m.GlobalPosition]++
	begin.Attempt = h.attempts[m.GlobalPosition]
	fails, after, panics := h.random.IntN(200) == 0, h.random.IntN(2) == 0, h.random.IntN(3) == 0
	h.mu.Unlock()
	call := h.history.begin(begin)
	if fails && !after {
		err = errors.New("the handler fails before it has done anything")
	} else {
		err = h.next.Handle(ctx, m)
	}
	if err == nil && fails {
		err = errors.New("the handler fails after it has done everything")
	}
	end, answer := &history.Event{}, history.OK
	h.mu.Lock()
	if err != nil {
		answer, end.Note = history.Failed, shorten(err.Error())
		h.failed[m.GlobalPosition] = history.Append{Stream: m.Stream, Messages: []history.Message{known}}
	} else {
		delete(h.attempts, m.GlobalPosition)
		delete(h.failed, m.GlobalPosition)
	}
	h.mu.Unlock()
	h.history.end(call, answer, end)
	switch {
	case fails && panics:
		panic(err)
	case !fails && err != nil && !errors.Is(err, errPoison) && h.gate != nil:
		h.gate.wait(ctx, time.Now()) // and then it is redelivered
	}
	return err
}

// An effect is the message that a handler writes for a message.
type effect struct {
	Of  uuid.UUID `json:"of"`
	Key string    `json:"key,omitempty"` // of the command
}

const effectType = "Done"

// MessageType implements [messagestore.Body]. It never changes.
func (effect) MessageType() string { return effectType }

// EffectOf returns the idempotence key that has the message as its effect, or "".
func EffectOf(m *messagestore.Message) string {
	var e effect
	if m.Type == effectType {
		_ = json.Unmarshal(m.Data, &e) // or else it is none's
	}
	return e.Key
}

// EffectCategory returns the category of a consumer's effects: one stream for each stream that it
// reads, in which the effect of a message has the position of the message.
func EffectCategory(consumerName string) messagestore.Category {
	return messagestore.Category("done:" + consumerName)
}

var errPoison = handler.Park(errors.New("poison"))

// effect writes to the store, at the expected version, and to a file. In a store that may go back
// the version proves nothing: the effect of a message that was undone is there, if it was in
// flight. Then only the id shows whether the message is done.
func (w *watched) effect(ctx context.Context, m *messagestore.Message) error {
	if w.task.Parks && m.Type == PoisonType {
		return errPoison
	}
	var err error
	switch {
	case w.task.Parks:
	case w.task.Rewinds:
		err = w.writeEffect(ctx, m, messagestore.AnyVersion)
	default:
		err = w.effectAtItsVersion(ctx, m)
	}
	if err != nil {
		return err
	}
	external := w.event(history.Effect)
	external.Key = m.ID.String()
	w.history.note(external)
	return nil
}

// effectAtItsVersion writes the effect of a message after the effect of the message before it.
// Some processes ask first whether it is their turn. The others find out by writing.
func (w *watched) effectAtItsVersion(ctx context.Context, m *messagestore.Message) error {
	if !w.asks {
		return w.writeEffect(ctx, m, m.Position-1)
	}
	version, err := w.store.Version(ctx, w.effects(m))
	switch {
	case err != nil:
		return err
	case version >= m.Position:
		return nil // it is done
	case version < m.Position-1:
		return fmt.Errorf("%s comes before its turn: the effect of %d is the last", m, version)
	}
	return w.writeEffect(ctx, m, version)
}

func (w *watched) writeEffect(ctx context.Context, m *messagestore.Message, expected messagestore.Version) error {
	_, err := w.store.Write(ctx, w.effects(m), expected, messagestore.Envelope{ID: reservation.DeriveID(m, w.task.Consumer), Body: effect{Of: m.ID}})
	return err
}

// effects is the stream of the effects of a message's stream.
func (w *watched) effects(m *messagestore.Message) messagestore.StreamName {
	return effectsOf(w.task.Consumer, m.Stream)
}

// effectsOf is the stream of a consumer's effects that has the whole identifier of another.
func effectsOf(consumer string, stream messagestore.StreamName) messagestore.StreamName {
	return messagestore.StreamName(string(EffectCategory(consumer)) + "-" + stream.ID())
}

// done is the effect that is written for each key, to a stream that is named as the reservation is.
func (w *watched) done(m handler.Message[Do]) (messagestore.StreamWrite, error) {
	stream := m.Stream
	if w.task.Inline { // the message is the command, and no copy of it
		var err error
		if stream, err = w.once.Stream(stream, m.Body.Key); err != nil {
			return messagestore.StreamWrite{}, err
		}
	}
	return messagestore.StreamWrite{
		Stream:   effectsOf(w.task.Consumer, stream),
		Expected: messagestore.AnyVersion,
		Bodies:   []messagestore.Body{messagestore.Envelope{ID: reservation.DeriveID(m.Message, "done"), Body: effect{m.ID, m.Body.Key}}},
	}, nil
}

// do has the effect of the first command of a key, by Copy.
func (w *watched) do(ctx context.Context, m handler.Message[Do]) error {
	write, err := w.done(m)
	if err != nil {
		return err
	}
	if _, err := w.store.Write(ctx, write.Stream, write.Expected, write.Bodies...); err != nil {
		return err
	}
	w.external(m.Body.Key)
	return nil
}

// decide has the effect by Inline.
func (w *watched) decide(_ context.Context, m handler.Message[Do]) ([]messagestore.StreamWrite, error) {
	write, err := w.done(m)
	if err != nil {
		return nil, err
	}
	w.external(m.Body.Key)
	return []messagestore.StreamWrite{write}, nil
}

func (w *watched) external(key string) {
	e := w.event(history.Effect)
	e.Key = key
	w.history.note(e)
}

type attemptKey struct{}

// reserve writes down an attempt to reserve the key of a command.
func (w *watched) reserve(ctx context.Context, m *messagestore.Message, next handler.HandlerFunc) error {
	key, err := keyOf(m.Data)
	if err != nil {
		return err
	}
	stream, err := w.once.Stream(m.Stream, key)
	if err != nil {
		return err
	}
	begin := w.event(history.Reserve)
	begin.Key, begin.Value = key, valueOf(m.Data)
	begin.Appends = []history.Append{{Stream: stream, Messages: []history.Message{{ID: m.ID}}}}
	call := w.history.begin(begin)
	var outcome reservation.Outcome
	err = next(context.WithValue(ctx, attemptKey{}, &outcome), m)
	end, answer := &history.Event{}, history.Unknown
	switch outcome {
	case reservation.Reserved, reservation.Redelivered:
		answer = history.Won
	case reservation.Duplicate:
		answer = history.Duplicate
	case reservation.KeyReused:
		answer = history.KeyReused
	default:
		if err != nil {
			end.Note = shorten(err.Error())
		}
	}
	w.history.end(call, answer, end)
	return err
}

// outcome is called by the reserver, before it acts on it.
func (w *watched) outcome(ctx context.Context, _ *messagestore.Message, result reservation.Result) {
	if outcome, ok := ctx.Value(attemptKey{}).(*reservation.Outcome); ok {
		*outcome = result.Outcome
	}
}

// A watchedStore records the consumer's own reads and writes.
type watchedStore struct {
	*recorder
	watched *watched

	mu    sync.Mutex
	epoch string // of the run that is under way
	told  string // last, by which a run ends if it is another
	runs  bool   // one has begun
}

// Epoch returns the store's epoch. The consumer calls it when it begins, and while it runs.
func (s *watchedStore) Epoch(ctx context.Context) (string, error) {
	now, err := s.recorder.Epoch(ctx)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = now
	}
	return now, err
}

// Last implements [consumer.Store]. A consumer reads the last entry of the ledger only when it
// begins a run.
func (s *watchedStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if stream == s.watched.task.Category.WithType("position").Stream(s.watched.task.Consumer) {
		s.mu.Lock()
		switch another := s.epoch != "" && s.epoch != s.told; {
		case another:
			s.watched.again(history.Epoch)
		case s.runs:
			s.watched.again(history.OK)
		}
		s.epoch, s.runs = s.told, true
		s.mu.Unlock()
	}
	return s.recorder.Last(ctx, stream)
}

// CategoryPage implements [consumer.Store].
func (s *watchedStore) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := s.recorder.ReadCategoryPage(ctx, q)
	if err != nil || q.Category != s.watched.task.Category {
		return page, err
	}
	e := s.watched.event(history.Fetch)
	e.Position = page.Next
	s.history.note(e)
	return page, nil
}

// Write implements [consumer.Store].
func (s *watchedStore) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	e, err := s.eventOf(stream, bodies)
	if err != nil || e == nil {
		written, writeErr := s.recorder.Write(ctx, stream, expected, bodies...)
		return written, errors.Join(err, writeErr)
	}
	if e.Call == history.Position {
		s.watched.doom.Pass(Record)
		defer s.watched.doom.Pass(Recorded)
	}
	call := s.history.begin(e)
	written, err := s.recorder.Write(ctx, stream, expected, bodies...)
	end, answer := ending(err)
	end.Appends = nil
	s.history.end(call, answer, end)
	return written, err
}

// eventOf returns the event of a consumer's own write, nil if none is recorded for it.
func (s *watchedStore) eventOf(stream messagestore.StreamName, bodies []messagestore.Body) (*history.Event, error) {
	body := bodies[0]
	if m, ok := body.(messagestore.Envelope); ok {
		body = m.Body
	}
	data, err := dataOf(body)
	if err != nil {
		return nil, err
	}
	switch {
	case stream.Category() == s.watched.task.Category.WithType("position") && body.MessageType() == "Recorded":
		e := s.watched.event(history.Position)
		var recorded struct {
			Position messagestore.GlobalPosition `json:"position"`
			Group    struct {
				By string `json:"by"`
			} `json:"group"`
		}
		err := json.Unmarshal(data, &recorded)
		e.Position = recorded.Position
		if m, ok := bodies[0].(messagestore.Envelope); ok {
			e.Target = recorded.Group.By
			e.Appends = []history.Append{{Stream: stream, Messages: []history.Message{{ID: m.ID}}}}
		}
		return e, err
	}
	return nil, nil
}

// Driver implements [consumer.Store].
func (s *watchedStore) Driver() (messagestore.Driver, error) {
	queues, err := queuing.Of(s.recorder)
	return &watchedDriver{queues, s}, err
}

// A watchedDriver records the messages that the consumer gives up on.
type watchedDriver struct {
	queuing.Driver

	store *watchedStore
}

// QueuePark implements [queuing.Driver].
func (d *watchedDriver) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	w := d.store.watched
	e := w.event(history.Park)
	w.mu.Lock()
	e.Appends = []history.Append{w.failed[p.Position]}
	w.mu.Unlock()
	call := d.store.history.begin(e)
	parked, err := d.Driver.QueuePark(ctx, p)
	end, answer := ending(err)
	end.Appends = nil
	d.store.history.end(call, answer, end)
	return parked, err
}
