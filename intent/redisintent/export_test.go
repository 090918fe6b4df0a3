package redisintent

import (
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// NewWithClock returns a store whose script reads its time from the hash of that name, in seconds
// and microseconds, and for the rest is the script.
func NewWithClock(client redis.UniversalClient, hash string) *Store {
	clocked := strings.Replace(appendLua, "redis.call('TIME')", "redis.call('HMGET', '"+hash+"', 'seconds', 'microseconds')", 1)
	if clocked == appendLua {
		panic("the script reads no time")
	}
	return &Store{testkit.Must(messagestore.New(&driver{client: client, script: redis.NewScript(clocked)}, nil))}
}
