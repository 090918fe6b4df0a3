package conflict_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/conflict"
	"github.com/dibs-go/dibs/messagestore"
)

func TestAForgottenExpectedVersionIsAskedAbout(t *testing.T) {
	t.Parallel()
	forgotten := &messagestore.VersionConflictError{Stream: "account-123", Actual: messagestore.NoStream}

	err := conflict.Explain(forgotten)

	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.EqualError(t, err, "version conflict: expected 0, found no stream (0 is what a forgotten Expected is: is AnyVersion or NoStream meant?)")
}

func TestAnyOtherErrorIsAsItWas(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		nil, errors.New("the store is away"),
		&messagestore.VersionConflictError{Stream: "account-123", Expected: 4, Actual: 5},
		&messagestore.VersionConflictError{Stream: "account-123"}, // another message at 0
	} {
		require.Equal(t, err, conflict.Explain(err))
	}
}
