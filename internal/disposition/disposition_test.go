package disposition_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/disposition"
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

func TestErrorThatPanicsHasNoDisposition(t *testing.T) {
	require.Nil(t, disposition.Of(nasty{}))
}
