package postgres_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a test waits for takes no time; how long it waits before it fails.
const (
	patience = 20 * time.Second
	tick     = 5 * time.Millisecond
)
