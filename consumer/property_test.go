package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A world is a category with the consumers that read it, and a record of their deliveries
// and checkpoints. It checks the rules of a consumer while they run.
type world struct {
	store *messagestore.Store
	tap   *tap

	mu       sync.Mutex
	written  []*messagestore.Message
	trouble  map[messagestore.GlobalPosition]string // how the handler fails
	failures map[messagestore.GlobalPosition]int    // how often it has yet to
	handled  map[messagestore.GlobalPosition]bool
	parked   map[messagestore.GlobalPosition]bool
	inHand   map[string]bool
	together int                                              // in hand
	most     int                                              // that may be
	life     map[messagestore.StreamName]messagestore.Version // last started in this life
	last     map[messagestore.StreamName]messagestore.Version // last finished in any
	again    int                                              // handled in this life although it was before
	calls    int                                              // of the handler, in this life
	killAt   int                                              // kill at this call of the handler or write
	dead     bool
	inNote   bool // it was killed when it wrote a checkpoint
	position map[messagestore.StreamName]messagestore.GlobalPosition
	failing  map[messagestore.StreamName]string // as it was stored last
	wrong    []string
}

func newWorld() *world {
	w := &world{
		store:    newStore(),
		trouble:  map[messagestore.GlobalPosition]string{},
		failures: map[messagestore.GlobalPosition]int{},
		handled:  map[messagestore.GlobalPosition]bool{},
		parked:   map[messagestore.GlobalPosition]bool{},
		last:     map[messagestore.StreamName]messagestore.Version{},
		position: map[messagestore.StreamName]messagestore.GlobalPosition{},
		failing:  map[messagestore.StreamName]string{},
	}
	w.tap = &tap{Store: w.store, write: w.beforeWrite, wrote: w.afterWrite, park: func() error { return w.beforeWrite("") }, parks: w.afterPark}
	w.born(0)
	return w
}

// born starts a new life, in which the process is killed at the n-th thing it does,
// or not with 0.
func (w *world) born(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.life = map[messagestore.StreamName]messagestore.Version{}
	w.inHand, w.together = map[string]bool{}, 0
	w.again, w.calls, w.killAt, w.dead, w.inNote = 0, 0, n, false, false
}

func (w *world) wrongly(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// step counts a call of the process and reports whether the process is dead.
func (w *world) step() bool {
	w.calls++
	if w.killAt > 0 && w.calls >= w.killAt {
		w.dead = true
	}
	return w.dead
}

func (w *world) afterPark(p queuing.Parking) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parked[p.Position] = true
}

func (w *world) beforeWrite(stream messagestore.StreamName) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.dead
	if w.step() {
		w.inNote = !was && stream.Category() == positions
		return lastingError{}
	}
	return nil
}

func (w *world) afterWrite(stream messagestore.StreamName, body messagestore.Body) {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := json.Marshal(unwrap(body))
	if err != nil {
		w.wrongly("%v", err)
	}
	var fields struct {
		Position       messagestore.GlobalPosition
		GlobalPosition messagestore.GlobalPosition
		Failing        json.RawMessage
	}
	if err := json.Unmarshal(raw, &fields); err != nil {
		w.wrongly("%v", err)
	}
	switch {
	case body.MessageType() == "Recorded":
		failing := string(fields.Failing)
		if before := w.position[stream]; fields.Position < before || fields.Position == before && failing == w.failing[stream] {
			w.wrongly("%s went from %d to %d", stream, w.position[stream], fields.Position)
		}
		w.position[stream], w.failing[stream] = fields.Position, failing
		w.checkPosition(stream, fields.Position)
	}
}

// checkPosition is promise C1: a position never passes a message that is unfinished.
func (w *world) checkPosition(stream messagestore.StreamName, position messagestore.GlobalPosition) {
	for _, m := range w.written {
		if m.GlobalPosition < position && m.Type == (Deposited{}).MessageType() && !w.handled[m.GlobalPosition] && !w.parked[m.GlobalPosition] {
			w.wrongly("%s is at %d, but %s (%d) is unfinished", stream, position, m, m.GlobalPosition)
		}
	}
}

func unwrap(body messagestore.Body) messagestore.Body {
	if m, ok := body.(messagestore.Envelope); ok {
		return m.Body
	}
	return body
}

// Handle checks promises C2 and C3, and fails as it was told to.
func (w *world) Handle(_ context.Context, m *messagestore.Message) error {
	id := m.Stream.CardinalID()
	w.mu.Lock()
	if w.inHand[id] {
		w.wrongly("two messages of %s are in hand", id)
	}
	w.inHand[id] = true
	if w.together++; w.together > w.most {
		w.wrongly("%d messages are in hand, of at most %d", w.together, w.most)
	}
	if before, ok := w.life[m.Stream]; ok && m.Position < before {
		w.wrongly("%s after position %d in one life", m, before)
	}
	w.life[m.Stream] = m.Position
	for _, earlier := range w.written {
		if earlier.Stream.CardinalID() == id && earlier.GlobalPosition < m.GlobalPosition && earlier.Type == m.Type &&
			!w.handled[earlier.GlobalPosition] && !w.parked[earlier.GlobalPosition] {
			w.wrongly("%s came before %s was finished", m, earlier)
		}
	}
	dead := w.step()
	trouble := ""
	if w.failures[m.GlobalPosition] > 0 {
		w.failures[m.GlobalPosition]--
		trouble = w.trouble[m.GlobalPosition]
	}
	w.mu.Unlock()

	runtime.Gosched() // others may get in between

	w.mu.Lock()
	defer w.mu.Unlock()
	w.inHand[id] = false
	w.together--
	switch {
	case dead:
		return errBroken
	case trouble == "error":
		return errBroken
	case trouble == "panic":
		panic("poison")
	case trouble == "exit":
		runtime.Goexit()
	case trouble == "park":
		return errHopeless
	case trouble == "later":
		return handler.RetryAfter(time.Millisecond, errBroken)
	case trouble == "skip":
		w.handled[m.GlobalPosition] = true
		return handler.Skip("as the test says")
	}
	if w.handled[m.GlobalPosition] {
		w.again++
	}
	w.handled[m.GlobalPosition] = true
	return nil
}

func (w *world) writeSome(t *rapid.T, label string) {
	streams := []messagestore.StreamName{"account-1", "account-1+a", "account-2", "account-3", "account-3+b", "account-4"}
	for range rapid.IntRange(0, 25).Draw(t, label) {
		stream := rapid.SampledFrom(streams).Draw(t, "stream")
		body := rapid.SampledFrom([]messagestore.Body{Deposited{1}, Deposited{2}, Deposited{3}, Withdrawn{}}).Draw(t, "body")
		trouble := rapid.SampledFrom([]string{"", "", "", "", "error", "panic", "exit", "park", "later", "skip"}).Draw(t, "trouble")
		failures := rapid.SampledFrom([]int{1, 2, 100}).Draw(t, "failures")
		if _, err := w.store.Write(context.Background(), stream, messagestore.AnyVersion, body); err != nil {
			t.Fatal(err)
		}
		m, err := w.store.Last(context.Background(), stream)
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.written = append(w.written, m)
		w.trouble[m.GlobalPosition], w.failures[m.GlobalPosition] = trouble, failures
		w.mu.Unlock()
	}
}

// ended reports whether a run that ended with err was killed, and only then. A checkpoint that was to have nothing but what
// fails ends no run, and it may be the last thing that a run does.
func (w *world) ended(err error) bool {
	return (err != nil) == w.dead || err == nil && w.inNote
}

func (w *world) check(t *rapid.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wrong) > 0 {
		t.Fatalf("%s", w.wrong[0])
	}
}

// checkAllFinished is promise C1 at the end.
func (w *world) checkAllFinished(t *rapid.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.written {
		wanted := m.Type == (Deposited{}).MessageType()
		if finished := w.handled[m.GlobalPosition] || w.parked[m.GlobalPosition]; finished != wanted {
			t.Fatalf("%s: finished %v, wanted %v", m, finished, wanted)
		}
	}
}

func TestNoMessageIsSkippedWhateverIsKilled(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.most = rapid.IntRange(1, 4).Draw(t, "concurrency")
		config := &consumer.Config{
			OnlyKnown:          true,
			Concurrency:        w.most,
			BatchSize:          rapid.IntRange(1, 8).Draw(t, "batch size"),
			CheckpointMessages: rapid.IntRange(1, 8).Draw(t, "position interval"),
			CheckpointInterval: time.Hour,
			PollInterval:       time.Hour,
			Errors: consumer.ErrorPolicy{
				Retry: consumer.Retry{For: rapid.SampledFrom([]time.Duration{consumer.NoRetry, time.Nanosecond, 3 * time.Millisecond}).Draw(t, "retry for"), MaxBackoff: time.Millisecond},
				Then:  consumer.ParkMessage,
			},
		}
		lives := rapid.IntRange(1, 6).Draw(t, "lives")
		for life := range lives {
			w.writeSome(t, "messages")
			killAt := 0
			if life < lives-1 {
				killAt = rapid.IntRange(0, 40).Draw(t, "kill at")
			}
			w.born(killAt)

			err := newNamed(w.tap, account, "ledger", w, config).CatchUp(t.Context())

			w.check(t)
			if !w.ended(err) || err != nil && !errors.As(err, &lastingError{}) {
				t.Fatalf("dead %v: %v", w.dead, err)
			}
			if most := config.CheckpointMessages + config.BatchSize; w.again > most {
				t.Fatalf("%d messages were handled again, more than %d", w.again, most)
			}
		}
		w.checkAllFinished(t)
	})
}
