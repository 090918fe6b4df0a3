package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// pageSize is how many messages each read of a category asks for.
const pageSize = 1000

// Readers returns the cases that read, in pages and by a consumer. All read the same rows.
func Readers() []measure.Case {
	r := &rows{}
	return slices.Concat(r.read(), r.consume())
}

// read returns the cases of reading.
func (r *rows) read() []measure.Case {
	cases := []measure.Case{{
		Name:  "read/category",
		Shows: "Read a category in batches of 1000, into Go values",
		Setup: r.setup,
		Contenders: []measure.Contender{
			{Name: dibs, Run: r.inPages(openDibsReader)},
			{Name: messageDB, Run: r.inPages(openMessageDBReader)},
		},
		Goals: []measure.Goal{
			{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 2},
		},
	}}
	for _, callers := range []int{1, 8} {
		cases = append(cases, measure.Case{
			Name:  "read/nothing/" + dashed(callers),
			Shows: fmt.Sprintf("Poll a category that has nothing new, %s", plural(callers, "caller")),
			Setup: r.setup,
			Contenders: []measure.Contender{
				{Name: dibs, Run: r.ofNothing(openDibsReader, callers)},
				{Name: messageDB, Run: r.ofNothing(openMessageDBReader, callers)},
			},
			Goals: []measure.Goal{{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 3.5}},
		})
	}
	return cases
}

func dashed(callers int) string { return strings.ReplaceAll(plural(callers, "caller"), " ", "-") }

// A reader reads messages into Go values, which it does not keep.
type reader interface {
	// page reads from a global position on. It returns how many messages it read, and
	// the global position after the last one it has looked at.
	page(ctx context.Context, from int64) (messages int, next int64, err error)
	close()
}

type openReader func(ctx context.Context, r *rows) (reader, error)

// with opens a reader on the rows, measures do with it, and closes it.
func (r *rows) with(ctx context.Context, cell *measure.Cell, open openReader, do func(reader) error) error {
	if err := onServer(ctx, cell); err != nil {
		return err
	}
	from, err := open(ctx, r)
	if err != nil {
		return err
	}
	defer from.close()
	return do(from)
}

// inPages has one caller read the category from beginning to end, again and again, and
// counts the messages that it passes over.
func (r *rows) inPages(open openReader) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		return r.with(ctx, cell, open, func(reader reader) error {
			from, got, want := int64(1), int64(0), int64(0)
			_, err := cell.Callers(ctx, 1, func(ctx context.Context, _ int) (int, error) {
				n, next, err := reader.page(ctx, from)
				if err != nil {
					return 0, err
				}
				passed := next - from
				if passed <= 0 || next > r.count+1 {
					return 0, fmt.Errorf("a page from %d of %d ends at %d", from, r.count, next)
				}
				got += int64(n)
				want += passed
				if from = next; from > r.count {
					from = 1
				}
				return int(passed), nil
			})
			return errors.Join(err, cell.Check("messages read", got, want))
		})
	}
}

// ofNothing makes callers read after the last message.
func (r *rows) ofNothing(open openReader, callers int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		return r.with(ctx, cell, open, func(reader reader) error {
			empty := make([]int64, callers)
			polls, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
				n, _, err := reader.page(ctx, r.count+1)
				if n == 0 {
					empty[caller]++
				}
				return 1, err
			})
			return errors.Join(err, cell.Check("polls that found nothing", sum(empty), polls))
		})
	}
}

func sum(counts []int64) (total int64) {
	for _, n := range counts {
		total += n
	}
	return total
}

// A dibsReader is Dibs through its public API.
type dibsReader struct{ *dibsStore }

func openDibsReader(ctx context.Context, r *rows) (reader, error) {
	s, err := openDibsStore(ctx, r.inDibs)
	return dibsReader{s}, err
}

func (r dibsReader) page(ctx context.Context, from int64) (int, int64, error) {
	page, err := r.ReadCategoryPage(ctx, messagestore.CategoryQuery{
		Category: rowsCategory, From: messagestore.GlobalPosition(from), Limit: pageSize,
	})
	return len(page.Messages), int64(page.Next), err
}

// A messageDBReader calls message-db's functions and scans the rows that they return.
type messageDBReader struct {
	pool *pgxpool.Pool
	last int64 // the global position of the last message there is
}

// A messageDBMessage is a message as message-db's functions return it.
type messageDBMessage struct {
	id, stream, messageType  string
	position, globalPosition int64
	data, metadata           []byte
	time                     time.Time
}

const messageDBColumns = "id, stream_name, type, position, global_position, data, metadata, time"

func openMessageDBReader(ctx context.Context, r *rows) (reader, error) {
	s, err := openMessageDBStore(ctx, r.inMessageDB)
	if err != nil {
		return nil, err
	}
	return &messageDBReader{s.pool, r.count}, nil
}

func (r *messageDBReader) page(ctx context.Context, from int64) (int, int64, error) {
	messages, err := r.messages(ctx, "select "+messageDBColumns+
		" from message_store.get_category_messages($1, $2, $3)", string(rowsCategory), from, pageSize)
	next := r.last + 1 // all that there is has been looked at
	if len(messages) == pageSize {
		next = messages[pageSize-1].globalPosition + 1
	}
	return len(messages), next, err
}

func (r *messageDBReader) messages(ctx context.Context, query string, args ...any) ([]*messageDBMessage, error) {
	rows, err := r.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*messageDBMessage, error) {
		m := &messageDBMessage{}
		return m, row.Scan(&m.id, &m.stream, &m.messageType, &m.position, &m.globalPosition, &m.data, &m.metadata, &m.time)
	})
}

func (r *messageDBReader) close() { r.pool.Close() }
