package reservation_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// A party is one of several consumers of the account's commands. Its effects go to
// a stream of its own.
type party struct {
	name     string // the consumer's
	reserver string
	inline   bool
}

func (p party) effects() messagestore.StreamName { return messagestore.StreamName(p.name + "-123") }

func (p party) mux(t testing.TB, store *messagestore.Store) *handler.Mux {
	t.Helper()
	r := named(t, store, p.reserver, nil)
	mux := handler.New()
	if p.inline {
		handler.Register(mux, reservation.Inline(r, Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{{
				Stream: p.effects(), Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{messagestore.Follow(m.Message, Deposited{m.Body.Amount})},
			}}, nil
		}))
		return mux
	}
	handler.Register(mux, reservation.Copy(r, Deposit.Key, func(ctx context.Context, m handler.Message[Deposit]) error {
		_, err := store.Write(ctx, p.effects(), messagestore.AnyVersion, messagestore.Envelope{
			ID: reservation.DeriveID(m.Message, p.name), Body: Deposited{m.Body.Amount},
		})
		return err
	}))
	return mux
}

func (p party) catchUp(t testing.TB, store *messagestore.Store) {
	t.Helper()
	for _, category := range []messagestore.Category{commands, place(command, p.reserver).Category()} {
		c := testkit.Must(consumer.New(store, category, p.name, p.mux(t, store), nil))
		require.NoError(t, c.CatchUp(t.Context()))
		require.Zero(t, c.Stats().Parked)
	}
}

// streams returns the streams of a category with a message for each that is in them.
func streams(t testing.TB, store *messagestore.Store, category messagestore.Category) []messagestore.StreamName {
	t.Helper()
	var found []messagestore.StreamName
	for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		found = append(found, m.Stream)
	}
	slices.Sort(found)
	return found
}

func TestEveryConsumerWithANameHasItsEffect(t *testing.T) {
	t.Parallel()
	const accounts, receipts = "accounts", "receipts"
	for name, two := range map[string][2]party{
		"both inline":     {{accounts, "accounts", true}, {receipts, "receipts", true}},
		"inline and copy": {{accounts, "accounts", true}, {receipts, "receipts", false}},
		"both copy":       {{accounts, "accounts", false}, {receipts, "receipts", false}},
	} {
		for _, order := range []string{"in order", "in the other order"} {
			t.Run(name+", "+order, func(t *testing.T) {
				t.Parallel()
				store := newStore()
				for range 3 {
					send(t, store, command, Deposit{"AAA", 10})
				}
				parties := two[:]
				if order != "in order" {
					parties = []party{two[1], two[0]}
				}

				for range 3 {
					for _, p := range parties {
						p.catchUp(t, store)
					}
				}

				require.Len(t, streams(t, store, commands), 3)
				for _, p := range parties {
					require.Len(t, all(t, store, p.effects()), 1, p.name)
					require.Equal(t, []messagestore.StreamName{place(command, p.reserver).With("AAA")}, streams(t, store, place(command, p.reserver).Category()), "one copy, and no copy of it")
				}
			})
		}
	}
}

func TestANameIsInTheReservation(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := named(t, store, "receipts", nil)
	source := send(t, store, command, Deposit{"a+b", 10})
	stream, err := r.Stream(command, "a+b")
	require.NoError(t, err)
	require.Equal(t, messagestore.StreamName("account:command+reservation+receipts-123+a%2Bb"), stream)
	_, err = r.Lookup(t.Context(), command, "a+b")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	_, err = r.Reserve(t.Context(), source, "a+b")
	require.NoError(t, err)

	result, err := r.Lookup(t.Context(), command, "a+b")

	require.NoError(t, err)
	require.Equal(t, stream, result.Stream)
	require.Equal(t, "a+b", result.Key)
	require.Equal(t, "receipts", result.Winner.Metadata.Local.Get("reservedFor"))
	require.Equal(t, "a%2Bb", result.Winner.Metadata.Local.Get("reservedKey"))
	require.True(t, result.Winner.Metadata.Follows(source))
	_, err = newReserver(t, store, nil).Lookup(t.Context(), command, "a+b")
	require.ErrorIs(t, err, messagestore.ErrNotFound, "the key is free for others")

	stream, err = r.Stream("account-123+more", "AAA")
	require.NoError(t, err)
	require.Equal(t, messagestore.StreamName("account:reservation+receipts-123+more+AAA"), stream)

	stream, err = r.Stream(command, strings.Repeat("k", 214))
	require.NoError(t, err)
	require.Len(t, string(stream), text.MaxNameBytes)
	stream, err = r.Stream(command, strings.Repeat("k", 215))
	require.NoError(t, err)
	require.Contains(t, string(stream), "receipts-123+%sha256:")
}

func TestANameThatIsNoPartOfAStreamsNameIsRefused(t *testing.T) {
	t.Parallel()
	const divides = "must not contain a dash, plus sign or colon, which divide the parts of stream names"
	for name, rule := range map[string]string{
		"":                       "must not be empty: two consumers of one category could not tell their reservations apart",
		"a+b":                    divides,
		"a-b":                    divides,
		"a:b":                    divides,
		"+":                      divides,
		"a b":                    "must not contain white space",
		" ":                      "",
		"a\n":                    "",
		"\xff":                   "",
		"a\u202e":                "",
		strings.Repeat("n", 256): "",
	} {
		_, err := reservation.New(newStore(), name, nil)
		invalid, ok := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, ok, "%q", name)
		require.Equal(t, "reserver name", invalid.Field)
		if rule != "" {
			require.Equal(t, rule, invalid.Rule)
		}
	}
}

// The name is the part before the key, so one stream belongs to one name: a compound
// command whose identifier ends in a name has a reservation of its own.
func TestReservationsOfTwoNamesNeverMeet(t *testing.T) {
	t.Parallel()
	store := newStore()
	compound := send(t, store, command.With("receipts"), Deposit{"AAA", 10})
	simple := send(t, store, command, Deposit{"AAA", 10})

	first, err := named(t, store, "accounts", nil).Reserve(t.Context(), compound, "AAA")
	require.NoError(t, err)
	second, err := named(t, store, "receipts", nil).Reserve(t.Context(), simple, "AAA")
	require.NoError(t, err)

	require.Equal(t, reservation.Reserved, first.Outcome)
	require.Equal(t, reservation.Reserved, second.Outcome)
	require.NotEqual(t, first.Stream, second.Stream)
}
