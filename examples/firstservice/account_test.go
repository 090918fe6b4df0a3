package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestADepositThatIsSentTwiceIsBookedOnce(t *testing.T) {
	store, err := messagestore.New(memory.New(), nil)
	require.NoError(t, err)
	for range 2 {
		_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, Deposit{"d1", "123", 1000})
		require.NoError(t, err)
	}

	mux, err := handlers(store)
	require.NoError(t, err)
	c, err := consumer.New(store, commands, "accounts", mux, nil)
	require.NoError(t, err)
	require.NoError(t, c.CatchUp(t.Context()))

	balances, err := entity.New(store, accounts, projection(), nil)
	require.NoError(t, err)
	account, _, err := balances.Get(t.Context(), "123")
	require.NoError(t, err)
	require.Equal(t, 1000, account.Balance)
}
