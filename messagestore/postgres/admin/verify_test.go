package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/reservation"
)

// A verified is a schema of its own, to be broken and looked at.
type verified struct {
	pool   *pgxpool.Pool
	schema string
	store  *messagestore.Store
	admin  *admin.Admin
}

func newVerified(t *testing.T) *verified {
	t.Helper()
	return newVerifiedOn(pgtest.Schema(t))
}

func newVerifiedOn(pool *pgxpool.Pool, schema string) *verified {
	config := &postgres.Config{Schema: schema}
	return &verified{pool, schema, testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil)), testkit.Must(admin.New(pool, config))}
}

// damage changes tables as a superuser: no trigger fires.
func (v *verified) damage(t *testing.T, statements ...string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), v.pool, func(tx pgx.Tx) error {
		for _, statement := range append([]string{"set local session_replication_role = replica"}, statements...) {
			if _, err := tx.Exec(t.Context(), strings.ReplaceAll(statement, "dibs.", v.schema+".")); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
	require.NoError(t, err)
}

func (v *verified) verify(t *testing.T) *retention.Verification {
	t.Helper()
	return testkit.Do(v.admin.Verify(t.Context(), nil))(t)
}

// A body is any message.
type body struct {
	messageType string
	data        any
}

func (b body) MessageType() string          { return b.messageType }
func (b body) MarshalJSON() ([]byte, error) { return json.Marshal(b.data) }

type fields map[string]any

func (v *verified) write(t *testing.T, stream messagestore.StreamName, bodies ...messagestore.Body) {
	t.Helper()
	testkit.Do(v.store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)
}

func (v *verified) reserve(t *testing.T, source *messagestore.Message, name string) {
	t.Helper()
	require.Equal(t, reservation.Reserved, testkit.Do(testkit.Must(reservation.New(v.store, name, nil)).Reserve(t.Context(), source, "AAA"))(t).Outcome)
}

// healthy writes something of every kind.
func (v *verified) healthy(t *testing.T) {
	t.Helper()
	event := body{"Opened", fields{"n": 1}}
	v.write(t, "account-1", event, event, event)
	v.write(t, "account-2", event)
	v.write(t, "account:command-1", body{"Open", fields{"key": "AAA"}}, body{"Open", fields{"key": "AAA"}})
	first := testkit.Do(v.store.Last(t.Context(), "account:command-1"))(t)
	v.reserve(t, first, "accounts")
	v.reserve(t, first, "billing")
	page := testkit.Do(v.store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: "account", Limit: 1}))(t)
	v.write(t, "account:position-accounts", body{"Started", fields{"start": 0}}, body{"Started", fields{"start": 2, "after": page.Last.ID, "reset": true}})
	v.write(t, "account:position-accounts+0", body{"Recorded", fields{"position": 1}}, body{"Recorded", fields{"position": 3, "after": uuid.New()}}) // and given up
	v.write(t, "account:position-accounts+1", body{"Recorded", fields{"position": 5}})
	v.write(t, "account:position-of+another+client", body{"Recorded", fields{"position": 1000}}, body{"Recorded", fields{"position": 10}})
	v.write(t, "account:note-1", body{"Noted", fields{}})
}

// The body of a function is read as the session reads strings.
func TestVerifyFindsTheSameWhereBackslashesEscape(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	v.healthy(t)
	config := v.pool.Config()
	config.ConnConfig.RuntimeParams["standard_conforming_strings"] = "off"
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()

	found := testkit.Do(testkit.Must(admin.New(pool, &postgres.Config{Schema: v.schema})).Verify(t.Context(), nil))(t)

	require.Equal(t, v.verify(t), found)
}

func TestVerifyCountsWhatItLookedAt(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	empty := v.verify(t)
	require.Empty(t, empty.Violations)
	require.Zero(t, empty.Checked)
	v.healthy(t)

	found := v.verify(t)

	require.Empty(t, found.Violations)
	require.False(t, found.More)
	require.Equal(t, retention.Checked{
		Categories: 6, Streams: 10, Messages: 16, Consumers: 1, Positions: 3, Reservations: 2,
	}, found.Checked)
	require.NotEmpty(t, found.NotChecked)
}

func TestVerifyFindsEveryViolation(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	v.healthy(t)
	require.Empty(t, v.verify(t).Violations)
	v.pool.Close()
	healthy := pgtest.Freeze(t, v.pool.Config().ConnString())
	insert := func(stream string, position, global int, messageType, data string) string {
		return fmt.Sprintf("insert into dibs.messages (category, group_hash, stream_name, position, global_position, type, id, data) values (dibs.category('%[1]s'), dibs.group_hash('%[1]s'), '%[1]s', %[2]d, %[3]d, '%[4]s', gen_random_uuid(), '%[5]s')",
			stream, position, global, messageType, data)
	}
	for name, c := range map[string]struct {
		damage []string
		want   string // the violation, as a person reads it
		more   string // that comes with it, unavoidably
	}{
		"a message in the middle is gone": {
			[]string{"delete from dibs.messages where stream_name = 'account-1' and position = 1"},
			"dense: account-1@2 (3): expected position 1, found position 2", "",
		},
		"a beginning is gone": {
			[]string{"delete from dibs.messages where stream_name = 'account-1' and position = 0"},
			"dense: account-1@1 (2): expected position 0, or a record of what was removed, found position 1", "",
		},
		"a stream is out of order": {
			[]string{
				"update dibs.messages set global_position = 900 where stream_name = 'account-1' and position = 0",
				"select setval('dibs.messages_global_position_seq', 1000)",
			},
			"order: account-1@1 (2): expected a global position after 900, found 2", "",
		},
		"two messages have one position": {
			[]string{"alter table dibs.messages drop constraint messages_stream", insert("account-2", 0, 17, "Opened", "{}"), "select setval('dibs.messages_global_position_seq', 17)"},
			"unique: account-2@0 (17): expected one message at the position, found one more",
			"indexes: expected a valid unique index on stream_name, position, found none",
		},
		"two messages have one id": {
			[]string{"alter table dibs.messages drop constraint messages_id", "update dibs.messages set id = (select id from dibs.messages where global_position = 1) where global_position = 4"},
			"unique: expected one message with the id ", "indexes: expected a valid unique index on id, found none",
		},
		"two messages have one global position": {
			[]string{"update dibs.messages set global_position = 5 where stream_name = 'account-2'"},
			"unique: (5): expected one message at this global position, found 2 messages", "",
		},
		"an index is gone": {
			[]string{"alter table dibs.messages drop constraint messages_pkey"},
			"indexes: expected a valid unique index on category, global_position, found none", "",
		},
		"an index is invalid": {
			[]string{"update pg_index set indisvalid = false where indexrelid = 'dibs.messages_id'::regclass"},
			"indexes: expected a valid unique index on id, found none", "",
		},
		"a category is not the stream's": {
			[]string{"update dibs.messages set category = 'other' where stream_name = 'account-2'"},
			"derived: account-2@0 (4): expected category account, found other", "",
		},
		"a group hash is not the identifier's": {
			[]string{"update dibs.messages set group_hash = 7 where stream_name = 'account-2'"},
			"derived: account-2@0 (4): expected group_hash ", "",
		},
		"a correlation is not the metadata's": {
			[]string{"update dibs.messages set correlation_category = 'x' where stream_name = 'account-2'"},
			"derived: account-2@0 (4): expected correlation_category null, found x", "",
		},
		"the sequence is behind": {
			[]string{"select setval('dibs.messages_global_position_seq', 15)"},
			"sequence: (16): expected a sequence at this global position or after, found a sequence at 15", "",
		},
		"the sequence hands its last position out again": {
			[]string{"select setval('dibs.messages_global_position_seq', 16, false)"},
			"sequence: (16): expected a sequence at this global position or after, found a sequence at 16", "",
		},
		"the sequence keeps positions back": {
			[]string{"alter sequence dibs.messages_global_position_seq cache 20"},
			"found increment 1, cache 20, no cycle", "",
		},
		"an erased stream begins again": {
			[]string{"insert into dibs.erased_streams (digest, version) values (sha256('account-2'), 6)"},
			"erased: account-2@0 (4): expected no message: the stream was erased, found position 0", "erased: expected a tombstone at position 6 ",
		},
		"a second copy in a reservation's stream": {
			[]string{
				`insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, global_position, type, id, data, metadata)
				select category, group_hash, correlation_category, stream_name, 1, 17, type, gen_random_uuid(), data, metadata from dibs.messages where stream_name = 'account:command+reservation+accounts-1+AAA'`,
				"select setval('dibs.messages_global_position_seq', 17)",
			},
			"reservation: account:command+reservation+accounts-1+AAA@1 (17): expected one winner for the key AAA of accounts, at position 0, found one more in the stream", "",
		},
		"a second copy in another stream": {
			[]string{
				`insert into dibs.messages (category, group_hash, correlation_category, stream_name, position, global_position, type, id, data, metadata)
				select category, dibs.group_hash('account:command+reservation+accounts-9'), correlation_category, 'account:command+reservation+accounts-9', 0, 17, type, gen_random_uuid(), data, metadata from dibs.messages where stream_name = 'account:command+reservation+accounts-1+AAA'`,
				"select setval('dibs.messages_global_position_seq', 17)",
			},
			"reservation: account:command+reservation+accounts-9@0 (17): expected one winner for the key AAA of accounts, at position 0, found one in another stream", "",
		},
		"another message in a reservation's place": {
			[]string{insert("account:command+reservation+accounts-9+AAA", 0, 17, "Open", `{}`), "select setval('dibs.messages_global_position_seq', 17)"},
			"reservation: account:command+reservation+accounts-9+AAA@0 (17): expected a reservation by accounts, found a message that is none", "",
		},
		"a copy of something else": {
			[]string{"update dibs.messages set id = gen_random_uuid() where stream_name = 'account:command+reservation+accounts-1+AAA'"},
			"reservation: account:command+reservation+accounts-1+AAA@0 (7): expected an id derived from account:command-1@1, found ", "",
		},
		"a consumer is ahead": {
			[]string{`update dibs.messages set data = '{"position":6}' where stream_name = 'account:position-accounts+1'`},
			"consumer: account:position-accounts+1@0 (13): expected a position not ahead of account, whose last message is at 4, found 6", "",
		},
		"a consumer of nothing is ahead": {
			[]string{insert("none:position-c", 0, 17, "Started", `{"start":3}`), "select setval('dibs.messages_global_position_seq', 17)"},
			"consumer: none:position-c@0 (17): expected a position not ahead of none, which has no message, found 3", "",
		},
		"a position is of another history": {
			[]string{`update dibs.messages set data = '{"position":5,"after":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}' where stream_name = 'account:position-accounts+1'`},
			"consumer: account:position-accounts+1@0 (13): expected a position right behind message 0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f, found message ", "",
		},
		"a generation begins in another history": {
			[]string{`update dibs.messages set data = '{"start":2,"reset":true,"after":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}' where stream_name = 'account:position-accounts' and position = 1`},
			"consumer: account:position-accounts@1 (10): expected a position right behind message 0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f, found message ", "",
		},
		"a position went back": {
			[]string{`update dibs.messages set data = '{"position":0}' where stream_name = 'account:position-accounts+0' and position = 1`},
			"consumer: account:position-accounts+0@1 (12): expected a position not before 1, found 0", "",
		},
		"a position is before its generation": {
			[]string{`update dibs.messages set data = '{"position":1}' where stream_name = 'account:position-accounts+1'`},
			"consumer: account:position-accounts+1@0 (13): expected a position not before 2, found 1", "",
		},
		"a position is none": {
			[]string{`update dibs.messages set data = '{"position":"\u0000"}' where stream_name = 'account:position-accounts+1'`},
			"consumer: account:position-accounts+1@0 (13): expected a Recorded with a position, found Recorded", "json: ",
		},
		"a ledger has no start": {
			[]string{`update dibs.messages set data = '{"reset":true}' where stream_name = 'account:position-accounts' and position = 1`},
			"ledger: account:position-accounts@1 (10): expected a Started with a start, found Started", "",
		},
		"a generation skips messages": {
			[]string{`update dibs.messages set data = '{"start":2}' where stream_name = 'account:position-accounts' and position = 1`},
			"ledger: account:position-accounts@1 (10): expected the start of the entry before, 0, found 2", "",
		},
		"a pause moves a consumer": {
			[]string{insert("account:position-accounts", 2, 17, "Started", `{"start":3,"reset":true,"paused":true,"of":1}`), "select setval('dibs.messages_global_position_seq', 17)"},
			"ledger: account:position-accounts@2 (17): expected the start of the entry before, 2, found 3", "",
		},
		"a pause is of a generation to come": {
			[]string{insert("account:position-accounts", 2, 17, "Started", `{"start":2,"reset":true,"paused":true,"of":2}`), "select setval('dibs.messages_global_position_seq', 17)"},
			"ledger: account:position-accounts@2 (17): expected a generation before this entry, which it continues, found 2", "",
		},
		"a position of a paused consumer is of another history": {
			[]string{
				insert("account:position-accounts", 2, 17, "Started", `{"start":2,"reset":true,"paused":true,"of":1}`), "select setval('dibs.messages_global_position_seq', 17)",
				`update dibs.messages set data = '{"position":5,"after":"0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f"}' where stream_name = 'account:position-accounts+1'`,
			},
			"consumer: account:position-accounts+1@0 (13): expected a position right behind message 0190b2c8-2f5e-7cc3-98c4-dc0c0c07398f, found message ", "",
		},
		"a generation never started": {
			[]string{insert("account:position-accounts+2", 0, 17, "Recorded", `{"position":5}`), "select setval('dibs.messages_global_position_seq', 17)"},
			"ledger: account:position-accounts+2@0 (17): expected a generation that the ledger starts, up to 1, found generation 2", "",
		},
		"a ledger is gone": {
			[]string{"delete from dibs.messages where stream_name = 'account:position-accounts'"},
			"ledger: account:position-accounts+0@0 (11): expected a ledger that starts generation 0, found none", "ledger: account:position-accounts+",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifiedOn(pgtest.Connect(t, healthy(t)), v.schema)

			v.damage(t, c.damage...)

			found := v.verify(t)
			var wanted bool
			for _, violation := range found.Violations {
				text := violation.String()
				switch {
				case strings.Contains(text, c.want):
					wanted = true
				case name == "a category is not the stream's": // and so much else
				case c.more == "" || !strings.HasPrefix(text, c.more):
					require.Fail(t, "another violation", text)
				}
			}
			require.True(t, wanted, "%s, and not %v", c.want, found.Violations)
			require.NotZero(t, found.Checked.Messages)
		})
	}
}

// An index that misses a row answers as if the row were not there: only the table
// tells.
func TestVerifyFindsWhatAnIndexMisses(t *testing.T) {
	t.Parallel()
	for index, want := range map[string]string{
		"messages_id":     "indexes: expected 17 messages by the index on id, found 16 messages",
		"messages_stream": "indexes: account: expected 5 messages by the index on stream and position, found 4 messages",
		"messages_pkey":   "indexes: account: expected 5 messages by the index on category and global position, found 4 messages",
	} {
		t.Run(index, func(t *testing.T) {
			t.Parallel()
			v := newVerified(t)
			testkit.Do(v.pool.Exec(t.Context(), "create extension amcheck"))(t)
			v.healthy(t)
			set := "update pg_index set indisready = %t, indisvalid = %t where indexrelid = 'dibs." + index + "'::regclass"
			v.damage(t, fmt.Sprintf(set, false, false))
			v.write(t, "account-3", body{"Opened", fields{}})
			v.damage(t, fmt.Sprintf(set, true, true))

			found := v.verify(t)

			require.Contains(t, texts(found), want)
			found = testkit.Do(v.admin.Verify(t.Context(), &retention.VerifyConfig{Amcheck: true}))(t)
			require.Contains(t, strings.Join(texts(found), "\n"), "indexes: expected an index "+index+" as amcheck wants it, found heap tuple")
		})
	}
}

func texts(found *retention.Verification) []string {
	all := make([]string, len(found.Violations))
	for i, violation := range found.Violations {
		all[i] = violation.String()
	}
	return all
}

// Messages that were removed on record are missing rightly; others are not.
func TestVerifyKnowsWhatWasRemovedOnRecord(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	v := &verified{pool, "dibs", testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil))}
	event := body{"Opened", fields{}}
	for n := range 6 {
		v.write(t, messagestore.Category("account").Stream(fmt.Sprint(n)), event, event, event, event, event)
	}
	for _, keep := range []int64{4, 2} {
		testkit.Do(v.admin.Trim(t.Context(), "account-0", &retention.TrimOptions{Keep: keep, MinAge: retention.AnyAge}))(t)
	}
	for stream, erase := range map[messagestore.StreamName]bool{"account-1": false, "account-2": true, "account-3": true, "account-4": true} {
		testkit.Do(v.admin.Delete(t.Context(), stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: erase}))(t)
	}
	v.write(t, "account-1", event)
	v.write(t, "account-3", event)
	testkit.Do(pool.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::varchar, 'account-4', 'Opened', '{}')"))(t)

	found := v.verify(t)
	require.Empty(t, found.Violations)
	require.Equal(t, int64(1), found.Checked.Erased)

	for _, c := range []struct{ damage, mend, want string }{
		{
			"update dibs.messages set data = replace(data::text, '\"upTo\":2', '\"upTo\":1')::json where type = 'dibs:Trimmed'",
			"update dibs.messages set data = replace(data::text, '\"upTo\":1', '\"upTo\":2')::json where type = 'dibs:Trimmed' and position = 1",
			"dense: account-0@3 (4): expected position 0, or a record of what was removed, found position 3",
		},
		{
			"update dibs.messages set type = 'Stone' where stream_name = 'account-1' and type = 'dibs:Tombstone'",
			"update dibs.messages set type = 'dibs:Tombstone' where stream_name = 'account-1' and type = 'Stone'",
			"dense: account-1@5 ",
		},
		{
			"update dibs.erased_streams set version = version + 1",
			"update dibs.erased_streams set version = version - 1",
			"erased: expected a tombstone at position 6 of the stream named by ",
		},
	} {
		v.damage(t, c.damage)
		require.Contains(t, strings.Join(texts(v.verify(t)), "\n"), c.want)
		v.damage(t, c.mend)
		require.Empty(t, v.verify(t).Violations, c.want)
	}
}

func TestVerifyListsNoMoreViolationsThanAsked(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	v.healthy(t)
	v.damage(t, "delete from dibs.messages where position = 0 and category = 'account'", "delete from dibs.messages where stream_name = 'account-1' and position = 1")
	v.write(t, "account-3", body{"Opened", fields{}}, body{"Opened", fields{}})
	v.damage(t, "delete from dibs.messages where stream_name = 'account-3' and position = 0")

	found := testkit.Do(v.admin.Verify(t.Context(), &retention.VerifyConfig{MaxViolations: 1, Categories: []messagestore.Category{"account"}}))(t)

	require.Len(t, found.Violations, 1)
	require.True(t, found.More)
	require.Equal(t, int64(1), found.Checked.Categories)
	all := testkit.Do(v.admin.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{"account"}}))(t)
	require.Len(t, all.Violations, 2)
	require.False(t, all.More)
}

func TestVerifyIsForMembersOfDibsAdmin(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.SchemaInShared(t) // what all tests write takes long to verify
	config := &postgres.Config{Schema: schema}
	testkit.Do(testkit.Must(admin.New(pgtest.PoolAs(t, "dibs_admin"), config)).Verify(t.Context(), nil))(t)
	for _, role := range []string{"dibs_reader", "dibs_writer"} {
		requireDenied(t, testkit.ErrorOf(testkit.Must(admin.New(pgtest.PoolAs(t, role), config)).Verify(t.Context(), nil)))
	}
}

// Each part sees one moment, even if messages are written between the parts.
func TestVerifySeesOneMoment(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	v.healthy(t)
	type progress struct {
		category    messagestore.Category
		done, total int64
	}
	var told []progress

	found := testkit.Do(v.admin.Verify(t.Context(), &retention.VerifyConfig{OnProgress: func(category messagestore.Category, done, total int64) {
		told = append(told, progress{category, done, total})
		v.write(t, "account-1", body{"Opened", fields{}})
		v.write(t, messagestore.Category("new").Stream(fmt.Sprint(len(told))), body{"Opened", fields{}})
	}}))(t)

	require.Empty(t, found.Violations)
	require.Equal(t, int64(16), found.Checked.Messages)
	require.Len(t, told, 7)
	require.Equal(t, progress{"account", 16, 32}, told[1])
	require.Equal(t, int64(30), v.verify(t).Checked.Messages, "and later what was written meanwhile")
}

func TestVerifyReadsThroughAPoolerAndFromAStandby(t *testing.T) {
	t.Parallel()
	t.Run("pooler", func(t *testing.T) {
		t.Parallel()
		requireNoViolation(t, pgtest.Connect(t, pgtest.PgBouncer(t, pgtest.Migrated(t)).URL))
	})
	t.Run("standby", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Server(t)
		require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
		requireNoViolation(t, connect(t, pgtest.Standby(t, url)))
	})
}

func requireNoViolation(t *testing.T, db postgres.DB) {
	t.Helper()
	require.Empty(t, testkit.Do(testkit.Must(admin.New(db, nil)).Verify(t.Context(), nil))(t).Violations)
}

func TestVerifyRefusesWhatItCannotWorkWith(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	tx := testkit.Do(pool.Begin(t.Context()))(t)
	defer tx.Rollback(contextOf(t)) //nolint:errcheck // nothing was done in it

	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(admin.New(tx, nil)).Verify(t.Context(), nil)), messagestore.ErrInvalid)
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(admin.New(pool, nil)).Verify(t.Context(), &retention.VerifyConfig{MaxViolations: 100_001})), messagestore.ErrInvalid)
	_, err := testkit.Must(admin.New(pool, nil)).Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{"account-1"}})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = testkit.Must(admin.New(pool, nil)).Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{storetest.Category(t)}})
	require.ErrorIs(t, err, messagestore.ErrNotFound, "a category without a message was not looked at")
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(admin.New(pgtest.Connect(t, pgtest.Database(t)), nil)).Verify(t.Context(), nil)), postgres.ErrNotMigrated)
	requireDenied(t, testkit.ErrorOf(testkit.Must(admin.New(pgtest.PoolAs(t, "dibs_reader"), nil)).Verify(t.Context(), nil)))
}

// A writer that calls append_one or append_each itself can store JSON that jsonb cannot hold. Then
// the view of message-db's clients fails, and verify names the message.
func TestVerifyNamesDataThatJsonbCannotHold(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	v.write(t, "fit-1", body{"T", fields{"a": "\u00e9", "b": strings.Repeat("x", 2000), "c": 1e300}})
	for i, data := range []string{`{"a":"\u0000"}`, `{"a":"\ud800"}`, `{"a":1e200000}`, `{"a":"` + strings.Repeat("x", 2000) + `","b":1` + strings.Repeat("0", 140_000) + `}`} {
		testkit.Do(v.pool.Exec(t.Context(), "select "+v.schema+".append_one($1, -1, gen_random_uuid(), 'T', $2::text::json, null)", fmt.Sprintf("unfit-%d", i), data))(t)
	}
	testkit.Do(v.pool.Exec(t.Context(), "select "+v.schema+`.append_one('unfit-5', -1, gen_random_uuid(), 'T', '{}', '{"properties":{"a":1e200000}}')`))(t)

	var found []string
	for _, violation := range v.verify(t).Violations {
		require.Equal(t, "json", violation.Rule)
		require.Equal(t, messagestore.Category("unfit"), violation.Category)
		found = append(found, fmt.Sprintf("%s@%d %s", violation.Stream, violation.Position, violation.Found))
	}
	require.ElementsMatch(t, []string{
		"unfit-0@0 data that cannot be cast to it", "unfit-1@0 data that cannot be cast to it", "unfit-2@0 data that cannot be cast to it",
		"unfit-3@0 data that cannot be cast to it", "unfit-5@0 metadata that cannot be cast to it",
	}, found)
}

// An adoption takes gaps over, and there may be more of them than are listed.
func TestVerifyListsTheLatestViolationsFirst(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	for i := range 8 {
		v.write(t, messagestore.StreamName(fmt.Sprintf("gap-%d", i)), body{"T", fields{}}, body{"T", fields{}}, body{"T", fields{}})
	}
	v.damage(t, "delete from dibs.messages where position = 1", "delete from dibs.messages where stream_name in ('gap-0', 'gap-7') and position = 0")
	found := testkit.Do(v.admin.Verify(t.Context(), &retention.VerifyConfig{MaxViolations: 1}))(t)
	require.True(t, found.More)
	var streams []messagestore.StreamName
	for _, violation := range found.Violations {
		streams = append(streams, violation.Stream)
	}
	require.Equal(t, []messagestore.StreamName{"gap-6", "gap-7"}, streams)
}

// If a transaction runs without triggers, its staged messages are never appended.
func TestVerifyFindsWhatWasStagedAndNotAppended(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	v := &verified{pool, "dibs", testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), testkit.Must(admin.New(pool, nil))}
	testkit.Do(pool.Exec(t.Context(), "set session_replication_role = replica; "+
		"insert into dibs.staged (xact, stream, expected, id, type, data) "+
		"values ('1', 'mail-a', -2, 'ffffffff-0000-4000-8000-000000000001', 'Send', '{}'); reset session_replication_role"))(t)

	found := testkit.Do(v.admin.Verify(t.Context(), nil))(t)

	require.Len(t, found.Violations, 1)
	require.Contains(t, found.Violations[0].String(), "message ffffffff-0000-4000-8000-000000000001: appended by its transaction, found staged")
}

// Everything that may happen to a store happens at once, and no alarm is raised.
func TestVerifyRaisesNoFalseAlarmUnderLoad(t *testing.T) {
	t.Parallel()
	const streams = 20
	rounds, messages := 3, int64(300)
	if testkit.Long() {
		rounds, messages = 12, 1000
	}
	url := pgtest.Migrated(t)
	pgtest.WaitForLocks(t, url, "dibs")
	pool := pgtest.Connect(t, url)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	adm := testkit.Must(admin.New(pool, nil))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	failures := make(chan error, 100)
	repeat := func(what string, f func(ctx context.Context, n int) error) {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// Each call ends by itself, so that none is cut off half-way.
				if err := f(context.WithoutCancel(ctx), n); err != nil && ctx.Err() == nil {
					failures <- fmt.Errorf("%s: %w", what, err)
					return
				}
			}
		})
	}
	account := func() messagestore.StreamName {
		return messagestore.Category("account").Stream(fmt.Sprint(rand.IntN(streams)))
	}
	event := body{"Happened", fields{"n": 1}}

	for range 2 {
		repeat("write", func(ctx context.Context, _ int) error {
			_, err := store.Write(ctx, account(), messagestore.AnyVersion, event, event)
			return err
		})
	}
	repeat("roll back", func(ctx context.Context, _ int) error {
		return rollBack(ctx, pool, account(), event)
	})
	repeat("write as a client of message-db", func(ctx context.Context, _ int) error {
		_, err := pool.Exec(ctx, "select message_store.write_message(gen_random_uuid()::varchar, $1::varchar, 'Happened', '{}')", string(account()))
		return err
	})
	repeat("trim", func(ctx context.Context, _ int) error {
		for _, stream := range []messagestore.StreamName{account(), "account:position-watcher+0"} {
			if _, err := adm.Trim(ctx, stream, &retention.TrimOptions{Keep: 3, MinAge: retention.AnyAge}); err != nil && !errors.Is(err, messagestore.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	repeat("delete", func(ctx context.Context, n int) error {
		_, err := adm.Delete(ctx, account(), messagestore.AnyVersion, &retention.DeleteOptions{EraseName: n%2 == 0})
		if errors.Is(err, messagestore.ErrNotFound) {
			err = nil
		}
		return err
	})
	reserver := testkit.Must(reservation.New(store, "accounts", nil))
	repeat("reserve", func(ctx context.Context, n int) error {
		stream := messagestore.Category("account:command").Stream(fmt.Sprint(n % streams))
		if _, err := store.Write(ctx, stream, messagestore.AnyVersion, event); err != nil {
			return err
		}
		source, err := store.Last(ctx, stream)
		if err != nil {
			return err
		}
		_, err = reserver.Reserve(ctx, source, fmt.Sprint(n/2))
		return err
	})
	handled := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if m.GlobalPosition%50 == 0 {
			return errors.New("no")
		}
		return nil
	})
	watcher := testkit.Must(consumer.New(store, "account", "watcher", handled, &consumer.Config{
		CheckpointMessages: 5, Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
	}))
	load.Go(func() {
		if err := watcher.Run(ctx); err != nil {
			failures <- fmt.Errorf("consume: %w", err)
		}
	})

	var found *retention.Verification
	for range rounds {
		found = testkit.Do(adm.Verify(t.Context(), nil))(t)
		require.Empty(t, found.Violations)
	}
	testkit.Await(t, "the load has made something of every kind, or failed", func() (bool, any) {
		found = testkit.Do(adm.Verify(t.Context(), nil))(t)
		require.Empty(t, found.Violations)
		c := found.Checked
		return c.Messages > messages && c.Consumers > 0 && c.Positions > 0 && c.Reservations > 0 && c.Queues > 0 && c.Erased > 0 || len(failures) > 0, c
	})
	stop()
	testkit.Receive(t, "the end of the load", over(&load))
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}

	found = testkit.Do(adm.Verify(t.Context(), nil))(t)
	require.Empty(t, found.Violations)
	t.Logf("looked at %+v", found.Checked)
}

func rollBack(ctx context.Context, pool *pgxpool.Pool, stream messagestore.StreamName, event messagestore.Body) error {
	errRollBack := errors.New("rolled back")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(ctx, stream, messagestore.AnyVersion, event); err != nil {
			return err
		}
		return errRollBack
	})
	if errors.Is(err, errRollBack) {
		return nil
	}
	return err
}
