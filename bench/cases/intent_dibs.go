package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/redisintent"
	"github.com/dibs-go/dibs/messagestore"
)

// intentTTL is longer than a turn, so that no lease ends in it.
const intentTTL = 10 * time.Minute

// A managed store keeps intents by package intent, as a user would.
type managed struct{ *intent.Manager }

func manage(store intent.Store) (managed, error) {
	m, err := intent.New(store, intentCategory, &intent.Config{TTL: intentTTL})
	return managed{m}, err
}

func (m managed) reserve(ctx context.Context, key, session string) (*reply, error) {
	a, err := m.Reserve(ctx, intent.Request{Key: key, Session: session, Content: paymentOf(key)})
	if err != nil {
		return nil, err
	}
	switch a.Outcome {
	case intent.Reserved:
		return &reply{outcome: intentGranted, key: key, session: session, lease: a.Lease}, nil
	case intent.Held:
		if a.Intent.Left <= 0 {
			return nil, fmt.Errorf("intent %s: held, and no longer", key)
		}
		return &reply{outcome: intentHeld, holder: a.Intent.Session}, nil
	case intent.Done:
		return &reply{outcome: intentDone, result: a.Intent.Result}, nil
	default:
		return nil, fmt.Errorf("intent %s: %v", key, a.Outcome)
	}
}

func (managed) extend(ctx context.Context, granted *reply) error {
	return leaseOf(granted).Extend(ctx)
}

func (managed) confirm(ctx context.Context, granted *reply) error {
	return leaseOf(granted).Confirm(ctx, storedResponse)
}

func leaseOf(granted *reply) *intent.Lease {
	return granted.lease.(*intent.Lease) //nolint:errcheck,forcetypeassert // it is one
}

// A dibsIntents is package intent over a store.
type dibsIntents struct {
	managed
	*dibsStore
}

func openDibsIntents(ctx context.Context, cell *measure.Cell) (intentStore, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, err
	}
	s, err := openDibsStore(ctx, url)
	if err != nil {
		return nil, err
	}
	m, err := manage(s.Store)
	return &dibsIntents{m, s}, err
}

func (s *dibsIntents) intents(ctx context.Context, confirmed bool) (n int64, err error) {
	return countIntents(ctx, s.dibsStore, confirmed)
}

func countIntents(ctx context.Context, s *dibsStore, confirmed bool) (n int64, err error) {
	if confirmed {
		return n, s.pool.QueryRow(ctx, "select count(*) from dibs.messages where type = $1", intent.TypeConfirmed).Scan(&n)
	}
	return n, s.pool.QueryRow(ctx, "select count(*) from dibs.messages where position = 0 and type = $1", intent.TypeReserved).Scan(&n)
}

// size returns how many bytes the messages take with their indexes.
func (s *dibsIntents) size(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, "select pg_total_relation_size('dibs.messages')").Scan(&n)
}

// A dibsOnRedisStore is package intent over Redis.
type dibsOnRedisStore struct {
	managed
	client *redis.Client
}

func openDibsOnRedis(ctx context.Context, cell *measure.Cell) (intentStore, error) {
	client, err := openRedis(ctx, cell, "always")
	if err != nil {
		return nil, err
	}
	store, err := redisintent.New(client, nil)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	m, err := manage(store)
	return &dibsOnRedisStore{m, client}, err
}

func (s *dibsOnRedisStore) intents(ctx context.Context, _ bool) (int64, error) {
	return s.client.DBSize(ctx).Result()
}

func (s *dibsOnRedisStore) close() { _ = s.client.Close() }

// A todaysIntents is the same messages by plain writes, and by reads after a conflict: the price
// of both before a write returned the message that it met.
type todaysIntents struct{ *dibsStore }

func openTodaysIntents(ctx context.Context, cell *measure.Cell) (intentStore, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, err
	}
	s, err := openDibsStore(ctx, url)
	return &todaysIntents{s}, err
}

// A todaysLease is a grant and the version that it is at.
type todaysLease struct {
	intent.Grant
	token   int64
	version messagestore.Version
}

func (s *todaysIntents) reserve(ctx context.Context, key, session string) (*reply, error) {
	digest, err := digestOf(key)
	if err != nil {
		return nil, err
	}
	grant := intent.Grant{Session: session, Attempt: 1, TTL: intentTTL.Milliseconds(), Content: digest}
	stream := intentCategory.Stream(key)
	body := intent.ReservedMessage{Grant: grant}
	written, err := s.Write(ctx, stream, messagestore.NoStream, body)
	if err == nil {
		return &reply{
			outcome: intentGranted, key: key, session: session,
			lease: &todaysLease{grant, body.Token(written.Time), written.Version},
		}, nil
	}
	if !errors.Is(err, messagestore.ErrVersionConflict) {
		return nil, err
	}
	last, err := s.Last(ctx, stream)
	if err != nil {
		return nil, err
	}
	if last.Type == intent.TypeConfirmed {
		done, err := messagestore.Decode[intent.Confirmed](last)
		return &reply{outcome: intentDone, result: done.Result}, err
	}
	held, err := messagestore.Decode[intent.ReservedMessage](last)
	if err != nil {
		return nil, err
	}
	now, err := s.Now(ctx)
	if err == nil && last.Time.Add(intentTTL).Before(now) {
		err = fmt.Errorf("intent %s: held, and no longer", key)
	}
	return &reply{outcome: intentHeld, holder: held.Session}, err
}

func (s *todaysIntents) extend(ctx context.Context, granted *reply) error {
	l := todaysLeaseOf(granted)
	return s.step(ctx, granted, intent.Extended{Grant: l.Grant, Token: l.token})
}

func (s *todaysIntents) confirm(ctx context.Context, granted *reply) error {
	l := todaysLeaseOf(granted)
	return s.step(ctx, granted, intent.Confirmed{Grant: l.Grant, Token: l.token, Result: storedResponse})
}

func (s *todaysIntents) step(ctx context.Context, granted *reply, body messagestore.Body) error {
	l := todaysLeaseOf(granted)
	written, err := s.Write(ctx, intentCategory.Stream(granted.key), l.version, body)
	l.version = written.Version
	return err
}

func todaysLeaseOf(granted *reply) *todaysLease {
	return granted.lease.(*todaysLease) //nolint:errcheck,forcetypeassert // it is one
}

func (s *todaysIntents) intents(ctx context.Context, confirmed bool) (int64, error) {
	return countIntents(ctx, s.dibsStore, confirmed)
}
