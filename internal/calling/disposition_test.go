package calling_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
)

type reused struct{}

func (reused) Error() string { return "key reused" }
func (reused) Unwrap() error { return calling.Parked }

type nasty struct{}

func (nasty) Error() string { return "nasty" }
func (nasty) Unwrap() error { panic("no answer") }

func TestDispositionIsFoundInWhateverWrapsIt(t *testing.T) {
	cause := errors.New("no answer from the bank")
	retry := fmt.Errorf("deposit: %w", &calling.DispositionError{Kind: calling.Retry, After: time.Minute, Err: cause})

	require.Equal(t, time.Minute, calling.DispositionOf(retry).After)
	require.ErrorIs(t, retry, cause)
	require.EqualError(t, retry, "deposit: no answer from the bank")
	require.True(t, calling.DispositionOf(fmt.Errorf("deposit: %w", reused{})).Asks(calling.Park))
	require.True(t, calling.DispositionOf(errors.Join(cause, fmt.Errorf("deposit: %w", calling.Refused))).Asks(calling.Refuse))
}

func TestErrorWithoutDispositionHasNone(t *testing.T) {
	require.Nil(t, calling.DispositionOf(nil))
	require.Nil(t, calling.DispositionOf(errors.New("timeout")))
	require.False(t, calling.DispositionOf(errors.New("timeout")).Asks(calling.Park))
}

// A function that panics has failed, whatever it panics with.
func TestAPanicHasNoDisposition(t *testing.T) {
	for name, value := range map[string]error{
		"alone": calling.Refused, "wrapped": fmt.Errorf("deposit: %w", calling.Parked), "joined": errors.Join(errors.New("no"), reused{}),
		"again": calling.Recovered(calling.Parked),
	} {
		panicked := error(calling.Recovered(value))
		for _, err := range []error{panicked, fmt.Errorf("handle: %w", panicked), errors.Join(errors.New("rolled back"), panicked)} {
			require.Nil(t, calling.DispositionOf(err), name)
			require.ErrorIs(t, err, value, "the value is there")
		}
		require.True(t, calling.DispositionOf(&calling.DispositionError{Kind: calling.Skip, Err: panicked}).Asks(calling.Skip), "returned by a function that has recovered")
		require.True(t, calling.DispositionOf(errors.Join(panicked, calling.Parked)).Asks(calling.Park))
	}
}

type as struct{ err error }

func (a as) Error() string      { return a.err.Error() }
func (a as) As(target any) bool { return errors.As(a.err, target) }

func TestDispositionIsFoundByTheMethodAs(t *testing.T) {
	require.True(t, calling.DispositionOf(fmt.Errorf("deposit: %w", as{reused{}})).Asks(calling.Park))
	require.Nil(t, calling.DispositionOf(as{errors.New("timeout")}))
}

func TestErrorThatPanicsHasNoDisposition(t *testing.T) {
	require.Nil(t, calling.DispositionOf(nasty{}))
}
