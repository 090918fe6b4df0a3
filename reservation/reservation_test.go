package reservation_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

func TestACopyIsTheCommandByteForByte(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, messagestore.Envelope{
		Body: raw("Deposit", `{"amount": 1.50, "depositId":"AAA",  "unknown":[1e3]}`),
		Metadata: messagestore.Metadata{
			CorrelationStream: "transfer-1", ReplyStream: "reply-1", SchemaVersion: "2",
			Properties: messagestore.Properties{"tenant": "a"}, Local: messagestore.Properties{"secret": "b"},
		},
	})

	result, err := r.Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, result.Outcome)
	require.Equal(t, "AAA", result.Key)
	require.Equal(t, place(command, "accounts").With("AAA"), result.Stream)
	copies := all(t, store, place(command, "accounts").With("AAA"))
	require.Len(t, copies, 1)
	made := copies[0]
	require.Equal(t, "Deposit", made.Type)
	require.Equal(t, string(source.Data), string(made.Data))
	require.True(t, made.Metadata.Follows(source))
	require.Equal(t, "2", made.Metadata.SchemaVersion)
	require.Equal(t, messagestore.Properties{"tenant": "a"}, made.Metadata.Properties)
	require.Equal(t, "AAA", made.Metadata.Local.Get("reservedKey"))
	require.Len(t, made.Metadata.Local.Get("reservedDigest"), 64)
	require.Equal(t, "accounts", made.Metadata.Local.Get("reservedFor"))
	require.Len(t, made.Metadata.Local, 3)
	require.Equal(t, reservation.DeriveID(source, string(place(command, "accounts").With("AAA"))), made.ID)
	require.Equal(t, source.ID[:6], made.ID[:6])
	require.Equal(t, made.ID, result.Winner.ID)
	require.Equal(t, made.GlobalPosition, result.Winner.GlobalPosition)
	require.Equal(t, made.String(), result.Winner.String())
	require.Equal(t, string(made.Data), string(result.Winner.Data))
}

func TestTheWinnersOwnCommandIsReservedOnceAndThenRedelivered(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})

	for _, want := range []reservation.Outcome{reservation.Reserved, reservation.Redelivered, reservation.Redelivered} {
		result, err := r.Reserve(t.Context(), source, "AAA")
		require.NoError(t, err)
		require.Equal(t, want, result.Outcome)
	}

	require.Len(t, all(t, store, place(command, "accounts").With("AAA")), 1)
}

// A copy that was made by other means is known by its cause.
func TestTheWinnersOwnCommandIsKnownByItsCauseToo(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})
	send(t, store, place(command, "accounts").With("AAA"), messagestore.Follow(source, source.Body()))

	result, err := r.Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Redelivered, result.Outcome)
	require.Len(t, all(t, store, place(command, "accounts").With("AAA")), 1)
}

// A store that was copied elsewhere may number its messages anew.
func TestTheWinnersOwnCommandIsKnownByItsIDToo(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})
	_, err := r.Reserve(t.Context(), source, "AAA")
	require.NoError(t, err)
	source.Position, source.GlobalPosition = 7, 70

	result, err := r.Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Redelivered, result.Outcome)
}

func TestADuplicateLearnsWhoWon(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	first := send(t, store, command, raw("Deposit", `{"amount":10,"depositId":"AAA"}`))
	second := send(t, store, command, raw("Deposit", `{ "depositId":"AAA", "amount":1e1 }`))
	_, err := r.Reserve(t.Context(), first, "AAA")
	require.NoError(t, err)

	result, err := r.Reserve(t.Context(), second, "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Duplicate, result.Outcome)
	require.Equal(t, place(command, "accounts").With("AAA"), result.Winner.Stream)
	require.Equal(t, messagestore.Version(0), result.Winner.Position)
	require.Equal(t, first.Position, result.Winner.Metadata.CausationPosition)
	require.False(t, result.Winner.Time.IsZero())
}

func TestAKeyThatIsUsedForSomethingElseIsNoDuplicate(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]messagestore.Body{
		"another amount":     Deposit{"AAA", 11},
		"another type":       raw("Withdraw", `{"depositId":"AAA","amount":10}`),
		"one field more":     raw("Deposit", `{"depositId":"AAA","amount":10,"fee":0}`),
		"an amount too near": raw("Deposit", `{"depositId":"AAA","amount":10.000000000000000001}`),
		"a string":           raw("Deposit", `{"depositId":"AAA","amount":"10"}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			var told outcomes
			store := newStore()
			r := newReserver(t, store, &reservation.Config{OnOutcome: told.on, Logger: logger.Zerolog(zerolog.New(&log))})
			_, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
			require.NoError(t, err)

			result, err := r.Reserve(t.Context(), send(t, store, command, other), "AAA")

			require.NoError(t, err)
			require.Equal(t, reservation.KeyReused, result.Outcome)
			require.Equal(t, "Deposit", result.Winner.Type)
			require.Equal(t, 1, told.count(reservation.Reserved))
			require.Equal(t, 1, told.count(reservation.KeyReused))
			require.Contains(t, log.String(), `"level":"warn","outcome":"key reused"`)
			require.Contains(t, log.String(), `"message":"key reused: the command is not carried out"`)
			require.NotContains(t, log.String(), "amount")
		})
	}
}

// Another client may make reservations without a digest: the content tells.
func TestAWinnerWithoutADigestIsComparedByItsContent(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	send(t, store, place(command, "accounts").With("AAA"), messagestore.Follow(send(t, store, command, Deposit{"AAA", 10}), Deposit{"AAA", 10}))

	same, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
	require.NoError(t, err)
	other, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 11}), "AAA")
	require.NoError(t, err)

	require.Equal(t, reservation.Duplicate, same.Outcome)
	require.Equal(t, reservation.KeyReused, other.Outcome)
}

func TestAKeyMeansSomethingWithinOneEntity(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	for _, stream := range []messagestore.StreamName{"account:command-123", "account:command-456", "account:command-123+more"} {
		result, err := r.Reserve(t.Context(), send(t, store, stream, Deposit{"AAA", 10}), "AAA")
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome)
		require.Equal(t, stream.CardinalID(), result.Stream.CardinalID())
	}
}

// The copy's metadata says more than the command's does.
func TestACommandAtTheLimitOfSizeIsNotCopied(t *testing.T) {
	t.Parallel()
	for free, fits := range map[int]bool{0: false, 2048: true} {
		var told outcomes
		store := newStore()
		r := named(t, store, "receipts", &reservation.Config{OnOutcome: told.on})
		const around = `{"text":""}`
		source := send(t, store, command, raw("Note", `{"text":"`+strings.Repeat("x", messagestore.MaxMessageBytes-len(around)-free)+`"}`))

		_, err := r.Reserve(t.Context(), source, strings.Repeat("k", 226))

		if fits {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.Empty(t, told.all)
	}
}

func TestAnyVersionOfAnIDWillDo(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, messagestore.Envelope{ID: uuid.New(), Body: Deposit{"AAA", 10}})

	for _, want := range []reservation.Outcome{reservation.Reserved, reservation.Redelivered} {
		result, err := r.Reserve(t.Context(), source, "AAA")
		require.NoError(t, err)
		require.Equal(t, want, result.Outcome)
	}
}

func TestAnyoneCanSeeWhoWon(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	_, err := r.Lookup(t.Context(), command, "a+b")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	require.EqualError(t, err, "look up reservation account:command+reservation+accounts-123+a%2Bb: no such message")
	source := send(t, store, command, Deposit{"a+b", 10})
	_, err = r.Reserve(t.Context(), source, "a+b")
	require.NoError(t, err)

	result, err := r.Lookup(t.Context(), command, "a+b")

	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, result.Outcome)
	require.Equal(t, "a+b", result.Key)
	require.True(t, result.Winner.Metadata.Follows(source))
	_, err = r.Lookup(t.Context(), command, "")
	require.ErrorIs(t, err, reservation.ErrInvalidKey)
}

func TestNewTellsAllMistakes(t *testing.T) {
	t.Parallel()
	store := newStore()
	for name, test := range map[string]struct {
		store  reservation.Store
		config *reservation.Config
		want   string
	}{
		"no store":    {nil, nil, "invalid store: must not be nil"},
		"a nil store": {(*messagestore.Store)(nil), nil, "invalid store: must not be nil"},
		"a consumer":  {store, &reservation.Config{Consumers: []string{"b-1"}}, `invalid consumers "b-1": must not contain a dash, plus sign or colon, which divide the parts of stream names`},
		"all of them": {nil, &reservation.Config{Consumers: []string{"b-1"}}, "invalid store: must not be nil\n" + `invalid consumers "b-1": must not contain a dash, plus sign or colon, which divide the parts of stream names`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := reservation.New(test.store, "accounts", test.config)

			require.Nil(t, r)
			require.EqualError(t, err, `reserver "accounts": `+test.want)
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		})
	}
}

func TestTheZeroReserverIsRefused(t *testing.T) {
	t.Parallel()
	r, store := &reservation.Reserver{}, newStore()
	source := send(t, store, command, Deposit{"AAA", 10})
	_, atReserve := r.Reserve(t.Context(), source, "AAA")
	_, atLookup := r.Lookup(t.Context(), command, "AAA")
	mux := handler.New()
	handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](new([]string))))
	for _, err := range []error{atReserve, atLookup, mux.Validate()} {
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "invalid reserver: must be made by New, and is the zero Reserver")
	}
}

// Each category of commands has keys of its own.
func TestCommandsOfTwoCategoriesAreNoDuplicates(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	first, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
	require.NoError(t, err)
	again, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
	require.NoError(t, err)

	other, err := r.Reserve(t.Context(), send(t, store, "order:command-123", Deposit{"AAA", 10}), "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, first.Outcome)
	require.Equal(t, reservation.Duplicate, again.Outcome)
	require.Equal(t, reservation.Reserved, other.Outcome)
	require.Equal(t, messagestore.StreamName("order:command+reservation+accounts-123+AAA"), other.Stream)
}

func TestACommandWhoseDataAreNullIsReserved(t *testing.T) {
	t.Parallel()
	store := newStore()
	source := send(t, store, command, Deposit{"AAA", 10})
	source.Data = []byte(" null") // as another client may have written them

	result, err := newReserver(t, store, nil).Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, result.Outcome)
	for m, err := range store.ReadStream(t.Context(), result.Stream, 0) {
		require.NoError(t, err)
		require.JSONEq(t, `{}`, string(m.Data))
	}
}

// R5: nothing but a version conflict is taken for a duplicate.
func TestNoOtherErrorIsTakenForADuplicate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault fault
		want  error
	}{
		"refused":       {refuses, errRefused},
		"timed out":     {timesOut, context.DeadlineExceeded},
		"not written":   {losesWrite, messagestore.ErrOutcomeUnknown},
		"reply is lost": {losesReply, messagestore.ErrOutcomeUnknown},
	} {
		for _, taken := range []bool{false, true} {
			if taken && test.fault == losesReply {
				continue // the driver answers with the conflict
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				driver := memory.New()
				var told outcomes
				d := &faulty{Driver: driver}
				store := newFaulty(d)
				r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
				source := send(t, store, command, Deposit{"AAA", 10})
				if taken {
					send(t, store, place(command, "accounts").With("AAA"), messagestore.Follow(send(t, store, command, Deposit{"AAA", 10}), Deposit{"AAA", 10}))
				}
				d.next = func() fault { return test.fault }

				_, err := r.Reserve(t.Context(), source, "AAA")

				require.ErrorIs(t, err, test.want)
				require.Empty(t, told.all)
				d.next = nil
				result, err := r.Reserve(t.Context(), source, "AAA")
				require.NoError(t, err)
				require.Equal(t, taken, result.Outcome == reservation.Duplicate)
				require.Len(t, all(t, store, place(command, "accounts").With("AAA")), 1)
			})
		}
	}
}

// R2: a duplicate is one when its winner was seen, and not before.
func TestAWinnerThatCannotBeReadIsNoAnswer(t *testing.T) {
	t.Parallel()
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		driver := memory.New()
		var told outcomes
		d := &faulty{Driver: driver}
		store := newFaulty(d)
		r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
		source := send(t, store, command, Deposit{"AAA", 10})
		for range 2 { // so that the last message is not the winner
			send(t, store, place(command, "accounts").With("AAA"), Deposit{"AAA", 10})
		}
		d.reads = func() error { return errRefused }

		_, err := r.Reserve(t.Context(), source, "AAA")

		require.ErrorIs(t, err, errRefused)
		require.Empty(t, told.all)
	})
}

// blind is a driver whose transaction does not see the writes of others.
type blind struct {
	messagestore.Driver
	met *messagestore.Conflict // nil: a conflict
}

func (blind) ReadStream(context.Context, messagestore.StreamQuery) ([]*messagestore.Message, error) {
	return nil, nil
}

func (d blind) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	written, err := d.AppendAll(ctx, appends)
	if errors.Is(err, messagestore.ErrVersionConflict) && d.met != nil {
		return nil, d.met, nil
	}
	return written, nil, err
}

func TestAWinnerThatCannotBeSeenIsNoAnswer(t *testing.T) {
	t.Parallel()
	d := memory.New()
	store := testkit.Must(messagestore.New(d, nil))
	source := send(t, store, command, Deposit{"AAA", 10})
	send(t, store, place(command, "accounts").With("AAA"), Deposit{"AAA", 10})

	_, err := newReserver(t, testkit.Must(messagestore.New(blind{d, nil}, nil)), nil).Reserve(t.Context(), source, "AAA")
	require.ErrorIs(t, err, reservation.ErrWinnerUnseen)
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	met := &messagestore.Conflict{Last: []*messagestore.Message{nil}}
	_, err = newReserver(t, testkit.Must(messagestore.New(blind{d, met}, nil)), nil).Reserve(t.Context(), source, "AAA")
	require.ErrorIs(t, err, reservation.ErrWinnerUnseen)
}

func TestAnOutcomeHasAName(t *testing.T) {
	t.Parallel()
	require.Equal(t, "reserved", reservation.Reserved.String())
	require.Equal(t, "redelivered", reservation.Redelivered.String())
	require.Equal(t, "duplicate", reservation.Duplicate.String())
	require.Equal(t, "key reused", reservation.KeyReused.String())
	require.Equal(t, "outcome 0", reservation.Outcome(0).String())
}
