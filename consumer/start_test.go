package consumer_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

func TestANewConsumerStartsWhereItIsTold(t *testing.T) {
	t.Parallel()
	for _, group := range []consumer.Config{{}, {Concurrency: 4}} {
		for _, runs := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				for name, test := range map[string]struct {
					start func(at time.Time) consumer.Start
					want  []string
				}{
					"unset":     {func(time.Time) consumer.Start { return consumer.Start{} }, []string{"account-1@0", "account-1@1", "account-1@2"}},
					"beginning": {func(time.Time) consumer.Start { return consumer.FromStart() }, []string{"account-1@0", "account-1@1", "account-1@2"}},
					"end":       {func(time.Time) consumer.Start { return consumer.FromEnd() }, []string{"account-1@2"}},
					"time":      {func(at time.Time) consumer.Start { return consumer.From(at) }, []string{"account-1@1", "account-1@2"}},
					"future":    {func(at time.Time) consumer.Start { return consumer.From(at.Add(time.Hour)) }, []string{"account-1@2"}},
				} {
					store, j := newStore(), &journal{}
					write(t, store, "account-1", Deposited{1})
					time.Sleep(time.Hour)
					at := time.Now()
					write(t, store, "account-1", Deposited{2})
					config := group
					config.Start = test.start(at)
					handle := func() {
						c := newNamed(store, account, name, j, &config)
						if !runs {
							require.NoError(t, c.CatchUp(t.Context()))
							return
						}
						stop := running(t, c)
						time.Sleep(time.Minute)
						require.NoError(t, stop())
					}
					handle()
					write(t, store, "account-1", Deposited{3})

					handle() // which has a checkpoint, and does not start anew

					require.Equal(t, test.want, j.all(), "%s, %+v, runs %v", name, group, runs)
				}
			})
		}
	}
}

// Of several newcomers one decides where all of them start.
func TestNewcomersAgreeOnTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 20 {
			write(t, store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), Deposited{1})
		}
		j := &journal{}
		for member := range 4 {
			config := &consumer.Config{Concurrency: 2, Start: consumer.FromEnd()}
			// Each meets other messages at its start.
			tapped := &tap{Store: store}
			running(t, newConsumer(t, tapped, j, config))
			write(t, store, messagestore.StreamName(fmt.Sprintf("account-1%d", member)), Deposited{2})
		}
		time.Sleep(time.Minute)
		for i := range 20 {
			write(t, store, messagestore.StreamName(fmt.Sprintf("account-%d", i)), Deposited{3})
		}
		time.Sleep(time.Minute)

		count := map[string]int{}
		for _, seen := range j.all() {
			count[seen]++
		}
		for i := range 10 {
			require.Zero(t, count[fmt.Sprintf("account-%d@0", i)])
			require.Equal(t, 1, count[fmt.Sprintf("account-%d@1", i)])
		}
	})
}

func TestAStartWithoutATimeIsRefused(t *testing.T) {
	t.Parallel()
	_, err := tryNamed(newStore(), account, "ledger", &journal{}, &consumer.Config{Start: consumer.From(time.Time{})})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "start")
}
