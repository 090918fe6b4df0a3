package outbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/internal/panics"
)

// A gathering sends one message at once, and the messages that come meanwhile together. The goroutine of
// one of them sends for all. No goroutine outlives its message.
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
	answer  chan error
	turn    chan struct{} // to send all that wait
}

// send returns when the sink has answered, also if ctx is done: the sink has the context, too.
func (g *gathering) send(ctx context.Context, m *Message) error {
	w := &waiting{message: m, answer: make(chan error, 1), turn: make(chan struct{}, 1)}
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

// sendAll sends all messages that wait. The first is of the goroutine that calls it: if its time is over, it
// fails alone.
func (g *gathering) sendAll(ctx context.Context) {
	var answers []error
	failure := ctx.Err()
	g.mu.Lock()
	all := g.waiting
	if g.waiting = nil; failure != nil {
		all, g.waiting = all[:1], all[1:]
	}
	g.mu.Unlock()
	if failure == nil {
		failure = panics.Call(func() (err error) {
			answers, err = g.call(ctx, all)
			return err
		})
	}
	for i, w := range all {
		if failure != nil {
			w.answer <- failure
		} else {
			w.answer <- answers[i]
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.sending = false
		return
	}
	g.waiting[0].turn <- struct{}{}
}

func (g *gathering) call(ctx context.Context, all []*waiting) ([]error, error) {
	g.calls.Add(1)
	if len(all) == 1 {
		return []error{g.sink.Send(ctx, all[0].message)}, nil
	}
	messages := make([]*Message, len(all))
	for i, w := range all {
		messages[i] = w.message
	}
	answers := g.sink.SendAll(ctx, messages)
	if len(answers) != len(messages) {
		return nil, fmt.Errorf("the sink has %d answers for %d messages", len(answers), len(messages))
	}
	return answers, nil
}
