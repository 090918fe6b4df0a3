package natsbroker_test

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// consumerOf makes a consumer of the stream OUT.
func consumerOf(t testing.TB, js jetstream.JetStream, config jetstream.ConsumerConfig) jetstream.Consumer {
	config.Durable, config.AckPolicy = "in", jetstream.AckExplicitPolicy
	config.AckWait = cmp.Or(config.AckWait, time.Hour)
	c, err := js.CreateOrUpdateConsumer(t.Context(), "OUT", config)
	require.NoError(t, err)
	return c
}

// publish adds messages with ids to a stream that remembers them. A request that is sent while the server goes
// away gets no answer, and is sent again.
func publish(t testing.TB, js jetstream.JetStream, ids ...string) {
	for _, id := range ids {
		data := fmt.Appendf(nil, `{"amount":%d}`, len(id))
		await.That(t, "the stream has "+id, func() (bool, any) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := js.Publish(ctx, string(outgoing)+".k", data, jetstream.WithMsgID(id))
			return err == nil, err
		})
	}
}

func untilAcked(t testing.TB, r *natsbroker.Receiver, messages int64) {
	t.Helper()
	await.That(t, fmt.Sprint("acknowledged messages: ", messages), func() (bool, any) { return r.Stats().Acked == messages, r.Stats() })
}

// until waits until the function was called with a message.
func (s *seen) until(t testing.TB, id string) {
	t.Helper()
	await.That(t, "the receiver has "+id, func() (bool, any) {
		all := s.all()
		return slices.Contains(all, id), all
	})
}

func receiverOf(c jetstream.Consumer, f func(ctx context.Context, m jetstream.Msg) error, config *natsbroker.ReceiverConfig) *natsbroker.Receiver {
	var full natsbroker.ReceiverConfig
	if config != nil {
		full = *config
	}
	full.Logger = logger.Silent()
	return must.New(natsbroker.NewReceiver(c, f, &full))
}

// seen collects the ids that a function is called with.
type seen struct {
	mu  sync.Mutex
	ids []string
}

func (s *seen) add(m jetstream.Msg) (times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := m.Headers().Get(jetstream.MsgIDHeader)
	s.ids = append(s.ids, id)
	for _, one := range s.ids {
		if one == id {
			times++
		}
	}
	return times
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids)
}

// info returns what the server knows of a consumer.
func info(t testing.TB, c jetstream.Consumer) *jetstream.ConsumerInfo {
	i, err := c.Info(t.Context())
	require.NoError(t, err)
	return i
}

func TestAMessageIsAcknowledgedOnlyAfterTheFunction(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{})
	publish(t, js, "one", "two", "three")
	var got seen
	begun, finish := make(chan struct{}), make(chan struct{})
	r := receiverOf(c, func(_ context.Context, m jetstream.Msg) error {
		if got.add(m); m.Headers().Get(jetstream.MsgIDHeader) == "two" {
			close(begun)
			<-finish
		}
		return nil
	}, nil)
	stop := running(t, r.Run)
	await.Receive(t, "a call of the function", begun)

	during := info(t, c)
	require.Equal(t, uint64(1), during.AckFloor.Stream, "the first is acknowledged")
	require.Equal(t, 1, during.NumAckPending, "and the second is not, while the function has it")
	require.Equal(t, natsbroker.ReceiverStats{Acked: 1}, r.Stats())
	require.ErrorIs(t, r.Run(t.Context()), natsbroker.ErrRunning)

	close(finish)
	untilAcked(t, r, 3)
	stop()
	require.Equal(t, []string{"one", "two", "three"}, got.all())
	require.Zero(t, info(t, c).NumAckPending)
	require.Zero(t, info(t, c).NumPending)
}

func TestAMessageThatFailsComesAgainUntilItIsDone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"error":  func() error { return errors.New("try again") },
		"panic":  func() error { panic("at the disco") },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			js := b.connect()
			b.stream(js, remembers)
			c := consumerOf(t, js, jetstream.ConsumerConfig{})
			publish(t, js, "one", "two")
			var got seen
			r := receiverOf(c, func(_ context.Context, m jetstream.Msg) error {
				if got.add(m) < 3 && m.Headers().Get(jetstream.MsgIDHeader) == "one" {
					return fail()
				}
				return nil
			}, &natsbroker.ReceiverConfig{MaxDelay: 100 * time.Millisecond})
			stop := running(t, r.Run)
			untilAcked(t, r, 2)
			stop()

			require.Equal(t, natsbroker.ReceiverStats{Acked: 2, Delayed: 2}, r.Stats())
			all := got.all()
			slices.Sort(all)
			require.Equal(t, []string{"one", "one", "one", "two"}, all)
		})
	}
}

func TestAMessageThatParksIsRecordedAndComesNoMore(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{})
	publish(t, js, "bad", "good")
	never := handler.Refuse(errors.New("it has no account\n" + strings.Repeat("é", 300)))
	var recorded atomic.Int64
	r := receiverOf(c, func(_ context.Context, m jetstream.Msg) error {
		if m.Headers().Get(jetstream.MsgIDHeader) == "bad" {
			return fmt.Errorf("pay: %w", never)
		}
		return nil
	}, &natsbroker.ReceiverConfig{MaxDelay: 100 * time.Millisecond, OnPark: func(_ context.Context, m jetstream.Msg, err error) error {
		if id := m.Headers().Get(jetstream.MsgIDHeader); id != "bad" || !errors.Is(err, never) {
			t.Errorf("parked %s: %v", id, err)
		}
		if recorded.Add(1) == 1 {
			return errors.New("the store is away") // so it is neither recorded nor lost
		}
		return nil
	}})
	stop := running(t, r.Run)
	await.That(t, "one message is parked, and one acknowledged", func() (bool, any) {
		return r.Stats().Parked == 1 && r.Stats().Acked == 1, r.Stats()
	})
	stop()

	require.Equal(t, natsbroker.ReceiverStats{Acked: 1, Delayed: 1, Parked: 1}, r.Stats())
	require.EqualValues(t, 2, recorded.Load())
	require.Zero(t, info(t, c).NumAckPending, "it waits for no acknowledgement")
}

// The row of a receiver in the table of package handler: the function has the disposition for the first message, once.
func TestDispositions(t *testing.T) {
	t.Parallel()
	const pause = 300 * time.Millisecond
	for name, test := range map[string]struct {
		disposition error
		stats       natsbroker.ReceiverStats
		calls       []string
	}{
		"Park":       {handler.Park(errors.New("no account")), natsbroker.ReceiverStats{Acked: 1, Parked: 1}, []string{"one", "two"}},
		"Refuse":     {handler.Refuse(errors.New("no account")), natsbroker.ReceiverStats{Acked: 1, Parked: 1}, []string{"one", "two"}},
		"Skip":       {handler.Skip("a test account"), natsbroker.ReceiverStats{Acked: 1, Skipped: 1}, []string{"one", "two"}},
		"RetryAfter": {handler.RetryAfter(pause, errors.New("busy")), natsbroker.ReceiverStats{Acked: 2, Delayed: 1}, []string{"one", "one", "two"}},
	} {
		for how, wrap := range map[string]func(error) error{
			"wrapped": func(err error) error { return fmt.Errorf("pay: %w", err) },
			"joined":  func(err error) error { return errors.Join(errors.New("the receipt is lost"), err) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				b := startBroker(t)
				js := b.connect()
				b.stream(js, remembers)
				c := consumerOf(t, js, jetstream.ConsumerConfig{AckWait: time.Hour}) // so only what is given back comes again
				publish(t, js, "one", "two")
				var got seen
				var failed, again time.Time
				r := receiverOf(c, func(_ context.Context, m jetstream.Msg) error {
					switch times := got.add(m); {
					case m.Headers().Get(jetstream.MsgIDHeader) == "two":
					case times == 1:
						failed = time.Now()
						return wrap(test.disposition)
					default:
						again = time.Now()
					}
					return nil
				}, &natsbroker.ReceiverConfig{MaxDelay: 100 * time.Millisecond})
				stop := running(t, r.Run)
				await.That(t, "two messages have ended", func() (bool, any) {
					s := r.Stats()
					return s.Acked+s.Parked+s.Skipped == 2, s
				})
				stop()

				require.Equal(t, test.stats, r.Stats())
				calls := got.all()
				slices.Sort(calls)
				require.Equal(t, test.calls, calls)
				require.Zero(t, info(t, c).NumAckPending, "none waits for an acknowledgement")
				if test.stats.Delayed > 0 {
					require.GreaterOrEqual(t, again.Sub(failed), pause)
				}
			})
		}
	}
}

func TestAMessageThatTakesLongIsNotDeliveredToAnother(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	publish(t, js, "slow")

	ackWait := 50 * time.Millisecond
	await.That(t, "a message stays with its receiver on a machine that is in time", func() (bool, any) {
		ackWait *= 2
		c := consumerOf(t, js, jetstream.ConsumerConfig{AckWait: ackWait})
		var calls atomic.Int64
		r := receiverOf(c, func(context.Context, jetstream.Msg) error {
			calls.Add(1)
			<-time.After(4 * ackWait)
			return nil
		}, &natsbroker.ReceiverConfig{Concurrency: 2})
		stop := running(t, r.Run)
		await.That(t, "the message is acknowledged", func() (bool, any) { return r.Stats().Acked > 0, r.Stats() })
		stop()
		redelivered := info(t, c).NumRedelivered
		require.NoError(t, js.DeleteConsumer(t.Context(), "OUT", "in"))
		return calls.Load() == 1 && redelivered == 0, fmt.Sprintf("within %v: %d calls", 4*ackWait, calls.Load())
	})
}

func TestAReceiverThatStopsFinishesItsWorkOrGivesItBack(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{AckWait: time.Hour}) // so only what is given back comes again
	publish(t, js, "one")
	begun := make(chan struct{}, 1)
	stop := running(t, receiverOf(c, func(ctx context.Context, _ jetstream.Msg) error {
		begun <- struct{}{}
		<-ctx.Done() // longer than Grace
		return ctx.Err()
	}, &natsbroker.ReceiverConfig{Grace: time.Millisecond}).Run)
	await.Receive(t, "a call of the function", begun)
	stop()

	other := receiverOf(c, func(context.Context, jetstream.Msg) error { return nil }, nil)
	stop = running(t, other.Run)
	untilAcked(t, other, 1)
	stop()

	publish(t, js, "two")
	finish := make(chan struct{})
	patient := receiverOf(c, func(ctx context.Context, _ jetstream.Msg) error {
		begun <- struct{}{}
		<-finish
		return ctx.Err()
	}, &natsbroker.ReceiverConfig{Grace: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- patient.Run(ctx) }()
	await.Receive(t, "a call of the function", begun)
	cancel()
	close(finish)
	require.NoError(t, await.Receive(t, "the end of the run", ended))
	require.Equal(t, natsbroker.ReceiverStats{Acked: 1}, patient.Stats(), "within Grace it is finished")
}

func TestAReceiverWaitsForAServerThatIsAway(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{AckWait: time.Second})
	var got seen
	r := receiverOf(c, func(_ context.Context, m jetstream.Msg) error { got.add(m); return nil }, nil)
	stop := running(t, r.Run)
	for round := range 3 {
		publish(t, js, fmt.Sprint("before ", round))
		got.until(t, fmt.Sprint("before ", round))
		b.stop()
		b.start()
	}
	publisher := b.connect()
	publish(t, publisher, "last")
	got.until(t, "last")
	stop()
}

func TestARunEndsWithItsConsumerOrConnection(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.stream(b.connect(), remembers)
	nothing := func(context.Context, jetstream.Msg) error { return nil }

	js := b.connect()
	ended := make(chan error, 1)
	r := receiverOf(consumerOf(t, js, jetstream.ConsumerConfig{}), nothing, nil)
	go func() { ended <- r.Run(t.Context()) }()
	publish(t, js, "one")
	untilAcked(t, r, 1)
	require.NoError(t, js.DeleteConsumer(t.Context(), "OUT", "in"))
	require.ErrorIs(t, await.Receive(t, "the end of the run", ended), jetstream.ErrConsumerDeleted)

	r = receiverOf(consumerOf(t, js, jetstream.ConsumerConfig{}), nothing, nil)
	js.Conn().Close()
	require.ErrorIs(t, r.Run(t.Context()), nats.ErrConnectionClosed)
}

const (
	childStore  = "NATSBROKER_TEST_STORE"
	childServer = "NATSBROKER_TEST_SERVER"
)

// receiveAndHang receives one request in a process of its own, says that it is committed, and waits to be
// killed before it is acknowledged.
func receiveAndHang() error {
	ctx := context.Background()
	conn, err := nats.Connect(os.Getenv(childServer))
	if err != nil {
		return err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	c, err := js.Consumer(ctx, "OUT", "in")
	if err != nil {
		return err
	}
	u, driver, err := openInbox(ctx, os.Getenv(childStore))
	if err != nil {
		return err
	}
	defer driver.Close()
	r, err := natsbroker.NewReceiver(c, func(ctx context.Context, m jetstream.Msg) error {
		if _, err := pay(ctx, u, m); err != nil {
			return err
		}
		fmt.Println("committed")
		select {} // the parent kills the process
	}, nil)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// openInbox opens the store at a path, with a table of payments.
func openInbox(ctx context.Context, path string) (*inbox.Inbox[*sql.Tx], *sqlite.Driver, error) {
	driver, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return nil, nil, err
	}
	txs, err := messagestore.Transactional[*sql.Tx](must.New(messagestore.New(driver, nil)))
	if err == nil {
		_, err = txs.Transact(ctx, "", func(ctx context.Context, tx *sql.Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
			_, err := tx.ExecContext(ctx, "create table if not exists payments (amount int)")
			return nil, err
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, driver.Close())
	}
	u, err := inbox.New(txs, "payments", nil)
	return u, driver, err
}

// pay inserts a row for a message, once.
func pay(ctx context.Context, u *inbox.Inbox[*sql.Tx], m jetstream.Msg) (reservation.Outcome, error) {
	request, err := natsbroker.Request(m, "")
	if err != nil {
		return 0, err
	}
	result, err := u.Receive(ctx, request, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		var paid Paid
		if err := json.Unmarshal(m.Data(), &paid); err != nil {
			return nil, err
		}
		_, err := tx.ExecContext(ctx, "insert into payments values (?)", paid.Amount)
		return nil, err
	})
	return result.Outcome, err
}

func TestAProcessThatIsKilledBetweenCommitAndAckPaysOnce(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{AckWait: time.Second})
	publish(t, js, "order-17")
	path := filepath.Join(t.TempDir(), "bank.db")
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), childStore+"="+path, childServer+"="+b.server.ClientURL())
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "committed\n", line)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Equal(t, 1, info(t, c).NumAckPending, "it was not acknowledged")

	u, driver, err := openInbox(t.Context(), path)
	require.NoError(t, err)
	defer driver.Close()
	outcomes := make(chan reservation.Outcome, 1000)
	r := receiverOf(c, func(ctx context.Context, m jetstream.Msg) error {
		outcome, err := pay(ctx, u, m)
		outcomes <- outcome
		return err
	}, nil)
	stop := running(t, r.Run)
	untilAcked(t, r, 1)
	stop()

	require.NotEmpty(t, outcomes)
	for range len(outcomes) {
		require.Equal(t, reservation.Duplicate, <-outcomes)
	}
	require.Equal(t, 1, payments(t, path))
}

func payments(t *testing.T, path string) (n int) {
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRowContext(t.Context(), "select count(*) from payments").Scan(&n))
	return n
}

// A message is one that a test makes up.
type message struct {
	jetstream.Msg
	subject string
	header  nats.Header
	data    []byte
}

func (m message) Subject() string      { return m.subject }
func (m message) Headers() nats.Header { return m.header }
func (m message) Data() []byte         { return m.data }

func TestWhatAUnitTakesOfAMessage(t *testing.T) {
	t.Parallel()
	of := func(id, subject, data string) message {
		header := nats.Header{}
		if id != "" {
			header.Set(jetstream.MsgIDHeader, id)
		}
		return message{subject: subject, header: header, data: []byte(data)}
	}
	got, err := natsbroker.Request(of("order 17+é", "bank.transfers.ann", `{"amount":1}`), "")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "order 17+é", Source: "bank.transfers", Data: json.RawMessage(`{"amount":1}`)}, got)

	got, err = natsbroker.Request(of("a", "alone", ""), "")
	require.NoError(t, err)
	require.Equal(t, "alone", got.Source)

	m := of("", "bank.transfers.ann", `1`)
	m.header.Set("dibs-id", "01a2")
	got, err = natsbroker.Request(m, "POST /transfers")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "01a2", Source: "POST /transfers", Data: json.RawMessage(`1`)}, got)

	for name, m := range map[string]message{
		"no id":               of("", "a.b", `{}`),
		"no header":           {subject: "a.b", data: []byte(`{}`)},
		"a blank id":          of(" \t", "a.b", `{}`),
		"an invisible id":     of("\u200b", "a.b", `{}`),
		"an id of bytes":      of("\xff", "a.b", `{}`),
		"no JSON":             of("a", "a.b", `{"amount":`),
		"two values":          of("a", "a.b", `{} {}`),
		"bytes":               of("a", "a.b", "\"\xff\""),
		"too large":           of("a", "a.b", `"`+strings.Repeat("x", messagestore.MaxMessageBytes)+`"`),
		"a long source":       of("a", strings.Repeat("x", 256)+".k", `{}`),
		"a source of bytes":   of("a", "\xff.k", `{}`),
		"a source with a NUL": of("a", "\x00.k", `{}`),
	} {
		_, err := natsbroker.Request(m, "")
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.True(t, refuses(err), name)
		require.Less(t, len(err.Error()), 1000, name)
	}
}

func TestMistakesOfAReceiverAreToldTogether(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js := b.connect()
	b.stream(js, remembers)
	c := consumerOf(t, js, jetstream.ConsumerConfig{})
	f := func(context.Context, jetstream.Msg) error { return nil }
	_, err := natsbroker.NewReceiver(c, f, nil)
	require.NoError(t, err)
	for field, config := range map[string]natsbroker.ReceiverConfig{
		"Concurrency": {Concurrency: 1025}, "MaxDelay": {MaxDelay: time.Millisecond}, "Grace": {Grace: -1},
	} {
		_, err := natsbroker.NewReceiver(c, f, &config)
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, field, invalid.Field)
	}
	r, err := natsbroker.NewReceiver(nil, nil, &natsbroker.ReceiverConfig{Concurrency: -1})
	require.Nil(t, r)
	require.ErrorContains(t, err, "invalid receiver: ")
	require.ErrorContains(t, err, "consumer")
	require.ErrorContains(t, err, "function")
	require.ErrorContains(t, err, "Concurrency")

	none, err := js.CreateOrUpdateConsumer(t.Context(), "OUT", jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckAllPolicy})
	require.NoError(t, err)
	_, err = natsbroker.NewReceiver(none, f, nil)
	require.ErrorContains(t, err, "explicit")
}
