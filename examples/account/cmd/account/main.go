// Account runs the account component and shows it at work.
//
//	account run --store URL     handles commands until it is stopped
//	account demo                four senders, two processes, a kill -9, the books compared
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

func main() { os.Exit(stage.Program(demo.Account).Run()) }
