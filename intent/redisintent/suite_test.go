package redisintent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/intenttest"
	"github.com/dibs-go/dibs/intent/redisintent"
)

func TestIntentsInRedis(t *testing.T) {
	s, clocked := newServer(t), startServer(t, false)
	intenttest.Run(t, intenttest.Options{
		Open: func(t *testing.T) intent.Store {
			t.Helper()
			_, store := s.open(t)
			return store
		},
		OpenWithClock: func(t *testing.T, clock func() time.Time) intent.Store {
			t.Helper()
			client, plain := clocked.client(), clocked.client()
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			t.Cleanup(func() { require.NoError(t, plain.Close()) })
			hash := "clock-" + uuid.NewString()
			client.AddHook(&clockHook{clock, plain, hash})
			return redisintent.NewWithClock(client, hash)
		},
	})
}

// A clockHook puts the time of its clock into a hash before each script, and answers TIME with it.
type clockHook struct {
	clock  func() time.Time
	client *redis.Client
	hash   string
}

func (*clockHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*clockHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *clockHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		now := h.clock()
		if strings.HasPrefix(cmd.Name(), "eval") {
			if err := h.client.HSet(ctx, h.hash, "seconds", now.Unix(), "microseconds", now.Nanosecond()/1000).Err(); err != nil {
				return err
			}
		}
		err := next(ctx, cmd)
		if asked, ok := cmd.(*redis.TimeCmd); ok && err == nil {
			asked.SetVal(now)
		}
		return err
	}
}
