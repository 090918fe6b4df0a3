// Ticketing runs the ticketing service in replicas and shows it at work.
//
//	ticketing demo               three replicas under a rolling restart, a kill and a stop
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

func main() { os.Exit(stage.Program(demo.Ticketing).Run()) }
