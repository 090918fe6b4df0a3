package saga_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

func TestADefinitionThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	store, w := newStore(), newWorld()
	good := w.step("flight", nil)
	do := func(context.Context, trip) (ticket, error) { return ticket{}, nil }
	undo := func(context.Context, trip, *ticket) error { return nil }
	step := func(name string, config *saga.StepConfig) saga.Steps {
		return saga.Steps{saga.NewStep(name, do, undo, config)}
	}
	for name, test := range map[string]struct {
		name   string
		steps  saga.Steps
		config *saga.Config
		field  string
	}{
		"no name":                        {"", nil, nil, "category"},
		"a name with a dash":             {"a-b", nil, nil, "category"},
		"a step named twice":             {"booking", saga.Steps{good, w.step("flight", nil)}, nil, "must have a name of its own: two steps have this one"},
		"a step of no name":              {"booking", step("", nil), nil, "the name must not be empty"},
		"a plus sign":                    {"booking", step("a+b", nil), nil, "plus"},
		"a control":                      {"booking", step("a\nb", nil), nil, "hidden"},
		"a blank":                        {"booking", step(" ", nil), nil, "space"},
		"not UTF-8":                      {"booking", step("a\xff", nil), nil, "step"},
		"a long name":                    {"booking", step(strings.Repeat("x", 101), nil), nil, "100 bytes"},
		"a nil step":                     {"booking", saga.Steps{nil}, nil, "must not be nil"},
		"a step without do":              {"booking", saga.Steps{saga.NewStep[trip, ticket]("flight", nil, undo, nil)}, nil, "the function must not be nil"},
		"no transactions":                {"booking", saga.Steps{saga.NewTxStep("seats", nil, func(context.Context, int, trip) (ticket, error) { return ticket{}, nil }, nil, nil)}, nil, "the store must not be nil"},
		"a timeout of 2 min":             {"booking", step("flight", &saga.StepConfig{Timeout: 2 * time.Minute}), nil, "Timeout"},
		"a negative timeout":             {"booking", step("flight", &saga.StepConfig{Timeout: -1}), nil, "Timeout"},
		"-1 attempts":                    {"booking", step("flight", &saga.StepConfig{Retry: saga.Retry{MaxAttempts: -1}}), nil, "Retry.MaxAttempts"},
		"a negative back-off":            {"booking", step("flight", &saga.StepConfig{Undo: saga.Retry{MaxBackoff: -1}}), nil, "Undo.MaxBackoff"},
		"an ask of a century":            {"booking", saga.Steps{rental(&saga.StepConfig{Timeout: 100 * 365 * 24 * time.Hour})}, nil, "Timeout"},
		"a negative deadline":            {"booking", nil, &saga.Config{Deadline: -1}, "Deadline"},
		"a century":                      {"booking", nil, &saga.Config{Deadline: 100 * 365 * 24 * time.Hour}, "Deadline"},
		"version -1":                     {"booking", nil, &saga.Config{Version: -1}, "Version"},
		"an earlier one that is not":     {"booking", nil, &saga.Config{Version: 2, Earlier: map[int]any{2: good.Do}}, "Earlier"},
		"an earlier one of another type": {"booking", nil, &saga.Config{Version: 2, Earlier: map[int]any{1: func() {}}}, "Earlier"},
		"an earlier one that is nil":     {"booking", nil, &saga.Config{Version: 2, Earlier: map[int]any{1: nil}}, "Earlier"},
		"concurrency -1":                 {"booking", nil, &saga.Config{Concurrency: -1}, "Concurrency"},
		"poll interval of an hour":       {"booking", nil, &saga.Config{PollInterval: time.Hour}, "PollInterval"},
		"lease of 1 ns":                  {"booking", nil, &saga.Config{Lease: 1}, "Lease"},
	} {
		_, err := saga.New(store, test.name, good.Do, test.steps, test.config)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.ErrorContains(t, err, test.field, name)
	}
	_, err := saga.New[trip, ticket](nil, "a-b", nil, saga.Steps{nil, saga.NewStep[trip, ticket]("", nil, nil, nil)}, &saga.Config{
		Version: -1, Deadline: -1, Concurrency: -1, PollInterval: -1, Lease: -1,
	})
	for _, field := range []string{
		"store", "category", "function", "Version", "Deadline", "Concurrency", "PollInterval", "Lease",
		"step 0: must not be nil", `step "": the name`, `step "": the function`,
	} {
		require.Equal(t, 1, strings.Count(err.Error(), "invalid "+field), "%s: %v", field, err)
	}
	require.Equal(t, 11, strings.Count(err.Error(), "invalid "), "%v", err)
	_, err = saga.New[trip, ticket](nil, "booking", nil, nil, nil)
	require.ErrorContains(t, err, "store")
	require.ErrorContains(t, err, "function")
}

func TestACallThatIsNoneIsRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	store, w := newStore(), newWorld()
	s := withCar(t, store, w, nil)
	ctx := t.Context()
	for _, id := range []string{"", " ", "\u200b", "a\nb", "a\x00b", "a\xff", strings.Repeat("x", 300)} {
		_, err := s.Begin(ctx, id, trip{})
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", id)
		require.Less(t, len(err.Error()), 400)
		_, err = s.Status(ctx, id)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", id)
		_, err = s.Wait(ctx, id)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", id)
		for _, write := range []messagestore.StreamWrite{s.Start(id, trip{}), s.Reply(id, "car", rented{}), s.Refuse(id, "car", "")} {
			_, err = store.WriteStreams(ctx, write)
			require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", id)
		}
	}
	for name, write := range map[string]messagestore.StreamWrite{
		"an input that is too large": s.Start("7", trip{strings.Repeat("x", 512<<10)}),
		"no step":                    s.Reply("7", "plane", rented{}),
		"a step that is no Ask":      s.Reply("7", "hotel", ticket{}),
		"a reply of another type":    s.Reply("7", "car", ticket{}),
		"a reply that is nil":        s.Reply("7", "car", nil),
		"a refusal of no step":       s.Refuse("7", "plane", "x"),
	} {
		_, err := store.WriteStreams(ctx, write)
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
	}
	channels := newSaga(t, store, func(*saga.Run, chan int) (int, error) { return 0, nil }, nil, nil)
	_, err := channels.Begin(ctx, "7", nil) // null is JSON
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "must encode as JSON: json: unsupported type: chan int")
	require.NotContains(t, err.Error(), "\n")
	_, err = store.WriteStreams(ctx, s.Reply("7", "car", ticket{}))
	refused := testkit.As[*messagestore.InvalidError](t, err)
	require.Equal(t, []string{"reply", `"saga_test.ticket"`, "must be of the type that replies to car have, saga_test.rented"}, []string{refused.Field, refused.Value, refused.Rule})

	for name, err := range map[string]error{
		"a reply to no saga": func() error { _, err := store.WriteStreams(ctx, s.Reply("7", "car", rented{})); return err }(),
		"a refusal to none":  func() error { _, err := store.WriteStreams(ctx, s.Refuse("7", "car", "x")); return err }(),
	} {
		require.ErrorIs(t, err, messagestore.ErrVersionConflict, name)
	}
	for name, err := range map[string]error{
		"status": func() error { _, err := s.Status(ctx, "7"); return err }(),
		"wait":   func() error { _, err := s.Wait(ctx, "7"); return err }(),
		"cancel": func() error { _, err := s.Cancel(ctx, "7", ""); return err }(),
		"resume": func() error { _, err := s.Resume(ctx, "7", ""); return err }(),
	} {
		require.ErrorIs(t, err, messagestore.ErrNotFound, name)
	}
	require.Empty(t, w.did())
}

func TestAnAnswerThatIsNoneIsAMistakeOfTheMux(t *testing.T) {
	t.Parallel()
	s := withCar(t, newStore(), newWorld(), nil)
	answer := func(context.Context, handler.Message[rented]) (rented, error) { return rented{}, nil }
	for name, f := range map[string]handler.Handler[rented]{
		"no saga":      saga.Answer[rented, rented](nil, "car", answer),
		"no function":  saga.Answer[rented, rented](s, "car", nil),
		"no such step": saga.Answer(s, "plane", answer),
		"no Ask":       saga.Answer(s, "hotel", answer),
		"another type": saga.Answer(s, "car", func(context.Context, handler.Message[rented]) (ticket, error) { return ticket{}, nil }),
	} {
		mux := handler.New()
		handler.Register(mux, f)
		require.ErrorIs(t, mux.Validate(), messagestore.ErrInvalid, name)
	}
}

// Steps that do not return, that end their goroutine and that panic fail, and hold up no other saga.
func TestAStepThatDoesNotReturnProperlyFails(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(ctx context.Context, call int) error{
		"panics":                 func(context.Context, int) error { panic("no") },
		"panics with Park":       func(context.Context, int) error { panic(handler.Park(errDown)) },
		"panics with RetryAfter": func(context.Context, int) error { panic(handler.RetryAfter(time.Hour, errDown)) },
		"panics with Skip":       func(context.Context, int) error { panic(handler.Skip("it is not needed")) },
		"panics with Refuse":     func(context.Context, int) error { panic(handler.Refuse(errDown)) },
		"ends its goroutine":     func(context.Context, int) error { exit(); return nil },
		"returns at its timeout": func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() },
		"an error that panics":   func(context.Context, int) error { return worse{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				w.on("book hotel", fault)
				s := travel(t, store, w, nil)
				defer running(t, s)()
				begin(t, s, "7", trip{"LIS"})

				require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
				require.Equal(t, 5, w.calls["book hotel"])
				require.Equal(t, 1, w.calls["cancel flight"])
			})
		})
	}
}

type worse struct{}

func (worse) Error() string { panic("worse") }
