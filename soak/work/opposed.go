package work

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

// oppose writes to two categories in the caller's transactions, in pairs that take the categories
// in opposite order and so deadlock.
func (c *client) oppose(ctx context.Context) error {
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		w := c.newCaller(i)
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = w.opposed(i%2 == 0)
				if w.store.failed.Swap(false) {
					w.gate.wait(ctx, time.Now())
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (w *caller) opposed(forward bool) error {
	first, second := w.freshIn(0), w.freshIn(1)
	if !forward {
		first, second = second, first
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	writes := []messagestore.StreamWrite{w.one(first), w.one(second)}
	call, err := w.store.begin(history.WriteTx, writes...)
	if err != nil {
		return err
	}
	return w.endTransaction(ctx, call, writes, false)
}

func (w *caller) one(stream messagestore.StreamName) messagestore.StreamWrite {
	return messagestore.StreamWrite{
		Stream: stream, Expected: messagestore.NoStream,
		Bodies: []messagestore.Body{messagestore.Envelope{ID: newID(), Body: w.content.body()}},
	}
}
