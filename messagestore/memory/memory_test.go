package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Options{
		Open:   func(*testing.T) messagestore.Driver { return memory.New() },
		Beside: func(_ *testing.T, driver messagestore.Driver) messagestore.Driver { return driver },
	})
}

func TestAClockThatIsNilIsTheProcesss(t *testing.T) {
	now := testkit.Do(memory.NewWithClock(nil).Now(t.Context()))(t)

	require.False(t, now.IsZero())
}
