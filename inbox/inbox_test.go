package inbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

func TestACommandIsHandledOnceWithItsRow(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		once := d.reserver()
		first, again, other := d.send(t, Deposit{"AAA", 10}), d.send(t, Deposit{"AAA", 10}), d.send(t, Deposit{"AAA", 11})
		mux := d.handle(once, d.deposited)
		for _, test := range []struct {
			m    *messagestore.Message
			want reservation.Outcome
		}{{first, reservation.Reserved}, {first, reservation.Redelivered}, {again, reservation.Duplicate}, {first, reservation.Redelivered}} {
			require.NoError(t, mux.Handle(t.Context(), test.m))

			result := d.result(t)
			require.Equal(t, test.want, result.Outcome)
			require.JSONEq(t, `{"row":"AAA"}`, string(result.Answer), "the recorded answer")
		}
		err := mux.Handle(t.Context(), other)
		reused, ok := errors.AsType[*reservation.KeyReusedError](err)
		require.Truef(t, ok, "%v", err)
		require.Equal(t, "AAA", reused.Key)
		d.requireRows(t, "AAA", 1)

		effect, err := once.Outcome(t.Context(), first.Stream, "AAA")
		require.NoError(t, err)
		require.True(t, effect.Done)
		require.Len(t, effect.Events, 1)
		require.True(t, effect.Events[0].Metadata.Follows(first))
	})
}

// The consumer meets the reservation that it made, and a handler may have been Copy before.
func TestAnInboxOfAConsumerHandlesNoReservation(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		d.send(t, Deposit{"AAA", 10})
		d.send(t, Deposit{"AAA", 10})
		d.send(t, Deposit{"BBB", 10})
		c := testkit.Must(consumer.New(d.store, d.commands(), "accounts", d.handle(d.reserver(), d.deposited), nil))

		require.NoError(t, c.CatchUp(t.Context()))
		renamed := testkit.Must(reservation.New(d.store, "accounts", &reservation.Config{Consumers: []string{"accounts"}}))
		again := testkit.Must(consumer.New(d.store, d.commands(), "later", d.handle(renamed, d.deposited), nil))
		require.NoError(t, again.CatchUp(t.Context()))

		d.requireRows(t, "", 2)
		require.Zero(t, c.Stats().Parked)
	})
}

func TestARequestIsCarriedOutOnceWithItsRow(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		calls := 0
		work := func() (doneWith, error) {
			calls++
			return doneWith{Answer: accepted{fmt.Sprint(calls)}}, nil
		}
		m := inbox.Request{ID: "a+b %/", Source: "POST /transfers", Data: []byte(`{"amount": 10}`)}
		for i, want := range []reservation.Outcome{reservation.Reserved, reservation.Duplicate, reservation.Duplicate} {
			m.Data = [][]byte{[]byte(`{"amount": 10}`), []byte(`{"amount":10.0}`), []byte(` {"amount":1e1}`)}[i]
			result, err := d.receive(t.Context(), m, work)

			require.NoError(t, err)
			require.Equal(t, want, result.Outcome)
			require.JSONEq(t, `{"row":"1"}`, string(result.Answer), "the same answer to all")
			require.False(t, result.Winner.Time.IsZero())
		}
		for _, other := range []inbox.Request{
			{ID: m.ID, Source: m.Source, Data: []byte(`{"amount": 11}`)},
			{ID: m.ID, Source: "POST /refunds", Data: m.Data},
		} {
			result, err := d.receive(t.Context(), other, work)

			require.NoError(t, err)
			require.Equal(t, reservation.KeyReused, result.Outcome)
			require.Nil(t, result.Answer)
		}
		require.Equal(t, 1, calls)
		d.requireRows(t, m.ID, 1)
	})
}

// A function that answers among its writes, as one of reservation.Inline does, answers a request and an undo too.
func TestAnAnswerAmongTheWritesIsRecorded(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		work := func(text string) func() (doneWith, error) {
			return func() (doneWith, error) {
				event := messagestore.To(messagestore.Category(d.name).Stream(text), messagestore.AnyVersion, Deposited{10})
				return doneWith{Writes: []messagestore.StreamWrite{reservation.Answer(accepted{text}), event}}, nil
			}
		}
		m := inbox.Request{ID: "AAA"}
		for i, want := range []reservation.Outcome{reservation.Reserved, reservation.Duplicate} {
			received, err := d.receive(t.Context(), m, work("received"))
			require.NoError(t, err)
			require.Equal(t, want, received.Outcome)
			require.JSONEq(t, `{"row":"received"}`, string(received.Answer), i)
		}
		for i, want := range []reservation.Outcome{reservation.Undone, reservation.Duplicate} {
			undone, err := d.undo(t.Context(), m, work("undone"))
			require.NoError(t, err)
			require.Equal(t, want, undone.Outcome)
			require.JSONEq(t, `{"row":"undone"}`, string(undone.Answer), i)
		}
		mux := d.handle(d.reserver(), func(handler.Message[Deposit]) (doneWith, error) { return work("handled")() })
		for range 2 {
			require.NoError(t, mux.Handle(t.Context(), d.send(t, Deposit{"BBB", 10})))
		}
		effect, err := d.reserver().Outcome(t.Context(), d.commands().Stream("1"), "BBB")
		require.NoError(t, err)
		require.JSONEq(t, `{"row":"handled"}`, string(effect.Answer))
		for _, stream := range []string{"received", "undone", "handled"} {
			require.Len(t, d.inbox(t, messagestore.Category(d.name), stream), 1, "the event beside it")
		}

		two := doneWith{Answer: 1, Writes: []messagestore.StreamWrite{reservation.Answer(2)}}
		err = d.handle(d.reserver(), func(handler.Message[Deposit]) (doneWith, error) { return two, nil }).
			Handle(t.Context(), d.send(t, Deposit{"CCC", 10}))
		requireInvalid(t, err, "answer", "two")
		_, err = d.receive(t.Context(), inbox.Request{ID: "CCC"}, func() (doneWith, error) { return two, nil })
		requireInvalid(t, err, "answer", "two")
		_, err = d.receive(t.Context(), inbox.Request{ID: "CCC"}, answering("done"))
		require.NoError(t, err)
		_, err = d.undo(t.Context(), inbox.Request{ID: "CCC"}, func() (doneWith, error) { return two, nil })
		requireInvalid(t, err, "answer", "two")
	})
}

func TestAFunctionThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		boom := errors.New("boom")
		m := inbox.Request{ID: "AAA"}
		_, err := d.receive(t.Context(), m, func() (doneWith, error) { return doneWith{}, boom })
		require.ErrorIs(t, err, boom)
		_, err = d.receive(t.Context(), m, func() (doneWith, error) { return doneWith{Answer: make(chan int)}, nil })
		require.Error(t, err)
		once := d.reserver()
		mux := d.handle(once, func(handler.Message[Deposit]) (doneWith, error) { return doneWith{}, boom })
		require.ErrorIs(t, mux.Handle(t.Context(), d.send(t, Deposit{"AAA", 10})), boom)
		d.requireRows(t, "AAA", 0)

		result, err := d.receive(t.Context(), m, func() (doneWith, error) { return doneWith{}, nil })
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome, "the key is free")
		require.Nil(t, result.Answer)
		d.requireRows(t, "AAA", 1)
	})
}

func TestAStaleRowRunsAgain(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		calls := 0
		result, err := d.receive(t.Context(), inbox.Request{ID: "AAA"}, func() (doneWith, error) {
			if calls++; calls < 3 {
				return doneWith{}, fmt.Errorf("accounts: %w", reservation.ErrStale)
			}
			return doneWith{}, nil
		})

		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome)
		require.Equal(t, 3, calls)
		d.requireRows(t, "AAA", 1)

		_, err = d.receive(t.Context(), inbox.Request{ID: "BBB"}, func() (doneWith, error) { return doneWith{}, reservation.ErrStale })
		require.ErrorIs(t, err, reservation.ErrStale)
		d.requireRows(t, "BBB", 0)
	})
}

// Another copy commits while the function of this one is under way.
func TestATwinThatCommitsFirstWins(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		if !strings.Contains(t.Name(), "SQLite") { // where the second would wait for the first
			m := inbox.Request{ID: "AAA", Data: []byte(`{"amount":10}`)}
			result, err := d.receive(t.Context(), m, func() (doneWith, error) {
				twin, err := d.receive(t.Context(), m, func() (doneWith, error) { return doneWith{Answer: accepted{"twin"}}, nil })
				require.NoError(t, err)
				require.Equal(t, reservation.Reserved, twin.Outcome)
				return doneWith{Answer: accepted{"late"}}, nil
			})

			require.NoError(t, err)
			require.Equal(t, reservation.Duplicate, result.Outcome)
			require.JSONEq(t, `{"row":"twin"}`, string(result.Answer))
			d.requireRows(t, "AAA", 1)

			// The late one fails by itself.
			m.ID = "BBB"
			result, err = d.receive(t.Context(), m, func() (doneWith, error) {
				_, err := d.receive(t.Context(), m, func() (doneWith, error) { return doneWith{}, nil })
				require.NoError(t, err)
				return doneWith{}, errors.New("boom")
			})
			require.NoError(t, err)
			require.Equal(t, reservation.Duplicate, result.Outcome)
			d.requireRows(t, "BBB", 1)

			// The same message, delivered by two consumers at once.
			once := d.reserver()
			command := d.send(t, Deposit{"CCC", 10})
			err = d.handle(once, func(m handler.Message[Deposit]) (doneWith, error) {
				require.NoError(t, d.handle(once, d.deposited).Handle(t.Context(), command))
				return doneWith{Answer: accepted{"late"}}, nil
			}).Handle(t.Context(), command)
			require.NoError(t, err)
			d.requireRows(t, "CCC", 1)
		}

		// And by many at once.
		const callers = 8
		var wg sync.WaitGroup
		outcomes := make(chan reservation.Outcome, callers)
		for range callers {
			wg.Go(func() {
				result, err := d.receive(t.Context(), inbox.Request{ID: "DDD"}, func() (doneWith, error) { return doneWith{Answer: accepted{"x"}}, nil })
				if err == nil && string(result.Answer) == `{"row":"x"}` {
					outcomes <- result.Outcome
				}
			})
		}
		wg.Wait()
		close(outcomes)
		count := map[reservation.Outcome]int{}
		for outcome := range outcomes {
			count[outcome]++
		}
		require.Equal(t, map[reservation.Outcome]int{reservation.Reserved: 1, reservation.Duplicate: callers - 1}, count)
		d.requireRows(t, "DDD", 1)
	})
}

func TestALostAnswerToCommitIsFoundOut(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for name, test := range map[string]struct {
			fate   fate
			noFind bool
			calls  int
			ok     bool
		}{
			"committed":                      {losesReply, false, 1, true},
			"not committed":                  {losesWrite, false, 2, true},
			"committed, and not found out":   {losesReply, true, 1, true}, // the key's stream tells
			"not committed, nor to be found": {losesWrite, true, 1, false},
		} {
			for _, handles := range []bool{false, true} {
				key := fmt.Sprint(name, handles)
				fates := []fate{test.fate}
				d.faults.noFind = test.noFind
				d.faults.next = func() (f fate) {
					if len(fates) > 0 {
						f, fates = fates[0], fates[1:]
					}
					return f
				}
				calls := 0
				done := func() doneWith {
					calls++
					return doneWith{Answer: accepted{key}}
				}
				var carryOut func() (reservation.Outcome, string, error)
				if handles {
					mux := d.handle(d.reserver(), func(handler.Message[Deposit]) (doneWith, error) { return done(), nil })
					command := d.send(t, Deposit{key, 10})
					carryOut = func() (reservation.Outcome, string, error) {
						if err := mux.Handle(t.Context(), command); err != nil {
							return 0, "", err
						}
						result := d.result(t)
						return result.Outcome, string(result.Answer), nil
					}
				} else {
					carryOut = func() (reservation.Outcome, string, error) {
						result, err := d.receive(t.Context(), inbox.Request{ID: key}, func() (doneWith, error) { return done(), nil })
						if err == nil {
							d.result(t)
						}
						return result.Outcome, string(result.Answer), err
					}
				}
				answer := `{"row":"` + key + `"}`

				outcome, told, err := carryOut()

				if !test.ok {
					require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown, key)
					d.requireRows(t, key, 0)
				} else {
					want := reservation.Reserved
					if handles && test.noFind {
						want = reservation.Redelivered // the id of a reservation is that of its command, not of this attempt
					}
					require.NoError(t, err, key)
					require.Equal(t, want, outcome, key)
					require.Equal(t, answer, told, key)
					d.requireRows(t, key, 1)
				}
				require.Equal(t, test.calls, calls, key)
				d.faults.noFind = false

				outcome, told, err = carryOut() // delivered again

				require.NoError(t, err, key)
				require.Equal(t, answer, told, key)
				want := reservation.Reserved
				switch {
				case test.ok && handles:
					want = reservation.Redelivered
				case test.ok:
					want = reservation.Duplicate
				}
				require.Equal(t, want, outcome, key)
				d.requireRows(t, key, 1)
			}
		}
	})
}

// A process is killed again and again while it carries out requests, of which each is sent until it
// is answered. Each has one row, one message in
// the inbox and one event.
func TestEachRequestHasOneRowThroughKills(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"SQLite", "pgx", "database/sql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := newName()
			place := prepare(t, kind, name)
			const batch = 7
			requests := 50
			if testkit.Long() {
				requests = 120
			}
			answered, killed := 0, 0
			for answered < requests {
				before := answered
				ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Env = append(os.Environ(), kindVariable+"="+kind, placeVariable+"="+place, tableVariable+"="+name)
				cmd.Stderr = os.Stderr
				var keys strings.Builder
				for i := answered; i < requests; i++ {
					fmt.Fprintf(&keys, "key %d\n", i)
				}
				cmd.Stdin = strings.NewReader(keys.String())
				out, err := cmd.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				lines := bufio.NewScanner(out)
				for n := 0; n < batch+killed && lines.Scan(); n++ {
					require.Contains(t, lines.Text(), fmt.Sprintf(`key %d `, answered))
					require.Contains(t, lines.Text(), fmt.Sprintf(`{"row":"key %d"}`, answered))
					answered++
				}
				if answered < requests {
					require.NoError(t, cmd.Process.Kill()) // it is in the middle of the next one, or behind it
					killed++
				}
				_ = cmd.Wait()
				cancel()
				require.Greater(t, answered, before, "the process answers nothing")
			}

			require.Greater(t, killed, 4)
			d, end, err := openDesk(t.Context(), kind, place, name)
			require.NoError(t, err)
			t.Cleanup(end)
			for i := range requests {
				d.requireRows(t, fmt.Sprintf("key %d", i), 1)
				require.Len(t, d.inbox(t, d.inboxes(), fmt.Sprintf("key %d", i)), 1)
				require.Len(t, d.inbox(t, messagestore.Category(d.name), fmt.Sprintf("key %d", i)), 1)
			}
			d.requireRows(t, "", requests)
		})
	}
}

func TestARequestThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		never := func() (doneWith, error) {
			t.Error("the function was called")
			return doneWith{}, nil
		}
		for _, id := range []string{"", " ", "\u200b", "\xff"} {
			_, err := d.receive(t.Context(), inbox.Request{ID: id}, never)
			require.ErrorIs(t, err, reservation.ErrInvalidKey, "%q", id)
		}
		_, err := d.receive(t.Context(), inbox.Request{ID: "AAA", Data: []byte(`{`)}, never)
		require.ErrorIs(t, err, messagestore.ErrInvalid)

		_, err = d.store.Write(t.Context(), messagestore.Category(d.name+":inbox").Stream("BBB"), messagestore.NoStream, Deposited{1})
		require.NoError(t, err)
		_, err = d.receive(t.Context(), inbox.Request{ID: "BBB"}, never)
		none, ok := errors.AsType[*reservation.NoReservationError](err)
		require.Truef(t, ok, "%v", err)
		require.Equal(t, "Deposited", none.First.Type)

		long, err := d.receive(t.Context(), inbox.Request{ID: strings.Repeat("k", 1<<20)}, func() (doneWith, error) { return doneWith{}, nil })
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, long.Outcome)
	})
}

func TestAnInboxOfAnotherStoreIsRefused(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		elsewhere := testkit.Must(reservation.New(testkit.Must(messagestore.New(memory.New(), nil)), "accounts", nil))

		err := d.handle(elsewhere, d.deposited).Handle(t.Context(), d.send(t, Deposit{"AAA", 10}))

		require.ErrorIs(t, err, messagestore.ErrInvalid)
		d.requireRows(t, "AAA", 0)
	})
}

// A mistake is found at registration, and names the argument.
func TestAMissingPartOfTransactIsAMistakeOfTheMux(t *testing.T) {
	t.Parallel()
	txs := &messagestore.TxStore[context.Context]{Store: testkit.Must(messagestore.New(memory.New(), nil))}
	over := testkit.Must(reservation.New(txs.Store, "accounts", nil))
	elsewhere := testkit.Must(reservation.New(testkit.Must(messagestore.New(memory.New(), nil)), "accounts", nil))
	work := func(context.Context, context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		return nil, nil
	}
	key := func(d Deposit) string { return d.Key }
	for want, f := range map[string]handler.Handler[Deposit]{
		"store: must not be nil":                        reservation.Transact[context.Context](nil, over, key, work),
		"reserver: must not be nil":                     reservation.Transact(txs, nil, key, work),
		"reserver: must be over the same store as the ": reservation.Transact(txs, elsewhere, key, work),
		"key: must not be nil":                          reservation.Transact(txs, over, nil, work),
		"function: must not be nil":                     reservation.Transact[context.Context, Deposit](txs, over, key, nil),
	} {
		mux := handler.New()
		handler.Register(mux, f)
		require.ErrorContains(t, mux.Validate(), "invalid Transact's "+want)
	}
}

func TestAForgottenExpectedVersionIsAskedAboutByAnInbox(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		forgotten := messagestore.StreamWrite{Stream: messagestore.Category(d.name).Stream("1"), Bodies: []messagestore.Body{Deposited{1}}}
		_, err := d.receive(t.Context(), inbox.Request{ID: "AAA"}, func() (doneWith, error) {
			return doneWith{Writes: []messagestore.StreamWrite{forgotten}}, nil
		})

		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.ErrorContains(t, err, "is NoStream meant, or AnyVersion?")
	})
}

func TestWhatIsNoInboxIsRefused(t *testing.T) {
	t.Parallel()
	_, err := inbox.New[context.Context](nil, "payments", nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = inbox.New(&messagestore.TxStore[context.Context]{}, "payments", nil) // not of Transactional
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	store := testkit.Must(messagestore.New(memory.New(), nil))
	_, err = messagestore.Transactional[context.Context](store)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	_, err = inbox.New(&messagestore.TxStore[context.Context]{Store: store}, "my-payments", nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

// The first attempt is rolled back, for its stream has moved on. The caller is told the answer of the second.
func TestTheAnswerIsThatOfTheAttemptThatWasCommitted(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		account := messagestore.Category(d.name).Stream("1")
		_, err := d.store.Write(t.Context(), account, messagestore.NoStream, Deposited{1})
		require.NoError(t, err)
		calls := 0
		for _, want := range []reservation.Outcome{reservation.Reserved, reservation.Duplicate} {
			result, err := d.receive(t.Context(), inbox.Request{ID: "AAA"}, func() (doneWith, error) {
				expected := messagestore.Version(calls) - 1 // NoStream at first
				calls++
				return doneWith{accepted{fmt.Sprint(calls)}, []messagestore.StreamWrite{messagestore.To(account, expected, Deposited{1})}}, nil
			})

			require.NoError(t, err)
			require.Equal(t, want, result.Outcome)
			require.JSONEq(t, `{"row":"2"}`, string(result.Answer))
			require.Equal(t, 2, calls)
		}
	})
}
