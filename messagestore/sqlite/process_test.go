package sqlite_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// The variables that a child process reads from its environment. It opens the file, prints
// its acknowledged writes on its standard output, a line each, and works until it is killed
// or its standard input ends.
const (
	roleVariable     = "DIBS_TEST_ROLE"
	pathVariable     = "DIBS_TEST_PATH"
	categoryVariable = "DIBS_TEST_CATEGORY"
	callersVariable  = "DIBS_TEST_CALLERS"
)

var roles = map[string]func(ctx context.Context, driver *sqlite.Driver, category messagestore.Category, callers int, say func(string)) error{
	"mix":  mix,
	"load": load,
}

func runRole(role string) int {
	callers, err := strconv.Atoi(os.Getenv(callersVariable))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	driver, err := sqlite.Open(ctx, os.Getenv(pathVariable), patient)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	say := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(line)
	}
	if err = roles[role](ctx, driver, messagestore.Category(os.Getenv(categoryVariable)), callers, say); err == nil || errors.Is(err, context.Canceled) {
		err = driver.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// each runs f in so many goroutines and returns the first error.
func each(callers int, f func(caller int) error) error {
	failures := make(chan error, callers)
	for caller := range callers {
		go func() { failures <- f(caller) }()
	}
	var first error
	for range callers {
		if err := <-failures; first == nil {
			first = err
		}
	}
	return first
}

// load appends single messages to streams of their own as fast as it can, and says
// "ack" for each.
func load(ctx context.Context, driver *sqlite.Driver, category messagestore.Category, callers int, say func(string)) error {
	return each(callers, func(int) error {
		for {
			if _, err := driver.Append(ctx, appendOf(category.Stream(uuid.NewString()), messagestore.NoStream, 1)); err != nil {
				return err
			}
			say("ack")
		}
	})
}

// mix appends batches to streams that all processes share, and races them for
// initial writes. It says "ack" and the ids, or "won", the stream and the id.
func mix(ctx context.Context, driver *sqlite.Driver, category messagestore.Category, callers int, say func(string)) error {
	var race atomic.Int64
	return each(callers, func(int) error {
		for {
			a := appendOf(category.Stream("hot").With(strconv.Itoa(rand.IntN(3))), messagestore.AnyVersion, 1+rand.IntN(4))
			for i := range a.Records {
				a.Records[i].Data = fmt.Appendf(nil, `{"batch": %q, "of": %d}`, a.Records[0].ID, len(a.Records))
			}
			if _, err := driver.Append(ctx, a); err != nil {
				return err
			}
			line := "ack"
			for _, r := range a.Records {
				line += " " + r.ID.String()
			}
			say(line)

			a = appendOf(category.Stream("race").With(strconv.FormatInt(race.Add(1), 10)), messagestore.NoStream, 1)
			switch _, err := driver.Append(ctx, a); {
			case err == nil:
				say("won " + string(a.Stream) + " " + a.Records[0].ID.String())
			case !errors.Is(err, messagestore.ErrVersionConflict):
				return err
			}
		}
	})
}

// batch is the data of a message that mix writes among others.
type batch struct {
	Batch uuid.UUID `json:"batch"`
	Of    int       `json:"of"`
}

// A process is a child.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr strings.Builder
	read   chan struct{} // closed at the end of its output
}

// start runs the test binary in another role. Each line that it says goes to heard,
// in order.
func start(t testing.TB, role, path string, category messagestore.Category, callers int, heard func(line string)) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), read: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, pathVariable+"="+path,
		categoryVariable+"="+string(category), callersVariable+"="+strconv.Itoa(callers))
	p.cmd.Stderr = &p.stderr
	p.stdin = testkit.Do(p.cmd.StdinPipe())(t)
	stdout := testkit.Do(p.cmd.StdoutPipe())(t)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.read)
		lines := bufio.NewReader(stdout)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return // also for a line that was cut short: that was no acknowledgement
			}
			heard(strings.TrimSuffix(line, "\n"))
		}
	}()
	return p
}

// heardAll waits for done, and fails if one of the children ends before.
func heardAll(t testing.TB, done <-chan struct{}, children ...*process) {
	t.Helper()
	over := make(chan *process, len(children)+1)
	for _, child := range children {
		go func() {
			select {
			case <-done:
				over <- nil
			case <-child.read:
				over <- child
			}
		}()
	}
	if child := testkit.Receive(t, "the children have said enough", over); child != nil {
		require.Fail(t, "a child ended by itself", "%v: %s", child.cmd.Wait(), child.stderr.String())
	}
}

// kill ends the process in the middle of its work.
func (p *process) kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	testkit.Receive(t, "a killed child's output ends", p.read)
	_ = p.cmd.Wait() // that it was killed is known
}

// stop lets the process end by itself.
func (p *process) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, p.stdin.Close())
	testkit.Receive(t, "a child ends", p.read)
	require.NoError(t, p.cmd.Wait(), p.stderr.String())
}

func TestKilledWritersLoseNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	const processes, callers, kills, acksBetween = 3, 8, 8, 30
	path, category := newFile(t), storetest.Category(t)
	var mu sync.Mutex
	acked := map[uuid.UUID]bool{}
	won := map[messagestore.StreamName][]uuid.UUID{}
	run := func() (*process, <-chan struct{}) {
		enough, heard := make(chan struct{}), 0
		return start(t, "mix", path, category, callers, func(line string) {
			mu.Lock()
			defer mu.Unlock()
			if heard++; heard == acksBetween {
				close(enough)
			}
			words := strings.Fields(line)
			if words[0] == "won" {
				stream := messagestore.StreamName(words[1])
				won[stream] = append(won[stream], uuid.MustParse(words[2]))
				words = words[1:]
			}
			for _, id := range words[1:] {
				acked[uuid.MustParse(id)] = true
			}
		}), enough
	}
	var children [processes]*process
	var enough [processes]<-chan struct{}
	for i := range children {
		children[i], enough[i] = run()
	}

	for kill := range kills {
		i := kill % processes
		heardAll(t, enough[i], children[i])
		children[i].kill(t)
		children[i], enough[i] = run()
	}
	for i := range children {
		heardAll(t, enough[i], children[i])
		children[i].stop(t)
	}

	driver := open(t, path, nil)
	recorded := map[uuid.UUID]*messagestore.Message{}
	batches := map[uuid.UUID][]*messagestore.Message{}
	next := map[messagestore.StreamName]messagestore.Version{}
	global := messagestore.GlobalPosition(0)
	for m, err := range testkit.Must(messagestore.New(driver, nil)).ReadCategory(t.Context(), category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, next[m.Stream], m.Position, m)
		require.Greater(t, m.GlobalPosition, global)
		next[m.Stream], global = m.Position+1, m.GlobalPosition
		recorded[m.ID] = m
		var in batch
		require.NoError(t, json.Unmarshal(m.Data, &in))
		batches[in.Batch] = append(batches[in.Batch], m)
	}
	delete(batches, uuid.Nil) // messages written one by one
	for _, messages := range batches {
		var in batch
		require.NoError(t, json.Unmarshal(messages[0].Data, &in))
		require.Len(t, messages, in.Of, "a batch is whole")
		for i, m := range messages {
			require.Equal(t, messages[0].Position+messagestore.Version(i), m.Position, "and together")
		}
	}
	require.Greater(t, len(acked), kills*acksBetween)
	for id := range acked {
		require.NotNil(t, recorded[id], "acknowledged and lost: %s", id)
	}
	require.NotEmpty(t, won)
	for stream, winners := range won {
		require.Len(t, winners, 1, stream)
		require.EqualValues(t, 1, next[stream], stream)
		require.Equal(t, stream, recorded[winners[0]].Stream)
	}
	require.NoError(t, driver.IntegrityCheck(t.Context()))
}

func TestEveryProcessGetsItsTurns(t *testing.T) {
	t.Parallel()
	const processes, callers, appends = 3, 24, 200
	path, category := newFile(t), storetest.Category(t)
	var mu sync.Mutex
	var counts [processes]int // since all have begun: a process may take its time to start
	begun, behind := 0, processes
	done := make(chan struct{})
	var children [processes]*process
	for i := range children {
		first := true
		children[i] = start(t, "load", path, category, callers, func(string) {
			mu.Lock()
			defer mu.Unlock()
			if first {
				first = false
				begun++
			}
			if begun < processes {
				return
			}
			if counts[i]++; counts[i] == appends {
				if behind--; behind == 0 {
					close(done)
				}
			}
		})
	}
	heardAll(t, done, children[:]...)
	mu.Lock()
	atEnd := counts
	mu.Unlock()
	for i := range children {
		children[i].stop(t)
	}
	// How unequal they are depends on the machine, too: TestOneWhoHadTheLockTwiceLeavesItToOthers
	// has the rule.
	t.Logf("appends when the last process had %d: %v", appends, atEnd)
}

// BenchmarkAppendFromProcesses appends from four processes with 32 callers each, and
// reports how unequal their shares were.
func BenchmarkAppendFromProcesses(b *testing.B) {
	const processes, callers = 4, 32
	path, category := newFile(b), storetest.Category(b)
	var mu sync.Mutex
	counts, total := make([]int, processes), 0
	ready, done := make(chan struct{}), make(chan struct{})
	warm := 0
	children := make([]*process, processes)
	for i := range children {
		children[i] = start(b, "load", path, category, callers, func(string) {
			mu.Lock()
			defer mu.Unlock()
			if warm < processes { // until every process is at work
				if counts[i] == 0 {
					counts[i] = 1
					if warm++; warm == processes {
						clear(counts)
						close(ready)
					}
				}
				return
			}
			counts[i]++
			if total++; total == b.N {
				close(done)
			}
		})
	}
	heardAll(b, ready, children...)
	b.ResetTimer()
	heardAll(b, done, children...)
	b.StopTimer()
	mu.Lock()
	least, most := counts[0], counts[0]
	for _, count := range counts {
		least, most = min(least, count), max(most, count)
	}
	mu.Unlock()
	for _, child := range children {
		child.stop(b)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(most)/float64(max(1, least)), "most/least")
}

// BenchmarkAppendBesideABusyProcess appends one message at a time while another
// process has 32 callers, and reports the longest that one took.
func BenchmarkAppendBesideABusyProcess(b *testing.B) {
	path, category := newFile(b), storetest.Category(b)
	driver := open(b, path, nil)
	ready := make(chan struct{})
	working := sync.OnceFunc(func() { close(ready) })
	busy := start(b, "load", path, category, 32, func(string) { working() })
	heardAll(b, ready, busy)

	var longest time.Duration
	for b.Loop() {
		begun := time.Now()
		testkit.Do(driver.Append(b.Context(), appendOf(category.Stream(uuid.NewString()), messagestore.NoStream, 1)))(b)
		longest = max(longest, time.Since(begun))
	}
	b.ReportMetric(float64(longest)/1e6, "ms-longest")
	busy.stop(b)
}
