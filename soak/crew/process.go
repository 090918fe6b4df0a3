package crew

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// RunProcess does the work of a process, if the environment variable has a task, and then exits.
func RunProcess[T any](variable string, work func(task T) error) {
	encoded, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var t T
	err := json.Unmarshal([]byte(encoded), &t)
	if err == nil {
		err = work(t)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // it is main's, here
	}
	os.Exit(0) //nolint:forbidigo // it is main's, here
}

// Listen calls healed when the faults are over, and ended when the process must end.
func Listen(healed, ended func()) {
	if n, _ := os.Stdin.Read(make([]byte, 1)); n > 0 {
		healed()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	ended()
}

// TurnOf draws a turn; all orders of magnitude are equally likely.
func TurnOf(random *rand.Rand, most int) int64 {
	return int64(math.Exp(random.Float64() * math.Log(float64(most))))
}

// Pool returns a pool for a server that may be unreachable.
func Pool(ctx context.Context, url string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	return pgxpool.NewWithConfig(ctx, config)
}

// Dice are the random source of one goroutine.
type Dice struct{ *rand.Rand }

// NewDice returns the dice of the i-th goroutine.
func NewDice(seed, i uint64) Dice { return Dice{rand.New(rand.NewPCG(seed, i))} }

// Sooner returns a time below most.
func (d Dice) Sooner(most time.Duration) time.Duration { return time.Duration(d.Int64N(int64(most))) }

// Between returns a time from least up to most.
func (d Dice) Between(least, most time.Duration) time.Duration { return least + d.Sooner(most-least) }

// Often returns true with the given probability, in percent.
func (d Dice) Often(percent int) bool { return d.IntN(100) < percent }

// Pause waits, and returns false if ctx has ended.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
