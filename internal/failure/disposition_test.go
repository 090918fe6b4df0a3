package failure_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/failure"
)

type reused struct{}

func (reused) Error() string { return "key reused" }
func (reused) Unwrap() error { return failure.Parked }

type nasty struct{}

func (nasty) Error() string { return "nasty" }
func (nasty) Unwrap() error { panic("no answer") }

func TestDispositionIsFoundInWhateverWrapsIt(t *testing.T) {
	cause := errors.New("no answer from the bank")
	retry := fmt.Errorf("deposit: %w", &failure.DispositionError{Kind: failure.Retry, After: time.Minute, Err: cause})

	require.Equal(t, time.Minute, failure.DispositionOf(retry).After)
	require.ErrorIs(t, retry, cause)
	require.EqualError(t, retry, "deposit: no answer from the bank")
	require.True(t, failure.DispositionOf(fmt.Errorf("deposit: %w", reused{})).Asks(failure.Park))
	require.True(t, failure.DispositionOf(errors.Join(cause, fmt.Errorf("deposit: %w", failure.Refused))).Asks(failure.Refuse))
}

func TestErrorWithoutDispositionHasNone(t *testing.T) {
	require.Nil(t, failure.DispositionOf(nil))
	require.Nil(t, failure.DispositionOf(errors.New("timeout")))
	require.False(t, failure.DispositionOf(errors.New("timeout")).Asks(failure.Park))
}

// A function that panics has failed, whatever it panics with.
func TestAPanicHasNoDisposition(t *testing.T) {
	for name, value := range map[string]error{
		"alone": failure.Refused, "wrapped": fmt.Errorf("deposit: %w", failure.Parked), "joined": errors.Join(errors.New("no"), reused{}),
		"again": failure.Recovered(failure.Parked),
	} {
		panicked := error(failure.Recovered(value))
		for _, err := range []error{panicked, fmt.Errorf("handle: %w", panicked), errors.Join(errors.New("rolled back"), panicked)} {
			require.Nil(t, failure.DispositionOf(err), name)
			require.ErrorIs(t, err, value, "the value is there")
		}
		require.True(t, failure.DispositionOf(&failure.DispositionError{Kind: failure.Skip, Err: panicked}).Asks(failure.Skip), "returned by a function that has recovered")
		require.True(t, failure.DispositionOf(errors.Join(panicked, failure.Parked)).Asks(failure.Park))
	}
}

type as struct{ err error }

func (a as) Error() string      { return a.err.Error() }
func (a as) As(target any) bool { return errors.As(a.err, target) }

func TestDispositionIsFoundByTheMethodAs(t *testing.T) {
	require.True(t, failure.DispositionOf(fmt.Errorf("deposit: %w", as{reused{}})).Asks(failure.Park))
	require.Nil(t, failure.DispositionOf(as{errors.New("timeout")}))
}

func TestErrorThatPanicsHasNoDisposition(t *testing.T) {
	require.Nil(t, failure.DispositionOf(nasty{}))
}
