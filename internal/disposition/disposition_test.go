package disposition_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/panics"
)

type reused struct{}

func (reused) Error() string { return "key reused" }
func (reused) Unwrap() error { return disposition.Parked }

type nasty struct{}

func (nasty) Error() string { return "nasty" }
func (nasty) Unwrap() error { panic("no answer") }

func TestDispositionIsFoundInWhateverWrapsIt(t *testing.T) {
	cause := errors.New("no answer from the bank")
	retry := fmt.Errorf("deposit: %w", &disposition.Error{Kind: disposition.Retry, After: time.Minute, Err: cause})

	require.Equal(t, time.Minute, disposition.Of(retry).After)
	require.ErrorIs(t, retry, cause)
	require.EqualError(t, retry, "deposit: no answer from the bank")
	require.True(t, disposition.Of(fmt.Errorf("deposit: %w", reused{})).Asks(disposition.Park))
	require.True(t, disposition.Of(errors.Join(cause, fmt.Errorf("deposit: %w", disposition.Refused))).Asks(disposition.Refuse))
}

func TestErrorWithoutDispositionHasNone(t *testing.T) {
	require.Nil(t, disposition.Of(nil))
	require.Nil(t, disposition.Of(errors.New("timeout")))
	require.False(t, disposition.Of(errors.New("timeout")).Asks(disposition.Park))
}

// A function that panics has failed, whatever it panics with.
func TestAPanicHasNoDisposition(t *testing.T) {
	for name, value := range map[string]error{
		"alone": disposition.Refused, "wrapped": fmt.Errorf("deposit: %w", disposition.Parked), "joined": errors.Join(errors.New("no"), reused{}),
		"again": panics.Recovered(disposition.Parked),
	} {
		panicked := error(panics.Recovered(value))
		for _, err := range []error{panicked, fmt.Errorf("handle: %w", panicked), errors.Join(errors.New("rolled back"), panicked)} {
			require.Nil(t, disposition.Of(err), name)
			require.ErrorIs(t, err, value, "the value is there")
		}
		require.True(t, disposition.Of(&disposition.Error{Kind: disposition.Skip, Err: panicked}).Asks(disposition.Skip), "returned by a function that has recovered")
		require.True(t, disposition.Of(errors.Join(panicked, disposition.Parked)).Asks(disposition.Park))
	}
}

type as struct{ err error }

func (a as) Error() string      { return a.err.Error() }
func (a as) As(target any) bool { return errors.As(a.err, target) }

func TestDispositionIsFoundByTheMethodAs(t *testing.T) {
	require.True(t, disposition.Of(fmt.Errorf("deposit: %w", as{reused{}})).Asks(disposition.Park))
	require.Nil(t, disposition.Of(as{errors.New("timeout")}))
}

func TestErrorThatPanicsHasNoDisposition(t *testing.T) {
	require.Nil(t, disposition.Of(nasty{}))
}
