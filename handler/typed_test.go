package handler_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

var errElsewhere = errors.New("it is over another store")

// checked returns a handler with a check that fails, as another package makes it, which notes its calls.
func checked(calls *[]string, err error) handler.Handler[Deposit] {
	return handler.NewHandler(func(context.Context, handler.Message[Deposit]) error {
		*calls = append(*calls, "function")
		return nil
	}, func(context.Context, *messagestore.Message) error { return errElsewhere }, err)
}

// around returns a wrapper of a user's, for a function or for a handler.
func around[T messagestore.Body](calls *[]string, name string) func(handler.Func[T]) handler.Func[T] {
	return func(next handler.Func[T]) handler.Func[T] {
		return func(ctx context.Context, m handler.Message[T]) error {
			*calls = append(*calls, name)
			return next(ctx, m)
		}
	}
}

func TestAWrapperKeepsTheCheck(t *testing.T) {
	t.Parallel()
	var calls []string
	mux := handler.New()
	handler.Register(mux, checked(&calls, nil).Wrap(around[Deposit](&calls, "inner")).Wrap(around[Deposit](&calls, "outer")))

	require.NoError(t, mux.Validate())
	require.Len(t, mux.Checks(), 1)
	require.ErrorIs(t, mux.Checks()[0](t.Context(), command(t, Deposit{1})), errElsewhere)
	require.Empty(t, calls, "a check calls no function")

	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{1})))
	require.Equal(t, []string{"outer", "inner", "function"}, calls)
}

func TestAWrapperKeepsTheError(t *testing.T) {
	t.Parallel()
	var calls []string
	wrong := messagestore.NewInvalidError("reserver", nil, "must not be nil")
	mux := handler.New()
	h := checked(&calls, wrong).Wrap(func(handler.Func[Deposit]) handler.Func[Deposit] { panic("it is called") })
	handler.Register(mux, h)

	require.EqualError(t, mux.Validate(), `invalid registration "Deposit": invalid reserver: must not be nil`)
	require.Empty(t, mux.Checks(), "a check of what was made of mistakes")
	require.ErrorIs(t, mux.Handle(t.Context(), command(t, Deposit{1})), messagestore.ErrInvalid)
	require.ErrorIs(t, h.Handle(t.Context(), handler.Message[Deposit]{}), wrong)
	require.Empty(t, calls)
}

func TestAWrapperThatIsNoneIsAMistake(t *testing.T) {
	t.Parallel()
	var calls []string
	for want, h := range map[string]handler.Handler[Deposit]{
		"invalid wrapper: must not be nil": checked(&calls, nil).Wrap(nil),
		"the function must not be nil":     checked(&calls, nil).Wrap(func(handler.Func[Deposit]) handler.Func[Deposit] { return nil }),
	} {
		mux := handler.New()
		handler.Register(mux, h)
		require.EqualError(t, mux.Validate(), `invalid registration "Deposit": `+want)
		require.ErrorIs(t, h.Handle(t.Context(), handler.Message[Deposit]{}), messagestore.ErrInvalid)
	}
	var none handler.Handler[Deposit]
	mux := handler.New()
	handler.Register(mux, none.Wrap(nil))
	require.EqualError(t, mux.Validate(), `invalid registration "Deposit": the function must not be nil`)
}

// A function calls one handler or another.
func TestAHandlerIsCalledDirectly(t *testing.T) {
	t.Parallel()
	var calls []string
	small, large := checked(&calls, nil), checked(&calls, nil).Wrap(around[Deposit](&calls, "large"))
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[Deposit]) error {
		if m.Body.Amount > 100 {
			return large.Handle(ctx, m)
		}
		return small.Handle(ctx, m)
	})

	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{101})))
	require.NoError(t, mux.Handle(t.Context(), command(t, Deposit{100})))

	require.Equal(t, []string{"large", "function", "function"}, calls)
}

// A middleware that measures sees each message that fails.
func TestAMiddlewareSeesAMessageOfAnUnknownTypeUnlessItIsIgnored(t *testing.T) {
	t.Parallel()
	for _, ignored := range []bool{false, true} {
		var seen []error
		mux := handler.New()
		if ignored {
			mux.IgnoreUnknown()
		}
		mux.Use(func(next handler.HandlerFunc) handler.HandlerFunc {
			return func(ctx context.Context, m *messagestore.Message) error {
				err := next(ctx, m)
				seen = append(seen, err)
				return err
			}
		})
		handler.On(mux, nothing[Deposit])

		err := mux.Handle(t.Context(), command(t, withdraw{1}))

		if ignored {
			require.NoError(t, err)
			require.Empty(t, seen)
			continue
		}
		require.ErrorIs(t, err, handler.ErrUnknownType)
		require.Equal(t, []error{handler.ErrUnknownType}, seen)
	}
}
