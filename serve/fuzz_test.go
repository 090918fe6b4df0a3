package serve

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

func fuzzedQueue(t testing.TB, name string) *servedQueue {
	t.Helper()
	store, err := messagestore.New(memory.New(), nil)
	require.NoError(t, err)
	q, err := queue.New(store, messagestore.Category(name), nil)
	require.NoError(t, err)
	return &servedQueue{Queue: q}
}

// A delivery has one id, and no other text is taken for it: neither another spelling, nor a changed
// byte, nor the id of another queue.
func FuzzDeliveryID(f *testing.F) {
	q, other := fuzzedQueue(f, "mail"), fuzzedQueue(f, "post")
	f.Add(deliveryID(q, queue.Delivery{Position: 7, Version: 1, Session: 9}))
	f.Add(deliveryID(other, queue.Delivery{Position: 7, Version: 1, Session: 9}))
	f.Add(deliveryID(q, queue.Delivery{Position: 1 << 62, Version: 1<<31 - 1, Session: 1 << 62}) + "\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, id string) {
		d, err := parseDelivery(q, "delivery_id", id)
		if err != nil {
			require.Zero(t, d)
			return
		}
		require.Equal(t, id, deliveryID(q, d), "another text for the same delivery")
		_, err = parseDelivery(other, "delivery_id", id)
		require.Error(t, err, "the id of another queue")
		for i := range id {
			changed := []byte(id)
			changed[i] ^= 1
			_, err = parseDelivery(q, "delivery_id", string(changed))
			require.Error(t, err, "%d", i)
		}
	})
}

func FuzzPageToken(f *testing.F) {
	for _, token := range []string{"", "0", "17", "-1", "+5", "007", "9223372036854775808", "1e3", " 1"} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		from, err := pageFrom(token)
		require.GreaterOrEqual(t, from, messagestore.GlobalPosition(0))
		if err == nil && token != "" {
			require.Equal(t, token, strconv.FormatInt(int64(from), 10), "another text for the same page")
		}
	})
}

// What the codec takes is a message, which it writes in such a way that it reads the same again.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"queue":{"category":"mail"},"receiveId":"x","maxItems":3,"maxWait":"1.5s","settlements":[{"deliveryId":"a","retry":{"delay":"0s","error":"\u0000"}}]}`))
	f.Add([]byte(`{"queue":{"category":"mail"},"maxItem":3}`))
	f.Add([]byte(`{"maxItems":1e1,"attempt":"7"}`))
	f.Add([]byte(`{"settlements":[{"complete":{},"bury":{}}]}`))
	f.Add([]byte(`null`))
	f.Add([]byte(``))
	f.Add([]byte(strings.Repeat(`{"queue":`, 10_000)))
	f.Fuzz(func(t *testing.T, body []byte) {
		var read, again v1.ReceiveRequest
		if (jsonCodec{}).Unmarshal(body, &read) != nil {
			return
		}
		written, err := jsonCodec{}.Marshal(&read)
		require.NoError(t, err)
		require.NoError(t, jsonCodec{}.Unmarshal(written, &again), "%s", written)
		require.True(t, proto.Equal(&read, &again), "%s, then %s", body, written)
	})
}

// No text but a key's own finds its caller.
func FuzzKeyText(f *testing.F) {
	store, err := messagestore.New(memory.New(), nil)
	require.NoError(f, err)
	text, err := AddKey(f.Context(), store, Key{ID: "shop", Categories: []string{"order"}, Right: Write})
	require.NoError(f, err)
	keys, err := FollowKeys(f.Context(), store, logger.Silent())
	require.NoError(f, err)
	require.NotNil(f, keys.of(text))
	for _, other := range []string{"", "dibs_", "dibs_shop", "dibs_shop_", text[:len(text)-1], text + "0", strings.ToUpper(text), " " + text, strings.Replace(text, "shop", "shoq", 1)} {
		f.Add(other)
	}
	f.Fuzz(func(t *testing.T, other string) {
		require.Equal(t, other == text, keys.of(other) != nil)
	})
}
