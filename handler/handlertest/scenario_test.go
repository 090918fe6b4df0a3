package handlertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres/postgrestest"
	"github.com/dibs-go/dibs/reservation"
)

const (
	book     messagestore.Category = "account"
	commands messagestore.Category = "account:command"
)

type withdraw struct {
	ID     string `json:"id"`
	Amount int    `json:"amount"`
}

func (withdraw) MessageType() string { return "Withdraw" }
func (w withdraw) Key() string       { return w.ID }

type deposited struct {
	Amount int `json:"amount"`
}

func (deposited) MessageType() string { return "Deposited" }

type withdrawn struct {
	Amount int `json:"amount"`
}

func (withdrawn) MessageType() string { return "Withdrawn" }

type balance struct{ Amount int }

func balances(store *messagestore.Store) *entity.Store[balance] {
	p := entity.NewProjection[balance]()
	entity.On(p, func(b balance, e deposited) balance { return balance{b.Amount + e.Amount} })
	entity.On(p, func(b balance, e withdrawn) balance { return balance{b.Amount - e.Amount} })
	return testkit.Must(entity.New(store, book, p, nil))
}

var errPoor = errors.New("insufficient funds")

// handlers are those of a service.
func handlers(store *messagestore.Store) (*handler.Mux, error) {
	once := testkit.Must(reservation.New(store, "accounts", nil))
	all := balances(store)
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, withdraw.Key, func(ctx context.Context, m handler.Message[withdraw]) ([]messagestore.StreamWrite, error) {
		id := m.Stream.CardinalID()
		b, version, err := all.Get(ctx, id)
		if err != nil || b.Amount < m.Body.Amount {
			return nil, errors.Join(err, errPoor)
		}
		return []messagestore.StreamWrite{messagestore.To(all.Stream(id), version, messagestore.Follow(m.Message, withdrawn{m.Body.Amount}))}, nil
	}))
	return mux, nil
}

func TestAScenarioOfAReservingHandler(t *testing.T) {
	t.Parallel()

	s := handlertest.New(t, handlers).
		Given(book.Stream("123"), deposited{1000}).
		When(commands.Stream("123"), withdraw{"w1", 300}).
		Then(book.Stream("123"), withdrawn{300}).
		Redelivered().
		Then(book.Stream("123"), withdrawn{300})
	b, _, err := balances(s.Store()).Get(t.Context(), "123")
	require.NoError(t, err)
	require.Equal(t, balance{700}, b)

	s.When(commands.Stream("123"), withdraw{"w1", 300}). // sent again
								ThenNothing().
								When(commands.Stream("123"), withdraw{"w2", 701}).
								ThenError(errPoor).
								ThenNothing()
}

// The copies of package reservation come back, as they do from a consumer.
func TestAScenarioDeliversCopies(t *testing.T) {
	t.Parallel()

	handlertest.New(t, copying).
		When(commands.Stream("123"), withdraw{"w1", 300}).
		Then(book.Stream("123"), withdrawn{300}).
		Then("account:command+reservation+accounts-123+w1", withdraw{"w1", 300})
}

func copying(store *messagestore.Store) (*handler.Mux, error) {
	mux := handler.New()
	handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(store, "accounts", nil)), withdraw.Key, func(ctx context.Context, m handler.Message[withdraw]) error {
		_, err := store.Write(ctx, book.Stream(m.Stream.CardinalID()), messagestore.AnyVersion, withdrawn{m.Body.Amount})
		return err
	}))
	return mux, nil
}

// Messages that were there before, of the scenario's streams and of others, are not compared.
func TestAScenarioOverAStoreOfTheTest(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *messagestore.Store{
		"memory":     func(*testing.T) *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) },
		"PostgreSQL": func(t *testing.T) *messagestore.Store { return postgrestest.New(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			for _, stream := range []messagestore.StreamName{"account-123", "account-124", "zoo-1"} {
				_, err := store.Write(t.Context(), stream, messagestore.AnyVersion, deposited{500}, deposited{500})
				require.NoError(t, err)
			}

			s := handlertest.Over(t, store, testkit.Must(handlers(store))).
				When(commands.Stream("123"), withdraw{"w1", 300}).
				Then(book.Stream("123"), withdrawn{300}).
				Redelivered().
				Then(book.Stream("123"), withdrawn{300}).
				When(commands.Stream("123"), withdraw{"w1", 300}). // sent again
				ThenNothing().
				When(commands.Stream("124"), withdraw{"w2", 1001}).
				ThenError(errPoor).
				ThenNothing()

			require.Same(t, store, s.Store())
		})
	}
}

// The checks of a scenario give a reserver to no consumer.
func TestHandlersOfAScenarioServeAConsumerToo(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	mux := testkit.Must(handlers(store))
	handlertest.Over(t, store, mux).
		Given(book.Stream("123"), deposited{1000}).
		When(commands.Stream("123"), withdraw{"w1", 300}).
		Then(book.Stream("123"), withdrawn{300})

	require.NoError(t, testkit.Must(consumer.New(store, commands, "accounts", mux, nil)).CatchUp(t.Context()))
}

// A listless driver lists no categories.
type listless struct{ messagestore.Driver }

func (listless) Categories(context.Context, string) ([]messagestore.Category, error) {
	return nil, messagestore.ErrNotSupported
}

// told is a testing.TB that remembers how it was failed.
type told struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (f *told) Helper()                      {}
func (f *told) Cleanup(c func())             { f.cleanups = append(f.cleanups, c) }
func (f *told) Errorf(text string, a ...any) { f.errors = append(f.errors, fmt.Sprintf(text, a...)) }

func (f *told) Fatalf(text string, a ...any) {
	f.Errorf(text, a...)
	panic(f)
}

func (f *told) end() {
	for _, c := range f.cleanups {
		c()
	}
}

func TestAScenarioThatDoesNotHoldSaysWhatCame(t *testing.T) {
	t.Parallel()
	given := func(t testing.TB) *handlertest.Scenario {
		return handlertest.New(t, handlers).Given(book.Stream("123"), deposited{1000}).When(commands.Stream("123"), withdraw{"w1", 300})
	}
	for name, test := range map[string]struct {
		run  func(t testing.TB)
		want []string
	}{
		"another event": {
			func(t testing.TB) { given(t).Then(book.Stream("123"), withdrawn{299}) },
			[]string{"then: account-123 has not the expected events\nwant:\n\tWithdrawn {\"amount\":299}\ngot:\n\tWithdrawn {\"amount\":300}"},
		},
		"another stream": {
			func(t testing.TB) { given(t).Then(book.Stream("124"), withdrawn{300}) },
			[]string{"then: account-124 has not the expected events\nwant:\n\tWithdrawn {\"amount\":300}\ngot: none\nelsewhere:\n\tWithdrawn {\"amount\":300} in account-123"},
		},
		"an event too few": {
			func(t testing.TB) { given(t).Then(book.Stream("123")) },
			[]string{"then: account-123 has not the expected events\nwant: none\ngot:\n\tWithdrawn {\"amount\":300}"},
		},
		"an event too many": {
			func(t testing.TB) { given(t).Then(book.Stream("123"), withdrawn{300}, withdrawn{300}) },
			[]string{"then: account-123 has not the expected events\nwant:\n\tWithdrawn {\"amount\":300}\n\tWithdrawn {\"amount\":300}\ngot:\n\tWithdrawn {\"amount\":300}"},
		},
		"something": {
			func(t testing.TB) { given(t).ThenNothing() },
			[]string{"then: expected no events\ngot:\n\tWithdrawn {\"amount\":300} in account-123"},
		},
		"no error": {
			func(t testing.TB) { given(t).ThenError(nil) },
			[]string{"then: expected an error of Withdraw account:command-123@0, and there is none"},
		},
		"another error": {
			func(t testing.TB) {
				given(t).When(commands.Stream("123"), withdraw{"w2", 800}).ThenError(context.Canceled)
			},
			[]string{"then: expected another error\nwant: context canceled\ngot:  handle Withdraw account:command-123@1: insufficient funds"},
		},
		"an error that nobody asks for": {
			func(t testing.TB) { given(t).When(commands.Stream("123"), withdraw{"w2", 800}) },
			[]string{"the handler returned an error that no ThenError asks for: handle Withdraw account:command-123@1: insufficient funds"},
		},
		"an error where events were expected": {
			func(t testing.TB) {
				given(t).When(commands.Stream("123"), withdraw{"w2", 800}).Then(book.Stream("123"))
			},
			[]string{"the handler returned an error that no ThenError asks for: handle Withdraw account:command-123@1: insufficient funds"},
		},
		"a mistake of the mux": {
			func(t testing.TB) {
				handlertest.New(t, func(*messagestore.Store) (*handler.Mux, error) { return handler.New(), nil })
			},
			[]string{"handlers: invalid registration: must not be empty: register a function with On"},
		},
		"a missing store": {
			func(t testing.TB) { handlertest.Over(t, nil, handler.New()) },
			[]string{"handlertest: the store is nil"},
		},
		"an error of the function": {
			func(t testing.TB) {
				handlertest.New(t, func(*messagestore.Store) (*handler.Mux, error) { return nil, errors.New("no rates") })
			},
			[]string{"handlertest: the function that makes the handlers: no rates"},
		},
		"missing handlers": {
			func(t testing.TB) {
				handlertest.New(t, func(*messagestore.Store) (*handler.Mux, error) { return nil, nil })
			},
			[]string{"handlertest: the handlers are nil"},
		},
		"a store that lists no categories": {
			func(t testing.TB) {
				store := testkit.Must(messagestore.New(listless{memory.New()}, nil))
				handlertest.Over(t, store, testkit.Must(handlers(store))).When(commands.Stream("123"), withdraw{"w1", 300})
			},
			[]string{"when: read categories: not supported by this driver"},
		},
		"an event that cannot be": {
			func(t testing.TB) { given(t).Given("account", deposited{1}) },
			[]string{`given: write account: invalid stream name "account": must have a dash and an identifier, and is a category`},
		},
		"a command that is missing": {
			func(t testing.TB) { handlertest.New(t, handlers).Redelivered() },
			[]string{"redelivered: there is no command yet: call When first"},
		},
		"handlers over another store": {
			func(t testing.TB) {
				handlertest.Over(t, testkit.Must(messagestore.New(memory.New(), nil)), testkit.Must(handlers(testkit.Must(messagestore.New(memory.New(), nil))))).
					When(commands.Stream("123"), withdraw{"w1", 300}).ThenError(errPoor).ThenNothing()
			},
			[]string{`handlers: invalid store of reserver "accounts": it is another store than that of the delivered messages: Withdraw account:command-123@0 is not there`},
		},
		"handlers over another store than that of New": {
			func(t testing.TB) {
				other := testkit.Must(messagestore.New(memory.New(), nil))
				handlertest.New(t, func(*messagestore.Store) (*handler.Mux, error) { return copying(other) }).When(commands.Stream("123"), withdraw{"w1", 300}).ThenNothing()
			},
			[]string{`handlers: invalid store of reserver "accounts": it is another store than that of the delivered messages: Withdraw account:command-123@0 is not there`},
		},
		"events of a category": {
			func(t testing.TB) {
				given(t).When(commands.Stream("124"), withdraw{"w2", 300}).ThenError(errPoor).Then("account")
			},
			[]string{`then: invalid stream name "account": must have a dash and an identifier, and is a category`},
		},
		"events of no stream": {
			func(t testing.TB) {
				given(t).When(commands.Stream("124"), withdraw{"w2", 300}).ThenError(errPoor).Then("")
			},
			[]string{`then: invalid stream name "": must not be empty`},
		},
		"events without a command": {
			func(t testing.TB) { handlertest.New(t, handlers).Then(book.Stream("123")) },
			[]string{"then: there is no command yet: call When first"},
		},
		"nothing without a command": {
			func(t testing.TB) { handlertest.New(t, handlers).ThenNothing() },
			[]string{"then: there is no command yet: call When first"},
		},
		"an error without a command": {
			func(t testing.TB) { handlertest.New(t, handlers).ThenError(nil) },
			[]string{"then: there is no command yet: call When first"},
		},
		"no function": {
			func(t testing.TB) { handlertest.New(t, nil) },
			[]string{"handlertest: the function that makes the handlers is nil"},
		},
		"a message at a position below 0": {
			func(t testing.TB) { handlertest.Message(t, deposited{1}, &handlertest.Config{Position: -1}) },
			[]string{"handlertest: the position of a message is not -1: the first is 0"},
		},
		"a message at a global position below 0": {
			func(t testing.TB) { handlertest.Message(t, deposited{1}, &handlertest.Config{GlobalPosition: -1}) },
			[]string{"handlertest: the global position of a message is not -1: the first is 1"},
		},
		"a handler that feeds on itself": {
			func(t testing.TB) {
				handlertest.New(t, func(store *messagestore.Store) (*handler.Mux, error) {
					mux := handler.New()
					handler.On(mux, func(ctx context.Context, m handler.Message[withdraw]) error {
						_, err := store.Write(ctx, m.Stream, messagestore.AnyVersion, m.Body)
						return err
					})
					return mux, nil
				}).When(commands.Stream("123"), withdraw{})
			},
			[]string{"when: Withdraw account:command-123@0 has led to more than 1000 messages in account:command: a handler writes to its own category, for ever"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &told{TB: t}

			func() {
				defer func() {
					if r := recover(); r != nil && r != any(f) {
						panic(r)
					}
				}()
				test.run(f)
			}()
			f.end()

			require.Equal(t, test.want, f.errors)
		})
	}
}
