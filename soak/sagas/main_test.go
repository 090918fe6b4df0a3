package sagas

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/soak/server"
)

func TestMain(m *testing.M) {
	server.RunKeeper() // a server has this program for its keeper
	RunProcess()
	goleak.VerifyTestMain(m)
}
