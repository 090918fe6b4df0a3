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

	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

var errDead = &deadError{}

// A deadError ends a run at once.
type deadError struct{}

func (*deadError) Error() string        { return "the process is dead" }
func (*deadError) Is(target error) bool { return target == messagestore.ErrClosed }

// A process is a relay that a test can kill: from then on its store and its sink have no effect. It can
// also be paused: its calls wait.
type process struct {
	*messagestore.Store

	sink outbox.Sink

	mu     sync.Mutex
	thawed *sync.Cond
	paused bool
	dead   bool
	cancel context.CancelFunc
	ended  chan error
}

func start(store *messagestore.Store, sink outbox.Sink, config *outbox.Config) *process {
	p := &process{Store: store, sink: sink, ended: make(chan error, 1)}
	p.thawed = sync.NewCond(&p.mu)
	relay := relayOf(p, p, config)
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
	_ = await.Receive(t, "the end of a relay that is killed", p.ended) // it is dead
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	require.NoError(t, await.Receive(t, "the end of a relay", p.ended))
}

func (p *process) Send(ctx context.Context, m *outbox.Message) error {
	if err := p.lives(); err != nil {
		return err
	}
	err := p.sink.Send(ctx, m)
	return errors.Join(err, p.lives())
}

func (p *process) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if err := p.lives(); err != nil {
		return messagestore.Written{}, err
	}
	written, err := p.Store.Write(ctx, stream, expected, bodies...)
	return written, errors.Join(err, p.lives())
}

func (p *process) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if err := p.lives(); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return p.Store.ReadCategoryPage(ctx, q)
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
	_, err := txs.Transact(t.Context(), "", func(ctx context.Context, tx Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
		return nil, exec(ctx, tx, "create table payments (amount int)")
	})
	require.NoError(t, err)
	errUndone := errors.New("undone")
	sink := &receiver{}
	stop := running(t, relayOf(store, sink, nil))
	committed := 0
	for i := range 24 {
		_, err := txs.Transact(t.Context(), "", func(ctx context.Context, tx Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
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

	await.That(t, "the committed messages are sent", func() (bool, any) {
		n := len(sink.all())
		return n >= committed, fmt.Sprintf("%d of %d", n, committed)
	})

	stop()
	requireOrder(t, store, sink.all(), nil)
	require.Len(t, sink.all(), 12)
}

// O2, O3 and O4: two replicas are killed at any point, paused beyond their lease and started again, while the sink
// fails as it likes. Each message arrives, under its id; first arrivals of a key are in order; and a crash
// sends no more again than the checkpoint allows.
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
				config := &outbox.Config{Lease: time.Second, CheckpointMessages: 10, Concurrency: 8}
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
	if tier.Long() {
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

// O4: a relay that dies between a send and its checkpoint sends the same ids again, at most those that its
// checkpoint allows, and nothing else.
func TestADeathBetweenSendAndCheckpointSendsTheSameIDsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 100 {
			for _, key := range keys(5) {
				write(t, store, key, i, i+1)
			}
		}
		first := &receiver{delay: 10 * time.Millisecond}
		p := start(store, first, &outbox.Config{CheckpointMessages: 20})
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
		require.LessOrEqual(t, again, 20+1000)
		require.Less(t, len(second.all()), 500, "the checkpoint counts")
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
	into := must.New(outbox.Into(other, nil))
	sink := sinkFunc(func(ctx context.Context, m *outbox.Message) error {
		err := into.Send(ctx, m)
		if random.one(in(5)) {
			return errAway // the answer is lost
		}
		return err
	})
	config := &outbox.Config{Lease: time.Second, CheckpointMessages: 5, PollInterval: 5 * time.Millisecond}
	twins := []*process{start(store, sink, config), start(store, sink, config)}

	messages := 100
	if tier.Long() {
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
	await.Equal(t, "the other store has all messages", messages, count)
	for _, p := range twins {
		p.stop(t)
	}
	require.Equal(t, stored(t, store), stored(t, other))
}

// O6: first arrivals of each key are in order, with those of messages that were parked; while replicas are
// killed, the sink refuses messages for good, and an operator redrives and drops.
func TestParkedKeysArriveInOrderThoughRelaysAreKilled(t *testing.T) {
	t.Parallel()
	for seed := range seeds() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				parkedInOrder(t, newStore(), seed, 300, time.Sleep, func(is func() bool) {
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
func TestParkedKeysArriveInOrderInADatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, open func(t *testing.T) *messagestore.Store) {
		t.Helper()
		parkedInOrder(t, open(t), 1, 60, func(time.Duration) {}, func(is func() bool) {
			t.Helper()
			await.True(t, "the messages arrive", is)
		})
	})
}

func parkedInOrder(t *testing.T, store *messagestore.Store, seed uint64, messages int, pause func(time.Duration), until func(func() bool)) {
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
	config := &outbox.Config{Lease: time.Second, CheckpointMessages: 5, Concurrency: 8, RedriveInterval: 20 * time.Millisecond, PollInterval: 5 * time.Millisecond}
	twins := []*process{start(store, sink, config), start(store, sink, config)}
	letters := deadletter.Of(store, outgoing, "tobank")
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
			_, err := letters.RequestRedrive(t.Context())
			require.NoError(t, err)
		}
	}
	// No relay is killed from here on: a message that is dropped before the checkpoint has passed it may be
	// delivered after a crash.
	until(func() bool {
		n := 0
		for _, all := range stored(t, store) {
			n += len(all)
		}
		ids := map[uuid.UUID]bool{}
		for _, a := range sink.all() {
			ids[a.id] = true
		}
		for p, err := range letters.All(t.Context()) {
			require.NoError(t, err)
			ids[p.ID] = true
		}
		return len(ids) == n
	})
	dropped := map[uuid.UUID]bool{}
	for p, err := range letters.All(t.Context()) {
		require.NoError(t, err)
		if !p.Behind && random.one(in(2)) {
			_, err := letters.Drop(t.Context(), p.ID, "paid by hand")
			require.NoError(t, err)
			dropped[p.ID] = true
		}
	}
	heal(true)
	until(func() bool {
		_, err := letters.RequestRedrive(t.Context())
		require.NoError(t, err)
		open, err := deadletter.Counts(t.Context(), store, outgoing)
		require.NoError(t, err)
		return open["tobank"] == 0
	})
	for _, p := range twins {
		p.stop(t)
	}

	missing := map[uuid.UUID]bool{}
	for id := range dropped { // unless it arrived before its answer was lost
		missing[id] = true
		for _, a := range sink.all() {
			if a.id == id {
				delete(missing, id)
			}
		}
	}
	requireOrder(t, store, sink.all(), missing)
}
