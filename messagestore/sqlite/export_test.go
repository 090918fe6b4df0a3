package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// OpenWith is Open with another database/sql driver, such as a failing one.
func OpenWith(ctx context.Context, driverName, path string, config *Config) (*Driver, error) {
	return open(ctx, driverName, path, config)
}

// SetClock has d take its time from another clock, before its first use.
func (d *Driver) SetClock(c func() time.Time) { d.clock = c }

// Commits returns how often d has committed, and how many calls were in that.
func (d *Driver) Commits() (commits, calls int64) {
	w := d.writes.(*writer) //nolint:errcheck // of a driver that Open returned
	return w.commits.Load(), w.written.Load()
}

// Queued returns how many calls wait for the next commit, not counting the one for
// which the write lock is asked.
func (d *Driver) Queued() int {
	w := d.writes.(*writer) //nolint:errcheck // of a driver that Open returned
	return len(w.queue)
}

// IntegrityCheck asks SQLite whether the file is sound.
func (d *Driver) IntegrityCheck(ctx context.Context) error {
	return d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		var answer string
		if _, err := scanOne(ctx, db, "PRAGMA integrity_check", nil, &answer); err != nil {
			return err
		}
		if answer != "ok" {
			return fmt.Errorf("integrity check: %s", answer)
		}
		return nil
	})
}

// Settings returns how the connection that writes is set.
func (d *Driver) Settings(ctx context.Context) (map[string]string, error) {
	settings := map[string]string{}
	err := d.writes.do(ctx, &job{run: func(ctx context.Context, db queryer) error {
		for _, name := range []string{"journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync", "query_only"} {
			var value string
			if _, err := scanOne(ctx, db, "PRAGMA "+name, nil, &value); err != nil {
				return err
			}
			settings[name] = value
		}
		return nil
	}})
	return settings, err
}

// DataSource is the URI that SQLite gets for a path.
var DataSource = dataSource

// WriteOnReader tries a write that the connections for reading must refuse.
func (d *Driver) WriteOnReader(ctx context.Context) error {
	return d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		_, err := db.ExecContext(ctx, settleSQL)
		return err
	})
}

// Statements are all that work on messages, by the name of their file.
var Statements = map[string]string{
	"append": appendSQL, "past": pastSQL, "by_id": byIDSQL, "version": versionSQL, "stream": streamSQL, "stream_backwards": streamBackwardsSQL,
	"last_of_type": lastOfTypeSQL, "category": categorySQL, "category_horizon": categoryHorizonSQL,
	"category_filtered": categoryFilteredSQL, "lock": lockSQL, "heads": headsSQL,
}

// QueueStatements are those of a take that look for rows of a queue, by the name of their file.
var QueueStatements = map[string]string{
	"queue_row": queueRowSQL, "queue_behind": queueBehindSQL, "queue_due": queueDueSQL, "queue_out_of": queueOutOfSQL, "queue_count_out": queueCountOutSQL,
	"queue_holds": queueHoldsSQL, "queue_loose": queueLooseSQL, "queue_over": queueOverSQL, "queue_first_end": queueFirstEndSQL, "queue_session": queueSessionSQL, "queue_begun": queueBegunSQL,
	"queue_entries": queueEntriesSQL, "queue_tickets": queueTicketsSQL, "queue_message": queueMessageSQL, "queue_at": queueAtSQL,
}

// Call makes a call that writes nothing, in the writer's turn.
func (d *Driver) Call(f func()) error {
	return d.writes.do(context.Background(), &job{run: func(context.Context, queryer) error {
		f()
		return nil
	}})
}

// Write has a function run as a write, and an unknown outcome as the given error.
func (d *Driver) Write(ctx context.Context, f func(), unknown error) error {
	return d.writes.do(ctx, &job{
		run:     func(context.Context, queryer) error { f(); return nil },
		unknown: func(cause error) error { return errors.Join(unknown, cause) },
	})
}
