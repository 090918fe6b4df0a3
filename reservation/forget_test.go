package reservation_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// A keeper is a store whose keys can be forgotten.
type keeper struct {
	*messagestore.Store
	admin interface {
		Forget(ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions) (retention.Forgotten, error)
		Delete(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *retention.DeleteOptions) (retention.Deleted, error)
		Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error)
	}
	age func(t *testing.T, by time.Duration) // of all messages

	effects []string // the keys of the commands that were carried out
}

func eachKeeper(t *testing.T, test func(t *testing.T, k *keeper)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) *keeper{"PostgreSQL": keptByPostgreSQL, "SQLite": keptBySQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func keptByPostgreSQL(t *testing.T) *keeper {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	return &keeper{
		Store: testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil)),
		admin: testkit.Must(admin.New(pool, config)),
		age: func(t *testing.T, by time.Duration) {
			t.Helper()
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "set local session_replication_role = replica") // without triggers
				if err == nil {
					_, err = tx.Exec(t.Context(), fmt.Sprintf("update %s.messages set time = time - interval '%d s'", schema, int(by.Seconds())))
				}
				return err
			}))
		},
	}
}

func keptBySQLite(t *testing.T) *keeper {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dibs.db")
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	store := testkit.Must(messagestore.New(driver, nil))
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	db, err := sql.Open("sqlite", file)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &keeper{
		Store: store,
		admin: driver,
		age: func(t *testing.T, by time.Duration) {
			t.Helper()
			_, err := db.ExecContext(t.Context(), "UPDATE dibs_messages SET time = time - ?", by.Microseconds())
			require.NoError(t, err)
		},
	}
}

const (
	keyLife    = time.Hour
	reservedAt = messagestore.Category("account:command+reservation+accounts")
)

// inline returns handlers of Inline, and copying of Copy, of a process of its own whose keys live for an hour.
func (k *keeper) inline(t *testing.T) *handler.Mux {
	t.Helper()
	return muxOf(reservation.Inline(newReserver(t, k.Store, &reservation.Config{KeyLife: keyLife, Logger: logger.Silent()}), Deposit.Key,
		func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			k.effects = append(k.effects, m.Body.DepositID)
			return nil, nil
		}))
}

func (k *keeper) copying(t *testing.T) *handler.Mux {
	t.Helper()
	return muxOf(reservation.Copy(newReserver(t, k.Store, &reservation.Config{KeyLife: keyLife, Logger: logger.Silent()}), Deposit.Key,
		func(_ context.Context, m handler.Message[Deposit]) error {
			k.effects = append(k.effects, m.Body.DepositID)
			return nil
		}))
}

// handle has a consumer of the category pass all of its messages.
func (k *keeper) handle(t *testing.T, category messagestore.Category, mux *handler.Mux) {
	t.Helper()
	require.NoError(t, testkit.Must(consumer.New(k.Store, category, "accounts", mux, &consumer.Config{Concurrency: 1, Logger: logger.Silent()})).CatchUp(t.Context()))
}

func (k *keeper) forget(t *testing.T) (keys int64) {
	t.Helper()
	planned, err := k.admin.Forget(t.Context(), reservedAt, keyLife, &retention.ForgetOptions{DryRun: true})
	require.NoError(t, err)
	forgotten, err := k.admin.Forget(t.Context(), reservedAt, keyLife, nil)
	require.NoError(t, err)
	require.Equal(t, planned, forgotten)
	require.Equal(t, forgotten.Keys, forgotten.Messages)
	return forgotten.Keys
}

func (k *keeper) isTaken(t *testing.T, stream messagestore.StreamName, key string) bool {
	t.Helper()
	_, err := newReserver(t, k.Store, nil).Lookup(t.Context(), stream, key)
	if !errors.Is(err, messagestore.ErrNotFound) {
		require.NoError(t, err)
	}
	return err == nil
}

// R7: the key is taken for its life, and free once dibs forget has run after it.
func TestAKeyIsForgottenAfterItsLifeAndNotBefore(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		for _, key := range []string{"AAA", "BBB", "deleted"} {
			send(t, k.Store, command, Deposit{key, 1})
		}
		k.handle(t, commands, k.inline(t))
		_, err := k.admin.Delete(t.Context(), place(command, "accounts").With("deleted"), messagestore.AnyVersion, nil)
		require.NoError(t, err)
		k.age(t, keyLife-5*time.Minute)
		send(t, k.Store, command, Deposit{"last", 1})
		k.handle(t, commands, k.inline(t))

		require.Zero(t, k.forget(t))
		send(t, k.Store, command, Deposit{"AAA", 1})
		k.handle(t, commands, k.inline(t))
		require.Equal(t, []string{"AAA", "BBB", "deleted", "last"}, k.effects)
		_, err = k.admin.Forget(t.Context(), reservedAt, keyLife-time.Second, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "must be at least 1h0m0s, the life of the keys")
		require.True(t, k.isTaken(t, command, "AAA"))

		k.age(t, 10*time.Minute)
		require.Equal(t, int64(2), k.forget(t))
		for key, taken := range map[string]bool{"AAA": false, "BBB": false, "last": true, "deleted": true} {
			require.Equal(t, taken, k.isTaken(t, command, key), key)
		}
		require.Zero(t, k.forget(t))
		send(t, k.Store, command, Deposit{"AAA", 1})
		k.handle(t, commands, k.inline(t))
		require.Equal(t, []string{"AAA", "BBB", "deleted", "last", "AAA"}, k.effects)

		k.age(t, 10*keyLife)
		require.Equal(t, int64(1), k.forget(t), "the last of the category stays")
		require.True(t, k.isTaken(t, command, "AAA"))
		records := all(t, k.Store, reservedAt.WithType("forgotten").Stream("1"))
		require.Len(t, records, 2)
		require.Regexp(t, `"streams" ?: ?2.*"keyLifeSeconds" ?: ?3600`, string(records[0].Data))
		require.NotContains(t, string(records[0].Data), "AAA")
		found, err := k.admin.Verify(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, found.Violations)
	})
}

// R7: of two commands with one key that were sent less than its life apart one is carried out, however late the
// consumer comes to the second.
func TestACommandThatIsNotHandledYetKeepsItsReservation(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		send(t, k.Store, command, Deposit{"AAA", 1})
		k.handle(t, commands, k.inline(t))
		k.age(t, keyLife-time.Minute)
		late := send(t, k.Store, command, Deposit{"AAA", 1})
		_, err := newReserver(t, k.Store, nil).Reserve(t.Context(), late, "other") // which is not the last of its category then
		require.NoError(t, err)
		k.age(t, 10*keyLife)
		late = all(t, k.Store, command)[1]

		require.Zero(t, k.forget(t))
		forgotten, err := k.admin.Forget(t.Context(), reservedAt, keyLife, nil)
		require.NoError(t, err)
		require.Equal(t, late.Time, forgotten.Unhandled.UTC())
		k.handle(t, commands, k.inline(t))

		require.Equal(t, []string{"AAA"}, k.effects)
		_, err = operate.Consumer(k.Store, commands, "accounts").Pause(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), k.forget(t), "a consumer that is paused is where it was")
		require.False(t, k.isTaken(t, command, "AAA"))
	})
}

// R7: the effect of a copy comes with its delivery, so it stays until then, whichever consumers there are.
func TestACopyThatWasNotDeliveredIsNotForgotten(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		send(t, k.Store, command, Deposit{"AAA", 1})
		send(t, k.Store, command, Deposit{"last", 1})
		k.handle(t, commands, k.copying(t))
		k.age(t, 10*keyLife)
		require.Zero(t, k.forget(t), "nobody has delivered a copy")

		failing := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("boom") })
		require.Error(t, testkit.Must(consumer.New(k.Store, reservedAt, "accounts", failing, &consumer.Config{
			Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}},
		})).CatchUp(t.Context()))
		require.Zero(t, k.forget(t), "nor has the consumer of the copies passed it")

		k.handle(t, reservedAt, k.copying(t))
		require.Equal(t, []string{"AAA", "last"}, k.effects)
		k.age(t, 10*keyLife)
		require.Equal(t, int64(1), k.forget(t))
		require.False(t, k.isTaken(t, command, "AAA"))
	})
}

// R7: what an operator redrives meets its reservation.
func TestAReservationWhoseCommandIsParkedIsNotForgotten(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		other := commands.Stream("456")
		sources := map[messagestore.StreamName]*messagestore.Message{}
		for _, stream := range []messagestore.StreamName{command, other, commands.Stream("789"), commands.Stream("last")} {
			sources[stream] = send(t, k.Store, stream, Deposit{"AAA", 1})
		}
		k.handle(t, commands, k.inline(t))
		copied, err := newReserver(t, k.Store, nil).Lookup(t.Context(), command, "AAA")
		require.NoError(t, err)
		for _, m := range []*messagestore.Message{copied.Winner, sources[other]} {
			category := m.Stream.Category()
			parks := handler.HandlerFunc(func(_ context.Context, got *messagestore.Message) error {
				if got.ID == m.ID {
					return handler.Park(errors.New("no"))
				}
				return nil
			})
			require.NoError(t, testkit.Must(consumer.New(k.Store, category, "parking", parks, &consumer.Config{Logger: logger.Silent(), Start: consumer.FromStart()})).CatchUp(t.Context()))
			require.Len(t, parkedOf(t, k.Store, category, "parking"), 1)
		}
		k.age(t, 10*keyLife)

		require.Equal(t, int64(1), k.forget(t), "neither of the two keys goes")
		require.True(t, k.isTaken(t, command, "AAA"))
		require.True(t, k.isTaken(t, other, "AAA"))
		for _, m := range []*messagestore.Message{copied.Winner, sources[other]} {
			_, err = testkit.Must(operate.Consumer(k.Store, m.Stream.Category(), "parking").Parked()).Drop(t.Context(), "void", m.GlobalPosition)
			require.NoError(t, err)
		}
		require.Equal(t, int64(2), k.forget(t))
	})
}

// R7: a life that comes after the first key is none, nor is another than the first.
func TestOnlyTheLifeThatWasDeclaredFirstCounts(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		reserve := func(name string, life time.Duration, key string) error {
			r := named(t, k.Store, name, &reservation.Config{KeyLife: life, Logger: logger.Silent()})
			_, err := r.Reserve(t.Context(), send(t, k.Store, command, Deposit{key, 1}), key)
			return err
		}
		refused := func(err error, rule string) {
			t.Helper()
			invalid, is := errors.AsType[*messagestore.InvalidError](err)
			require.True(t, is, "%v", err)
			require.Equal(t, "KeyLife", invalid.Field)
			require.ErrorContains(t, err, rule)
		}
		require.NoError(t, reserve("ever", 0, "AAA"))
		refused(reserve("ever", time.Hour, "BBB"), "account:command+reservation+ever had a key before a life of keys was declared")
		k.age(t, 1000*time.Hour)
		_, err := k.admin.Forget(t.Context(), "account:command+reservation+ever", 999*time.Hour, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "have had a KeyLife declared before its first key")
		_, err = k.WriteInitial(t.Context(), removal.KeyLifeStream("account:command+reservation+ever"), removal.KeyLifeDeclared{Seconds: 60})
		require.NoError(t, err)
		_, err = k.admin.Forget(t.Context(), "account:command+reservation+ever", 999*time.Hour, nil)
		require.ErrorContains(t, err, "stay for ever", "by the hand of a third")
		refused(reserve("ever", time.Minute, "BBB"), "account:command+reservation+ever had a key before a life of keys was declared")

		require.NoError(t, reserve("hour", time.Hour, "AAA"))
		require.NoError(t, reserve("hour", time.Hour, "BBB"), "a process that starts later")
		require.NoError(t, reserve("hour", 0, "CCC"), "it knows of no life")
		refused(reserve("hour", 2*time.Hour, "DDD"), "account:command+reservation+hour+life-1 has 1h0m0s")

		// A consumer stops at the first command, under every policy, and parks nothing.
		_, err = catchUpAs(t, k.Store, "hour", muxOf(forms["Inline"](named(t, k.Store, "hour", &reservation.Config{KeyLife: 2 * time.Hour}), func() {})))
		refused(err, "has 1h0m0s")
		require.Empty(t, parkedOf(t, k.Store, commands, "hour"))
	})
}

// A racing store has another process come in before a step of the declaration.
type racing struct {
	*messagestore.Store
	look, write func()
}

func (s *racing) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.look()
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *racing) TryWriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, *messagestore.Conflict, error) {
	if strings.HasSuffix(string(writes[0].Stream), "+life-1") {
		s.write()
	}
	return s.Store.TryWriteStreams(ctx, writes...)
}

// racingAt returns a racing store whose other process comes in before a step.
func racingAt(store *messagestore.Store, step string, comesIn func()) *racing {
	s := &racing{store, func() {}, func() {}}
	switch once := sync.OnceFunc(comesIn); step {
	case "look":
		s.look = once
	case "write":
		s.write = once
	}
	return s
}

// The first of several processes declares, whichever that is.
func TestReserversOfOneLifeMayStartAtOnce(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		for name, life := range map[string]time.Duration{"same": keyLife, "other": 2 * keyLife} {
			for _, step := range []string{"look", "write"} {
				comesIn := func() {
					_, err := named(t, k.Store, name+step, &reservation.Config{KeyLife: life, Logger: logger.Silent()}).
						Reserve(t.Context(), send(t, k.Store, command, Deposit{"AAA", 1}), "AAA")
					require.NoError(t, err)
				}
				store := racingAt(k.Store, step, comesIn)
				m := send(t, k.Store, command, Deposit{"BBB", 1})

				_, err := named(t, store, name+step, &reservation.Config{KeyLife: keyLife, Logger: logger.Silent()}).Reserve(t.Context(), m, "BBB")

				if life == keyLife {
					require.NoError(t, err, step)
				} else {
					require.ErrorContains(t, err, "has 2h0m0s", step)
				}
				declared, err := k.Version(t.Context(), removal.KeyLifeStream(commands.WithType("reservation").WithType(name+step)))
				require.NoError(t, err)
				require.Zero(t, declared, "there is one declaration")
			}
		}
	})
}

// R7: whichever step of the declaration the first key comes before, no process takes the life to be one, and neither does
// dibs forget.
func TestALifeThatCameAfterAKeyIsRefusedByAll(t *testing.T) {
	t.Parallel()
	eachKeeper(t, func(t *testing.T, k *keeper) {
		for _, step := range []string{"look", "write"} {
			first := send(t, k.Store, command, Deposit{"AAA", 1})
			m := send(t, k.Store, command, Deposit{"BBB", 1})
			racer := racingAt(k.Store, step, func() {
				_, err := named(t, k.Store, step, &reservation.Config{Logger: logger.Silent()}).Reserve(t.Context(), first, "AAA")
				require.NoError(t, err)
			})
			for _, store := range []reservation.Store{racer, racer, k.Store} {
				_, err := named(t, store, step, &reservation.Config{KeyLife: keyLife, Logger: logger.Silent()}).Reserve(t.Context(), m, "BBB")
				invalid, is := errors.AsType[*messagestore.InvalidError](err)
				require.True(t, is, "%s: %v", step, err)
				require.Equal(t, "KeyLife", invalid.Field)
				require.ErrorContains(t, err, "had a key before a life of keys was declared", step)
			}
			k.age(t, 10*keyLife)
			_, err := k.admin.Forget(t.Context(), commands.WithType("reservation").WithType(step), keyLife, nil)
			require.ErrorContains(t, err, "have had a KeyLife declared before its first key", step)
		}
	})
}

// R7: a key whose transaction has yet to commit when the life is declared came first.
func TestALifeWaitsForKeysOnTheirWay(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"alone": false, "shared": true} { // the lock of the key's category
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			place := commands.WithType("reservation").WithType(name) // one hash for all schemas, and one for each sub-test
			pool, schema := pgtest.Schema(t)
			config := &postgres.Config{Schema: schema}
			store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil))
			first, m := send(t, store, command, Deposit{"AAA", 1}), send(t, store, command, Deposit{"BBB", 1})
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it has ended
			if shared {
				_, err = tx.Exec(t.Context(), fmt.Sprintf("select from %s.append_shared($1, -1, gen_random_uuid(), 'Deposit', '{}', null)", schema),
					place.Stream("123").With("AAA"))
			} else {
				_, err = named(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, config)), nil)), name, nil).Reserve(t.Context(), first, "AAA")
			}
			require.NoError(t, err)

			late := named(t, store, name, &reservation.Config{KeyLife: keyLife, Logger: logger.Silent()})
			refused := make(chan error, 1)
			go func() {
				_, err := late.Reserve(t.Context(), m, "BBB")
				refused <- err
			}()
			testkit.AwaitTrue(t, "the declaration waits", func() bool {
				var waits bool
				require.NoError(t, pool.QueryRow(t.Context(), fmt.Sprintf(
					"select exists (select from pg_locks where classid = 1684628083 and objid::bigint = %s.lock_key($1)::bigint & 4294967295 and not granted)", schema,
				), string(place)).Scan(&waits))
				return waits
			})
			require.NoError(t, tx.Commit(t.Context()))

			require.ErrorContains(t, <-refused, "had a key before a life of keys was declared")
		})
	}
}

// A life that nobody can end is none, and no command finds out.
func TestALifeOfKeysThatCannotEndIsRefused(t *testing.T) {
	t.Parallel()
	k := keptBySQLite(t)
	for name, with := range map[string]struct {
		store reservation.Store
		life  time.Duration
	}{
		"memory": {newStore(), time.Hour},
		"less":   {k.Store, time.Minute - 1},
		"more":   {k.Store, 101 * 365 * 24 * time.Hour},
		"none":   {k.Store, -1},
	} {
		_, err := reservation.New(with.store, "accounts", &reservation.Config{KeyLife: with.life})
		invalid, is := errors.AsType[*messagestore.InvalidError](err)
		require.True(t, is, name)
		require.Equal(t, "KeyLife", invalid.Field, name)
	}
}
