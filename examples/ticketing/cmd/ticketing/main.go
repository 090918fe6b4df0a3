// Ticketing runs the ticketing service in replicas and shows it at work.
//
//	ticketing demo               three replicas under a rolling restart, a kill and a stop
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
)

func main() { os.Exit(demo.Program(demo.Ticketing).Run()) }
