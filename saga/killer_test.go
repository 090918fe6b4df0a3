package saga_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// A process of the killers' test is this program with this variable.
const killersVariable = "SAGA_TEST_KILLERS"

// killers is a saga one step of which kills its process, in the saga of that input.
func killers(store *messagestore.Store) (*saga.Saga[string, int], error) {
	first := saga.NewStep("first", func(context.Context, string) (int, error) { return 1, nil }, nil, nil)
	second := saga.NewStep("second", func(ctx context.Context, input string) (int, error) {
		wait := 500 * time.Millisecond
		if input == "the killer" {
			wait = 200 * time.Millisecond // while the others are out
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if input == "the killer" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return 2, nil
	}, nil, nil)
	return saga.New(store, "booking", func(r *saga.Run, input string) (int, error) {
		if _, err := first.Do(r, input); err != nil {
			return 0, err
		}
		return second.Do(r, input)
	}, saga.Steps{first, second}, &saga.Config{Concurrency: 16, Lease: time.Second, PollInterval: 20 * time.Millisecond, Logger: silent})
}

// killersChild runs the sagas until one kills it, or its parent is gone.
func killersChild(url string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
		os.Exit(3)
	}()
	store, err := dibs.Open(context.Background(), url, nil)
	if err != nil {
		return err
	}
	s, err := killers(store)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// A step kills each process that calls it, with SIGKILL, and 15 sagas are at their step in the same process. They complete, and none of them
// is blamed: what it dies of is counted for the one alone.
func TestSagasCompleteBesideOneWhoseStepKillsTheirProcess(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	store := testkit.Must(dibs.Open(t.Context(), url, nil))
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := testkit.Must(killers(store))
	const sagas, killer = 16, 5
	for i := range sagas {
		input := "neighbour"
		if i == killer {
			input = "the killer"
		}
		begin(t, s, strconv.Itoa(i), input)
	}
	driver := testkit.Must(store.Driver()).(queuing.Driver) //nolint:errcheck // it keeps queues, as [saga.New] found out
	status := func() (all queuing.Status) {
		queues, err := driver.Queues(t.Context())
		require.NoError(t, err)
		for _, q := range queues {
			if q.Category == s.Category() {
				all = q
			}
		}
		return all
	}

	killed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), killersVariable+"="+url)
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Errorf("start a process: %v", err)
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = in.Close() })
			_ = cmd.Wait()
			stop()
			if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signal() == syscall.SIGKILL {
				killed <- struct{}{}
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	testkit.Await(t, "the others are complete, and it killed four", func() (bool, any) {
		now := status()
		return now.Finished == sagas-1 && len(killed) >= 4, fmt.Sprintf("%+v, %d killed", now, len(killed))
	})
	cancel()
	<-ended

	for i := range sagas {
		all := events(t, store, strconv.Itoa(i))
		if i != killer {
			require.Equal(t, "Completed", all[len(all)-1], "saga %d: %v", i, all)
			require.NotContains(t, strings.Join(all, " "), "Suspended", i)
			continue
		}
		require.NotContains(t, all, "Completed")
	}
	require.Zero(t, status().Dead)
}
