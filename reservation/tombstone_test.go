package reservation_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/reservation"
)

// A removing is a step of an administrator on a stream, or of a writer after it.
type removing func(t *testing.T, store *messagestore.Store, adm *admin.Admin, stream messagestore.StreamName)

func deleting(erase bool) removing {
	return func(t *testing.T, _ *messagestore.Store, adm *admin.Admin, stream messagestore.StreamName) {
		t.Helper()
		_, err := adm.Delete(t.Context(), stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: erase})
		require.NoError(t, err)
	}
}

func trimming(t *testing.T, _ *messagestore.Store, adm *admin.Admin, stream messagestore.StreamName) {
	t.Helper()
	for trimmed, err := range adm.TrimCategory(t.Context(), stream.Category(), &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}) {
		require.NoError(t, err)
		require.Zero(t, trimmed.Removed, trimmed.Stream)
	}
}

func writing(t *testing.T, store *messagestore.Store, _ *admin.Admin, stream messagestore.StreamName) {
	t.Helper()
	send(t, store, stream, raw("Note", `{}`))
}

var removals = map[string][]removing{
	"deleted":                              {deleting(false)},
	"erased":                               {deleting(true)},
	"deleted, then erased":                 {deleting(false), deleting(true)},
	"erased twice":                         {deleting(true), deleting(true)},
	"deleted and written to":               {deleting(false), writing, trimming},
	"erased and written to":                {deleting(true), trimming, writing, trimming},
	"written to, trimmed":                  {writing, trimming},
	"erased, written to, and erased again": {deleting(true), writing, deleting(true), trimming},
}

// After any removal the key stays taken, and a duplicate is told from a key that is used
// for another command.
func TestAKeyStaysTakenWhateverIsRemoved(t *testing.T) {
	t.Parallel()
	deposits := func(store *messagestore.Store) func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		return func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			account := m.Stream.Category().WithType("effect").Stream("1")
			return []messagestore.StreamWrite{{Stream: account, Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{messagestore.Follow(m.Message, raw("Deposited", `{}`))}}}, nil
		}
	}
	ways := map[string]struct {
		mux    func(t *testing.T, store *messagestore.Store, told *outcomes, category messagestore.Category) *handler.Mux
		stream func(category messagestore.Category) messagestore.StreamName
	}{
		"copied": {
			func(t *testing.T, store *messagestore.Store, told *outcomes, _ messagestore.Category) *handler.Mux {
				t.Helper()
				mux := handler.New()
				r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
				handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](new([]string))))
				return mux
			},
			func(category messagestore.Category) messagestore.StreamName {
				return place(category.Stream("123"), "accounts").With("AAA")
			},
		},
		"inline": {
			func(t *testing.T, store *messagestore.Store, told *outcomes, _ messagestore.Category) *handler.Mux {
				t.Helper()
				mux := handler.New()
				r := named(t, store, "deposits", &reservation.Config{OnOutcome: told.on})
				handler.Register(mux, reservation.Inline(r, Deposit.Key, deposits(store)))
				return mux
			},
			func(category messagestore.Category) messagestore.StreamName {
				return place(category.Stream("123"), "deposits").With("AAA")
			},
		},
		"started": {
			func(t *testing.T, store *messagestore.Store, told *outcomes, category messagestore.Category) *handler.Mux {
				t.Helper()
				return initiating(t, store, told, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
					return category.WithType("transfer").Stream("123").With(m.Body.DepositID), Initiated{Amount: m.Body.Amount}
				})
			},
			func(category messagestore.Category) messagestore.StreamName {
				return category.WithType("transfer").Stream("123").With("AAA")
			},
		},
	}
	for way, reserve := range ways {
		for name, steps := range removals {
			t.Run(fmt.Sprintf("%s, %s", way, name), func(t *testing.T) {
				t.Parallel()
				var told outcomes
				pool := pgtest.Pool(t)
				store, adm := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil))
				category := storetest.Category(t)
				source, stream := category.Stream("123"), reserve.stream(category)
				mux := reserve.mux(t, store, &told, category)
				first := send(t, store, source, Deposit{"AAA", 10})
				require.NoError(t, mux.Handle(t.Context(), first))
				require.Equal(t, []reservation.Outcome{reservation.Reserved}, told.all)
				effects := len(all(t, store, category.WithType("effect").Stream("1")))
				for _, step := range steps {
					step(t, store, adm, stream)
				}
				left := all(t, store, stream)

				again, other := send(t, store, source, Deposit{"AAA", 10}), send(t, store, source, Deposit{"AAA", 11})
				told.all = nil
				require.NoError(t, mux.Handle(t.Context(), first))
				require.NoError(t, mux.Handle(t.Context(), again))
				err := mux.Handle(t.Context(), other)

				reused, ok := errors.AsType[*reservation.KeyReusedError](err)
				require.True(t, ok, "%v", err)
				require.NotEmpty(t, reused.Error())
				require.Equal(t, reservation.Duplicate, told.all[1])
				require.Equal(t, reservation.KeyReused, told.all[2])
				if left[0].IsTombstone() {
					require.Equal(t, reservation.Duplicate, told.all[0])
				}
				require.Equal(t, left, all(t, store, stream), "nothing was written")
				require.Len(t, all(t, store, category.WithType("effect").Stream("1")), effects)
			})
		}
	}
}

// Lookup finds a deleted reservation, and its result says that it was deleted.
func TestADeletedReservationIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, erase := range []bool{false, true} {
		pool := pgtest.Pool(t)
		store, adm := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil))
		source := storetest.Category(t).Stream("123")
		r := newReserver(t, store, nil)
		first := send(t, store, source, Deposit{"AAA", 10})
		reserved, err := r.Reserve(t.Context(), first, "AAA")
		require.NoError(t, err)
		deleting(erase)(t, store, adm, reserved.Stream)

		found, err := r.Lookup(t.Context(), source, "AAA")

		require.NoError(t, err)
		require.True(t, found.Deleted)
		require.Equal(t, reserved.Stream, found.Stream)
		require.True(t, found.Winner.IsTombstone())
		_, err = r.Lookup(t.Context(), source, "BBB")
		require.ErrorIs(t, err, messagestore.ErrNotFound)
	}
}

// Of a stream that began without a digest the tombstone does not tell whether it was a reservation:
// the next command is parked, so that no effect happens twice and none is lost.
func TestADeletedStreamThatMayHaveBeenNoReservationIsNoAnswer(t *testing.T) {
	t.Parallel()
	for _, erase := range []bool{false, true} {
		pool := pgtest.Pool(t)
		store, adm := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil))
		source := storetest.Category(t).Stream("123")
		send(t, store, place(source, "accounts").With("AAA"), Deposit{"AAA", 10})
		deleting(erase)(t, store, adm, place(source, "accounts").With("AAA"))

		_, err := newReserver(t, store, nil).Reserve(t.Context(), send(t, store, source, Deposit{"AAA", 11}), "AAA")

		refused, ok := errors.AsType[*reservation.NoReservationError](err)
		require.Truef(t, ok, "%v", err)
		require.True(t, refused.First.IsTombstone())
		require.Equal(t, fmt.Sprintf("no reservation: %s was deleted, and its tombstone does not tell of one", refused.Stream), refused.Error())
	}
}
