package queues

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
)

// The words in a history for how long an item has its unique name.
const (
	forgotten = "forgotten"
	finished  = "finished"
	delivered = "delivered"
)

var untils = map[string]queue.UniqueUntil{forgotten: queue.UntilForgotten, finished: queue.UntilFinished, delivered: queue.UntilDelivered}

// insertUnique inserts items of a name, one after the other. For a moment all processes have the
// same name of a few.
func (h *hand) insertUnique(ctx context.Context) {
	const moment = 100 // milliseconds
	n := time.Now().UnixMilli() / moment
	until := []string{forgotten, finished, finished, delivered, delivered}[n%5]
	name := fmt.Sprintf("%s%d", until, n%4)
	if until == forgotten {
		name = fmt.Sprintf("%s.%d", until, n)
	}
	for range 1 + h.random.IntN(4) {
		h.insertNamed(ctx, name, until)
		crew.Pause(ctx, h.random.Sooner(5*time.Millisecond))
	}
}

// insertNamed inserts an item of a unique name. A few have another content.
func (h *hand) insertNamed(ctx context.Context, name, until string) {
	body := Mail{1}
	if h.random.Often(5) {
		body.N++
	}
	e, is := h.item()
	e.Opts.Key, e.Opts.Unique, e.Opts.UniqueUntil = "", name, untils[until]
	is.Stream, is.N, is.Until = string(messagestore.Category(Category).Stream(name).With("unique")), body.N, until
	c := h.recorder.Begin(Record{Call: Unique, New: []New{is}})
	got, err := h.queue.Insert(ctx, body, e.Opts)
	a := answerOf(err)
	a.New = c.New
	if got.Duplicate {
		a.Had = int64(got.Position)
	}
	if reused, ok := errors.AsType[*queue.KeyReusedError](err); ok {
		a.Answer, a.Had = Reused, int64(reused.Met.GlobalPosition)
	}
	h.recorder.End(c, a)
}
