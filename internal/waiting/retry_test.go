package waiting_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
)

var (
	errAway = errors.New("failed to connect")
	errLost = errors.New("lease lost")
)

// attempts returns a function that fails with each of errs in turn, and then with the last again.
func attempts(errs ...error) (attempt func() error, made *int) {
	made = new(int)
	return func() error {
		*made++
		return errs[min(*made, len(errs))-1]
	}, made
}

func TestAnUnknownOutcomeIsNotForgottenForALaterError(t *testing.T) {
	t.Parallel()
	unknown := &messagestore.OutcomeUnknownError{Cause: context.DeadlineExceeded}
	conflict := &messagestore.VersionConflictError{}
	for name, c := range map[string]struct {
		errs    []error
		unknown bool
		last    error // that is told
		made    int   // attempts, 0 for any number
	}{
		"it stays so":                          {[]error{unknown, errAway}, true, errAway, 0},
		"it is unknown between":                {[]error{errAway, unknown, errAway}, true, errAway, 0},
		"then the handle is closed":            {[]error{unknown, fmt.Errorf("write: %w", messagestore.ErrClosed)}, true, messagestore.ErrClosed, 2},
		"nothing was unknown":                  {[]error{errAway}, false, errAway, 0},
		"it was written":                       {[]error{unknown, errAway, nil}, false, nil, 3},
		"a conflict tells":                     {[]error{unknown, errAway, conflict}, false, messagestore.ErrVersionConflict, 0},
		"an error of the caller's tells":       {[]error{unknown, errAway, errLost}, false, errLost, 3},
		"a conflict tells of earlier attempts": {[]error{unknown, conflict, errAway}, false, errAway, 0},
		"a closed handle stays so":             {[]error{messagestore.ErrClosed}, false, messagestore.ErrClosed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				attempt, made := attempts(c.errs...)

				err := waiting.Loop{Resolving: []error{errLost}}.Do(ctx, attempt)

				require.ErrorIs(t, err, c.last)
				require.Equal(t, c.unknown, errors.Is(err, messagestore.ErrOutcomeUnknown), "%v", err)
				if c.made > 0 {
					require.Equal(t, c.made, *made)
				}
			})
		})
	}
}

func TestAttemptsGoOnUntilTheTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		attempt, made := attempts(errAway)
		began := time.Now()

		err := waiting.Loop{}.Do(ctx, attempt)

		require.ErrorIs(t, err, errAway)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.GreaterOrEqual(t, *made, 10, "must be at most 500 ms lie between two")
		require.LessOrEqual(t, *made, 40)
	})
}

func TestWhatIsKnownOtherwiseCounts(t *testing.T) {
	t.Parallel()
	var o waiting.Outcome
	o.Unknown(errLost)
	attempt, _ := attempts(messagestore.ErrClosed)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := waiting.Loop{}.DoFrom(ctx, &o, attempt)

	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, errLost)
	require.ErrorIs(t, err, messagestore.ErrClosed)
}
