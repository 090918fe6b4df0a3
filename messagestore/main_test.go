package messagestore_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type opened struct {
	Name string `json:"name"`
}

func (opened) MessageType() string { return "Opened" }

func raw(data string) messagestore.Raw {
	return messagestore.Raw{Type: "Opened", Data: json.RawMessage(data)}
}

// An untouched driver has no calls: the test fails by a panic when one is made. Invalid input is
// refused before that.
type untouched struct{ messagestore.Driver }

func untouchedStore(t *testing.T) *messagestore.Store {
	t.Helper()
	return testkit.Must(messagestore.New(untouched{}, nil))
}

// requireInvalid demands the error of refused input, and returns the index of the
// message refused.
func requireInvalid(t *testing.T, err, kind error, field, value, rule string) (index int) {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorIs(t, err, kind)
	var invalid *messagestore.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, field, invalid.Field)
	require.Equal(t, value, invalid.Value)
	require.Equal(t, rule, invalid.Rule)
	require.Less(t, len(err.Error()), 1000, "an error is a line, not a payload")
	return invalid.Index
}
