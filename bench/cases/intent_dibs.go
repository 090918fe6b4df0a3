package cases

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
)

// intentTTL is longer than a turn, so that no lease ends in it.
const intentTTL = 10 * time.Minute

// A managed store keeps intents by package intent, like a user.
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
	if confirmed {
		return n, s.pool.QueryRow(ctx, "select count(*) from dibs.messages where type = $1", intentlog.TypeConfirmed).Scan(&n)
	}
	return n, s.pool.QueryRow(ctx, "select count(*) from dibs.messages where position = 0 and type = $1", intentlog.TypeReserved).Scan(&n)
}

// size returns how many bytes the messages take with their indexes.
func (s *dibsIntents) size(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, "select pg_total_relation_size('dibs.messages')").Scan(&n)
}
