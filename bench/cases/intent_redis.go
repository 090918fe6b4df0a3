package cases

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/bench/measure"
)

// A redisIntents keeps an intent in two keys: processing:KEY, which expires, and entity_exists:KEY,
// which has the result. One script does each step.
type redisIntents struct{ *redis.Client }

func openRedisIntents(appendFsync string) openIntents {
	return func(ctx context.Context, cell *measure.Cell) (intentStore, error) {
		client, err := openRedis(ctx, cell, appendFsync)
		return &redisIntents{client}, err
	}
}

const (
	redisProcessing = "processing:"
	redisExists     = "entity_exists:"
	redisFence      = "fence"
)

var redisReserve = redis.NewScript(`
	local done = redis.call('GET', KEYS[2])
	if done then return {2, done} end
	local held = redis.call('GET', KEYS[1])
	if held then return {1, held, redis.call('PTTL', KEYS[1])} end
	local token = redis.call('INCR', KEYS[3])
	redis.call('SET', KEYS[1], ARGV[1] .. ':' .. token .. ':' .. ARGV[3], 'PX', ARGV[2])
	return {0, token}`)

var redisExtend = redis.NewScript(`
	if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
	return 0`)

var redisConfirm = redis.NewScript(`
	if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
	redis.call('SET', KEYS[2], ARGV[2])
	redis.call('DEL', KEYS[1])
	return 1`)

// The script's answers.
const (
	redisGranted = iota
	redisHeld
	redisDone
)

func (r *redisIntents) reserve(ctx context.Context, key, session string) (*reply, error) {
	digest, err := digestOf(key)
	if err != nil {
		return nil, err
	}
	said, err := redisReserve.Run(ctx, r.Client, []string{redisProcessing + key, redisExists + key, redisFence},
		session, intentTTL.Milliseconds(), digest).Slice()
	if err != nil {
		return nil, err
	}
	switch said[0] {
	case int64(redisGranted):
		token, ok := said[1].(int64)
		if !ok {
			return nil, fmt.Errorf("intent %s: no token", key)
		}
		value := session + ":" + strconv.FormatInt(token, 10) + ":" + digest
		return &reply{outcome: intentGranted, key: key, session: session, lease: value}, nil
	case int64(redisHeld):
		value, _ := said[1].(string)
		left, _ := said[2].(int64)
		parts := strings.Split(value, ":")
		if left <= 0 || len(parts) != 3 || parts[2] != digest {
			return nil, fmt.Errorf("intent %s: held as %q for %v", key, value, time.Duration(left)*time.Millisecond)
		}
		return &reply{outcome: intentHeld, holder: parts[0]}, nil
	default:
		result, _ := said[1].(string)
		return &reply{outcome: intentDone, result: []byte(result)}, nil
	}
}

func (r *redisIntents) extend(ctx context.Context, granted *reply) error {
	n, err := redisExtend.Run(ctx, r.Client, []string{redisProcessing + granted.key}, granted.lease, intentTTL.Milliseconds()).Int()
	return stepped(granted, n, err)
}

func (r *redisIntents) confirm(ctx context.Context, granted *reply) error {
	n, err := redisConfirm.Run(ctx, r.Client, []string{redisProcessing + granted.key, redisExists + granted.key}, granted.lease, []byte(storedResponse)).Int()
	return stepped(granted, n, err)
}

func stepped(granted *reply, n int, err error) error {
	if err == nil && n != 1 {
		err = fmt.Errorf("intent %s: its lease is lost", granted.key)
	}
	return err
}

// intents counts keys: of an intent that is held, or done, there is one.
func (r *redisIntents) intents(ctx context.Context, _ bool) (int64, error) {
	n, err := r.DBSize(ctx).Result()
	if err != nil {
		return n, err
	}
	fences, err := r.Exists(ctx, redisFence).Result()
	return n - fences, err
}

func (r *redisIntents) close() { _ = r.Close() }
