package calling_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
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
		"a panic":            {breaks, "panic: broken", "calling_test.breaks(", errBroken},
		"a goroutine's end":  {exits, "the function ended its goroutine", "calling_test.exits(", calling.ErrExited},
		"a nil function":     {nil, "panic: runtime error: invalid memory address or nil pointer dereference", "calling.Go.func1(", nil},
		"a panic at the end": {func() error { defer func() { _ = breaks() }(); return exits() }, "panic: broken", "calling_test.breaks(", errBroken},
		"a panic passed on":  {func() error { panic(calling.Call(breaks)) }, "panic: panic: broken", "calling_test.breaks(", errBroken},
		"a panic passed on, wrapped": {
			func() error { panic(fmt.Errorf("the work: %w", calling.Call(breaks))) },
			"panic: the work: panic: broken", "calling_test.breaks(", errBroken,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := calling.Call(test.f)

			require.EqualError(t, err, test.text)
			require.True(t, strings.HasPrefix(calling.Stack(err), "github.com/dibs-go/dibs/internal/"+test.place), calling.Stack(err))
			require.Equal(t, calling.Stack(err), calling.Stack(fmt.Errorf("wrapped: %w", err)))
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
		})
	}
}

func TestAFunctionThatReturnsHasNoStack(t *testing.T) {
	require.NoError(t, calling.Call(func() error { return nil }))
	err := calling.Call(func() error { return errBroken })
	require.Equal(t, errBroken, err)
	require.Empty(t, calling.Stack(err))
	require.Empty(t, calling.Stack(nil))
}

// wild is an error whose methods panic.
type wild struct{}

func (wild) Error() string { panic("Error") }
func (wild) Unwrap() error { panic("Unwrap") }

func TestAnErrorThatPanicsIsTakenAsItIs(t *testing.T) {
	require.Nil(t, calling.PanicOf(wild{}))
	err := calling.Call(func() error { panic(wild{}) })
	require.Contains(t, err.Error(), "panic: ")
	require.Contains(t, calling.Stack(err), "TestAnErrorThatPanicsIsTakenAsItIs")
}

func TestALongTextAndALongStackAreCut(t *testing.T) {
	var deep func(n int) error
	deep = func(n int) error {
		if n == 0 {
			panic(strings.Repeat("é", 5000))
		}
		return deep(n - 1)
	}

	err := calling.Call(func() error { return deep(90) })

	require.EqualError(t, err, "panic: "+strings.Repeat("é", 1024))
	stack := calling.Stack(err)
	require.LessOrEqual(t, len(stack), calling.MaxStack+len("\n…"))
	require.True(t, strings.HasSuffix(stack, "\n…"))
}
