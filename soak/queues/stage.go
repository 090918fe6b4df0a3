package queues

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
)

// stage inserts up to three items in a transaction that writes a row for each, stays open for a
// moment, and is rolled back now and then.
func (h *hand) stage(ctx context.Context) {
	c := Record{Call: Stage, Tx: true}
	var entries []queue.Entry
	for range 1 + h.random.IntN(3) {
		e := h.stageable()
		w := testkit.Must(h.queue.Write(e.Body, e.Opts))
		entries = append(entries, e)
		c.New = append(c.New, New{
			ID: e.Opts.ID.String(), Stream: string(w.Stream), N: e.Body.(Mail).N, Unique: e.Opts.Unique != "", Back: h.random.Often(8), //nolint:errcheck // of stageable
		})
	}
	c = h.recorder.Begin(c)
	a := h.stageIn(ctx, c, entries)
	a.New = c.New
	h.recorder.End(c, a)
}

// stageable draws an item: a new item, an item that was staged before, perhaps by a transaction
// that is still open, or an item with a unique name that other processes draw too. Some of these
// have other content.
func (h *hand) stageable() queue.Entry {
	e, _ := h.item()
	body := Mail{1 + h.random.IntN(1000)}
	switch what := h.random.IntN(100); {
	case what < 20:
		e.Opts.Key, e.Opts.Unique = "", fmt.Sprintf("u%d.%d", time.Now().Unix()/2, h.random.IntN(4))
		body.N = 1
	case what < 40:
		if last := h.staged.Load(); last != nil {
			e, body = *last, last.Body.(Mail) //nolint:errcheck // of stageable
			break
		}
		fallthrough
	default:
		if e.Opts.Key == "" { // one with a key may have been trimmed when it comes again
			h.staged.Store(&queue.Entry{Body: body, Opts: e.Opts})
		}
		e.Body = body
		return e
	}
	if h.random.Often(25) {
		body.N++
	}
	e.Body = body
	return e
}

// stageIn returns the answer: whether the transaction was committed.
func (h *hand) stageIn(ctx context.Context, c Record, entries []queue.Entry) Record {
	tx, err := h.database.begin(ctx)
	if err != nil {
		return Record{Answer: Failed, Note: err.Error()}
	}
	defer tx.rollback(ctx)
	for i := 0; i < len(entries) && err == nil; i++ {
		err = h.stageOne(ctx, tx, c, i, entries[i])
	}
	reused := (*queue.KeyReusedError)(nil)
	switch {
	case errors.As(err, &reused):
		return Record{Answer: Reused, Note: err.Error()}
	case err != nil:
		return Record{Answer: Undone, Note: err.Error()}
	}
	open := 10 * time.Millisecond
	if h.random.Often(20) {
		open = 300 * time.Millisecond // over a server nothing waits for it
	}
	crew.Pause(ctx, h.random.Sooner(h.open(open)))
	h.Doom.Pass(atStaged)
	if h.random.Often(20) {
		tx.rollback(ctx)
		return Record{Answer: Undone}
	}
	a := Record{Answer: OK, Sent: crew.Now()}
	refused := (*pgconn.PgError)(nil)
	switch err := tx.commit(ctx); {
	case errors.As(err, &refused) && refused.Code == "DB003":
		a.Answer, a.Note = Reused, err.Error()
	case err != nil:
		a.Answer, a.Note = Unknown, err.Error()
	default:
		h.Doom.Pass(atInserted)
	}
	return a
}

// stageOne writes the row of an item and stages it, in any order. A savepoint takes both back now
// and then.
func (h *hand) stageOne(ctx context.Context, tx *transaction, c Record, i int, e queue.Entry) error {
	steps := []func() error{
		func() error {
			return tx.insert(ctx, inserted, h.Process, c.Op, c.New[i].ID)
		},
		func() error {
			_, err := h.queue.InsertTx(ctx, tx.of, e.Body, e.Opts)
			return err
		},
	}
	if h.random.Often(50) {
		steps[0], steps[1] = steps[1], steps[0]
	}
	if c.New[i].Back {
		steps = append([]func() error{func() error { return tx.exec(ctx, "savepoint soak") }}, append(steps, func() error { return tx.exec(ctx, "rollback to savepoint soak") })...)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
