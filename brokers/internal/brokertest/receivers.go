package brokertest

import (
	"bufio"
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

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// A ReceiverBroker is the broker of one test of receivers.
type ReceiverBroker interface {
	// Publish adds messages like any sender, in their order. It waits until the broker has them.
	Publish(t testing.TB, messages ...Message)

	// Receiver returns a receiver of the messages over its own connection, like another process.
	Receiver(t testing.TB, c ReceiverConfig) Receiver

	// Unsettled returns the number of messages that the broker has not delivered, or would deliver
	// again.
	Unsettled(t testing.TB) int

	// Kill ends the broker like kill -9, and Start starts it with the data that it had stored.
	Kill(t testing.TB)
	Start(t testing.TB)

	// Remake deletes the place of the messages, such as a topic, with everything in it, and makes
	// it again.
	Remake(t testing.TB)

	// Address is for the process of [Main].
	Address() string
}

// A ReceiverConfig has the settings of a receiver that tests use.
type ReceiverConfig struct {
	// Receive gets the result of the module's Request, and Park the request even if it is invalid.
	Receive func(ctx context.Context, r inbox.Request, invalid error) error
	Park    func(ctx context.Context, r inbox.Request, reason error) error

	Concurrency, Attempts int
	MaxDelay, Grace       time.Duration
	Logger                logger.Logger
}

// A Receiver is the Receiver of a module.
type Receiver interface {
	Run(ctx context.Context) error
	Stats() ReceiverStats
}

// ReceiverStats are the counts of a module's receiver.
type ReceiverStats struct {
	Acked, Delayed, Parked, Skipped int64
}

// ReceiverOptions describe a broker for [Receivers].
type ReceiverOptions struct {
	// Start starts a broker for a test, and ends it with the test.
	Start func(t testing.TB) ReceiverBroker

	// Share is Start for a test that does not kill the broker: several tests may share a broker,
	// each with its own part. nil means Start.
	Share func(t testing.TB) ReceiverBroker

	// Ordered says that a receiver passes the messages of a key to its function in their order,
	// even if one of them fails.
	Ordered bool

	// Ends says that Run returns an error when the place of the messages is deleted; then the test
	// calls it again.
	Ends bool
}

// Receivers tests the promises of a receiver.
func Receivers(t *testing.T, o ReceiverOptions) {
	if o.Share == nil {
		o.Share = o.Start
	}
	for name, test := range map[string]func(*testing.T, ReceiverOptions){
		"a message is acknowledged after the function":      ackedAfter,
		"copies in any order have one effect":               copies,
		"a message that fails comes again":                  comesAgain,
		"dispositions":                                      dispositions,
		"a reused key is recorded":                          keyReused,
		"a message that no inbox takes is recorded":         undecodable,
		"attempts are bounded":                              attempts,
		"a key that fails stops no other":                   stuckKey,
		"messages of a key come in order":                   ordered,
		"a receiver that stops gives back":                  givesBack,
		"a receiver that is killed between commit and ack":  killedReceiver,
		"a broker that is killed loses nothing":             killedBrokerOfReceiver,
		"a place that is made again is received from":       placeOfAReceiverMadeAgain,
		"two receivers share the messages, and each is one": twoReceivers,
		"a receiver runs once":                              runsOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

// A bank has an inbox, and a table of payments, over SQLite.
type bank struct {
	payments *inbox.Inbox[*sql.Tx]
	txs      *messagestore.TxStore[*sql.Tx]
	close    func() error
}

func openBank(ctx context.Context, path string) (*bank, error) {
	driver, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	b := &bank{close: driver.Close}
	b.txs, err = messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, &messagestore.Config{Logger: logger.Silent()})))
	if err == nil {
		_, err = b.txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			_, err := tx.ExecContext(ctx, "create table if not exists payments (id text, amount int)")
			return nil, err
		})
	}
	if err == nil {
		b.payments, err = inbox.New(b.txs, "payments", &inbox.Config{Logger: logger.Silent()})
	}
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	return b, nil
}

func newBank(t testing.TB) *bank {
	t.Helper()
	b, err := openBank(context.Background(), filepath.Join(t.TempDir(), "bank.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.close()) })
	return b
}

// pay inserts a row for a request, once per request.
func (b *bank) pay(ctx context.Context, r inbox.Request, invalid error) (reservation.Outcome, error) {
	if invalid != nil {
		return 0, invalid
	}
	result, err := b.payments.Receive(ctx, r, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		var p paid
		if err := json.Unmarshal(r.Data, &p); err != nil {
			return nil, handler.Refuse(err)
		}
		_, err := tx.ExecContext(ctx, "insert into payments values (?, ?)", r.ID, p.Amount)
		return nil, err
	})
	return result.Outcome, err
}

func (b *bank) receive(ctx context.Context, r inbox.Request, invalid error) error {
	_, err := b.pay(ctx, r, invalid)
	return err
}

func (b *bank) config() ReceiverConfig {
	return ReceiverConfig{Receive: b.receive, Park: b.payments.Refuse}
}

// paid returns the ids of the payments, sorted.
func (b *bank) paid(t testing.TB) (ids []string) {
	t.Helper()
	_, err := b.txs.Transact(context.Background(), func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		rows, err := tx.QueryContext(ctx, "select id from payments order by id")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		ids = []string{}
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return nil, rows.Err()
	})
	require.NoError(t, err)
	return ids
}

// refused returns the records of requests that were not carried out.
func (b *bank) refused(t testing.TB) (all []inbox.Refused) {
	t.Helper()
	for m, err := range b.txs.ReadCategory(context.Background(), "payments:inbox+refused", 0, messagestore.Filter{}) {
		require.NoError(t, err)
		var r inbox.Refused
		require.NoError(t, json.Unmarshal(m.Data, &r))
		all = append(all, r)
	}
	return all
}

// orders returns messages with the ids from..to-1, spread over keys.
func orders(from, to, keys int) (all []Message) {
	for i := from; i < to; i++ {
		all = append(all, order(id(i), fmt.Sprint("k", i%keys), i))
	}
	return all
}

func order(id, key string, amount int) Message {
	return Message{ID: id, Key: key, Data: fmt.Sprintf(`{"amount":%d}`, amount)}
}

func sortedIDs(from, to int) (all []string) {
	all = []string{}
	for i := from; i < to; i++ {
		all = append(all, id(i))
	}
	slices.Sort(all)
	return all
}

// receiver returns a receiver with a silent log and short pauses.
func receiver(t testing.TB, b ReceiverBroker, c ReceiverConfig) Receiver {
	c.Logger, c.MaxDelay = logger.Silent(), 100*time.Millisecond
	if c.Park == nil {
		c.Park = func(_ context.Context, r inbox.Request, reason error) error {
			t.Errorf("%s was parked: %v", r.ID, reason)
			return nil
		}
	}
	return b.Receiver(t, c)
}

// running runs a receiver until the returned function is called, or the test ends.
func running(t testing.TB, r Receiver) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := testkit.Receive(t, "the end of a receiver", ended); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// settled waits until the broker has nothing left to deliver.
func settled(t testing.TB, b ReceiverBroker) {
	t.Helper()
	testkit.AwaitEqual(t, "messages that are not settled", 0, func() int { return b.Unsettled(t) })
}

// seen collects the ids that a function is called with.
type seen struct {
	mu  sync.Mutex
	ids []string
}

func (s *seen) add(id string) (times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

func ackedAfter(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	b.Publish(t, orders(1, 4, 1)...)
	var got seen
	begun, finish := make(chan struct{}), make(chan struct{})
	r := receiver(t, b, ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error {
		if got.add(r.ID); r.ID == id(2) {
			close(begun)
			<-finish
		}
		return nil
	}})
	stop := running(t, r)
	testkit.Receive(t, "a call of the function", begun)
	testkit.AwaitEqual(t, "messages that are not settled: the first is", 2, func() int { return b.Unsettled(t) })

	close(finish)
	settled(t, b)
	stop()
	require.Equal(t, []string{id(1), id(2), id(3)}, got.all())
	require.Equal(t, ReceiverStats{Acked: 3}, r.Stats())
}

func copies(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	bank := newBank(t)
	all := orders(0, 20, 4)
	b.Publish(t, shuffled(append(append(all, all...), all...), 7)...)
	c := bank.config()
	c.Concurrency = 4

	stop := running(t, receiver(t, b, c))
	settled(t, b)
	stop()

	require.Equal(t, sortedIDs(0, 20), bank.paid(t))
	require.Empty(t, bank.refused(t))
}

func comesAgain(t *testing.T, o ReceiverOptions) {
	for name, fail := range map[string]func() error{
		"error":  func() error { return errors.New("try again") },
		"panic":  func() error { panic("at the disco") },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := o.Share(t)
			b.Publish(t, order("one", "a", 1), order("two", "b", 2))
			var got seen
			r := receiver(t, b, ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error {
				if got.add(r.ID) < 3 && r.ID == "one" {
					return fail()
				}
				return nil
			}})
			stop := running(t, r)
			settled(t, b)
			stop()

			require.Equal(t, ReceiverStats{Acked: 2, Delayed: 2}, r.Stats())
			all := got.all()
			slices.Sort(all)
			require.Equal(t, []string{"one", "one", "one", "two"}, all)
		})
	}
}

func dispositions(t *testing.T, o ReceiverOptions) {
	const pause = 300 * time.Millisecond
	for name, test := range map[string]struct {
		disposition error
		stats       ReceiverStats
		calls       []string
	}{
		"Park":       {handler.Park(errors.New("no account")), ReceiverStats{Acked: 1, Parked: 1}, []string{"one", "two"}},
		"Refuse":     {handler.Refuse(errors.New("no account")), ReceiverStats{Acked: 1, Parked: 1}, []string{"one", "two"}},
		"Skip":       {handler.Skip("a test account"), ReceiverStats{Acked: 1, Skipped: 1}, []string{"one", "two"}},
		"RetryAfter": {handler.RetryAfter(pause, errors.New("busy")), ReceiverStats{Acked: 2, Delayed: 1}, []string{"one", "one", "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := o.Share(t)
			b.Publish(t, order("one", "a", 1), order("two", "b", 2))
			var got seen
			var failed, again time.Time
			var parked []string
			r := receiver(t, b, ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error {
				switch times := got.add(r.ID); {
				case r.ID == "two":
				case times == 1:
					failed = time.Now()
					return errors.Join(errors.New("the receipt is lost"), fmt.Errorf("pay: %w", test.disposition))
				default:
					again = time.Now()
				}
				return nil
			}, Park: func(_ context.Context, r inbox.Request, _ error) error { parked = append(parked, r.ID); return nil }})
			stop := running(t, r)
			settled(t, b)
			stop()

			require.Equal(t, test.stats, r.Stats())
			calls := got.all()
			slices.Sort(calls)
			require.Equal(t, test.calls, calls)
			require.Len(t, parked, int(test.stats.Parked))
			if test.stats.Delayed > 0 {
				require.GreaterOrEqual(t, again.Sub(failed), pause)
			}
		})
	}
}

func keyReused(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	bank := newBank(t)
	b.Publish(t, order("one", "a", 1), order("one", "a", 2), order("two", "a", 3), order("one", "a", 2))

	stop := running(t, receiver(t, b, bank.config()))
	settled(t, b)
	stop()

	require.Equal(t, []string{"one", "two"}, bank.paid(t))
	refused := bank.refused(t)
	require.Len(t, refused, 1, "the two copies are one request")
	require.JSONEq(t, `{"amount":2}`, string(refused[0].Data))
}

// A message that cannot be read is recorded byte for byte, though the store is away at first, and
// the messages behind it go on.
func undecodable(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	bank := newBank(t)
	noJSON, bytes := "{\"amount\":", "\xff\x00\x01"
	large := `"` + strings.Repeat("x", messagestore.MaxMessageBytes) + `"`
	bad := []Message{
		{ID: "no-json", Key: "a", Data: noJSON},
		{ID: "bytes", Key: "b", Data: bytes},
		{Key: "c", Data: `{"amount":7}`},
		{ID: "large", Key: "d", Data: large},
		{ID: "another type", Key: "e", Data: `{"amount":"much"}`},
	}
	b.Publish(t, append(bad, order("good", "a", 1))...)
	c := bank.config()
	var parked atomic.Int64
	c.Park = func(ctx context.Context, r inbox.Request, reason error) error {
		if parked.Add(1) == 1 {
			return handler.Skip("the store is away") // a disposition here has no effect
		}
		return bank.payments.Refuse(ctx, r, reason)
	}

	r := receiver(t, b, c)
	stop := running(t, r)
	settled(t, b)
	stop()

	require.Equal(t, ReceiverStats{Acked: 1, Delayed: 1, Parked: int64(len(bad))}, r.Stats())
	require.Equal(t, []string{"good"}, bank.paid(t))
	data := map[string]int{}
	parts := map[string]string{}
	for _, r := range bank.refused(t) {
		require.NotEmpty(t, r.Error)
		require.NotEmpty(t, r.Source)
		if r.Parts > 1 {
			parts[r.Digest] += string(r.Raw)
			continue
		}
		data[string(r.Raw)+string(r.Data)]++
	}
	for _, whole := range parts {
		data[whole]++
	}
	require.Equal(t, map[string]int{noJSON: 1, bytes: 1, `{"amount":7}`: 1, large: 1, `{"amount":"much"}`: 1}, data)
}

func attempts(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	b.Publish(t, order("bad", "a", 1), order("good", "a", 2))
	var got seen
	reasons := make(chan error, 10)
	r := receiver(t, b, ReceiverConfig{Attempts: 3, Receive: func(_ context.Context, r inbox.Request, _ error) error {
		if got.add(r.ID); r.ID == "bad" {
			return errors.New("never")
		}
		return nil
	}, Park: func(_ context.Context, _ inbox.Request, reason error) error { reasons <- reason; return nil }})

	stop := running(t, r)
	settled(t, b)
	stop()

	require.Equal(t, ReceiverStats{Acked: 1, Parked: 1, Delayed: 2}, r.Stats())
	require.EqualError(t, <-reasons, "failed 3 times: never")
	all := got.all()
	slices.Sort(all)
	require.Equal(t, []string{"bad", "bad", "bad", "good"}, all)
}

// With one message at a time, a failing message does not keep the place.
func stuckKey(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	bank := newBank(t)
	b.Publish(t, append([]Message{order("stuck", "stuck", 1)}, orders(0, 30, 5)...)...)
	c := bank.config()
	var mended atomic.Bool
	c.Receive = func(ctx context.Context, r inbox.Request, invalid error) error {
		if r.ID == "stuck" && !mended.Load() {
			return errors.New("the account is locked")
		}
		return bank.receive(ctx, r, invalid)
	}

	stop := running(t, receiver(t, b, c))
	testkit.Await(t, "all others are paid", func() (bool, any) { n := len(bank.paid(t)); return n == 30, n })
	require.Positive(t, b.Unsettled(t), "the message that fails stays with the broker")
	mended.Store(true)
	settled(t, b)
	stop()

	require.Equal(t, append(sortedIDs(0, 30), "stuck"), bank.paid(t))
}

func ordered(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	all := orders(0, 60, 6)
	b.Publish(t, all...)
	var got, done seen
	c := ReceiverConfig{Concurrency: 4, Receive: func(_ context.Context, r inbox.Request, _ error) error {
		if times := got.add(r.ID); times == 1 && strings.HasSuffix(r.ID, "7") {
			return errors.New("at first")
		}
		done.add(r.ID)
		return nil
	}}
	if !o.Ordered {
		t.Skip("a message that fails loses its place")
	}

	stop := running(t, receiver(t, b, c))
	settled(t, b)
	stop()

	byKey := map[string][]string{}
	key := map[string]string{}
	want := map[string][]string{}
	for _, m := range all {
		key[m.ID] = m.Key
		want[m.Key] = append(want[m.Key], m.ID)
	}
	for _, id := range done.all() {
		byKey[key[id]] = append(byKey[key[id]], id)
	}
	require.Equal(t, want, byKey)
}

// The function outlasts Grace, and its message goes to another receiver at once; no lease ends
// during this test.
func givesBack(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	b.Publish(t, order("one", "a", 1), order("two", "b", 2))
	begun := make(chan struct{}, 10)
	stop := running(t, receiver(t, b, ReceiverConfig{Grace: time.Millisecond, Receive: func(ctx context.Context, _ inbox.Request, _ error) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}))
	testkit.Receive(t, "a call of the function", begun)
	stop()

	var got seen
	stop = running(t, receiver(t, b, ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error { got.add(r.ID); return nil }}))
	settled(t, b)
	stop()
	all := got.all()
	slices.Sort(all)
	require.Equal(t, []string{"one", "two"}, all)

	b.Publish(t, order("three", "a", 3))
	finish := make(chan struct{})
	patient := receiver(t, b, ReceiverConfig{Grace: time.Minute, Receive: func(ctx context.Context, _ inbox.Request, _ error) error {
		begun <- struct{}{}
		<-finish
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- patient.Run(ctx) }()
	testkit.Receive(t, "a call of the function", begun)
	cancel()
	close(finish)
	require.NoError(t, testkit.Receive(t, "the end of the run", ended))
	require.Equal(t, ReceiverStats{Acked: 1}, patient.Stats(), "within Grace it is finished")
	require.Zero(t, b.Unsettled(t))
}

const (
	childAddress = "BROKERTEST_ADDRESS"
	childStore   = "BROKERTEST_STORE"
)

// Main is for TestMain. In a process that a test kills it runs child: a receiver at the address,
// over its own connection, with the functions of c.
func Main(m *testing.M, child func(ctx context.Context, address string, c ReceiverConfig) error) int {
	address := os.Getenv(childAddress)
	if address == "" {
		return m.Run()
	}
	if err := payAndHang(address, child); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// payAndHang pays one message, says so, and waits to be killed before the message is acknowledged.
func payAndHang(address string, child func(ctx context.Context, address string, c ReceiverConfig) error) error {
	ctx := context.Background()
	b, err := openBank(ctx, os.Getenv(childStore))
	if err != nil {
		return err
	}
	c := b.config()
	c.Receive = func(ctx context.Context, r inbox.Request, invalid error) error {
		if err := b.receive(ctx, r, invalid); err != nil {
			return err
		}
		if _, err := os.Stdout.WriteString("committed\n"); err != nil {
			return err
		}
		select {} // the parent kills the process
	}
	return child(ctx, address, c)
}

func killedReceiver(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	b.Publish(t, order("order-17", "a", 1))
	path := filepath.Join(t.TempDir(), "bank.db")
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), childStore+"="+path, childAddress+"="+b.Address())
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "committed\n", line)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Equal(t, 1, b.Unsettled(t), "it was not acknowledged")

	bank, err := openBank(t.Context(), path)
	require.NoError(t, err)
	defer func() { _ = bank.close() }()
	outcomes := make(chan reservation.Outcome, 1000)
	c := bank.config()
	c.Receive = func(ctx context.Context, r inbox.Request, invalid error) error {
		outcome, err := bank.pay(ctx, r, invalid)
		outcomes <- outcome
		return err
	}
	stop := running(t, receiver(t, b, c))
	settled(t, b)
	stop()

	require.NotEmpty(t, outcomes)
	for range len(outcomes) {
		require.Equal(t, reservation.Duplicate, <-outcomes)
	}
	require.Equal(t, []string{"order-17"}, bank.paid(t))
}

func killedBrokerOfReceiver(t *testing.T, o ReceiverOptions) {
	b := o.Start(t)
	bank := newBank(t)
	c := bank.config()
	c.Concurrency = 2
	stop := running(t, receiver(t, b, c))
	for round := range 2 {
		b.Publish(t, orders(20*round, 20*round+20, 4)...)
		least := 20*round + 5
		testkit.Await(t, "some are paid", func() (bool, any) { n := len(bank.paid(t)); return n >= least, n })
		b.Kill(t)
		b.Start(t)
	}
	b.Publish(t, orders(40, 50, 4)...)

	settled(t, b)
	stop()

	require.Equal(t, sortedIDs(0, 50), bank.paid(t))
	require.Empty(t, bank.refused(t))
}

// A running receiver goes on when its place is deleted and made again, with positions that start
// again.
func placeOfAReceiverMadeAgain(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	var got seen
	r := receiver(t, b, ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error {
		got.add(r.ID)
		return nil
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := r.Run(ctx)
		for o.Ends && ctx.Err() == nil {
			<-time.After(10 * time.Millisecond) // the place may not be there yet
			err = r.Run(ctx)
		}
		ended <- err
	}()
	defer cancel()

	for round := range 3 {
		from, to := 10*round, 10*round+8-2*round // fewer each time, at positions that other messages had before
		b.Publish(t, orders(from, to, 4)...)
		testkit.Await(t, "the messages of a round are received", func() (bool, any) {
			all := got.all()
			return slices.Contains(all, id(to-1)), all
		})
		settled(t, b)
		b.Remake(t)
	}

	cancel()
	require.NoError(t, testkit.Receive(t, "the end of a receiver", ended))
	all := got.all()
	slices.Sort(all)
	want := slices.Concat(sortedIDs(0, 8), sortedIDs(10, 16), sortedIDs(20, 24))
	slices.Sort(want)
	require.Equal(t, want, slices.Compact(all))
}

func twoReceivers(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	bank := newBank(t)
	first, second := receiver(t, b, bank.config()), receiver(t, b, bank.config())
	stopFirst, stopSecond := running(t, first), running(t, second)
	b.Publish(t, orders(0, 40, 8)...)
	testkit.Await(t, "some are paid", func() (bool, any) { n := len(bank.paid(t)); return n >= 10, n })
	stopFirst()

	settled(t, b)
	stopSecond()

	require.Equal(t, sortedIDs(0, 40), bank.paid(t))
}

func runsOnce(t *testing.T, o ReceiverOptions) {
	b := o.Share(t)
	var got seen
	r := receiver(t, b, ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error { got.add(r.ID); return nil }})
	stop := running(t, r)
	b.Publish(t, order("one", "a", 1))
	settled(t, b)
	require.ErrorContains(t, r.Run(t.Context()), "the receiver is running")
	require.ErrorIs(t, r.Run(nil), messagestore.ErrInvalid) //nolint:staticcheck // on purpose
	stop()

	b.Publish(t, order("two", "a", 1))
	stop = running(t, r)
	settled(t, b)
	stop()
	require.Equal(t, []string{"one", "two"}, got.all())
	require.Equal(t, ReceiverStats{Acked: 2}, r.Stats())
}
