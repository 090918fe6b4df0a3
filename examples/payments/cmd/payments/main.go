// Payments runs the payments API and shows it at work.
//
//	payments demo               three servers, a bank, four impatient clients, kills, the books compared
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

func main() { os.Exit(stage.Program(demo.Payments).Run()) }
