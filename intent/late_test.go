package intent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A lateStore answers its first write late.
type lateStore struct {
	*messagestore.Store

	by time.Duration
}

func (s *lateStore) TryWrite(
	ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body,
) (messagestore.Written, *messagestore.Conflict, error) {
	written, met, err := s.Store.TryWrite(ctx, stream, expected, bodies...)
	time.Sleep(s.by)
	s.by = 0
	return written, met, err
}

// The work of a lease whose grant was answered after its time is not begun: another may have the lease.
func TestDoBeginsNoWorkUnderALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 15 * time.Second
		store := &lateStore{testkit.Must(messagestore.New(memory.New(), nil)), ttl + time.Second}
		m := testkit.Must(intent.New(store, "payment", &intent.Config{TTL: ttl, Logger: logger.Silent()}))
		begun := false
		_, err := m.Do(t.Context(), request(""), func(context.Context, *intent.Lease) (any, error) {
			begun = true
			return nil, nil
		})
		require.ErrorIs(t, err, intent.ErrLeaseLost)
		require.False(t, begun)
	})
}
