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
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/seeds"
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
	return err == nil // else the store refuses it, and so nobody can have written it
}

// Any content of the stream of group sizes is read as a size and a start, or is an error: no message is
// handled on a guess.
func FuzzAGroupSizeIsNeverGuessed(f *testing.F) {
	for _, seed := range []string{
		`{"size":1,"start":0}`, `{"size":1,"start":1}`, `{"size":2,"start":0}`, `{"size":0,"start":0}`, `{"size":-1,"start":0}`, `{"size":1024,"start":0}`, `{"size":1025,"start":0}`, `{"size":1}`,
		`{"size":1,"start":null}`, `{"size":1,"start":-1}`, `{"size":1e0,"start":0}`, `{"size":"1","start":0}`, `{"size":1,"start":9223372036854775807}`, `{"size":9223372036854775808,"start":0}`, `{"SIZE":1,"Start":0}`, `{}`, `{"size":1,"size":3,"start":0}`,
		`{"size":1,"start":1,"after":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}`, `{"size":1,"start":1,"after":"none"}`, `{"size":1,"start":1,"after":null}`,
	} {
		f.Add("Resized", seed)
	}
	f.Add("Recorded", `{"size":1,"start":0}`)
	for _, data := range seeds.JSON("start") {
		f.Add("Resized", data)
	}
	f.Fuzz(func(t *testing.T, messageType, data string) {
		store := messagestore.New(memory.New(), nil)
		require.True(t, writeRaw(t, store, "account-1", "Opened", `{}`))
		if !writeRaw(t, store, "account:position-ledger", messageType, data) {
			return
		}
		var handler counted
		c, err := New(store, "account", "ledger", &handler, nil)
		require.NoError(t, err)

		err = c.CatchUp(t.Context())

		var fields struct{ Size, Start, After json.RawMessage }
		wrong := json.Unmarshal([]byte(data), &fields)
		if fields.After != nil && err != nil { // an id of another message, or none
			require.True(t, errors.Is(err, ErrPositionCorrupt) || errors.Is(err, ErrPositionAhead), "%v", err)
			require.Empty(t, handler.handled)
			return
		}
		size, noSize := wholeNumber(fields.Size)
		start, noStart := wholeNumber(fields.Start)
		fits := messageType == "Resized" && wrong == nil && noSize == nil && noStart == nil && 1 <= size && size <= messagestore.MaxGroupSize && start >= 0
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

// Any content of a dead-letter stream is listed and redriven as recorded, or is an error; the consumer itself
// continues.
func FuzzADeadLetterIsReadOrRefused(f *testing.F) {
	const good = `{"consumer":"ledger","messageId":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f","type":"Opened","stream":"account-1","position":0,"globalPosition":1,"time":"2006-01-02T15:04:05Z","data":{},"metadata":{},"error":"e","attempts":1,"firstFailedAt":"2006-01-02T15:04:05Z"}`
	for _, seed := range []string{
		good, `{}`, `{"metadata":{"properties":[]}}`, `{"messageId":"nope"}`, `{"attempts":9223372036854775807}`, `{"attempts":-1}`, `{"omitted":true,"globalPosition":-1}`, `{"omitted":true,"globalPosition":9223372036854775807}`,
		`{"stream":"a\u000ab"}`, `{"stream":""}`, `{"position":-9223372036854775808}`, `{"time":"x"}`, `{"data":1}`, `{"error":"\u001b[31m"}`, `{"interrupted":true}`, strings.Replace(good, "account-1", "account-\u202e", 1), strings.Replace(good, `"attempts":1`, `"attempts":`+strings.Repeat("1", 300), 1),
	} {
		f.Add("Parked", seed, "Redriving", `{"attempts":2}`)
		f.Add("Parked", seed, "Redriven", seed)
		f.Add("Other", `{}`, "Parked", seed)
	}
	for _, data := range seeds.JSON("attempts") {
		f.Add("Parked", data, "Redriving", `{}`)
	}
	f.Fuzz(func(t *testing.T, firstType, first, secondType, second string) {
		store := messagestore.New(memory.New(), nil)
		require.True(t, writeRaw(t, store, "account-1", "Opened", `{}`))
		id := uuid.MustParse("0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f")
		letter := messagestore.Category("account:deadLetter").Stream("ledger", id.String())
		if !writeRaw(t, store, letter, firstType, first) || !writeRaw(t, store, letter, secondType, second) {
			return
		}
		var handler counted
		c, err := New(store, "account", "ledger", &handler, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		listed := 0
		var failed error
		for p, err := range c.Parked(ctx) {
			if failed = err; err != nil {
				requireTold(t, err)
				break
			}
			listed++
			require.Equal(t, letter, p.DeadLetter)
		}
		require.LessOrEqual(t, listed, 1)
		redriven, err := c.Redrive(ctx)
		require.LessOrEqual(t, redriven, listed)
		require.LessOrEqual(t, len(handler.handled), listed)
		if failed != nil {
			require.Error(t, err)
			require.Empty(t, handler.handled)
		}
		if err != nil {
			requireTold(t, err)
		}
		if listed == 1 && redriven == 1 { // once, and then no more
			again, err := c.Redrive(ctx)
			require.NoError(t, err)
			require.Zero(t, again)
		}

		// It stands in nobody's way.
		handler.handled = nil
		require.NoError(t, c.CatchUp(ctx))
		require.Len(t, handler.handled, 1)
	})
}

// requireTold demands an error of a length that can be read, on one line.
func requireTold(t *testing.T, err error) {
	t.Helper()
	require.Less(t, len(err.Error()), 3000)
	require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
}

// Any message in the stream of requests is a request that is carried out or skipped, or an error.
func FuzzARequestIsReadOrRefused(f *testing.F) {
	for _, seed := range []string{
		`{"messageId":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f","stream":"account-1","parked":0}`, `{}`, `{"next":9223372036854775807}`, `{"next":-1}`, `{"next":"1"}`, `{"parked":-9223372036854775808}`, `{"messageId":1}`, `{"stream":[]}`, `{"messageId":"` + strings.Repeat("x", 3000) + `"}`,
	} {
		f.Add("RedriveRequested", seed, "RedrivesSettled", `{"next":1}`)
		f.Add("RedrivesSettled", seed, "Other", `{}`)
	}
	for _, data := range seeds.JSON("parked") {
		f.Add("RedriveRequested", data, "RedrivesSettled", `{}`)
	}
	f.Fuzz(func(t *testing.T, firstType, first, secondType, second string) {
		store := messagestore.New(memory.New(), nil)
		requests := messagestore.StreamName("account:deadLetter-ledger+requests")
		if !writeRaw(t, store, requests, firstType, first) || !writeRaw(t, store, requests, secondType, second) {
			return
		}
		var handler counted
		c, err := New(store, "account", "ledger", &handler, nil)
		require.NoError(t, err)
		asked, version, err := c.asked(t.Context())
		if err != nil {
			requireTold(t, err)
			return
		}
		require.LessOrEqual(t, len(asked), 2)
		require.GreaterOrEqual(t, version, messagestore.NoStream)
		from, err := c.settledBefore(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, from, messagestore.Version(0))
	})
}

func FuzzAConfigurationHasItsBounds(f *testing.F) {
	for _, d := range []int64{math.MinInt64, -1, 0, 1, int64(time.Millisecond) - 1, int64(time.Millisecond), int64(time.Hour), int64(time.Hour) + 1, int64(24 * time.Hour), math.MaxInt64} {
		f.Add(d, d, int64(0), 1, 0, 0)
		f.Add(int64(0), int64(0), d, int(d), int(d), int(d))
	}
	f.Add(int64(1<<63-1), int64(1<<63-1), int64(1<<63-1), 1<<63-1, 1<<63-1, 1<<63-1) // greatest
	f.Fuzz(func(t *testing.T, poll, least, most int64, concurrency, retries, then int) {
		between := func(n, low, high int64) bool { return n == 0 || low <= n && n <= high }
		config := &Config{
			PollInterval: time.Duration(poll), Concurrency: concurrency, PositionInterval: concurrency, BatchSize: concurrency,
			Errors: ErrorPolicy{Retries: retries, MinBackoff: time.Duration(least), MaxBackoff: time.Duration(most), Then: Action(then)},
		}
		lowest := least
		if least == 0 {
			lowest = int64(100 * time.Millisecond)
		}
		ok := between(poll, int64(time.Millisecond), int64(time.Hour)) && between(least, int64(time.Millisecond), int64(time.Hour)) && between(most, lowest, int64(24*time.Hour)) &&
			between(int64(concurrency), 1, 1024) && between(int64(retries), -1, 1000) && (then == 0 || then == 1)

		c, err := New(messagestore.New(memory.New(), nil), "account", "ledger", &counted{}, config)

		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			require.Nil(t, c)
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			requireTold(t, err)
			return
		}
		for failures := 1; failures < 2000; failures += 7 {
			wait := c.config.Errors.backoff(failures)
			require.True(t, c.config.Errors.MinBackoff/2 <= wait && wait <= c.config.Errors.MaxBackoff, "%v", wait)
		}
	})
}

// The text of a handler's error goes into a log and a message.
func FuzzTheTextOfAnErrorIsShortAndStorable(f *testing.F) {
	f.Add("plain")
	f.Add("two\nlines\x00\x1b[31m\x7f\u0085")
	f.Add("\xff\xed\xa0\x80")
	f.Add(strings.Repeat("\u00e9", 600))
	f.Add(strings.Repeat("x", 1023) + "\u00e9")
	for _, name := range seeds.Names() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		short := errorText(errors.New(text))
		require.True(t, utf8.ValidString(short))
		require.LessOrEqual(t, len(short), 3*maxErrorText+len("…"))
		require.False(t, strings.ContainsFunc(short, unicode.IsControl))
		encoded, err := json.Marshal(short)
		require.NoError(t, err)
		var back string
		require.NoError(t, json.Unmarshal(encoded, &back))
		require.Equal(t, short, back)
	})
}

// A name is a part of a stream's, for each stream that the consumer writes.
func FuzzANameIsOneOrRefused(f *testing.F) {
	for _, name := range []string{"ledger", "", "a-b", "a+b", "a b", " a", "a\n", "a\u202e", "a\x00", "\xff", "a:b", strings.Repeat("x", 150), strings.Repeat("x", 10_000)} {
		f.Add("account", name)
		f.Add(name, "ledger")
	}
	for _, name := range seeds.Names() {
		f.Add("account", name)
	}
	f.Fuzz(func(t *testing.T, category, name string) {
		c, err := New(messagestore.New(memory.New(), nil), messagestore.Category(category), name, &counted{}, nil)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			require.Nil(t, c)
			requireTold(t, err)
			return
		}
		for _, stream := range []messagestore.StreamName{c.ledger(), c.positionStream(math.MaxInt64, messagestore.MaxGroupSize-1), c.deadLetter(uuid.New()), c.requests()} {
			require.NoError(t, stream.Validate())
			require.Equal(t, messagestore.Category(category).Entity(), stream.Category().Entity())
			require.Equal(t, name, stream.CardinalID())
		}
	})
}
