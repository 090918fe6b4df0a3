package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/saga"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(killersVariable); url != "" {
		fmt.Fprintln(os.Stderr, killersChild(url))
		os.Exit(1)
	}
	if url := os.Getenv(databaseVariable); url != "" {
		if err := travelAgency(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.ManyAtOnce()
	goleak.VerifyTestMain(m)
}

type trip struct {
	To string `json:"to"`
}

type ticket struct {
	Reference string `json:"reference"`
}

type itinerary struct {
	Flight, Hotel, Car ticket
}

// The errors of the world.
func refusal(text string) error { return handler.Refuse(errors.New(text)) }

func puzzle(text string) error { return handler.Park(errors.New(text)) }

// A world is where steps have their effects. Each call is in its log, as "book flight", "cancel flight" or,
// where the output is not known, "cancel flight?".
type world struct {
	mu     sync.Mutex
	log    []string
	keys   map[string]map[string]bool // those that each call came with
	faults map[string]func(ctx context.Context, call int) error
	calls  map[string]int

	unrecorded []string // calls that came before their record
}

func newWorld() *world {
	return &world{keys: map[string]map[string]bool{}, faults: map[string]func(context.Context, int) error{}, calls: map[string]int{}}
}

// fails has the next calls of a step fail with err, n of them.
func (w *world) fails(what string, n int, err error) {
	w.on(what, func(_ context.Context, call int) error {
		if call <= n {
			return err
		}
		return nil
	})
}

func (w *world) on(what string, fault func(ctx context.Context, call int) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[what] = fault
}

func (w *world) call(ctx context.Context, what, marked string) error {
	w.mu.Lock()
	w.log = append(w.log, what+marked)
	w.calls[what]++
	call, fault := w.calls[what], w.faults[what]
	if w.keys[what] == nil {
		w.keys[what] = map[string]bool{}
	}
	w.keys[what][saga.Key(ctx)] = true
	w.mu.Unlock()
	if fault != nil {
		return fault(ctx, call)
	}
	return nil
}

func (w *world) did() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.log, ", ")
}

func (w *world) keysOf(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.keys[what])
}

func (w *world) step(name string, config *saga.StepConfig) *saga.Step[trip, ticket] {
	return saga.NewStep(name,
		func(ctx context.Context, in trip) (ticket, error) {
			return ticket{name + " to " + in.To}, w.call(ctx, "book "+name, "")
		},
		func(ctx context.Context, in trip, out *ticket) error {
			unknown := "?"
			if out != nil {
				if unknown = ""; out.Reference != name+" to "+in.To {
					return fmt.Errorf("the output %q is not that of %s", out.Reference, name)
				}
			}
			return w.call(ctx, "cancel "+name, unknown)
		}, config)
}

var silent = logger.Silent()

func newStore() *messagestore.Store { return testkit.Must(messagestore.New(memory.New(), nil)) }

type runner interface {
	Run(ctx context.Context) error
}

// running runs a saga until the returned function is called.
func running(t testing.TB, s runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := testkit.Receive(t, "the end of a run", ended); err != nil {
			t.Error(err)
		}
	})
}

// travel is a saga of three steps in a row.
func travel(t require.TestingT, store saga.Store, w *world, config *saga.Config) *saga.Saga[trip, itinerary] {
	return travelWith(t, store, w, config, nil)
}

func travelWith(t require.TestingT, store saga.Store, w *world, config *saga.Config, of *saga.StepConfig) *saga.Saga[trip, itinerary] {
	flight, hotel, car := w.step("flight", of), w.step("hotel", of), w.step("car", of)
	book := func(s *saga.Run, in trip) (out itinerary, err error) {
		if out.Flight, err = flight.Do(s, in); err != nil {
			return out, err
		}
		if out.Hotel, err = hotel.Do(s, in); err != nil {
			return out, err
		}
		out.Car, err = car.Do(s, in)
		return out, err
	}
	return newSaga(t, store, book, saga.Steps{flight, hotel, car}, config)
}

func newSaga[In, Out any](t require.TestingT, store saga.Store, f func(*saga.Run, In) (Out, error), steps saga.Steps, config *saga.Config) *saga.Saga[In, Out] {
	var c saga.Config
	if config != nil {
		c = *config
	}
	c.Logger = silent
	s, err := saga.NewOver(store, "booking", f, steps, &c)
	require.NoError(t, err)
	return s
}

// events returns the stream of a saga, an event a word: "Began flight".
func events(t require.TestingT, store saga.Store, id string) []string {
	var all []string
	for m, err := range store.ReadStream(context.Background(), messagestore.Category("booking:saga").Stream(id), 0) {
		require.NoError(t, err)
		var of struct{ Step, Name, For string }
		require.NoError(t, json.Unmarshal(m.Data, &of))
		all = append(all, strings.Join(slices.DeleteFunc([]string{m.Type, of.For, of.Step, of.Name}, func(s string) bool { return s == "" }), " "))
	}
	return all
}

// waitFor waits for the end of a saga, or for its being suspended, in a bubble.
func waitFor[In, Out any](t testing.TB, s *saga.Saga[In, Out], id string) saga.Status[Out] {
	t.Helper()
	return waitAtMost(t, 24*time.Hour, s, id)
}

// waitInTime does the same in real time.
func waitInTime[In, Out any](t testing.TB, s *saga.Saga[In, Out], id string) saga.Status[Out] {
	t.Helper()
	return waitAtMost(t, testkit.WaitLimit, s, id)
}

func waitAtMost[In, Out any](t testing.TB, limit time.Duration, s *saga.Saga[In, Out], id string) saga.Status[Out] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	status, err := s.Wait(ctx, id)
	require.NoError(t, err, "saga %s is %+v", id, status)
	return status
}

func begin[In, Out any](t testing.TB, s *saga.Saga[In, Out], id string, in In) {
	t.Helper()
	_, err := s.Begin(context.Background(), id, in)
	require.NoError(t, err)
}

var errDown = errors.New("the server is down")

func exit() { runtime.Goexit() }
