package cli_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// turns has the turns of the sagas that were made, as a runner that suspends 3 and completes 4.
func turns(t *testing.T, store *messagestore.Store) {
	t.Helper()
	used, err := store.Driver()
	require.NoError(t, err)
	driver, is := used.(queuing.Driver)
	require.True(t, is)
	take := queuing.Take{
		Queue: queuing.Queue{Name: "booking:saga", Category: "booking:saga"}, Policy: queuing.Policy{MaxFailures: 1}, Wakes: []string{"Resumed"},
		Session: 1, Lease: time.Hour, Want: 10,
	}
	taken, err := driver.QueueTake(t.Context(), take)
	require.NoError(t, err)
	for _, item := range taken.Items {
		finish := queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Wait, Delay: queuing.MaxDelay}
		switch item.Message.Stream.CardinalID() {
		case "2":
			finish.Kind, finish.Delay = queuing.Bury, 0
			finish.Error = "the store refuses it"
		case "3":
			finish.Kind = queuing.Suspend
		case "4":
			finish = queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Complete}
		}
		take.Finishes = append(take.Finishes, finish)
	}
	take.Want = 0
	_, err = driver.QueueTake(t.Context(), take)
	require.NoError(t, err)
}

// sagas makes sagas in each state, without a runner.
func sagas(t *testing.T, store *messagestore.Store) {
	t.Helper()
	raw := func(messageType, data string) messagestore.Raw {
		return messagestore.Raw{Type: messageType, Data: []byte(data)}
	}
	started := raw("Started", `{"definition":"booking","version":2,"input":{"to":"LIS"}}`)
	began := raw("Began", `{"step":"flight","attempt":1}`)
	for i, events := range [][]messagestore.Body{
		{started},
		{started, began, raw("Failed", `{"step":"flight","attempt":1,"error":"down","retryAt":9000000000000000}`)},
		{started, began, raw("Suspended", `{"why":"failed","step":"flight","reason":"no such flight"}`)},
		{started, raw("Completed", `{"output":{}}`)},
	} {
		_, err := store.Write(t.Context(), messagestore.Category("booking:saga").Stream(fmt.Sprint(i+1)), messagestore.NoStream, events...)
		require.NoError(t, err)
	}
}

func TestSagasAreListedShownAndChanged(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		sagas(t, store)
		dibs.script(t, "sagas", store, map[string]func(){"the turns": func() { turns(t, store) }})
	})
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		sagas(t, store)
		dibs.script(t, "sagas-changed", store, nil)
	})
}

func TestBadSagaArgumentsMakeNoConnection(t *testing.T) {
	t.Parallel()
	(&shell{env: map[string]string{"DIBS_STORE": "postgres://" + closedPort(t) + "/none"}}).script(t, "sagas-invalid", nil, nil)
}

// approved is a saga that waits for a signal with a number.
func approved(t *testing.T, store *messagestore.Store, version int) *saga.Saga[int, int] {
	t.Helper()
	f := func(r *saga.Run, _ int) (int, error) { return saga.Receive[int](r, "approved", time.Hour) }
	config := &saga.Config{Version: version, Logger: logger.Silent()}
	if version > 1 {
		config.Earlier = map[int]any{1: f}
	}
	return testkit.Must(saga.New(store, "booking", f, nil, config))
}

// ran runs sagas until the test ends.
func ran(t *testing.T, s *saga.Saga[int, int]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, testkit.Receive(t, "the run ends", done))
	})
}

// says waits until a command prints a text, and returns all that it prints.
func says(t *testing.T, dibs *shell, text string, args ...string) (all string) {
	t.Helper()
	testkit.Await(t, "the command prints "+text, func() (bool, any) {
		r := dibs.run(t, args...)
		all = r.stdout
		return r.code == 0 && strings.Contains(all, text), r
	})
	return all
}

func TestASagaOfALaterVersionSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for _, id := range []string{"7", "8"} {
			_, err := approved(t, store, 2).Begin(t.Context(), id, 1)
			require.NoError(t, err)
		}
		ran(t, approved(t, store, 1))
		const waits = "waits for a process of version 2"

		require.Regexp(t, `(?m)^booking:saga +release +2  each `+waits+`$`, says(t, dibs, "2  each "+waits, "queue", "blocked", "booking:saga"))
		require.Regexp(t, `^state +id +age +step *\nrunning +7 +\S+s +- +`+waits+`\nrunning +8 +\S+s +- +`+waits+`\n$`, dibs.ok(t, "saga", "ls", "booking:saga"))
		require.Regexp(t, `(?m)^why +`+waits+`$`, dibs.ok(t, "saga", "show", "booking:saga", "7"))
		require.Equal(t, strings.TrimPrefix(waits, "waits for "), objects(t, dibs.ok(t, "saga", "show", "booking:saga", "7", "--json"))[0]["waits"])
		says(t, dibs, `"cause":"release"`, "queue", "blocked", "booking:saga", "--json")
	})
}

func TestASignalThatDoesNotFitIsPassedOver(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		s := approved(t, store, 1)
		for _, id := range []string{"7", "8"} {
			_, err := s.Begin(t.Context(), id, 1)
			require.NoError(t, err)
		}
		ran(t, s)
		_, err := store.WriteStreams(t.Context(), s.Signal("7", "approved", "yes"))
		require.NoError(t, err)
		require.Regexp(t, `(?m)^suspended +7 +\S+s +approved +invalid: the value of the signal approved does not fit: `, says(t, dibs, "invalid: ", "saga", "ls", "booking:saga", "--state", "suspended"))

		require.Equal(t, 2, dibs.run(t, "saga", "signal", "booking:saga", "7", "--reason", "it is a number").code, "without --skip")
		require.Equal(t, 2, dibs.run(t, "saga", "signal", "booking:saga", "7", "--skip=false", "--reason", "it is a number").code)
		r := dibs.run(t, "saga", "signal", "booking:saga", "8", "--skip", "--reason", "it is a number", "--json")
		require.Equal(t, 1, r.code, "it is not suspended")
		require.Equal(t, "sagaState", objects(t, r.stderr)[0]["kind"])
		require.Contains(t, r.stderr, "it is suspended for no signal")
		r = dibs.run(t, "saga", "signal", "booking:saga", "none", "--skip", "--reason", "it is a number", "--json")
		require.Equal(t, "notFound", objects(t, r.stderr)[0]["kind"])
		require.Equal(t, "skip a signal of booking:saga-7 is recorded; it was suspended\n",
			dibs.ok(t, "saga", "signal", "booking:saga", "7", "--skip", "--reason", "it is a number", "--by", "ann"))

		says(t, dibs, "waits for the signal approved", "saga", "ls", "booking:saga", "--state", "running")
		require.Regexp(t, `Resumed +.*it is a number`, dibs.ok(t, "saga", "show", "booking:saga", "7"))
		_, err = store.WriteStreams(t.Context(), s.Signal("7", "approved", 7))
		require.NoError(t, err)
		status, err := s.Wait(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, saga.StateCompleted, status.State)
		require.Equal(t, 7, status.Out, "the signal behind the one that was passed over")
	})
}
