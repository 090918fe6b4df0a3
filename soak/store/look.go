package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/work"
)

// A sampler keeps how much memory processes have.
type sampler struct {
	began time.Time

	mu      sync.Mutex
	samples check.Facts
}

func newSampler() *sampler {
	return &sampler{began: time.Now()}
}

func (s *sampler) sample(slots []*crew.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range slots {
		child, process := slot.Process()
		if bytes := resident(child.PID()); bytes > 0 {
			s.samples.AddAt("memory", process, bytes, time.Since(s.began))
		}
	}
}

func (s *sampler) memory() check.Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.samples)
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

// stateOf returns the data of a checkpoint, which has the state of its group, and "" for any other
// message.
func stateOf(m *messagestore.Message) string {
	if m.Type != "Recorded" || !slices.Contains(m.Stream.Category().Types(), "position") {
		return ""
	}
	return string(m.Data)
}

// removed is the schema that keeps the checkpoints that consumers remove, so that their histories
// can be checked completely. The schema itself is not checked.
const removed = "soak_removed"

// keepRemoved keeps the checkpoints that will be removed.
func keepRemoved(ctx context.Context, conn *pgx.Conn) error {
	if err := migrations.Up(ctx, conn, &migrations.Config{Schema: removed}); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, `
		create function soak_removed.keep() returns trigger language plpgsql security definer as $$
		begin
			insert into soak_removed.messages select old.*;
			return old;
		end $$;
		create trigger soak_removed before delete on dibs.messages
		for each row when (old.category ~ '[:+]position$') execute function soak_removed.keep()`)
	return err
}

// keepNoMore restores the table of messages to its migrated form.
func keepNoMore(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "drop trigger soak_removed on dibs.messages")
	return err
}

// dump writes down the contents of the store, and looks at the database itself.
func (r *run) dump(ctx context.Context) error {
	store, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	count, err := r.fill(ctx, store)
	if err != nil {
		return err
	}
	if err := r.History.Exec(ctx, "insert or replace into progress values ('messages', ?)", count); err != nil {
		return err
	}
	if r.Postgres == nil {
		if err := r.History.Exec(ctx, "attach ? as store", strings.TrimPrefix(r.url, "sqlite:")); err != nil {
			return err
		}
		err := r.History.Each(ctx, "pragma store.integrity_check", func(scan func(...any) error) error {
			var damage string
			if err := scan(&damage); err != nil || damage == "ok" {
				return err
			}
			r.Complain("integrity_check: " + damage)
			return nil
		})
		return errors.Join(err, r.History.Exec(ctx, "detach store"), r.note(ctx, store))
	}
	if there, err := r.messages(ctx); err != nil || there != count {
		r.Complain(fmt.Sprintf("the categories have %d messages, and the table has %d: %v", count, there, err))
	}
	driver, err := postgres.Open(ctx, r.url, &postgres.Config{Schema: removed})
	if err != nil {
		return err
	}
	defer driver.Close()
	if _, err := r.fill(ctx, testkit.Must(messagestore.New(driver, nil))); err != nil {
		return err
	}
	return errors.Join(r.note(ctx, store), r.verify(ctx))
}

// fill copies all messages of a store into the history, and returns how many there are.
func (r *run) fill(ctx context.Context, store *messagestore.Store) (count int64, err error) {
	categories, err := store.Categories(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, category := range categories {
		rows := &rowsOf{}
		next, stop := iter.Pull2(store.ReadCategory(ctx, category, 0, messagestore.Filter{}))
		rows.next = next
		err := r.History.Fill(ctx, "messages", rows)
		stop()
		if err != nil {
			return 0, err
		}
		count += rows.count
	}
	return count, nil
}

// rowsOf has the messages of a category, in the form of the history.
type rowsOf struct {
	next  func() (*messagestore.Message, error, bool)
	count int64
	row   check.Row
	err   error
}

func (r *rowsOf) Next() bool {
	for {
		m, err, more := r.next()
		if !more || err != nil {
			r.err = err
			return false
		}
		if r.count++; m.Type == "dibs:Trimmed" { // by the store, which keeps no history
			continue
		}
		known, err := work.Known(m)
		r.row = check.Row{
			Stream: m.Stream, Position: m.Position, Global: m.GlobalPosition, ID: m.ID, Value: known.Value, Hash: known.Hash, Effect: work.EffectOf(m), State: stateOf(m), Time: m.Time.UnixMicro(),
		}
		r.err = err
		return err == nil
	}
}

func (r *rowsOf) Values() ([]any, error) { return r.row.Values() }

func (r *rowsOf) Err() error { return r.err }

// note takes the measurements that are not in the histories, once all is over.
func (r *run) note(ctx context.Context, store *messagestore.Store) error {
	f := r.memory.memory()
	for _, slot := range r.needs {
		f.Add("needs", slot, 1)
	}
	for category := range r.wanted {
		statuses, err := operate.Consumers(ctx, store, category)
		if err != nil {
			return err
		}
		for _, s := range statuses {
			f.Add("lag", fmt.Sprintf("%s of %s", s.Name, category), s.Lag)
		}
	}
	if _, err := store.Write(ctx, work.Probes.Stream("1"), messagestore.AnyVersion, messagestore.Raw{Type: "Probe", Data: []byte(`{}`)}); err != nil {
		f.Add("usable", "store", 0)
	} else {
		f.Add("usable", "store", 1)
	}
	for _, process := range r.Survivors() {
		f.Add("lasted", process, 1)
	}
	if r.Postgres != nil {
		of, err := r.postgresFacts(ctx)
		if err != nil {
			return err
		}
		f = append(f, of...)
	}
	searched, err := canaries(r.Out)
	return errors.Join(err, check.Note(ctx, r.History, append(f, searched...), work.Probes))
}

func (r *run) postgresFacts(ctx context.Context) (f check.Facts, err error) {
	log, err := os.ReadFile(r.Postgres.Log())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.Out, "postgres.log"), log, 0o600); err != nil {
		return nil, err
	}
	if r.bouncer != nil {
		log, err := os.ReadFile(r.bouncer.Log())
		err = errors.Join(err, os.WriteFile(filepath.Join(r.Out, "pgbouncer.log"), log, 0o600))
		if err != nil {
			return nil, err
		}
	}
	r.logged = append(r.logged, errorsIn(log)...)
	for _, line := range r.logged {
		f.Add("log", line, 1)
	}
	output, err := r.Postgres.Amcheck(ctx, database)
	f.Add("amcheck", output, 1)
	return f, errors.Join(err, r.held(ctx), r.advisory(ctx)) // now no client is left that could have one
}

// tooLong is how long a transaction may take when no client has anything to do.
const tooLong = 2 * time.Second

// held notes the locks and transactions that others have kept for too long.
func (r *run) held(ctx context.Context) error {
	return errors.Join(
		r.Copy(ctx, "facts", `select 'lock', format('%s %s of %s', l.locktype, l.mode, l.pid), 1, 0 from pg_locks l join pg_stat_activity a using (pid)
			where a.backend_type = 'client backend' and l.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - $1::interval`, tooLong),
		r.Copy(ctx, "facts", `select 'transaction', format('%s, %s, since %s', pid, state, xact_start), 1, 0 from pg_stat_activity
			where backend_type = 'client backend' and pid <> pg_backend_pid() and xact_start < clock_timestamp() - $1::interval`, tooLong),
	)
}

// advisory notes all advisory locks that stay: the process that served a client may end a little
// after it.
func (r *run) advisory(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	for {
		n, err := r.Number(ctx, "select count(*) from pg_locks where locktype = 'advisory'")
		if n == 0 || err != nil {
			return err
		}
		if !crew.Pause(limited, 10*time.Millisecond) {
			return r.Copy(ctx, "facts", "select 'lock', format('advisory %s of %s', mode, pid), 1, 0 from pg_locks where locktype = 'advisory'")
		}
	}
}

var errorLine = regexp.MustCompile(`\[\d+\] (\w{5}) (?:ERROR|FATAL|PANIC):  (.*)`)

// textsOfEach is how many errors of one SQLSTATE are kept: their texts have names in them.
const textsOfEach = 1000

// errorsIn returns the errors of a PostgreSQL's log, each with its SQLSTATE, each text once, and of
// each SQLSTATE the first.
func errorsIn(log []byte) (lines []string) {
	seen, ofEach := map[string]bool{}, map[string]int{}
	for match := range bytes.Lines(log) {
		found := errorLine.FindSubmatch(match)
		if found == nil {
			continue
		}
		state, line := string(found[1]), string(found[1])+" "+string(found[2])
		if !seen[line] && ofEach[state] < textsOfEach {
			seen[line] = true
			ofEach[state]++
			lines = append(lines, line)
		}
	}
	return lines
}

// canaries looks through the files of a run, but the history's database, for text that must not be
// logged.
func canaries(dir string) (searched check.Facts, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if entry.Name() == promise.File {
			continue
		}
		found := int64(0)
		file, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			if bytes.Contains(scanner.Bytes(), []byte(work.Canary)) {
				found = 1
				break
			}
		}
		if err := errors.Join(scanner.Err(), file.Close()); err != nil {
			return nil, err
		}
		searched.Add("searched", entry.Name(), found)
	}
	return searched, nil
}

// verify runs the operator's own checks for damage, to find damage that the promises do not check
// for. With a planted bug only the promises count.
func (r *run) verify(ctx context.Context) error {
	if r.options.Plant == nil { // which may be in the schema
		complaints, err := asMigrated(ctx, r.url)
		if err != nil {
			return err
		}
		for _, complaint := range complaints {
			r.Complain(complaint)
		}
	}
	pool, err := pgxpool.New(ctx, r.url)
	if err != nil {
		return err
	}
	defer pool.Close()
	verification, err := testkit.Must(admin.New(pool, nil)).Verify(ctx, &retention.VerifyConfig{Amcheck: true})
	if err != nil {
		return err
	}
	lossy := r.options.Failovers.Lossy() > 0
	if lossy {
		if err := r.missingEffects(ctx, pool); err != nil {
			return err
		}
	}
	made := 0
	for _, v := range verification.Violations {
		if lossy && madeInHand(v) {
			made++
			continue
		}
		r.Complain("verify: " + v.String())
	}
	return r.History.Exec(ctx, "insert or replace into progress values ('made', ?)", made)
}
