package reservation_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/upcast"
)

type note struct {
	Text  any    `json:"text"`
	Other string `json:"other"`
}

func (note) MessageType() string { return "Note" }

type otherNote note

func (otherNote) MessageType() string { return "OtherNote" }

type broken struct{ F func() }

func (broken) MessageType() string { return "Broken" }

func TestEqualCommandsHaveEqualKeys(t *testing.T) {
	t.Parallel()
	a := reservation.ContentKey(note{Text: "a"})
	require.Empty(t, reservation.ContentKey[*note](nil))

	require.Equal(t, a, reservation.ContentKey(note{Text: "a"}))
	require.Len(t, a, 43)
	require.Equal(t, reservation.ContentKey(note{Text: 1}), reservation.ContentKey(note{Text: 1.0}))
	require.NotEqual(t, a, reservation.ContentKey(note{Text: "b"}))
	require.NotEqual(t, a, reservation.ContentKey(note{Other: "a"}))
	require.NotEqual(t, a, reservation.ContentKey(otherNote{Text: "a"}))
	require.NotEqual(t, reservation.ContentKey(note{Text: uint64(1 << 60)}), reservation.ContentKey(note{Text: uint64(1<<60 + 1)}))
}

func TestOnlyWhatCountsIsInTheContentsKey(t *testing.T) {
	t.Parallel()
	a := reservation.ContentKey(Transfer{"Bob", 10, "09:00"})

	require.Equal(t, a, reservation.ContentKey(Transfer{"Bob", 10, "09:01"}))
	require.NotEqual(t, a, reservation.ContentKey(Transfer{"Bob", 11, "09:00"}))
}

func TestABodyThatDoesNotEncodeHasNoKey(t *testing.T) {
	t.Parallel()
	require.Empty(t, reservation.ContentKey(broken{}))
}

// The keys are in databases: they may not change.
func TestAContentsKeyStaysTheSame(t *testing.T) {
	t.Parallel()
	require.Equal(t, "z_8xcCcuV8Hta_6_D3QHZ1E9SFIMnh1zbfZSutk8ymo", reservation.ContentKey(note{Text: []int{1}, Other: "ü<"}))
}

func TestADerivedIDIsTheSameForTheSameMessageAndName(t *testing.T) {
	t.Parallel()
	v7 := &messagestore.Message{ID: uuid.MustParse("0198c6b1-4b4c-7abc-8def-0123456789ab")}
	id := reservation.DeriveID(v7, "deposited")

	require.Equal(t, id, reservation.DeriveID(v7, "deposited"))
	require.Equal(t, v7.ID[:6], id[:6])
	require.Equal(t, uuid.Version(7), id.Version())
	require.Equal(t, uuid.RFC4122, id.Variant())
	require.NotEqual(t, id, v7.ID)
	require.NotEqual(t, id, reservation.DeriveID(v7, "withdrawn"))
	other := &messagestore.Message{ID: uuid.MustParse("0198c6b1-4b4c-7abc-8def-0123456789ac")}
	require.NotEqual(t, id, reservation.DeriveID(other, "deposited"))
	require.Equal(t, "0198c6b1-4b4c-7521-85cd-67d5fd31e904", id.String()) // it is in databases
}

func TestADerivedIDOfAnotherKindOfIDHasTheTimeOfTheMessage(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_123)
	v4 := &messagestore.Message{ID: uuid.MustParse("f47ac10b-58cc-4372-a567-0e02b2c3d479"), Time: at}

	id := reservation.DeriveID(v4, "deposited")

	require.Equal(t, uuid.Version(7), id.Version())
	seconds, nanoseconds := id.Time().UnixTime()
	require.Equal(t, at, time.Unix(seconds, nanoseconds).Truncate(time.Millisecond))
	require.NotPanics(t, func() { reservation.DeriveID(&messagestore.Message{}, "") })
	require.PanicsWithValue(t, "reservation: DeriveID of a nil message", func() { reservation.DeriveID(nil, "") })
}

// A payment's content is a struct, a pointer, a list or a text in which nothing is.
type (
	structPayment  struct{ Amount int }
	pointerPayment struct{ Amount int }
	listPayment    struct{ Amount int }
	textPayment    struct{ Amount int }
	rawPayment     struct{ Amount int }
	closing        struct{}
)

func (structPayment) MessageType() string  { return "Payment" }
func (pointerPayment) MessageType() string { return "Payment" }
func (listPayment) MessageType() string    { return "Payment" }
func (textPayment) MessageType() string    { return "Payment" }
func (rawPayment) MessageType() string     { return "Payment" }
func (closing) MessageType() string        { return "Closing" }

func (p structPayment) ReservationContent() any { return struct{ amount int }{p.Amount} }
func (pointerPayment) ReservationContent() any  { return (*structPayment)(nil) }
func (listPayment) ReservationContent() any     { return []int{} }
func (textPayment) ReservationContent() any     { return "" }
func (rawPayment) ReservationContent() any      { return json.RawMessage(" { } ") }

func TestContentWithNothingInItIsRefused(t *testing.T) {
	t.Parallel()
	refusesContent(t, structPayment{10}, "{}")
	refusesContent(t, pointerPayment{10}, "null")
	refusesContent(t, listPayment{10}, "[]")
	refusesContent(t, textPayment{10}, `""`)
	refusesContent(t, rawPayment{10}, "{}")
}

func refusesContent[T messagestore.Body](t *testing.T, body T, content string) {
	t.Helper()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, body)
	key := func(T) string { return "AAA" }
	for name, f := range map[string]handler.Handler[T]{
		"copy": reservation.Copy(r, key, counting[T](new([]string))),
		"inline": reservation.Inline(r, key, func(context.Context, handler.Message[T]) ([]messagestore.StreamWrite, error) {
			return nil, nil
		}),
		"initiate": reservation.Initiate(r, func(handler.Message[T]) (messagestore.StreamName, messagestore.Body) {
			return "transaction-1", Deposited{1}
		}),
	} {
		mux := handler.New()
		handler.Register(mux, f)

		err := mux.Handle(t.Context(), source)

		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		invalid, ok := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, ok)
		require.Equal(t, "reservation content of Payment", invalid.Field)
		require.Equal(t, strconv.Quote(content), invalid.Value)
		require.ErrorContains(t, err, "invalid reservation content of Payment ")
	}
	require.Empty(t, reservation.ContentKey(body))
	require.Len(t, streams(t, store, commands), 1, "nothing is written")
	require.Empty(t, streams(t, store, "transaction"))
}

// Some commands are all said by their type.
func TestABodyWithNothingInItIsACommand(t *testing.T) {
	t.Parallel()
	var handled []string
	store := newStore()
	mux := handler.New()
	handler.Register(mux, reservation.Copy(newReserver(t, store, nil), reservation.ContentKey[closing], counting[closing](&handled)))
	send(t, store, command, closing{})
	send(t, store, command, closing{})

	require.NoError(t, catchUp(t, store, mux, nil))

	require.Len(t, handled, 1)
}

// A command in an older form is compared by the content that its body in the present form chooses.
func TestACommandInAnOlderFormIsComparedByItsContent(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(*reservation.Reserver, *[]string) handler.Handler[Transfer]{
		"Copy": func(r *reservation.Reserver, handled *[]string) handler.Handler[Transfer] {
			return reservation.Copy(r, Transfer.Key, counting[Transfer](handled))
		},
		"Inline": func(r *reservation.Reserver, handled *[]string) handler.Handler[Transfer] {
			return reservation.Inline(r, Transfer.Key, func(_ context.Context, m handler.Message[Transfer]) ([]messagestore.StreamWrite, error) {
				*handled = append(*handled, m.String())
				return nil, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told outcomes
			var handled []string
			store := newStore()
			mux := handler.New()
			handler.Register(mux, f(newReserver(t, store, &reservation.Config{OnOutcome: told.on}), &handled),
				upcast.From(func(old Payout) Transfer { return Transfer{To: old.Whom, Amount: old.Sum, SentAt: old.SentAt} }))
			send(t, store, command, Payout{"Ann", 10, "Monday"})
			send(t, store, command, Payout{"Ann", 10, "Tuesday"})
			send(t, store, command, Payout{"Ann", 11, "Tuesday"})

			require.NoError(t, catchUp(t, store, mux, nil))

			require.Len(t, handled, 1)
			require.Equal(t, 1, told.count(reservation.Reserved))
			require.Equal(t, 1, told.count(reservation.Duplicate))
			require.Equal(t, 1, told.count(reservation.KeyReused))
		})
	}
}

// Payout is the form that a Transfer had before.
type Payout struct {
	Whom   string
	Sum    int
	SentAt string
}

func (Payout) MessageType() string { return "Payout" }
