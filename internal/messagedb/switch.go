package messagedb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/migrations"
)

// switchOver makes dibs.messages the store, in one transaction that first locks both tables.
// Message-db's writers wait until it ends.
func (a *adopter) switchOver(ctx context.Context) error {
	tables := []string{"dibs.messages", "message_store.messages"}
	return a.locked(ctx, "access exclusive", tables, func(tx pgx.Tx) error {
		// This looks up few rows in large tables, even if the planner expects more.
		if err := execAll(ctx, tx, "set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off"); err != nil {
			return err
		}
		messages, err := a.copyTail(ctx, tx)
		if err != nil {
			return err
		}
		if err := execAll(ctx, tx, "reset enable_seqscan; reset enable_hashjoin; reset enable_mergejoin", statements["switch"]); err != nil {
			return err
		}
		if err := applyCompatible(ctx, tx); err != nil {
			return err
		}
		if err := becomeOwner(ctx, tx); err != nil {
			return err
		}
		if err := execAll(ctx, tx, statements["open"]); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update dibs_adoption.state set messages = $1", messages)
		return err
	})
}

// copyTail copies the messages written since or committed late, and compares all that were not
// compared before. It returns the number of messages.
func (a *adopter) copyTail(ctx context.Context, tx pgx.Tx) (int64, error) {
	var frontier, upto, bulk, tail int64
	const ends = `select s.frontier, greatest(s.frontier, (select max(upto) from dibs_adoption.ranges)),
		(select coalesce(sum(r.messages), 0)::bigint from dibs_adoption.ranges r where r.upto <= s.frontier),
		(select coalesce(sum(r.messages), 0)::bigint from dibs_adoption.ranges r where r.upto > s.frontier)
		from dibs_adoption.state s`
	if err := tx.QueryRow(ctx, ends).Scan(&frontier, &upto, &bulk, &tail); err != nil {
		return 0, err
	}
	var there int64
	if err := tx.QueryRow(ctx, "select count(*) from message_store.messages where global_position > $1 and global_position <= $2", frontier, upto).Scan(&there); err != nil {
		return 0, err
	}
	if there != tail {
		late, err := tx.Exec(ctx, statements["stragglers"], frontier, upto)
		if err != nil {
			return 0, err
		}
		tail += late.RowsAffected()
	}
	const last = int64(1<<63 - 1)
	rest, err := tx.Exec(ctx, statements["copy"], upto, last)
	if err != nil {
		return 0, err
	}
	tail += rest.RowsAffected()
	if err := differences(ctx, tx, "tail_differences", frontier, last); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, "select count(*) from message_store.messages where global_position > $1", frontier).Scan(&there); err != nil {
		return 0, err
	}
	if there != tail {
		return 0, copiedDiffers(tail, there)
	}
	return bulk + tail, nil
}

// applyCompatible makes the schema message_store, or takes back the schema that an undo put aside.
func applyCompatible(ctx context.Context, tx pgx.Tx) error {
	var aside bool
	if err := tx.QueryRow(ctx, "select to_regnamespace('message_store_by_dibs') is not null").Scan(&aside); err != nil {
		return err
	}
	if aside {
		if err := execAll(ctx, tx, "alter schema message_store_by_dibs rename to message_store"); err != nil {
			return err
		}
	}
	return migrations.Install(ctx, tx)
}

// locked runs f in a transaction with the tables' locks, and tries several times to get them. New
// sessions wait behind each attempt, so attempts are short.
func (a *adopter) locked(ctx context.Context, mode string, tables []string, f func(pgx.Tx) error) error {
	watcher, err := a.session(ctx)
	if err != nil {
		return err
	}
	defer watcher.Close(context.WithoutCancel(ctx))
	a.start(Locking, int64(a.LockTries))
	for tries := 1; ; tries++ {
		w := watch{int32(a.main.PgConn().PID()), watcher, mode, tables}
		blockers, err := a.tryLocked(ctx, w, f)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Code != "55P03" && refused.Code != "40P01" { // lock_not_available, deadlock_detected
			return err
		}
		if tries == a.LockTries {
			return &LockedError{strings.Join(tables, ", "), blockers}
		}
		a.add(1, blockers...)
		if err := pause(ctx, a.LockTimeout); err != nil {
			return err
		}
	}
}

func (a *adopter) tryLocked(ctx context.Context, w watch, f func(pgx.Tx) error) (blockers []Blocker, err error) {
	watching, stop := context.WithCancel(ctx)
	var watched sync.WaitGroup
	watched.Go(func() {
		_ = calling.Call(func() error { blockers = a.watch(watching, w); return nil }) // then there are no names
	})
	// This waits for the watch before blockers are returned.
	end := sync.OnceFunc(func() { stop(); watched.Wait() })
	defer end()

	var began time.Time
	err = inTx(ctx, a.main, func(tx pgx.Tx) error {
		if err := execAll(ctx, tx, fmt.Sprintf("set local lock_timeout = '%dms'", a.LockTimeout.Milliseconds())); err != nil {
			return err
		}
		for _, table := range w.tables {
			if err := execAll(ctx, tx, fmt.Sprintf("lock table %s in %s mode", table, w.mode)); err != nil {
				return err
			}
		}
		began = time.Now()
		stop()
		return f(tx)
	})
	a.held = time.Since(began)
	end()
	if err != nil && len(blockers) == 0 {
		blockers, _ = w.look(ctx) // the wait was shorter than the watch's interval
	}
	return blockers, err
}

// A watch looks for the sessions that hold tables that the main connection wants to lock.
type watch struct {
	main   int32 // process
	conn   *pgx.Conn
	mode   string
	tables []string
}

func (w watch) look(ctx context.Context) ([]Blocker, error) {
	rows, err := w.conn.Query(ctx, statements["blockers"], w.main, w.tables, w.mode)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Blocker])
}

// watch returns, when ctx ends, the sessions that were last seen holding the tables. If it fails,
// the adoption goes on.
func (a *adopter) watch(ctx context.Context, w watch) []Blocker {
	var last []Blocker
	every := time.NewTicker(min(a.LockTimeout/4, 250*time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return last
		case <-every.C:
		}
		// This must not end with ctx, which would close the connection.
		now, err := w.look(context.WithoutCancel(ctx))
		if err != nil {
			return last
		}
		if len(now) > 0 && !slices.Equal(now, last) {
			a.add(0, now...)
		}
		if len(now) > 0 {
			last = now
		}
	}
}
