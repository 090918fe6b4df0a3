package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

func answering(text string) func() (doneWith, error) {
	return func() (doneWith, error) { return doneWith{Answer: accepted{text}}, nil }
}

// notCalled is a function that must not be called.
func notCalled(t *testing.T) func() (doneWith, error) {
	t.Helper()
	return func() (doneWith, error) {
		t.Error("the function was called")
		return doneWith{}, nil
	}
}

func (d *desk) inbox(t *testing.T, category messagestore.Category, id string) []*messagestore.Message {
	t.Helper()
	var all []*messagestore.Message
	for m, err := range d.store.ReadStream(t.Context(), category.Stream(id), 0) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

func (d *desk) inboxes() messagestore.Category { return messagestore.Category(d.name + ":inbox") }

func TestAnUndoGivesBackOnce(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		m := inbox.Request{ID: "AAA", Source: "POST /transfers", Data: []byte(`{"amount":10}`)}
		_, err := d.receive(t.Context(), m, answering("done"))
		require.NoError(t, err)
		boom := errors.New("boom")
		_, err = d.undo(t.Context(), m, func() (doneWith, error) { return doneWith{}, boom })
		require.ErrorIs(t, err, boom)
		d.requireRows(t, "undone AAA", 0)
		require.Len(t, d.inbox(t, d.inboxes(), "AAA"), 1)

		undone, err := d.undo(t.Context(), inbox.Request{ID: "AAA", Source: "DELETE /transfers"}, func() (doneWith, error) {
			event := messagestore.To(messagestore.Category(d.name).Stream("1"), messagestore.AnyVersion, Deposited{-10})
			return doneWith{Answer: accepted{"undone"}, Writes: []messagestore.StreamWrite{event}}, nil
		})

		require.NoError(t, err)
		require.Equal(t, reservation.Undone, undone.Outcome)
		require.JSONEq(t, `{"row":"undone"}`, string(undone.Answer))
		require.Equal(t, messagestore.Version(1), undone.Winner.Position)
		again, err := d.undo(t.Context(), inbox.Request{ID: "AAA"}, notCalled(t))
		require.NoError(t, err)
		require.Equal(t, reservation.Duplicate, again.Outcome)
		require.JSONEq(t, `{"row":"undone"}`, string(again.Answer))
		require.Equal(t, undone.Winner.ID, again.Winner.ID)
		late, err := d.receive(t.Context(), m, notCalled(t))
		require.NoError(t, err)
		require.Equal(t, reservation.Undone, late.Outcome)
		require.JSONEq(t, `{"row":"done"}`, string(late.Answer), "one answer for all copies")
		require.Equal(t, undone.Winner.ID, late.Winner.ID)
		m.Data = []byte(`{"amount":11}`)
		reused, err := d.receive(t.Context(), m, notCalled(t))
		require.NoError(t, err)
		require.Equal(t, reservation.KeyReused, reused.Outcome)
		d.requireRows(t, "AAA", 1)
		d.requireRows(t, "undone AAA", 1)
		all := d.inbox(t, d.inboxes(), "AAA")
		require.Len(t, all, 2)
		events := d.inbox(t, messagestore.Category(d.name), "1")
		require.Len(t, events, 1)
		require.JSONEq(t, fmt.Sprintf(`{"source":"DELETE /transfers","answer":{"row":"undone"},"wrote":{%q:[%q]}}`, events[0].Stream, events[0].ID), string(all[1].Data))
		for _, want := range []reservation.Outcome{reservation.Reserved, reservation.Undone, reservation.Duplicate, reservation.Undone, reservation.KeyReused} {
			require.Equal(t, want, d.result(t).Outcome)
		}
	})
}

// U5: the first write wins, and it was the undo's.
func TestNothingIsDoneAfterItsUndo(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		undone, err := d.undo(t.Context(), inbox.Request{ID: "AAA"}, notCalled(t))
		require.NoError(t, err)
		require.Equal(t, reservation.Undone, undone.Outcome)
		require.Nil(t, undone.Answer)

		for range 2 {
			result, err := d.receive(t.Context(), inbox.Request{ID: "AAA", Data: []byte(`{}`)}, notCalled(t))
			require.NoError(t, err)
			require.Equal(t, reservation.Undone, result.Outcome)
			require.Nil(t, result.Answer)
			require.Equal(t, undone.Winner.ID, result.Winner.ID)
		}

		again, err := d.undo(t.Context(), inbox.Request{ID: "AAA"}, notCalled(t))
		require.NoError(t, err)
		require.Equal(t, reservation.Duplicate, again.Outcome)
		d.requireRows(t, "", 0)

		_, err = d.store.Write(t.Context(), d.inboxes().Stream("BBB"), messagestore.NoStream, Deposited{1})
		require.NoError(t, err)
		_, err = d.undo(t.Context(), inbox.Request{ID: "BBB"}, notCalled(t))
		_, is := errors.AsType[*reservation.NoReservationError](err)
		require.Truef(t, is, "%v", err)
	})
}

// The tombstone of a request has neither its digest nor its answer, whichever way it went.
func TestARequestWhoseStreamWasDeletedIsNeitherCarriedOutNorUndone(t *testing.T) {
	t.Parallel()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "inbox.db"), nil)
	require.NoError(t, err)
	defer driver.Close()
	txs, err := messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, nil)))
	require.NoError(t, err)
	u, err := inbox.New(txs, "payments", nil)
	require.NoError(t, err)
	done := func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{reservation.Answer("done")}, nil
	}
	received, undone, both := inbox.Request{ID: "received"}, inbox.Request{ID: "undone"}, inbox.Request{ID: "both"}
	for _, m := range []inbox.Request{received, both} {
		_, err := u.Receive(t.Context(), m, done)
		require.NoError(t, err)
	}
	for _, m := range []inbox.Request{undone, both} {
		_, err := u.Undo(t.Context(), m, done)
		require.NoError(t, err)
	}
	for _, m := range []inbox.Request{received, undone, both} {
		stream, err := u.Stream(m.ID)
		require.NoError(t, err)
		_, err = driver.Delete(t.Context(), stream, messagestore.AnyVersion, nil)
		require.NoError(t, err)
		for _, carry := range []func(context.Context, inbox.Request, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error)) (reservation.Result, error){u.Receive, u.Undo} {
			_, err := carry(t.Context(), m, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
				t.Error("the function was called")
				return nil, nil
			})

			none, ok := errors.AsType[*reservation.NoReservationError](err)
			require.Truef(t, ok, "%v", err)
			require.True(t, none.First.IsTombstone())
			require.Equal(t, fmt.Sprintf("no reservation: %s was deleted, and its tombstone does not tell of one", stream), none.Error())
		}
	}
}

// Several copies of a request and of its undo come at once: nothing is done, or it is done and given back.
func TestARequestAndItsUndoAtOnceAreEvenInTheEnd(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for round := range 6 {
			m := inbox.Request{ID: fmt.Sprint("key ", round)}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if _, err := d.receive(t.Context(), m, answering("done")); err != nil {
						t.Error(err)
					}
				})
				wg.Go(func() {
					if _, err := d.undo(t.Context(), m, answering("undone")); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()

			done, err := d.rows(t.Context(), m.ID)
			require.NoError(t, err)
			require.LessOrEqual(t, done, 1)
			d.requireRows(t, "undone "+m.ID, done)
			all := d.inbox(t, d.inboxes(), m.ID)
			require.Len(t, all, 1+done)
			require.Equal(t, "Undone", all[done].Type)
		}
	})
}

func TestAnUndoThatMeetsTheRequestGivesItBack(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		if strings.Contains(t.Name(), "SQLite") {
			t.Skip("on SQLite the second waits for the first")
		}
		// The request is under way when the undo comes: the undo is first, and its work is rolled back.
		result, err := d.receive(t.Context(), inbox.Request{ID: "AAA"}, func() (doneWith, error) {
			undone, err := d.undo(t.Context(), inbox.Request{ID: "AAA"}, notCalled(t))
			require.NoError(t, err)
			require.Equal(t, reservation.Undone, undone.Outcome)
			return doneWith{Answer: accepted{"late"}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, reservation.Undone, result.Outcome)
		require.Nil(t, result.Answer, "the answer of work that was rolled back")
		d.requireRows(t, "", 0)

		// Nor is its answer told if another request had the key first.
		result, err = d.receive(t.Context(), inbox.Request{ID: "CCC"}, func() (doneWith, error) {
			_, err := d.receive(t.Context(), inbox.Request{ID: "CCC", Source: "other"}, answering("other"))
			require.NoError(t, err)
			return doneWith{Answer: accepted{"late"}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, reservation.KeyReused, result.Outcome)
		require.Nil(t, result.Answer)

		// Two undos of one request.
		_, err = d.receive(t.Context(), inbox.Request{ID: "BBB"}, answering("done"))
		require.NoError(t, err)
		undone, err := d.undo(t.Context(), inbox.Request{ID: "BBB"}, func() (doneWith, error) {
			_, err := d.undo(t.Context(), inbox.Request{ID: "BBB"}, answering("first"))
			require.NoError(t, err)
			return doneWith{Answer: accepted{"second"}}, nil
		})
		require.NoError(t, err)
		require.Equal(t, reservation.Duplicate, undone.Outcome)
		require.JSONEq(t, `{"row":"first"}`, string(undone.Answer))
		d.requireRows(t, "undone BBB", 1)
	})
}

func TestALostAnswerToTheCommitOfAnUndoIsFoundOut(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for name, test := range map[string]struct {
			fate   fate
			noFind bool
			calls  int
		}{
			"committed":                    {losesReply, false, 1},
			"not committed":                {losesWrite, false, 2},
			"committed, and not found out": {losesReply, true, 1}, // the key's stream tells
		} {
			for _, done := range []bool{false, true} {
				m := inbox.Request{ID: fmt.Sprint(name, done)}
				if done {
					_, err := d.receive(t.Context(), m, answering("done"))
					require.NoError(t, err)
				}
				fates := []fate{test.fate}
				d.faults.noFind = test.noFind
				d.faults.next = func() (f fate) {
					if len(fates) > 0 {
						f, fates = fates[0], fates[1:]
					}
					return f
				}
				calls := 0

				result, err := d.undo(t.Context(), m, func() (doneWith, error) {
					calls++
					return doneWith{Answer: accepted{m.ID}}, nil
				})

				d.faults.noFind = false
				require.NoError(t, err, m.ID)
				require.Equal(t, reservation.Undone, result.Outcome, m.ID)
				if done {
					require.Equal(t, test.calls, calls, m.ID)
					require.JSONEq(t, `{"row":"`+m.ID+`"}`, string(result.Answer))
					d.requireRows(t, "undone "+m.ID, 1)
				} else {
					require.Zero(t, calls)
					require.Nil(t, result.Answer)
				}
			}
		}
		m := inbox.Request{ID: "none"}
		_, err := d.receive(t.Context(), m, answering("done"))
		require.NoError(t, err)
		d.faults.noFind, d.faults.next = true, func() fate { return losesWrite }
		_, err = d.undo(t.Context(), m, answering("undone"))
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		d.requireRows(t, "undone none", 0)
	})
}

// A key that is used for another request is recorded once for each other request, and counted each time.
func TestAReusedKeyIsRecorded(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		refused := messagestore.Category(d.name + ":inbox+refused")
		_, err := d.receive(t.Context(), inbox.Request{ID: "A+A", Source: "POST /transfers", Data: []byte(`{"amount":10}`)}, answering("done"))
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, d.result(t).Outcome)
		others := []inbox.Request{
			{ID: "A+A", Source: "POST /transfers", Data: []byte(`{"amount":11}`)},
			{ID: "A+A", Source: "POST /transfers", Data: []byte(` {"amount": 11.0}`)}, // the same
			{ID: "A+A", Source: "POST /refunds", Data: []byte(`{"amount":10}`)},
			{ID: "A+A", Source: "POST /transfers", Data: []byte(`{"name":"\u0000"}`)}, // which no message may have
		}
		d.faults.noAppend = true
		_, err = d.receive(t.Context(), others[0], notCalled(t))
		require.ErrorIs(t, err, errLost, "it may not be acknowledged")
		d.faults.noAppend = false

		for _, m := range append(others, others...) {
			result, err := d.receive(t.Context(), m, notCalled(t))
			require.NoError(t, err)
			require.Equal(t, reservation.KeyReused, result.Outcome)
			require.Equal(t, "Received", result.Winner.Type)
			require.Equal(t, reservation.KeyReused, d.result(t).Outcome)
		}

		var data []string
		for _, m := range d.inbox(t, refused, "A+A") {
			require.Equal(t, "Refused", m.Type)
			data = append(data, digestless.ReplaceAllString(string(m.Data), ""))
		}
		require.Equal(t, []string{
			`{"source":"POST /transfers","error":"the key was first used for another request","data":{"amount":11}}`,
			`{"source":"POST /refunds","error":"the key was first used for another request","data":{"amount":10}}`,
			`{"source":"POST /transfers","error":"the key was first used for another request"}`,
		}, data)
		require.Empty(t, d.results)
	})
}
