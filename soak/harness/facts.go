package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/work"
)

// A sampler keeps how much memory processes have.
type sampler struct {
	began time.Time

	mu      sync.Mutex
	samples map[string][]check.Sample
}

func newSampler() *sampler {
	return &sampler{began: time.Now(), samples: map[string][]check.Sample{}}
}

func (s *sampler) sample(c *clients) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range c.all("") {
		pid, process := slot.now()
		if bytes := resident(pid); bytes > 0 {
			s.samples[process] = append(s.samples[process], check.Sample{Seconds: time.Since(s.began).Seconds(), Bytes: bytes})
		}
	}
}

func (s *sampler) memory() (all []check.Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for process, samples := range s.samples {
		all = append(all, check.Memory{Proc: process, Samples: samples})
	}
	return all
}

// resident returns how much of a process' memory is in RAM, 0 if it is gone.
func resident(pid int) int64 {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64) // or else 0
	return pages * int64(os.Getpagesize())
}

// facts takes the measurements that are not in the histories, once all is over.
func (r *run) facts(ctx context.Context, store *messagestore.Store) (*check.Facts, error) {
	f := &check.Facts{Lag: map[string]int64{}, Usable: map[string]bool{}, Memory: r.memory.memory()}
	for category := range r.wanted {
		statuses, err := operate.Consumers(ctx, store, category)
		if err != nil {
			return nil, err
		}
		for _, s := range statuses {
			f.Lag[fmt.Sprintf("%s of %s", s.Name, category)] = s.Lag
		}
	}
	_, err := store.Write(ctx, work.Probes.Stream("1"), messagestore.AnyVersion, messagestore.Raw{Type: "Probe", Data: []byte(`{}`)})
	f.Usable["store"] = err == nil
	counts, err := filepath.Glob(filepath.Join(r.options.Out, "*"+work.CountEnding))
	if err != nil {
		return nil, err
	}
	for _, path := range counts {
		encoded, err := os.ReadFile(path)
		var count work.Count
		if err := errors.Join(err, json.Unmarshal(encoded, &count)); err != nil {
			return nil, err
		}
		process := strings.TrimSuffix(filepath.Base(path), work.CountEnding)
		f.Goroutines = append(f.Goroutines, check.Goroutines{Proc: process, Before: count.Before, After: count.After})
		if count.Usable != nil {
			f.Usable[process] = *count.Usable
		}
	}
	if r.postgres != nil {
		if f.PostgreSQL, err = r.postgresFacts(ctx); err != nil {
			return nil, err
		}
	}
	for _, process := range r.clients.survivors() {
		if _, tried := f.Usable[process]; !tried {
			f.Usable[process] = false
		}
	}
	f.Canaries, f.CanariesFound, err = canaries(r.options.Out)
	return f, err
}

func (r *run) postgresFacts(ctx context.Context) (*check.PostgreSQL, error) {
	log, err := os.ReadFile(r.postgres.Log())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.options.Out, "postgres.log"), log, 0o600); err != nil {
		return nil, err
	}
	if r.bouncer != nil {
		log, err := os.ReadFile(r.bouncer.Log())
		err = errors.Join(err, os.WriteFile(filepath.Join(r.options.Out, "pgbouncer.log"), log, 0o600))
		if err != nil {
			return nil, err
		}
	}
	p := &check.PostgreSQL{Log: append(r.logged, errorsIn(log)...), Locks: r.quiet.locks, IdleTransactions: r.quiet.transactions}
	left, err := r.held(ctx)
	if err != nil {
		return nil, err
	}
	advisory, err := r.advisory(ctx) // now no client is left that could have one
	if err != nil {
		return nil, err
	}
	p.Locks, p.IdleTransactions = slices.Concat(p.Locks, left.locks, advisory), append(p.IdleTransactions, left.transactions...)
	if p.AmcheckOutput, err = r.postgres.Amcheck(ctx, database); err != nil {
		return nil, err
	}
	p.Amcheck = true
	return p, nil
}

// A held is a lock or a transaction that sessions keep, as pg_locks and
// pg_stat_activity name it.
type held struct{ locks, transactions []string }

// tooLong is how long a transaction may take when no client has anything to do.
const tooLong = 2 * time.Second

// held returns the locks and transactions that others have kept for too long.
func (r *run) held(ctx context.Context) (h held, err error) {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return h, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	list := func(into *[]string, query string) error {
		rows, err := conn.Query(ctx, query, tooLong)
		if err != nil {
			return err
		}
		*into, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}
	err = errors.Join(
		list(&h.locks, `select format('%s %s of %s', l.locktype, l.mode, l.pid) from pg_locks l join pg_stat_activity a using (pid)
			where a.backend_type = 'client backend' and l.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - $1::interval`),
		list(&h.transactions, `select format('%s, %s, since %s', pid, state, xact_start) from pg_stat_activity
			where backend_type = 'client backend' and pid <> pg_backend_pid() and xact_start < clock_timestamp() - $1::interval`),
	)
	return h, err
}

// advisory returns all advisory locks that stay: the process that served a client may end a little after it.
func (r *run) advisory(ctx context.Context) ([]string, error) {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	limited, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	for {
		rows, err := conn.Query(ctx, "select format('advisory %s of %s', mode, pid) from pg_locks where locktype = 'advisory'")
		if err != nil {
			return nil, err
		}
		locks, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if len(locks) == 0 || err != nil || !wait(limited, 10*time.Millisecond) {
			return locks, err
		}
	}
}

var errorLine = regexp.MustCompile(`\[\d+\] (\w{5}) (?:ERROR|FATAL|PANIC):  (.*)`)

// textsOfEach is how many errors of one SQLSTATE are kept: their texts have names in them.
const textsOfEach = 1000

// errorsIn returns the errors of a PostgreSQL's log, each text once, and of each SQLSTATE the first.
func errorsIn(log []byte) (lines []check.LogLine) {
	seen, ofEach := map[check.LogLine]bool{}, map[string]int{}
	for match := range bytes.Lines(log) {
		found := errorLine.FindSubmatch(match)
		if found == nil {
			continue
		}
		line := check.LogLine{SQLState: string(found[1]), Text: string(found[2])}
		if !seen[line] && ofEach[line.SQLState] < textsOfEach {
			seen[line] = true
			ofEach[line.SQLState]++
			lines = append(lines, line)
		}
	}
	return lines
}

// canaries looks through the files of a run, but the histories, for text that must not be logged. It
// returns how many files there are, and which of them have such text.
func canaries(dir string) (files int, found []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, nil, err
	}
	for _, entry := range entries {
		file, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			return 0, nil, err
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 16<<20)
		files++
		for scanner.Scan() {
			if bytes.Contains(scanner.Bytes(), []byte(work.Canary)) {
				found = append(found, entry.Name())
				break
			}
		}
		if err := errors.Join(scanner.Err(), file.Close()); err != nil {
			return 0, nil, err
		}
	}
	return files, found, nil
}
