package dibs_test

import (
	"context"
	"database/sql"
	"iter"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/alarm"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/reservation/idempotency"
	"github.com/dibs-go/dibs/reservation/intent"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/unit"
)

// Every call that takes a context refuses one that is nil, and none panics for zero values.
func TestNilContextsAndZeroValuesAreRefused(t *testing.T) {
	t.Parallel()
	store := newStore()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)
	require.NoError(t, err)
	defer driver.Close()
	txs, err := messagestore.Transactional[*sql.Tx](messagestore.New(driver, nil))
	require.NoError(t, err)
	u, err := unit.New(txs, seats, nil)
	require.NoError(t, err)
	intents, err := intent.New(store, "payment:intent", &intent.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	operator, err := saga.NewOperator(store, "trip:saga", "ann")
	require.NoError(t, err)
	trips, err := saga.New(store, "trip", func(*saga.Run, int) (int, error) { return 0, nil }, nil, &saga.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	reserver := reservation.New(store, "seats", &reservation.Config{Logger: logger.Silent()})
	ended, end := context.WithCancel(t.Context())
	end()
	nothing := consumer.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })

	for name, value := range map[string]any{
		"Store":     store,
		"Consumer":  consumer.New(store, commands, "", nothing, &consumer.Config{Logger: logger.Silent()}),
		"Letters":   deadletter.Of(store, commands, ""),
		"Target":    operate.Consumer(store, commands, ""),
		"Entities":  entity.New(store, seats, entity.NewProjection[int](), nil),
		"Mux":       handler.New(),
		"Relay":     outbox.New(store, seats, "mail", noSink{}, &outbox.Config{Logger: logger.Silent()}),
		"Reserver":  reserver,
		"Manager":   intents,
		"Operator":  operator,
		"Saga":      trips,
		"Unit":      u,
		"Clock":     alarm.New(store, "seat:alarm", &alarm.Config{Logger: logger.Silent()}),
		"TxStore":   txs,
		"SQLite":    operated{driver},
		"Functions": functions{reserver, intents},
	} {
		v := reflect.ValueOf(value)
		calls := 0
		for i := range v.NumMethod() {
			f := v.Method(i).Type()
			if f.NumIn() == 0 || f.In(0) != reflect.TypeFor[context.Context]() {
				continue
			}
			calls++
			what := name + "." + v.Type().Method(i).Name
			var err error
			require.NotPanics(t, func() { err = call(nil, v.Method(i)) }, "%s of a nil context", what) //nolint:staticcheck // it is the subject
			require.ErrorIs(t, err, messagestore.ErrInvalid, "%s of a nil context", what)
			require.NotPanics(t, func() { _ = call(ended, v.Method(i)) }, "%s of zero values", what)
		}
		require.Positive(t, calls, name)
	}
}

// call returns the error of a call with zero values behind the context.
func call(ctx context.Context, f reflect.Value) error {
	in := []reflect.Value{reflect.Zero(f.Type().In(0))}
	if ctx != nil {
		in[0] = reflect.ValueOf(ctx)
	}
	for i := 1; i < f.Type().NumIn(); i++ {
		if f.Type().IsVariadic() && i == f.Type().NumIn()-1 {
			break
		}
		in = append(in, reflect.Zero(f.Type().In(i)))
	}
	out := f.Call(in)
	switch last := out[len(out)-1].Interface().(type) {
	case error:
		return last
	case nil:
		return nil
	default:
		return ofSequence(reflect.ValueOf(last))
	}
}

// ofSequence returns the first error of an iter.Seq2.
func ofSequence(sequence reflect.Value) (err error) {
	yield := reflect.MakeFunc(sequence.Type().In(0), func(in []reflect.Value) []reflect.Value {
		err, _ = reflect.TypeAssert[error](in[1])
		return []reflect.Value{reflect.ValueOf(false)}
	})
	sequence.Call([]reflect.Value{yield})
	return err
}

// operations are what an operator calls.
type operations interface {
	Trim(ctx context.Context, stream messagestore.StreamName, options *retention.TrimOptions) (retention.Trimmed, error)
	TrimCategory(ctx context.Context, category messagestore.Category, options *retention.TrimOptions) iter.Seq2[retention.Trimmed, error]
	Delete(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *retention.DeleteOptions) (retention.Deleted, error)
	ForgetInbox(ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions) (retention.ForgottenRequests, error)
	Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error)
	Examine(ctx context.Context) (sqlite.State, error)
}

type operated struct{ operations }

type noSink struct{}

func (noSink) Send(context.Context, *outbox.Message) error { return nil }

// functions are those of packages.
type functions struct {
	reserver *reservation.Reserver
	intents  *intent.Manager
}

func (functions) Open(ctx context.Context) error {
	_, err := dibs.Open(ctx, "postgres://localhost/x", nil)
	return err
}

func (functions) OpenFile(ctx context.Context) error {
	_, err := dibs.Open(ctx, "sqlite:///tmp/x", nil)
	return err
}

func (functions) OpenPostgres(ctx context.Context) error {
	_, err := postgres.Open(ctx, "postgres://localhost/x", nil)
	return err
}

func (functions) OpenSQLite(ctx context.Context) error {
	_, err := sqlite.Open(ctx, "x", nil)
	return err
}

func (f functions) NewClaim(ctx context.Context) error {
	_, err := reservation.NewClaim(ctx, f.reserver, handler.Message[hold]{}, func(hold) string { return "" })
	return err
}

func (functions) Counts(ctx context.Context) error {
	_, err := deadletter.Counts(ctx, newStore(), seats)
	return err
}

func (functions) Consumers(ctx context.Context) error {
	_, err := operate.Consumers(ctx, newStore(), seats)
	return err
}

func (f functions) Do(ctx context.Context) error {
	_, _, err := intent.Do(ctx, f.intents, intent.Request{}, func(context.Context, *intent.Lease) (int, error) { return 0, nil })
	return err
}

func (functions) WriteOfASaga(ctx context.Context) error { return saga.Write(ctx) }

func (functions) WriteOfAResponse(ctx context.Context) error {
	_, err := idempotency.Response{}.Write(ctx)
	return err
}
