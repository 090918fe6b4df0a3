package handlertest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/handler/handlertest"
)

type accounts struct{ balance int }

func (a *accounts) deposit(_ context.Context, m handler.Message[deposit]) error {
	if m.Body.Amount <= 0 {
		return errors.New("an amount is more than 0")
	}
	a.balance += m.Body.Amount
	return nil
}

// How the unit test of a handler looks.
func TestAHandlerIsAFunctionThatATestCalls(t *testing.T) {
	t.Parallel()
	var a accounts

	require.NoError(t, a.deposit(t.Context(), handlertest.Message(t, deposit{Amount: 10}, nil)))
	require.Error(t, a.deposit(t.Context(), handlertest.Message(t, deposit{Amount: 0}, nil)))

	require.Equal(t, 10, a.balance)
}
