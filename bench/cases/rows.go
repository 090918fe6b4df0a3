package cases

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/messagestore"
)

// The category and the sizes of the rows that the cases of reading share.
const (
	// rowsCategory is the category of all rows that are there to be read.
	rowsCategory messagestore.Category = "account"

	// rowsPerStream is how many messages each of its streams has, and rowsStreams how
	// many streams grow at a time: their messages alternate.
	rowsPerStream = 10
	rowsStreams   = 1000
)

// rows are messages of 450 bytes, the same in Dibs and in message-db, for all cases that
// only read. Their global positions are 1, 2, 3 and so on. They are made once in a run,
// when a case first asks for them.
type rows struct {
	mu      sync.Mutex
	count   int64
	streams []messagestore.StreamName

	inDibs, inMessageDB string // the databases' URLs
}

// setup makes the rows if they are not there. It is for [measure.Case.Setup].
func (r *rows) setup(ctx context.Context, cell *measure.Cell) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 0 {
		return nil
	}
	p, err := cell.Servers.Postgres(ctx)
	if err != nil {
		return err
	}
	count := size[int64](cell, 10_000, 200_000, 1_000_000)
	dibsURL, inDibs, err := target(ctx, p, server.Dibs)
	if err != nil {
		return err
	}
	defer inDibs.Close(context.WithoutCancel(ctx))
	messageDBURL, inMessageDB, err := target(ctx, p, server.MessageDB)
	if err != nil {
		return err
	}
	defer inMessageDB.Close(context.WithoutCancel(ctx))

	r.streams = make([]messagestore.StreamName, 0, count/rowsPerStream)
	for int64(len(r.streams)) < count/rowsPerStream {
		block, err := r.block()
		if err != nil {
			return err
		}
		if err := copyRows(ctx, inDibs.PgConn(), server.Dibs, block); err != nil {
			return fmt.Errorf("fill Dibs: %w", err)
		}
		if err := copyRows(ctx, inMessageDB.PgConn(), server.MessageDB, block); err != nil {
			return fmt.Errorf("fill message-db: %w", err)
		}
	}
	for conn, table := range map[*pgx.Conn]string{inDibs: "dibs.messages", inMessageDB: "message_store.messages"} {
		if err := settle(ctx, conn, table, count); err != nil {
			return err
		}
	}
	r.count, r.inDibs, r.inMessageDB = count, dibsURL, messageDBURL
	return nil
}

func target(ctx context.Context, p *server.Postgres, template string) (string, *pgx.Conn, error) {
	name, err := p.Create(ctx, template)
	if err != nil {
		return "", nil, err
	}
	conn, err := pgx.Connect(ctx, p.URL(name))
	return p.URL(name), conn, err
}

// block makes the next messages: some streams from their beginning to their end.
func (r *rows) block() ([]row, error) {
	first := len(r.streams)
	for range rowsStreams {
		r.streams = append(r.streams, rowsCategory.Stream(uuid.Must(uuid.NewV7()).String()))
	}
	var block []row
	for position := range rowsPerStream {
		for _, stream := range r.streams[first:] {
			m := longMessage(stream, int64(len(block)))
			encoded, err := encode(stream, messagestore.Version(position-1), m)
			if err != nil {
				return nil, err
			}
			block = append(block, encoded)
		}
	}
	return block, nil
}

// longMessage is a message with 450 bytes of data and metadata.
func longMessage(stream messagestore.StreamName, n int64) messagestore.Envelope {
	m := message(strings.TrimPrefix(string(stream), string(rowsCategory)+"-"), n)
	body, _ := m.Body.(transferred)
	body.Reference = "rent of the flat on the second floor for the month of November, as agreed in the contract of 1 May"
	m.Body = body
	return m
}

// settle vacuums a table, so that autovacuum does not run during a measurement.
func settle(ctx context.Context, conn *pgx.Conn, table string, count int64) error {
	if _, err := conn.Exec(ctx, "vacuum (analyze) "+table); err != nil {
		return err
	}
	var first, last, found int64
	if err := conn.QueryRow(ctx, "select min(global_position), max(global_position), count(*) from "+table).Scan(&first, &last, &found); err != nil {
		return err
	}
	if first != 1 || last != count || found != count {
		return fmt.Errorf("%s has %d messages at %d to %d, and not %d from 1 on", table, found, first, last, count)
	}
	return nil
}
