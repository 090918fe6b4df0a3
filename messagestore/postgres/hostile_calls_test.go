package postgres_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// A driver that is called past the store's validators, whichever way it sends a write, refuses
// it, writes none of it, and is as good as before. Only the store validates the contents of data
// and metadata.
func TestHostileCallsLeaveThePoolUsable(t *testing.T) {
	t.Parallel()
	record := func(change func(*messagestore.Encoded)) func(*messagestore.Append) {
		return func(a *messagestore.Append) { change(&a.Records[len(a.Records)-1]) }
	}
	data := func(text string) func(*messagestore.Append) {
		return record(func(r *messagestore.Encoded) { r.Data = []byte(text) })
	}
	metadata := func(text string) func(*messagestore.Append) {
		return record(func(r *messagestore.Encoded) { r.Metadata = []byte(text) })
	}
	named := func(format string) func(*messagestore.Append) {
		return func(a *messagestore.Append) {
			a.Stream = messagestore.StreamName(fmt.Sprintf(format, a.Stream.Category()))
		}
	}
	for name, test := range map[string]struct {
		spoil func(*messagestore.Append)
		kind  error // nil if the server cannot even read it
	}{
		"a stream without a name":              {func(a *messagestore.Append) { a.Stream = "" }, messagestore.ErrInvalid},
		"a category for a stream":              {named("%s"), messagestore.ErrInvalid},
		"an empty identifier":                  {named("%s-"), messagestore.ErrInvalid},
		"an empty cardinal identifier":         {named("%s-+x"), messagestore.ErrInvalid},
		"a line end in a name":                 {named("%s-1\n"), messagestore.ErrInvalid},
		"a format character in a name":         {named("%s-\u202e1"), messagestore.ErrInvalid},
		"white space at the end of a name":     {named("%s-1\u3000"), messagestore.ErrInvalid},
		"a name that is too long":              {named("%s-" + strings.Repeat("x", 255)), messagestore.ErrInvalid},
		"a name of ten million bytes":          {named("%s-" + strings.Repeat("x", 10_000_000)), messagestore.ErrInvalid},
		"U+0000 in a name":                     {named("%s-\x00"), nil},
		"a name that is not UTF-8":             {named("%s-\xff"), nil},
		"an overlong name":                     {named("%s-\xc0\x80"), nil},
		"a surrogate in a name":                {named("%s-\xed\xa0\x80"), nil},
		"an expected version of -3":            {func(a *messagestore.Append) { a.Expected = -3 }, messagestore.ErrInvalid},
		"the least expected version":           {func(a *messagestore.Append) { a.Expected = math.MinInt64 }, messagestore.ErrInvalid},
		"the nil id":                           {record(func(r *messagestore.Encoded) { r.ID = uuid.Nil }), messagestore.ErrInvalid},
		"a message without a type":             {record(func(r *messagestore.Encoded) { r.Type = "" }), messagestore.ErrInvalid},
		"a type that is too long":              {record(func(r *messagestore.Encoded) { r.Type = strings.Repeat("T", 256) }), messagestore.ErrInvalid},
		"a control character in a type":        {record(func(r *messagestore.Encoded) { r.Type = "T\x1b[31m" }), messagestore.ErrInvalid},
		"a type of the store's own":            {record(func(r *messagestore.Encoded) { r.Type = removal.TombstoneType }), messagestore.ErrInvalid},
		"a type that is not UTF-8":             {record(func(r *messagestore.Encoded) { r.Type = "T\xff" }), nil},
		"an empty text for data":               {record(func(r *messagestore.Encoded) { r.Data = []byte{} }), nil},
		"a number for data":                    {data(`1`), messagestore.ErrInvalid},
		"a list for data":                      {data(`[]`), messagestore.ErrInvalid},
		"null for data":                        {data(`null`), messagestore.ErrInvalid},
		"data that would overflow the stack":   {data(`{"a":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + "}"), nil},
		"a byte too many":                      {data(`{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-7) + `"}`), messagestore.ErrInvalid},
		"two documents":                        {data(`{}{}`), nil},
		"data with a byte order mark":          {data("\ufeff{}"), nil},
		"data that is not UTF-8":               {data("{\"a\":\"\xff\"}"), nil},
		"NaN":                                  {data(`{"a":NaN}`), nil},
		"a list for metadata":                  {metadata(`[]`), messagestore.ErrInvalid},
		"metadata that does not end":           {metadata(`{"a":`), nil},
		"data and metadata that are too large": {metadata(`{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-9) + `"}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			driver := must.New(postgres.New(pool, nil))
			category := storetest.Category(t)
			good, beside := category.Stream("good"), category.Stream("beside")
			for way, write := range map[string]func(messagestore.Append) error{
				"alone": func(a messagestore.Append) error {
					_, err := driver.Append(t.Context(), a)
					return err
				},
				"after others of its stream": func(a messagestore.Append) error {
					a.Records = append(append(appendOne("", 0).Records, appendOne("", 0).Records...), a.Records...)
					_, err := driver.Append(t.Context(), a)
					return err
				},
				"after another stream": func(a messagestore.Append) error {
					_, err := driver.AppendAll(t.Context(), []messagestore.Append{appendOne(beside, messagestore.AnyVersion), a})
					return err
				},
				"in a group": func(a messagestore.Append) error {
					return driver.AppendEach(t.Context(), []messagestore.Append{a})[0].Err
				},
			} {
				a := appendOne(category.Stream("bad"), messagestore.AnyVersion)
				test.spoil(&a)

				err := write(a)

				require.Error(t, err, way)
				require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, "%s: nothing can have been written", way)
				if test.kind != nil {
					require.ErrorIs(t, err, test.kind, way)
					require.ErrorIs(t, err, messagestore.ErrInvalid, way)
				} else if !errors.Is(err, messagestore.ErrInvalid) {
					refused := must.As[*pgconn.PgError](t, err)
					require.Contains(t, []string{"22", "54"}, refused.Code[:2], "%s: %v", way, err)
				}
				require.Less(t, len(err.Error()), 500)
				require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
				require.Zero(t, pool.Stat().AcquiredConns(), way)
			}
			page := must.Do(driver.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: category, Limit: 10}))(t)
			require.Empty(t, page.Messages, "neither it nor what came before it was written")
			require.Zero(t, must.Do(driver.Append(t.Context(), appendOne(good, messagestore.NoStream)))(t).Version)
		})
	}
}

// Reads that are none, past the store's validators.
func TestHostileReadsAreRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := must.New(postgres.New(pool, nil))
	stream := func(q messagestore.StreamQuery) error {
		_, err := driver.ReadStream(t.Context(), q)
		return err
	}
	category := func(q messagestore.CategoryQuery) error {
		_, err := driver.ReadCategory(t.Context(), q)
		return err
	}
	for name, test := range map[string]struct {
		err  error
		kind error
	}{
		"a stream from -1":              {stream(messagestore.StreamQuery{Stream: "a-1", From: -1, Limit: 1}), messagestore.ErrInvalid},
		"a stream from the least":       {stream(messagestore.StreamQuery{Stream: "a-1", From: math.MinInt64, Limit: 1}), messagestore.ErrInvalid},
		"no message of a stream":        {stream(messagestore.StreamQuery{Stream: "a-1", Limit: 0}), messagestore.ErrInvalid},
		"less than none of a stream":    {stream(messagestore.StreamQuery{Stream: "a-1", Limit: -1}), messagestore.ErrInvalid},
		"too many of a stream":          {stream(messagestore.StreamQuery{Stream: "a-1", Limit: 10_001}), messagestore.ErrInvalid},
		"backwards from -1":             {stream(messagestore.StreamQuery{Stream: "a-1", From: -1, Limit: 1, Backwards: true}), messagestore.ErrInvalid},
		"a category from -5":            {category(messagestore.CategoryQuery{Category: "a", From: -5, Limit: 1}), messagestore.ErrInvalid},
		"no message of a category":      {category(messagestore.CategoryQuery{Category: "a", Limit: 0}), messagestore.ErrInvalid},
		"too many of a category":        {category(messagestore.CategoryQuery{Category: "a", Limit: 10_001}), messagestore.ErrInvalid},
		"a member that is not there":    {category(messagestore.CategoryQuery{Category: "a", Limit: 1, Filter: messagestore.Filter{GroupSize: 2, GroupMember: 2}}), messagestore.ErrInvalid},
		"a member of less than nothing": {category(messagestore.CategoryQuery{Category: "a", Limit: 1, Filter: messagestore.Filter{GroupSize: 2, GroupMember: -1}}), messagestore.ErrInvalid},
		"a group of 32,768":             {category(messagestore.CategoryQuery{Category: "a", Limit: 1, Filter: messagestore.Filter{GroupSize: 32_768}}), messagestore.ErrInvalid},
	} {
		require.ErrorIs(t, test.err, test.kind, name)
		require.ErrorIs(t, test.err, messagestore.ErrInvalid, name)
	}
	require.Zero(t, pool.Stat().AcquiredConns())
	require.NoError(t, stream(messagestore.StreamQuery{Stream: "a-1", From: math.MaxInt64, Limit: 10_000}))
	require.NoError(t, category(messagestore.CategoryQuery{Category: "nobody", From: math.MaxInt64, Limit: 10_000}))
}

// Every role that can connect can notify on the channel. That wakes, and never keeps a message
// back.
func TestForgedNotificationsLoseNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	writer, reader := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil)), must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
	stream := storetest.Category(t).Stream("1")
	bell, stop := reader.Watch(stream.Category(), 50*time.Millisecond)
	defer stop()
	for _, payload := range []string{
		"", "-", "dibs", "dibs.", "dibs.-", "dibs.-1", "dibs.x", "dibs." + string(stream.Category()), "dibs." + string(stream.Category()) + "-", "dibs." + string(stream.Category()) + "--1",
		"dibs." + string(stream.Category()) + "-9223372036854775808", "dibs." + string(stream.Category()) + "-x", "dibs." + strings.Repeat("x", 7000), "dibs.\u202e\n-1",
		"dibs." + string(stream.Category()) + "-9223372036854775807", // that there will be no more
	} {
		must.Do(pool.Exec(t.Context(), "select pg_notify('dibs_messages', $1)", payload))(t)
	}
	for n := range 3 {
		write(t, writer, stream, messagestore.Version(n-1), opened())
		await.Equal(t, "the version at a wake-up", messagestore.Version(n), func() messagestore.Version {
			await.Receive(t, "a wake-up", bell)
			return must.Do(reader.Version(t.Context(), stream))(t)
		})
	}
}

// Messages that a client of message-db wrote by its loose rules are read, handled or refused one
// by one, and break no log.
func TestWhatOtherClientsWriteNeverStopsAReader(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	category := storetest.Category(t)
	for _, m := range []struct{ id, messageType, data, metadata string }{
		{"1", "Opened", `{}`, `{}`},
		{"\n[31m level=error fake", "Opened", `{}`, `{}`},
		{"\u202e\u200d", "Type\nx", `{}`, `{}`},
		{"", "Opened", `{}`, `{}`},
		{"+x", "Opened", `{}`, `{}`},
		{strings.Repeat("long", 200), strings.Repeat("Long", 200), `{}`, `{}`},
		{"2", "Opened", `[1, 2]`, `[]`},
		{"2", "Opened", `"text"`, `"text"`},
		{"2", "Opened", `null`, `null`},
		{"2", "Opened", `{"amount": 1e400}`, `{"causationMessagePosition": 1e30, "properties": []}`},
		{"2", "Opened", `{"amount": ` + strings.Repeat("7", 3000) + `}`, `{"causationMessageStreamName": "a-1", "causationMessagePosition": -1, "causationMessageGlobalPosition": "x"}`},
		{"2", "Opened", strings.Repeat(`{"a": `, 600) + "1" + strings.Repeat("}", 600), `{"correlationStreamName": "x\ny", "schemaVersion": 7, "x": {"y": null}}`},
		{"3", "", `{}`, `{}`},
		{"4", "Opened", `{"amount": 4}`, `{}`},
	} {
		_, err := pool.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::text, $1, $2, $3::text::jsonb, $4::text::jsonb)", string(category)+"-"+m.id, m.messageType, m.data, m.metadata)
		require.NoError(t, err, "%q", m)
	}
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
	mux := handler.New()
	mux.IgnoreUnknown()
	var handled []int
	handler.On(mux, func(_ context.Context, m handler.Message[amount]) error {
		handled = append(handled, m.Body.Amount)
		return nil
	})
	var log bytes.Buffer
	config := &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}, Logger: logger.Zerolog(zerolog.New(&log))}
	c := must.New(consumer.New(store, category, "ledger", mux, config))

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, 4, handled[len(handled)-1])
	stats := c.Stats()
	require.Equal(t, int64(14), stats.Handled+stats.Parked)
	require.Equal(t, int64(4), stats.Parked, "those whose data is no amount: %v", handled)
	for line := range bytes.Lines(log.Bytes()) {
		var object map[string]any
		require.NoError(t, json.Unmarshal(line, &object), "%s", line)
		require.Less(t, len(line), 4000)
		require.NotContains(t, string(line), strings.Repeat("7", 1000))
	}
	parked := must.Do(must.New(operate.Consumer(store, category, "ledger").Parked()).Items(t.Context(), queue.Dead, 0, 100))(t)
	require.Len(t, parked, 4)
	for _, p := range parked {
		require.Less(t, len(p.Error), 1100)
		require.False(t, strings.ContainsFunc(p.Error, unicode.IsControl), "%q", p.Error)
	}
}

type amount struct {
	Amount int `json:"amount"`
}

func (amount) MessageType() string { return "Opened" }
