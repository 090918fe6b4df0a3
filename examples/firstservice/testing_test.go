package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres/postgrestest"
)

func TestDepositBooksTheAmount(t *testing.T) {
	writes, err := deposit(t.Context(), handlertest.Message(t, Deposit{"d1", "123", 1000}, nil))

	require.NoError(t, err)
	require.Len(t, writes, 1)
	require.Equal(t, accounts.Stream("123"), writes[0].Stream)
}

func TestADepositIsBookedOnce(t *testing.T) {
	handlertest.New(t, handlers).
		Given(accounts.Stream("123"), Deposited{Amount: 500}).
		When(commands.Stream("123"), Deposit{"d1", "123", 1000}).
		Then(accounts.Stream("123"), Deposited{Amount: 1000}).
		Redelivered().
		Then(accounts.Stream("123"), Deposited{Amount: 1000}).
		When(commands.Stream("123"), Deposit{"d1", "123", 1000}). // sent again
		ThenNothing()
}

func TestAnAccountAddsItsDeposits(t *testing.T) {
	s := handlertest.New(t, handlers).
		Given(accounts.Stream("123"), Deposited{Amount: 500}, Deposited{Amount: 1000})

	balances, err := entity.New(s.Store(), accounts, projection(), nil)
	require.NoError(t, err)
	account, version, err := balances.Get(t.Context(), "123")

	require.NoError(t, err)
	require.Equal(t, Account{Balance: 1500}, account)
	require.Equal(t, messagestore.Version(1), version)
}

func TestADepositOfTomorrowIsBookedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := messagestore.New(memory.New(), nil)
		require.NoError(t, err)
		mux, err := handlers(store)
		require.NoError(t, err)
		c, err := consumer.New(store, commands, "accounts", mux, nil)
		require.NoError(t, err)
		time.Sleep(24 * time.Hour) // takes no time: the clock is the bubble's, and so is the store's

		_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, Deposit{"d1", "123", 1000})
		require.NoError(t, err)

		require.NoError(t, c.CatchUp(t.Context()))
		last, err := store.Last(t.Context(), accounts.Stream("123"))
		require.NoError(t, err)
		require.Equal(t, time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC), last.Time)
	})
}

func TestADepositIsBookedOnPostgreSQL(t *testing.T) {
	store := postgrestest.New(t, nil)
	_, err := store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, Deposit{"d1", "123", 1000})
	require.NoError(t, err)

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
