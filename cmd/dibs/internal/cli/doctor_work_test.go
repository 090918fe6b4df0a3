package cli_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// told are the lines of doctor about a group, each with its advice.
func told(t *testing.T, dibs *shell, group string) string {
	t.Helper()
	var all strings.Builder
	for _, line := range objects(t, dibs.run(t, "doctor", "--json").stdout) {
		if line["group"] == group {
			fmt.Fprintf(&all, "%v: %v\n", line["verdict"], line["says"])
			if line["advice"] != nil {
				fmt.Fprintf(&all, "      %v\n", line["advice"])
			}
		}
	}
	return steady(all.String())
}

func TestDoctorNamesConsumersThatStoppedAndMessagesThatFail(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		require.Empty(t, told(t, dibs, "consumers"))
		dibs.ok(t, "write", "account-1", "Opened")
		dibs.ok(t, "write", "account-2", "Opened")
		catchUp(t, store, "account", "done", nil)
		require.Equal(t, "ok: consumer done of account has handled all, and no process runs it\n", told(t, dibs, "consumers"))

		fails := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("no such bank") })
		stops := &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}, Logger: logger.Silent()}
		require.Error(t, testkit.Must(consumer.New(store, "account", "stopped", fails, stops)).Run(t.Context()))
		catchUp(t, store, "account", "parks", errUnwanted)
		dibs.ok(t, "consumers", "reset", "account", "idle", "--start", "--new", "--yes")
		dibs.ok(t, "consumers", "pause", "account", "idle")

		says := told(t, dibs, "consumers")
		require.Contains(t, says, "warn: consumer stopped of account has stopped: no process runs it, and 2 messages are behind it; 1 message fails\n      its log says why; start it again\n")
		require.Regexp(t, `(?m)^warn: consumer stopped of account fails at 1, Opened account-1@0: attempt 1 since \S+: no such bank\n      mend the cause; or have it parked: dibs consumers park account stopped --position 1 --reason TEXT$`, says)
		require.Contains(t, says, "warn: consumer parks of account has handled all, and no process runs it; has parked 2 messages\n      see them with dibs parked list account parks\n")
		require.Contains(t, says, "warn: consumer idle of account is paused since 2006-01-02T15:04:05.000000Z\n      dibs consumers resume account idle ends the pause\n")
		require.Contains(t, dibs.run(t, "doctor", "--quiet").stdout, "consumers\n  warn    consumer ")

		dibs.ok(t, "consumers", "park", "account", "stopped", "--position", "1", "--reason", "no bank")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		takes := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
		go func() { ended <- testkit.Must(consumer.New(store, "account", "stopped", takes, stops)).Run(ctx) }()
		testkit.Await(t, "doctor says that it runs", func() (bool, any) {
			says = told(t, dibs, "consumers")
			return strings.Contains(says, "consumer stopped of account is run by 1 process, and 0 messages are behind it; has parked 1 message\n"), says
		})
		require.NotContains(t, says, "fails at")
		cancel()
		require.NoError(t, testkit.Receive(t, "the end of the consumer", ended))
	})
}

// deaf is a sink that takes nothing.
type deaf struct{}

func (deaf) Send(context.Context, *outbox.Message) error {
	return errors.New("the broker is on holiday")
}

func TestDoctorNamesARelayWhoseSinkIsOut(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		run := func(until string) (says string) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- testkit.Must(outbox.New(store, "payments:outgoing", "tobank", deaf{}, &outbox.Config{Logger: logger.Silent()})).Run(ctx)
			}()
			testkit.Await(t, "doctor says: "+until, func() (bool, any) {
				says = told(t, dibs, "queues")
				return strings.Contains(says, until), says
			})
			cancel()
			require.NoError(t, testkit.Receive(t, "the end of the relay", ended))
			return says
		}
		dibs.ok(t, "write", "payments:outgoing-0", "Pay")
		one := run("1 item waits for another attempt, such as 1: the broker is on holiday\n      see the errors with dibs queue jobs tobank --state later\n")
		require.Contains(t, one, "warn: queue tobank has 0 dead items")
		for i := range 10 {
			dibs.ok(t, "write", fmt.Sprintf("payments:outgoing-%d", i+1), "Pay")
		}
		run("; if it is a relay, its sink is out\n")
	})
}

func TestDoctorNamesSagasThatArePutAside(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		sagas(t, store)
		turns(t, store)

		says := told(t, dibs, "queues")
		require.Regexp(t, `^warn: queue booking:saga has 1 dead item(, and its oldest item that is not finished is of \S+)?; 1 suspended saga\n`, says)
		require.Contains(t, says, "see why with dibs saga ls booking:saga --state suspended, and resume, cancel or resolve them")
	})
}
