package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dibs-go/dibs/internal/calling"
)

// compensate undoes the steps that began, the last first, by their records. The function is not
// run.
func (l *life) compensate(ctx context.Context) error {
	for _, began := range slices.Backward(l.steps) {
		if began.undone {
			continue
		}
		if !began.undoAt.IsZero() {
			due, err := l.over(ctx, began.undoAt)
			if l.waits = !due; err != nil || l.waits {
				return err
			}
		}
		if err := l.undo(ctx, began); err != nil {
			return err
		}
		if began == l.steps[0] && began.undone {
			break // it is written with the end
		}
		if err := l.write(ctx); err != nil {
			return err
		}
		if !began.undone {
			l.waitUntil(began.undoAt)
			l.waits = true
			return nil
		}
	}
	return l.write(ctx, compensatedEvent{})
}

// undo undoes a step, or notes that it failed.
func (l *life) undo(ctx context.Context, began *step) error {
	defined := l.stepOf(began.Step)
	if defined == nil {
		return suspend(whyMissing, began.Step, fmt.Errorf("%s began, and is not among the saga's steps", began.Step))
	}
	of := defined.definition()
	if of.kind != began.Kind {
		return suspend(whyDiverged, began.Step, fmt.Errorf("undo %s: it began as %s, and is %s now", began.Step, kinds[began.Kind], kinds[of.kind]))
	}
	err := defined.undo(ctx, l, began)
	ofStore, isStore := errors.AsType[*storeError](err)
	_, isStuck := errors.AsType[*suspension](err)
	found := calling.DispositionOf(err)
	asked := found.Asks(calling.Retry)
	switch {
	case err == nil || isStuck:
		return err
	case isStore:
		return ofStore.error
	case ctx.Err() != nil:
		return ctx.Err()
	case found.Asks(calling.Skip):
		return skipped(began.Step, fmt.Errorf("undo %s: %w", began.Step, err))
	case found != nil && !asked, !asked && of.undoing.MaxAttempts > 0 && began.undoFailures+1 >= of.undoing.MaxAttempts:
		return suspend(whyUndo, began.Step, fmt.Errorf("undo %s: %w", began.Step, err))
	}
	attempt := began.undoAttempts + 1
	pause := of.undoing.pause(began.undoFailures + 1)
	if asked {
		pause = askedPause(found)
	}
	now, reached, clockErr := l.soon(ctx)
	if clockErr != nil {
		return clockErr
	}
	l.note(undoFailedEvent{Step: began.Step, Attempt: attempt, Error: textOf(err), RetryAt: now.Add(pause).UnixMicro(), At: reached.UnixMicro(), Asked: asked})
	return nil
}
