package queuetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

var transactTests = []test{
	{"Q5/CommittedIsFinished", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		d := f.one(t, queuing.Take{}).Delivery()
		f.none(t, queuing.Take{})

		f.finishIn(t, queuing.Done, d, true)

		f.is(t, at[0], "finished 0/0 ")
		f.done(t, queuing.Committed, d)
		require.Equal(t, at[1:], f.next(t, d), "to complete again is no mistake")
		requireEnding(t, queuing.Lost, f.end(t, queuing.Retry, d))
	}},
	{"Q5/RolledBackIsOut", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "a", "a")
		d := f.one(t, queuing.Take{}).Delivery()

		f.finishIn(t, queuing.Done, d, false)

		f.is(t, at[0], "out 0/0 ")
		requireEnding(t, queuing.Open, f.end(t, queuing.Committed, d))
		f.none(t, queuing.Take{})
		require.Empty(t, f.extend(t, 1, long, d))
		f.done(t, queuing.Retry, d)
		require.Equal(t, queuing.Delivery{Position: at[0], Version: 1}, f.one(t, queuing.Take{}).Delivery())
	}},
	{"Q5/LateCompletionIsLost", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		late := f.one(t, queuing.Take{Session: 1, Lease: brief}).Delivery()
		f.soon(t, queuing.Take{Session: 2})

		f.finishIn(t, queuing.Lost, late, true)

		f.is(t, at[0], "out 1/1 e")
	}},
	{"Q5/OtherSessionsFinishNothing", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "", "", "")
		d := f.one(t, queuing.Take{Session: 2}).Delivery()
		finished := f.one(t, queuing.Take{Session: 2}).Delivery()
		f.done(t, queuing.Complete, finished)
		f.one(t, queuing.Take{Session: 3})
		for _, session := range []int64{3, 4} { // one that the queue knows, and one of another database
			f.sessions[d] = session
			f.finishIn(t, queuing.Lost, d, true)
		}
		f.sessions[finished] = 4
		f.finishIn(t, queuing.Lost, finished, true)

		f.is(t, at[0], "out 0/0 ")
	}},
	{"Q5/OtherCallsAreNotSupported", transactions, func(t *testing.T, f *fixture) {
		at := f.insert(t, "")
		d := f.one(t, queuing.Take{}).Delivery()
		for what, call := range map[string]func(tx queuing.Driver) error{
			"take": func(tx queuing.Driver) error {
				_, err := tx.QueueTake(t.Context(), f.full(queuing.Take{Want: 1}))
				return err
			},
			"extend": func(tx queuing.Driver) error {
				_, err := tx.QueueExtend(t.Context(), queuing.Extension{Queue: f.of, Session: 1, Lease: long})
				return err
			},
			"leave": func(tx queuing.Driver) error {
				return tx.QueueLeave(t.Context(), queuing.Leave{Queue: f.of, Session: 1})
			},
			"change": func(tx queuing.Driver) error {
				_, err := tx.QueueChange(t.Context(), queuing.Change{Queue: f.of, Action: queuing.Cancel, Positions: at})
				return err
			},
			"remove": func(tx queuing.Driver) error {
				_, err := tx.QueueRemove(t.Context(), queuing.Removal{Queue: f.of, Unfinished: true})
				return err
			},
		} {
			tx, _, rollBack := f.options.Begin(t, f.driver)
			err := call(tx)
			require.NoError(t, rollBack())
			require.ErrorIs(t, err, messagestore.ErrNotSupported, what)
		}
		f.is(t, at[0], "out 0/0 ")
		f.done(t, queuing.Complete, d)
	}},
}

// finishIn completes deliveries in a transaction, with a message, and returns the function that
// ends it.
func (f *fixture) finishIn(t testing.TB, want queuing.Ending, d queuing.Delivery, commits bool) {
	t.Helper()
	tx, commit, rollBack := f.options.Begin(t.(*testing.T), f.driver) //nolint:errcheck,forcetypeassert // as given
	endings, err := tx.QueueFinish(t.Context(), f.of, f.sessionOf(d, 1), []queuing.Delivery{d})
	if end := commit; commits {
		require.NoError(t, end())
	} else {
		require.NoError(t, rollBack())
	}
	require.NoError(t, err)
	require.Len(t, endings, 1)
	requireEnding(t, want, endings[0])
}
