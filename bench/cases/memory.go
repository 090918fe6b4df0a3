package cases

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync/atomic"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	residentGoal = 64 << 20

	residentCallers = 256
)

// memory returns the cases of how much memory a process takes.
func (r *rows) memory() []measure.Case {
	goals := []measure.Goal{{Metric: measure.Resident, Of: dibs, AtMost: residentGoal}}
	return []measure.Case{{
		Name:       "memory/consumer",
		Shows:      "The memory of a process with a consumer that reads a million messages of 450 bytes (a short run: 200,000)",
		Setup:      r.setup,
		Contenders: []measure.Contender{{Name: dibs, Run: r.consumerMemory}},
		Goals:      goals,
	}, {
		Name:       "memory/writer",
		Shows:      "The memory of a process in which 256 callers write messages of 450 bytes",
		Contenders: []measure.Contender{{Name: dibs, Run: writerMemory}},
		Goals:      goals,
	}}
}

const (
	consumerMemoryChild = "memory/consumer"
	writerMemoryChild   = "memory/writer"
)

// A memoryTask is the task of a process whose memory is measured.
type memoryTask struct {
	URL  string
	Name string // of the consumer
}

func init() {
	for name, do := range map[string]func(context.Context, *measure.Cell, *dibsStore, memoryTask) error{
		consumerMemoryChild: consumeAll,
		writerMemoryChild:   writeLong,
	} {
		measure.RegisterChild(name, func(ctx context.Context, cell *measure.Cell, args json.RawMessage) error {
			var task memoryTask
			if err := json.Unmarshal(args, &task); err != nil {
				return err
			}
			store, err := openDibsStore(ctx, task.URL)
			if err != nil {
				return err
			}
			defer store.close()
			if err := do(ctx, cell, store, task); err != nil {
				return err
			}
			_, peak, err := server.Resident(os.Getpid())
			cell.Set(measure.Resident, float64(peak))
			return err
		})
	}
}

// consumeAll hands all messages to a handler that counts them.
func consumeAll(ctx context.Context, cell *measure.Cell, store *dibsStore, task memoryTask) error {
	var handled atomic.Int64
	c, err := consumer.New(store, rowsCategory, task.Name, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
		handled.Add(1)
		return nil
	}), nil)
	if err != nil {
		return err
	}
	return cell.Once(ctx, func(ctx context.Context) (int64, error) {
		err := c.CatchUp(ctx)
		return handled.Load(), err
	})
}

func (r *rows) consumerMemory(ctx context.Context, cell *measure.Cell) error {
	p, err := cell.Servers.Postgres(ctx)
	if err != nil {
		return err
	}
	if err := cell.MeasurePostgres(ctx, p); err != nil {
		return err
	}
	handled, err := resident(ctx, cell, consumerMemoryChild, memoryTask{r.inDibs, consumerName("m", cell)})
	return errors.Join(err, cell.Check("messages handled", handled, r.count))
}

// resident has a process do something, and sets how much memory it took. It returns how
// many operations it did.
func resident(ctx context.Context, cell *measure.Cell, child string, task memoryTask) (int64, error) {
	tallies, err := cell.Processes(ctx, child, []any{task}, nil)
	if err != nil {
		return 0, err
	}
	cell.Set(measure.Resident, tallies[0].Extra[measure.Resident])
	return tallies[0].All, nil
}

// writeLong has callers write messages of 450 bytes.
func writeLong(ctx context.Context, cell *measure.Cell, store *dibsStore, _ memoryTask) error {
	_, err := cell.Callers(ctx, residentCallers, func(ctx context.Context, _ int) (int, error) {
		key := newKey()
		_, err := store.Write(ctx, key, messagestore.NoStream, longMessage(key, 1))
		return 1, err
	})
	return err
}

func writerMemory(ctx context.Context, cell *measure.Cell) error {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return err
	}
	written, err := resident(ctx, cell, writerMemoryChild, memoryTask{URL: url})
	if err != nil {
		return err
	}
	store, err := openDibsStore(ctx, url)
	if err != nil {
		return err
	}
	defer store.close()
	count, err := store.count(ctx)
	return errors.Join(err, cell.Check("messages in the table", count, written))
}
