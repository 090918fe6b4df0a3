package operate

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/dibs-go/dibs/saga"
)

// A Saga is the status of a saga of any type.
type Saga = saga.Status[json.RawMessage]

// A SagaFilter chooses sagas that have not ended. A saga has to match each field that is set.
type SagaFilter struct {
	// State is the state of the sagas.
	//
	// Defaults to running, compensating and suspended.
	State saga.State

	Error         string    // a part of the reason, or of the last error of the step
	Like          string    // an error: that of the saga is in the same [Group]
	Definition    string    // the name of the definition
	StartedBefore time.Time // by the store's clock
}

func (f SagaFilter) matches(s Saga) bool {
	return (f.Like == "" || kindOf(errorOf(s)) == kindOf(f.Like)) && (strings.Contains(s.Reason, f.Error) || strings.Contains(s.Error, f.Error)) && (f.Definition == "" || s.Definition == f.Definition) &&
		(f.StartedBefore.IsZero() || s.Started.Before(f.StartedBefore))
}

// Sagas returns the sagas that match, in the order of their starts. A stream that does not hold a
// saga is an error, and the list goes on.
func Sagas(ctx context.Context, o *saga.Operator, f SagaFilter) iter.Seq2[Saga, error] {
	return func(yield func(Saga, error) bool) {
		var states []saga.State
		if f.State != "" {
			states = append(states, f.State)
		}
		for s, err := range o.List(ctx, states...) {
			if (err != nil || f.matches(s)) && !yield(s, err) {
				return
			}
		}
	}
}

// ChangeSagas calls change, a method of the operator's such as (*saga.Operator).Resume, for each
// saga that matches, and returns how many it has changed, also with an error: you may call it again
// for the others. It passes over sagas to which the change does not apply.
func ChangeSagas(
	ctx context.Context, o *saga.Operator, change func(o *saga.Operator, ctx context.Context, id, reason string) (Saga, error), f SagaFilter, opts *ChangeOpts,
) (changed int, err error) {
	if opts, err = opts.checked(); err != nil {
		return 0, err
	}
	var all []Saga // first, so that the list does not meet what was changed
	var wrong error
	for s, err := range Sagas(ctx, o, f) {
		if err != nil {
			wrong = errors.Join(wrong, err)
			continue
		}
		all = append(all, s)
	}
	pace := pacer{opts.Rate, time.Now(), 0}
	for _, s := range all {
		if err := pace.wait(ctx, 1); err != nil {
			return changed, errors.Join(wrong, err)
		}
		_, err := change(o, ctx, s.ID, opts.Reason)
		if _, passed := errors.AsType[*saga.StateError](err); passed {
			continue
		}
		if err != nil {
			return changed, errors.Join(wrong, err)
		}
		if changed++; opts.Progress != nil {
			opts.Progress(changed)
		}
	}
	return changed, wrong
}
