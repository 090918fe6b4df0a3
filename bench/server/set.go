package server

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/migrations"
)

// The templates that databases are copied from.
const (
	Dibs      = "dibs_template"       // Dibs' schema, by its migrations
	MessageDB = "message_db_template" // message-db's schema, by its own install.sh
	Empty     = "template1"
)

// A Set starts each server at its first use, and stops all of them. It is safe for concurrent use.
type Set struct {
	dir string

	mu     sync.Mutex
	server *Postgres
	redis  map[string]*Redis
}

// NewSet returns a set of servers with folders below dir; "" means /var/tmp.
func NewSet(dir string) *Set { return &Set{dir: dir, redis: map[string]*Redis{}} }

// Dir returns the parent of the servers' folders, which is on a disk.
func (s *Set) Dir() string { return cmp.Or(s.dir, "/var/tmp") }

// Postgres returns the server.
func (s *Set) Postgres(ctx context.Context) (*Postgres, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return s.server, nil
	}
	started, err := StartPostgres(ctx, s.Dir())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(makeDibs(ctx, started), makeMessageDB(ctx, started)); err != nil {
		return nil, errors.Join(err, started.Stop())
	}
	s.server = started
	return started, nil
}

func makeDibs(ctx context.Context, p *Postgres) error {
	if err := p.Exec(ctx, "create database "+Dibs); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, p.URL(Dibs))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return migrations.Up(ctx, conn, nil)
}

// Redis returns the server with this appendfsync; "" means a server that stores nothing.
func (s *Set) Redis(ctx context.Context, appendFsync string) (*Redis, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.redis[appendFsync]; r != nil {
		return r, nil
	}
	r, err := StartRedis(ctx, s.Dir(), appendFsync)
	if err == nil {
		s.redis[appendFsync] = r
	}
	return r, err
}

// Versions returns the versions of the servers that were started.
func (s *Set) Versions(ctx context.Context) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[string]string{}
	if s.server != nil {
		version, err := s.server.Version(ctx)
		if err != nil {
			return nil, err
		}
		versions["PostgreSQL"], versions["message-db"] = version, MessageDBVersion
	}
	if len(s.redis) > 0 {
		versions["Redis"] = RedisVersion(ctx)
	}
	return versions, nil
}

// Stop stops all servers that were started.
func (s *Set) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.Stop())
	}
	for _, r := range s.redis {
		errs = append(errs, r.Stop())
	}
	s.server, s.redis = nil, map[string]*Redis{}
	return errors.Join(errs...)
}
