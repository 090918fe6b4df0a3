package messagedb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// An UndoPlan is the forecast of [Undo].
type UndoPlan struct {
	State      *Adoption
	Since      int64         // messages written since the switch, which are copied back
	Removed    int64         // messages trimmed or deleted since, which are deleted there too
	Abandons   bool          // before the switch: the copy is thrown away
	Held       time.Duration // after the undo: how long writers waited
	Dependents []string      // objects of others that would go on using the schema that is put aside
	Unfit      []string      // messages written since that do not fit in message-db's table, as account-1@3; some of many
}

// Obstacles returns the reasons why [Undo] refuses: messages, and dependents unless
// Config.LeaveDependents is set.
func (p *UndoPlan) Obstacles() []Obstacle {
	all := make([]Obstacle, 0, len(p.Unfit)+len(p.Dependents))
	for _, m := range p.Unfit {
		all = append(all, Obstacle{ObstacleMessages, m + " has data that jsonb cannot hold: U+0000, half a surrogate pair or a number out of range; delete its stream, or trim it up to there"})
	}
	for _, d := range p.Dependents {
		all = append(all, Obstacle{ObstacleDependents, d + " would go on with the schema that is put aside"})
	}
	return all
}

// NewUndoPlan forecasts [Undo]. It changes nothing.
func NewUndoPlan(ctx context.Context, connect Connect, config *Config) (*UndoPlan, error) {
	var plan *UndoPlan
	err := withAdopter(ctx, connect, config, func(a *adopter) (err error) {
		plan, err = a.planUndo(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan to undo the adoption: %w", err)
	}
	return plan, nil
}

func (a *adopter) planUndo(ctx context.Context) (*UndoPlan, error) {
	state, err := readAdoption(ctx, a.main)
	if err != nil {
		return nil, err
	}
	if state == nil || state.State == Undone || state.State == Adopted && !state.HasOld {
		return nil, ErrNothingToUndo
	}
	plan := &UndoPlan{State: state, Abandons: state.State == Adopting}
	if plan.Abandons {
		return plan, nil
	}
	if err := a.main.QueryRow(ctx, statements["since"], state.lastPosition).Scan(&plan.Since); err != nil {
		return nil, err
	}
	if err := a.main.QueryRow(ctx, "select count(*) from dibs_adoption.removed").Scan(&plan.Removed); err != nil {
		return nil, err
	}
	unfit, err := a.main.Query(ctx, statements["unfit"], state.lastPosition)
	if err != nil {
		return nil, err
	}
	if plan.Unfit, err = pgx.CollectRows(unfit, pgx.RowTo[string]); err != nil {
		return nil, err
	}
	rows, err := a.main.Query(ctx, statements["dependents"], "message_store", true)
	if err != nil {
		return nil, err
	}
	plan.Dependents, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return plan, err
}

// Undo makes message-db's table the store again, unless the DBA has dropped it: see
// [ErrNothingToUndo]. It copies back the messages written since the switch, by any client, in the
// transaction that switches, and compares them like [Adopt]; writers wait meanwhile. It also deletes
// messages there that were trimmed or deleted since. Data becomes jsonb again. From then on clients
// of this module are refused, and message-db's are not.
//
// The schema of the compatible functions is kept as message_store_by_dibs, and the messages stay in
// dibs.messages, until you call [Adopt] again.
//
// Before the switch it throws away the copy, as if you had not called [Adopt].
func Undo(ctx context.Context, connect Connect, config *Config) (*UndoPlan, error) {
	var plan *UndoPlan
	err := withAdopter(ctx, connect, config, func(a *adopter) (err error) {
		plan, err = a.undo(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("undo the adoption: %w", err)
	}
	return plan, nil
}

func (a *adopter) undo(ctx context.Context) (*UndoPlan, error) {
	a.start(Checking, 0)
	plan, err := a.planUndo(ctx)
	if err != nil {
		return nil, err
	}
	if plan.Abandons {
		return plan, a.abandon(ctx)
	}
	if len(plan.Unfit) > 0 || len(plan.Dependents) > 0 && !a.LeaveDependents {
		return nil, &CannotAdoptError{plan.Obstacles()}
	}
	if err := a.compareBefore(ctx, plan.State.lastPosition); err != nil {
		return nil, err
	}
	tables := []string{"dibs.messages", "message_store_before_dibs.messages"}
	err = a.locked(ctx, "access exclusive", tables, func(tx pgx.Tx) error {
		return a.switchBack(ctx, tx, plan)
	})
	if err != nil {
		return nil, err
	}
	if plan.State, err = readAdoption(ctx, a.main); err != nil {
		return nil, err
	}
	plan.Held = a.held
	a.start(Done, plan.Since)
	return plan, nil
}

// abandon undoes an adoption before the switch.
func (a *adopter) abandon(ctx context.Context) error {
	tables := []string{"dibs.messages", "message_store.messages"}
	return a.locked(ctx, "access exclusive", tables, func(tx pgx.Tx) error {
		// There are two parts, because the tables may have two owners.
		before, after, _ := strings.Cut(statements["abandon"], "-- The owner's part.\n")
		if err := execAll(ctx, tx, before); err != nil {
			return err
		}
		if err := becomeOwner(ctx, tx); err != nil {
			return err
		}
		return execAll(ctx, tx, after)
	})
}

// compareBefore compares the messages from before the switch. The old table has not changed since;
// removals from the new table are recorded.
func (a *adopter) compareBefore(ctx context.Context, last int64) error {
	const tries = 3
	for try := 1; ; try++ {
		err := a.compareBeforeOnce(ctx, last)
		if try == tries || !errors.Is(err, ErrCopyDiffers) {
			return err
		}
		// Messages may have been removed between one piece and the next.
		if err := pause(ctx, min(a.LockTimeout, time.Second)); err != nil {
			return err
		}
	}
}

func (a *adopter) compareBeforeOnce(ctx context.Context, last int64) error {
	var blocks int64
	if err := a.main.QueryRow(ctx, "select pg_relation_size('dibs.messages') / current_setting('block_size')::bigint").Scan(&blocks); err != nil {
		return err
	}
	const parts = 16
	var pieces []piece
	for i := range int64(parts) {
		pieces = append(pieces, piece{"sum_before", []any{last / parts * i, last / parts * (i + 1)}})
		from, to := fmt.Sprintf("(%d,0)", blocks*i/parts), fmt.Sprintf("(%d,0)", blocks*(i+1)/parts)
		pieces = append(pieces, piece{"sum_new", []any{from, to, last}})
	}
	pieces = append(pieces, piece{"sum_before", []any{last / parts * parts, last}})
	return a.sum(ctx, pieces)
}

func (a *adopter) switchBack(ctx context.Context, tx pgx.Tx, plan *UndoPlan) error {
	last := plan.State.lastPosition
	if err := execAll(ctx, tx, "drop trigger dibs_adoption_refuse on message_store_before_dibs.messages"); err != nil {
		return err
	}
	removed, err := tx.Exec(ctx, "delete from message_store_before_dibs.messages m using dibs_adoption.removed r where m.id = r.id")
	if err != nil {
		return err
	}
	plan.Removed = removed.RowsAffected()
	if err := execAll(ctx, tx, "set local enable_seqscan = off; set local jit = off"); err != nil {
		return err
	}
	returned, err := tx.Exec(ctx, statements["returned"], last)
	if err != nil {
		return err
	}
	plan.Since = returned.RowsAffected()
	if err := differences(ctx, tx, "returned_differences", last); err != nil {
		return err
	}
	before, after, _ := strings.Cut(statements["return"], "-- The owner's part.\n")
	if err := execAll(ctx, tx, before); err != nil {
		return err
	}
	if err := becomeOwner(ctx, tx); err != nil {
		return err
	}
	return execAll(ctx, tx, after)
}
