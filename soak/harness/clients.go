package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/work"
)

// killedThere begins the name under which such an end is counted.
const killedThere = "killed at "

// restartAfter is about how long a supervisor takes to replace a client.
const restartAfter = 20 * time.Millisecond

// A slot is a place for a client. A client that is killed is replaced.
type slot struct {
	name string
	task work.Task

	clients *clients
	over    chan struct{} // closed by the supervisor when it gives the slot up

	mu       sync.Mutex
	child    *server.Child
	process  string
	stdin    io.WriteCloser
	stopping bool
}

// clients are the processes that work on the store. They are safe for concurrent use.
type clients struct {
	dir  string // the children's working folder
	log  zerolog.Logger
	said io.Writer // the clients' standard error

	numbers atomic.Int64 // of processes, from 1
	life    int          // how often one passes its failpoint, at most; 0 for ever
	rewinds bool         // the store may lose messages
	program string       // that they run, "" for this one

	mu     sync.Mutex
	random *rand.Rand
	slots  []*slot
	healed bool // no failpoints any more
	counts map[string]int
	faulty []string // ends that nobody meant
	lasted []string // processes that ended when they were told to, and when there were no more faults
}

func newClients(dir string, seed uint64, life int, log zerolog.Logger, said io.Writer) *clients {
	return &clients{
		dir: dir, life: life, log: log, said: said,
		random: rand.New(rand.NewPCG(seed, 0xc11e)), counts: map[string]int{},
	}
}

// add starts a client, which is replaced whenever it ends, until the slot is stopped.
func (c *clients) add(name string, task work.Task) (*slot, error) {
	s := &slot{name: name, task: task, clients: c, over: make(chan struct{})}
	if err := s.start(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.slots = append(c.slots, s)
	c.mu.Unlock()
	go s.supervise()
	return s, nil
}

// start starts the next process of the slot, which dies at a failpoint.
func (s *slot) start() error {
	c := s.clients
	c.mu.Lock()
	seed := c.random.Uint64()
	var death work.Death
	if !c.healed && c.life > 0 {
		death = doom(c.random, s.task.Role.Points(), c.life)
	}
	c.mu.Unlock()

	s.mu.Lock()
	before := s.process
	s.mu.Unlock()
	task := s.task
	task.Process, task.Before = int(c.numbers.Add(1)), before
	task.Seed, task.Death = seed, death
	encoded, err := json.Marshal(task)
	if err != nil {
		return err
	}
	program := c.program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	cmd := exec.Command(program) //nolint:noctx // the supervisor ends it
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "GOGC=400", // there is little garbage, and there are few processors
		work.Variable+"="+string(encoded))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	child, err := server.StartChild(cmd, c.said)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.child, s.process, s.stdin = child, task.ProcessName(), stdin
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		stdin.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.healed {
		s.spare()
	}
	return nil
}

// doom draws at which of some failpoints a client dies, and at which turn: any order of magnitude is as
// likely as another.
func doom(random *rand.Rand, points []work.Point, life int) work.Death {
	if len(points) == 0 {
		return work.Death{}
	}
	point := points[random.IntN(len(points))]
	turn := int64(math.Exp(random.Float64() * math.Log(float64(life))))
	if point == work.Record || point == work.Recorded { // few are passed
		turn = 1 + turn/16
	}
	return work.Death{Point: point, Turn: turn}
}

func (s *slot) supervise() {
	defer close(s.over)
	c := s.clients
	for {
		s.mu.Lock()
		child, process := s.child, s.process
		s.mu.Unlock()
		err := child.Ended()
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		c.ended(s.name, child, err, stopping)
		if stopping {
			if err == nil {
				c.last(process)
			}
			return
		}
		c.mu.Lock()
		wait := restartAfter/2 + time.Duration(c.random.Int64N(int64(restartAfter)))
		c.mu.Unlock()
		<-time.After(wait)
		if s.isStopping() {
			return
		}
		if err := s.start(); err != nil {
			c.complain(fmt.Sprintf("%s cannot be started again: %v", s.name, err))
			return
		}
	}
}

func (s *slot) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// ended counts how a client ended, and complains if it should not have.
func (c *clients) ended(name string, child *server.Child, err error, stopping bool) {
	how := "ended"
	switch {
	case err == nil:
	case child.Killed():
		how = "killed"
		if _, at, ok := strings.Cut(err.Error(), work.KilledAt); ok {
			how = killedThere + strings.TrimSpace(strings.SplitN(at, "\n", 2)[0])
		}
	case c.rewinds && child.ExitCode() == work.ExitAhead:
		how = "ahead"
	default:
		how = "failed"
		c.complain(fmt.Sprintf("%s: %v", name, err))
	}
	if err == nil && !stopping {
		c.complain(name + " ended without being told to")
	}
	c.mu.Lock()
	c.counts[how]++
	c.mu.Unlock()
}

func (c *clients) complain(about string) {
	c.log.Warn().Msg(about)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faulty = append(c.faulty, about)
}

// now returns the process in the slot, and its name.
func (s *slot) now() (pid int, process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child.PID(), s.process
}

// signal sends a signal to the client that is in the slot now, and returns it.
func (s *slot) signal(sig syscall.Signal) *server.Child {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child.Signal(sig)
	return s.child
}

// kill ends the client in the slot at once. It is replaced.
func (s *slot) kill() { s.signal(syscall.SIGKILL) }

// stop gives the slot up: the client is told to end and has so long, before it is killed.
// It reports whether it ended by itself.
func (s *slot) stop(grace time.Duration) bool {
	s.mu.Lock()
	s.stopping = true
	s.stdin.Close()
	s.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	byItself := true
	select {
	case <-s.over:
	case <-timer.C:
		byItself = false
		s.kill()
		<-s.over
	}
	s.clients.remove(s)
	return byItself
}

// abandon gives the slot up and kills its client.
func (s *slot) abandon() { s.stop(0) }

func (c *clients) remove(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots = slices.DeleteFunc(c.slots, func(other *slot) bool { return other == s })
}

// all returns the slots there are, of a role if that is not "".
func (c *clients) all(role work.Role) []*slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*slot
	for _, s := range c.slots {
		if role == "" || s.task.Role == role {
			found = append(found, s)
		}
	}
	return found
}

// heal ends the deaths at failpoints. The clients that run now stay, and have to recover by themselves.
func (c *clients) heal() {
	c.mu.Lock()
	c.healed = true
	c.mu.Unlock()
	for _, s := range c.all("") {
		s.signal(syscall.SIGCONT)
		s.spare()
	}
}

// spare tells the client in the slot not to die at a failpoint.
func (s *slot) spare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.stdin.Write([]byte("\n")) // it may have ended
}

// stopAll gives all slots of a role up, all at once, and returns the slots that had to be killed.
func (c *clients) stopAll(role work.Role, grace time.Duration) []string {
	var mu sync.Mutex
	var forced []string
	var all sync.WaitGroup
	for _, s := range c.all(role) {
		all.Go(func() {
			if !s.stop(grace) {
				mu.Lock()
				defer mu.Unlock()
				forced = append(forced, s.name)
			}
		})
	}
	all.Wait()
	return forced
}

// last notes that a process ended when it was told to. Once there are no more faults it has tried, before that,
// whether its store is usable.
func (c *clients) last(process string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.healed {
		c.lasted = append(c.lasted, process)
	}
}

// survivors returns the names of the processes that there were when all was over.
func (c *clients) survivors() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lasted)
}

// killedAtFailpoints returns how many clients died at failpoints.
func killedAtFailpoints(ends map[string]int) (n int) {
	for how, times := range ends {
		if strings.HasPrefix(how, killedThere) {
			n += times
		}
	}
	return n
}

// tally returns how many clients ended how.
func (c *clients) tally() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

func (c *clients) complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.faulty)
}
