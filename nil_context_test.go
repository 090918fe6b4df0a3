package dibs_test

import (
	"context"
	"database/sql"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"path"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/queuing"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/upcast"
)

// theFunctions are those of all packages for users, each under its name.
var theFunctions = map[string]any{
	"dibs.Open":                      dibs.Open,
	"consumer.New":                   consumer.New,
	"consumer.NameOf":                consumer.NameOf,
	"consumer.FromStart":             consumer.FromStart,
	"consumer.FromEnd":               consumer.FromEnd,
	"consumer.From":                  consumer.From,
	"deadletter.Of":                  deadletter.Of,
	"deadletter.Counts":              deadletter.Counts,
	"deadletter.CheckReason":         deadletter.CheckReason,
	"operate.Consumer":               operate.Consumer,
	"operate.CheckConsumer":          operate.CheckConsumer,
	"operate.Consumers":              operate.Consumers,
	"entity.New":                     entity.New[int],
	"entity.NewProjection":           entity.NewProjection[int],
	"entity.On":                      entity.On[int, hold],
	"entity.OnMessage":               entity.OnMessage[int, hold],
	"entity.Ignore":                  entity.Ignore[hold, int],
	"handler.New":                    handler.New,
	"handler.On":                     handler.On[hold],
	"handler.NewHandler":             handler.NewHandler[hold],
	"handler.Register":               handler.Register[hold],
	"handler.Log":                    handler.Log,
	"handler.Timeout":                handler.Timeout,
	"handler.Park":                   handler.Park,
	"handler.RetryAfter":             handler.RetryAfter,
	"handler.Skip":                   handler.Skip,
	"handler.Refuse":                 handler.Refuse,
	"logger.Zerolog":                 logger.Zerolog,
	"logger.Slog":                    logger.Slog,
	"logger.Silent":                  logger.Silent,
	"logger.StandardError":           logger.StandardError,
	"messagestore.NewInvalidError":   messagestore.NewInvalidError,
	"messagestore.EscapeID":          messagestore.EscapeID,
	"messagestore.UnescapeID":        messagestore.UnescapeID,
	"messagestore.Decode":            messagestore.Decode[hold],
	"messagestore.Follow":            messagestore.Follow,
	"messagestore.ParseMetadata":     messagestore.ParseMetadata[string],
	"messagestore.ParseCategory":     messagestore.ParseCategory,
	"messagestore.ParseStreamName":   messagestore.ParseStreamName,
	"messagestore.StreamExistsBelow": messagestore.StreamExistsBelow,
	"messagestore.ValidateType":      messagestore.ValidateType,
	"messagestore.New":               messagestore.New,
	"messagestore.To":                messagestore.To,
	"messagestore.Transactional":     messagestore.Transactional[*sql.Tx],
	"messagestore.NotCheckpoints":    messagestore.NotCheckpoints,
	"memory.New":                     memory.New,
	"memory.NewWithClock":            memory.NewWithClock,
	"postgres.New":                   postgres.New,
	"postgres.Open":                  postgres.Open,
	"postgres.WatchReplication":      postgres.WatchReplication,
	"postgres.NewSQL":                postgres.NewSQL,
	"admin.New":                      admin.New,
	"sqlite.Open":                    sqlite.Open,
	"sqlite.Schema":                  sqlite.Schema,
	"sqlite.New":                     sqlite.New,
	"migrations.Install":             migrations.Install,
	"migrations.Drift":               migrations.Drift,
	"migrations.Up":                  migrations.Up,
	"migrations.Status":              migrations.Status,
	"migrations.Print":               migrations.Print,
	"migrations.PrintGoose":          migrations.PrintGoose,
	"migrations.PrintRoles":          migrations.PrintRoles,
	"outbox.HTTP":                    outbox.HTTP,
	"outbox.Into":                    outbox.Into,
	"outbox.New":                     outbox.New,
	"reservation.Transact":           reservation.Transact[*sql.Tx, hold],
	"reservation.Answer":             reservation.Answer,
	"reservation.ContentKey":         reservation.ContentKey[*hold],
	"reservation.DeriveID":           reservation.DeriveID,
	"reservation.Copy":               reservation.Copy[hold],
	"reservation.WrittenWith":        reservation.WrittenWith,
	"reservation.Initiate":           reservation.Initiate[hold],
	"reservation.Inline":             reservation.Inline[hold],
	"reservation.NewKey":             reservation.NewKey,
	"reservation.JoinKey":            reservation.JoinKey,
	"reservation.KeyOf":              reservation.KeyOf,
	"reservation.New":                reservation.New,
	"idempotency.Public":             idempotency.Public,
	"idempotency.New":                idempotency.New,
	"idempotency.Lease":              idempotency.Lease,
	"idempotency.Forget":             idempotency.Forget,
	"idempotency.KeptHeaders":        idempotency.KeptHeaders,
	"idempotency.KeyOf":              idempotency.KeyOf,
	"intent.Do":                      intent.Do[int],
	"intent.New":                     intent.New,
	"intent.ScopeAndKey":             intent.ScopeAndKey,
	"intent.Result":                  intent.Result[int],
	"intent.ReadStep":                intent.ReadStep,
	"saga.NewOperator":               saga.NewOperator,
	"saga.Answer":                    saga.Answer[hold, int],
	"saga.Value":                     saga.Value[int],
	"saga.Receive":                   saga.Receive[int],
	"saga.New":                       saga.New[int, int],
	"saga.NewStep":                   saga.NewStep[int, int],
	"saga.NewTxStep":                 saga.NewTxStep[*sql.Tx, int, int],
	"saga.Write":                     saga.Write,
	"saga.NewAsk":                    saga.NewAsk[int, int],
	"saga.IsFull":                    saga.IsFull,
	"saga.Key":                       saga.Key,
	"inbox.New":                      inbox.New[*sql.Tx],
	"queue.New":                      queue.New,
	"queuing.ValidateQueue":          queuing.ValidateQueue,
	"queue.JobOf":                    queue.JobOf,
	"cron.New":                       cron.New,
	"cron.Next":                      cron.Next,
	"cron.TickOf":                    cron.TickOf,
	"upcast.Named":                   upcast.Named[hold],
	"upcast.From":                    upcast.From[held, hold],
	"upcast.Raw":                     upcast.Raw[hold],
	"upcast.Forms":                   upcast.Forms[hold],
}

// tellsByPanic are the functions that have no other way to tell that something is nil, each with the beginning of its words.
var tellsByPanic = map[string]string{
	"handler.On":                "handler: ",
	"handler.Register":          "handler: ",
	"entity.On":                 "entity: ",
	"entity.OnMessage":          "entity: ",
	"entity.Ignore":             "entity: ",
	"reservation.DeriveID":      "reservation: ",
	"postgres.WatchReplication": "postgres: ",
	"Middleware.Handler":        "idempotency: ",
	"Middleware.HandlerFunc":    "idempotency: ",
	"Lease.Keep":                "intent: ",
}

// A function without a line in theFunctions fails this test, so each is called with arguments that are nil.
func TestEveryFunctionIsCalledWithNil(t *testing.T) {
	for file, src := range files(t, ".go") {
		folder := path.Dir(filepath.ToSlash(file))
		apart := strings.HasSuffix(file, "_test.go") || slices.ContainsFunc(strings.Split(folder, "/"), func(part string) bool {
			return slices.Contains([]string{"internal", "cmd", "examples"}, part)
		})
		if apart {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, declared := range parsed.Decls {
			f, is := declared.(*ast.FuncDecl)
			if !is || f.Recv != nil || !f.Name.IsExported() || isForTests(f) {
				continue
			}
			require.Contains(t, theFunctions, parsed.Name.Name+"."+f.Name.Name, "a line of theFunctions")
		}
	}
}

// isForTests says whether the function begins with a test, as those of packages for tests do.
func isForTests(f *ast.FuncDecl) bool {
	if len(f.Type.Params.List) == 0 {
		return false
	}
	first := f.Type.Params.List[0].Type
	if pointer, is := first.(*ast.StarExpr); is {
		first = pointer.X
	}
	of, is := first.(*ast.SelectorExpr)
	if !is {
		return false
	}
	pkg, is := of.X.(*ast.Ident)
	return is && pkg.Name == "testing"
}

// Every call that takes a context refuses one that is nil, and none panics for arguments that are zero values, be it
// one of them or all.
func TestNilContextsAndZeroValuesAreRefused(t *testing.T) {
	t.Parallel()
	store := newStore()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)
	require.NoError(t, err)
	defer driver.Close()
	txs, err := messagestore.Transactional[*sql.Tx](must.New(messagestore.New(driver, nil)))
	require.NoError(t, err)
	u, err := inbox.New(txs, seats, nil)
	require.NoError(t, err)
	intents, err := intent.New(store, "payment:intent", &intent.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	operator, err := saga.NewOperator(store, "trip:saga", "ann")
	require.NoError(t, err)
	trips, err := saga.New(store, "trip", func(*saga.Run, int) (int, error) { return 0, nil }, nil, &saga.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	reserver := must.New(reservation.New(store, "seats", &reservation.Config{Logger: logger.Silent()}))
	ended, end := context.WithCancel(t.Context())
	end()
	nothing := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
	message := write(t, store, "seat-1", hold{"1"})

	known := arguments{
		store, txs, u, intents, reserver, message, nothing,
		noSink{},
		http.DefaultTransport,
		messagestore.StreamName("seat-1"), seats, messagestore.Body(&hold{"1"}),
		hold{"1"},
		&hold{"1"}, entity.NewProjection[int](),
		handler.New(),
		handler.Message[hold]{Body: hold{"1"}, Message: message},
		io.Discard, errNoRoom, time.Now(), time.Second,
		messagestore.To("seat-1", messagestore.AnyVersion, held{}), trips, uuid.New(),
		messagestore.CategoryQuery{Category: seats},
		intent.Request{Key: "1", Session: "1", Content: "1"},
		inbox.Request{ID: "1"},
		&retention.TrimOptions{Keep: 1}, &outbox.Message{Message: message}, http.NotFoundHandler(),
	}
	for name, f := range theFunctions {
		known.call(ended, t, name, reflect.ValueOf(f))
	}
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[hold]) error { return nil })
	answer, err := intents.Reserve(t.Context(), intent.Request{Key: "2", Session: "1", Content: "1"})
	require.NoError(t, err)
	middleware, err := idempotency.New(intents, &idempotency.Config{Scope: idempotency.Public})
	require.NoError(t, err)
	rooms := entity.NewProjection[int]()
	entity.On(rooms, func(n int, _ held) int { return n + 1 })
	for name, value := range map[string]any{
		"Lease":      answer.Lease,
		"Middleware": middleware,
		"Step":       saga.NewStep("held", func(context.Context, int) (int, error) { return 0, nil }, nil, nil),
		"TxStep":     saga.NewTxStep("held", txs, func(context.Context, *sql.Tx, int) (int, error) { return 0, nil }, nil, nil),
		"Ask": saga.NewAsk[int, int]("held", func(context.Context, int) (messagestore.StreamWrite, error) {
			return messagestore.StreamWrite{}, nil
		}, nil, nil),
		"Projection": entity.NewProjection[int](),
		"Logger":     logger.Silent(),
		"HTTPSink":   must.New(outbox.HTTP("http://localhost:1", nil)),
		"Into":       must.New(outbox.Into(store, func(*outbox.Message) messagestore.StreamName { return "seat-1" })),
		"NoLetters":  deadletter.Of(nil, commands, "seats"),
		"NoStore":    (*messagestore.Store)(nil),
		"NoClock":    must.New(messagestore.New(memory.NewWithClock(nil), nil)),
		"Store":      store,
		"Consumer":   must.New(consumer.New(store, commands, "seats", nothing, &consumer.Config{Logger: logger.Silent()})),
		"Entries":    deadletter.Of(store, commands, "seats"),
		"Target":     operate.Consumer(store, commands, "seats"),
		"Entities":   must.New(entity.New(store, seats, rooms, nil)),
		"Mux":        mux,
		"Handler":    handler.NewHandler(func(context.Context, handler.Message[hold]) error { return nil }, nil, nil),
		"Relay":      must.New(outbox.New(store, seats, "mail", noSink{}, &outbox.Config{Logger: logger.Silent()})),
		"Reserver":   reserver,
		"Manager":    intents,
		"Operator":   operator,
		"Saga":       trips,
		"Inbox":      u,
		"Queue":      must.New(queue.New(store, commands, &queue.Config{Logger: logger.Silent()})),
		"Job":        &queue.Job{},
		"TxStore":    txs,
		"SQLite":     driver,
		"Response":   idempotency.Response{},
		"Message":    message,
		"Metadata":   message.Metadata,
		"Stream":     messagestore.StreamName("seat-1"),
		"Category":   seats,
	} {
		v := reflect.ValueOf(value)
		for i := range v.NumMethod() {
			if method := v.Type().Method(i).Name; method != "Close" {
				known.call(ended, t, name+"."+method, v.Method(i))
			}
		}
	}
}

// arguments are values to call functions with.
type arguments []any

// call calls f with good arguments and a nil context, and then with zero values: all of them, and each in turn.
func (a arguments) call(ctx context.Context, t *testing.T, name string, f reflect.Value) {
	t.Helper()
	good := make([]reflect.Value, f.Type().NumIn())
	for i := range good {
		good[i] = a.of(ctx, f.Type().In(i))
	}
	try := func(in []reflect.Value) (err error) {
		defer func() {
			switch v := recover().(type) {
			case nil:
			case string:
				begins := tellsByPanic[name]
				if begins == "" || !strings.HasPrefix(v, begins) {
					t.Errorf("%s of %v panics: %s", name, in, v)
				}
			default:
				t.Errorf("%s of %v panics: %v\n%s", name, in, v, debug.Stack())
			}
		}()
		return errorOf(f, in)
	}
	if len(good) > 0 && good[0].Type() == reflect.TypeFor[context.Context]() {
		in := slices.Clone(good)
		in[0] = reflect.Zero(in[0].Type())
		if err := try(in); tells(f.Type()) {
			refused := errors.Is(err, messagestore.ErrInvalid)
			if strings.HasPrefix(name, "migrations.") { // which knows no store
				refused = err != nil && strings.Contains(err.Error(), "invalid context: it is nil")
			}
			if !refused {
				t.Errorf("%s of a nil context: %v", name, err)
			}
		}
	}
	zero := make([]reflect.Value, len(good))
	for i := range good {
		zero[i] = reflect.Zero(good[i].Type())
		if f.Type().IsVariadic() && i == len(good)-1 {
			zero[i] = reflect.MakeSlice(good[i].Type(), 1, 1)
		}
		in := slices.Clone(good)
		in[i] = zero[i]
		_ = try(in)
	}
	_ = try(zero)
}

// of returns a good value of a type, or the zero value if there is none.
func (a arguments) of(ctx context.Context, t reflect.Type) reflect.Value {
	if t == reflect.TypeFor[context.Context]() {
		return reflect.ValueOf(&ctx).Elem()
	}
	for _, value := range a {
		if reflect.TypeOf(value) == t || t.Kind() == reflect.Interface && reflect.TypeOf(value).Implements(t) {
			v := reflect.New(t).Elem()
			v.Set(reflect.ValueOf(value))
			return v
		}
	}
	v := reflect.New(t).Elem()
	switch t.Kind() { //nolint:exhaustive // the others are good as they are
	case reflect.String:
		v.SetString("seats")
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Slice:
		v.Set(reflect.Append(v, a.of(ctx, t.Elem())))
	case reflect.Func:
		v.Set(reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
			out := make([]reflect.Value, t.NumOut())
			for i := range out {
				out[i] = reflect.Zero(t.Out(i))
			}
			return out
		}))
	}
	return v
}

// tells says whether a function returns an error, or a sequence that does.
func tells(f reflect.Type) bool {
	if f.NumOut() == 0 {
		return false
	}
	last := f.Out(f.NumOut() - 1)
	return last == reflect.TypeFor[error]() || last.Kind() == reflect.Func && last.NumIn() == 1 &&
		last.In(0).Kind() == reflect.Func && last.In(0).NumIn() == 2
}

// errorOf calls f, and returns its error.
func errorOf(f reflect.Value, in []reflect.Value) error {
	call := f.Call
	if f.Type().IsVariadic() {
		call = f.CallSlice
	}
	out := call(in)
	for _, o := range out {
		if stop, is := reflect.TypeAssert[func()](o); is {
			stop()
		}
	}
	if !tells(f.Type()) {
		return nil
	}
	last := out[len(out)-1]
	if last.Kind() == reflect.Interface {
		err, _ := reflect.TypeAssert[error](last)
		return err
	}
	return ofSequence(last)
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

type noSink struct{}

func (noSink) Send(context.Context, *outbox.Message) error { return nil }
