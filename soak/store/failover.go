package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/work"
)

// Failovers has the number of times that the primary, or a successor of it, is lost in each way.
// They come one after the other, under load, instead of the faults that a seed draws.
type Failovers struct {
	Sync     int // a standby that commits wait for
	Async    int // a standby that lacks the last acknowledged messages
	Restores int // a backup that was taken under load
	PutBacks int // the files of such a backup, started as they are: the timeline stays the same
}

// Total returns the number of failovers.
func (f Failovers) Total() int { return f.Sync + f.Lossy() }

// Lossy returns how many failovers lose something acknowledged.
func (f Failovers) Lossy() int { return f.Async + f.Restores + f.PutBacks }

// madeInHand reports whether a violation is about a message that a handler makes from another. If a
// failover undid the other message while it was in flight, the handler goes on until its context
// ends.
func madeInHand(v retention.Violation) bool { return v.Rule == "reservation" }

// The names of the ways to lose a primary.
const (
	SyncLoss    = "failover-sync"
	AsyncLoss   = "failover-async"
	RestoreLoss = "restore"
	PutBackLoss = "put-back"
)

// schedule names all of them, in an order that is drawn.
func (f Failovers) schedule(random *rand.Rand) []string {
	all := slices.Concat(slices.Repeat([]string{SyncLoss}, f.Sync), slices.Repeat([]string{AsyncLoss}, f.Async), slices.Repeat([]string{RestoreLoss}, f.Restores),
		slices.Repeat([]string{PutBackLoss}, f.PutBacks))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// Ways returns the number of failovers of each kind, by name.
func (f Failovers) Ways() map[string]int {
	return map[string]int{SyncLoss: f.Sync, AsyncLoss: f.Async, RestoreLoss: f.Restores, PutBackLoss: f.PutBacks}
}

// names returns the ways that are required at least once, sorted.
func (f Failovers) names() []string {
	all := f.schedule(rand.New(rand.NewPCG(0, 0)))
	slices.Sort(all)
	return slices.Compact(all)
}

// failovers loses one primary after the other.
func (r *run) failovers(ctx context.Context, end func()) error {
	defer end()
	random := rand.New(rand.NewPCG(r.options.Seed, 0xfa11))
	ways := map[string]func(context.Context, *rand.Rand, string) error{
		SyncLoss: r.failOverSync, AsyncLoss: r.failOverAsync, RestoreLoss: r.restore, PutBackLoss: r.putBack,
	}
	for i, name := range r.options.Failovers.schedule(random) {
		if !crew.Pause(ctx, between(random, time.Second, 3*time.Second)) {
			return ctx.Err()
		}
		// The first server is pg, its successors are pg-1, pg-2 ...
		if err := ways[name](ctx, random, fmt.Sprintf("pg-%d", i+1)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	crew.Pause(ctx, noticed)
	return nil
}

// noticed is how long an idle consumer may take to notice that the store went back, after which it
// begins again: see package consumer.
const noticed = 12 * time.Second

// consuming are the clients that have a position.
func (r *run) consuming() []*crew.Slot { return r.Slots(string(work.Consumer), string(work.Handler)) }

// failOverSync loses nothing that was acknowledged: to the checker it is a fault as any.
func (r *run) failOverSync(ctx context.Context, random *rand.Rand, name string) error {
	standby, err := r.Postgres.NewStandby(ctx, name)
	if err != nil {
		return err
	}
	if err := r.Postgres.WaitForStandby(ctx); err != nil {
		return err
	}
	crew.Pause(ctx, between(random, 500*time.Millisecond, 2*time.Second))
	defer r.Trouble(SyncLoss, r.Postgres.Name())()
	if err := errors.Join(r.Postgres.Kill(), r.killed(ctx, nil)); err != nil {
		return err
	}
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	return r.moveTo(standby)
}

// failOverAsync loses the messages that are acknowledged once the standby has stopped
// to follow.
func (r *run) failOverAsync(ctx context.Context, random *rand.Rand, name string) error {
	standby, err := r.Postgres.NewStandby(ctx, name)
	if err != nil {
		return err
	}
	crew.Pause(ctx, between(random, 500*time.Millisecond, 2*time.Second))
	defer r.Trouble(AsyncLoss, r.Postgres.Name())()
	call := r.Nemesis.Begin(crew.Event{Call: crew.Failover, Name: AsyncLoss})
	if err := standby.StopFollowing(ctx, r.Postgres); err != nil {
		return err
	}
	crew.Pause(ctx, between(random, 500*time.Millisecond, 2*time.Second))
	lost, err := head(ctx, r.Postgres)
	if err := errors.Join(err, r.Postgres.Kill(), r.killed(ctx, nil)); err != nil {
		return err
	}
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	return r.rewindTo(ctx, call, standby, lost, r.everySecond())
}

// restore loses the messages that are acknowledged after the end of a backup. Clients go on
// meanwhile, though docs/dba.md says that consumers should not.
func (r *run) restore(ctx context.Context, random *rand.Rand, name string) error {
	call, backup, err := r.backUp(ctx, name, RestoreLoss)
	if err != nil {
		return err
	}
	crew.Pause(ctx, between(random, 500*time.Millisecond, 2*time.Second))
	defer r.Trouble(RestoreLoss, r.Postgres.Name())()
	lost, err := head(ctx, r.Postgres)
	if err := errors.Join(err, r.end(random), r.killed(ctx, nil)); err != nil {
		return err
	}
	if err := backup.Restore(ctx); err != nil {
		return err
	}
	return r.rewindTo(ctx, call, backup, lost, r.everySecond())
}

// putBack loses as much, and the server does not know of it. So the epoch is raised, before
// anybody reaches the server. Consumers need it: when the backup is taken they are behind,
// and all messages they read since are in it; but the writes of their handlers since are
// not, and they have no time to checkpoint.
func (r *run) putBack(ctx context.Context, random *rand.Rand, name string) error {
	goOn := stop(r.consuming())
	defer goOn()
	crew.Pause(ctx, between(random, 2*time.Second, 4*time.Second)) // and fall behind
	call, backup, err := r.backUp(ctx, name, PutBackLoss)
	if err != nil {
		return err
	}
	lost, err := head(ctx, r.Postgres)
	if err != nil {
		return err
	}
	release, err := r.holdRecordings(ctx)
	if err != nil {
		return err
	}
	defer release()
	defer r.Trouble(PutBackLoss, r.Postgres.Name())()
	goOn()
	crew.Pause(ctx, between(random, 50*time.Millisecond, 200*time.Millisecond))
	if err := errors.Join(r.end(random), r.killed(ctx, nil)); err != nil {
		return err
	}
	if err := backup.Start(ctx); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, backup.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := testkit.Must(admin.New(conn, nil)).RaiseEpoch(ctx); err != nil {
		return err
	}
	return r.rewindTo(ctx, call, backup, lost, true)
}

// stop stops the clients in the slots now, until the function that it returns is
// called.
func stop(slots []*crew.Slot) (goOn func()) {
	var stopped []*server.Child
	for _, s := range slots {
		stopped = append(stopped, s.Signal(syscall.SIGSTOP))
	}
	return sync.OnceFunc(func() {
		for _, child := range stopped {
			child.Signal(syscall.SIGCONT)
		}
	})
}

// holdRecordings keeps consumers from recording positions, before which they look at the epoch.
func (r *run) holdRecordings(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, r.Postgres.URL(database))
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{"set lock_timeout = '10s'", "begin", "lock table dibs.epochs in access exclusive mode"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
	}
	return func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil // the server is gone
}

// backUp takes a backup; a failover later restores it.
func (r *run) backUp(ctx context.Context, name, way string) (call crew.Event, backup *server.Postgres, err error) {
	call = r.Nemesis.Begin(crew.Event{Call: crew.Failover, Name: way})
	backup, err = r.Postgres.NewBackup(ctx, name)
	return call, backup, err
}

// end ends the server, in order or not.
func (r *run) end(random *rand.Rand) error {
	if random.IntN(2) == 0 {
		return r.Postgres.Kill()
	}
	return r.Postgres.Stop()
}

// rewindTo makes clients go on with a server that has lost something, once its contents are known.
// If the store has to grow first, only writers go on, until there is more than was lost.
func (r *run) rewindTo(ctx context.Context, call crew.Event, next *server.Postgres, lost int64, grow bool) error {
	kept, err := heads(ctx, next)
	if err != nil {
		return err
	}
	r.Nemesis.End(call, crew.Event{Answer: crew.OK, Heads: kept})
	if grow {
		if err := r.overtake(ctx, next, lost); err != nil {
			return err
		}
	}
	return r.moveTo(next)
}

// everySecond is true for the first, the third, and so on.
func (r *run) everySecond() bool {
	r.rewinds++
	return r.rewinds%2 == 1
}

const (
	inFlight    = 100 // about as many messages may come between a look at a server and its end
	growTimeout = 10 * time.Second
)

// overtake has writers alone go on, until each category that is read has grown past the lost
// messages.
func (r *run) overtake(ctx context.Context, next *server.Postgres, lost int64) error {
	call := r.Nemesis.Begin(crew.Event{Call: crew.Overtake})
	for _, s := range r.Slots(string(work.Writer)) {
		s.Retarget(next.Socket())
	}
	limited, cancel := context.WithTimeout(ctx, growTimeout)
	defer cancel()
	for {
		there, err := heads(ctx, next)
		if err != nil {
			return err
		}
		grown := true
		for category := range r.wanted {
			grown = grown && there[string(category)] > lost+inFlight
		}
		if grown || !crew.Pause(limited, 20*time.Millisecond) {
			r.Nemesis.End(call, crew.Event{Answer: crew.OK, Heads: there})
			return nil
		}
	}
}

// head returns the last global position of all.
func head(ctx context.Context, p *server.Postgres) (last int64, err error) {
	all, err := heads(ctx, p)
	for _, at := range all {
		last = max(last, at)
	}
	return last, err
}

// heads returns the last global position of each category.
func heads(ctx context.Context, p *server.Postgres) (map[string]int64, error) {
	conn, err := pgx.Connect(ctx, p.URL(database))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "select category, max(global_position) from dibs.messages group by category")
	if err != nil {
		return nil, err
	}
	type head struct {
		Category string
		At       int64
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[head])
	found := map[string]int64{}
	for _, h := range all {
		found[h.Category] = h.At
	}
	return found, err
}

// moveTo makes clients go on with another server, and removes the former server. That must not come
// back: both would acknowledge.
func (r *run) moveTo(next *server.Postgres) error {
	old := r.Postgres
	r.Postgres, r.url = next, next.URL(database)
	for _, s := range r.Slots() {
		s.Retarget(next.Socket())
	}
	log, err := os.ReadFile(old.Log())
	if err != nil {
		return err
	}
	r.logged = append(r.logged, errorsIn(log)...)
	err = os.WriteFile(filepath.Join(r.Out, "postgres-"+old.Name()+".log"), log, 0o600)
	return errors.Join(err, old.Remove())
}

// missingEffects looks for messages without their consumer's effect in the store at the end: if a
// failover undid an effect, it must be done again.
func (r *run) missingEffects(ctx context.Context, db *pgxpool.Pool) (err error) {
	missing := func(what, question string, args ...any) {
		var n int
		scanned := db.QueryRow(ctx, question, args...).Scan(&n)
		err = errors.Join(err, scanned)
		if n > 0 {
			r.Complain(fmt.Sprintf("%s: of %d there is none", what, n))
		}
	}
	for name, category := range r.effects {
		missing(fmt.Sprintf("effects by %s of the messages of %s, all of which it has handled", name, category), `
			select count(*) from dibs.messages m where category = $1 and not exists (
				select from dibs.messages e where e.category = $2 and e.data ->> 'of' = m.id::text)`,
			string(category), string(work.EffectCategory(name)))
	}
	for name, category := range r.keyed {
		missing(fmt.Sprintf("effects by %s of the keys of %s, all of whose commands it has handled", name, category), `
			select count(distinct m.data ->> 'key') from dibs.messages m where category = $1 and type = $3 and not exists (
				select from dibs.messages e where e.category = $2 and e.data ->> 'key' = m.data ->> 'key')`,
			string(category), string(work.EffectCategory(name)), work.Do{}.MessageType())
	}
	for name, category := range r.parking {
		missing(fmt.Sprintf("messages of %s that %s gives up on, parked", category, name), `
			select count(*) from dibs.messages m where category = $1 and type = $3 and not exists (
				select from dibs.queue_open o join dibs.queues q on q.id = o.queue where q.category = $1 and q.name like '%:parked:' || $2 and o.position = m.global_position)`,
			string(category), name, work.PoisonType)
	}
	return err
}
