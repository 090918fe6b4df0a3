package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
)

func member(size, member int) *consumer.Config {
	return &consumer.Config{GroupSize: size, GroupMember: member}
}

func TestMembersOfAGroupShareTheCategory(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 30 {
		write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
	}
	j := &journal{}
	for m := range 3 {
		before := len(j.all())
		require.NoError(t, newConsumer(t, store, j, member(3, m)).CatchUp(t.Context()))
		require.Greater(t, len(j.all()), before)
	}
	require.Len(t, j.all(), 30)
}

// Positions of an old generation are not those of a new one of the same size.
func TestASizeThatComesBackDoesNotFindItsOldPositions(t *testing.T) {
	t.Parallel()
	store := newStore()
	some := func() {
		for i := range 12 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
	}
	caughtUp := func(j *journal, size int, members ...int) {
		for _, m := range members {
			require.NoError(t, newConsumer(t, store, j, member(size, m)).CatchUp(t.Context()))
		}
	}
	j := &journal{}
	some()
	caughtUp(j, 2, 0, 1)
	require.Len(t, j.all(), 12)
	some()
	caughtUp(j, 3, 0) // members 1 and 2 never ran
	some()
	caughtUp(j, 2, 0, 1)

	seen := map[string]bool{}
	for _, m := range j.all() {
		seen[m] = true
	}
	require.Len(t, seen, 36)
	entry, err := store.Last(t.Context(), "account:position-ledger")
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(2), entry.Position)
}

func TestAGroupOfOneIsNoGroup(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	j := &journal{}
	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
	require.NoError(t, newConsumer(t, store, j, member(1, 0)).CatchUp(t.Context()))
	require.Len(t, j.all(), 1)
}

func TestAMemberOfAnOldSizeIsFencedAtItsNextPosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		old := newConsumer(t, store, &journal{}, member(2, 0))
		errs := make(chan error, 1)
		go func() { errs <- runForAWhile(t, old) }()
		time.Sleep(time.Second)

		require.NoError(t, newConsumer(t, store, &journal{}, member(3, 0)).CatchUp(t.Context()))
		for i := range 10 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		err := <-errs

		require.ErrorIs(t, err, consumer.ErrConsumerFenced)
		fenced, ok := errors.AsType[*checkpoint.FencedError](err)
		require.True(t, ok)
		require.Equal(t, messagestore.StreamName("account:position-ledger"), fenced.Stream)
		require.ErrorContains(t, err, "the group was resized to 3: start all members with one size")
	})
}

func TestOfTwoStartersOfASizeOneStartsTheGeneration(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 20 {
		write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
	}
	for size := 2; size <= 8; size++ {
		var wg sync.WaitGroup
		errs := make([]error, size)
		for m := range size {
			c := newConsumer(t, store, &journal{}, member(size, m))
			wg.Go(func() { errs[m] = c.CatchUp(context.WithoutCancel(t.Context())) })
		}
		wg.Wait()

		require.NoError(t, errors.Join(errs...))
		entry, err := store.Last(t.Context(), "account:position-ledger")
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(size-2), entry.Position)
	}
}

// Between the look of one starter and its write, another starts the generation.
func TestAStarterThatComesSecondJoinsTheGenerationOfTheFirst(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	other := newConsumer(t, store.Store, &journal{}, member(2, 1))
	started := false
	store.write = func(messagestore.StreamName) error {
		if started {
			return nil
		}
		started = true
		return other.CatchUp(t.Context())
	}

	require.NoError(t, newConsumer(t, store, &journal{}, member(2, 0)).CatchUp(t.Context()))

	version, err := store.Version(t.Context(), "account:position-ledger")
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}
