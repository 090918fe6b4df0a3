package queue_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// How a test tells its own binary to be a process with 16 workers, of which one item kills it.
const (
	killerStore    = "DIBS_TEST_KILLER_STORE"
	killerCategory = "DIBS_TEST_KILLER_CATEGORY"
)

const killerWorkers = 16

func killerQueue(store *messagestore.Store, category messagestore.Category) *queue.Queue {
	return testkit.Must(queue.New(store, category, &queue.Config{MaxFailures: 4, Logger: logger.Silent()}))
}

// killerChild works until an item kills it, or its parent is gone.
func killerChild(storeURL string, category messagestore.Category) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
		os.Exit(3)
	}()
	ctx := context.Background()
	store, err := dibs.Open(ctx, storeURL, nil)
	if err == nil {
		begun := make(chan struct{}, killerWorkers)
		mux := handler.New()
		handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
			if m.Body.To != "the killer" {
				begun <- struct{}{}
				select { // company, when it dies
				case <-time.After(500 * time.Millisecond):
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			for range 15 { // all that are out with it have begun
				select {
				case <-begun:
				case <-time.After(200 * time.Millisecond):
				}
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		})
		err = killerQueue(store, category).Work(ctx, mux, &queue.WorkConfig{MaxWorkers: killerWorkers, Lease: 3 * time.Second, PollInterval: 20 * time.Millisecond})
	}
	fmt.Fprintln(os.Stderr, err)
	return 2
}

// An item kills each process that works on it, with SIGKILL, and 15 others are out in the same process. It alone is buried: the others
// are finished, though it takes their process along.
func TestOnlyTheItemThatKillsItsProcessIsBuried(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"SQLite": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "store.db") },
		"PostgreSQL": func(t *testing.T) string {
			pgtest.Pool(t) // migrates the database
			return pgtest.URL(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storeURL, category := url(t), storetest.Category(t)
			store := testkit.Must(dibs.Open(t.Context(), storeURL, nil))
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			q := killerQueue(store, category)
			var entries []queue.Entry
			for i := range killerWorkers {
				to := fmt.Sprint("neighbour ", i)
				if i == 5 {
					to = "the killer"
				}
				entries = append(entries, queue.Entry{Body: Send{To: to}})
			}
			inserted, err := q.InsertMany(t.Context(), entries...)
			require.NoError(t, err)

			killed, ended := 0, make(chan struct{})
			stop := keepAlive(t, func() *exec.Cmd {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), killerStore+"="+storeURL, killerCategory+"="+string(category))
				return cmd
			}, func() { killed++ }, ended)
			testkit.Await(t, "no item is open", func() (bool, any) {
				s, err := q.Status(t.Context())
				return err == nil && s.Dead > 0 && s.Dead+s.Finished == killerWorkers, fmt.Sprintf("%+v, %v", s, err)
			})
			stop()
			<-ended

			require.GreaterOrEqual(t, killed, 4)
			for i, at := range inserted {
				item, err := q.Item(t.Context(), at.Position)
				require.NoError(t, err)
				if i == 5 {
					require.Equal(t, queue.Dead, item.State)
					require.Equal(t, 4, item.Failures)
					continue
				}
				require.Equal(t, queue.Finished, item.State, "neighbour %d: %+v", i, item)
			}
		})
	}
}

// keepAlive starts a process again when it has ended by SIGKILL, as a supervisor does, until stop is called.
func keepAlive(t *testing.T, command func() *exec.Cmd, killed func(), ended chan<- struct{}) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			cmd := command()
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Errorf("start a process: %v", err)
				return
			}
			end := context.AfterFunc(ctx, func() { _ = in.Close() })
			_ = cmd.Wait()
			end()
			if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signal() == syscall.SIGKILL {
				killed()
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ctx.Done() })
	return cancel
}
