// Command demo pays standing orders through servers of package serve, by clients in Go, TypeScript
// and a shell. It kills a server and stops another, and compares the books.
package main

import (
	"context"
	"io"
	"os"

	"github.com/dibs-go/dibs/internal/demo"
)

type grammar struct {
	Demo    run     `cmd:"" help:"Pay standing orders through servers that fail, and compare the books."`
	Serve   server  `cmd:"" hidden:""`
	Produce produce `cmd:"" hidden:""`
	Work    work    `cmd:"" hidden:""`
	Exec    other   `cmd:"" hidden:""`
}

func program(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return demo.Main(ctx, &grammar{}, "demo", "Standing orders over gRPC and HTTP: clients in three languages, servers that are killed.", args, stdout, stderr)
}

func main() { os.Exit(demo.Program(program).Run()) }
