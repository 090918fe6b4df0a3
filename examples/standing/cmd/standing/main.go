// Standing shows a queue and its schedules at work.
//
//	standing demo     three processes with schedules, four workers, kills, the books compared
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
)

func main() { os.Exit(demo.Program(demo.Standing).Run()) }
