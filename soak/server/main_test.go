package server

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	RunKeeper() // tests start this program
	goleak.VerifyTestMain(m)
}
