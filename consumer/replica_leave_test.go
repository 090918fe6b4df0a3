package consumer_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// A taking store stops its consumer once that has taken all slots, before it can do anything else.
type taking struct {
	*frozen
	armed atomic.Bool
	stop  context.CancelFunc
}

func (s *taking) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	written, err := s.frozen.Write(ctx, stream, expected, bodies...)
	if m, ok := bodies[0].(messagestore.Envelope); ok && s.armed.Load() && strings.Contains(string(stream), ":position") {
		var body struct {
			Group struct {
				Members []any
				Parts   []struct{ Holder uuid.UUID }
			}
		}
		encoded, encodeErr := json.Marshal(m.Body)
		if encodeErr != nil || json.Unmarshal(encoded, &body) != nil {
			return written, encodeErr
		}
		all := len(body.Group.Members) == 1
		for _, p := range body.Group.Parts {
			all = all && p.Holder != uuid.Nil
		}
		if all {
			s.stop()
		}
	}
	return written, err
}

func (s *taking) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if ctx.Err() != nil {
		return messagestore.CategoryPage{}, ctx.Err()
	}
	return s.frozen.ReadCategoryPage(ctx, q)
}

// The slots that a replica takes are where another left them, and not where the replica was with its own.
func TestAReplicaThatStopsWhenItHasTakenSlotsLeavesThemWhereTheyWere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		config := &consumer.Config{Concurrency: 4}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &taking{frozen: &frozen{Store: testkit.Must(messagestore.New(driver, nil))}, stop: cancel}
		s.thawed = sync.NewCond(&s.mu)
		first := &journal{}
		ended := make(chan error, 1)
		c := newConsumer(t, s, first, config)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Second)
		second := newReplica(t, driver, config)
		time.Sleep(10 * time.Second) // each has its share
		writeEach(t, driver, 64, 0)
		time.Sleep(10 * time.Second)
		before := len(first.all())
		second.store.kill()
		written := writeEach(t, driver, 64, 1)
		time.Sleep(5 * time.Second)
		mine := first.all()[before:]
		require.NotEmpty(t, mine)
		require.Less(t, len(mine), len(written), "some are the other's")

		s.armed.Store(true)
		require.NoError(t, <-ended)
		third := newReplica(t, driver, config)
		time.Sleep(time.Minute)

		require.ElementsMatch(t, written, append(mine, third.all()...))
		require.NoError(t, third.stop())
	})
}
