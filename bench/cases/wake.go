package cases

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// The category, the rate and the poll interval of the cases of how soon a consumer learns of a
// message.
const (
	wakeCategory messagestore.Category = "wake"

	// wakeRate is how many messages are written a second, one at a time.
	wakeRate = 200

	// wakePoll is the poll interval of a consumer that is not woken. Dibs' and
	// Eventide's consumers have it by default.
	wakePoll = 100 * time.Millisecond
)

// The names of the ways to learn of a message.
const (
	oneProcess   = "Dibs, one process"
	twoProcesses = "Dibs, two processes"
	pollingOther = "message-db, two processes, polling"
)

// WakeUp returns the cases of how soon a consumer learns of a message, and of the cost
// of waiting for one.
func WakeUp() []measure.Case {
	return []measure.Case{{
		Name:  "wake-up/200-a-second",
		Shows: "From before a write to its handler's call, 200 messages a second",
		Contenders: []measure.Contender{
			{Name: oneProcess, Run: wakeInProcess},
			{Name: twoProcesses, Run: wakeAcross(openDibs, openWakeDibs, wakeTask{})},
			{Name: pollingOther, Run: wakeAcross(openMessageDB, openWakeMessageDB, wakeTask{MessageDB: true})},
		},
		Goals: []measure.Goal{
			{Metric: measure.P99, Of: oneProcess, AtMost: 0.002},
			{Metric: measure.P99, Of: twoProcesses, AtMost: 0.002},
		},
	}}
}

// A sent is a message that says when it was sent, in nanoseconds since 1970. The
// processes have one clock.
type sent struct {
	At int64 `json:"at"`
}

// MessageType returns "Sent".
func (sent) MessageType() string { return "Sent" }

// A listener calls a function with the messages of the category, from its first message
// on, until the context ends.
type listener func(ctx context.Context, hand func(data json.RawMessage) error) error

// listen measures how long messages take. It calls ready when it has seen a first message, which
// does not count, and returns when it has seen as many more as messages says.
func listen(ctx context.Context, cell *measure.Cell, l listener, messages int64, ready func(wait func() error) error) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listening, all := make(chan struct{}), make(chan struct{})
	var seen atomic.Int64
	var group errgroup.Group
	group.Go(func() error {
		defer cancel()
		return l(ctx, func(data json.RawMessage) error {
			now := time.Now()
			var m sent
			if err := json.Unmarshal(data, &m); err != nil {
				return err
			}
			if m.At == 0 {
				close(listening)
				return nil
			}
			cell.Observe(now.Sub(time.Unix(0, m.At)))
			if seen.Add(1) == messages {
				close(all)
			}
			return nil
		})
	})
	await := func(c <-chan struct{}) error {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return errors.New("it stopped listening")
		}
	}
	err := await(listening)
	if err == nil {
		err = ready(func() error { return await(all) })
	}
	cancel()
	return seen.Load(), errors.Join(err, group.Wait())
}

// send writes messages at the rate, each with the time before it is written. How long
// the writes take themselves it sets in the cell.
func send(ctx context.Context, cell *measure.Cell, messages int64, write func(ctx context.Context, m sent) error) error {
	var took measure.Histogram
	ticker := time.NewTicker(time.Second / wakeRate)
	defer ticker.Stop()
	for range messages {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		began := time.Now()
		if err := write(ctx, sent{began.UnixNano()}); err != nil {
			return err
		}
		took.Add(time.Since(began))
	}
	cell.Set(measure.WriteP99, took.Quantile(0.99))
	return nil
}

// wakeMessages is for some seconds: a 99th percentile takes some hundred messages.
func wakeMessages(cell *measure.Cell) int64 { return size[int64](cell, 10, 2*wakeRate, 10*wakeRate) }

// wakeInProcess has the consumer and the writer share a store.
func wakeInProcess(ctx context.Context, cell *measure.Cell) error {
	return inDibs(ctx, cell, func(store *dibsStore) error {
		write := dibsSender(store.Store)
		if err := write(ctx, sent{}); err != nil {
			return err
		}
		messages := wakeMessages(cell)
		seen, err := listen(ctx, cell, dibsListener(store.Store), messages, func(wait func() error) error {
			return cell.Once(ctx, func(ctx context.Context) (int64, error) {
				return messages, errors.Join(send(ctx, cell, messages, write), wait())
			})
		})
		return errors.Join(err, cell.Check("messages handled", seen, messages))
	})
}

func dibsSender(store *messagestore.Store) func(context.Context, sent) error {
	return func(ctx context.Context, m sent) error {
		_, err := store.Write(ctx, newKeyOf(wakeCategory), messagestore.NoStream, m)
		return err
	}
}

func dibsListener(store *messagestore.Store) listener {
	return func(ctx context.Context, hand func(json.RawMessage) error) error {
		c, err := consumer.New(store, wakeCategory, "listener", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			return hand(m.Data)
		}), &consumer.Config{PollInterval: wakePoll})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
}

const wakeChild = "wake"

// A wakeTask is the task of a consumer's process.
type wakeTask struct {
	MessageDB bool
	URL       string
	Messages  int64
}

func init() {
	measure.RegisterChild(wakeChild, func(ctx context.Context, cell *measure.Cell, args json.RawMessage) error {
		var task wakeTask
		if err := json.Unmarshal(args, &task); err != nil {
			return err
		}
		l, closeListener, err := task.listener(ctx)
		if err != nil {
			return err
		}
		defer closeListener()
		_, err = listen(ctx, cell, l, task.Messages, func(wait func() error) error {
			return cell.Once(ctx, func(context.Context) (int64, error) { return task.Messages, wait() })
		})
		return err
	})
}

func (t wakeTask) listener(ctx context.Context) (listener, func(), error) {
	if t.MessageDB {
		s, err := openMessageDBStore(ctx, t.URL)
		if err != nil {
			return nil, nil, err
		}
		return messageDBListener(s), s.close, nil
	}
	store, err := openDibsStore(ctx, t.URL)
	if err != nil {
		return nil, nil, err
	}
	return dibsListener(store.Store), func() {
		_ = store.Close() // it has nothing more to do
		store.close()
	}, nil
}

// messageDBListener works as Eventide's consumer: it reads on for as long as there is
// something, and then looks each 100 ms.
func messageDBListener(s *messageDBStore) listener {
	return func(ctx context.Context, hand func(json.RawMessage) error) error {
		r := &messageDBReader{pool: s.pool}
		ticker := time.NewTicker(wakePoll)
		defer ticker.Stop()
		for from := int64(1); ; {
			messages, err := r.messages(ctx, "select "+messageDBColumns+" from message_store.get_category_messages($1, $2, $3)", string(wakeCategory), from, pageSize)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			for _, m := range messages {
				if err := hand(m.data); err != nil {
					return err
				}
				from = m.globalPosition + 1
			}
			if len(messages) > 0 {
				continue
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// openWake returns how to write to a store.
type openWake func(s store) func(context.Context, sent) error

func openWakeDibs(s store) func(context.Context, sent) error {
	return dibsSender(s.(*dibsStore).Store) //nolint:errcheck,forcetypeassert // it is one
}

func openWakeMessageDB(s store) func(context.Context, sent) error {
	return func(ctx context.Context, m sent) error {
		wrote, err := s.write(ctx, newKeyOf(wakeCategory), messagestore.NoStream, messagestore.Envelope{ID: newID(), Body: m})
		if err == nil && !wrote {
			err = errors.New("a conflict in a stream of one message")
		}
		return err
	}
}

// wakeAcross runs the consumer in a separate process.
func wakeAcross(o opener, sender openWake, task wakeTask) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		return inStore(ctx, cell, o, func(s store, url string) error {
			write := sender(s)
			if err := write(ctx, sent{}); err != nil {
				return err
			}
			task := wakeTask{task.MessageDB, url, wakeMessages(cell)}
			// The consumer may have the last message, and be done, before its writer has the
			// answer, which is fine.
			tallies, err := cell.Processes(ctx, wakeChild, []any{task}, func(context.Context) error {
				return send(ctx, cell, task.Messages, write)
			})
			if err != nil {
				return err
			}
			return cell.Check("messages handled", tallies[0].All, task.Messages)
		})
	}
}
