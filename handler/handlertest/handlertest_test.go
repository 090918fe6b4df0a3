package handlertest_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/messagestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type deposit struct {
	Amount int    `json:"amount"`
	Secret string `json:"-"`
}

func (deposit) MessageType() string { return "Deposit" }

func TestAMessageIsWhatAHandlerWouldGet(t *testing.T) {
	t.Parallel()

	m := handlertest.Message(t, deposit{Amount: 10, Secret: "not encoded"}, nil)

	require.Equal(t, deposit{Amount: 10}, m.Body)
	require.Equal(t, "Deposit test-1@0", m.String())
	require.Equal(t, messagestore.GlobalPosition(1), m.GlobalPosition)
	require.JSONEq(t, `{"amount":10}`, string(m.Data))
	require.NotEqual(t, uuid.Nil, m.ID)
	require.WithinDuration(t, time.Now(), m.Time, time.Minute)
}

func TestAMessageIsRecordedWhereTheConfigSays(t *testing.T) {
	t.Parallel()
	id := uuid.Must(uuid.NewV7())
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

	m := handlertest.Stored(t, deposit{Amount: 10}, &handlertest.Config{
		Stream: "account:command-123", Position: 7, GlobalPosition: 70, ID: id, Time: at,
		Metadata: messagestore.Metadata{CorrelationStream: "transfer-1"},
	})

	require.Equal(t, "Deposit account:command-123@7", m.String())
	require.Equal(t, messagestore.GlobalPosition(70), m.GlobalPosition)
	require.Equal(t, id, m.ID)
	require.Equal(t, at, m.Time)
	require.Equal(t, messagestore.StreamName("transfer-1"), m.Metadata.CorrelationStream)
}

// failing is a testing.TB that remembers that it was failed.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(string, ...any) {
	f.failed = true
	panic(f)
}

func TestWhatAStoreWouldRefuseFailsTheTest(t *testing.T) {
	t.Parallel()
	f := &failing{TB: t}

	require.PanicsWithValue(t, f, func() { handlertest.Message(f, deposit{}, &handlertest.Config{Stream: "account"}) })

	require.True(t, f.failed)
}
