package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A kept is a store in a file, and a connection beside it that does damage.
type kept struct {
	*sqlite.Driver
	store *messagestore.Store
	db    *sql.DB
}

func newKept(t *testing.T) *kept {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	driver, err := sqlite.Open(t.Context(), path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &kept{driver, must.New(messagestore.New(driver, nil)), db}
}

func (k *kept) fill(t *testing.T, stream messagestore.StreamName, n int) {
	t.Helper()
	for range n {
		k.write(t, stream, messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	}
}

func (k *kept) write(t *testing.T, stream messagestore.StreamName, bodies ...messagestore.Body) messagestore.Written {
	t.Helper()
	written, err := k.store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...)
	require.NoError(t, err)
	return written
}

func (k *kept) damage(t *testing.T, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := k.db.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

func (k *kept) rules(t *testing.T) (rules []string) {
	t.Helper()
	found, err := k.Verify(t.Context(), nil)
	require.NoError(t, err)
	for _, v := range found.Violations {
		rules = append(rules, v.Rule+" "+string(v.Stream))
	}
	return rules
}

var atOnce = retention.AnyAge

func TestTrimKeepsTheLastAndTheVersion(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 10)
	trimmed, err := k.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: 3})
	require.NoError(t, err)
	require.Equal(t, retention.Trimmed{Stream: "account-1", First: 0, Version: 9, Recent: true}, trimmed)

	options := &retention.TrimOptions{Keep: 3, MinAge: atOnce, Reason: "old", DryRun: true}
	want := retention.Trimmed{Stream: "account-1", Removed: 7, First: 7, Version: 9}
	trimmed, err = k.Trim(t.Context(), "account-1", options)
	require.NoError(t, err)
	require.Equal(t, want, trimmed)
	options.DryRun = false
	trimmed, err = k.Trim(t.Context(), "account-1", options)
	require.NoError(t, err)
	require.Equal(t, want, trimmed)
	m, err := k.store.Last(t.Context(), "account:retention-1")
	require.NoError(t, err)
	require.JSONEq(t, `{"stream":"account-1","removed":7,"from":0,"upTo":6,"reason":"old"}`, string(m.Data))

	written := k.write(t, "account-1", messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	require.Equal(t, messagestore.Version(10), written.Version)
	trimmed, err = k.Trim(t.Context(), "account-1", &retention.TrimOptions{Before: time.Now().Add(time.Hour), MinAge: atOnce})
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(10), trimmed.First, "the last stays")
	require.Empty(t, k.rules(t))
	trimmed, err = k.Trim(t.Context(), "none-1", options)
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, trimmed.Version)
}

func TestTrimOfMoreThanOneTransactionHolds(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	bodies := make([]messagestore.Body, 1000)
	for i := range bodies {
		bodies[i] = messagestore.Raw{Type: "T", Data: []byte(`{}`)}
	}
	for range 11 {
		k.write(t, "log-1", bodies...)
	}
	var steps []int64
	trimmed, err := k.Trim(t.Context(), "log-1", &retention.TrimOptions{Keep: 1, MinAge: atOnce, OnProgress: func(n int64) { steps = append(steps, n) }})
	require.NoError(t, err)
	require.Equal(t, []int64{10_000, 999}, steps)
	require.Equal(t, int64(10_999), trimmed.Removed)
	require.Empty(t, k.rules(t))
}

func TestTrimLeavesReservationsAndParkedMessages(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	mark := messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x", "other": "y"}
	k.write(t, "account:command-1+AAA", messagestore.Envelope{Body: messagestore.Raw{Type: "T", Data: []byte(`{}`)}, Metadata: messagestore.Metadata{Local: mark}})
	k.fill(t, "account:command-1+AAA", 3)
	trimmed, err := k.Trim(t.Context(), "account:command-1+AAA", &retention.TrimOptions{Keep: 1, MinAge: atOnce})
	require.NoError(t, err)
	require.True(t, trimmed.Reservation)
	require.Zero(t, trimmed.Removed)

	k.fill(t, "account-1", 2)
	parked := k.write(t, "account-1", messagestore.Envelope{ID: uuid.New(), Body: messagestore.Raw{Type: "T", Data: []byte(`{}`)}})
	k.fill(t, "account-1", 3)
	of := queuing.Queue{Name: "account:parked:accounts", Category: "account"}
	is, err := k.QueuePark(t.Context(), queuing.Parking{Queue: of, Position: parked.GlobalPosition, Failures: 1, Error: "no"})
	require.NoError(t, err)
	require.True(t, is)
	options := &retention.TrimOptions{Keep: 1, MinAge: atOnce}
	trimmed, err = k.Trim(t.Context(), "account-1", options)
	require.NoError(t, err)
	require.Equal(t, retention.Trimmed{Stream: "account-1", Removed: 2, First: 2, Version: 5, Queue: of.Name}, trimmed)
	_, err = k.QueueChange(t.Context(), queuing.Change{Queue: of, Action: queuing.Drop, Positions: []messagestore.GlobalPosition{parked.GlobalPosition}})
	require.NoError(t, err)
	trimmed, err = k.Trim(t.Context(), "account-1", options)
	require.NoError(t, err)
	require.Equal(t, int64(3), trimmed.Removed)
}

// The version goes on, and the digest by which a reservation tells a duplicate stays.
func TestDeleteLeavesATombstone(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	mark := messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x", "other": "y"}
	k.write(t, "account:command-1+AAA", messagestore.Envelope{Body: messagestore.Raw{Type: "T", Data: []byte(`{}`)}, Metadata: messagestore.Metadata{Local: mark}})
	k.fill(t, "account:command-1+AAA", 2)
	_, err := k.Delete(t.Context(), "account:command-1+AAA", 5, nil)
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	deleted, err := k.Delete(t.Context(), "account:command-1+AAA", 2, &retention.DeleteOptions{Reason: "asked"})
	require.NoError(t, err)
	want := retention.Deleted{Stream: "account:command-1+AAA", Messages: 3, Version: 3, Tombstone: "account:command-1+AAA"}
	require.Equal(t, want, deleted)
	again, err := k.Delete(t.Context(), "account:command-1+AAA", 2, nil)
	require.NoError(t, err)
	want.Already = true
	require.Equal(t, want, again)

	m, err := k.store.Last(t.Context(), "account:command-1+AAA")
	require.NoError(t, err)
	require.True(t, m.IsTombstone())
	require.Equal(t, messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x"}, m.Metadata.Local)
	wrote, err := k.store.WriteInitial(t.Context(), "account:command-1+AAA", messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	require.NoError(t, err)
	require.False(t, wrote)
	_, err = k.store.Write(t.Context(), "account:command-1+AAA", messagestore.StreamExists, messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	require.ErrorContains(t, err, "version conflict: expected an existing stream, found 3 (the stream was deleted)")
	require.Equal(t, messagestore.Version(4), k.write(t, "account:command-1+AAA", messagestore.Raw{Type: "T", Data: []byte(`{}`)}).Version)
	deleted, err = k.Delete(t.Context(), "account:command-1+AAA", messagestore.AnyVersion, nil)
	require.NoError(t, err)
	require.Equal(t, int64(1), deleted.Messages)
	require.Equal(t, messagestore.Version(5), deleted.Version)
	require.Empty(t, k.rules(t))

	_, err = k.Delete(t.Context(), "none-1", messagestore.AnyVersion, nil)
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	_, err = k.Delete(t.Context(), "account:command-1+AAA", messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true})
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// They are all that is left of what was removed.
func TestTheRecordsOfRemovalsStay(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 5)
	for keep := int64(4); keep > 0; keep -= 2 {
		_, err := k.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: keep, MinAge: atOnce})
		require.NoError(t, err)
	}
	k.write(t, "payments:intent+forgotten-1", messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	k.damage(t, "update dibs_messages set type = 'dibs:Forgotten' where stream_name = 'payments:intent+forgotten-1'")
	k.fill(t, "customer:retention-1", 2) // a user's

	for _, records := range []messagestore.StreamName{"account:retention-1", "payments:intent+forgotten-1"} {
		_, err := k.Delete(t.Context(), records, messagestore.AnyVersion, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}

	m, err := k.store.Last(t.Context(), "account:retention-1")
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(1), m.Position)
	_, err = k.Delete(t.Context(), "customer:retention-1", messagestore.AnyVersion, nil)
	require.NoError(t, err)
	require.Empty(t, k.rules(t))
}

func TestVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage string
		want   []string
	}{
		"a message in the middle is gone":    {"DELETE FROM dibs_messages WHERE stream_name = 'account-1' AND position = 1", []string{"dense account-1"}},
		"the first is gone without a record": {"DELETE FROM dibs_messages WHERE stream_name = 'account-1' AND position = 0", []string{"dense account-1"}},
		"messages changed their places":      {"UPDATE dibs_messages SET global_position = 1000 WHERE stream_name = 'account-1' AND position = 1", []string{"order account-1", "sequence "}},
		"a category is another":              {"UPDATE dibs_messages SET category = 'other' WHERE stream_name = 'account-2'", []string{"derived account-2"}},
		"a hash is another":                  {"UPDATE dibs_messages SET group_hash = 1 WHERE stream_name = 'account-2'", []string{"derived account-2"}},
		"a correlation is another":           {"UPDATE dibs_messages SET correlation_category = 'x' WHERE stream_name = 'account-2'", []string{"derived account-2"}},
		"data is no JSON":                    {"UPDATE dibs_messages SET data = '{' WHERE stream_name = 'account-2'", []string{"json account-2"}},
		"the sequence was put back":          {"UPDATE sqlite_sequence SET seq = 1 WHERE name = 'dibs_messages'", []string{"sequence "}},
		"a consumer is ahead":                {`UPDATE dibs_messages SET data = '{"position":99}' WHERE category = 'account:position'`, []string{"consumer account:position-accounts+0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKept(t)
			k.fill(t, "account-1", 3)
			k.fill(t, "account-2", 1)
			k.write(t, "account:position-accounts+0", messagestore.Raw{Type: "Recorded", Data: []byte(`{"position":3}`)})
			require.Empty(t, k.rules(t))
			k.damage(t, c.damage)
			require.ElementsMatch(t, c.want, k.rules(t))
		})
	}
}

func TestVerifyCountsConsumersAndTheirQueues(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 3)
	for _, name := range []string{"accounts", "ledger"} {
		refusing := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Position == 1 {
				return handler.Park(errors.New("it cannot be"))
			}
			return nil
		})
		c, err := consumer.New(k.store, "account", name, refusing, &consumer.Config{Start: consumer.FromStart(), Logger: logger.Silent()})
		require.NoError(t, err)
		require.NoError(t, c.CatchUp(t.Context()))
	}

	k.fill(t, "account-2", 2)
	of := queuing.Queue{Name: "account:parked:accounts", Category: "account"}
	for at, p := range map[messagestore.StreamName]queuing.Parking{"account-1": {Asked: true}, "account-2": {Failures: 7}} {
		last, err := k.store.Last(t.Context(), at)
		require.NoError(t, err)
		p.Queue, p.Position = of, last.GlobalPosition
		is, err := k.QueuePark(t.Context(), p)
		require.NoError(t, err)
		require.True(t, is)
	}
	_, err := k.Delete(t.Context(), "account-2", messagestore.AnyVersion, nil)
	require.NoError(t, err)

	found, err := k.Verify(t.Context(), nil)

	require.NoError(t, err)
	require.Empty(t, found.Violations)
	require.EqualValues(t, 2, found.Checked.Consumers)
	require.EqualValues(t, 2, found.Checked.Queues)
}

func TestVerifyCountsAndBounds(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	for i := range 5 {
		k.fill(t, messagestore.StreamName(fmt.Sprintf("account-%d", i)), 2)
	}
	k.fill(t, "other-1", 1)
	found, err := k.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, retention.Checked{Categories: 2, Streams: 6, Messages: 11}, found.Checked)
	require.NotEmpty(t, found.NotChecked)
	k.damage(t, "UPDATE dibs_messages SET group_hash = 1 WHERE category = 'account'")
	found, err = k.Verify(t.Context(), &retention.VerifyConfig{MaxViolations: 3, Categories: []messagestore.Category{"account"}})
	require.NoError(t, err)
	require.Len(t, found.Violations, 3)
	require.True(t, found.More)
	require.Equal(t, int64(10), found.Checked.Messages)
	_, err = k.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{"none"}})
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	for category, rule := range map[messagestore.Category]string{
		"":          `invalid category "": it is empty`,
		"account-1": `invalid category "account-1": it is the name of a stream: a category has no dash`,
		"a\xff":     `invalid category "a\xff": it is not valid UTF-8, or holds a character U+0000`,
		"a\x00":     `invalid category "a\x00": it is not valid UTF-8, or holds a character U+0000`,
	} {
		_, err = k.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{category}})
		require.ErrorContains(t, err, rule)
	}
}

func TestExamineTellsOfTheFile(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 3)
	state, err := k.Examine(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(3), state.Messages)
	require.Equal(t, "wal", state.JournalMode)
	require.Equal(t, 2, state.Synchronous)
	require.Equal(t, state.Newest, state.Schema)
	require.Positive(t, state.Bytes)
	require.NotEmpty(t, state.Path)
}

func TestOldRequestsAreForgotten(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	const inbox messagestore.Category = "payments:inbox"
	received, undone := messagestore.Raw{Type: "Received", Data: []byte(`{}`)}, messagestore.Raw{Type: "Undone", Data: []byte(`{}`)}
	for _, key := range []string{"old", "young", "undone", "undone just now", "other", "last"} {
		k.write(t, inbox.Stream(key), received)
	}
	k.write(t, inbox.Stream("undone"), undone)
	k.write(t, inbox.Stream("other"), messagestore.Raw{Type: "Other", Data: []byte(`{}`)})
	k.write(t, "payments-1", received)
	k.damage(t, fmt.Sprintf("UPDATE dibs_messages SET time = time - %d WHERE stream_name <> 'payments:inbox-young'", (48*time.Hour).Microseconds()))
	k.write(t, inbox.Stream("undone just now"), undone)
	k.write(t, inbox.Stream("last"), undone)
	k.damage(t, fmt.Sprintf("UPDATE dibs_messages SET time = time - %d WHERE stream_name = 'payments:inbox-last'", (48*time.Hour).Microseconds()))

	for _, category := range []messagestore.Category{"payments", "payments:inbox+refused", "inbox"} {
		_, err := k.Forget(t.Context(), category, 24*time.Hour, nil)
		invalid := (*messagestore.InvalidError)(nil)
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "category", invalid.Field)
	}
	_, err := k.Forget(t.Context(), inbox, 24*time.Hour-1, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "the keys live 24h0m0s, so it is at least that")
	_, err = k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{Reason: " "})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	planned, err := k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, retention.Forgotten{Keys: 2, Messages: 3}, planned)
	var removed []int64
	forgotten, err := k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{Reason: "age", OnProgress: func(n int64) { removed = append(removed, n) }})

	require.NoError(t, err)
	require.Equal(t, planned, forgotten)
	require.Equal(t, []int64{3}, removed)
	for key, version := range map[string]messagestore.Version{"old": -1, "young": 0, "undone": -1, "undone just now": 1, "other": 1, "last": 1} {
		there, err := k.store.Version(t.Context(), inbox.Stream(key))
		require.NoError(t, err)
		require.Equal(t, version, there, key)
	}
	record, err := k.store.Last(t.Context(), "payments:inbox+forgotten-1")
	require.NoError(t, err)
	require.Equal(t, "dibs:Forgotten", record.Type)
	require.Contains(t, string(record.Data), `"streams":2,"messages":3,"keyLifeSeconds":86400,"reason":"age"`)
	again, err := k.Forget(t.Context(), inbox, 24*time.Hour, nil)
	require.NoError(t, err)
	require.Zero(t, again)
	version, err := k.store.Version(t.Context(), "payments:inbox+forgotten-1")
	require.NoError(t, err)
	require.Zero(t, version)
	require.Empty(t, k.rules(t))
}
