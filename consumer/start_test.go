package consumer_test

import (
	"context"
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

func TestANewConsumerSaysWhereItStarts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		start   consumer.Start
		catchUp bool
		level   string
		text    string
	}{
		{"unset", consumer.Start{}, false, "warn", "the beginning, with 113 messages to handle: see Config.Start"},
		{"caughtup", consumer.Start{}, true, "info", "the beginning, with 113 messages to handle: see Config.Start"},
		{"beginning", consumer.FromStart(), false, "info", "the beginning, with 113 messages"},
		{"end", consumer.FromEnd(), false, "info", "the end, with 0 messages"},
		{"time", consumer.From(time.Now().Add(time.Hour)), false, "info", "20"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			bodies := make([]messagestore.Body, 113)
			for i := range bodies {
				bodies[i] = Deposited{i}
			}
			write(t, store, "account-1", bodies...)
			for range 2 {
				var log logbook
				c := newNamed(store, account, test.name, &journal{}, &consumer.Config{Logger: log.logger(), Start: test.start})
				if test.catchUp {
					require.NoError(t, c.CatchUp(t.Context()))
				} else {
					stop := running(t, c)
					time.Sleep(time.Second)
					require.NoError(t, stop())
				}
				said := log.of(t, "new consumer starts from "+test.text)
				if test.level == "" { // it is not new
					require.Empty(t, said)
					continue
				}
				require.Len(t, said, 1, test.name)
				require.Equal(t, test.level, said[0]["level"])
				test.level = ""
			}
		})
	}
}

// A large category is not counted.
func TestANewConsumerCountsNoLargeCategory(t *testing.T) {
	t.Parallel()
	store := newStore()
	for range 12 {
		bodies := make([]messagestore.Body, 100)
		for i := range bodies {
			bodies[i] = Deposited{i}
		}
		write(t, store, "account-1", bodies...)
	}
	var log logbook
	counted := &tallying{Store: store}
	require.NoError(t, newConsumer(t, counted, &journal{}, &consumer.Config{Logger: log.logger()}).CatchUp(t.Context()))
	said := log.of(t, "new consumer starts from the beginning, with more than 1000 messages")
	require.Len(t, said, 1)
	require.InDelta(t, 1200, said[0]["head"], 0)
	require.Equal(t, 1001, counted.most)
}

// A tallying store notes how many messages it was asked to count.
type tallying struct {
	*messagestore.Store
	most int
}

func (s *tallying) Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error) {
	s.most = max(s.most, q.Limit)
	return s.Store.Count(ctx, q)
}

func TestAStartWithoutATimeIsRefused(t *testing.T) {
	t.Parallel()
	_, err := tryNamed(newStore(), account, "ledger", &journal{}, &consumer.Config{Start: consumer.From(time.Time{})})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "start")
}
