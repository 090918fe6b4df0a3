package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
)

// A report is a line in which a sender tells its progress.
type report struct {
	Begun   int64 `json:"begun"` // at most so many were sent; of the rest beyond Sent it is not known
	Sent    int64 `json:"sent"`
	Refused int64 `json:"refused"` // by the store: the message id was there already
	Phase   int   `json:"phase"`   // that is done: 1, 2, 3; 0 while the first goes on
}

type sendCommand struct {
	Store       string `env:"DIBS_STORE"`
	Orders      string
	Seed        uint64
	Sender      int // from 0
	Of          int `default:"1"`
	Concurrency int `default:"16"`
	Settle      time.Duration
}

// Run sends one sender's part of the plan: the first phase and, when a line comes in, the
// next. When ctx ends it finishes the writes that it has begun, within the time to settle.
func (c *sendCommand) Run(ctx context.Context, o *stage.Output) error {
	orders, err := ReadOrders(c.Orders)
	if err != nil {
		return err
	}
	store, err := dibs.Open(ctx, c.Store, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()

	s := &commandSender{store: store, name: fmt.Sprintf("sender-%d", c.Sender+1), out: json.NewEncoder(o.Stdout)}
	p, in := newPlan(orders, c.Seed, c.Of), bufio.NewReader(os.Stdin)
	writing, cut := stage.Settling(ctx, c.Settle)
	defer cut()
	defer s.report(0) // its counts are final
	for phase := range p.phases {
		if phase > 0 {
			if err := awaitLine(ctx, in); err != nil {
				return fmt.Errorf("wait for the others: %w", err)
			}
		}
		if err := s.send(ctx, writing, p.of(c.Sender, phase, c.Seed), c.Concurrency); err != nil {
			return err
		}
		s.report(phase + 1)
	}
	return nil
}

// awaitLine returns when a line has come in. If ctx ends first its goroutine stays, until the process ends.
func awaitLine(ctx context.Context, in *bufio.Reader) error {
	came := make(chan error, 1)
	go func() {
		_, err := in.ReadString('\n')
		came <- err
	}()
	select {
	case err := <-came:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A commandSender sends commands, several at once.
type commandSender struct {
	store *messagestore.Store
	name  string

	begun, sent, refused atomic.Int64

	mu  sync.Mutex
	out *json.Encoder
}

func (s *commandSender) report(phase int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// If this fails, the demo has ended, and this process ends soon.
	_ = s.out.Encode(report{Begun: s.begun.Load(), Sent: s.sent.Load(), Refused: s.refused.Load(), Phase: phase})
}

// send sends a list. When ctx ends it sends no other command; the writes that were begun go on until writing ends.
func (s *commandSender) send(ctx, writing context.Context, list []sending, concurrency int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan sending)
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for command := range next {
				if err := s.write(writing, command); err != nil {
					cancel(err)
				}
			}
		})
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, command := range list {
		for waiting := true; waiting; {
			select {
			case next <- command:
				waiting = false
			case <-tick.C:
				s.report(0)
			case <-ctx.Done():
				close(next)
				wg.Wait()
				return context.Cause(ctx)
			}
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// write sends a command and, after a failure, sends the same message again: its id makes
// the repeat harmless, whether or not the first was written.
func (s *commandSender) write(ctx context.Context, command sending) error {
	m := messagestore.Envelope{ID: command.ID, Body: command.Body}
	m.Metadata.CorrelationStream = command.Origin
	if m.ID == uuid.Nil {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		m.ID = id
		m.Metadata.Local = messagestore.Properties{"sender": s.name}
	}
	s.begun.Add(1)
	var written messagestore.Written
	var err error
	for attempt := range 5 {
		written, err = s.store.Write(ctx, command.Stream, messagestore.AnyVersion, m)
		if err == nil || errors.Is(err, messagestore.ErrInvalid) || ctx.Err() != nil {
			break
		}
		wait(ctx, 50*time.Millisecond<<attempt)
	}
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	s.sent.Add(1)
	if written.Duplicate {
		s.refused.Add(1)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
