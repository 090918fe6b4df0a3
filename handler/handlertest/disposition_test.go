package handlertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/messagestore"
)

// The row of a scenario in the table of package handler: the handler writes two messages to its own category, and has
// the disposition for the first of these.
func TestDispositions(t *testing.T) {
	t.Parallel()
	type then = func(s *handlertest.Scenario) *handlertest.Scenario
	all := map[string]struct {
		disposition error
		delivered   []int
		then        then
	}{
		"Park":       {handler.Park(errPoor), []int{1, 2, 3}, func(s *handlertest.Scenario) *handlertest.Scenario { return s.ThenParked(errPoor) }},
		"RetryAfter": {handler.RetryAfter(time.Hour, errPoor), []int{1, 2}, func(s *handlertest.Scenario) *handlertest.Scenario { return s.ThenRetryAfter(time.Hour, errPoor) }},
		"Skip":       {handler.Skip("a test account"), []int{1, 2, 3}, func(s *handlertest.Scenario) *handlertest.Scenario { return s.ThenSkipped() }},
		"Refuse":     {handler.Refuse(errPoor), []int{1, 2}, func(s *handlertest.Scenario) *handlertest.Scenario { return s.ThenRefused(errPoor) }},
	}
	for name, test := range all {
		for how, wrap := range map[string]func(error) error{
			"wrapped": func(err error) error { return fmt.Errorf("withdraw: %w", err) },
			"joined":  func(err error) error { return errors.Join(errors.New("the receipt is lost"), err) },
		} {
			for asked, other := range all {
				t.Run(fmt.Sprint(name, " ", how, ", asked for ", asked), func(t *testing.T) {
					t.Parallel()
					var delivered []int
					r := &told{TB: t}
					s := handlertest.New(r, func(store *messagestore.Store) (*handler.Mux, error) {
						mux := handler.New()
						handler.On(mux, func(ctx context.Context, m handler.Message[withdraw]) error {
							delivered = append(delivered, m.Body.Amount)
							switch m.Body.Amount {
							case 1:
								_, err := store.Write(ctx, m.Stream, messagestore.AnyVersion, withdraw{"w2", 2}, withdraw{"w3", 3})
								return err
							case 2:
								return wrap(test.disposition)
							}
							return nil
						})
						return mux, nil
					}).When(commands.Stream("123"), withdraw{"w1", 1})
					require.Equal(t, test.delivered, delivered)
					require.Empty(t, r.errors)

					other.then(s)

					require.Equal(t, asked != name, len(r.errors) > 0, "%v", r.errors)
				})
			}
		}
	}
	r := &told{TB: t}
	s := handlertest.New(r, func(*messagestore.Store) (*handler.Mux, error) {
		mux := handler.New()
		handler.On(mux, func(context.Context, handler.Message[withdraw]) error { return handler.RetryAfter(time.Hour, errPoor) })
		return mux, nil
	}).When(commands.Stream("123"), withdraw{"w1", 1})
	s.ThenRetryAfter(time.Minute, errPoor)
	require.Equal(t, []string{"then: expected a retry after 1m0s, and it is after 1h0m0s"}, r.errors)
}
