package postgres_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits before it fails.
const (
	patience = 20 * time.Second
	tick     = 5 * time.Millisecond
)
