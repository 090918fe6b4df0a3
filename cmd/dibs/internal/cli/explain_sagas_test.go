package cli_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/saga"
)

type trip struct {
	To string `json:"to"`
}

type charge struct {
	Amount int `json:"amount"`
}

func (charge) MessageType() string { return "Charge" }

type charged struct {
	Receipt string `json:"receipt"`
}

func (charged) MessageType() string { return "Charged" }

type seatTaken struct {
	Seat string `json:"seat"`
}

func (seatTaken) MessageType() string { return "SeatTaken" }

// booking is a saga of a call whose first attempt fails, a transaction with an event, a signal and a command. Its runner ends with
// the test.
func booking(t *testing.T, store *messagestore.Store) *saga.Saga[trip, string] {
	t.Helper()
	txs := testkit.Must(messagestore.Transactional[*sql.Tx](store))
	calls := 0
	flight := saga.NewStep("flight", func(context.Context, trip) (string, error) {
		if calls++; calls == 1 {
			return "", errors.New("the airline is down")
		}
		return "F1", nil
	}, func(context.Context, trip, *string) error { return nil }, &saga.StepConfig{Retry: saga.Retry{MinBackoff: time.Millisecond}})
	seat := saga.NewTxStep("seat", txs, func(ctx context.Context, _ *sql.Tx, _ trip) (string, error) {
		return "12A", saga.Write(ctx, messagestore.To("seat-LIS", messagestore.AnyVersion, seatTaken{"12A"}))
	}, nil, nil)
	paid := saga.NewAsk[int, string]("paid", func(_ context.Context, amount int) (messagestore.StreamWrite, error) {
		return messagestore.To("payment:command-ann", messagestore.AnyVersion, charge{amount}), nil
	}, nil, nil)
	book := func(r *saga.Run, in trip) (string, error) {
		reference, err := flight.Do(r, in)
		if err != nil {
			return "", err
		}
		if _, err := seat.Do(r, in); err != nil {
			return "", err
		}
		if _, err := saga.Receive[string](r, "approved", time.Hour); err != nil {
			return "", err
		}
		if _, err := paid.Do(r, 100); err != nil {
			return "", err
		}
		return reference, nil
	}
	return testkit.Must(saga.New(store, "booking", book, saga.Steps{flight, seat, paid}, &saga.Config{Deadline: time.Hour, Logger: logger.Silent()}))
}

// waits waits until a saga waits for something.
func waits(t *testing.T, s *saga.Saga[trip, string], id, what string) {
	t.Helper()
	testkit.AwaitEqual(t, "what the saga waits for", what, func() string {
		status, err := s.Status(t.Context(), id)
		require.NoError(t, err)
		return status.Waits
	})
}

// A request of an inbox starts a saga, whose steps write, and are written to: each story goes through all of it.
func TestTheStoryOfASagaGoesFromItsRequestToWhatItsStepsWrote(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	defer store.Close()
	txs := testkit.Must(messagestore.Transactional[*sql.Tx](store))
	s := booking(t, store)
	_, err = testkit.Must(inbox.New(txs, "trips", &inbox.Config{Logger: logger.Silent()})).Receive(t.Context(), inbox.Request{ID: "order 17", Source: "POST /trips"},
		func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{s.Start("7", trip{"LIS"})}, nil
		})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	waits(t, s, "7", "the signal approved")
	_, err = store.WriteStreams(t.Context(), s.Signal("7", "approved", "ann"))
	require.NoError(t, err)
	waits(t, s, "7", "a reply to paid")
	// The saga is read before its item, which may come back between the two.
	for _, line := range []string{
		`(?m)^saga +running +waits for a reply to paid; its next turn is at \S+Z$`,
		`(?m)^queue booking:saga +@0 +later +not before \S+Z$`,
	} {
		testkit.Await(t, "the turn has ended", func() (bool, any) {
			waiting := dibs.ok(t, "explain", "booking:saga-7")
			return regexp.MustCompile(line).MatchString(waiting), waiting
		})
	}
	command, err := store.Last(t.Context(), "payment:command-ann")
	require.NoError(t, err)
	_, err = store.Write(t.Context(), "payment-ann", messagestore.NoStream, messagestore.Follow(command, charged{"R1"}))
	require.NoError(t, err)
	answers := handler.New()
	handler.Register(answers, saga.Answer(s, "paid", func(_ context.Context, m handler.Message[charged]) (string, error) { return m.Body.Receipt, nil }))
	require.NoError(t, testkit.Must(consumer.New(store, "payment", "answers", answers, &consumer.Config{Logger: logger.Silent()})).CatchUp(t.Context()))
	_, err = s.Wait(t.Context(), "7")
	require.NoError(t, err)
	stop()
	require.NoError(t, testkit.Receive(t, "the end of the runner", ended))
	in := []string{"--in", "payment:command", "--in", "payment", "--in", "seat"}

	story := steady(dibs.ok(t, append([]string{"explain", "booking:saga-7"}, in...)...))

	golden(t, "explain-saga", story)
	require.Equal(t, story, steady(dibs.ok(t, append([]string{"explain", "7", "--category", "booking:saga"}, in...)...)))
	require.Equal(t, story, steady(dibs.ok(t, append([]string{"explain", fmt.Sprint(command.Metadata.CausationGlobalPosition), "--category", "booking:saga"}, in...)...)), "by the position of its item")

	// The request that started it is told with the same.
	request := steady(dibs.ok(t, append([]string{"explain", "order 17", "--category", "trips:inbox"}, in...)...))
	for _, line := range strings.Split(strings.TrimSuffix(story, "\n"), "\n")[1:] {
		line = strings.Replace(spaced(line), " @", " booking:saga-7@", 1) // which is another's here
		require.Contains(t, spaced(request), strings.Replace(line, "saga completed", "saga booking:saga-7 completed", 1))
	}
	events := func(lines []map[string]any) (all []string) {
		for _, line := range lines {
			all = append(all, fmt.Sprint(line["event"]))
		}
		return all
	}
	told := objects(t, dibs.ok(t, append([]string{"explain", "7", "--category", "booking:saga", "--json"}, in...)...))
	require.Equal(t, []string{
		"started", "began", "failed", "began", "done", "began", "done", "waiting", "signalled", "received", "began", "replied", "completed",
		"saga", "item", "followed", "followed", "followed",
	}, events(told))
	require.Equal(t, []any{"flight", 2.0, "flight is done, attempt 2"}, []any{told[4]["step"], told[4]["attempt"], told[4]["text"]})
	require.Equal(t, "completed", field(t, told[13], "saga")["state"])
	require.Equal(t, append([]string{"received", "wrote"}, events(told)...), events(objects(t, dibs.ok(t, append([]string{"explain", "order 17", "--category", "trips:inbox", "--json"}, in...)...))))

	unknown := dibs.run(t, "explain", "8", "--category", "booking:saga")
	require.Equal(t, 1, unknown.code)
	require.Contains(t, unknown.stderr, "booking:saga has no saga with the id \"8\"\n      see the sagas with: dibs saga ls booking:saga")
	require.Equal(t, noCategory("other:saga"), dibs.run(t, "explain", "8", "--category", "other:saga"))
}

// spaced has the columns of a table one space apart.
func spaced(text string) string { return aGap.ReplaceAllString(text, " ") }

// A command whose handler starts a saga is told with it.
func TestTheStoryOfACommandGoesThroughTheSagaThatItStarted(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	defer store.Close()
	s := booking(t, store)
	once := testkit.Must(reservation.New(store, "trips", nil))
	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, deposit.key, func(_ context.Context, m handler.Message[deposit]) ([]messagestore.StreamWrite, error) {
		start := s.Start(m.Body.DepositID, trip{"LIS"})
		start.Bodies[0] = messagestore.Follow(m.Message, start.Bodies[0])
		return []messagestore.StreamWrite{start}, nil
	}))
	_, err = store.Write(t.Context(), commands.Stream("123"), messagestore.AnyVersion, deposit{"AAA", 10})
	require.NoError(t, err)
	require.NoError(t, testkit.Must(consumer.New(store, commands, "trips", mux, nil)).CatchUp(t.Context()))
	saga7, err := store.Last(t.Context(), "booking:saga-AAA")
	require.NoError(t, err)
	_, err = store.Write(t.Context(), "mail-1", messagestore.NoStream, messagestore.Follow(saga7, notified{}))
	require.NoError(t, err)

	told := dibs.ok(t, "explain", "account:command+reservation+trips-123+AAA", "--in", "mail")

	require.Regexp(t, `(?m)^started .* booking:saga-AAA@0 +Started +version 1 of booking, undone from \S+ on: \{"to":"LIS"\}$`, told)
	require.Regexp(t, `(?m)^saga +booking:saga-AAA +running`, told)
	require.Regexp(t, `(?m)^followed .* mail-1@0 `, told)
	require.Regexp(t, `(?m)^caused by .* account:command`, dibs.ok(t, "explain", "AAA", "--category", "booking:saga"))
}

// The other words, and streams that are no whole saga.
func TestTheStoryOfASagaThatIsUndoneOrSuspended(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		sagas(t, store)
		turns(t, store)
		write := func(id string, events ...string) {
			for _, event := range events {
				name, data, _ := strings.Cut(event, " ")
				_, err := store.Write(t.Context(), messagestore.Category("booking:saga").Stream(id), messagestore.AnyVersion, messagestore.Raw{Type: name, Data: []byte(data)})
				require.NoError(t, err)
			}
		}
		started := `Started {"definition":"booking","version":2,"input":{"to":"LIS"}}`
		write(
			"undone", started, `Replied {"step":"car","output":"C0"}`, `Valued {"name":"fee","value":7}`, `Waiting {"name":"night","until":1700000000000000}`,
			`Began {"step":"flight","attempt":1,"input":1,"pivot":true}`, `Failed {"step":"flight","attempt":1,"error":"later","retryAt":1700000000000000,"asked":true}`,
			`Began {"step":"flight","attempt":2}`, `Done {"step":"flight","output":"F1"}`, `Began {"step":"hotel","attempt":1,"kind":"tx"}`,
			`Failed {"step":"hotel","attempt":1,"error":"no room","refused":true}`, `Began {"step":"meal","attempt":1}`, `Failed {"step":"meal","attempt":1,"error":"no fish"}`,
			`Received {"name":"approved","late":true}`, `Suspended {"why":"operator","reason":"a strike","by":"ann"}`, `Resumed {"reason":"it is over","by":"ann"}`,
			`CancelRequested {"by":"ann"}`, `Compensating {"reason":"no room"}`, `Undone {"step":"meal"}`, `Undone {"step":"hotel","nothing":true}`,
			`UndoFailed {"step":"flight","attempt":1,"error":"down","retryAt":1700000000000000}`, `Undone {"step":"flight"}`, `Compensated {}`,
			`Replied {"step":"car","error":"none"}`, `Signalled {"name":"approved","value":true}`, `Resolved {"reason":"by hand","by":"ann"}`, `CancelRequested {}`,
		)
		write("later", started, `Delegated {"to":"ben"}`)
		write("broken", started, `Began {"step":7}`, `Completed {"output":1}`)
		write("opened", `Opened {}`)

		golden(t, "explain-saga-undone", steady(dibs.ok(t, "explain", "booking:saga-undone")))

		require.Regexp(t, `(?m)^unknown .* @1 +Delegated +a message of a later release$`, dibs.ok(t, "explain", "later", "--category", "booking:saga"))
		broken := dibs.ok(t, "explain", "booking:saga-broken")
		require.Regexp(t, `(?m)^unknown .* @1 +Began +no message of a saga: `, broken)
		require.Regexp(t, `(?m)^completed .* @2 `, broken)
		require.NotRegexp(t, `(?m)^saga `, broken, "it is in no state")
		require.Contains(t, dibs.ok(t, "explain", "booking:saga-opened"), "Opened")
		dead := dibs.ok(t, "explain", "2", "--category", "booking:saga")
		require.Regexp(t, `(?m)^saga +suspended +dead: the store refuses it$`, dead)
		require.Regexp(t, `(?m)^queue booking:saga +\S+Z +@0 +buried +session 1: the store refuses it$`, dead)
		require.Regexp(t, `(?m)^queue booking:saga +@0 +dead`, dead)
		require.Regexp(t, `(?m)^queue booking:saga +@0 +suspended +until a message wakes it$`, dibs.ok(t, "explain", "3", "--category", "booking:saga"))

		dibs.ok(t, "trim", "booking:saga-4", "--keep", "1", "--min-age", "0s", "--yes")
		require.Regexp(t, `^booking:saga-4 is the saga 4 of booking\ntrimmed +booking:saga-4@0 +1 message, of which nothing is known\ncompleted `, dibs.ok(t, "explain", "4", "--category", "booking:saga"))
		dibs.ok(t, "delete", "booking:saga-4", "--yes")
		require.Regexp(t, `(?m)^deleted .* @2 `, dibs.ok(t, "explain", "4", "--category", "booking:saga"))
	})
}
