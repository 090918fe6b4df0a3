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
	driver := must.Do(sqlite.Open(t.Context(), path, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	db := must.Do(sql.Open("sqlite", path))(t)
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
	written := must.Do(k.store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)
	return written
}

func (k *kept) damage(t *testing.T, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		require.NoError(t, must.ErrorOf(k.db.ExecContext(t.Context(), statement)), statement)
	}
}

func (k *kept) rules(t *testing.T) (rules []string) {
	t.Helper()
	found := must.Do(k.Verify(t.Context(), nil))(t)
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
	trimmed := must.Do(k.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: 3}))(t)
	require.Equal(t, retention.Trimmed{Stream: "account-1", First: 0, Version: 9, Recent: true}, trimmed)

	options := &retention.TrimOptions{Keep: 3, MinAge: atOnce, Reason: "old", DryRun: true}
	want := retention.Trimmed{Stream: "account-1", Removed: 7, First: 7, Version: 9}
	trimmed = must.Do(k.Trim(t.Context(), "account-1", options))(t)
	require.Equal(t, want, trimmed)
	options.DryRun = false
	trimmed = must.Do(k.Trim(t.Context(), "account-1", options))(t)
	require.Equal(t, want, trimmed)
	m := must.Do(k.store.Last(t.Context(), "account:retention-1"))(t)
	require.JSONEq(t, `{"stream":"account-1","removed":7,"from":0,"upTo":6,"reason":"old"}`, string(m.Data))

	written := k.write(t, "account-1", messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	require.Equal(t, messagestore.Version(10), written.Version)
	trimmed = must.Do(k.Trim(t.Context(), "account-1", &retention.TrimOptions{Before: time.Now().Add(time.Hour), MinAge: atOnce}))(t)
	require.Equal(t, messagestore.Version(10), trimmed.First, "the last stays")
	require.Empty(t, k.rules(t))
	trimmed = must.Do(k.Trim(t.Context(), "none-1", options))(t)
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
	trimmed := must.Do(k.Trim(t.Context(), "log-1", &retention.TrimOptions{Keep: 1, MinAge: atOnce, OnProgress: func(n int64) { steps = append(steps, n) }}))(t)
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
	trimmed := must.Do(k.Trim(t.Context(), "account:command-1+AAA", &retention.TrimOptions{Keep: 1, MinAge: atOnce}))(t)
	require.True(t, trimmed.Reservation)
	require.Zero(t, trimmed.Removed)

	k.fill(t, "account-1", 2)
	parked := k.write(t, "account-1", messagestore.Envelope{ID: uuid.New(), Body: messagestore.Raw{Type: "T", Data: []byte(`{}`)}})
	k.fill(t, "account-1", 3)
	of := queuing.Queue{Name: "account:parked:accounts", Category: "account"}
	require.True(t, must.Do(k.QueuePark(t.Context(), queuing.Parking{Queue: of, Position: parked.GlobalPosition, Failures: 1, Error: "no"}))(t))
	options := &retention.TrimOptions{Keep: 1, MinAge: atOnce}
	trimmed = must.Do(k.Trim(t.Context(), "account-1", options))(t)
	require.Equal(t, retention.Trimmed{Stream: "account-1", Removed: 2, First: 2, Version: 5, Queue: of.Name}, trimmed)
	must.Do(k.QueueChange(t.Context(), queuing.Change{Queue: of, Action: queuing.Drop, Positions: []messagestore.GlobalPosition{parked.GlobalPosition}}))(t)
	trimmed = must.Do(k.Trim(t.Context(), "account-1", options))(t)
	require.Equal(t, int64(3), trimmed.Removed)
}

// The version goes on, and the digest by which a reservation tells a duplicate stays.
func TestDeleteLeavesATombstone(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	mark := messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x", "other": "y"}
	k.write(t, "account:command-1+AAA", messagestore.Envelope{Body: messagestore.Raw{Type: "T", Data: []byte(`{}`)}, Metadata: messagestore.Metadata{Local: mark}})
	k.fill(t, "account:command-1+AAA", 2)
	require.ErrorIs(t, must.ErrorOf(k.Delete(t.Context(), "account:command-1+AAA", 5, nil)), messagestore.ErrVersionConflict)
	deleted := must.Do(k.Delete(t.Context(), "account:command-1+AAA", 2, &retention.DeleteOptions{Reason: "asked"}))(t)
	want := retention.Deleted{Stream: "account:command-1+AAA", Messages: 3, Version: 3, Tombstone: "account:command-1+AAA"}
	require.Equal(t, want, deleted)
	again := must.Do(k.Delete(t.Context(), "account:command-1+AAA", 2, nil))(t)
	want.Already = true
	require.Equal(t, want, again)

	m := must.Do(k.store.Last(t.Context(), "account:command-1+AAA"))(t)
	require.True(t, m.IsTombstone())
	require.Equal(t, messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x"}, m.Metadata.Local)
	require.False(t, must.Do(k.store.WriteInitial(t.Context(), "account:command-1+AAA", messagestore.Raw{Type: "T", Data: []byte(`{}`)}))(t))
	_, err := k.store.Write(t.Context(), "account:command-1+AAA", messagestore.StreamExists, messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	require.ErrorContains(t, err, "version conflict: expected an existing stream, found 3 (the stream was deleted)")
	require.Equal(t, messagestore.Version(4), k.write(t, "account:command-1+AAA", messagestore.Raw{Type: "T", Data: []byte(`{}`)}).Version)
	deleted = must.Do(k.Delete(t.Context(), "account:command-1+AAA", messagestore.AnyVersion, nil))(t)
	require.Equal(t, int64(1), deleted.Messages)
	require.Equal(t, messagestore.Version(5), deleted.Version)
	require.Empty(t, k.rules(t))

	require.ErrorIs(t, must.ErrorOf(k.Delete(t.Context(), "none-1", messagestore.AnyVersion, nil)), messagestore.ErrNotFound)
	_, err = k.Delete(t.Context(), "account:command-1+AAA", messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true})
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// They are all that is left of what was removed.
func TestTheRecordsOfRemovalsStay(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 5)
	for keep := int64(4); keep > 0; keep -= 2 {
		must.Do(k.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: keep, MinAge: atOnce}))(t)
	}
	k.write(t, "payments:intent+forgotten-1", messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	k.damage(t, "update dibs_messages set type = 'dibs:Forgotten' where stream_name = 'payments:intent+forgotten-1'")
	k.fill(t, "customer:retention-1", 2) // a user's

	for _, records := range []messagestore.StreamName{"account:retention-1", "payments:intent+forgotten-1"} {
		require.ErrorIs(t, must.ErrorOf(k.Delete(t.Context(), records, messagestore.AnyVersion, nil)), messagestore.ErrInvalid)
	}

	require.Equal(t, messagestore.Version(1), must.Do(k.store.Last(t.Context(), "account:retention-1"))(t).Position)
	must.Do(k.Delete(t.Context(), "customer:retention-1", messagestore.AnyVersion, nil))(t)
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
		c := must.Do(consumer.New(k.store, "account", name, refusing, &consumer.Config{Start: consumer.FromStart(), Logger: logger.Silent()}))(t)
		require.NoError(t, c.CatchUp(t.Context()))
	}

	k.fill(t, "account-2", 2)
	of := queuing.Queue{Name: "account:parked:accounts", Category: "account"}
	for at, p := range map[messagestore.StreamName]queuing.Parking{"account-1": {Asked: true}, "account-2": {Failures: 7}} {
		last := must.Do(k.store.Last(t.Context(), at))(t)
		p.Queue, p.Position = of, last.GlobalPosition
		require.True(t, must.Do(k.QueuePark(t.Context(), p))(t))
	}
	must.Do(k.Delete(t.Context(), "account-2", messagestore.AnyVersion, nil))(t)

	found := must.Do(k.Verify(t.Context(), nil))(t)

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
	found := must.Do(k.Verify(t.Context(), nil))(t)
	require.Equal(t, retention.Checked{Categories: 2, Streams: 6, Messages: 11}, found.Checked)
	require.NotEmpty(t, found.NotChecked)
	k.damage(t, "UPDATE dibs_messages SET group_hash = 1 WHERE category = 'account'")
	found = must.Do(k.Verify(t.Context(), &retention.VerifyConfig{MaxViolations: 3, Categories: []messagestore.Category{"account"}}))(t)
	require.Len(t, found.Violations, 3)
	require.True(t, found.More)
	require.Equal(t, int64(10), found.Checked.Messages)
	require.ErrorIs(t, must.ErrorOf(k.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{"none"}})), messagestore.ErrNotFound)
	for category, rule := range map[messagestore.Category]string{
		"":          `invalid category "": it is empty`,
		"account-1": `invalid category "account-1": it is the name of a stream: a category has no dash`,
		"a\xff":     `invalid category "a\xff": it is not valid UTF-8, or holds a character U+0000`,
		"a\x00":     `invalid category "a\x00": it is not valid UTF-8, or holds a character U+0000`,
	} {
		require.ErrorContains(t, must.ErrorOf(k.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{category}})), rule)
	}
}

func TestExamineTellsOfTheFile(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 3)
	state := must.Do(k.Examine(t.Context()))(t)
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
	require.ErrorIs(t, must.ErrorOf(k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{Reason: " "})), messagestore.ErrInvalid)
	planned := must.Do(k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{DryRun: true}))(t)
	require.Equal(t, retention.Forgotten{Keys: 2, Messages: 3}, planned)
	var removed []int64
	forgotten := must.Do(k.Forget(t.Context(), inbox, 24*time.Hour, &retention.ForgetOptions{Reason: "age", OnProgress: func(n int64) { removed = append(removed, n) }}))(t)

	require.Equal(t, planned, forgotten)
	require.Equal(t, []int64{3}, removed)
	for key, version := range map[string]messagestore.Version{"old": -1, "young": 0, "undone": -1, "undone just now": 1, "other": 1, "last": 1} {
		require.Equal(t, version, must.Do(k.store.Version(t.Context(), inbox.Stream(key)))(t), key)
	}
	record := must.Do(k.store.Last(t.Context(), "payments:inbox+forgotten-1"))(t)
	require.Equal(t, "dibs:Forgotten", record.Type)
	require.Contains(t, string(record.Data), `"streams":2,"messages":3,"keyLifeSeconds":86400,"reason":"age"`)
	require.Zero(t, must.Do(k.Forget(t.Context(), inbox, 24*time.Hour, nil))(t))
	require.Zero(t, must.Do(k.store.Version(t.Context(), "payments:inbox+forgotten-1"))(t))
	require.Empty(t, k.rules(t))
}
