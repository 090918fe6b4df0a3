package cases

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/messagestore"
)

// dibsEmpty is Dibs beside itself on a table that was full before.
const dibsEmpty = "Dibs, empty table"

// Present returns the cases of writing to a table that has rows already.
func Present() []measure.Case {
	// They are kept from round to round and from case to case.
	full := &fullTables{databases: map[string]string{}}
	present := func(millions int) measure.Case {
		empty := writers(fast, 32, 256, openDibs)[0]
		empty.Name = dibsEmpty
		return measure.Case{
			Name:  fmt.Sprintf("write/%d-million-rows/256-callers", millions),
			Shows: fmt.Sprintf("Write to 32 categories, 256 callers, with %d million rows present", millions),
			Setup: func(ctx context.Context, cell *measure.Cell) error {
				return full.grow(ctx, cell, int64(millions)*1_000_000, openDibs, openMessageDB)
			},
			Contenders: []measure.Contender{full.writer(openDibs), full.writer(openMessageDB), empty},
			Goals: []measure.Goal{
				{Metric: measure.Rate, Of: dibs, To: dibsEmpty, AtLeast: 0.85},
				{Metric: measure.Rate, Of: dibs, To: messageDB, AtLeast: 9},
			},
			Series: rowsSeries, X: float64(millions),
		}
	}
	one, five := present(1), present(5)
	five.LongOnly = true
	return []measure.Case{one, five}
}

// fullTables are databases that live as long as their server.
type fullTables struct{ databases map[string]string }

// grow makes each database, or goes on with it, until it has at least so many rows, or
// a fiftieth of that in a smoke test.
func (f *fullTables) grow(ctx context.Context, cell *measure.Cell, rows int64, openers ...opener) error {
	if cell.Smoke {
		rows /= 50
	}
	p, err := cell.Servers.Postgres(ctx)
	if err != nil {
		return err
	}
	for _, o := range openers {
		if f.databases[o.name] == "" {
			name, err := p.Create(ctx, o.template)
			if err != nil {
				return err
			}
			f.databases[o.name] = name
		}
		if err := fill(ctx, p.URL(f.databases[o.name]), o, rows); err != nil {
			return err
		}
	}
	return nil
}

func (f *fullTables) writer(o opener) measure.Contender {
	return measure.Contender{Name: o.name, Run: func(ctx context.Context, cell *measure.Cell) error {
		p, err := cell.Servers.Postgres(ctx)
		if err != nil {
			return err
		}
		if err := cell.MeasurePostgres(ctx, p); err != nil {
			return err
		}
		return write(ctx, cell, o, p.URL(f.databases[o.name]), 32, 256)
	}}
}

// fill adds rows by COPY, without waiting for the disk, until there are so many, and
// leaves the table vacuumed and analyzed.
func fill(ctx context.Context, url string, o opener, upTo int64) error {
	s, err := o.open(ctx, url)
	if err != nil {
		return err
	}
	have, err := s.count(ctx)
	s.close()
	if err != nil || have >= upTo {
		return err
	}
	const loaders, batch = 2, 5000 // 250 whole streams
	batches := int((upTo - have + loaders*batch - 1) / (loaders * batch))
	errs := make(chan error, loaders)
	var all sync.WaitGroup
	for range loaders {
		all.Go(func() { errs <- load(ctx, url, o, batches, batch) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "vacuum (analyze) "+tableOf(o.template))
	return err
}

func load(ctx context.Context, url string, o opener, batches, size int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "set synchronous_commit = off"); err != nil {
		return err
	}
	to := categories(32)
	rows := make([]row, size)
	var w *writer
	for n := range batches * size {
		if n%perStream == 0 {
			w = newWriter(to[n/perStream%len(to)])
		}
		m := w.next()
		if rows[n%size], err = encode(w.stream, w.version, m); err != nil {
			return err
		}
		if (n+1)%size == 0 {
			if err := copyRows(ctx, conn.PgConn(), o.template, rows); err != nil {
				return err
			}
		}
	}
	return nil
}

// taken writes the first message of as many streams, and returns their names.
func taken(ctx context.Context, url string, o opener, category messagestore.Category, n int) ([]messagestore.StreamName, error) {
	names, rows := make([]messagestore.StreamName, n), make([]row, n)
	for i := range names {
		id := uuid.Must(uuid.NewV7()).String()
		names[i] = category.Stream(id)
		var err error
		if rows[i], err = encode(names[i], messagestore.NoStream, message(id, int64(i))); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := copyRows(ctx, conn.PgConn(), o.template, rows); err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "analyze "+tableOf(o.template))
	return names, err
}
