package reservation_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const command = messagestore.StreamName("account:command-123")

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) }

func newReserver(t testing.TB, store reservation.Store, config *reservation.Config) *reservation.Reserver {
	t.Helper()
	return named(t, store, "accounts", config)
}

func named(t testing.TB, store reservation.Store, name string, config *reservation.Config) *reservation.Reserver {
	t.Helper()
	r, err := reservation.New(store, name, config)
	require.NoError(t, err)
	return r
}

// send writes body to stream and returns it as it is recorded.
func send(t testing.TB, store *messagestore.Store, stream messagestore.StreamName, body messagestore.Body) *messagestore.Message {
	t.Helper()
	_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, body)
	require.NoError(t, err)
	m, err := store.Last(t.Context(), stream)
	require.NoError(t, err)
	return m
}

// all returns the messages of a stream.
func all(t testing.TB, store *messagestore.Store, stream messagestore.StreamName) []*messagestore.Message {
	t.Helper()
	var found []*messagestore.Message
	for m, err := range store.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		found = append(found, m)
	}
	return found
}

// requireKeyReused finds the error for a key that another command had first.
func requireKeyReused(t testing.TB, err error) {
	t.Helper()
	require.Truef(t, isKeyReused(err), "%v", err)
}

func isKeyReused(err error) bool {
	_, reused := errors.AsType[*reservation.KeyReusedError](err)
	return reused
}

// requireNoReservation finds the error for a stream that begins otherwise.
func requireNoReservation(t testing.TB, err error, stream messagestore.StreamName) {
	t.Helper()
	wrong, ok := errors.AsType[*reservation.NoReservationError](err)
	require.Truef(t, ok, "%v", err)
	require.Equal(t, stream, wrong.Stream)
	require.Equal(t, stream, wrong.First.Stream)
}

// place returns the beginning of the streams in which a reserver reserves the keys of commands in source.
func place(source messagestore.StreamName, reserver string) messagestore.StreamName {
	return messagestore.StreamName(string(source.Category().WithType("reservation").WithType(reserver)) + "-" + source.ID())
}

// catchUp has a new consumer handle all of the account's commands, and another one their copies.
func catchUp(t testing.TB, store *messagestore.Store, mux *handler.Mux, config *consumer.Config) error {
	t.Helper()
	if err := testkit.Must(consumer.New(store, commands, "accounts", mux, config)).CatchUp(t.Context()); err != nil {
		return err
	}
	return testkit.Must(consumer.New(store, place(command, "accounts").Category(), "accounts", mux, config)).CatchUp(t.Context())
}

// outcomes collects the outcomes that OnOutcome is called with.
type outcomes struct {
	mu  sync.Mutex
	all []reservation.Outcome
}

func (o *outcomes) on(_ context.Context, _ *messagestore.Message, result reservation.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, result.Outcome)
}

func (o *outcomes) count(outcome reservation.Outcome) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, each := range o.all {
		if each == outcome {
			n++
		}
	}
	return n
}

// A fault is the fate of a write in a faulty driver.
type fault int

const (
	works      fault = iota
	refuses          // nothing is written, and the error says so
	timesOut         // nothing is written, and the context's error says so
	losesWrite       // nothing is written, and nobody knows
	losesReply       // it is written, and nobody knows
)

var (
	errRefused = errors.New("the driver refused")
	errLost    = errors.New("the connection was lost")
)

// A faulty driver has a fault for each write, chosen by next. It does not resolve a write
// of unknown outcome.
type faulty struct {
	messagestore.Driver
	next  func() fault
	reads func() error
}

func (f *faulty) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	all, err := f.AppendAll(ctx, []messagestore.Append{a})
	if err != nil {
		return messagestore.Written{}, err
	}
	return all[0], nil
}

func (f *faulty) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	var written []messagestore.Written
	err := f.fate(appends, func() (err error) {
		written, err = f.Driver.AppendAll(ctx, appends)
		return err
	})
	if err != nil {
		return nil, err
	}
	return written, nil
}

// fate calls write, or does not, and returns the answer.
func (f *faulty) fate(appends []messagestore.Append, write func() error) error {
	unknown := &messagestore.OutcomeUnknownError{Writes: appends, Cause: errLost}
	what := works
	if f.next != nil {
		what = f.next()
	}
	switch what {
	case refuses:
		return errRefused
	case timesOut:
		return context.DeadlineExceeded
	case losesWrite:
		return unknown
	case losesReply:
		if err := write(); err != nil {
			return err
		}
		return unknown
	}
	return write()
}

func (f *faulty) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	var written []messagestore.Written
	var met *messagestore.Conflict
	err := f.fate(appends, func() (err error) {
		written, met, err = f.Driver.TryAppend(ctx, appends)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return written, met, nil
}

func newFaulty(f *faulty) *messagestore.Store { return testkit.Must(messagestore.New(f, nil)) }

func (f *faulty) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	if f.reads != nil {
		if err := f.reads(); err != nil {
			return nil, err
		}
	}
	return f.Driver.ReadStream(ctx, q)
}

func (f *faulty) Find(context.Context, messagestore.StreamName, []uuid.UUID) ([]*messagestore.Message, error) {
	return nil, errLost
}

// Transfer chooses its content.
type Transfer struct {
	To     string `json:"to"`
	Amount int    `json:"amount"`
	SentAt string `json:"sentAt"`
}

func (Transfer) MessageType() string { return "Transfer" }
func (t Transfer) Key() string       { return t.To }
func (t Transfer) ReservationContent() any {
	t.SentAt = ""
	return t
}

// Remittance chooses its content with a pointer receiver.
type Remittance Transfer

func (*Remittance) MessageType() string { return "Remittance" }
func (r *Remittance) Key() string       { return r.To }
func (r *Remittance) ReservationContent() any {
	return map[string]any{"to": r.To, "amount": r.Amount}
}

func raw(messageType, data string) messagestore.Raw {
	return messagestore.Raw{Type: messageType, Data: json.RawMessage(data)}
}
