package saga_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/saga"
)

// onPostgres returns a store in a database that no other test uses, with the rights of a worker and no more.
func onPostgres(t *testing.T) *messagestore.Store {
	t.Helper()
	return must.New(messagestore.New(must.New(postgres.New(pgtest.ConnectAs(t, pgtest.Migrated(t), "dibs_worker"), nil)), nil))
}

// A process without the right says which role it needs, and ends; it begins sagas all the same.
func TestAWriterBeginsSagasAndRunsNone(t *testing.T) {
	t.Parallel()
	store := must.New(messagestore.New(must.New(postgres.New(pgtest.ConnectAs(t, pgtest.Migrated(t), "dibs_writer"), nil)), nil))
	s := travelWith(t, store, newWorld(), nil, soon)
	begin(t, s, "7", trip{"LIS"})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()

	err := await.Receive(t, "the end of Run", ended)

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

// The take that gives a saga its first turn goes with the write that begins it, if the runner waits at that moment.
func TestASagaIsTakenInTheTransactionThatBeginsIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
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
	await.True(t, "the runner waits when a saga begins", func() bool {
		n++
		id := strconv.Itoa(n)
		begin(t, s, id, id)
		return waitInTime(t, s, id).Out
	})
}
