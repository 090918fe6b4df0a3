package reservation_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

// A receipt is the answer of the handler.
type receipt struct {
	Balance int `json:"balance"`
}

// answering deposits, and answers with a receipt.
func answering(r *reservation.Reserver) *handler.Mux {
	mux := handler.New()
	handler.Register(mux, reservation.Inline(r, Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		deposited := messagestore.Follow(m.Message, Deposited{m.Body.Amount})
		return []messagestore.StreamWrite{
			messagestore.To(messagestore.Category("account").Stream(m.Stream.CardinalID()), messagestore.AnyVersion, deposited),
			reservation.Answer(receipt{m.Body.Amount}),
		}, nil
	}))
	return mux
}

func TestTheOutcomeHasTheAnswerAndTheEvents(t *testing.T) {
	t.Parallel()
	store := newStore()
	send(t, store, "account-123", Deposited{1})
	once := newReserver(t, store, nil)
	effect, err := once.Outcome(t.Context(), command, "AAA")
	require.NoError(t, err)
	require.False(t, effect.Done)
	require.Nil(t, effect.Winner)
	for range 2 {
		send(t, store, command, Deposit{"AAA", 10})
	}
	send(t, store, command, Deposit{"BBB", 20})
	effect, err = once.Outcome(t.Context(), command, "AAA")
	require.NoError(t, err)
	require.False(t, effect.Done, "it was sent, and not handled")

	require.NoError(t, catchUp(t, store, answering(once), nil))

	effect, err = once.Outcome(t.Context(), command, "AAA")
	require.NoError(t, err)
	require.True(t, effect.Done)
	require.Equal(t, reservation.Reserved, effect.Outcome)
	require.JSONEq(t, `{"balance":10}`, string(effect.Answer))
	require.Len(t, effect.Events, 1)
	require.Equal(t, all(t, store, "account-123")[1], effect.Events[0])
}

// What a function is told of its reservation is what everybody reads of it later.
func TestTheWinnerIsAsItIsReadAlsoWhenItIsReserved(t *testing.T) {
	t.Parallel()
	store := newStore()
	var told []reservation.Result
	once := newReserver(t, store, &reservation.Config{OnOutcome: func(_ context.Context, _ *messagestore.Message, result reservation.Result) {
		told = append(told, result)
	}})
	for range 2 {
		send(t, store, command, Deposit{"AAA", 10})
	}

	require.NoError(t, catchUp(t, store, answering(once), nil))

	require.Len(t, told, 2)
	require.Equal(t, []reservation.Outcome{reservation.Reserved, reservation.Duplicate}, []reservation.Outcome{told[0].Outcome, told[1].Outcome})
	require.Equal(t, []messagestore.StreamName{"account-123"}, reservation.WrittenWith(told[0].Winner))
	require.Equal(t, told[1].Winner, told[0].Winner)
	require.Equal(t, told[1].Answer, told[0].Answer)
}

func TestADuplicateIsToldTheRecordedAnswer(t *testing.T) {
	t.Parallel()
	store := newStore()
	var told []reservation.Result
	once := newReserver(t, store, &reservation.Config{OnOutcome: func(_ context.Context, _ *messagestore.Message, result reservation.Result) {
		told = append(told, result)
	}})
	for range 2 {
		send(t, store, command, Deposit{"AAA", 10})
	}

	require.NoError(t, catchUp(t, store, answering(once), nil))

	require.Len(t, told, 2)
	for i, outcome := range []reservation.Outcome{reservation.Reserved, reservation.Duplicate} {
		require.Equal(t, outcome, told[i].Outcome)
		require.JSONEq(t, `{"balance":10}`, string(told[i].Answer))
	}
}

// A decision that is made again has another answer, and no second one.
func TestTheAnswerIsThatOfTheLastDecision(t *testing.T) {
	t.Parallel()
	store := newStore()
	calls := 0
	mux := inlining(t, store, nil, func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		version, err := store.Version(ctx, "account-123")
		if calls++; calls == 1 {
			send(t, store, "account-123", Deposited{1}) // another was first
		}
		return []messagestore.StreamWrite{messagestore.To("account-123", version, Deposited{10}), reservation.Answer(receipt{calls})}, err
	})

	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))

	effect, err := newReserver(t, store, nil).Outcome(t.Context(), command, "AAA")
	require.NoError(t, err)
	require.JSONEq(t, `{"balance":2}`, string(effect.Answer))
}

func TestAnAnswerThatCannotBeRecordedIsRefused(t *testing.T) {
	t.Parallel()
	store := newStore()
	for name, writes := range map[string][]messagestore.StreamWrite{
		"two":     {reservation.Answer(1), reservation.Answer(2)},
		"no JSON": {reservation.Answer(make(chan int))},
		"no text": {reservation.Answer("\xff")},
	} {
		mux := inlining(t, store, nil, func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			return writes, nil
		})

		require.Error(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})), name)
		require.Empty(t, all(t, store, place(command, "accounts").With("AAA")))
	}
	_, err := store.WriteStreams(t.Context(), reservation.Answer(1))
	require.ErrorIs(t, err, messagestore.ErrInvalid, "it is no write of its own")
}

// Copy's effect is another write than its reservation.
func TestTheOutcomeOfACopyIsDoneOnceAnEventFollows(t *testing.T) {
	t.Parallel()
	store := newStore()
	once := newReserver(t, store, nil)
	source := send(t, store, command, Deposit{"AAA", 10})
	result, err := once.Reserve(t.Context(), source, "AAA")
	require.NoError(t, err)

	effect, err := once.Outcome(t.Context(), command, "AAA", "account-123")
	require.NoError(t, err)
	require.False(t, effect.Done)
	require.Equal(t, reservation.Reserved, effect.Outcome)

	event := send(t, store, "account-123", messagestore.Follow(all(t, store, result.Stream)[0], Deposited{10}))
	effect, err = once.Outcome(t.Context(), command, "AAA", "account-123")
	require.NoError(t, err)
	require.True(t, effect.Done)
	require.Equal(t, []*messagestore.Message{event}, effect.Events)
}

func TestAwaitWaitsUntilTheCommandIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		once := newReserver(t, store, nil)
		type answer struct {
			effect reservation.Effect
			err    error
		}
		answers := make(chan answer, 1)
		go func() {
			effect, err := once.Await(t.Context(), command, "AAA")
			answers <- answer{effect, err}
		}()
		synctest.Wait()
		send(t, store, command, Deposit{"AAA", 10})
		synctest.Wait()
		require.Empty(t, answers, "it is not done when it is sent")

		require.NoError(t, catchUp(t, store, answering(once), nil))

		a := <-answers
		require.NoError(t, a.err)
		require.True(t, a.effect.Done)
		require.JSONEq(t, `{"balance":10}`, string(a.effect.Answer))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		effect, err := once.Await(ctx, command, "BBB")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, effect.Done)
		require.Equal(t, "BBB", effect.Key)
	})
}

// Names of streams in which events are sought are refused before anything is read, or watched.
func TestInvalidStreamsOfEventsAreRefused(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	once := newReserver(t, newFaulty(&faulty{Driver: memory.New(), reads: func() error {
		reads.Add(1)
		return nil
	}}), nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // Await of a valid name ends
	for name, told := range map[messagestore.StreamName]string{
		"":           `invalid stream name ""`,
		"nocategory": `invalid stream name "nocategory"`,
		"a-\x00":     `invalid stream name "a-\x00"`,
	} {
		_, err := once.Outcome(t.Context(), command, "AAA", "account-123", name)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "outcome: "+told)

		_, err = once.Await(ended, command, "AAA", "account-123", name)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "await: "+told)
	}
	require.Zero(t, reads.Load())
}

// An HTTP service answers 202 with a Location, and the result there.
func ExampleReserver_Await() {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	once := testkit.Must(reservation.New(store, "accounts", nil))
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /accounts/{id}/deposits/{key}", func(w http.ResponseWriter, r *http.Request) {
		deposit := Deposit{r.PathValue("key"), 10}
		if _, err := store.Write(r.Context(), commands.Stream(r.PathValue("id")), messagestore.AnyVersion, deposit); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Location", r.URL.EscapedPath())
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("GET /accounts/{id}/deposits/{key}", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		effect, err := once.Await(ctx, commands.Stream(r.PathValue("id")), r.PathValue("key"))
		switch {
		case err == nil:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(effect.Answer)
		case ctx.Err() != nil: // not handled yet: ask again
			w.WriteHeader(http.StatusAccepted)
		default:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() {
		stopped <- testkit.Must(consumer.New(store, commands, "accounts", answering(once), nil)).Run(ctx)
	}()

	location := "/accounts/ann+x@y.cz/deposits/AAA"
	for _, method := range []string{http.MethodPut, http.MethodPut, http.MethodGet} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, location, http.NoBody))
		fmt.Print(method, " ", w.Code, " ", w.Header().Get("Location"), w.Body)
		if method == http.MethodPut {
			fmt.Println()
			location = w.Header().Get("Location")
		}
	}
	stop()
	if err := <-stopped; err != nil {
		fmt.Println(err)
	}
	// Output:
	// PUT 202 /accounts/ann+x@y.cz/deposits/AAA
	// PUT 202 /accounts/ann+x@y.cz/deposits/AAA
	// GET 200 {"balance":10}
}
