package messagedb

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/calling"
)

// hold protects the messages of message-db's table, up to the newest, from changes.
func (a *adopter) hold(ctx context.Context) error {
	return a.locked(ctx, "share row exclusive", []string{"message_store.messages"}, func(tx pgx.Tx) error {
		return execAll(ctx, tx, statements["hold"])
	})
}

// copyBulk copies all messages up to the frontier, by ranges, each range once.
func (a *adopter) copyBulk(ctx context.Context, messages int64) error {
	err := inTx(ctx, a.main, func(tx pgx.Tx) error {
		var frontier int64
		var divided bool
		const known = "select frontier, exists (select from dibs_adoption.ranges) from dibs_adoption.state"
		if err := tx.QueryRow(ctx, known).Scan(&frontier, &divided); err != nil || divided || frontier == 0 {
			return err
		}
		_, err := tx.Exec(ctx, statements["ranges"], int64(0), frontier, a.RangeMessages)
		return err
	})
	if err != nil {
		return err
	}
	return a.copyRanges(ctx, Copying, messages)
}

// follow copies the messages written since, until little is left for the switch.
func (a *adopter) follow(ctx context.Context) error {
	const rounds, little = 8, 2000
	for range rounds {
		const newest = "select coalesce(max(global_position), 0) from message_store.messages"
		added, err := a.followTo(ctx, newest)
		if err != nil || added < little {
			return err
		}
	}
	return nil
}

// followTo copies up to a global position, and returns how far that is.
func (a *adopter) followTo(ctx context.Context, position string) (added int64, err error) {
	err = inTx(ctx, a.main, func(tx pgx.Tx) error {
		var from, to int64
		ends := "select greatest(s.frontier, (select max(upto) from dibs_adoption.ranges)), (" + position + ") from dibs_adoption.state s"
		if err := tx.QueryRow(ctx, ends).Scan(&from, &to); err != nil || to <= from {
			return err
		}
		added = to - from
		_, err := tx.Exec(ctx, statements["ranges"], from, to, a.RangeMessages)
		return err
	})
	if err != nil {
		return 0, err
	}
	return added, a.copyRanges(ctx, Following, 0)
}

// settle moves the frontier until the tail is short, because the switch looks up each message of
// the tail while writers wait. The messages that it passes have been compared already, or compare
// will do it.
func (a *adopter) settle(ctx context.Context, compared bool) error {
	const rounds, short = 8, 5000
	for range rounds {
		if err := a.follow(ctx); err != nil {
			return err
		}
		var tail int64
		const beyond = "select count(*) from message_store.messages where global_position > (select frontier from dibs_adoption.state)"
		if err := a.main.QueryRow(ctx, beyond).Scan(&tail); err != nil || tail <= short {
			return err
		}
		if err := a.hold(ctx); err != nil {
			return err
		}
		if _, err := a.followTo(ctx, "s.held"); err != nil {
			return err
		}
		if err := inTx(ctx, a.main, func(tx pgx.Tx) error { return a.advance(ctx, tx, compared) }); err != nil {
			return err
		}
	}
	return nil
}

// advance moves the frontier to the last message of the copy.
func (a *adopter) advance(ctx context.Context, tx pgx.Tx, compared bool) error {
	var frontier, held, copied, there int64
	const counts = `select s.frontier, s.held,
		(select coalesce(sum(r.messages), 0)::bigint from dibs_adoption.ranges r where r.upto > s.frontier and r.upto <= s.held),
		(select count(*) from message_store.messages m where m.global_position > s.frontier and m.global_position <= s.held)
		from dibs_adoption.state s`
	if err := tx.QueryRow(ctx, counts).Scan(&frontier, &held, &copied, &there); err != nil {
		return err
	}
	if there != copied {
		late, err := tx.Exec(ctx, statements["stragglers"], frontier, held)
		if err != nil {
			return err
		}
		if copied += late.RowsAffected(); there != copied {
			return copiedDiffers(copied, there)
		}
		if _, err := tx.Exec(ctx, "update dibs_adoption.ranges set messages = messages + $2 where upto = $1", held, late.RowsAffected()); err != nil {
			return err
		}
	}
	if compared {
		if err := differences(ctx, tx, "tail_differences", frontier, held); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "update dibs_adoption.state set frontier = held, found = (select sum(r.messages) from dibs_adoption.ranges r where r.upto <= held)")
	return err
}

// copiedDiffers is the error for a tail with a different number of messages.
func copiedDiffers(copied, there int64) error {
	return fmt.Errorf("%w: %d messages were copied since it began, and there are %d", ErrCopyDiffers, copied, there)
}

func (a *adopter) copyRanges(ctx context.Context, phase Phase, messages int64) error {
	var before, left int64
	const progress = "select coalesce(sum(messages), 0)::bigint, count(*) filter (where messages is null) from dibs_adoption.ranges"
	if err := a.main.QueryRow(ctx, progress).Scan(&before, &left); err != nil || left == 0 {
		return err
	}
	a.start(phase, max(messages-before, 0))
	return a.inParallel(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for {
			more, err := a.copyRange(ctx, conn)
			if err != nil || !more {
				return err
			}
		}
	})
}

// copyRange copies a range that no other worker has. If only ranges of others are left, it waits
// for them, in case they fail.
func (a *adopter) copyRange(ctx context.Context, conn *pgx.Conn) (more bool, err error) {
	var copied int64
	err = inTx(ctx, conn, func(tx pgx.Tx) error {
		var after, upto int64
		err := tx.QueryRow(ctx, statements["claim"]).Scan(&after, &upto)
		if errors.Is(err, pgx.ErrNoRows) {
			err = tx.QueryRow(ctx, statements["claim_last"]).Scan(&after, &upto)
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		more = true
		tag, err := tx.Exec(ctx, statements["copy"], after, upto)
		if err != nil {
			return err
		}
		copied = tag.RowsAffected()
		_, err = tx.Exec(ctx, "update dibs_adoption.ranges set messages = $2 where after = $1", after, copied)
		return err
	})
	if err == nil && more {
		a.add(copied)
	}
	return more, err
}

type index struct {
	Name       string
	Definition string
	Contype    *string
}

func (a *adopter) buildIndexes(ctx context.Context) error {
	const missing = `select i.name, i.definition, i.contype::text from dibs_adoption.indexes i
		where to_regclass(format('dibs.%I', i.name)) is null order by i.name`
	rows, err := a.main.Query(ctx, missing)
	if err != nil {
		return err
	}
	indexes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[index])
	if err != nil {
		return err
	}
	if len(indexes) > 0 {
		a.start(Indexing, int64(len(indexes)))
		work := make(chan index, len(indexes))
		for _, i := range indexes {
			work <- i
		}
		close(work)
		err = a.inParallel(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			for i := range work {
				// This has its own transaction, so that a session that has lost its client makes
				// nothing.
				if err := inTx(ctx, conn, func(tx pgx.Tx) error {
					if err := becomeOwner(ctx, tx); err != nil {
						return err
					}
					return execAll(ctx, tx, i.Definition)
				}); err != nil {
					return err
				}
				a.add(1)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return inTx(ctx, a.main, func(tx pgx.Tx) error {
		if err := becomeOwner(ctx, tx); err != nil {
			return err
		}
		return execAll(ctx, tx, statements["constraints"], "analyze dibs.messages")
	})
}

// compare sums up both tables up to the frontier, stream by stream, piece by piece, and finds the
// streams that differ.
func (a *adopter) compare(ctx context.Context) error {
	var frontier, blocks int64
	const extent = "select frontier, pg_relation_size('dibs.messages') / current_setting('block_size')::bigint from dibs_adoption.state"
	if err := a.main.QueryRow(ctx, extent).Scan(&frontier, &blocks); err != nil {
		return err
	}
	rows, err := a.main.Query(ctx, "select after, upto from dibs_adoption.ranges where upto <= $1 order by after", frontier)
	if err != nil {
		return err
	}
	ranges, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ After, Upto int64 }])
	if err != nil {
		return err
	}
	var pieces []piece
	const together = 16
	for i := 0; i < len(ranges); i += together {
		last := min(i+together, len(ranges)) - 1
		pieces = append(pieces, piece{"sum_old", []any{ranges[i].After, ranges[last].Upto}})
	}
	old := max(int64(len(pieces)), 1)
	for i := range old {
		from, to := fmt.Sprintf("(%d,0)", blocks*i/old), fmt.Sprintf("(%d,0)", blocks*(i+1)/old)
		pieces = append(pieces, piece{"sum_new", []any{from, to, frontier}})
	}
	if err := a.sum(ctx, pieces); err != nil {
		return err
	}

	var tail, copied int64
	const tails = `select coalesce(-sum(s.messages) filter (where s.tail), 0)::bigint,
		(select coalesce(sum(r.messages), 0)::bigint from dibs_adoption.ranges r where r.after >= $1) from dibs_adoption.sums s`
	if err := a.main.QueryRow(ctx, tails, frontier).Scan(&tail, &copied); err != nil {
		return err
	}
	if tail != copied {
		return copiedDiffers(copied, tail)
	}
	return nil
}

// A piece is a part of a table to sum up.
type piece struct {
	statement string
	args      []any
}

// sum fills dibs_adoption.sums and finds differences in it.
func (a *adopter) sum(ctx context.Context, pieces []piece) error {
	if _, err := a.main.Exec(ctx, "truncate dibs_adoption.sums"); err != nil {
		return err
	}
	var messages int64
	if err := a.main.QueryRow(ctx, "select coalesce(sum(messages), 0)::bigint from dibs_adoption.ranges").Scan(&messages); err != nil {
		return err
	}
	a.start(Comparing, int64(len(pieces)))
	work := make(chan piece, len(pieces))
	for _, p := range pieces {
		work <- p
	}
	close(work)
	err := a.inParallel(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for p := range work {
			if _, err := conn.Exec(ctx, statements[p.statement], p.args...); err != nil {
				return err
			}
			a.add(1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return differences(ctx, a.main, "differences")
}

// differences asks for the streams that differ.
func differences(ctx context.Context, q querier, statement string, args ...any) error {
	rows, err := q.Query(ctx, statements[statement], args...)
	if err != nil {
		return err
	}
	streams, err := pgx.CollectRows(rows, pgx.RowToStructByPos[StreamDifference])
	if err != nil {
		return err
	}
	if len(streams) > 0 {
		return &CopyDiffersError{streams}
	}
	return nil
}

// inParallel runs f with each worker's connection. The first error ends all.
func (a *adopter) inParallel(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range a.Workers {
		all.Go(func() {
			err := calling.Call(func() error {
				conn, err := a.session(ctx)
				if err != nil {
					return err
				}
				defer conn.Close(context.WithoutCancel(ctx))
				return f(ctx, conn)
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
