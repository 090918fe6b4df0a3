package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
)

var errDead = &deadError{}

// A deadError ends a run at once.
type deadError struct{}

func (*deadError) Error() string        { return "the process is dead" }
func (*deadError) Is(target error) bool { return target == messagestore.ErrClosed }

// A process is a relay that a test can kill: from then on its store and its sink have no effect. It can
// also be paused: its calls wait.
type process struct {
	queuing.Driver

	sink outbox.Sink

	mu     sync.Mutex
	thawed *sync.Cond
	paused bool
	dead   bool
	cancel context.CancelFunc
	ended  chan error
}

func start(store *messagestore.Store, sink outbox.Sink, config *outbox.Config) *process {
	driver, _ := testkit.Must(store.Driver()).(queuing.Driver)
	p := &process{Driver: driver, sink: sink, ended: make(chan error, 1)}
	p.thawed = sync.NewCond(&p.mu)
	relay := relayOf(testkit.Must(messagestore.New(p, nil)), p, config)
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() { p.ended <- relay.Run(ctx) }()
	return p
}

// lives waits while the process is paused.
func (p *process) lives() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.paused {
		p.thawed.Wait()
	}
	if p.dead {
		return errDead
	}
	return nil
}

func (p *process) pause(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = is
	p.thawed.Broadcast()
}

// kill ends the process at any point: it sees no answer that comes.
func (p *process) kill(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	p.dead, p.paused = true, false
	p.thawed.Broadcast()
	p.mu.Unlock()
	p.cancel()
	_ = testkit.Receive(t, "the end of a relay that is killed", p.ended) // it is dead
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	require.NoError(t, testkit.Receive(t, "the end of a relay", p.ended))
}

func (p *process) Send(ctx context.Context, m *outbox.Message) error {
	if err := p.lives(); err != nil {
		return err
	}
	err := p.sink.Send(ctx, m)
	return errors.Join(err, p.lives())
}

func (p *process) QueueTake(ctx context.Context, t queuing.Take) (taken queuing.Taken, err error) {
	if err := p.lives(); err != nil {
		return taken, err
	}
	taken, err = p.Driver.QueueTake(ctx, t)
	return taken, errors.Join(err, p.lives())
}

func (p *process) QueueExtend(ctx context.Context, e queuing.Extension) (lost []queuing.Delivery, err error) {
	if err := p.lives(); err != nil {
		return nil, err
	}
	lost, err = p.Driver.QueueExtend(ctx, e)
	return lost, errors.Join(err, p.lives())
}

func (p *process) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	if err := p.lives(); err != nil {
		return queuing.Ready{}, err
	}
	return p.Driver.QueueReady(ctx, q)
}

func (p *process) QueueLeave(ctx context.Context, l queuing.Leave) error {
	if err := p.lives(); err != nil {
		return err
	}
	return p.Driver.QueueLeave(ctx, l)
}

// O1: a message is sent if and only if its transaction was committed.
func TestAMessageIsSentIfItsTransactionWasCommitted(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, open func(t *testing.T) *messagestore.Store) {
		t.Helper()
		store := open(t)
		if txs, err := messagestore.Transactional[*sql.Tx](store); err == nil {
			sentIfCommitted(t, txs, func(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
				_, err := tx.ExecContext(ctx, query, args...)
				return err
			})
			return
		}
		txs, err := messagestore.Transactional[pgx.Tx](store)
		require.NoError(t, err)
		sentIfCommitted(t, txs, func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		})
	})
}

func sentIfCommitted[Tx any](t *testing.T, txs *messagestore.TxStore[Tx], exec func(ctx context.Context, tx Tx, query string, args ...any) error) {
	t.Helper()
	store := txs.Store
	_, err := txs.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		return nil, exec(ctx, tx, "create table payments (amount int)")
	})
	require.NoError(t, err)
	errUndone := errors.New("undone")
	sink := &receiver{}
	stop := running(t, relayOf(store, sink, nil))
	committed := 0
	for i := range 24 {
		_, err := txs.Transact(t.Context(), func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
			if err := exec(ctx, tx, "insert into payments values ($1)", i); err != nil {
				return nil, err
			}
			writes := []messagestore.StreamWrite{messagestore.To(outgoing.Stream(fmt.Sprint(i%3)), messagestore.AnyVersion, Paid{i})}
			if i%4 == 0 {
				return writes, errUndone
			}
			if i%4 == 1 { // a conflict at the append
				writes = append(writes, messagestore.To(outgoing.Stream("other"), 99, Paid{i}))
			}
			return writes, nil
		})
		if i%4 > 1 {
			require.NoError(t, err)
			committed++
		} else {
			require.Error(t, err)
		}
	}

	testkit.Await(t, "the committed messages are sent", func() (bool, any) {
		n := len(sink.all())
		return n >= committed, fmt.Sprintf("%d of %d", n, committed)
	})

	stop()
	requireOrder(t, store, sink.all(), nil)
	require.Len(t, sink.all(), 12)
}

// O2, O3 and O4: two replicas are killed at any point, paused beyond their lease and started again, while the sink
// fails as it likes. Each message arrives, under its id, and first arrivals of a key are in order.
func TestTwinsThatAreKilledSendEachMessageAtLeastOnceInOrder(t *testing.T) {
	t.Parallel()
	for seed := range seeds() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := &dice{rand.New(rand.NewPCG(seed, 3)), sync.Mutex{}}
				store := newStore()
				sink := &receiver{delay: 3 * time.Millisecond, answer: func(*outbox.Message) error {
					if random.one(in(10)) {
						return errAway
					}
					return nil
				}}
				config := &outbox.Config{Lease: time.Second, Concurrency: 8}
				twins := []*process{start(store, sink, config), start(store, sink, config)}
				for i := range 400 {
					write(t, store, fmt.Sprint("k", random.n(7)), i, i+1)
					time.Sleep(time.Duration(random.n(15)) * time.Millisecond)
					switch i := random.n(2); {
					case random.one(in(40)):
						twins[i].kill(t)
						twins[i] = start(store, sink, config)
					case random.one(in(60)):
						twins[i].pause(true)
						time.Sleep(1500 * time.Millisecond) // the other takes over
						twins[i].pause(false)
					case random.one(in(80)):
						twins[i].stop(t)
						twins[i] = start(store, sink, config)
					}
				}
				time.Sleep(2 * time.Minute)
				for _, p := range twins {
					p.stop(t)
				}

				requireOrder(t, store, sink.all(), nil)
			})
		})
	}
}

// seeds are those of schedules of kills.
func seeds() uint64 {
	if testkit.Long() {
		return 8
	}
	return 3
}

// A dice is a source of chance that goroutines share.
type dice struct {
	random *rand.Rand
	mu     sync.Mutex
}

func (d *dice) n(most int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(most)
}

func (d *dice) one(in int) bool { return d.n(in) == 0 }

func in(n int) int { return n }

// O4: a relay that dies between a send and the next call of the store sends the same ids again, at most those that it
// had reserved, and nothing else.
func TestADeathBehindASendSendsTheSameIDsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 100 {
			for _, key := range keys(5) {
				write(t, store, key, i, i+1)
			}
		}
		first := &receiver{delay: 10 * time.Millisecond}
		p := start(store, first, &outbox.Config{Concurrency: 4, Prefetch: 4, Lease: time.Second})
		time.Sleep(333 * time.Millisecond)
		p.kill(t)
		before := first.all()
		require.Greater(t, len(before), 20)
		require.Less(t, len(before), 500)

		second := &receiver{}
		require.NoError(t, relayOf(store, second, nil).CatchUp(t.Context()))

		requireOrder(t, store, append(before, second.all()...), nil)
		again := len(before) + len(second.all()) - 500
		require.Positive(t, again)
		require.LessOrEqual(t, again, 4)
	})
}

// O5: a store as the sink has each message exactly once, though relays are killed.
func TestAnotherStoreHasEachMessageOnceThoughRelaysAreKilled(t *testing.T) {
	t.Parallel()
	eachDatabase(t, onceInAnother)
}

func onceInAnother(t *testing.T, open func(t *testing.T) *messagestore.Store) {
	t.Helper()
	store, other := open(t), open(t)
	random := &dice{rand.New(rand.NewPCG(5, 5)), sync.Mutex{}}
	into := testkit.Must(outbox.Into(other, nil))
	sink := sinkFunc(func(ctx context.Context, m *outbox.Message) error {
		err := into.Send(ctx, m)
		if random.one(in(5)) {
			return errAway // the answer is lost
		}
		return err
	})
	config := &outbox.Config{Lease: time.Second, PollInterval: 10 * time.Millisecond}
	twins := []*process{start(store, sink, config), start(store, sink, config)}

	messages := 100
	if testkit.Long() {
		messages = 300
	}
	for i := range messages {
		write(t, store, fmt.Sprint("k", i%7), i, i+1)
		if i%60 == 30 {
			twins[0].kill(t)
			twins[0] = start(store, sink, config)
		}
	}

	count := func() (n int) {
		for _, all := range stored(t, other) {
			n += len(all)
		}
		return n
	}
	testkit.AwaitEqual(t, "the other store has all messages", messages, count)
	for _, p := range twins {
		p.stop(t)
	}
	require.Equal(t, stored(t, store), stored(t, other))
}

// O6: first arrivals of each key are in order, with those of messages that were dead; while replicas are
// killed, the sink refuses messages for good, and an operator retries and drops.
func TestDeadKeysArriveInOrderThoughRelaysAreKilled(t *testing.T) {
	t.Parallel()
	for seed := range seeds() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				deadInOrder(t, newStore(), seed, 300, time.Sleep, func(is func() bool) {
					for range 1000 {
						if is() {
							return
						}
						time.Sleep(time.Second)
					}
					require.Fail(t, "it never is")
				})
			})
		})
	}
}

// The same on a database, in real time, with stores of their own.
func TestDeadKeysArriveInOrderInADatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, open func(t *testing.T) *messagestore.Store) {
		t.Helper()
		deadInOrder(t, open(t), 1, 60, func(time.Duration) {}, func(is func() bool) {
			t.Helper()
			testkit.AwaitTrue(t, "the messages arrive", is)
		})
	})
}

func deadInOrder(t *testing.T, store *messagestore.Store, seed uint64, messages int, pause func(time.Duration), until func(func() bool)) {
	t.Helper()
	random := &dice{rand.New(rand.NewPCG(seed, 6)), sync.Mutex{}}
	var mu sync.Mutex
	refused, free := map[uuid.UUID]bool{}, false
	sink := &receiver{delay: time.Millisecond, answer: func(m *outbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if _, known := refused[m.ID]; !known {
			refused[m.ID] = random.one(in(15))
		}
		switch {
		case !free && refused[m.ID]:
			return fmt.Errorf("sink: %w", errRefused)
		case random.one(in(20)):
			return errAway
		}
		return nil
	}}
	heal := func(all bool) {
		mu.Lock()
		defer mu.Unlock()
		free = all
		for id := range refused {
			if random.one(in(2)) {
				refused[id] = false
			}
		}
	}
	config := &outbox.Config{Lease: time.Second, Concurrency: 8, PollInterval: 10 * time.Millisecond}
	twins := []*process{start(store, sink, config), start(store, sink, config)}
	operator := relayOf(store, sink, nil).Queue()
	dead := func() (all []queue.Item) {
		all, err := operator.Items(t.Context(), queue.Dead, 0, 1000)
		require.NoError(t, err)
		return all
	}
	for i := range messages {
		write(t, store, fmt.Sprint("k", random.n(6)), i, i+1)
		pause(time.Duration(random.n(8)) * time.Millisecond)
		which := random.n(2)
		switch random.n(40) {
		case 0:
			twins[which].kill(t)
			twins[which] = start(store, sink, config)
		case 1:
			twins[which].stop(t)
			twins[which] = start(store, sink, config)
		case 2:
			heal(false)
			retry(t, operator, dead())
		}
	}
	quiet := func() bool {
		s, err := operator.Status(t.Context())
		require.NoError(t, err)
		return !s.Waiting && s.Out+s.Later == 0
	}
	until(quiet)
	missing := map[uuid.UUID]bool{}
	for _, item := range dead() {
		if random.one(in(2)) {
			_, err := operator.Drop(t.Context(), "paid by hand", item.Position)
			require.NoError(t, err)
			missing[item.Message.ID] = true
		}
	}
	heal(true)
	until(func() bool {
		retry(t, operator, dead())
		return quiet() && len(dead()) == 0
	})
	for _, p := range twins {
		p.stop(t)
	}

	for _, a := range sink.all() { // it arrived, and the answer was lost
		delete(missing, a.id)
	}
	requireOrder(t, store, sink.all(), missing)
}

// retry has dead messages sent again.
func retry(t *testing.T, q *queue.Queue, items []queue.Item) {
	t.Helper()
	for _, item := range items {
		_, err := q.Retry(t.Context(), "mended", item.Position)
		require.NoError(t, err)
	}
}
