package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// A process of the kill test is this program with these variables.
const (
	kindVariable    = "OUTBOX_TEST_KIND"
	placeVariable   = "OUTBOX_TEST_PLACE"
	journalVariable = "OUTBOX_TEST_JOURNAL"
)

// A line is an arrival in the journal.
type line struct {
	ID       uuid.UUID               `json:"id"`
	Stream   messagestore.StreamName `json:"stream"`
	Position messagestore.Version    `json:"position"`
	Data     string                  `json:"data"`
}

// relayToJournal relays to a file until its standard input ends. A line is written whole, in one call.
func relayToJournal(kind, place, journal string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // the test has ended
	}()
	store, end, err := openPlace(ctx, kind, place)
	if err != nil {
		return err
	}
	defer end()
	file, err := os.OpenFile(journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	sink := sinkFunc(func(_ context.Context, m *outbox.Message) error {
		text, err := json.Marshal(line{m.ID, m.Stream, m.Position, string(m.Data)})
		if err == nil {
			_, err = file.Write(append(text, '\n'))
		}
		return err
	})
	return relayOf(store, sink, &outbox.Config{
		Lease: 5 * time.Second, Concurrency: 8, Prefetch: 8, PollInterval: 10 * time.Millisecond,
	}).Run(ctx)
}

func readJournal(t *testing.T, journal string) (arrivals []arrival, ids int) {
	t.Helper()
	text, err := os.ReadFile(journal)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	known := map[uuid.UUID]bool{}
	whole := bytes.LastIndexByte(text, '\n') + 1 // a line that is being written may be seen in part
	for text := range bytes.Lines(text[:whole]) {
		var l line
		require.NoError(t, json.Unmarshal(text, &l))
		arrivals = append(arrivals, arrival{l.ID, l.Stream, l.Position, l.Data})
		known[l.ID] = true
	}
	return arrivals, len(known)
}

// O2, O3 and O4 with processes: two relays write to a journal, and one or the other is killed with SIGKILL
// again and again while messages are written. Each message arrives, under its id, and first arrivals of a key are in order.
func TestAJournalHasEachMessageInOrderThoughItsProcessesAreKilled(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"SQLite", "PostgreSQL"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const portion = 60
			rounds := 4
			if testkit.Long() {
				rounds = 15
			}
			messages := rounds * portion
			place, journal := newPlace(t, kind), filepath.Join(t.TempDir(), "journal")
			store, end, err := openPlace(t.Context(), kind, place)
			require.NoError(t, err)
			t.Cleanup(end)
			arrived := func(least int) {
				t.Helper()
				testkit.Await(t, "messages are in the journal", func() (bool, any) {
					_, ids := readJournal(t, journal)
					return ids >= least, fmt.Sprintf("%d of %d", ids, least)
				})
			}
			random := rand.New(rand.NewPCG(2, 3))
			twins := []*exec.Cmd{startRelay(t, kind, place, journal), startRelay(t, kind, place, journal)}
			for round := range rounds {
				var writer sync.WaitGroup
				writer.Go(func() {
					for i := range portion {
						write(t, store, fmt.Sprint("k", i%7), round*portion+i, round*portion+i+1)
					}
				})
				t.Cleanup(writer.Wait)
				arrived(round*portion + 1 + random.IntN(portion-10))
				which := random.IntN(len(twins))
				require.NoError(t, twins[which].Process.Kill())
				_ = twins[which].Wait()
				twins[which] = startRelay(t, kind, place, journal)
				writer.Wait()
			}
			arrived(messages)

			arrivals, _ := readJournal(t, journal)
			requireOrder(t, store, arrivals, nil)
			require.LessOrEqual(t, len(arrivals), messages+rounds*8, "a crash sends no more again than was in flight")
		})
	}
}

// startRelay starts a process, which ends with the test.
func startRelay(t *testing.T, kind, place, journal string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), kindVariable+"="+kind, placeVariable+"="+place, journalVariable+"="+journal)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}
