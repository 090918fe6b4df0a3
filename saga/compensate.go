package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// compensate undoes the steps that began, the last first, by their records. The function is not run.
func (l *life) compensate(ctx context.Context) error {
	for _, began := range slices.Backward(l.steps) {
		if began.undone {
			continue
		}
		if began.undoing {
			l.waits = true
			return nil
		}
		if err := l.undo(ctx, began); err != nil {
			return err
		}
		if began == l.steps[0] && began.undone {
			break // it is written with the end
		}
		l.waits = began.undoing
		if err := l.write(ctx); err != nil || l.waits {
			return err
		}
	}
	return l.write(ctx, event.Compensated{})
}

// undo undoes a step, or notes that it failed.
func (l *life) undo(ctx context.Context, began *step) error {
	defined := l.defined[began.Step]
	if defined == nil {
		return park(event.WhyMissing, began.Step, fmt.Errorf("%s began, and is not among the saga's steps", began.Step))
	}
	of := defined.definition()
	err := defined.undo(ctx, l, began)
	ofStore, isStore := errors.AsType[*storeError](err)
	_, isStuck := errors.AsType[*parking](err)
	found := disposition.Of(err)
	asked := found.Asks(disposition.Retry)
	switch {
	case err == nil || isStuck:
		return err
	case isStore:
		return ofStore.error
	case ctx.Err() != nil:
		return ctx.Err()
	case found.Asks(disposition.Skip):
		return skipped(began.Step, fmt.Errorf("undo %s: %w", began.Step, err))
	case found != nil && !asked, !asked && of.undoing.Attempts > 0 && began.undoFailures+1 >= of.undoing.Attempts:
		return park(event.WhyUndo, began.Step, fmt.Errorf("undo %s: %w", began.Step, err))
	}
	attempt := began.undoAttempts + 1
	var at time.Time
	if asked {
		at = askedAt(found)
	} else {
		at = of.undoing.retryAt(began.undoFailures + 1)
	}
	alarm, alarmErr := l.alarm(at, event.Rang{For: event.RangUndo, Step: began.Step, Attempt: attempt})
	if alarmErr != nil {
		return alarmErr
	}
	l.note(event.UndoFailed{Step: began.Step, Attempt: attempt, Error: textOf(err), RetryAt: at.UnixMicro(), Asked: asked}, alarm)
	return nil
}
