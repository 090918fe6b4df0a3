package saga_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/saga"
)

// onPostgres returns a store in a database that no other test uses, with the rights of a worker and no more.
func onPostgres(t *testing.T) *messagestore.Store {
	t.Helper()
	return testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.ConnectAs(t, pgtest.Migrated(t), "dibs_worker"), nil)), nil))
}

// A process without the right says which role it needs, and ends; it begins sagas all the same.
func TestAWriterBeginsSagasAndRunsNone(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.ConnectAs(t, pgtest.Migrated(t), "dibs_writer"), nil)), nil))
	s := travelWith(t, store, newWorld(), nil, soon)
	begin(t, s, "7", trip{"LIS"})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()

	err := testkit.Receive(t, "the end of Run", ended)

	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_worker to the user of this connection")
}

// soon has the next attempt come at once, for tests in real time.
var soon = &saga.StepConfig{Retry: saga.Retry{MaxBackoff: time.Millisecond}, Undo: saga.Retry{MaxBackoff: time.Millisecond}}

func TestSagasEndOnPostgreSQL(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(w *world)
		state   saga.State
		did     string
		events  []string // none to leave them out
	}{
		"completes": {
			func(*world) {}, saga.StateCompleted, "book flight, book hotel, book car",
			[]string{"Started", "Began flight", "Done flight", "Began hotel", "Done hotel", "Began car", "Done car", "Completed"},
		},
		"refused": {
			func(w *world) { w.fails("book car", 9, refusal("no cars")) }, saga.StateCompensated,
			"book flight, book hotel, book car, cancel car?, cancel hotel, cancel flight",
			[]string{
				"Started", "Began flight", "Done flight", "Began hotel", "Done hotel", "Began car", "Failed car", "Compensating",
				"Undone car", "Undone hotel", "Undone flight", "Compensated",
			},
		},
		"tried again": {
			func(w *world) { w.fails("book hotel", 2, errDown) }, saga.StateCompleted,
			"book flight, book hotel, book hotel, book hotel, book car", nil,
		},
		"undo is tried again": {
			func(w *world) { w.fails("book hotel", 9, refusal("full")); w.fails("cancel hotel", 2, errDown) }, saga.StateCompensated,
			"book flight, book hotel, cancel hotel?, cancel hotel?, cancel hotel?, cancel flight", nil,
		},
		"suspended": {
			func(w *world) { w.fails("book hotel", 1, puzzle("what hotel?")) }, saga.StateSuspended, "book flight, book hotel",
			[]string{"Started", "Began flight", "Done flight", "Began hotel", "Suspended hotel"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, w := onPostgres(t), newWorld()
			test.prepare(w)
			s := travelWith(t, store, w, nil, soon)
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			status := waitInTime(t, s, "7")

			require.Equal(t, test.state, status.State, events(t, store, "7"))
			require.Equal(t, test.did, w.did())
			if test.events != nil {
				require.Equal(t, test.events, events(t, store, "7"))
			}
			for what := range w.calls {
				require.Equal(t, 1, w.keysOf(what), what)
			}
		})
	}
}

func TestASagaIsUndoneAtItsDeadlineOnPostgreSQL(t *testing.T) {
	t.Parallel()
	store := onPostgres(t)
	deadline := 50 * time.Millisecond
	testkit.Await(t, "the first step is done before the deadline, on a machine that is in time", func() (bool, any) {
		deadline *= 2
		w := newWorld()
		w.on("book hotel", func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
		of := *soon
		of.Timeout = deadline // of the second step, which begins later
		s := travelWith(t, store, w, &saga.Config{Deadline: deadline}, &of)
		stop := running(t, s)
		defer stop()
		begin(t, s, deadline.String(), trip{"LIS"})
		status := waitInTime(t, s, deadline.String())
		require.Equal(t, saga.StateCompensated, status.State, events(t, store, deadline.String()))
		return w.did() == "book flight, book hotel, cancel hotel?, cancel flight", w.did()
	})
}

func TestASuspendedSagaIsResumedAndCancelledOnPostgreSQL(t *testing.T) {
	t.Parallel()
	store, w := onPostgres(t), newWorld()
	w.fails("book hotel", 2, puzzle("what hotel?"))
	s := travelWith(t, store, w, nil, soon)
	defer running(t, s)()
	begin(t, s, "7", trip{"LIS"})
	require.Equal(t, saga.StateSuspended, waitInTime(t, s, "7").State)
	version := waitInTime(t, s, "7").Version

	_, err := s.Resume(t.Context(), "7", "this one")
	require.NoError(t, err)
	testkit.Await(t, "the saga is suspended again", func() (bool, any) {
		status := waitInTime(t, s, "7")
		return status.State == saga.StateSuspended && status.Version > version+1, status
	})
	_, err = s.Cancel(t.Context(), "7", "never mind")
	require.NoError(t, err)

	testkit.AwaitEqual(t, "the state of the saga", saga.StateCompensated, func() saga.State { return waitInTime(t, s, "7").State })
	require.Equal(t, "cancelled: never mind", waitInTime(t, s, "7").Reason)
	require.Equal(t, "book flight, book hotel, book hotel, cancel hotel?, cancel flight", w.did())
	_, err = s.Status(t.Context(), "8")
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}

// answering runs a handler of the commands of [withCar], and the consumer that makes replies of its events.
func answering(t *testing.T, store *messagestore.Store, s *saga.Saga[trip, itinerary]) {
	t.Helper()
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[rent]) error {
		_, err := store.Write(ctx, messagestore.Category("car").Stream(m.Body.City), messagestore.AnyVersion, messagestore.Follow(m.Message, rented{m.Body.City + " red"}))
		return err
	})
	handler.On(mux, func(context.Context, handler.Message[giveBack]) error { return nil })
	answers := handler.New()
	handler.Register(answers, saga.Answer(s, "car", func(_ context.Context, m handler.Message[rented]) (rented, error) {
		if m.Body.Car == "OPO red" {
			return rented{}, refusal("no cars in OPO")
		}
		return m.Body, nil
	}))
	config := func(of messagestore.Category) *consumer.Config {
		return &consumer.Config{Logger: silent, Start: consumer.FromStart(), Correlation: of}
	}
	t.Cleanup(running(t, testkit.Must(consumer.New(store, "car:command", "cars", mux, config("")))))
	t.Cleanup(running(t, testkit.Must(consumer.New(store, "car", "answers", answers, config(s.Category())))))
}

func TestAnAskIsAnsweredByItsHandlerOnPostgreSQL(t *testing.T) {
	t.Parallel()
	store, w := onPostgres(t), newWorld()
	s := withCar(t, store, w, nil)
	answering(t, store, s)
	t.Cleanup(running(t, s))

	begin(t, s, "7", trip{"LIS"})
	begin(t, s, "8", trip{"OPO"})

	require.Equal(t, "LIS red", waitInTime(t, s, "7").Out.Car.Reference)
	require.Equal(t, []string{`Rent{"city":"LIS"}`}, commands(t, store, "LIS"))
	status := waitInTime(t, s, "8")
	require.Equal(t, saga.StateCompensated, status.State)
	require.Equal(t, "car: no cars in OPO", status.Reason)
	require.Equal(t, []string{`Rent{"city":"OPO"}`, `GiveBack{}`}, commands(t, store, "OPO"))
}

// Of two processes with one saga the late one meets a conflict and begins nothing.
func TestTheLateProcessBeginsNothingOnPostgreSQL(t *testing.T) {
	t.Parallel()
	store, w := onPostgres(t), newWorld()
	paused, late := make(chan struct{}), make(chan struct{})
	w.on("book flight", func(_ context.Context, call int) error {
		if call == 1 {
			close(paused)
			<-late
		}
		return nil
	})
	one, two := travelWith(t, store, w, nil, soon), travelWith(t, store, w, nil, soon)
	begin(t, one, "7", trip{"LIS"})
	started := first(t, store, "booking:saga-7")
	fenced := make(chan error, 1)
	go func() { fenced <- saga.GoOn(context.Background(), one, started) }()
	testkit.Receive(t, "the first process is in its step", paused)
	require.NoError(t, saga.GoOn(t.Context(), two, started))
	before := events(t, store, "7")
	close(late)

	err := testkit.Receive(t, "the end of the first process", fenced)

	require.ErrorIs(t, err, saga.ErrFenced)
	require.Equal(t, before, events(t, store, "7"))
	require.Equal(t, "book flight, book flight, book hotel, book car", w.did())
	require.Equal(t, 1, w.keysOf("book flight"))
}

// The take that gives a saga its first turn goes with the write that begins it, if the runner waits at that moment.
func TestASagaIsTakenInTheTransactionThatBeginsIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	_, err := pool.Exec(t.Context(), `
		create table public.seen (position bigint, xid xid8);
		create function public.see() returns trigger language plpgsql security definer as $$
		begin
			insert into public.seen values ((to_jsonb(new) ->> tg_argv[0])::bigint, pg_current_xact_id());
			return null;
		end $$;
		create trigger see after insert on dibs.messages for each row execute function public.see('global_position');
		create trigger see after insert on dibs.queue_open for each row execute function public.see('position')`)
	require.NoError(t, err)
	look := saga.NewStep("look", func(ctx context.Context, id string) (together bool, err error) {
		err = pool.QueryRow(ctx, `
			select count(*) = 2 and count(distinct s.xid) = 1 from dibs.messages m join public.seen s on s.position = m.global_position
			where m.stream_name = $1`, "booking:saga-"+id).Scan(&together)
		return together, err
	}, nil, nil)
	s := newSaga(t, store, func(r *saga.Run, id string) (bool, error) { return look.Do(r, id) }, saga.Steps{look}, nil)
	defer running(t, s)()
	n := 0
	testkit.AwaitTrue(t, "the runner waits when a saga begins", func() bool {
		n++
		id := strconv.Itoa(n)
		begin(t, s, id, id)
		return waitInTime(t, s, id).Out
	})
}

// Another client of message-db may write to a stream whose name Dibs refuses. No step is called for it, and the sagas behind it go on, are
// listed and verified.
func TestAStreamOfARefusedNameHoldsNoSaga(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	pool := pgtest.Connect(t, url)
	store, w := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), newWorld()
	_, err := pool.Exec(t.Context(), `select message_store.write_message(gen_random_uuid()::varchar, 'booking:saga-', 'Started', '{"definition":"booking","version":1,"input":{"to":"LIS"}}')`)
	require.NoError(t, err)
	s := travelWith(t, store, w, nil, soon)
	begin(t, s, "7", trip{"LIS"})
	listed := func() (ids []string, wrong []error) {
		for status, err := range s.List(t.Context(), saga.StateRunning, saga.StateCompleted) {
			if err != nil {
				wrong = append(wrong, err)
				continue
			}
			ids = append(ids, status.ID)
		}
		return ids, wrong
	}
	ids, wrong := listed()
	require.Equal(t, []string{"7"}, ids)
	require.Len(t, wrong, 1)
	require.ErrorContains(t, wrong[0], `invalid stream name "booking:saga-"`)
	require.NotErrorIs(t, wrong[0], messagestore.ErrInvalid)
	require.Empty(t, verified(t, store))

	stop := running(t, s)
	status, err := s.Wait(t.Context(), "7")
	require.NoError(t, err)
	require.Equal(t, saga.StateCompleted, status.State)
	testkit.AwaitEqual(t, "streams that hold no saga", 1, func() int64 { return s.Stats().Skipped })
	stop()
	require.Equal(t, "book flight, book hotel, book car", w.did())
	ids, wrong = listed()
	require.Equal(t, []string{"7"}, ids)
	require.Empty(t, wrong)
	require.Empty(t, verified(t, store))
}
