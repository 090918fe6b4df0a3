package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// requireInvalid checks that err names a field, which may be one of several.
func requireInvalid(t *testing.T, what string, err error, field, rule string) {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrInvalid, what)
	var all []*messagestore.InvalidError
	var collect func(error)
	collect = func(err error) {
		if one, is := err.(*messagestore.InvalidError); is { //nolint:errorlint // each in its turn
			all = append(all, one)
			return
		}
		switch e := err.(type) { //nolint:errorlint // each in its turn
		case interface{ Unwrap() error }:
			collect(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				collect(one)
			}
		}
	}
	collect(err)
	for _, one := range all {
		if one.Field == field && strings.Contains(one.Rule, rule) {
			require.Less(t, len(err.Error()), 1000, "an error is a line")
			return
		}
	}
	t.Errorf("%s: %v names no %s that %s", what, err, field, rule)
}

func TestANilContextIsRefused(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for name, config := range map[string]*queue.Config{"mail": nil, "stored": {Name: "stored", Stored: true}} {
		q := testkit.Must(queue.New(store, "mail", config))
		insert(t, q, Send{}, nil)
		for _, v := range []any{q, receive(t, q, 1, nil)[0]} {
			errs := testkit.NilContext(v)
			require.GreaterOrEqual(t, len(errs), 6)
			for method, err := range errs {
				requireInvalid(t, name+" "+method, err, "context", "must not be nil")
			}
		}
	}
}

func TestHostileNamesAndSettingsAreRefused(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for what, name := range map[string]string{
		"long": strings.Repeat("x", 256), "very long": strings.Repeat("x", 10<<20), "not UTF-8": "a\xff", "zero": "a\x00b",
		"control": "a\nb", "dash": "a-b", "plus": "a+b", "space": " a", "space within": "a b", "no-break space": "a\u00a0b",
	} {
		_, err := queue.New(store, "mail", &queue.Config{Name: name, Logger: logger.Silent()})
		requireInvalid(t, what, err, "queue name", "1 to 255 bytes of visible text")
	}
	for _, name := range []string{"", "mail", "mail:urgent", "é", "%", strings.Repeat("x", 255)} {
		_, err := queue.New(store, "mail", &queue.Config{Name: name})
		require.NoError(t, err, name)
	}
	for what, test := range map[string]struct {
		config      queue.Config
		field, rule string
	}{
		"no failures":        {queue.Config{MaxFailures: -1}, "MaxFailures", "1 and 32767"},
		"too many failures":  {queue.Config{MaxFailures: 32_768}, "MaxFailures", "1 and 32767"},
		"when dead":          {queue.Config{WhenDead: 7}, "WhenDead", "GoOn or Hold"},
		"out":                {queue.Config{MaxOut: -1}, "MaxOut", "at least 1"},
		"no rate":            {queue.Config{Rate: math.NaN()}, "Rate", "1e-6 and 1e9"},
		"a negative rate":    {queue.Config{Rate: -1}, "Rate", "1e-6 and 1e9"},
		"a rate of never":    {queue.Config{Rate: 1e-300}, "Rate", "1e-6 and 1e9"},
		"an infinite rate":   {queue.Config{Rate: math.Inf(1)}, "Rate", "1e-6 and 1e9"},
		"burst":              {queue.Config{Rate: 1, Burst: -1}, "Burst", "at least 1"},
		"burst without rate": {queue.Config{Burst: 2}, "Burst", "needs a Rate"},
	} {
		_, err := queue.New(store, "mail", &test.config)
		requireInvalid(t, what, err, test.field, test.rule)
	}
	_, err := queue.New(store, "", &queue.Config{MaxFailures: -1, MaxOut: -1})
	for _, field := range []string{"category", "MaxFailures", "MaxOut"} {
		requireInvalid(t, "all at once", err, field, "")
	}
	_, err = queue.New(nil, "mail", nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = queue.New(testkit.Must(messagestore.New(plain{memory.New()}, nil)), "mail", nil)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

func failure[T any](_ T, err error) error { return err }

// A plain driver keeps no queues.
type plain struct{ messagestore.Driver }

// Nothing that is refused is sent.
func TestHostileItemsAreRefused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		id := uuid.New()
		big := messagestore.Raw{Type: "Big", Data: json.RawMessage(`{"x":"` + strings.Repeat("x", 970_000) + `"}`)}
		for what, test := range map[string]struct {
			body        messagestore.Body
			opts        *queue.InsertOpts
			field, rule string
		}{
			"no body":        {nil, nil, "body", "nil"},
			"data":           {messagestore.Raw{Type: "Big", Data: json.RawMessage(`{"x":"` + strings.Repeat("x", 1<<20) + `"}`)}, nil, "data", "must be at most"},
			"year 0":         {Send{}, &queue.InsertOpts{ScheduledAt: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}, "ScheduledAt", "1 to 9999"},
			"year 10000":     {Send{}, &queue.InsertOpts{ScheduledAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "ScheduledAt", "1 to 9999"},
			"long key":       {Send{}, &queue.InsertOpts{Key: strings.Repeat("x", 256)}, "Key", "bytes"},
			"very long key":  {Send{}, &queue.InsertOpts{Key: strings.Repeat("x", 10<<20)}, "Key", "bytes"},
			"key not UTF-8":  {Send{}, &queue.InsertOpts{Key: "a\xff"}, "Key", "UTF-8"},
			"long unique":    {Send{}, &queue.InsertOpts{Unique: strings.Repeat("x", 256)}, "Unique", "bytes"},
			"until":          {Send{}, &queue.InsertOpts{UniqueUntil: queue.UntilFinished}, "UniqueUntil", "without Unique"},
			"no such until":  {Send{}, &queue.InsertOpts{Unique: "a", UniqueUntil: 3}, "UniqueUntil", "must be UntilForgotten"},
			"negative until": {Send{}, &queue.InsertOpts{Unique: "a", UniqueUntil: -1}, "UniqueUntil", "must be UntilForgotten"},
			"both":           {Send{}, &queue.InsertOpts{Key: "a", Unique: "a"}, "Unique", "together with Key"},
			"twice metadata": {messagestore.Envelope{Body: Send{}}, &queue.InsertOpts{Metadata: messagestore.Metadata{CausationStream: "a-1"}}, "Metadata", "has its own"},
		} {
			_, err := q.Insert(t.Context(), test.body, test.opts)
			requireInvalid(t, what, err, test.field, test.rule)
			if what != "data" {
				_, err = q.Write(test.body, test.opts)
				requireInvalid(t, what, err, test.field, test.rule)
			}
		}
		_, err := q.Write(Send{}, &queue.InsertOpts{Unique: "a", UniqueUntil: queue.UntilDelivered})
		requireInvalid(t, "a write of its own", err, "UniqueUntil", "only Insert and InsertTx")
		many := func(n int, body messagestore.Body, opts *queue.InsertOpts) []queue.Entry {
			all := make([]queue.Entry, n)
			for i := range all {
				all[i] = queue.Entry{Body: body, Opts: opts}
			}
			return all
		}
		for what, test := range map[string]struct {
			items       []queue.Entry
			field, rule string
		}{
			"none":     {nil, "items", "1 and 1000"},
			"too many": {many(1001, Send{}, nil), "items", "1 and 1000"},
			"17 MiB":   {many(18, big, nil), "batch", "bytes"},
			"an id":    {many(2, Send{}, &queue.InsertOpts{ID: id}), "ID", "must not be on two items"},
			"until":    {many(1, Send{}, &queue.InsertOpts{Unique: "a", UniqueUntil: 3}), "UniqueUntil", "must be UntilForgotten"},
		} {
			inserted, err := q.InsertMany(t.Context(), test.items...)
			requireInvalid(t, what, err, test.field, test.rule)
			for _, one := range inserted {
				require.ErrorIs(t, one.Err, messagestore.ErrInvalid, what)
				require.Zero(t, one.Position)
			}
		}
		end, err := testkit.Must(messagestore.New(driver, nil)).End(t.Context(), "mail")
		require.NoError(t, err)
		require.Zero(t, end)
	})
}

func TestHostileCallsAreRefused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		ctx := t.Context()
		for what, test := range map[string]struct {
			n           int
			opts        queue.ReceiveOpts
			field, rule string
		}{
			"n 0":           {0, queue.ReceiveOpts{}, "n", "1 and 1000"},
			"n -1":          {-1, queue.ReceiveOpts{}, "n", "1 and 1000"},
			"n 1001":        {1001, queue.ReceiveOpts{}, "n", "1 and 1000"},
			"wait -1":       {1, queue.ReceiveOpts{Wait: -1}, "Wait", "0s and 15m0s"},
			"long wait":     {1, queue.ReceiveOpts{Wait: 15*time.Minute + 1}, "Wait", "0s and 15m0s"},
			"a nanosecond":  {1, queue.ReceiveOpts{VisibilityTimeout: 1}, "VisibilityTimeout", "10ms and 24h0m0s"},
			"25 hours":      {1, queue.ReceiveOpts{VisibilityTimeout: 25 * time.Hour}, "VisibilityTimeout", "10ms and 24h0m0s"},
			"a negative":    {1, queue.ReceiveOpts{VisibilityTimeout: -time.Hour}, "VisibilityTimeout", "10ms and 24h0m0s"},
			"three at once": {0, queue.ReceiveOpts{Wait: -1, VisibilityTimeout: 1}, "Wait", "0s"},
		} {
			_, err := q.Receive(ctx, test.n, &test.opts)
			requireInvalid(t, what, err, test.field, test.rule)
		}
		mux := handler.New()
		handler.On(mux, func(context.Context, handler.Message[Send]) error { return nil })
		for what, test := range map[string]struct {
			config      queue.WorkConfig
			field, rule string
		}{
			"no workers":    {queue.WorkConfig{MaxWorkers: -1}, "MaxWorkers", "1 and 1000"},
			"many workers":  {queue.WorkConfig{MaxWorkers: 1001}, "MaxWorkers", "1 and 1000"},
			"prefetch":      {queue.WorkConfig{Prefetch: 1001}, "Prefetch", "MaxWorkers and 1000"},
			"less prefetch": {queue.WorkConfig{Prefetch: 15}, "Prefetch", "MaxWorkers and 1000"},
			"timeout":       {queue.WorkConfig{Timeout: 1}, "Timeout", "10ms and 24h0m0s"},
			"grace":         {queue.WorkConfig{Grace: -1}, "Grace", "0s and 24h0m0s"},
			"lease":         {queue.WorkConfig{Lease: time.Millisecond}, "Lease", "100ms and 24h0m0s"},
			"poll":          {queue.WorkConfig{PollInterval: 2 * time.Hour}, "PollInterval", "10ms and 1h0m0s"},
			"back-off":      {queue.WorkConfig{MinBackoff: -1}, "MinBackoff", "1ms and 720h0m0s"},
			"max below min": {queue.WorkConfig{MinBackoff: time.Minute, MaxBackoff: time.Second}, "MaxBackoff", "1m0s and 720h0m0s"},
		} {
			requireInvalid(t, what, q.Work(ctx, mux, &test.config), test.field, test.rule)
		}
		requireInvalid(t, "no mux", q.Work(ctx, nil, nil), "handler", "nil")
		handler.On(mux, func(context.Context, handler.Message[Send]) error { return nil })
		require.ErrorIs(t, q.Work(ctx, mux, nil), messagestore.ErrInvalid, "two functions for a type")

		for what, err := range map[string]error{
			"position 0":   failure(q.Item(ctx, 0)),
			"position -1":  failure(q.Retry(ctx, "", 1, -1)),
			"position -2":  failure(q.Cancel(ctx, "", -2)),
			"no positions": failure(q.Drop(ctx, "")),
			"too many":     failure(q.Drop(ctx, "", make([]messagestore.GlobalPosition, 1001)...)),
			"reason":       failure(q.Drop(ctx, "a\x00b", 1)),
			"long reason":  failure(q.Drop(ctx, strings.Repeat("x", 256), 1)),
			"state":        failure(q.Items(ctx, queue.Finished, 0, 1)),
			"limit":        failure(q.Items(ctx, queue.Dead, 0, 1001)),
			"from":         failure(q.Items(ctx, queue.Dead, -1, 1)),
			"no queue":     (*queue.Queue)(nil).Pause(ctx),
			"no job":       queue.JobOf(ctx).Complete(ctx),
			"no progress":  queue.JobOf(ctx).Progress("half of it"),
		} {
			require.ErrorIs(t, err, messagestore.ErrInvalid, what)
			require.Less(t, len(err.Error()), 1000)
		}
		ended, end := context.WithCancel(ctx)
		end()
		_, err := q.Receive(ended, 1, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, driver.called, "nothing was asked")

		insert(t, q, Send{}, nil)
		jobs, err := q.Receive(ctx, 1, nil)
		require.NoError(t, err)
		for what, err := range map[string]error{
			"101 years": jobs[0].Defer(ctx, 101*365*24*time.Hour),
			"extend 0":  jobs[0].Extend(ctx, 0),
			"25 hours":  jobs[0].Extend(ctx, 25*time.Hour),
			"no store":  jobs[0].CompleteTx(ctx, nil),
		} {
			require.ErrorIs(t, err, messagestore.ErrInvalid, what)
		}
		long := errors.New(strings.Repeat("x\x00\xff", 10<<20))
		require.NoError(t, jobs[0].Bury(ctx, long))
		require.LessOrEqual(t, len(item(t, q, 1).Error), queuing.MaxErrorBytes)
	})
}

// A key is opaque: no two are one.
func TestKeysAreOpaque(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		streams := map[messagestore.StreamName]string{}
		for _, key := range []string{"a", "a-b", "a+b", "a:b", "a%b", "a%2Bb", "a b", "a\x00b", "a\nb", "é", "+unique", "a+unique", strings.Repeat("x", 100)} {
			at := insert(t, q, Send{}, &queue.InsertOpts{Key: key})
			require.Empty(t, streams[at.Stream], key)
			streams[at.Stream] = key
			unique := insert(t, q, Send{}, &queue.InsertOpts{Unique: key})
			require.False(t, unique.Duplicate)
			require.Empty(t, streams[unique.Stream], key)
			streams[unique.Stream] = key
			require.Equal(t, messagestore.Category("mail"), at.Stream.Category())
		}
	})
}
