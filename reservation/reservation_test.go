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
	require.Equal(t, command.With("AAA"), result.Stream)
	copies := all(t, store, command.With("AAA"))
	require.Len(t, copies, 1)
	made := copies[0]
	require.Equal(t, "Deposit", made.Type)
	require.Equal(t, string(source.Data), string(made.Data))
	require.True(t, made.Metadata.Follows(source))
	require.Equal(t, "2", made.Metadata.SchemaVersion)
	require.Equal(t, messagestore.Properties{"tenant": "a"}, made.Metadata.Properties)
	require.Equal(t, "AAA", made.Metadata.Local.Get("reservedKey"))
	require.Len(t, made.Metadata.Local.Get("reservedDigest"), 64)
	require.Len(t, made.Metadata.Local, 2)
	require.Equal(t, reservation.DeriveID(source, string(command.With("AAA"))), made.ID)
	require.Equal(t, source.ID[:6], made.ID[:6])
	require.Equal(t, made.ID, result.Winner.ID)
	require.Equal(t, made.GlobalPosition, result.Winner.GlobalPosition)
	require.Equal(t, made.String(), result.Winner.String())
	require.Equal(t, string(made.Data), string(result.Winner.Data))
}

func TestTheWinnersOwnCommandIsReservedHoweverOften(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})

	for range 3 {
		result, err := r.Reserve(t.Context(), source, "AAA")
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome)
	}

	require.Len(t, all(t, store, command.With("AAA")), 1)
}

// A copy that was made by other means is known by its cause.
func TestTheWinnersOwnCommandIsKnownByItsCauseToo(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})
	send(t, store, command.With("AAA"), messagestore.Follow(source, source.Body()))

	result, err := r.Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, result.Outcome)
	require.Len(t, all(t, store, command.With("AAA")), 1)
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
	require.Equal(t, reservation.Reserved, result.Outcome)
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
	require.Equal(t, command.With("AAA"), result.Winner.Stream)
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
			r := newReserver(t, store, &reservation.Config{OnOutcome: told.on, Logger: zerolog.New(&log)})
			_, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
			require.NoError(t, err)

			result, err := r.Reserve(t.Context(), send(t, store, command, other), "AAA")

			require.NoError(t, err)
			require.Equal(t, reservation.KeyReused, result.Outcome)
			require.Equal(t, "Deposit", result.Winner.Type)
			require.Equal(t, 1, told.count(reservation.Reserved))
			require.Equal(t, 1, told.count(reservation.KeyReused))
			require.Contains(t, log.String(), `"level":"warn","outcome":"key reused"`)
			require.NotContains(t, log.String(), "amount")
		})
	}
}

// A stream can begin without a reserver: the content tells.
func TestAWinnerWithoutADigestIsComparedByItsContent(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	send(t, store, command.With("AAA"), Deposit{"AAA", 10})

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
		r := newReserver(t, store, &reservation.Config{Name: "receipts", OnOutcome: told.on})
		const around = `{"text":""}`
		source := send(t, store, command, raw("Note", `{"text":"`+strings.Repeat("x", messagestore.MaxMessageBytes-len(around)-free)+`"}`))

		_, err := r.Reserve(t.Context(), source, strings.Repeat("k", 226))

		if fits {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, messagestore.ErrInvalidData)
		require.Empty(t, told.all)
	}
}

func TestAnyVersionOfAnIDWillDo(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	source := send(t, store, command, messagestore.Envelope{ID: uuid.New(), Body: Deposit{"AAA", 10}})

	for range 2 {
		result, err := r.Reserve(t.Context(), source, "AAA")
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome)
	}
}

func TestAnyoneCanSeeWhoWon(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	_, err := r.Lookup(t.Context(), command, "a+b")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	require.EqualError(t, err, "look up reservation account:command-123+a%2Bb: no such message")
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

func TestACategoryOfItsOwnKeepsTheCardinalID(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, &reservation.Config{From: commands, Category: "accountTransaction"})
	source := send(t, store, "account:command-123+more", Deposit{"AAA", 10})

	result, err := r.Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.Equal(t, messagestore.StreamName("accountTransaction-123+AAA"), result.Stream)
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	store := newStore()
	for name, test := range map[string]struct {
		store  reservation.Store
		config *reservation.Config
		is     error
		want   string
	}{
		"no store":       {nil, nil, messagestore.ErrInvalidConfig, "invalid store: it is nil"},
		"a nil store":    {(*messagestore.Store)(nil), nil, messagestore.ErrInvalidConfig, "invalid store: it is nil"},
		"a stream":       {store, &reservation.Config{From: "a", Category: "b-1"}, messagestore.ErrNotACategory, `invalid category "b-1": it is the name of a stream: a category has no dash`},
		"from a stream":  {store, &reservation.Config{From: "a-1"}, messagestore.ErrNotACategory, `invalid category "a-1": it is the name of a stream: a category has no dash`},
		"from not given": {store, &reservation.Config{Category: "b"}, messagestore.ErrInvalidConfig, `invalid category "b": a category of its own needs From, the one that is consumed`},
		"a loop":         {store, &reservation.Config{From: "a", Category: "a"}, reservation.ErrLoop, "reservation loop: a is the category that is consumed: what is reserved in it would be consumed as a command again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := reservation.New(test.store, test.config)
			require.ErrorIs(t, err, test.is)
			require.EqualError(t, err, "new reserver: "+test.want)
		})
	}
}

func TestACommandInTheReservationsCategoryIsALoop(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, &reservation.Config{From: commands, Category: "accountTransaction"})
	source := send(t, store, "accountTransaction-123", Deposit{"AAA", 10})

	_, err := r.Reserve(t.Context(), source, "AAA")

	require.ErrorIs(t, err, reservation.ErrLoop)
	loop, ok := errors.AsType[*reservation.LoopError](err)
	require.True(t, ok)
	require.Equal(t, messagestore.Category("accountTransaction"), loop.Category)
	version, err := store.Version(t.Context(), "accountTransaction-123+AAA")
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
}

func TestACommandOfAnotherCategoryIsRefusedWhereReservationsHaveTheirOwn(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, &reservation.Config{From: commands, Category: "reserved"})
	first, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, first.Outcome)

	_, err = r.Reserve(t.Context(), send(t, store, "order:command-123", Deposit{"AAA", 10}), "AAA") // would be taken for a duplicate

	require.ErrorIs(t, err, messagestore.ErrInvalidStreamName)
	require.ErrorContains(t, err, `"account:command"`)
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
				var told outcomes
				d := &faulty{AtomicDriver: memory.New()}
				store := messagestore.New(d, nil)
				r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
				source := send(t, store, command, Deposit{"AAA", 10})
				if taken {
					send(t, store, command.With("AAA"), Deposit{"AAA", 10})
				}
				d.next = func() fault { return test.fault }

				_, err := r.Reserve(t.Context(), source, "AAA")

				require.ErrorIs(t, err, test.want)
				require.Empty(t, told.all)
				d.next = nil
				result, err := r.Reserve(t.Context(), source, "AAA")
				require.NoError(t, err)
				require.Equal(t, taken, result.Outcome == reservation.Duplicate)
				require.Len(t, all(t, store, command.With("AAA")), 1)
			})
		}
	}
}

// R2: a duplicate is one when its winner was seen, and not before.
func TestAWinnerThatCannotBeReadIsNoAnswer(t *testing.T) {
	t.Parallel()
	d := &faulty{AtomicDriver: memory.New()}
	store := messagestore.New(d, nil)
	r := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})
	send(t, store, command.With("AAA"), Deposit{"AAA", 10})
	d.reads = func() error { return errRefused }

	_, err := r.Reserve(t.Context(), source, "AAA")

	require.ErrorIs(t, err, errRefused)
}

// blind is a driver whose transaction does not see what the others wrote.
type blind struct{ messagestore.AtomicDriver }

func (blind) ReadStream(context.Context, messagestore.StreamQuery) ([]*messagestore.Message, error) {
	return nil, nil
}

func TestAWinnerThatCannotBeSeenIsNoAnswer(t *testing.T) {
	t.Parallel()
	d := memory.New()
	store := messagestore.New(d, nil)
	source := send(t, store, command, Deposit{"AAA", 10})
	send(t, store, command.With("AAA"), Deposit{"AAA", 10})

	_, err := newReserver(t, messagestore.New(blind{d}, nil), nil).Reserve(t.Context(), source, "AAA")

	require.ErrorIs(t, err, reservation.ErrWinnerUnseen)
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
}

func TestAnOutcomeHasAName(t *testing.T) {
	t.Parallel()
	require.Equal(t, "reserved", reservation.Reserved.String())
	require.Equal(t, "duplicate", reservation.Duplicate.String())
	require.Equal(t, "key reused", reservation.KeyReused.String())
	require.Equal(t, "outcome 0", reservation.Outcome(0).String())
}
