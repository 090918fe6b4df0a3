package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

func TestNewRefusesWhatIsOutOfBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config consumer.Config
		text   string
	}{
		{consumer.Config{PollInterval: time.Nanosecond}, `poll interval "1ns": must be between 1ms and 1h0m0s`},
		{consumer.Config{PollInterval: -1}, "poll interval"},
		{consumer.Config{PollInterval: 10 * 365 * 24 * time.Hour}, "poll interval"},
		{consumer.Config{BatchSize: -1}, "batch size -1: must be between 1 and 10000"},
		{consumer.Config{BatchSize: 10_001}, "batch size"},
		{consumer.Config{Concurrency: -1}, "concurrency -1: must be between 1 and 1024"},
		{consumer.Config{Concurrency: 1025}, "concurrency"},
		{consumer.Config{CheckpointMessages: -1}, "checkpoint messages"},
		{consumer.Config{CheckpointMessages: 1_000_001}, "checkpoint messages"},
		{consumer.Config{CheckpointInterval: time.Microsecond}, "checkpoint interval"},
		{consumer.Config{CheckpointInterval: 2 * time.Hour}, "checkpoint interval"},
		{consumer.Config{Grace: -time.Second}, "grace"},
		{consumer.Config{Grace: 2 * time.Hour}, "grace"},
		{consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: -2}}}, "retry for \"-2ns\": must be between 0s and 24h0m0s, or NoRetry, or Forever"},
		{consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: 25 * time.Hour}}}, "retry for"},
		{consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{MaxBackoff: 1}}}, `maximum back-off "1ns": must be between 1ms and 24h0m0s`},
		{consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{MaxBackoff: 25 * time.Hour}}}, "maximum back-off"},
		{consumer.Config{Errors: consumer.ErrorPolicy{Then: 7}}, "errors then 7: must be StopConsumer or ParkMessage"},
		{consumer.Config{Correlation: "transfer-1"}, "category"},
	} {
		_, err := tryNamed(newStore(), account, "ledger", &journal{}, &test.config)

		require.ErrorContains(t, err, "invalid consumer: ", "%+v", test.config)
		require.ErrorContains(t, err, test.text)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		invalid, ok := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, ok)
		require.NotEmpty(t, invalid.Field)
		require.NotEmpty(t, invalid.Rule)
	}
}

func TestNewAcceptsTheBounds(t *testing.T) {
	t.Parallel()
	for _, config := range []*consumer.Config{
		nil,
		{},
		{
			PollInterval: time.Millisecond, BatchSize: 1, Concurrency: 1, CheckpointMessages: 1, CheckpointInterval: time.Millisecond, Grace: time.Millisecond,
			Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry, MaxBackoff: time.Millisecond}},
		},
		{
			PollInterval: time.Hour, BatchSize: messagestore.MaxReadMessages, Concurrency: 1024, CheckpointMessages: 1_000_000, CheckpointInterval: time.Hour, Grace: time.Hour,
			Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: 24 * time.Hour, MaxBackoff: 24 * time.Hour}, Then: consumer.ParkMessage},
		},
		{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}}},
	} {
		_, err := tryNamed(newStore(), account, "ledger", &journal{}, config)
		require.NoError(t, err)
	}
}

func TestNewRefusesNames(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"":                         "must not be empty",
		"a-b":                      "dash",
		"a+b":                      "plus sign",
		"a:b":                      "colon",
		"a b":                      "must not contain white space",
		" a":                       "white space",
		"a\n":                      "U+000A",
		"a\u00a0b":                 "white space",
		"a\u202eb":                 "U+202E",
		"a\x00":                    "U+0000",
		"a\xff":                    "UTF-8",
		strings.Repeat("n", 240):   "bytes shorter, for the streams of category account that are named after it",
		strings.Repeat("n", 10240): "must be at most 255 bytes",
	} {
		_, err := tryNamed(newStore(), account, name, &journal{}, nil)

		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", name)
		require.ErrorContains(t, err, rule, "%q", name)
		require.Less(t, len(err.Error()), 400)
	}
}

// The longest name that New accepts is one that everything can be written under.
func TestTheLongestNameWorks(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	accepted := 0
	for n := range text.MaxNameBytes {
		c, err := tryNamed(store, account, strings.Repeat("n", n), always(errHopeless), nil)
		if err != nil {
			continue
		}
		accepted++
		if n < 190 {
			continue
		}
		require.NoError(t, c.CatchUp(t.Context()), n)
		require.Equal(t, int64(1), c.Stats().Parked)
	}
	require.Greater(t, accepted, 190)
}

func TestNewRefusesNil(t *testing.T) {
	t.Parallel()
	var (
		noStore *messagestore.Store
		noFunc  handler.HandlerFunc
		noPtr   *journal
	)
	for name, test := range map[string]struct {
		store   consumer.Store
		handler consumer.Handler
		text    string
	}{
		"NoStore":      {nil, &journal{}, "invalid store: must not be nil"},
		"NilStore":     {noStore, &journal{}, "invalid store: must not be nil"},
		"NoHandler":    {newStore(), nil, "invalid handler: must not be nil"},
		"NilFunc":      {newStore(), noFunc, "invalid handler: must not be nil"},
		"NilInPointer": {newStore(), noPtr, "invalid handler: must not be nil"},
	} {
		_, err := tryNamed(test.store, account, "ledger", test.handler, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.ErrorContains(t, err, test.text, name)
	}
	for _, category := range []messagestore.Category{"", "account-1", "a b", "account:"} {
		_, err := tryNamed(newStore(), category, "ledger", &journal{}, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
}

type invalidHandler struct{ journal }

func (*invalidHandler) Validate() error { return errBroken }

func TestNewAsksTheHandler(t *testing.T) {
	t.Parallel()
	_, err := tryNamed(newStore(), account, "ledger", &invalidHandler{}, nil)
	require.ErrorIs(t, err, errBroken)
	require.EqualError(t, err, "invalid consumer: handler: broken")
}

func TestNewKeepsACopyOfTheConfig(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Withdrawn{})
	j := &journal{}
	config := &consumer.Config{OnlyKnown: true}
	c := newConsumer(t, store, knowing(j, "Withdrawn"), config)
	config.OnlyKnown = false

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, []string{"account-1@1"}, j.all())
}

func TestOnlyKnownTakesAHandlerThatTellsItsTypes(t *testing.T) {
	t.Parallel()
	for text, h := range map[string]consumer.Handler{
		"only known true: must not be set unless the handler tells the types that it knows": handler.HandlerFunc((&journal{}).Handle),
		"or the method names none": knowing(&journal{}),
		"message type":             knowing(&journal{}, ""),
		"filter types":             knowing(&journal{}, make([]string, 101)...),
	} {
		_, err := consumer.New(newStore(), account, "ledger", h, &consumer.Config{OnlyKnown: true, Logger: logger.Silent()})

		require.ErrorContains(t, err, text)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
}

// always returns a handler that fails with err.
func always(err error) consumer.Handler {
	return handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return err })
}

// A mistake costs no round trip, and all are reported together.
func TestNewReportsAllMistakesBeforeARoundTrip(t *testing.T) {
	t.Parallel()
	store := &tap{
		Store: newStore(),
		write: func(messagestore.StreamName) error { return errStore },
		look:  func(messagestore.StreamName) error { return errStore },
		read:  func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { return nil, errStore },
	}
	_, err := tryNamed(store, "account-1", "a-b", &invalidHandler{}, &consumer.Config{Grace: -1, BatchSize: -1, Correlation: "c-1"})

	require.ErrorIs(t, err, errBroken)
	for _, text := range []string{"grace", "batch size", `invalid category "account-1"`, "consumer name", "correlation"} {
		require.ErrorContains(t, err, text)
	}
	require.NotErrorIs(t, err, errStore)
}

// A mux may get a function, and a mistake with it, after the consumer was made.
func TestRunRefusesAHandlerThatBecameInvalid(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[Deposited]) error { return nil })
	c := newConsumer(t, store, mux, &consumer.Config{Errors: stopAtOnce})
	handler.On(mux, func(context.Context, handler.Message[Deposited]) error { return nil })

	err := c.CatchUp(t.Context())

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "invalid consumer: handler: ")
	require.Zero(t, c.Stats().Handled)
}
