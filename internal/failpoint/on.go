//go:build failpoint

package failpoint

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Variable is the one in the environment that says what to do where.
const Variable = "DIBS_FAILPOINTS"

// ErrFailpoint is matched by the error of a point that was told to fail.
var ErrFailpoint = errors.New("failpoint")

type point struct {
	do     string
	chance float64
	turn   int // the one time that it is hit, 0 for by chance

	mu     sync.Mutex
	passed int // how often it was
	random *rand.Rand
}

var points = sync.OnceValue(func() map[string]*point {
	parsed, err := parse(os.Getenv(Variable))
	if err != nil {
		panic(err) // only in a program made for tests
	}
	return parsed
})

func parse(spec string) (map[string]*point, error) {
	parsed := map[string]*point{}
	var seed uint64
	for item := range strings.SplitSeq(spec, ",") {
		name, value, ok := strings.Cut(item, "=")
		switch {
		case item == "":
			continue
		case !ok || name == "":
			return nil, fmt.Errorf("%s: %q is no point=action:chance", Variable, item)
		case name == "seed":
			var err error
			if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
				return nil, fmt.Errorf("%s: seed: %w", Variable, err)
			}
			continue
		}
		do, chance, _ := strings.Cut(value, ":")
		p := &point{do: do}
		var err error
		if turn, counts := strings.CutPrefix(chance, "@"); counts {
			if p.turn, err = strconv.Atoi(turn); err == nil && p.turn < 1 {
				err = fmt.Errorf("turn %d is not at least 1", p.turn)
			}
		} else {
			if p.chance, err = strconv.ParseFloat(chance, 64); err == nil && !(p.chance > 0 && p.chance <= 1) {
				err = fmt.Errorf("chance %s is not above 0 and at most 1", chance)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", Variable, name, err)
		}
		if do != "kill" && do != "err" && do != "sleep" {
			return nil, fmt.Errorf("%s: %s: %q is not kill, err or sleep", Variable, name, do)
		}
		parsed[name] = p
	}
	for name, p := range parsed {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // it never fails
		p.random = rand.New(rand.NewPCG(seed, h.Sum64()))
	}
	return parsed, nil
}

// pass reports whether the point's turn has come, and how long to wait if that is what it does.
func (p *point) pass() (hit bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed++
	hit = p.random.Float64() < p.chance || p.passed == p.turn
	return hit, time.Duration(p.random.Int64N(int64(200 * time.Millisecond)))
}

var disarmed atomic.Bool

// Disarm has no point do anything any more.
func Disarm() { disarmed.Store(true) }

// Hit does what the point was told to, if its turn has come.
func Hit(name string) error {
	p := points()[name]
	if p == nil || disarmed.Load() {
		return nil
	}
	hit, wait := p.pass()
	if !hit {
		return nil
	}
	switch p.do {
	case "err":
		return fmt.Errorf("%w at %s", ErrFailpoint, name)
	case "sleep":
		<-time.After(wait)
		return nil
	}
	fmt.Fprintf(os.Stderr, "failpoint: killed at %s\n", name)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal is here
}
