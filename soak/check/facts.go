package check

import (
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/history"
)

// Facts are the measurements of the harness beside the histories, for invariants 22 and
// 23. They are kept as JSON.
type Facts struct {
	// Lag is how many messages each consumer had before it when all was quiet.
	Lag map[string]int64 `json:"lag"`

	// Usable says, for each process or pool that was asked, whether it could still write and
	// read in the end.
	Usable map[string]bool `json:"usable"`

	// Goroutines are counts of processes that ended by themselves.
	Goroutines []Goroutines `json:"goroutines"`

	// Memory are series of resident memory, one for each process that lived long.
	Memory []Memory `json:"memory"`

	// Canaries are secrets that were given to the processes to keep, and CanariesFound the
	// places in logs or output where one was found.
	Canaries      int      `json:"canaries"`
	CanariesFound []string `json:"canariesFound"`

	// PostgreSQL is nil if the run was on another database.
	PostgreSQL *PostgreSQL `json:"postgresql"`
}

// PostgreSQL has the answers of a PostgreSQL server at the end.
type PostgreSQL struct {
	// Locks and IdleTransactions are our sessions' when all was quiet, as pg_locks and
	// pg_stat_activity name them.
	Locks            []string `json:"locks"`
	IdleTransactions []string `json:"idleTransactions"`

	// Log are the lines of its log of level ERROR and above.
	Log []LogLine `json:"log"`

	// Amcheck says that pg_amcheck ran, and AmcheckOutput is its output.
	Amcheck       bool   `json:"amcheck"`
	AmcheckOutput string `json:"amcheckOutput"`
}

// A LogLine is one line of PostgreSQL's log.
type LogLine struct {
	SQLState string `json:"sqlState"`
	Text     string `json:"text"`
}

// Goroutines says how many goroutines a process had before it did anything, and after it had ended all
// of them.
type Goroutines struct {
	Proc   string `json:"proc"`
	Before int    `json:"before"`
	After  int    `json:"after"`
}

// Memory is the resident memory of one process.
type Memory struct {
	Proc    string   `json:"proc"`
	Samples []Sample `json:"samples"`
}

// A Sample is how many bytes were resident so many seconds after the beginning.
type Sample struct {
	Seconds float64 `json:"seconds"`
	Bytes   int64   `json:"bytes"`
}

// DefaultSQLStates returns the errors that PostgreSQL may log in a run with faults: conflicts
// and refusals of ours, time-outs, deadlocks, lost connections, full disks and shutdowns.
func DefaultSQLStates() []string {
	return []string{
		"DB",                                                                            // what our functions answer
		"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25P03", "25P02", // ended, or asked to try again
		"08", "53", "58030", // connections, resources, the disk
	}
}

// memoryWarmUp is how long a process may grow, and memorySpan how long it must then be watched
// for its growth to say anything.
const (
	memoryWarmUp = 5 * time.Minute
	memorySpan   = 20 * time.Minute
	memoryGrowth = 0.10 // an hour
)

func checkFacts(r *run, f *Facts) {
	if f == nil {
		return
	}
	checkLiveness(r, f)
	checkHygiene(r, f)
}

// checkLiveness checks invariant 22.
func checkLiveness(r *run, f *Facts) {
	v := r.verdict
	broken := func(format string, args ...any) { v.broken(Liveness, subject{}, format, args...) }
	v.checked(Liveness, len(f.Lag)+len(f.Usable)+len(f.Goroutines)+len(r.heals))
	for _, consumer := range sorted(f.Lag) {
		if f.Lag[consumer] != 0 {
			broken("consumer %s had %d messages before it when all should have been done", consumer, f.Lag[consumer])
		}
	}
	for _, name := range sorted(f.Usable) {
		if !f.Usable[name] {
			broken("%s could not be used in the end", name)
		}
	}
	for _, g := range f.Goroutines {
		if g.After > g.Before {
			broken("%s had %d goroutines before it did anything, and %d when it had ended all", g.Proc, g.Before, g.After)
		}
	}
	for _, h := range r.heals {
		about := subject{ops: []history.Ref{h.ref}}
		switch {
		case h.kind != ok:
			v.broken(Liveness, about, "after the last fault it never became quiet")
		case h.end-h.time > int64(r.cfg.HealLimit):
			v.broken(Liveness, about, "after the last fault it became quiet in %v, and may take %v", time.Duration(h.end-h.time), r.cfg.HealLimit)
		}
	}
	if f.PostgreSQL == nil {
		return
	}
	v.checked(Liveness, 2)
	if n := f.PostgreSQL.Locks; len(n) > 0 {
		broken("locks are held though all clients are idle: %s", strings.Join(n, ", "))
	}
	if n := f.PostgreSQL.IdleTransactions; len(n) > 0 {
		broken("transactions are open though all clients are idle: %s", strings.Join(n, ", "))
	}
}

// checkHygiene checks invariant 23.
func checkHygiene(r *run, f *Facts) {
	v := r.verdict
	broken := func(format string, args ...any) { v.broken(Hygiene, subject{}, format, args...) }
	v.checked(Hygiene, len(f.Memory)+f.Canaries)
	for _, place := range f.CanariesFound {
		broken("a secret is in %s", place)
	}
	for _, m := range f.Memory {
		if growth, enough := growth(m.Samples); enough && growth > memoryGrowth {
			broken("the memory of %s grows by %.0f %% an hour", m.Proc, 100*growth)
		}
	}
	if f.PostgreSQL == nil {
		return
	}
	v.checked(Hygiene, len(f.PostgreSQL.Log)+1)
	if f.PostgreSQL.AmcheckOutput != "" {
		broken("pg_amcheck found: %s", f.PostgreSQL.AmcheckOutput)
	}
	for _, line := range f.PostgreSQL.Log {
		known := slices.ContainsFunc(r.cfg.AllowedSQLStates, func(s string) bool { return strings.HasPrefix(line.SQLState, s) })
		if !known && !slices.Contains(r.cfg.AllowedTexts, line.Text) {
			broken("PostgreSQL's log has error %s: %s", line.SQLState, line.Text)
		}
	}
}

// growth fits a line through the samples after the warm-up and returns by which part of their mean
// it rises in an hour, and whether they are enough to say so.
func growth(samples []Sample) (perHour float64, enough bool) {
	if len(samples) == 0 {
		return 0, false
	}
	warm := samples[0].Seconds + memoryWarmUp.Seconds()
	from, _ := slices.BinarySearchFunc(samples, warm, func(s Sample, at float64) int {
		if s.Seconds < at {
			return -1
		}
		return 1
	})
	samples = samples[from:]
	if len(samples) < 2 || samples[len(samples)-1].Seconds-samples[0].Seconds < memorySpan.Seconds() {
		return 0, false
	}
	var x, y float64
	for _, s := range samples {
		x += s.Seconds / float64(len(samples))
		y += float64(s.Bytes) / float64(len(samples))
	}
	var xy, xx float64
	for _, s := range samples {
		xy += (s.Seconds - x) * (float64(s.Bytes) - y)
		xx += (s.Seconds - x) * (s.Seconds - x)
	}
	return xy / xx / y * 3600, y > 0
}
