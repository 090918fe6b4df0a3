// Payments runs the payments API and shows it at work.
//
//	payments demo               three servers, a bank, four impatient clients, kills, the books compared
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
)

func main() { os.Exit(demo.Program(demo.Payments).Run()) }
