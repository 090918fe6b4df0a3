package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// lastOf returns the last message as a reader of the stream gets it.
func lastOf(t require.TestingT, driver *postgres.Driver, stream messagestore.StreamName) *messagestore.Message {
	all := testkit.Do(driver.ReadStream(context.Background(), messagestore.StreamQuery{Stream: stream, From: messagestore.EndOfStream, Backwards: true, Limit: 1}))(t)
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// requireMet fails unless a write met the last messages of these streams.
func requireMet(t require.TestingT, driver *postgres.Driver, met *messagestore.Conflict, streams ...messagestore.StreamName) {
	require.NotNil(t, met)
	require.Len(t, met.Last, len(streams))
	for i, stream := range streams {
		last := lastOf(t, driver, stream)
		require.Equal(t, last, met.Last[i])
		if last != nil {
			require.False(t, met.Time.Before(last.Time), "met at %v, a message of %v", met.Time, last.Time)
		}
	}
	require.Equal(t, met.Time.Truncate(time.Microsecond).UTC(), met.Time)
	require.NotZero(t, met.Time)
}

func typed(stream messagestore.StreamName, expected messagestore.Version, types ...string) messagestore.Append {
	a := messagestore.Append{Stream: stream, Expected: expected}
	for _, name := range types {
		a.Records = append(a.Records, messagestore.Encoded{ID: uuid.Must(uuid.NewV7()), Type: name, Data: []byte(`{"n":1}`), Metadata: []byte(`{"correlationStreamName":"other-1"}`)})
	}
	return a
}

// The snapshot by which a group looks up the versions has none of its own messages.
func TestLoserMeetsItsWinnerOfTheSameGroup(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	category := storetest.Category(t)
	a, b, c, old, empty := category.Stream("a"), category.Stream("b"), category.Stream("c"), category.Stream("old"), category.Stream("empty")
	testkit.Do(driver.Append(t.Context(), typed(old, messagestore.NoStream, "Opened", "Closed")))(t)
	flushes, _ := driver.Flushes()

	answers := driver.AppendOrMeetEach(t.Context(), []messagestore.Append{
		typed(a, messagestore.NoStream, "Won"),
		typed(a, messagestore.NoStream, "Lost"),
		typed(b, messagestore.NoStream, "Won", "Extended"),
		typed(old, 0, "Lost"),
		typed(b, messagestore.NoStream, "Lost", "Lost"),
		typed(a, messagestore.NoStream, "Lost"),
		typed(c, messagestore.AnyVersion, "Plain"),
		typed(empty, 3, "Lost"),
		typed(b, 1, "Released"),
	}, 0, 1, 2, 3, 4, 7)

	now, _ := driver.Flushes()
	require.Equal(t, flushes+1, now)
	for _, i := range []int{0, 2, 6, 8} {
		require.NoError(t, answers[i].Err)
		require.Nil(t, answers[i].Met)
		require.NotZero(t, answers[i].Written.Time)
	}
	for i, stream := range map[int]messagestore.StreamName{1: a, 3: old, 4: b, 7: empty} {
		require.NoError(t, answers[i].Err)
		require.Zero(t, answers[i].Written)
		requireMet(t, driver, answers[i].Met, stream)
	}
	require.Equal(t, "Won", answers[1].Met.Last[0].Type)
	require.Equal(t, "Released", answers[4].Met.Last[0].Type, "in the end, and not at its turn")
	require.Equal(t, &messagestore.VersionConflictError{Stream: a, Expected: messagestore.NoStream, Actual: 0}, answers[5].Err)
	require.Nil(t, answers[5].Met)
}

// A conflict shows the state after its group. It never shows exactly the version that the write
// expects.
func TestWriteWhoseVersionComesLaterInItsGroupIsWritten(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	stream := storetest.Category(t).Stream("1")

	answers := driver.AppendOrMeetEach(t.Context(), []messagestore.Append{
		typed(stream, 0, "Second"),
		typed(stream, 0, "Conflict"),
		typed(stream, messagestore.NoStream, "First"),
	}, 0)

	require.NoError(t, answers[0].Err)
	require.Nil(t, answers[0].Met)
	require.Equal(t, messagestore.Version(1), answers[0].Written.Version)
	require.ErrorIs(t, answers[1].Err, messagestore.ErrVersionConflict)
	require.NoError(t, answers[2].Err)
}

func TestGroupMeetsTheLastMessageOrWrites(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	rapid.Check(t, func(r *rapid.T) {
		category := messagestore.Category("g" + strings.ReplaceAll(uuid.NewString(), "-", ""))
		for range rapid.IntRange(1, 3).Draw(r, "groups") {
			var group [][]messagestore.Append
			var meets []int
			for i := range rapid.IntRange(2, 12).Draw(r, "writes") {
				var write []messagestore.Append
				for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"1", "2", "3"}), 1, 2, rapid.ID).Draw(r, "streams") {
					expected := messagestore.Version(rapid.Int64Range(-2, 5).Draw(r, "expected"))
					write = append(write, typed(category.Stream(id), expected, rapid.SliceOfN(rapid.SampledFrom([]string{"A", "B"}), 1, 3).Draw(r, "types")...))
				}
				group = append(group, write)
				if rapid.Bool().Draw(r, "meets") {
					meets = append(meets, i)
				}
			}

			answers := driver.AppendAllEach(context.Background(), group, meets...)

			for i, answer := range answers {
				switch {
				case answer.Met != nil:
					require.Contains(r, meets, i)
					fits := true
					require.Len(r, answer.Met.Last, len(group[i]))
					for k, last := range answer.Met.Last {
						at := messagestore.NoStream
						if last != nil {
							at = last.Position
							there := testkit.Do(driver.ReadStream(context.Background(), messagestore.StreamQuery{Stream: last.Stream, From: last.Position, Limit: 1}))(r)
							require.Equal(r, there[0], last)
							require.Equal(r, group[i][k].Stream, last.Stream)
						}
						fits = fits && (group[i][k].Expected == at || group[i][k].Expected == messagestore.AnyVersion)
					}
					require.False(r, fits, "it met what it expects")
				case answer.Err != nil:
					require.NotContains(r, meets, i)
					require.ErrorIs(r, answer.Err, messagestore.ErrVersionConflict)
				default:
					for k, written := range answer.All {
						found := testkit.Do(driver.Find(context.Background(), group[i][k].Stream, written.IDs))(r)
						require.Len(r, found, len(group[i][k].Records))
						last := found[len(found)-1]
						require.Equal(r, messagestore.Written{
							Stream: last.Stream, Version: last.Position, GlobalPosition: last.GlobalPosition, Time: last.Time, IDs: written.IDs,
						}, written)
					}
				}
			}
		}
	})
}

// A group that the database refuses as a whole is written one by one, and so is one at a level at
// which nothing is seen.
func TestGroupThatFallsApartMeetsAllTheSame(t *testing.T) {
	t.Parallel()
	for name, pool := range map[string]*pgxpool.Pool{
		"for one that is refused": pgtest.Pool(t),
		"above READ COMMITTED":    limitedPool(t, "default_transaction_isolation", "repeatable read"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := testkit.Must(postgres.New(pool, nil))
			category := storetest.Category(t)
			a, b := category.Stream("a"), category.Stream("b")
			bad := typed(category.Stream("bad"), messagestore.AnyVersion, "T")
			bad.Records[0].Data = []byte("[]")

			answers := driver.AppendOrMeetEach(t.Context(), []messagestore.Append{
				typed(a, messagestore.NoStream, "Won"), typed(a, messagestore.NoStream, "Lost"), bad, typed(b, messagestore.NoStream, "Won"), typed(a, 5, "Lost", "Lost"),
			}, 0, 1, 2, 3, 4)

			for _, i := range []int{0, 3} {
				require.NoError(t, answers[i].Err)
				require.Nil(t, answers[i].Met)
			}
			for _, i := range []int{1, 4} {
				require.NoError(t, answers[i].Err)
				requireMet(t, driver, answers[i].Met, a)
			}
			require.ErrorIs(t, answers[2].Err, messagestore.ErrInvalid)
			_, writes := driver.Flushes()
			require.Zero(t, writes)
		})
	}
}

// The user's default level does not count as the level of a caller's transaction.
func TestWriteMeetsWhateverTheDefaultLevel(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(limitedPool(t, "default_transaction_isolation", "serializable"), nil))
	category := storetest.Category(t)
	a, b := category.Stream("a"), category.Stream("b")
	for _, appends := range [][]messagestore.Append{
		{typed(a, messagestore.NoStream, "Opened")}, {typed(b, messagestore.NoStream, "Opened", "Closed")},
	} {
		written, met, err := driver.TryAppend(t.Context(), appends)
		require.NoError(t, err)
		require.Nil(t, met)
		require.Equal(t, lastOf(t, driver, appends[0].Stream).Time, written[0].Time)
	}
	for _, appends := range [][]messagestore.Append{
		{typed(a, messagestore.NoStream, "Lost")}, {typed(a, 7, "Lost", "Lost")}, {typed(a, 0, "Lost"), typed(b, 0)},
	} {
		var streams []messagestore.StreamName
		for _, w := range appends {
			streams = append(streams, w.Stream)
		}

		_, met, err := driver.TryAppend(t.Context(), appends)

		require.NoError(t, err)
		requireMet(t, driver, met, streams...)
	}
}

func TestTransactionAboveReadCommittedGetsTheConflict(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		category := storetest.Category(t)
		stream, other := category.Stream("1"), category.Stream("2")
		inside := testkit.Must(postgres.New(tx, nil))
		write(t, testkit.Must(messagestore.New(inside, nil)), other, messagestore.NoStream, opened())
		for _, appends := range [][]messagestore.Append{
			{typed(other, messagestore.NoStream, "Lost")},
			{typed(other, 4, "Lost", "Lost")},
			{typed(stream, messagestore.NoStream, "Lost"), typed(other, messagestore.NoStream)},
		} {
			written, met, err := inside.TryAppend(t.Context(), appends)

			require.Nil(t, written)
			if level != pgx.ReadCommitted {
				require.Nil(t, met)
				conflict := testkit.As[*messagestore.VersionConflictError](t, err)
				require.Equal(t, other, conflict.Stream)
				continue
			}
			require.NoError(t, err)
			var streams []messagestore.StreamName
			for _, w := range appends {
				streams = append(streams, w.Stream)
			}
			requireMet(t, inside, met, streams...)
		}
		requireUsable(t, tx, outside)
	})
}

// A write that was not seen by the transaction's snapshot is not met by it either.
func TestMeetingIsNeverOfAStaleSnapshot(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *messagestore.Store) {
		stream := storetest.Category(t).Stream("1")
		write(t, outside, stream, messagestore.NoStream, opened(), opened())
		inside := testkit.Must(postgres.New(tx, nil))

		_, met, err := inside.TryAppend(t.Context(), []messagestore.Append{typed(stream, messagestore.NoStream, "Lost")})

		if level == pgx.ReadCommitted {
			require.NoError(t, err)
			requireMet(t, inside, met, stream)
		} else {
			require.Nil(t, met)
			require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		}
		requireUsable(t, tx, outside)
	})
}

// In a transaction of the caller's all ways of pgx to send a statement have the same answer.
func TestMeetingIsReadHoweverItWasSent(t *testing.T) {
	t.Parallel()
	shared := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config := pgtest.Pool(t).Config().ConnConfig
			config.DefaultQueryExecMode = mode
			config.RuntimeParams["timezone"] = "Asia/Kathmandu"
			conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
			t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
			category := storetest.Category(t)
			a, b, empty := category.Stream("a"), category.Stream("b"), category.Stream("empty")
			testkit.Do(shared.AppendAll(t.Context(), []messagestore.Append{typed(a, messagestore.NoStream, "Opened", `Clo"s\ed'`), typed(b, messagestore.NoStream, "Opened")}))(t)
			tx := testkit.Do(conn.Begin(t.Context()))(t)
			inside := testkit.Must(postgres.New(tx, nil))

			_, met, err := inside.TryAppend(t.Context(), []messagestore.Append{typed(b, messagestore.NoStream, "Lost"), typed(a, messagestore.NoStream, "Lost", "Lost"), typed(empty, 0)})
			require.NoError(t, err)
			requireMet(t, shared, met, b, a, empty)
			_, met, err = inside.TryAppend(t.Context(), []messagestore.Append{typed(a, messagestore.NoStream, "Lost")})
			require.NoError(t, err)
			requireMet(t, shared, met, a)
			past := typed(a, 0, "Extended")
			past.Past = []string{`Clo"s\ed'`, "Other"}
			written, met, err := inside.TryAppend(t.Context(), []messagestore.Append{typed(b, 0), past})
			require.NoError(t, err)
			require.Nil(t, met)
			require.NoError(t, tx.Commit(t.Context()))
			last := lastOf(t, shared, a)
			require.Equal(t, []messagestore.Written{
				{Stream: b, IDs: nil},
				{Stream: a, Version: 2, GlobalPosition: last.GlobalPosition, Time: last.Time, IDs: []uuid.UUID{last.ID}},
			}, written)
		})
	}
}

func TestRemovedStreamMeetsItsTombstone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, erase := range []bool{false, true} {
		driver := testkit.Must(postgres.New(pool, nil))
		category := storetest.Category(t)
		gone, other := category.Stream("gone"), category.Stream("other")
		testkit.Do(driver.Append(t.Context(), typed(gone, messagestore.NoStream, "Opened", "Closed")))(t)
		testkit.Do(testkit.Must(admin.New(pool, nil)).Delete(t.Context(), gone, 1, &retention.DeleteOptions{EraseName: erase}))(t)

		for _, appends := range [][]messagestore.Append{
			{typed(gone, messagestore.NoStream, "Lost")},
			{typed(gone, 1, "Lost", "Lost")},
			{typed(gone, messagestore.NoStream, "Lost"), typed(other, messagestore.NoStream)},
		} {
			_, met, err := driver.TryAppend(t.Context(), appends)
			require.NoError(t, err)
			require.Equal(t, removal.TombstoneType, met.Last[0].Type)
			require.Equal(t, messagestore.Version(2), met.Last[0].Position)
			requireMet(t, driver, met, []messagestore.StreamName{gone, other}[:len(appends)]...)
		}
		answers := driver.AppendOrMeetEach(t.Context(), []messagestore.Append{
			typed(gone, messagestore.NoStream, "Lost"), typed(other, messagestore.NoStream, "Won"), typed(gone, 0, "Lost"),
		}, 0, 1, 2)
		for _, i := range []int{0, 2} {
			require.NoError(t, answers[i].Err)
			requireMet(t, driver, answers[i].Met, gone)
		}
		require.NoError(t, answers[1].Err)
		written, met, err := driver.TryAppend(t.Context(), []messagestore.Append{typed(gone, 2, "Opened")})
		require.NoError(t, err)
		require.Nil(t, met)
		require.Equal(t, messagestore.Version(3), written[0].Version)
	}
}

// The bound is of the text that is sent, be it stored compressed.
func TestLargeMessageIsNotSentAlong(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver := testkit.Must(postgres.New(pool, nil))
	const bound = 16 << 10
	for name, test := range map[string]struct {
		data, metadata int
		same           bool // of one letter, which is compressed
		along          bool
	}{
		"nothing much":                   {data: 100, along: true},
		"of one letter":                  {data: 10_000, same: true, along: true},
		"data below the bound":           {data: 15_000, metadata: 900, along: true},
		"metadata makes it large":        {data: 15_000, metadata: 3_000},
		"data above the bound":           {data: bound + 1},
		"above, and stored as little":    {data: 900_000, same: true},
		"metadata, and stored as little": {data: 10, metadata: 100_000, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := func(size int) string {
				if test.same {
					return strings.Repeat("x", size)
				}
				var b strings.Builder
				for b.Len() < size {
					b.WriteString(uuid.NewString())
				}
				return b.String()[:size]
			}
			stream := storetest.Category(t).Stream("1")
			a := typed(stream, messagestore.NoStream, "Opened")
			a.Records[0].Data = []byte(`{"a":"` + text(test.data) + `"}`)
			if test.metadata > 0 {
				a.Records[0].Metadata = []byte(`{"page":"` + text(test.metadata) + `"}`)
			}
			testkit.Do(driver.Append(t.Context(), a))(t)

			for _, call := range []string{
				"select met_data is not null, met_metadata is not null from dibs.append_one($1, -1, gen_random_uuid(), 'T', '{}', null, meet => true)",
				"select met_data is not null, met_metadata is not null from dibs.append(array[$1]::text[], '{-1}', '{1}', array[gen_random_uuid()], '{T}', '{\"{}\"}', '{null}', meet => true)",
				`select met_data[1] is not null, met_metadata[1] is not null
				from dibs.append_each(array[$1]::text[], '{-1}', '{1}', '{0}', array[gen_random_uuid()], '{T}', '{"{}"}', '{null}', meets => '{true}')`,
			} {
				var data, metadata bool
				require.NoError(t, pool.QueryRow(t.Context(), call, string(stream)).Scan(&data, &metadata))
				require.Equal(t, []bool{test.along, test.along}, []bool{data, metadata}, call)
			}
			_, met, err := driver.TryAppend(t.Context(), []messagestore.Append{typed(stream, messagestore.NoStream, "Lost")})
			require.NoError(t, err)
			requireMet(t, driver, met, stream)
			require.JSONEq(t, string(a.Records[0].Data), string(met.Last[0].Data))
		})
	}
}

// An interruption calls f once, before the first statement with a text in it.
type interruption struct {
	text string
	f    func()
}

func (i *interruption) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if f := i.f; f != nil && strings.Contains(data.SQL, i.text) {
		i.f = nil
		f()
	}
	return ctx
}

func (*interruption) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestMessageThatIsRemovedAfterItWasMetIsNotTold(t *testing.T) {
	t.Parallel()
	shared := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	for _, erase := range []bool{false, true} {
		stream := storetest.Category(t).Stream("1")
		large := typed(stream, messagestore.NoStream, "Opened", "Large")
		large.Records[1].Data = []byte(`{"a":"` + strings.Repeat("x", 20_000) + `"}`)
		testkit.Do(shared.Append(t.Context(), large))(t)
		config := pgtest.Pool(t).Config()
		config.ConnConfig.Tracer = &interruption{"dibs.read_stream(", func() {
			_, err := testkit.Must(admin.New(pgtest.Pool(t), nil)).Delete(t.Context(), stream, 1, &retention.DeleteOptions{EraseName: erase})
			if err != nil {
				t.Error(err)
			}
		}}
		pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
		testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)

		_, met, err := testkit.Must(postgres.New(pool, nil)).TryAppend(t.Context(), []messagestore.Append{typed(stream, messagestore.NoStream, "Lost")})

		require.NoError(t, err)
		requireMet(t, shared, met, stream)
		require.Equal(t, removal.TombstoneType, met.Last[0].Type)
	}
}

// message-db's clients may write a message without data. It is taken for one that was not sent
// along.
func TestMessageWithoutDataIsMet(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	testkit.Do(pool.Exec(t.Context(), "select message_store.write_message($1, $2, 'Empty', null)", uuid.NewString(), string(stream)))(t)
	driver := testkit.Must(postgres.New(pool, nil))

	_, met, err := driver.TryAppend(t.Context(), []messagestore.Append{typed(stream, messagestore.NoStream, "Lost")})

	require.NoError(t, err)
	requireMet(t, driver, met, stream)
	require.Nil(t, met.Last[0].Data)
}

// A fence that was raised since is learnt, and then the write meets.
func TestWriteMeetsBehindAFence(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, group := range []bool{false, true} {
		driver := testkit.Must(postgres.New(pool, nil))
		category := storetest.Category(t)
		stream := category.Stream("1")
		testkit.Do(driver.Append(t.Context(), typed(stream, messagestore.NoStream, "Opened")))(t)
		testkit.Do(testkit.Must(postgres.New(pool, nil)).Find(t.Context(), stream, []uuid.UUID{uuid.New()}))(t)
		var met *messagestore.Conflict
		if group {
			answers := driver.AppendOrMeetEach(t.Context(), []messagestore.Append{typed(stream, 7, "Lost"), typed(category.Stream("2"), -1, "Won")}, 0)
			require.NoError(t, errors.Join(answers[0].Err, answers[1].Err))
			met = answers[0].Met
		} else {
			var err error
			_, met, err = driver.TryAppend(t.Context(), []messagestore.Append{typed(stream, 7, "Lost")})
			require.NoError(t, err)
		}
		requireMet(t, driver, met, stream)
	}
}

// The time of a write is the message's, whichever function wrote it, and of a repeat the first's.
func TestTimeOfAWriteIsTheMessages(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	category := storetest.Category(t)
	group := []messagestore.Append{
		typed(category.Stream("g1"), messagestore.NoStream, "T"), typed(category.Stream("g2"), messagestore.NoStream, "T", "T", "T"), typed(category.Stream("g1"), 0, "T"),
	}
	ways := map[string]struct {
		appends []messagestore.Append
		write   func(appends []messagestore.Append) ([]messagestore.Written, error)
	}{
		"one":     {[]messagestore.Append{typed(category.Stream("1"), messagestore.NoStream, "T")}, nil},
		"several": {[]messagestore.Append{typed(category.Stream("2"), messagestore.NoStream, "T", "T")}, nil},
		"streams": {[]messagestore.Append{typed(category.Stream("3"), messagestore.NoStream, "T", "T"), typed(category.Stream("4"), messagestore.NoStream, "T")}, nil},
		"a group": {group, func(appends []messagestore.Append) (all []messagestore.Written, err error) {
			for _, answer := range driver.AppendEach(t.Context(), appends) {
				all, err = append(all, answer.Written), errors.Join(err, answer.Err)
			}
			return all, err
		}},
		"a transaction": {[]messagestore.Append{typed(category.Stream("5"), messagestore.NoStream, "T")}, func(appends []messagestore.Append) ([]messagestore.Written, error) {
			return driver.Transact(t.Context(), "", func(context.Context, pgx.Tx, *messagestore.Message) ([]messagestore.Append, error) {
				return appends, nil
			})
		}},
	}
	for name, way := range ways {
		if way.write == nil {
			way.write = func(appends []messagestore.Append) ([]messagestore.Written, error) {
				return driver.AppendAll(t.Context(), appends)
			}
		}
		first, err := way.write(way.appends)
		require.NoError(t, err, name)
		again, err := way.write(way.appends)
		require.NoError(t, err, name)
		for i, w := range first {
			at := lastOfIDs(t, driver, w)
			require.Equal(t, at.Time, w.Time, name)
			require.False(t, w.Duplicate, name)
			w.Duplicate = true
			require.Equal(t, w, again[i], name)
		}
	}
}

func lastOfIDs(t *testing.T, driver *postgres.Driver, w messagestore.Written) *messagestore.Message {
	t.Helper()
	found := testkit.Do(driver.Find(t.Context(), w.Stream, w.IDs))(t)
	require.Len(t, found, len(w.IDs))
	return found[len(found)-1]
}

func goingPast(a messagestore.Append, types ...string) messagestore.Append {
	a.Past = types
	return a
}

// A message that was removed may have been of any type.
func TestPastARemovedMessageIsAConflict(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	driver, remover := testkit.Must(postgres.New(pool, nil)), testkit.Must(admin.New(pool, nil))
	category := storetest.Category(t)
	trimmed := category.Stream("trimmed")
	testkit.Do(driver.Append(t.Context(), typed(trimmed, messagestore.NoStream, "Reserved", "Extended", "Extended", "Extended")))(t)
	testkit.Do(remover.Trim(t.Context(), trimmed, &retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge}))(t)
	write := func(a messagestore.Append, types ...string) error {
		_, err := driver.Append(t.Context(), goingPast(a, types...))
		return err
	}
	check := func(stream messagestore.StreamName, expected messagestore.Version, types ...string) error {
		_, err := driver.AppendAll(t.Context(), []messagestore.Append{goingPast(typed(stream, expected), types...)})
		return err
	}

	for _, expected := range []messagestore.Version{messagestore.NoStream, 0} {
		require.Equal(t, &messagestore.VersionConflictError{Stream: trimmed, Expected: expected, Actual: 3}, write(typed(trimmed, expected, "Confirmed"), "Extended", "Reserved"))
		require.Equal(t, &messagestore.VersionConflictError{Stream: trimmed, Expected: expected, Actual: 3}, check(trimmed, expected, "Extended", "Reserved"))
	}
	require.NoError(t, check(trimmed, 1, "Extended"), "2 and 3 are there")
	require.NoError(t, write(typed(trimmed, 1, "Confirmed"), "Extended"))

	for _, erase := range []bool{false, true} {
		gone := category.Stream(fmt.Sprint("gone", erase))
		testkit.Do(driver.Append(t.Context(), typed(gone, messagestore.NoStream, "Reserved", "Extended")))(t)
		testkit.Do(remover.Delete(t.Context(), gone, 1, &retention.DeleteOptions{EraseName: erase}))(t)
		for _, expected := range []messagestore.Version{messagestore.NoStream, 0} {
			require.ErrorIs(t, write(typed(gone, expected, "Confirmed"), "Extended", "Reserved", removal.TombstoneType), messagestore.ErrVersionConflict)
			require.ErrorIs(t, check(gone, expected, "Extended", "Reserved", removal.TombstoneType), messagestore.ErrVersionConflict)
		}
		require.NoError(t, check(gone, 2, "Extended"))
		require.NoError(t, write(typed(gone, 2, "Reserved"), "Extended"))
	}
}

// A message that the transaction does not see may be of any type: a younger transaction can tell.
func TestPastOfATransactionThatIsTooOldIsASerializationFailure(t *testing.T) {
	t.Parallel()
	for name, came := range map[string]string{"a type that may come": "Extended", "another type": "Released"} {
		for kind, types := range map[string][]string{"a write": {"Confirmed"}, "a check": nil} {
			t.Run(name+", for "+kind, func(t *testing.T) {
				t.Parallel()
				eachLevelAfter(t, func(outside *postgres.Driver, stream messagestore.StreamName) {
					testkit.Do(outside.Append(t.Context(), typed(stream, messagestore.NoStream, "Reserved", "Extended")))(t)
				}, func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *postgres.Driver, stream messagestore.StreamName) {
					testkit.Do(outside.Append(t.Context(), typed(stream, 1, came)))(t)

					_, err := testkit.Must(postgres.New(tx, nil)).AppendAll(t.Context(), []messagestore.Append{goingPast(typed(stream, 0, types...), "Extended")})

					switch {
					case level != pgx.ReadCommitted:
						require.Equal(t, "40001", refusal(t, err).Code)
					case came == "Extended":
						require.NoError(t, err)
					default:
						require.Equal(t, &messagestore.VersionConflictError{Stream: stream, Expected: 0, Actual: 2}, err)
					}
				})
			})
		}
	}
}

// Another type that the transaction sees is a conflict at every level, and leaves it usable.
func TestPastAnotherTypeIsAConflictAtEveryLevel(t *testing.T) {
	t.Parallel()
	eachLevelAfter(t, func(outside *postgres.Driver, stream messagestore.StreamName) {
		testkit.Do(outside.Append(t.Context(), typed(stream, messagestore.NoStream, "Reserved", "Released", "Extended")))(t)
	}, func(t *testing.T, _ pgx.TxIsoLevel, tx pgx.Tx, outside *postgres.Driver, stream messagestore.StreamName) {
		inside := testkit.Must(postgres.New(tx, nil))
		for _, a := range []messagestore.Append{typed(stream, 0, "Confirmed"), typed(stream, 0)} {
			_, err := inside.AppendAll(t.Context(), []messagestore.Append{goingPast(a, "Extended")})
			require.Equal(t, &messagestore.VersionConflictError{Stream: stream, Expected: 0, Actual: 2}, err)
		}
		testkit.Do(inside.AppendAll(t.Context(), []messagestore.Append{goingPast(typed(stream, 1, "Confirmed"), "Extended")}))(t)
		requireUsable(t, tx, testkit.Must(messagestore.New(outside, nil)))
	})
}

// eachLevelAfter is eachLevel with a stream that the transaction's snapshot has.
func eachLevelAfter(
	t *testing.T, fill func(outside *postgres.Driver, stream messagestore.StreamName),
	test func(t *testing.T, level pgx.TxIsoLevel, tx pgx.Tx, outside *postgres.Driver, stream messagestore.StreamName),
) {
	t.Helper()
	outside := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			alone(t, level)
			stream := storetest.Category(t).Stream("1")
			fill(outside, stream)
			tx := begin(t, level)
			testkit.Do(tx.Exec(t.Context(), "select from dibs.stream_version('snapshot-1')"))(t)
			test(t, level, tx, outside, stream)
		})
	}
}

// A transaction that chose its level is run again by the store, and not committed on an old
// snapshot.
func TestTransactDoesNotPassACheckOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	driver := testkit.Must(postgres.New(pgtest.Pool(t), nil))
	for _, types := range [][]string{nil, {"Confirmed"}} {
		stream := storetest.Category(t).Stream("1")
		testkit.Do(driver.Append(t.Context(), typed(stream, messagestore.NoStream, "Reserved")))(t)

		_, err := driver.Transact(t.Context(), "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
			testkit.Do(tx.Exec(ctx, "set transaction isolation level repeatable read"))(t)
			testkit.Do(tx.Exec(ctx, "select from dibs.stream_version('snapshot-1')"))(t)
			testkit.Do(driver.Append(ctx, typed(stream, 0, "Extended")))(t)
			return []messagestore.Append{goingPast(typed(stream, 0, types...), "Extended")}, nil
		})

		_ = testkit.As[*calling.RetryableError](t, err)
		require.Equal(t, messagestore.Version(1), lastOf(t, driver, stream).Position)
	}
}
