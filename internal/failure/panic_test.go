package failure_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/failure"
)

var errBroken = errors.New("broken")

func breaks() error { panic(errBroken) }

func exits() error {
	runtime.Goexit()
	return nil
}

func TestAFunctionThatDoesNotReturnIsAnErrorWithThePlace(t *testing.T) {
	for name, test := range map[string]struct {
		f           func() error
		text, place string
		is          error
	}{
		"a panic":            {breaks, "panic: broken", "failure_test.breaks(", errBroken},
		"a goroutine's end":  {exits, "the function ended its goroutine", "failure_test.exits(", failure.ErrExited},
		"a nil function":     {nil, "panic: runtime error: invalid memory address or nil pointer dereference", "failure.Go.func1(", nil},
		"a panic at the end": {func() error { defer func() { _ = breaks() }(); return exits() }, "panic: broken", "failure_test.breaks(", errBroken},
		"a panic passed on":  {func() error { panic(failure.Call(breaks)) }, "panic: panic: broken", "failure_test.breaks(", errBroken},
		"a panic passed on, wrapped": {
			func() error { panic(fmt.Errorf("the work: %w", failure.Call(breaks))) },
			"panic: the work: panic: broken", "failure_test.breaks(", errBroken,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := failure.Call(test.f)

			require.EqualError(t, err, test.text)
			require.True(t, strings.HasPrefix(failure.Stack(err), "github.com/dibs-go/dibs/internal/"+test.place), failure.Stack(err))
			require.Equal(t, failure.Stack(err), failure.Stack(fmt.Errorf("wrapped: %w", err)))
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
		})
	}
}

func TestAFunctionThatReturnsHasNoStack(t *testing.T) {
	require.NoError(t, failure.Call(func() error { return nil }))
	err := failure.Call(func() error { return errBroken })
	require.Equal(t, errBroken, err)
	require.Empty(t, failure.Stack(err))
	require.Empty(t, failure.Stack(nil))
}

// wild is an error whose methods panic.
type wild struct{}

func (wild) Error() string { panic("Error") }
func (wild) Unwrap() error { panic("Unwrap") }

func TestAnErrorThatPanicsIsTakenAsItIs(t *testing.T) {
	require.Nil(t, failure.PanicOf(wild{}))
	err := failure.Call(func() error { panic(wild{}) })
	require.Contains(t, err.Error(), "panic: ")
	require.Contains(t, failure.Stack(err), "TestAnErrorThatPanicsIsTakenAsItIs")
}

func TestALongTextAndALongStackAreCut(t *testing.T) {
	var deep func(n int) error
	deep = func(n int) error {
		if n == 0 {
			panic(strings.Repeat("é", 5000))
		}
		return deep(n - 1)
	}

	err := failure.Call(func() error { return deep(90) })

	require.EqualError(t, err, "panic: "+strings.Repeat("é", 1024))
	stack := failure.Stack(err)
	require.LessOrEqual(t, len(stack), failure.MaxStack+len("\n…"))
	require.True(t, strings.HasSuffix(stack, "\n…"))
}
