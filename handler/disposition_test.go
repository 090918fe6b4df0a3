package handler_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
)

func TestADispositionIsFoundThroughAnyWrappingAndHidesNoCause(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("read: %w", &fs.PathError{Op: "open", Path: "rates", Err: fs.ErrNotExist})
	for name, test := range map[string]struct {
		err   error
		kind  calling.Kind
		after time.Duration
	}{
		"Park":       {handler.Park(cause), calling.Park, 0},
		"RetryAfter": {handler.RetryAfter(time.Minute, cause), calling.Retry, time.Minute},
		"Refuse":     {handler.Refuse(cause), calling.Refuse, 0},
	} {
		for _, err := range []error{test.err, fmt.Errorf("deposit: %w", test.err), errors.Join(errors.New("and more"), test.err)} {
			found := calling.DispositionOf(err)
			require.True(t, found.Asks(test.kind), name)
			require.Equal(t, test.after, found.After, name)
			require.ErrorIs(t, err, fs.ErrNotExist, name)
			path, is := errors.AsType[*fs.PathError](err)
			require.True(t, is, name)
			require.Equal(t, "rates", path.Path)
		}
		require.EqualError(t, test.err, cause.Error(), name)
	}
	for text, err := range map[string]error{
		"parked": handler.Park(nil), "retried after 1m0s": handler.RetryAfter(time.Minute, nil), "retried after 0s": handler.RetryAfter(-time.Minute, nil),
		"refused": handler.Refuse(nil), "skipped": handler.Skip(""), "a test account": handler.Skip("a test account"),
	} {
		require.EqualError(t, err, text)
		require.NotNil(t, calling.DispositionOf(err))
	}
}

func TestOfSeveralDispositionsTheOutermostCounts(t *testing.T) {
	t.Parallel()
	require.True(t, calling.DispositionOf(handler.Park(fmt.Errorf("no: %w", handler.Refuse(nil)))).Asks(calling.Park))
	require.True(t, calling.DispositionOf(errors.Join(handler.Skip("first"), handler.Park(nil))).Asks(calling.Skip))
	require.True(t, calling.DispositionOf(handler.Park(&handler.DecodeError{Cause: errors.New("no")})).Asks(calling.Park))
	require.True(t, calling.DispositionOf(&handler.DecodeError{Cause: errors.New("no")}).Asks(calling.Refuse))
}
