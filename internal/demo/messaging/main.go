// Messaging shows inboxes, relays and sagas under fire: it runs the service of examples/transfer, a
// bank of another company, and JetStream, kills their processes, and compares the books.
//
//	messaging demo        on SQLite, or on the PostgreSQL of DIBS_STORE
package main

import (
	"context"
	"io"
	"os"

	"github.com/dibs-go/dibs/internal/demo"
)

type grammar struct {
	Demo   messagingDemo `cmd:"" help:"Transfer money under fire and compare the books."`
	Serve  serveCommand  `cmd:"" hidden:""`
	Go     goCommand     `cmd:"" hidden:""`
	Relay  relayCommand  `cmd:"" hidden:""`
	Bank   bankCommand   `cmd:"" hidden:""`
	Broker brokerCommand `cmd:"" hidden:""`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return demo.Main(ctx, &grammar{}, "messaging",
		"Transfers to a bank, each made once or undone, whichever process is killed. A store is postgres://... or sqlite:FILE.",
		args, stdout, stderr)
}

func main() { os.Exit(demo.Program(run).Run()) }
