package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/internal/calling"
)

// A gathering sends one message at once, and the messages that come meanwhile together. The
// goroutine of one of these sends all of them. No goroutine outlives its message.
type gathering struct {
	sink  BatchSink
	calls *atomic.Int64

	mu      sync.Mutex
	waiting []*waiting
	sending bool
}

// A waiting is a message that is to be sent, or is being sent.
type waiting struct {
	message *Message
	check   func() error // nil while the relay may send it
	answer  chan error
	turn    chan struct{} // to send all that wait
}

// send returns when the sink has answered, even if ctx is done, because the sink has the context,
// too.
func (g *gathering) send(ctx context.Context, m *Message, check func() error) error {
	w := &waiting{message: m, check: check, answer: make(chan error, 1), turn: make(chan struct{}, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, w)
	if !g.sending {
		g.sending = true
		w.turn <- struct{}{}
	}
	g.mu.Unlock()
	select {
	case <-w.turn:
		g.sendAll(ctx)
		return <-w.answer
	case err := <-w.answer:
		return err
	}
}

// sendAll sends all waiting messages that fit together, except messages that the relay may not send
// any more. The first message belongs to the calling goroutine: if its time is over, it alone
// fails. If its time ends during the call, messages that fail because of that are sent again in
// another message's time.
func (g *gathering) sendAll(ctx context.Context) {
	g.mu.Lock()
	n := g.fitting()
	own, others := g.waiting[0], g.waiting[1:n]
	g.waiting = g.waiting[n:]
	g.mu.Unlock()
	var again []*waiting
	if failure := cmp.Or(ctx.Err(), own.check()); failure != nil {
		own.answer <- failure
		again = others
	} else {
		due := []*waiting{own}
		for _, w := range others {
			if failure := w.check(); failure != nil {
				w.answer <- failure
			} else {
				due = append(due, w)
			}
		}
		for i, err := range g.call(ctx, due) {
			if i > 0 && err != nil && ctx.Err() != nil {
				again = append(again, due[i])
				continue
			}
			due[i].answer <- err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.Concat(again, g.waiting)
	if len(g.waiting) == 0 {
		g.sending = false
		return
	}
	g.waiting[0].turn <- struct{}{}
}

// maxBatchBytes bounds the data sent together, unless one message alone is larger.
const maxBatchBytes = 4 << 20

// fitting returns how many of the waiting messages go together. It is called under mu.
func (g *gathering) fitting() int {
	size := 0
	for i, w := range g.waiting {
		if size += len(w.message.Data); size > maxBatchBytes && i > 0 {
			return i
		}
	}
	return len(g.waiting)
}

// call returns an answer for each message.
func (g *gathering) call(ctx context.Context, all []*waiting) (answers []error) {
	g.calls.Add(1)
	failure := calling.Call(func() error {
		if len(all) == 1 {
			answers = []error{g.sink.Send(ctx, all[0].message)}
			return nil
		}
		messages := make([]*Message, len(all))
		for i, w := range all {
			messages[i] = w.message
		}
		answers = g.sink.SendAll(ctx, messages)
		if len(answers) != len(messages) {
			return fmt.Errorf("the sink returned %d answers for %d messages", len(answers), len(messages))
		}
		return nil
	})
	if failure != nil {
		answers = slices.Repeat([]error{failure}, len(all))
	}
	return answers
}
