package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.RunWith(t, storetest.Options{
		Open:   func(*testing.T) messagestore.Driver { return memory.New() },
		Beside: func(_ *testing.T, driver messagestore.Driver) messagestore.Driver { return driver },
	})
}
