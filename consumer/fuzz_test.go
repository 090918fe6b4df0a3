package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

type counted struct{ handled []*messagestore.Message }

func (c *counted) Handle(_ context.Context, m *messagestore.Message) error {
	c.handled = append(c.handled, m)
	return nil
}

func writeRaw(t *testing.T, store *messagestore.Store, stream messagestore.StreamName, messageType, data string) bool {
	t.Helper()
	_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: messageType, Data: json.RawMessage(data)})
	return err == nil // else the store refuses it, so no writer can have written it
}

// Any content of the ledger is read as a start, or is an error: no message is handled on a guess.
func FuzzAStartIsNeverGuessed(f *testing.F) {
	for _, seed := range []string{
		`{"start":0}`, `{"start":1}`, `{"start":2}`, `{"start":null}`, `{"start":-1}`, `{"start":1e0}`, `{"start":"1"}`,
		`{"start":9223372036854775807}`, `{"start":9223372036854775808}`, `{"Start":0}`, `{}`, `{"start":1,"start":3}`,
		`{"start":1,"after":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}`, `{"start":1,"after":"none"}`, `{"start":1,"after":null}`,
	} {
		f.Add("Started", seed)
	}
	f.Add("Recorded", `{"start":0}`)
	for _, data := range testkit.SeedJSON("start") {
		f.Add("Started", data)
	}
	f.Fuzz(func(t *testing.T, messageType, data string) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		require.True(t, writeRaw(t, store, "account-1", "Opened", `{}`))
		if !writeRaw(t, store, "account:position-ledger", messageType, data) {
			return
		}
		var handler counted
		c := testkit.Must(New(store, "account", "ledger", &handler, nil))

		err := c.CatchUp(t.Context())

		var fields struct{ Start, After json.RawMessage }
		wrong := json.Unmarshal([]byte(data), &fields)
		if fields.After != nil && err != nil { // an id of another message, or none
			require.True(t, errors.Is(err, ErrPositionCorrupt) || errors.Is(err, ErrPositionAhead), "%v", err)
			require.Empty(t, handler.handled)
			return
		}
		start, noStart := wholeNumber(fields.Start)
		fits := messageType == "Started" && wrong == nil && noStart == nil && start >= 0
		if !fits {
			require.ErrorIs(t, err, ErrPositionCorrupt)
			require.Less(t, len(err.Error()), 2000)
			require.Empty(t, handler.handled)
			return
		}
		if start > 2 {
			require.ErrorIs(t, err, ErrPositionAhead)
			require.Empty(t, handler.handled)
			return
		}
		require.NoError(t, err)
		require.Len(t, handler.handled, map[bool]int{true: 1}[start <= 1])
	})
}

func wholeNumber(raw json.RawMessage) (int64, error) { return strconv.ParseInt(string(raw), 10, 64) }

// requireTold requires an error of a readable length, without control characters but for
// the line breaks between joined errors.
func requireTold(t *testing.T, err error) {
	t.Helper()
	require.Less(t, len(err.Error()), 3000)
	require.False(t, strings.ContainsFunc(strings.ReplaceAll(err.Error(), "\n", ""), unicode.IsControl), "%q", err)
}

func FuzzAConfigurationHasItsBounds(f *testing.F) {
	for _, d := range []int64{math.MinInt64, -1, 0, 1, int64(time.Millisecond) - 1, int64(time.Millisecond), int64(time.Hour), int64(time.Hour) + 1, int64(24 * time.Hour), math.MaxInt64} {
		f.Add(d, d, int64(0), 1, 0, 0)
		f.Add(int64(0), int64(0), d, int(d), int(d), int(d))
	}
	f.Add(int64(1<<63-1), int64(1<<63-1), int64(1<<63-1), 1<<63-1, 1<<63-1, 1<<63-1) // greatest
	f.Fuzz(func(t *testing.T, poll, span, most int64, concurrency, messages, then int) {
		between := func(n, low, high int64) bool { return n == 0 || low <= n && n <= high }
		config := &Config{
			PollInterval: time.Duration(poll), Concurrency: concurrency, CheckpointMessages: messages, BatchSize: concurrency,
			Errors: ErrorPolicy{Retry: Retry{For: time.Duration(span), MaxBackoff: time.Duration(most)}, Then: FailureAction(then)},
		}
		ok := between(poll, int64(time.Millisecond), int64(time.Hour)) && between(most, int64(time.Millisecond), int64(24*time.Hour)) &&
			(between(span, 0, int64(24*time.Hour)) || time.Duration(span) == NoRetry || time.Duration(span) == Forever) &&
			between(int64(concurrency), 1, 1024) && between(int64(messages), 1, 1_000_000) && (then == 0 || then == 1)

		c, err := New(testkit.Must(messagestore.New(memory.New(), nil)), "account", "ledger", &counted{}, config)

		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			requireTold(t, err)
			return
		}
		since := time.Now()
		retry := c.config.Errors.Retry
		for failures := 1; failures < 2000; failures += 7 {
			wait, again := retry.pause(failures, since, since)
			require.Equal(t, retry.For != NoRetry, again)
			require.LessOrEqual(t, wait, retry.MaxBackoff)
			_, again = retry.pause(failures, since, since.Add(25*time.Hour))
			require.Equal(t, retry.For == Forever, again)
		}
	})
}

// A name is a part of a stream's, for each stream that the consumer writes.
func FuzzANameIsOneOrRefused(f *testing.F) {
	for _, name := range []string{"ledger", "", "a-b", "a+b", "a b", " a", "a\n", "a\u202e", "a\x00", "\xff", "a:b", strings.Repeat("x", 150), strings.Repeat("x", 10_000)} {
		f.Add("account", name)
		f.Add(name, "ledger")
	}
	for _, name := range testkit.SeedNames() {
		f.Add("account", name)
	}
	f.Fuzz(func(t *testing.T, category, name string) {
		c, err := New(testkit.Must(messagestore.New(memory.New(), nil)), messagestore.Category(category), name, &counted{}, nil)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			requireTold(t, err)
			return
		}
		for _, stream := range []messagestore.StreamName{c.id.Ledger(), c.id.Checkpoints(math.MaxInt64)} {
			require.NoError(t, stream.Validate())
			require.Equal(t, messagestore.Category(category).Entity(), stream.Category().Entity())
			require.Equal(t, name, stream.CardinalID())
		}
		require.NoError(t, queuing.ValidateQueue(c.id.Parked()))
	})
}
