package alarm

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

const (
	// leastLook is the shortest time between two looks at the stream of a minute.
	leastLook = 5 * time.Millisecond

	// mostHeld bounds the bytes of a minute's alarms that are held; the others are read again when they ring.
	mostHeld = 32 << 20
)

// errStopped makes the consumer deliver a minute again, to the next process.
var errStopped = errors.New("the clock was stopped")

// A ringing is a minute whose alarms ring.
type ringing struct {
	*Clock
	stream messagestore.StreamName
	end    time.Time

	next    messagestore.Version // what was read
	alarms  int
	waiting waiting
	held    int

	slots   chan struct{}
	working sync.WaitGroup
	mu      sync.Mutex
	failure error
}

// ring has the minute of m, from some time before it begins until all its alarms ring or came too late.
func (c *Clock) ring(ctx, run context.Context, m *messagestore.Message) error {
	begin, err := begins(m.Stream)
	if err != nil {
		return handler.Skip(err.Error())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &ringing{Clock: c, stream: m.Stream, end: begin.Add(time.Minute), slots: make(chan struct{}, c.config.Concurrency)}
	err = r.all(ctx, run)
	if err != nil {
		cancel()
	}
	r.working.Wait()
	if run.Err() != nil && err != nil {
		return handler.RetryAfter(time.Second, errStopped)
	}
	return err
}

func (r *ringing) all(ctx, run context.Context) error {
	bell, stop := r.store.Watch(r.category, r.config.PollInterval)
	defer stop()
	for look := true; ; {
		looked := time.Now()
		if look {
			closed, err := r.read(ctx)
			if err != nil || closed {
				return err
			}
			look = false
		}
		if err := r.ringDue(ctx, run); err != nil {
			return err
		}
		wake := r.end
		if len(r.waiting) > 0 {
			wake = time.UnixMicro(r.waiting[0].at)
		} else if !time.Now().Before(r.end) {
			done, err := r.close(ctx)
			if err != nil || done {
				return err
			}
			look = true
			continue
		}
		timer := time.NewTimer(time.Until(wake))
		select {
		case <-run.Done():
			timer.Stop()
			return errStopped
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		case <-bell:
			timer.Stop()
			look = true
			if err := backoff.Wait(ctx, time.Until(looked.Add(leastLook))); err != nil {
				return err
			}
		}
	}
}

// read reads the alarms that were set since the last look, and reports whether the minute is closed.
// The consumer of sets rings those behind Closed.
func (r *ringing) read(ctx context.Context) (closed bool, err error) {
	for m, err := range r.store.ReadStream(ctx, r.stream, r.next) {
		if err != nil {
			return false, err
		}
		r.next = m.Position + 1
		switch m.Type {
		case typeClosed:
			return true, nil
		case typeSet:
			set, err := messagestore.Decode[messageSet](m)
			if err != nil {
				r.refused(m, err)
				continue
			}
			a := waits{at: set.At, position: m.Position}
			if size := len(m.Data); r.held+size <= mostHeld {
				a.message, r.held = m, r.held+size
			}
			r.alarms++
			heap.Push(&r.waiting, a)
		}
	}
	return false, nil
}

// ringDue rings the alarms whose time has come.
func (r *ringing) ringDue(ctx, run context.Context) error {
	for len(r.waiting) > 0 && r.waiting[0].at <= time.Now().UnixMicro() {
		a := heap.Pop(&r.waiting).(waits) //nolint:errcheck,forcetypeassert // the heap has no other
		if a.message == nil {
			for m, err := range r.store.ReadStream(ctx, r.stream, a.position) {
				if err != nil {
					return err
				}
				a.message = m
				break
			}
			if a.message == nil || a.message.Position != a.position {
				continue // it was removed
			}
		} else {
			r.held -= len(a.message.Data)
		}
		select {
		case r.slots <- struct{}{}:
		case <-run.Done():
			return errStopped
		}
		r.working.Go(func() {
			defer func() { <-r.slots }()
			if err := r.ringOne(ctx, a.message); err != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.failure = errors.Join(r.failure, err)
			}
		})
		if err := r.failed(); err != nil {
			return err
		}
	}
	return nil
}

func (r *ringing) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// close closes the minute, and reports whether it is closed: not if an alarm was set meanwhile.
func (r *ringing) close(ctx context.Context) (done bool, err error) {
	r.working.Wait()
	if err := r.failed(); err != nil {
		return false, err
	}
	_, err = r.store.Write(ctx, r.stream, r.next-1, messageClosed{r.alarms})
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return false, nil
	}
	return err == nil, err
}

// ringOne writes the message of an alarm. A stream that has moved on is an answer. A message that the store refuses
// for ever is logged, and holds up no other alarm.
func (c *Clock) ringOne(ctx context.Context, m *messagestore.Message) error {
	set, err := messagestore.Decode[messageSet](m)
	if err != nil {
		c.refused(m, err)
		return nil
	}
	body := messagestore.Envelope{Body: messagestore.Raw{Type: set.Type, Data: set.Data}}
	if set.Metadata != nil {
		body.Metadata = *set.Metadata
	}
	body = messagestore.Follow(m, body)
	body.ID = reservation.DeriveID(m, "rang")
	written, err := c.store.Write(ctx, set.Stream, set.Expected, body)
	switch {
	case errors.Is(err, messagestore.ErrVersionConflict):
		c.late.Add(1)
	case errors.Is(err, messagestore.ErrInvalid), errors.Is(err, messagestore.ErrIDConflict):
		c.refused(m, err)
	case err != nil:
		c.failures.Add(1)
		return err
	case !written.Duplicate:
		c.rung.Add(1)
	}
	return nil
}

func (c *Clock) refused(m *messagestore.Message, err error) {
	c.failures.Add(1)
	log := c.config.Logger
	log.Error().Str("error", text.Log(err)).Str("alarm", m.String()).Msg("an alarm cannot ring")
}

// waits is an alarm that waits for its time.
type waits struct {
	at       int64
	position messagestore.Version
	message  *messagestore.Message // nil if it is to be read again
}

// waiting is a heap of alarms by their time.
type waiting []waits

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].at < w[j].at }
func (w waiting) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }

// Push implements [heap.Interface].
func (w *waiting) Push(a any) { *w = append(*w, a.(waits)) } //nolint:errcheck,forcetypeassert // see ringDue

// Pop implements [heap.Interface].
func (w *waiting) Pop() any {
	last := (*w)[len(*w)-1]
	*w = (*w)[:len(*w)-1]
	return last
}
