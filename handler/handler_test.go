package handler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/upcast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type withdraw struct {
	Amount int `json:"amount"`
}

func (withdraw) MessageType() string { return "Withdraw" }

type named string

func (n named) MessageType() string { return string(n) }

type looksIntoItself struct{ name string }

func (l *looksIntoItself) MessageType() string { return l.name }

type byPointer struct {
	Amount int `json:"amount"`
}

func (*byPointer) MessageType() string { return "ByPointer" }

func nothing[T messagestore.Body](context.Context, handler.Message[T]) error { return nil }

func command(t *testing.T, body messagestore.Body) *messagestore.Message {
	t.Helper()
	return handlertest.Stored(t, body, &handlertest.Config{Stream: "account:command-123"})
}

func TestAMessageGoesToTheFunctionForItsType(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	var got []int
	handler.On(mux, func(_ context.Context, m handler.Message[Deposit]) error {
		got = append(got, m.Body.Amount)
		return nil
	})
	handler.On(mux, func(_ context.Context, m handler.Message[withdraw]) error {
		got = append(got, -m.Body.Amount)
		return nil
	})

	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{10})))
	require.NoError(t, mux.Handle(t.Context(), command(t, withdraw{3})))

	require.Equal(t, []int{10, -3}, got)
	require.NoError(t, mux.Validate())
	require.Equal(t, []string{"Deposit", "Withdraw"}, mux.Types())
}

func TestAPointerTypeThatKnowsItsNameIsHandled(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	var amount int
	handler.On(mux, func(_ context.Context, m handler.Message[*byPointer]) error {
		amount = m.Body.Amount
		return nil
	})

	require.NoError(t, mux.Handle(t.Context(), command(t, &byPointer{10})))

	require.Equal(t, 10, amount)
}

func TestAnUnknownTypeCanBeIgnoredAndIsCounted(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	mux.IgnoreUnknown()
	handler.On(mux, nothing[Deposit])

	require.NoError(t, mux.Handle(t.Context(), command(t, withdraw{1})))
	require.NoError(t, mux.Handle(t.Context(), command(t, withdraw{2})))
	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{3})))

	require.EqualValues(t, 2, mux.Ignored())
}

func TestAnUnknownTypeIsAnError(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	handler.On(mux, nothing[Deposit])

	err := mux.Handle(t.Context(), command(t, withdraw{1}))

	require.ErrorIs(t, err, handler.ErrUnknownType)
	require.EqualError(t, err, "handle Withdraw account:command-123@0: unknown message type: no function is registered for it (On), and the mux does not ignore it (IgnoreUnknown)")
	require.Zero(t, mux.Ignored())
}

func TestAnErrorNamesTheMessage(t *testing.T) {
	t.Parallel()
	poor := errors.New("insufficient funds")
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[Deposit]) error { return poor })

	err := mux.Handle(t.Context(), command(t, Deposit{10}))

	require.ErrorIs(t, err, poor)
	require.EqualError(t, err, "handle Deposit account:command-123@0: insufficient funds")
}

func TestAnUndecodableBodyIsAnError(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	called := false
	handler.On(mux, func(context.Context, handler.Message[Deposit]) error {
		called = true
		return nil
	})

	err := mux.Handle(t.Context(), command(t, messagestore.Raw{Type: "Deposit", Data: json.RawMessage(`{"amount":"ten"}`)}))

	require.False(t, called)
	undecodable, ok := errors.AsType[*handler.DecodeError](err)
	require.True(t, ok)
	require.Equal(t, "handler_test.Deposit", undecodable.GoType)
	_, ok = errors.AsType[*json.UnmarshalTypeError](err)
	require.True(t, ok)
	require.True(t, strings.HasPrefix(err.Error(), "handle Deposit account:command-123@0: decode into handler_test.Deposit: json: "), err.Error())
}

// A command that a sender wrote before its type was renamed, or had other fields, is handled.
func TestAnOlderFormGoesToTheFunctionForThePresentType(t *testing.T) {
	t.Parallel()
	var amounts []int
	mux := handler.New()
	handler.On(mux, func(_ context.Context, m handler.Message[withdraw]) error {
		amounts = append(amounts, m.Body.Amount)
		return nil
	}, upcast.Named[withdraw]("TakeOut"), upcast.From(func(named) withdraw { return withdraw{} }))
	require.ErrorContains(t, mux.Validate(), `invalid registration "handler_test.withdraw": must have a zero value with a valid message type, and it is ""`)

	mux = handler.New()
	handler.On(mux, func(_ context.Context, m handler.Message[withdraw]) error {
		amounts = append(amounts, m.Body.Amount)
		return nil
	}, upcast.Named[withdraw]("TakeOut"), upcast.From(func(*byPointer) withdraw { return withdraw{7} }))
	require.NoError(t, mux.Validate())
	require.Equal(t, []string{"ByPointer", "TakeOut", "Withdraw"}, mux.Types())
	for _, body := range []messagestore.Body{withdraw{1}, messagestore.Raw{Type: "TakeOut", Data: []byte(`{"amount":2}`)}, &byPointer{}} {
		require.NoError(t, mux.Handle(t.Context(), handlertest.Stored(t, body, nil)))
	}
	require.Equal(t, []int{1, 2, 7}, amounts)

	err := mux.Handle(t.Context(), handlertest.Stored(t, messagestore.Raw{Type: "TakeOut", Data: []byte(`{"amount":"x"}`)}, nil))
	failed, ok := errors.AsType[*handler.DecodeError](err)
	require.True(t, ok)
	require.Equal(t, "handler_test.withdraw", failed.GoType)
	require.ErrorContains(t, err, "handle TakeOut test-1@0: decode into handler_test.withdraw: json: ")
}

func TestAnOlderFormOfARegisteredTypeIsAMistake(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[withdraw]) error { return nil })
	handler.On(mux, func(context.Context, handler.Message[Deposit]) error { return nil }, upcast.Named[Deposit]("Withdraw"))
	handler.On(mux, func(context.Context, handler.Message[*byPointer]) error { return nil }, upcast.Named[*byPointer](""))

	err := mux.Validate()

	require.ErrorContains(t, err, `invalid registration "Withdraw": must not be registered twice`)
	require.ErrorContains(t, err, `invalid registration "*handler_test.byPointer": invalid older form`)
}

func TestMistakesAreKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		register func(*handler.Mux)
		want     string
	}{
		"nothing": {
			func(*handler.Mux) {},
			"invalid registration: must not be empty: register a function with On",
		},
		"one type twice": {
			func(mux *handler.Mux) {
				handler.On(mux, nothing[Deposit])
				handler.On(mux, nothing[Deposit])
			},
			`invalid registration "Deposit": must not be registered twice`,
		},
		"a nil function": {
			func(mux *handler.Mux) { handler.On[Deposit](mux, nil) },
			`invalid registration "Deposit": the function must not be nil`,
		},
		"an empty name": {
			func(mux *handler.Mux) { handler.On(mux, nothing[named]) },
			`invalid registration "handler_test.named": must have a zero value with a valid message type, and it is ""`,
		},
		"raw messages": {
			func(mux *handler.Mux) { handler.On(mux, nothing[messagestore.Raw]) },
			`invalid registration "messagestore.Raw": must have a zero value with a valid message type, and it is ""`,
		},
		"an interface": {
			func(mux *handler.Mux) { handler.On(mux, nothing[messagestore.Body]) },
			`invalid registration "messagestore.Body": must have a zero value whose MessageType does not panic: handle a struct, or do not dereference the pointer`,
		},
		"a pointer that is looked into": {
			func(mux *handler.Mux) { handler.On(mux, nothing[*looksIntoItself]) },
			`invalid registration "*handler_test.looksIntoItself": must have a zero value whose MessageType does not panic: handle a struct, or do not dereference the pointer`,
		},
		"a nil middleware": {
			func(mux *handler.Mux) {
				handler.On(mux, nothing[Deposit])
				mux.Use(nil)
			},
			`invalid registration "middleware": must not be nil`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := handler.New()
			test.register(mux)

			err := mux.Validate()
			require.EqualError(t, err, test.want)
			require.ErrorIs(t, err, messagestore.ErrInvalid)

			err = mux.Handle(t.Context(), command(t, Deposit{1}))
			require.EqualError(t, err, "handle Deposit account:command-123@0: "+test.want)
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		})
	}
}

func TestAllMistakesAreTold(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	handler.On(mux, nothing[named])
	handler.On[Deposit](mux, nil)

	err := mux.Validate()

	require.ErrorContains(t, err, "handler_test.named")
	require.ErrorContains(t, err, "Deposit")
}

// A type that is registered behind a consumer's filter would not be read.
func TestRegistrationEndsWithTheFirstMessageOrWhenTheTypesAreRead(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(*handler.Mux){
		"function":   func(mux *handler.Mux) { handler.On(mux, nothing[withdraw]) },
		"middleware": func(mux *handler.Mux) { mux.Use(handler.Timeout(time.Second)) },
		"unknown":    (*handler.Mux).IgnoreUnknown,
	} {
		for first, use := range map[string]func(*handler.Mux) error{
			"message": func(mux *handler.Mux) error { return mux.Handle(context.Background(), command(t, Deposit{1})) },
			"types": func(mux *handler.Mux) error {
				require.Equal(t, []string{"Deposit"}, mux.Types())
				return nil
			},
		} {
			t.Run(name+"/"+first, func(t *testing.T) {
				t.Parallel()
				mux := handler.New()
				handler.On(mux, nothing[Deposit])
				require.NoError(t, use(mux))

				late(mux)

				require.ErrorIs(t, mux.Validate(), messagestore.ErrInvalid)
				require.ErrorIs(t, mux.Handle(context.Background(), command(t, Deposit{1})), messagestore.ErrInvalid)
			})
		}
	}
}

func TestAMiddlewareThatCannotBePutAroundIsAMistake(t *testing.T) {
	t.Parallel()
	for name, middleware := range map[string]handler.Middleware{
		"nil":   func(handler.HandlerFunc) handler.HandlerFunc { return nil },
		"panic": func(handler.HandlerFunc) handler.HandlerFunc { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := handler.New()
			handler.On(mux, nothing[Deposit])
			mux.Use(middleware)

			for range 2 {
				require.ErrorIs(t, mux.Handle(t.Context(), command(t, Deposit{1})), messagestore.ErrInvalid)
			}
		})
	}
}

func TestTheFirstMiddlewareIsTheOutermost(t *testing.T) {
	t.Parallel()
	var calls []string
	around := func(name string) handler.Middleware {
		return func(next handler.HandlerFunc) handler.HandlerFunc {
			return func(ctx context.Context, m *messagestore.Message) error {
				calls = append(calls, name)
				return next(ctx, m)
			}
		}
	}
	mux := handler.New()
	mux.Use(around("first"), around("second"))
	handler.On(mux, func(context.Context, handler.Message[Deposit]) error {
		calls = append(calls, "function")
		return nil
	})
	mux.Use(around("third"))

	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{1})))

	require.Equal(t, []string{"first", "second", "third", "function"}, calls)
}

func TestLogTellsNamesAndNumbersAndNoContent(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	mux := handler.New()
	mux.Use(handler.Log(logger.Zerolog(zerolog.New(&log))))
	handler.On(mux, func(_ context.Context, m handler.Message[Deposit]) error {
		if m.Body.Amount > 777_777_000 {
			return errors.New("too much")
		}
		return nil
	})

	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{777_777_000})))
	require.Error(t, mux.Handle(t.Context(), command(t, Deposit{777_777_001})))

	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	require.Len(t, lines, 2)
	require.Regexp(t, `^{"level":"debug","type":"Deposit","stream":"account:command-123","position":0,"took":[0-9.e-]+,"message":"handle"}$`, lines[0])
	require.Contains(t, lines[1], `"error":"too much"`)
	require.NotContains(t, log.String(), "777777")
}

func TestTimeoutEndsTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux := handler.New()
		mux.Use(handler.Timeout(time.Minute))
		handler.On(mux, func(ctx context.Context, _ handler.Message[Deposit]) error {
			<-ctx.Done()
			return ctx.Err()
		})
		start := time.Now()

		err := mux.Handle(t.Context(), command(t, Deposit{1}))

		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, "handle Deposit account:command-123@0: timeout of 1m0s: context deadline exceeded")
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestATimeoutOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	mux.Use(handler.Timeout(0))
	handler.On(mux, nothing[Deposit])

	err := mux.Handle(t.Context(), command(t, Deposit{1}))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

func TestAMuxIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	mux := handler.New()
	mux.IgnoreUnknown()
	handler.On(mux, nothing[Deposit])
	deposit, other := command(t, Deposit{1}), command(t, withdraw{1})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				if err := errors.Join(mux.Handle(context.Background(), deposit), mux.Handle(context.Background(), other)); err != nil {
					t.Error(err)
				}
				_, _ = mux.Types(), mux.Validate()
			}
		})
	}

	group.Wait()

	require.EqualValues(t, 800, mux.Ignored())
}

// The zero value is a mux as any other.
func TestAMuxThatWasNotMadeByNewWorks(t *testing.T) {
	t.Parallel()
	var mux handler.Mux
	require.ErrorIs(t, mux.Validate(), messagestore.ErrInvalid)
	handled := 0
	handler.On(&mux, func(context.Context, handler.Message[Deposit]) error {
		handled++
		return nil
	})
	require.NoError(t, mux.Validate())
	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{Amount: 1})))
	require.Equal(t, 1, handled)

	var empty handler.Mux
	require.Empty(t, empty.Types())
	require.ErrorIs(t, empty.Handle(t.Context(), command(t, Deposit{Amount: 1})), messagestore.ErrInvalid)
}
