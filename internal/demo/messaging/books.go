package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx of database/sql
	"github.com/nats-io/nats.go/jetstream"
)

// The books are read with the clients of the three stores alone: SQL for the accounts and the messages, SQL for the bank's
// ledger, and the client of JetStream.

// A row is a message, by SQL or from JetStream.
type row struct {
	ID       uuid.UUID
	Stream   string
	Position int64
	Type     string
	Data     []byte
	At       time.Time
}

// id returns the part of the stream's name behind the category.
func (r row) id() string {
	_, id, _ := strings.Cut(r.Stream, "-")
	return id
}

// books are the contents of the three stores in the end.
type books struct {
	Balances map[string]int64 // of the table of accounts
	Messages []row            // of the message store, in their order

	Payments map[string]payment // of the bank, by order
	Entries  map[string][]int64 // of the bank, by order
	Unsent   int                // webhooks
	Copies   int                // of webhooks that were sent

	Stream []row // of JetStream, in its order
}

// A payment is a row of the bank.
type payment struct {
	Number    int64
	State     string
	At, Ended time.Time
}

// readBooks reads all.
func readBooks(ctx context.Context, storeURL, ledger, broker string) (*books, error) {
	b := &books{Balances: map[string]int64{}, Payments: map[string]payment{}, Entries: map[string][]int64{}}
	if err := b.readStore(ctx, storeURL); err != nil {
		return nil, fmt.Errorf("read the accounts and the messages: %w", err)
	}
	if err := b.readLedger(ctx, ledger); err != nil {
		return nil, fmt.Errorf("read the bank's ledger: %w", err)
	}
	if err := b.readStream(ctx, broker); err != nil {
		return nil, fmt.Errorf("read JetStream: %w", err)
	}
	return b, nil
}

const (
	messagesOnSQLite   = "select lower(hex(id)), stream_name, position, type, coalesce(data, ''), time from dibs_messages order by global_position"
	messagesOnPostgres = "select id::text, stream_name, position, type, coalesce(data::text, ''), (extract(epoch from time) * 1000000)::bigint from messages order by global_position"
)

func (b *books) readStore(ctx context.Context, storeURL string) (err error) {
	path, onSQLite := strings.CutPrefix(storeURL, "sqlite:")
	driver, source, messages := "sqlite", "file:"+path+"?_pragma=busy_timeout(10000)", messagesOnSQLite
	if !onSQLite {
		u, err := url.Parse(storeURL)
		if err != nil {
			return errors.New("the store's URL cannot be read") // it may have a password
		}
		query := u.Query()
		query.Del("schema") // Dibs knows it; PostgreSQL has the search path
		u.RawQuery = query.Encode()
		driver, source, messages = "pgx", u.String(), messagesOnPostgres
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = each(ctx, db, "select id, balance from accounts", func(scan func(...any) error) error {
		var id string
		var balance int64
		err := scan(&id, &balance)
		b.Balances[id] = balance
		return err
	})
	if err != nil {
		return err
	}
	return each(ctx, db, messages, func(scan func(...any) error) error {
		var r row
		var id, data string
		var at int64
		if err := scan(&id, &r.Stream, &r.Position, &r.Type, &data, &at); err != nil {
			return err
		}
		var err error
		r.ID, err = uuid.Parse(id)
		r.Data, r.At = []byte(data), time.UnixMicro(at)
		b.Messages = append(b.Messages, r)
		return err
	})
}

func (b *books) readLedger(ctx context.Context, path string) (err error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = each(ctx, db, "select order_id, number, state, at, ended from payments", func(scan func(...any) error) error {
		var order string
		var p payment
		var at, ended int64
		err := scan(&order, &p.Number, &p.State, &at, &ended)
		p.At, p.Ended = time.UnixMicro(at), time.UnixMicro(ended)
		b.Payments[order] = p
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, db, "select order_id, amount from entries order by id", func(scan func(...any) error) error {
		var order string
		var amount int64
		err := scan(&order, &amount)
		b.Entries[order] = append(b.Entries[order], amount)
		return err
	})
	if err != nil {
		return err
	}
	return db.QueryRowContext(ctx, "select coalesce(sum(copies), 0), coalesce(sum(sent), 0) from webhooks").Scan(&b.Unsent, &b.Copies)
}

func each(ctx context.Context, db *sql.DB, query string, f func(scan func(...any) error) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (b *books) readStream(ctx context.Context, broker string) error {
	conn, err := connect(broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	for left := s.CachedInfo().State.Msgs; left > 0; {
		batch, err := c.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(5*time.Second)) //nolint:gosec // at most 1000
		if err != nil {
			return err
		}
		got := uint64(0)
		for m := range batch.Messages() {
			r, err := fromStream(m)
			if err != nil {
				return err
			}
			b.Stream = append(b.Stream, r)
			got++
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if got == 0 {
			return fmt.Errorf("%d messages of the stream do not come", left)
		}
		left -= got
	}
	return nil
}

func fromStream(m jetstream.Msg) (row, error) {
	h := m.Headers()
	r := row{Stream: h.Get("dibs-stream"), Type: h.Get("dibs-type"), Data: m.Data()}
	var err error
	if r.ID, err = uuid.Parse(h.Get("dibs-id")); err != nil {
		return r, err
	}
	if r.Position, err = strconv.ParseInt(h.Get("dibs-position"), 10, 64); err != nil {
		return r, err
	}
	metadata, err := m.Metadata()
	if err == nil {
		r.At = metadata.Timestamp
	}
	return r, err
}

// An event is one of an account.
type event struct {
	Transfer string `json:"transfer"`
	Amount   int64  `json:"amount"`
	Balance  int64  `json:"balance"`
}

func (r row) event() (e event, err error) {
	if err = json.Unmarshal(r.Data, &e); err != nil {
		err = fmt.Errorf("%s@%d: %w", r.Stream, r.Position, err)
	}
	return e, err
}
