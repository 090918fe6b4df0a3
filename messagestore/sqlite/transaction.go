package sqlite

import (
	"context"
	"fmt"
	"sync/atomic"
)

// transaction keeps the statements that it prepared in the caller's transaction; database/sql
// closes them when it ends.
type transaction struct {
	*prepared
	failed *atomic.Pointer[error] // why it may be over
}

func (t transaction) read(ctx context.Context, f func(context.Context, queryer) error) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	return ended(f(ctx, t.prepared))
}

func (t transaction) alive(ctx context.Context) error {
	return t.read(ctx, func(ctx context.Context, db queryer) error {
		var one int
		_, err := scanOne(ctx, db, "SELECT 1", nil, &one)
		return err
	})
}

func (t transaction) do(ctx context.Context, j *job) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if before := t.failed.Load(); before != nil {
		return fmt.Errorf("a write before it failed, and the transaction may be over: %w", *before)
	}
	ctx = context.WithoutCancel(ctx)
	_, err := t.ExecContext(ctx, lockSQL)
	if isBusy(err) {
		return &busyError{cause: err}
	}
	if err == nil {
		err = j.run(ctx, t.prepared)
	}
	if mayEndTransaction(err) {
		t.failed.CompareAndSwap(nil, &err)
	}
	return ended(err)
}
