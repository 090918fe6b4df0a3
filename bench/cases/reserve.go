package cases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// The category and the sizes of the cases that reserve idempotence keys.
const (
	// reservedCategory is where keys are reserved.
	reservedCategory messagestore.Category = "account:command"

	reserveCallers = 64

	// keyExpiry is when Redis forgets a key. Dibs does not.
	keyExpiry = 24 * time.Hour
)

// The names of the ways to reserve.
const (
	reserver       = "Dibs, a reserver"
	redisDurable   = "Redis, appendfsync always"
	redisSetAndGet = "Redis, SET NX and GET"
)

// Reserve returns the cases of reserving idempotence keys.
func Reserve() []measure.Case {
	return []measure.Case{{
		Name:  "reserve/new",
		Shows: "Reserve a new key, 64 callers",
		Contenders: []measure.Contender{
			{Name: dibs, Run: reserveNew(openDibsTaker)},
			{Name: redisDurable, Run: reserveNew(openRedisTaker("always", redisSet))},
			{Name: messageDB, Run: reserveNew(openMessageDBTaker)},
		},
		Goals: []measure.Goal{{Metric: measure.Rate, Of: dibs, To: redisDurable, AtLeast: 0.9}},
	}, {
		Name:  "reserve/taken",
		Shows: "Refuse a key that is taken, 64 callers",
		Contenders: []measure.Contender{
			{Name: dibs, Run: refuseTaken(openDibsTaker)},
			{Name: reserver, Run: refuseTaken(openReserverTaker)},
			{Name: redisSetAndGet, Run: refuseTaken(openRedisTaker("", redisSetThenGet))},
			{Name: messageDB, Run: refuseTaken(openMessageDBTaker)},
		},
		Goals: []measure.Goal{
			{Metric: measure.Rate, Of: dibs, To: redisSetAndGet, AtLeast: 1.8},
		},
	}}
}

// A taker takes keys, each once.
type taker interface {
	take(ctx context.Context, key messagestore.StreamName) (won bool, err error)
	taken(ctx context.Context) (int64, error)
	close()
}

type openTaker func(ctx context.Context, cell *measure.Cell) (taker, error)

// newKey returns a key that is not taken, as package reservation would name it.
func newKey() messagestore.StreamName { return reservedCategory.Stream("5108").With(newID().String()) }

// newKeyOf returns a stream of the category that is empty.
func newKeyOf(category messagestore.Category) messagestore.StreamName {
	return category.Stream(newID().String())
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// command is the command that a key is reserved for.
func command(key messagestore.StreamName) messagestore.Envelope { return message(string(key), 1) }

func reserveNew(open openTaker) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		t, err := open(ctx, cell)
		if err != nil {
			return err
		}
		defer t.close()
		done, err := cell.Callers(ctx, reserveCallers, func(ctx context.Context, _ int) (int, error) {
			won, err := t.take(ctx, newKey())
			if err == nil && !won {
				err = errors.New("a new key was taken")
			}
			return 1, err
		})
		if err != nil {
			return err
		}
		taken, err := t.taken(ctx)
		return errors.Join(err, cell.Check("keys that are taken", taken, done))
	}
}

func refuseTaken(open openTaker) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		t, err := open(ctx, cell)
		if err != nil {
			return err
		}
		defer t.close()
		keys := make([]messagestore.StreamName, size(cell, 200, 2000, 10_000))
		if err := atOnce(reserveCallers, len(keys), func(i int) error {
			keys[i] = newKey()
			_, err := t.take(ctx, keys[i])
			return err
		}); err != nil {
			return err
		}
		random := randoms(cell, reserveCallers)
		refused := make([]int64, reserveCallers)
		done, err := cell.Callers(ctx, reserveCallers, func(ctx context.Context, caller int) (int, error) {
			won, err := t.take(ctx, keys[random[caller].IntN(len(keys))])
			if !won {
				refused[caller]++
			}
			return 1, err
		})
		if err != nil {
			return err
		}
		taken, err := t.taken(ctx)
		return errors.Join(err, cell.Check("keys that are taken", taken, int64(len(keys))), cell.Check("refusals", sum(refused), done))
	}
}

// A dibsTaker makes a reservation like a user: by an initial write.
type dibsTaker struct{ *dibsStore }

func openDibsTaker(ctx context.Context, cell *measure.Cell) (taker, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, err
	}
	s, err := openDibsStore(ctx, url)
	return dibsTaker{s}, err
}

func (t dibsTaker) take(ctx context.Context, key messagestore.StreamName) (bool, error) {
	return t.WriteInitial(ctx, key, command(key))
}

func (t dibsTaker) taken(ctx context.Context) (int64, error) { return t.count(ctx) }

// A reserverTaker takes keys by package reservation, which also returns the winner.
type reserverTaker struct {
	dibsTaker
	*reservation.Reserver
	commands *atomic.Int64
}

func openReserverTaker(ctx context.Context, cell *measure.Cell) (taker, error) {
	opened, err := openDibsTaker(ctx, cell)
	if err != nil {
		return nil, err
	}
	t := opened.(dibsTaker) //nolint:errcheck,forcetypeassert // it is one
	r, err := reservation.New(t.Store, "bench", nil)
	return reserverTaker{t, r, &atomic.Int64{}}, err
}

func (t reserverTaker) take(ctx context.Context, key messagestore.StreamName) (bool, error) {
	m := command(key)
	r, err := encode(key, messagestore.NoStream, m)
	if err != nil {
		return false, err
	}
	n := t.commands.Add(1)
	source := &messagestore.Message{
		ID: m.ID, Stream: reservedCategory.Stream(key.CardinalID()), Position: messagestore.Version(n), GlobalPosition: messagestore.GlobalPosition(n),
		Time: time.Now(), Type: messageType, Data: r.data,
	}
	result, err := t.Reserve(ctx, source, strings.TrimPrefix(key.ID(), key.CardinalID()+"+"))
	switch {
	case err != nil:
		return false, err
	case result.Winner == nil || result.Outcome == reservation.KeyReused:
		return false, fmt.Errorf("%s: %v, and the winner is %v", key, result.Outcome, result.Winner)
	}
	return result.Outcome == reservation.Reserved, nil
}

// A messageDBTaker writes at expected version -1.
type messageDBTaker struct{ *messageDBStore }

func openMessageDBTaker(ctx context.Context, cell *measure.Cell) (taker, error) {
	url, err := database(ctx, cell, server.MessageDB)
	if err != nil {
		return nil, err
	}
	s, err := openMessageDBStore(ctx, url)
	return messageDBTaker{s}, err
}

func (t messageDBTaker) take(ctx context.Context, key messagestore.StreamName) (bool, error) {
	return t.write(ctx, key, messagestore.NoStream, command(key))
}

func (t messageDBTaker) taken(ctx context.Context) (int64, error) { return t.count(ctx) }

// A redisTaker sends one request at a time for each caller, on the caller's own connection.
type redisTaker struct {
	*redis.Client
	set func(ctx context.Context, client *redis.Client, key string, value []byte) (won bool, err error)
}

func openRedisTaker(appendFsync string, set func(context.Context, *redis.Client, string, []byte) (bool, error)) openTaker {
	return func(ctx context.Context, cell *measure.Cell) (taker, error) {
		client, err := openRedis(ctx, cell, appendFsync)
		return &redisTaker{client, set}, err
	}
}

// openRedis returns a client of a Redis that is empty, with a connection for each caller.
func openRedis(ctx context.Context, cell *measure.Cell, appendFsync string) (*redis.Client, error) {
	r, err := cell.Servers.Redis(ctx, appendFsync)
	if err != nil {
		return nil, err
	}
	cell.MeasureServer(r)
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: r.Socket(), PoolSize: reserveCallers, MinIdleConns: reserveCallers, ContextTimeoutEnabled: true,
	})
	// It has keys of the cell before, and an append-only file that is long by now.
	if err := errors.Join(client.FlushAll(ctx).Err(), rewrite(ctx, client, appendFsync)); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return client, nil
}

// rewrite makes the append-only file short again, and waits for it.
func rewrite(ctx context.Context, client *redis.Client, appendFsync string) error {
	if appendFsync == "" {
		return nil
	}
	if err := client.BgRewriteAOF(ctx).Err(); err != nil {
		return err
	}
	return until(ctx, "the file is written anew", func() (bool, any, error) {
		info, err := client.InfoMap(ctx, "persistence").Result()
		state := info["Persistence"]
		return state["aof_rewrite_in_progress"] == "0" && state["aof_rewrite_scheduled"] == "0", state, err
	})
}

func (t *redisTaker) take(ctx context.Context, key messagestore.StreamName) (bool, error) {
	r, err := encode(key, messagestore.NoStream, command(key))
	if err != nil {
		return false, err
	}
	return t.set(ctx, t.Client, string(key), r.data)
}

func (t *redisTaker) taken(ctx context.Context) (int64, error) { return t.DBSize(ctx).Result() }

func (t *redisTaker) close() { _ = t.Close() }

// redisSet is the flow of a key that is new.
func redisSet(ctx context.Context, client *redis.Client, key string, value []byte) (bool, error) {
	_, err := client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: keyExpiry}).Result()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// redisSetThenGet reads the owner of the key if it is taken.
func redisSetThenGet(ctx context.Context, client *redis.Client, key string, value []byte) (bool, error) {
	won, err := redisSet(ctx, client, key, value)
	if won || err != nil {
		return won, err
	}
	winner, err := client.Get(ctx, key).Bytes()
	if err == nil && len(winner) == 0 {
		err = fmt.Errorf("%s has no owner", key)
	}
	return false, err
}
