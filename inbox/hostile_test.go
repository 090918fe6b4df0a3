package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

var digestless = regexp.MustCompile(`"digest":"[0-9a-f]{64}",`)

// Each error is found before a round trip, and names the field.
func TestARequestThatBreaksARuleIsRefused(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		const limit = messagestore.MaxMessageBytes
		for name, test := range map[string]struct {
			m     inbox.Request
			field string
		}{
			"empty":                {inbox.Request{}, "idempotence key"},
			"invisible":            {inbox.Request{ID: "\u200b\u2060"}, "idempotence key"},
			"white space":          {inbox.Request{ID: " \t\u00a0"}, "idempotence key"},
			"not UTF-8":            {inbox.Request{ID: "a\xff"}, "idempotence key"},
			"long source":          {inbox.Request{ID: "k", Source: strings.Repeat("s", inbox.MaxSourceBytes+1)}, "source"},
			"source not UTF-8":     {inbox.Request{ID: "k", Source: "a\xff"}, "source"},
			"source with U+0000":   {inbox.Request{ID: "k", Source: "a\x00"}, "source"},
			"long data":            {inbox.Request{ID: "k", Data: []byte(`"` + strings.Repeat("x", limit-1) + `"`)}, "data"},
			"data not UTF-8":       {inbox.Request{ID: "k", Data: []byte("\"\xff\"")}, "data"},
			"data that is binary":  {inbox.Request{ID: "k", Data: []byte{0, 1, 2}}, "data"},
			"data that ends early": {inbox.Request{ID: "k", Data: []byte(`{`)}, "data"},
			"two values":           {inbox.Request{ID: "k", Data: []byte(`{} {}`)}, "data"},
			"white space for data": {inbox.Request{ID: "k", Data: []byte(` `)}, "data"},
		} {
			_, err := d.receive(t.Context(), test.m, notCalled(t))

			requireInvalid(t, err, test.field, name)
			require.Less(t, len(err.Error()), 500, name)
			if test.field != "data" {
				_, err = d.undo(t.Context(), test.m, notCalled(t))
				requireInvalid(t, err, test.field, name)
			}
		}
		_, err := d.carry(t.Context(), inbox.Request{ID: "k"}, nil)
		requireInvalid(t, err, "function", "nil")
		d.requireRows(t, "", 0)

		for _, m := range []inbox.Request{
			{ID: strings.Repeat("k", 1<<20)},
			{ID: "\x00\x01a"},
			{ID: "a/b+c-d:e%"},
			{ID: "data", Data: []byte(`"` + strings.Repeat("x", limit-2) + `"`)},
			{ID: "source", Source: strings.Repeat("s", inbox.MaxSourceBytes)},
		} {
			result, err := d.carry(t.Context(), m, func(context.Context, any) (doneWith, error) { return doneWith{}, nil })
			if err != nil && strings.ContainsRune(m.ID, 0) { // PostgreSQL's text, of the test's own insert
				require.Contains(t, err.Error(), "0x00")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, reservation.Reserved, result.Outcome)
		}
	})
}

func requireInvalid(t *testing.T, err error, field, name string) {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrInvalid, name)
	invalid, ok := errors.AsType[*messagestore.InvalidError](err)
	require.Truef(t, ok, "%s: %v", name, err)
	require.Equal(t, field, invalid.Field, name)
}

// A function whose result cannot be committed leaves nothing, and the key free.
func TestAFunctionThatBreaksARuleLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		event := func(stream messagestore.StreamName) messagestore.StreamWrite {
			return messagestore.To(stream, messagestore.AnyVersion, Deposited{1})
		}
		account := messagestore.Category(d.name).Stream("1")
		for name, test := range map[string]struct {
			done  doneWith
			field string
		}{
			"an answer that is no JSON": {doneWith{Answer: make(chan int)}, "answer"},
			"NaN":                       {doneWith{Answer: math.NaN()}, "answer"},
			"a large answer":            {doneWith{Answer: strings.Repeat("x", messagestore.MaxMessageBytes)}, "data"},
			"an answer not UTF-8":       {doneWith{Answer: []string{"\xff"}}, "answer"},
			"an answer with U+0000":     {doneWith{Answer: "\x00"}, "data"},
			"two answers":               {doneWith{Writes: []messagestore.StreamWrite{reservation.Answer(1), reservation.Answer(2)}}, "answer"},
			"a stream twice":            {doneWith{Writes: []messagestore.StreamWrite{event(account), event(account)}}, "batch"},
			"no stream":                 {doneWith{Writes: []messagestore.StreamWrite{event("")}}, "stream name"},
			"its own place":             {doneWith{Writes: []messagestore.StreamWrite{event(d.inboxes().Stream("AAA"))}}, "writes"},
			"another place":             {doneWith{Writes: []messagestore.StreamWrite{event(account), event(d.inboxes().Stream("B"))}}, "writes"},
		} {
			_, err := d.receive(t.Context(), inbox.Request{ID: "AAA"}, func() (doneWith, error) { return test.done, nil })
			requireInvalid(t, err, test.field, name)
			d.requireRows(t, "", 0)
		}
		require.Empty(t, d.inbox(t, d.inboxes(), "AAA"))
		require.Empty(t, d.inbox(t, messagestore.Category(d.name), "1"))
	})
}

func TestAFunctionThatDoesNotReturnLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		m := inbox.Request{ID: "AAA"}
		require.PanicsWithValue(t, "boom", func() {
			_, _ = d.receive(t.Context(), m, func() (doneWith, error) { panic("boom") })
		})
		gone := make(chan bool)
		go func() {
			defer close(gone)
			_, _ = d.receive(t.Context(), m, func() (doneWith, error) {
				runtime.Goexit()
				return doneWith{}, nil
			})
			gone <- true
		}()
		require.False(t, testkit.Receive(t, "the end of the call", gone), "it returned")
		d.requireRows(t, "", 0)
		require.Empty(t, d.inbox(t, d.inboxes(), "AAA"))

		result, err := d.receive(t.Context(), m, answering("done"))
		require.NoError(t, err)
		require.Equal(t, reservation.Reserved, result.Outcome, "the key is free, and so is the connection")
	})
}

func TestAFunctionDoesNotEndOrKeepItsTransaction(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for _, how := range []string{"commit", "rollback"} {
			_, err := d.carry(t.Context(), inbox.Request{ID: how}, func(ctx context.Context, tx any) (doneWith, error) {
				return doneWith{}, map[string]func(context.Context, any) error{"commit": commit, "rollback": rollback}[how](ctx, tx)
			})
			require.ErrorIs(t, err, messagestore.ErrTransactionEnded, how)
			d.requireRows(t, how, 0)
			require.Empty(t, d.inbox(t, d.inboxes(), how))
		}
		var kept any
		_, err := d.carry(t.Context(), inbox.Request{ID: "kept"}, func(_ context.Context, tx any) (doneWith, error) {
			kept = tx
			return doneWith{}, nil
		})
		require.NoError(t, err)
		require.Error(t, d.insertIn(t.Context(), kept))
		d.requireRows(t, "", 1)
	})
}

func commit(ctx context.Context, tx any) error {
	switch tx := tx.(type) {
	case pgx.Tx:
		return tx.Commit(ctx)
	case *sql.Tx:
		return tx.Commit()
	}
	return errors.New("no transaction")
}

func rollback(ctx context.Context, tx any) error {
	switch tx := tx.(type) {
	case pgx.Tx:
		return tx.Rollback(ctx)
	case *sql.Tx:
		return tx.Rollback()
	}
	return errors.New("no transaction")
}

// insertIn inserts a row in a transaction that is over.
func (d *desk) insertIn(ctx context.Context, tx any) (err error) {
	statement := "insert into " + d.name + " values ('late')"
	switch tx := tx.(type) {
	case pgx.Tx:
		_, err = tx.Exec(ctx, statement)
	case *sql.Tx:
		_, err = tx.ExecContext(ctx, statement)
	}
	return err
}

// Data that two decoders may read as different values are compared byte by byte.
func TestAmbiguousDataAreNoOtherData(t *testing.T) {
	t.Parallel()
	eachDesk(t, func(t *testing.T, d *desk) {
		for key, others := range map[string][]string{
			"pairs": {`{"a":"\ud800"}`, `{"a":"\ud801"}`, `{"a":"\ufffd"}`},
			"twice": {`{"a":1,"a":2}`, `{"a":2}`, `{"a":2,"a":2}`},
			"plain": {`{"a":2}`, `{"a":1,"a":2}`},
		} {
			for i, data := range append(others, others[0]) {
				result, err := d.carry(t.Context(), inbox.Request{ID: key, Data: []byte(data)}, func(context.Context, any) (doneWith, error) { return doneWith{}, nil })
				require.NoError(t, err)
				want := reservation.KeyReused
				switch i {
				case 0:
					want = reservation.Reserved
				case len(others):
					want = reservation.Duplicate
				}
				require.Equal(t, want, result.Outcome, data)
			}
		}
	})
}
