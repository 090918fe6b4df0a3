package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// An archive is a store, a category in it, and its administrator.
type archive struct {
	*messagestore.Store
	pool     *pgxpool.Pool
	admin    *admin.Admin
	category messagestore.Category
}

func newArchive(t *testing.T) *archive {
	t.Helper()
	return archiveOn(t, pgtest.Pool(t))
}

// newOwnArchive is [newArchive] in a database of its own, in which locks are waited for as long as
// it takes.
func newOwnArchive(t *testing.T) *archive {
	t.Helper()
	url := pgtest.Migrated(t)
	pgtest.WaitForLocks(t, url, "dibs")
	return archiveOn(t, pgtest.Connect(t, url))
}

func archiveOn(t *testing.T, pool *pgxpool.Pool) *archive {
	t.Helper()
	return &archive{testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), pool, testkit.Must(admin.New(pool, nil)), storetest.Category(t)}
}

func (a *archive) fill(t *testing.T, stream messagestore.StreamName, messages int) []messagestore.Envelope {
	t.Helper()
	var all []messagestore.Envelope
	var bodies []messagestore.Body
	for range messages {
		m := opened()
		all, bodies = append(all, m), append(bodies, m)
	}
	write(t, a.Store, stream, messagestore.AnyVersion, bodies...)
	return all
}

// fillMany writes n messages to an empty stream, faster than a client.
func (a *archive) fillMany(t *testing.T, stream messagestore.StreamName, messages int) {
	t.Helper()
	testkit.Do(a.pool.Exec(t.Context(), `insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
		select $1, dibs.group_hash($2), $2, n, 'Opened', gen_random_uuid(), '{}' from generate_series(0, $3 - 1) n`, string(stream.Category()), string(stream), messages))(t)
}

func (a *archive) read(t *testing.T, stream messagestore.StreamName) []*messagestore.Message {
	t.Helper()
	var all []*messagestore.Message
	for m, err := range a.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

func (a *archive) positions(t *testing.T, stream messagestore.StreamName) (positions []int) {
	t.Helper()
	for _, m := range a.read(t, stream) {
		positions = append(positions, int(m.Position))
	}
	return positions
}

// age makes the messages of a stream up to a position older. No client can do this.
func (a *archive) age(t *testing.T, stream messagestore.StreamName, upTo messagestore.Version, by time.Duration) {
	t.Helper()
	tx := testkit.Do(a.pool.Begin(t.Context()))(t)
	for _, statement := range []string{
		"set local session_replication_role = replica", // without triggers
		fmt.Sprintf("update dibs.messages set time = time - interval '%d s' where stream_name = '%s' and position <= %d", int(by.Seconds()), stream, upTo),
	} {
		testkit.Do(tx.Exec(t.Context(), statement))(t)
	}
	require.NoError(t, tx.Commit(t.Context()))
}

var anyAge = &retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge}

func TestATrimIsRecorded(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 5)
	records := a.category.WithType("retention").Stream("1")

	testkit.Do(a.admin.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 3, MinAge: retention.AnyAge, DryRun: true}))(t)
	require.Empty(t, a.read(t, records))
	testkit.Do(a.admin.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 3, MinAge: retention.AnyAge, Reason: "old"}))(t)
	testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)

	found := a.read(t, records)
	require.Len(t, found, 2)
	require.Equal(t, "dibs:Trimmed", found[0].Type)
	user := pgtest.Value[string](t, a.pool, "select session_user")
	require.JSONEq(t, fmt.Sprintf(`{"stream":%q,"removed":2,"from":0,"upTo":1,"by":%q,"reason":"old"}`, stream, user), string(found[0].Data))
	require.JSONEq(t, fmt.Sprintf(`{"stream":%q,"removed":1,"from":2,"upTo":2,"by":%q}`, stream, user), string(found[1].Data))

	// The records are trimmed too, and that is not recorded.
	testkit.Do(a.admin.Trim(t.Context(), records, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
	require.Equal(t, []int{1}, a.positions(t, records))
	require.Empty(t, a.read(t, records.Category().WithType("retention").Stream("1")))
}

// Only the store writes its own records, also for readers of a category that ends in retention.
func TestTheRecordOfATrimIsNeitherForgedNorTrimmedAway(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 5)
	testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)
	records := a.category.WithType("retention").Stream("1")
	forged := messagestore.Raw{Type: "dibs:Trimmed", Data: a.read(t, records)[0].Data}

	require.ErrorIs(t, testkit.ErrorOf(a.Write(t.Context(), records, messagestore.AnyVersion, forged)), messagestore.ErrInvalid)
	_, err := a.pool.Exec(t.Context(), "select dibs.append(array[$1], array[-2::bigint], array[1], array[gen_random_uuid()], array['dibs:Trimmed'], array['{}'::json], array[null::json])", string(records))
	requireRefused(t, err, "types")
	a.fill(t, records, 3)
	require.Zero(t, testkit.Do(a.admin.Trim(t.Context(), records, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t).Removed, "the last record stays")

	found := testkit.Do(a.admin.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{a.category, records.Category()}}))(t)
	require.Empty(t, found.Violations)
}

func TestTrimOfACategoryIsOfEachStream(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	neighbours := []messagestore.StreamName{
		messagestore.Category(string(a.category) + "x").Stream("1"), a.category.WithType("command").Stream("1"),
	}
	for n := range 5 {
		a.fill(t, a.category.Stream(strconv.Itoa(n)), n+1)
	}
	for _, stream := range neighbours {
		a.fill(t, stream, 5)
	}
	// As message-db's clients may have it: a stream without an identifier.
	testkit.Do(a.pool.Exec(t.Context(), "insert into dibs.messages (category, group_hash, stream_name, position, type, id) select $1, dibs.group_hash($1), $1, n, 'T', gen_random_uuid() from generate_series(0, 3) n", string(a.category)))(t)

	var removed []int64
	for trimmed, err := range a.admin.TrimCategory(t.Context(), a.category, anyAge) {
		require.NoError(t, err)
		removed = append(removed, trimmed.Removed)
	}

	require.Equal(t, []int64{2, 0, 0, 1, 2, 3}, removed)
	for _, stream := range neighbours {
		require.Len(t, a.read(t, stream), 5)
	}
}

// Writers, a trimmer and a reader of the category: no message is lost, and no position is read
// twice or left out.
func TestWritersDoNotNoticeThatTheirStreamIsTrimmed(t *testing.T) {
	t.Parallel()
	const writers = 4
	writes := 40
	if testkit.Long() {
		writes = 100
	}
	a := newOwnArchive(t)
	stream := a.category.Stream("1")
	written := make(chan error, writers*writes)
	for range writers {
		go func() {
			for range writes {
				written <- func() error {
					for {
						version, err := a.Version(t.Context(), stream)
						if err != nil {
							return err
						}
						got, err := a.Write(t.Context(), stream, version, opened())
						if errors.Is(err, messagestore.ErrVersionConflict) {
							continue
						}
						if err == nil && got.Version != version+1 {
							err = fmt.Errorf("written at %d after %d", got.Version, version)
						}
						return err
					}
				}()
			}
		}()
	}
	done, trimmed := make(chan struct{}), make(chan error, 2)
	var removed atomic.Int64
	for range 2 { // two trimmers do not disturb each other either
		go func() {
			for {
				t2, err := a.admin.Trim(t.Context(), stream, anyAge)
				removed.Add(t2.Removed)
				select {
				case <-done:
					trimmed <- err
					return
				default:
				}
				if err != nil {
					trimmed <- err
					return
				}
			}
		}()
	}
	for range writers * writes {
		require.NoError(t, testkit.Receive(t, "a message is written", written))
	}
	close(done)
	for range 2 {
		require.NoError(t, testkit.Receive(t, "the end of a trimmer", trimmed))
	}

	last := testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)
	require.Equal(t, []int{writers*writes - 2, writers*writes - 1}, a.positions(t, stream))
	require.Equal(t, int64(writers*writes-2), removed.Load()+last.Removed, "each was removed once")
	var recorded int64
	next := int64(0)
	for _, m := range a.read(t, a.category.WithType("retention").Stream("1")) {
		var data struct{ Removed, From, UpTo int64 }
		decodeInto(t, m, &data)
		require.Equal(t, next, data.From)
		require.Equal(t, data.UpTo-data.From+1, data.Removed)
		next = data.UpTo + 1
		recorded += data.Removed
	}
	require.Equal(t, int64(writers*writes-2), recorded)
}

// A write does not wait for a trim, nor a trim for a write.
func TestTrimHoldsUpNoWriter(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 5)
	tx := begin(t, pgtest.URL(t), pgx.ReadCommitted)
	testkit.Do(testkit.Must(admin.New(tx, nil)).Trim(t.Context(), stream, anyAge))(t)

	write(t, a.Store, stream, 4, opened())

	require.NoError(t, tx.Commit(t.Context()))
	holder := begin(t, pgtest.URL(t), pgx.ReadCommitted)
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(holder, nil)), nil)), stream, messagestore.AnyVersion, opened())
	require.Equal(t, int64(1), testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t).Removed)
	require.NoError(t, holder.Commit(t.Context()))
	require.Equal(t, []int{4, 5, 6}, a.positions(t, stream))
}

// At REPEATABLE READ a transaction that is older than a removal gets an error, because no index
// would stop it.
func TestATransactionOlderThanARemovalDoesNotWriteIntoTheGap(t *testing.T) {
	t.Parallel()
	// PostgreSQL may refuse a serializable transaction because of others on the same pages: this
	// database has one at a time.
	url := pgtest.Migrated(t)
	pool := pgtest.Connect(t, url)
	var serializable sync.Mutex
	for name, remove := range map[string]func(t *testing.T, a *archive, stream messagestore.StreamName){
		"trim": func(t *testing.T, a *archive, stream messagestore.StreamName) {
			t.Helper()
			testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)
		},
		"delete": func(t *testing.T, a *archive, stream messagestore.StreamName) {
			t.Helper()
			testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, nil))(t)
		},
		"erase": func(t *testing.T, a *archive, stream messagestore.StreamName) {
			t.Helper()
			testkit.Do(a.admin.Delete(t.Context(), stream, messagestore.AnyVersion, &retention.DeleteOptions{EraseName: true}))(t)
		},
	} {
		for _, before := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s with %d seen", name, before), func(t *testing.T) {
				t.Parallel()
				a := archiveOn(t, pool)
				stream := a.category.Stream("1")
				if before > 0 {
					a.fill(t, stream, before)
				}
				for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
					if level == pgx.Serializable {
						serializable.Lock()
						defer serializable.Unlock()
					}
					tx := begin(t, url, level)
					testkit.Do(tx.Exec(t.Context(), "select from dibs.stream_version($1)", string(stream)))(t)
					a.fill(t, stream, 5)
					remove(t, a, stream)

					_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), stream, messagestore.Version(before-1), opened())

					refused := testkit.As[*pgconn.PgError](t, err)
					require.Equal(t, "40001", refused.Code)
					require.NoError(t, tx.Rollback(t.Context()))
				}
			})
		}
	}
}

// A message that is written again while it is trimmed was there, or is new: never half of
// either.
func TestAMessageThatIsWrittenAgainWhileItIsTrimmedIsTheFirstOrNew(t *testing.T) {
	t.Parallel()
	const batch = 500
	rounds := 12
	if testkit.Long() {
		rounds = 40
	}
	a := newOwnArchive(t)
	for round := range rounds {
		stream := a.category.Stream(strconv.Itoa(round))
		var bodies []messagestore.Body
		for _, m := range a.fill(t, stream, batch) {
			bodies = append(bodies, m)
		}
		a.fill(t, stream, 1)
		trimmed := testkit.Go(func() error {
			return testkit.ErrorOf(a.admin.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))
		})

		written := testkit.Do(a.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)

		require.NoError(t, testkit.Receive(t, "the end of the trim", trimmed))
		require.Positive(t, written.GlobalPosition)
		if written.Duplicate {
			require.Equal(t, messagestore.Version(batch-1), written.Version)
		} else {
			require.Equal(t, messagestore.Version(2*batch), written.Version)
			require.Len(t, a.read(t, stream), batch+1)
		}
	}
}

func TestInvalidRemovalsAreRefused(t *testing.T) {
	t.Parallel()
	adm := testkit.Must(admin.New(unreachable{}, nil))
	keep := func(n int64) *retention.TrimOptions { return &retention.TrimOptions{Keep: n} }
	for name, err := range map[string]error{
		"no options":      second(adm.Trim(t.Context(), "account-1", nil)),
		"nothing asked":   second(adm.Trim(t.Context(), "account-1", &retention.TrimOptions{})),
		"keep -1":         second(adm.Trim(t.Context(), "account-1", keep(-1))),
		"negative age":    second(adm.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: 1, MinAge: -2})),
		"age of ages":     second(adm.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: 1, MinAge: 200 * 365 * 24 * time.Hour})),
		"year 10000":      second(adm.Trim(t.Context(), "account-1", &retention.TrimOptions{Before: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)})),
		"no stream":       second(adm.Trim(t.Context(), "", keep(1))),
		"no category":     second(adm.Trim(t.Context(), "-1", keep(1))),
		"a NUL":           second(adm.Trim(t.Context(), "account-\x00", keep(1))),
		"not UTF-8":       second(adm.Delete(t.Context(), "account-\xff", messagestore.AnyVersion, nil)),
		"delete nothing":  second(adm.Delete(t.Context(), "", messagestore.AnyVersion, nil)),
		"delete at -1":    second(adm.Delete(t.Context(), "account-1", messagestore.NoStream, nil)),
		"delete at -3":    second(adm.Delete(t.Context(), "account-1", -3, nil)),
		"a long reason":   second(adm.Delete(t.Context(), "account-1", 0, &retention.DeleteOptions{Reason: strings.Repeat("x", 256)})),
		"a hidden reason": second(adm.Trim(t.Context(), "account-1", &retention.TrimOptions{Keep: 1, Reason: "a\u202eb"})),
		"a blank reason":  second(adm.Delete(t.Context(), "account-1", 0, &retention.DeleteOptions{Reason: " "})),
		"a line":          second(adm.Delete(t.Context(), "account-1", 0, &retention.DeleteOptions{Reason: "a\nb"})),
	} {
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
	}
	for _, category := range []messagestore.Category{"", "account-1", "a b"} {
		for _, err := range adm.TrimCategory(t.Context(), category, keep(1)) {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		}
	}
	for _, err := range adm.TrimCategory(t.Context(), "account", nil) {
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
}

func second[T any](_ T, err error) error { return err }

// unreachable is a database that must not be asked anything.
type unreachable struct{ postgres.DB }

// The functions refuse the same arguments as Go, for clients in other languages.
func TestDatabaseRefusesInvalidRemovals(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for call, column := range map[string]string{
		"trim(null, 1)":                                           "stream",
		"trim('', 1)":                                             "stream",
		"trim('-1', 1)":                                           "stream",
		"trim('a-1')":                                             "keep",
		"trim('a-1', 0)":                                          "keep",
		"trim('a-1', -1, now())":                                  "keep",
		"trim('a-1', 1, min_age => null)":                         "min_age",
		"trim('a-1', 1, min_age => '-1 s')":                       "min_age",
		"trim('a-1', 1, min_age => '1000 years')":                 "min_age",
		"trim('a-1', 1, reason => '')":                            "reason",
		"trim('a-1', 1, reason => E'a\\nb')":                      "reason",
		"trim('a-1', 1, max_messages => 0)":                       "max_messages",
		"trim('a-1', 1, max_messages => null)":                    "max_messages",
		"trim('a-1', 1, max_messages => 100001)":                  "max_messages",
		"trim('a-1', 1, dry_run => null)":                         "dry_run",
		"delete_stream('a-1', dry_run => null)":                   "dry_run",
		"trim('a-1', 1, id => '" + uuid.Nil.String() + "')":       "id",
		"delete_stream(null)":                                     "stream",
		"delete_stream('a-1', -1)":                                "expected",
		"delete_stream('a-1', reason => repeat('x', 256))":        "reason",
		"delete_stream('a-1', max_messages => -1)":                "max_messages",
		"delete_stream('a-1', id => '" + uuid.Nil.String() + "')": "id",
		"forget(null, '1 h')":                                     "stream",
		"forget('', '1 h')":                                       "stream",
		"forget('a-1', '1 h')":                                    "category",
		"forget('a', null)":                                       "older_than",
		"forget('a', '-1 s')":                                     "older_than",
		"forget('a:inbox', '0')":                                  "older_than",
		"forget('a:inbox', '101 years')":                          "older_than",
		"forget('a', '1 h', '')":                                  "reason",
		"forget('a', '1 h', null, -1)":                            "from_position",
		"forget('a', '1 h', null, null)":                          "from_position",
		"forget('a', '1 h', max_messages => 0)":                   "max_messages",
		"forget('a', '1 h', dry_run => null)":                     "dry_run",
		"forget('a', '1 h', id => '" + uuid.Nil.String() + "')":   "id",
		"category_streams('')":                                    "category",
		"category_streams('a-1')":                                 "category",
		"category_streams('a', max_streams => 0)":                 "max_streams",
	} {
		requireRefused(t, testkit.ErrorOf(pool.Exec(t.Context(), "select * from dibs."+call)), column)
	}
	for _, call := range []string{"trim('a-1', 1)", "delete_stream('a-1')", "forget('a', '1 h')"} {
		tx := begin(t, pgtest.URL(t), pgx.RepeatableRead)
		_, err := tx.Exec(t.Context(), "select * from dibs."+call)
		refused := testkit.As[*pgconn.PgError](t, err)
		require.Equal(t, "0A000", refused.Code)
	}
}

// A writer removes checkpoints and nothing else, what it removed is recorded in one message, and
// the store verifies.
func TestWriterTrimsCheckpointsAndNothingElse(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	owner := pgtest.Connect(t, url)
	writer := pgtest.Connect(t, url+"&options=-c%20role%3Ddibs_writer")
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(writer, nil)), nil))
	category := storetest.Category(t)
	testkit.Do(store.Write(t.Context(), category.Stream("1"), messagestore.NoStream, messagestore.Raw{Type: "T", Data: []byte(`{}`)}))(t)
	positions := category.WithType("position")
	testkit.Do(store.Write(t.Context(), positions.Stream("accounts"), messagestore.NoStream, messagestore.Raw{Type: "Started", Data: []byte(`{"start":0}`)}))(t)
	stream := positions.Stream("accounts").With("0")
	for range 3 {
		bodies := make([]messagestore.Body, 150)
		for i := range bodies {
			bodies[i] = messagestore.Raw{Type: "Recorded", Data: []byte(`{"position":1}`)}
		}
		testkit.Do(store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)
		testkit.Do(store.TrimCheckpoints(t.Context(), stream, 100))(t)
	}
	var first, records, upTo int64
	require.NoError(t, owner.QueryRow(t.Context(), "select min(position) from dibs.messages where stream_name = $1", string(stream)).Scan(&first))
	require.Equal(t, int64(350), first)
	require.NoError(t, owner.QueryRow(t.Context(), "select count(*), max((data ->> 'upTo')::bigint) from dibs.messages where stream_name = $1",
		string(category)+":position+retention-accounts+0").Scan(&records, &upTo))
	require.Equal(t, int64(1), records)
	require.Equal(t, int64(349), upTo)

	require.Empty(t, testkit.Do(testkit.Must(admin.New(owner, nil)).Verify(t.Context(), nil))(t).Violations)

	for name, refused := range map[string]string{
		string(category.Stream("1")):                  "DB001",
		string(positions.Stream("accounts")):          "DB001",
		string(positions.Stream("accounts")) + "+a":   "DB001",
		string(category) + ":positions-accounts+0":    "DB001",
		string(category) + "-a:position-accounts+0":   "DB001",
		string(category) + ":position-acc-ounts+0":    "DB001",
		string(category) + ":position-accounts+0\n":   "DB001",
		string(category) + ":position-accounts+0+0":   "DB001",
		string(category) + ":position-accounts+0+key": "DB001",
	} {
		require.ErrorContains(t, testkit.ErrorOf(writer.Exec(t.Context(), "select dibs.trim_checkpoints($1, 100)", name)), refused, "%q", name)
	}
	for _, keep := range []string{"99", "0", "-1", "null"} {
		require.ErrorContains(t, testkit.ErrorOf(writer.Exec(t.Context(), "select dibs.trim_checkpoints($1, "+keep+")", string(stream))), "invalid keep")
	}
	require.ErrorContains(t, testkit.ErrorOf(writer.Exec(t.Context(), "select from dibs.trim($1, 1)", string(stream))), "42501")
	reader := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Connect(t, url+"&options=-c%20role%3Ddibs_reader"), nil)), nil))
	_, err := reader.TrimCheckpoints(t.Context(), stream, 100)
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_writer")
}

// Streams that hold no checkpoints are refused before anything is sent.
func TestTrimCheckpointsOfAnotherStreamIsRefused(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Pool(t), nil)), nil))
	for _, stream := range []messagestore.StreamName{"account-1", "account:position-a", "account:position-a+x", "account:position-a-b+0", "account:position-a+0+0", "account:position-a+1234567890123456789"} {
		_, err := store.TrimCheckpoints(t.Context(), stream, 100)
		require.ErrorIs(t, err, messagestore.ErrInvalid, stream)
		require.ErrorContains(t, err, "must be a stream of a consumer's checkpoints, like account:position-accounts+0")
	}
	require.ErrorContains(t, testkit.ErrorOf(store.TrimCheckpoints(t.Context(), "account:position-a+0", 99)), "invalid keep 99: must be at least 100")
}

// park has a consumer park messages of one category, and returns its queue of them.
func (a *archive) park(t *testing.T, name string, messages ...*messagestore.Message) *queue.Queue {
	t.Helper()
	category := messages[0].Stream.Category()
	a.catchUp(t, category, name, func(m *messagestore.Message) error {
		if slices.ContainsFunc(messages, func(parked *messagestore.Message) bool { return parked.ID == m.ID }) {
			return errors.New("no")
		}
		return nil
	})
	parked := testkit.Must(operate.Consumer(a.Store, category, name).Parked())
	for _, m := range messages {
		require.Equal(t, queue.Dead, testkit.Do(parked.Item(t.Context(), m.GlobalPosition))(t).State)
	}
	return parked
}

// redrive has a consumer deliver one parked message again.
func (a *archive) redrive(t *testing.T, name string, m *messagestore.Message, failure error) {
	t.Helper()
	testkit.Do(testkit.Must(operate.Consumer(a.Store, m.Stream.Category(), name).Parked()).Retry(t.Context(), "", m.GlobalPosition))(t)
	var delivered []uuid.UUID
	a.catchUp(t, m.Stream.Category(), name, func(m *messagestore.Message) error {
		delivered = append(delivered, m.ID)
		return failure
	})
	require.Equal(t, []uuid.UUID{m.ID}, delivered)
}

func (a *archive) catchUp(t *testing.T, category messagestore.Category, name string, handle func(m *messagestore.Message) error) {
	t.Helper()
	c := testkit.Must(consumer.New(a.Store, category, name, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error { return handle(m) }), &consumer.Config{
		Logger: logger.Silent(), Start: consumer.FromStart(),
		Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
	}))
	require.NoError(t, c.CatchUp(t.Context()))
}

func TestAMessageThatIsParkedIsNotTrimmed(t *testing.T) {
	t.Parallel()
	for _, types := range []string{"", "command"} {
		t.Run("type "+types, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			if types != "" {
				a.category = a.category.WithType(types)
			}
			stream := a.category.Stream("1")
			a.fill(t, stream, 6)
			messages := a.read(t, stream)
			low, high := a.park(t, "one", messages[2]), a.park(t, "other", messages[3])
			dry := *anyAge
			dry.DryRun = true
			trim := func(want retention.Trimmed) {
				t.Helper()
				require.Equal(t, want, testkit.Do(a.admin.Trim(t.Context(), stream, &dry))(t), "dry run")
				require.Equal(t, want, testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t))
			}

			trim(retention.Trimmed{Stream: stream, Removed: 2, First: 2, Version: 5, Queue: low.Name()})
			require.Equal(t, []int{2, 3, 4, 5}, a.positions(t, stream))
			a.redrive(t, "one", messages[2], errors.New("still no"))
			trim(retention.Trimmed{Stream: stream, First: 2, Version: 5, Queue: low.Name()})
			a.redrive(t, "one", messages[2], nil)
			trim(retention.Trimmed{Stream: stream, Removed: 1, First: 3, Version: 5, Queue: high.Name()})
			a.redrive(t, "other", messages[3], errors.New("no"))
			testkit.Do(high.Drop(t.Context(), "void", messages[3].GlobalPosition))(t)
			trim(retention.Trimmed{Stream: stream, Removed: 1, First: 4, Version: 5})
			require.Equal(t, []int{4, 5}, a.positions(t, stream))
		})
	}
}

// Whichever consumer parked it, and however many it has parked.
func TestATrimEndsAtTheLowestParkedMessage(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 8)
	messages := a.read(t, stream)
	consumers := map[int]string{2: "other", 3: "other", 4: "one", 5: "one"}
	queues := map[string]string{
		"other": a.park(t, "other", messages[2], messages[3]).Name(),
		"one":   a.park(t, "one", messages[4], messages[5]).Name(),
	}
	for at := 2; at <= 5; at++ {
		trimmed := testkit.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)
		require.Equal(t, messagestore.Version(at), trimmed.First)
		require.Equal(t, queues[consumers[at]], trimmed.Queue)
		a.redrive(t, consumers[at], messages[at], nil)
	}
}

func TestATrimOfACategoryPassesParkedMessages(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	for n := range 3 {
		a.fill(t, a.category.Stream(strconv.Itoa(n)), 5)
	}
	parked := a.park(t, "one", a.read(t, a.category.Stream("1"))[1])

	var found []retention.Trimmed
	for trimmed, err := range a.admin.TrimCategory(t.Context(), a.category, anyAge) {
		require.NoError(t, err)
		found = append(found, trimmed)
	}

	require.Equal(t, []retention.Trimmed{
		{Stream: a.category.Stream("0"), Removed: 3, First: 3, Version: 4},
		{Stream: a.category.Stream("1"), Removed: 1, First: 1, Version: 4, Queue: parked.Name()},
		{Stream: a.category.Stream("2"), Removed: 3, First: 3, Version: 4},
	}, found)
}

// Other messages that are parked hold nothing back; a trim in parts comes as far as one in one
// part.
func TestATrimLooksAtParkedMessagesOfItsStreamOnly(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 6)
	a.fill(t, a.category.Stream("2"), 2)
	messages := a.read(t, stream)
	a.park(t, "one", a.read(t, a.category.Stream("2"))[0], messages[5]) // the second stays for keep
	trimmed := testkit.Do(a.admin.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 5, MinAge: retention.AnyAge}))(t)
	require.Equal(t, retention.Trimmed{Stream: stream, Removed: 1, First: 1, Version: 5}, trimmed)

	parked := a.park(t, "two", messages[3])
	for _, want := range []struct {
		removed, first int64
		more           bool
	}{{1, 2, true}, {1, 3, true}, {0, 3, false}} {
		var removed, first int64
		var more bool
		var held *string
		err := a.pool.QueryRow(t.Context(), "select removed, first_position, more, queue from dibs.trim($1, 1, min_age => '0', max_messages => 1)", string(stream)).
			Scan(&removed, &first, &more, &held)
		require.NoError(t, err)
		require.Equal(t, want.removed, removed)
		require.Equal(t, want.first, first)
		require.Equal(t, want.more, more)
		require.Equal(t, !more, held != nil && *held == parked.Name())
	}
}
