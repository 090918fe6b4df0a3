// Standing shows a queue and its schedules at work.
//
//	standing demo     three processes with schedules, four workers, kills, the books compared
package main

import (
	"os"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

func main() { os.Exit(stage.Program(demo.Standing).Run()) }
