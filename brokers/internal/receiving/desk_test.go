package receiving_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/brokers/internal/receiving"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
)

// A delivery panics where it is acknowledged.
type delivery struct{}

func (delivery) Message() string                     { return "" }
func (delivery) Place() string                       { return "" }
func (delivery) Times() int                          { return 1 }
func (delivery) Ack(context.Context) error           { panic("broken") }
func (delivery) Parked(context.Context, error) error { return nil }
func (delivery) Extend()                             {}

// What a client of a broker panics with ends the receiver as its error, and the delivery goes back.
func TestAPanicOfAWorkerEndsTheReceiver(t *testing.T) {
	t.Parallel()
	fine := func(context.Context, string) error { return nil }
	r := testkit.Must(receiving.New(fine, func(context.Context, string, error) error { return nil }, receiving.Config{Logger: logger.Silent()}))
	wait := func(ctx context.Context) { <-ctx.Done() }
	for name, beside := range map[string]func(context.Context){"a worker": wait, "what goes on beside": func(context.Context) { panic("broken") }} {
		desk := receiving.NewDesk[delivery](r, 10)
		unended, err := desk.Serve(t.Context(), t.Context(), 2, func(ctx context.Context) error {
			if name == "a worker" {
				desk.Put(delivery{}, "", false)
			}
			wait(ctx)
			return nil
		}, beside)

		require.NotNil(t, calling.PanicOf(err), "%s: %v", name, err)
		require.Equal(t, name == "a worker", len(unended) == 1)
	}
}
