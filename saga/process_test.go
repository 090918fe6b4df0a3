package saga_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/saga"
)

// A process of the kill test is this program with this variable.
const databaseVariable = "SAGA_TEST_DATABASE"

// The fates of the sagas of the kill test, by turns.
var fates = []string{"completes", "ticket refused", "seats refused", "car refused", "flight fails once", "undo fails once"}

// A rower is a pool or a transaction.
type rower interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// effect records a call of a step, in a transaction of its own or in tx.
func effect(ctx context.Context, db rower, what string) (calls int, err error) {
	key := saga.Key(ctx)
	stream, _, _ := strings.Cut(strings.TrimPrefix(key, "booking:saga-"), "+")
	return calls, db.QueryRow(ctx, `with added as (insert into effects (saga, what, key) values ($1, $2, $3))
		select count(*) from effects where saga = $1 and what = $2`, stream, what, key).Scan(&calls)
}

// agency is the saga of the kill test: a call, a transaction, a sleep, a command with its reply, and a call. Its
// effects are rows of the table effects.
func agency(store *messagestore.Store, pool *pgxpool.Pool) (*saga.Saga[string, int], error) {
	txs, err := messagestore.Transactional[pgx.Tx](store)
	if err != nil {
		return nil, err
	}
	call := func(name, refused, fails string) *saga.Step[string, int] {
		return saga.NewStep(name,
			func(ctx context.Context, fate string) (int, error) {
				n, err := effect(ctx, pool, "do "+name)
				switch {
				case err == nil && fate == refused:
					return 0, refusal(name + " is refused")
				case err == nil && fate == fails && n == 0:
					return 0, errDown
				}
				return n, err
			},
			func(ctx context.Context, fate string, _ *int) error {
				n, err := effect(ctx, pool, "undo "+name)
				if err == nil && fate == "undo fails once" && n == 0 {
					return errDown
				}
				return err
			}, soon)
	}
	flight, ticket := call("flight", "", "flight fails once"), call("ticket", "ticket refused", "")
	seats := saga.NewTxStep("seats", txs,
		func(ctx context.Context, tx pgx.Tx, fate string) (int, error) {
			n, err := effect(ctx, tx, "do seats")
			if err == nil && fate == "seats refused" {
				err = refusal("no seats")
			}
			return n, err
		},
		func(ctx context.Context, tx pgx.Tx, _ string, _ *int) error {
			_, err := effect(ctx, tx, "undo seats")
			return err
		}, soon)
	car := saga.NewAsk[string, rented]("car",
		func(ctx context.Context, fate string) (messagestore.StreamWrite, error) {
			return messagestore.To("car:command-"+messagestore.StreamName(text.EscapeID(saga.Key(ctx))), messagestore.AnyVersion, rent{fate}), nil
		}, nil, nil)
	book := func(s *saga.Run, fate string) (int, error) {
		if _, err := flight.Do(s, fate); err != nil {
			return 0, err
		}
		if _, err := seats.Do(s, fate); err != nil {
			return 0, err
		}
		if err := s.Sleep("pause", 10*time.Millisecond); err != nil {
			return 0, err
		}
		if _, err := car.Do(s, fate); err != nil {
			return 0, err
		}
		if _, err := ticket.Do(s, fate); err != nil {
			return 0, err
		}
		if fate == "undo fails once" {
			return 0, errors.New("the customer does not want it")
		}
		return 1, nil
	}
	return saga.New(store, "booking", book, saga.Steps{flight, seats, car, ticket}, &saga.Config{
		Lease: time.Second, PollInterval: 20 * time.Millisecond, Logger: silent,
	})
}

// travelAgency runs the sagas and answers their commands, until its standard input ends.
func travelAgency(url string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // the test has ended
	}()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	s, err := agency(store, pool)
	if err != nil {
		return err
	}
	mux := handler.New()
	handler.Register(mux, saga.Answer(s, "car", func(_ context.Context, m handler.Message[rent]) (rented, error) {
		if m.Body.City == "car refused" {
			return rented{}, refusal("no cars")
		}
		return rented{"a car"}, nil
	}))
	answers := testkit.Must(consumer.New(store, "car:command", "answers", mux, &consumer.Config{
		Lease: time.Second, Logger: silent, Start: consumer.FromStart(), Correlation: s.Category(), PollInterval: 20 * time.Millisecond,
	}))
	ended := make(chan error, 2)
	go func() { ended <- s.Run(ctx) }()
	go func() { ended <- answers.Run(ctx) }()
	err = <-ended
	cancel()
	return errors.Join(err, <-ended)
}

// Two processes run sagas, and one or the other is killed with SIGKILL again and again until all have ended. Then each
// transaction of a step was committed once, each call was made at least once, with one key, and each saga that is
// compensated is undone in reverse.
func TestSagasEndThoughTheirProcessesAreKilled(t *testing.T) {
	t.Parallel()
	rounds := 3
	if testkit.Long() {
		rounds = 12
	}
	portion := 2 * len(fates)
	sagas := rounds * portion
	url := pgtest.Migrated(t)
	pool := pgtest.Connect(t, url)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	_, err := pool.Exec(t.Context(), "create table effects (id bigserial primary key, saga text, what text, key text)")
	require.NoError(t, err)
	s, err := agency(store, pool)
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(7, 11))
	count := func(types ...string) (n int) {
		err := pool.QueryRow(t.Context(), "select count(*) from message_store.messages where stream_name like 'booking:saga-%' and (type = any($1) or $1 is null)", types).Scan(&n)
		require.NoError(t, err)
		return n
	}

	twins := []*exec.Cmd{startAgency(t, url), startAgency(t, url)}
	for round := range rounds {
		for i := round * portion; i < (round+1)*portion; i++ {
			begin(t, s, strconv.Itoa(i), fates[i%len(fates)])
		}
		// Each of the new sagas writes more than three messages.
		for until, kills := count(), 0; kills < 2; kills++ {
			until += random.IntN(portion)
			testkit.Await(t, "the sagas go on", func() (bool, any) {
				n := count()
				return n > until, fmt.Sprintf("%d messages, not yet more than %d", n, until)
			})
			which := random.IntN(len(twins))
			require.NoError(t, twins[which].Process.Kill())
			_ = twins[which].Wait()
			twins[which] = startAgency(t, url)
		}
	}
	testkit.AwaitEqual(t, "sagas that have ended", sagas, func() int { return count("Completed", "Compensated") })

	for i := range sagas {
		checkEffects(t, pool, events(t, store, strconv.Itoa(i)), strconv.Itoa(i), fates[i%len(fates)])
	}
}

// startAgency starts a process, which ends with the test.
func startAgency(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), databaseVariable+"="+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// checkEffects compares the rows of a saga with its events.
func checkEffects(t *testing.T, pool *pgxpool.Pool, all []string, id, fate string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), "select what, key from effects where saga = $1 order by id", id) //nolint:rowserrcheck // ForEachRow checks it
	require.NoError(t, err)
	times, keys := map[string]int{}, map[string]bool{}
	var done, undone []string // each at its first time
	var what, key string
	_, err = pgx.ForEachRow(rows, []any{&what, &key}, func() error {
		verb, step, _ := strings.Cut(what, " ")
		if times[what]++; times[what] == 1 && verb == "do" {
			done = append(done, step)
		} else if times[what] == 1 {
			undone = append(undone, step)
		}
		keys[key] = true
		return nil
	})
	require.NoError(t, err)
	when := fmt.Sprintf("saga %s, which %s: %v, %v", id, fate, all, times)

	checkEvents(t, all, when)
	// The steps with rows: those of a transaction that is refused are rolled back, and the command has none.
	refusedAt := map[string]int{"seats refused": 1, "car refused": 2, "ticket refused": 3}
	steps := []string{"flight", "seats", "ticket"}
	if n, is := refusedAt[fate]; is || fate == "undo fails once" {
		require.Equal(t, "Compensated", all[len(all)-1], when)
		if is {
			steps = steps[:n]
		}
		back := slices.Clone(steps)
		slices.Reverse(back)
		require.Equal(t, back, undone, when)
	} else {
		require.Equal(t, "Completed", all[len(all)-1], when)
		require.Empty(t, undone, when)
	}
	require.Equal(t, steps, done, when)
	require.Len(t, keys, len(steps), "%s: a step has one key", when)
	for _, verb := range []string{"do", "undo"} {
		require.LessOrEqual(t, times[verb+" seats"], 1, "%s: a transaction is committed once", when)
	}
	if fate == "flight fails once" {
		require.Greater(t, times["do flight"], 1, when)
	}
}
