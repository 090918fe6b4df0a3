// Account runs the account component and shows it at work.
//
//	account run --store URL     handles commands until it is stopped
//	account demo                four senders, two processes, a kill -9, the books compared
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
)

func main() { os.Exit(demo.Program(demo.Account).Run()) }
