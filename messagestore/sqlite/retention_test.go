package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
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
	driver := testkit.Do(sqlite.Open(t.Context(), path, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	db := testkit.Do(sql.Open("sqlite", path))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &kept{driver, testkit.Must(messagestore.New(driver, nil)), db}
}

func (k *kept) fill(t *testing.T, stream messagestore.StreamName, n int) {
	t.Helper()
	for range n {
		k.write(t, stream, messagestore.Raw{Type: "T", Data: []byte(`{}`)})
	}
}

func (k *kept) write(t *testing.T, stream messagestore.StreamName, bodies ...messagestore.Body) {
	t.Helper()
	testkit.Do(k.store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)
}

func (k *kept) damage(t *testing.T, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		require.NoError(t, testkit.ErrorOf(k.db.ExecContext(t.Context(), statement)), statement)
	}
}

func (k *kept) rules(t *testing.T) (rules []string) {
	t.Helper()
	found := testkit.Do(k.Verify(t.Context(), nil))(t)
	for _, v := range found.Violations {
		rules = append(rules, v.Rule+" "+string(v.Stream))
	}
	return rules
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
		c := testkit.Do(consumer.New(k.store, "account", name, refusing, &consumer.Config{Start: consumer.FromStart(), Logger: logger.Silent()}))(t)
		require.NoError(t, c.CatchUp(t.Context()))
	}

	k.fill(t, "account-2", 2)
	of := queuing.Queue{Name: "account:parked:accounts", Category: "account"}
	for at, p := range map[messagestore.StreamName]queuing.Parking{"account-1": {Asked: true}, "account-2": {Failures: 7}} {
		last := testkit.Do(k.store.Last(t.Context(), at))(t)
		p.Queue, p.Position = of, last.GlobalPosition
		require.True(t, testkit.Do(k.QueuePark(t.Context(), p))(t))
	}
	testkit.Do(k.Delete(t.Context(), "account-2", messagestore.AnyVersion, nil))(t)

	found := testkit.Do(k.Verify(t.Context(), nil))(t)

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
	found := testkit.Do(k.Verify(t.Context(), nil))(t)
	require.Equal(t, retention.Checked{Categories: 2, Streams: 6, Messages: 11}, found.Checked)
	require.NotEmpty(t, found.NotChecked)
	k.damage(t, "UPDATE dibs_messages SET group_hash = 1 WHERE category = 'account'")
	found = testkit.Do(k.Verify(t.Context(), &retention.VerifyConfig{MaxViolations: 3, Categories: []messagestore.Category{"account"}}))(t)
	require.Len(t, found.Violations, 3)
	require.True(t, found.More)
	require.Equal(t, int64(10), found.Checked.Messages)
	require.ErrorIs(t, testkit.ErrorOf(k.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{"none"}})), messagestore.ErrNotFound)
	for category, rule := range map[messagestore.Category]string{
		"":          `invalid category "": must not be empty`,
		"account-1": `invalid category "account-1": must be a category, without a dash, and is the name of a stream`,
		"a\xff":     `invalid category "a\xff": must be valid UTF-8 without U+0000`,
		"a\x00":     `invalid category "a\x00": must be valid UTF-8 without U+0000`,
	} {
		require.ErrorContains(t, testkit.ErrorOf(k.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{category}})), rule)
	}
}

func TestExamineTellsOfTheFile(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.fill(t, "account-1", 3)
	state := testkit.Do(k.Examine(t.Context()))(t)
	require.Equal(t, int64(3), state.Messages)
	require.Equal(t, "wal", state.JournalMode)
	require.Equal(t, 2, state.Synchronous)
	require.Equal(t, state.Newest, state.Schema)
	require.Positive(t, state.Bytes)
	require.NotEmpty(t, state.Path)
}
