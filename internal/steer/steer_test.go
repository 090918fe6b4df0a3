package steer_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/steer"
)

type reused struct{}

func (reused) Error() string { return "key reused" }
func (reused) Unwrap() error { return steer.Parked }

type nasty struct{}

func (nasty) Error() string { return "nasty" }
func (nasty) Unwrap() error { panic("no answer") }

func TestVerdictIsFoundInWhateverWrapsIt(t *testing.T) {
	cause := errors.New("no answer from the bank")
	retry := fmt.Errorf("deposit: %w", &steer.Error{Verdict: steer.Retry, After: time.Minute, Err: cause})

	require.Equal(t, time.Minute, steer.Of(retry).After)
	require.ErrorIs(t, retry, cause)
	require.EqualError(t, retry, "deposit: no answer from the bank")
	require.Equal(t, steer.Park, steer.Of(fmt.Errorf("deposit: %w", reused{})).Verdict)
}

func TestErrorWithoutVerdictHasNone(t *testing.T) {
	require.Nil(t, steer.Of(nil))
	require.Nil(t, steer.Of(errors.New("timeout")))
}

func TestErrorThatPanicsHasNoVerdict(t *testing.T) {
	require.Nil(t, steer.Of(nasty{}))
}
