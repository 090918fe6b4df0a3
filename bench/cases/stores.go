package cases

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// messageDBConns is how many connections message-db's clients share. More make it no
// faster: in one category they take turns, and in many the processors are the limit.
const messageDBConns = 32

// A store writes one message at an expected version. It reports whether the message was written; a
// conflict is not an error.
type store interface {
	write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, m messagestore.Envelope) (wrote bool, err error)

	count(ctx context.Context) (int64, error)
	close()
}

// An opener opens a kind of store in a database.
type opener struct {
	name     string // of the contender
	template string
	open     func(ctx context.Context, url string) (store, error)
}

var (
	openDibs      = opener{dibs, server.Dibs, opening(openDibsStore)}
	openMessageDB = opener{messageDB, server.MessageDB, opening(openMessageDBStore)}
)

func opening[T store](open func(context.Context, string) (T, error)) func(context.Context, string) (store, error) {
	return func(ctx context.Context, url string) (store, error) { return open(ctx, url) }
}

// A dibsStore is Dibs through its public API, over a pool with the defaults of pgx.
type dibsStore struct {
	*messagestore.Store
	pool *pgxpool.Pool
}

func openDibsStore(ctx context.Context, url string) (*dibsStore, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	return &dibsStore{testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), pool}, nil
}

func (s *dibsStore) write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, m messagestore.Envelope) (bool, error) {
	_, err := s.Write(ctx, stream, expected, m)
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return false, nil
	}
	return err == nil, err
}

func (s *dibsStore) count(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, "select count(*) from dibs.messages").Scan(&n)
}

func (s *dibsStore) close() { s.pool.Close() }

// A messageDBStore calls message-db's function like its clients: one prepared statement for each
// message.
type messageDBStore struct{ pool *pgxpool.Pool }

func openMessageDBStore(ctx context.Context, url string) (*messageDBStore, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = messageDBConns
	config.ConnConfig.RuntimeParams["search_path"] = "message_store" // as its clients set it
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &messageDBStore{pool}, nil
}

func (s *messageDBStore) write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, m messagestore.Envelope) (bool, error) {
	r, err := encode(stream, expected, m)
	if err != nil {
		return false, err
	}
	var position int64
	err = s.pool.QueryRow(ctx, "select message_store.write_message($1, $2, $3, $4, $5, $6)",
		r.id.String(), string(r.stream), messageType, r.data, r.metadata, int64(expected)).Scan(&position)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(e.Message, "Wrong expected version") {
		return false, nil
	}
	return err == nil, err
}

func (s *messageDBStore) count(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, "select count(*) from message_store.messages").Scan(&n)
}

func (s *messageDBStore) close() { s.pool.Close() }
