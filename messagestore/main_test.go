package messagestore_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/must"
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

// An untouched driver fails the test when it is called: invalid input is refused before
// that.
type untouched struct{ t *testing.T }

func (d untouched) called() { d.t.Error("the driver was called") }

func (d untouched) Append(context.Context, messagestore.Append) (messagestore.Written, error) {
	d.called()
	return messagestore.Written{}, nil
}

func (d untouched) AppendAll(context.Context, []messagestore.Append) ([]messagestore.Written, error) {
	d.called()
	return nil, nil
}

func (d untouched) TryAppend(context.Context, []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	d.called()
	return nil, nil, nil
}

func (d untouched) ReadStream(context.Context, messagestore.StreamQuery) ([]*messagestore.Message, error) {
	d.called()
	return nil, nil
}

func (d untouched) ReadCategory(context.Context, messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	d.called()
	return messagestore.CategoryPage{}, nil
}

func (d untouched) Last(context.Context, messagestore.StreamName, string) (*messagestore.Message, error) {
	d.called()
	return nil, messagestore.ErrNotFound
}

func (d untouched) Version(context.Context, messagestore.StreamName) (messagestore.Version, error) {
	d.called()
	return 0, nil
}

func (d untouched) Find(context.Context, messagestore.StreamName, []uuid.UUID) ([]*messagestore.Message, error) {
	d.called()
	return nil, nil
}

func (d untouched) Now(context.Context) (time.Time, error) {
	d.called()
	return time.Time{}, nil
}

func untouchedStore(t *testing.T) *messagestore.Store {
	t.Helper()
	return must.New(messagestore.New(untouched{t}, nil))
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
