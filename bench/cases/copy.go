package cases

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math"
	"runtime"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/internal/hash64"
	"github.com/dibs-go/dibs/messagestore"
)

// copyGroup is how many rows one COPY takes at most: as many as Dibs commits together.
const copyGroup = 512

// A copyStore is the limit: it puts the rows that Dibs would write into the table that
// Dibs writes to, in the groups that Dibs makes, by COPY. It takes no lock, looks no
// version up and refuses nothing.
type copyStore struct {
	pool  *pgxpool.Pool
	seed  maphash.Seed
	lines []*copyLine
}

// A copyLine is where the callers of some categories wait for the COPY before them.
type copyLine struct {
	mu      sync.Mutex
	busy    bool
	waiting []*copyTicket
}

type copyTicket struct {
	row  row
	done chan error
}

func newCopyStore(ctx context.Context, url string) (store, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	s := &copyStore{pool: pool, seed: maphash.MakeSeed(), lines: make([]*copyLine, min(runtime.GOMAXPROCS(0), 4))}
	for i := range s.lines {
		s.lines[i] = &copyLine{}
	}
	return s, nil
}

func (s *copyStore) write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, m messagestore.Envelope) (bool, error) {
	r, err := encode(stream, expected, m)
	if err != nil {
		return false, err
	}
	l := s.lines[maphash.String(s.seed, string(stream.Category()))%uint64(len(s.lines))]
	l.mu.Lock()
	if !l.busy {
		l.busy = true
		l.mu.Unlock()
		defer s.next(l)
		err := s.copyRows(ctx, []row{r})
		return err == nil, err
	}
	t := &copyTicket{r, make(chan error, 1)}
	l.waiting = append(l.waiting, t)
	l.mu.Unlock()
	err = <-t.done
	return err == nil, err
}

// next takes the callers that came in the meantime.
func (s *copyStore) next(l *copyLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = len(l.waiting) > 0; l.busy {
		go s.flush(l)
	}
}

func (s *copyStore) flush(l *copyLine) {
	for {
		l.mu.Lock()
		n := min(len(l.waiting), copyGroup)
		if n == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		group := l.waiting[:n:n]
		l.waiting = append([]*copyTicket(nil), l.waiting[n:]...)
		l.mu.Unlock()

		rows := make([]row, n)
		for i, t := range group {
			rows[i] = t.row
		}
		err := s.copyRows(context.Background(), rows)
		for _, t := range group {
			t.done <- err
		}
	}
}

func (s *copyStore) copyRows(ctx context.Context, rows []row) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return copyRows(ctx, conn.Conn().PgConn(), server.Dibs, rows)
}

func (s *copyStore) page(context.Context, messagestore.Category, int64) (n, next int64, err error) {
	return 0, 0, errors.ErrUnsupported // COPY is a contender of writes
}

// count counts the rows that are as Dibs would have written them.
func (s *copyStore) count(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, `select count(*) from dibs.messages
		where category = dibs.category(stream_name) and group_hash = dibs.group_hash(stream_name) and correlation_category is null`).Scan(&n)
}

func (s *copyStore) close() { s.pool.Close() }

// copyRows sends rows by one COPY in PostgreSQL's binary format, into the table of Dibs
// or of message-db: as the template says. Columns that Dibs' functions derive from a
// stream's name are derived here.
func copyRows(ctx context.Context, conn *pgconn.PgConn, template string, rows []row) error {
	b := make([]byte, 0, 512*(len(rows)+1))
	b = append(b, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	text := func(parts ...[]byte) {
		size := 0
		for _, part := range parts {
			size += len(part)
		}
		b = binary.BigEndian.AppendUint32(b, uint32(size)) //nolint:gosec // a few hundred bytes
		for _, part := range parts {
			b = append(b, part...)
		}
	}
	bigint := func(v int64) {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(v)) //nolint:gosec // the same bits
	}
	for _, r := range rows {
		if template == server.MessageDB {
			b = binary.BigEndian.AppendUint16(b, 6)
			jsonb := []byte{1} // its version
			text(jsonb, r.data)
			text(jsonb, r.metadata)
		} else {
			b = binary.BigEndian.AppendUint16(b, 8)
			text(r.data)
			if r.metadata == nil {
				b = binary.BigEndian.AppendUint32(b, math.MaxUint32) // null
			} else {
				text(r.metadata)
			}
		}
		text(r.id[:])
		text([]byte(r.stream))
		bigint(r.position)
		text([]byte(messageType))
		if template != server.MessageDB {
			text([]byte(r.stream.Category()))
			bigint(hash64.Of(r.stream.CardinalID()))
		}
	}
	b = binary.BigEndian.AppendUint16(b, 0xffff)
	columns := "data, metadata, id, stream_name, position, type"
	if template != server.MessageDB {
		columns += ", category, group_hash"
	}
	_, err := conn.CopyFrom(ctx, bytes.NewReader(b), "copy "+tableOf(template)+" ("+columns+") from stdin binary")
	return err
}

func tableOf(template string) string {
	if template == server.MessageDB {
		return "message_store.messages"
	}
	return "dibs.messages"
}
