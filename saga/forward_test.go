package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/saga"
)

func TestStepsSideBySideBeginInOneWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		slow := func(context.Context, int) error { time.Sleep(5 * time.Second); return nil }
		w.on("book flight", slow)
		w.on("book hotel", slow)
		flight, hotel := w.step("flight", nil), w.step("hotel", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (itinerary, error) {
			f, h := flight.Go(s, in), hotel.Go(s, trip{"OPO"})
			err := s.Join()
			return itinerary{Flight: f.Out(), Hotel: h.Out()}, err
		}, saga.Steps{flight, hotel}, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})
		began := time.Now()
		status := waitFor(t, s, "7")

		require.Less(t, time.Since(began), 6*time.Second)
		require.Equal(t, itinerary{Flight: ticket{"flight to LIS"}, Hotel: ticket{"hotel to OPO"}}, status.Out)
		require.Equal(t, []string{"Started", "Began flight", "Began hotel"}, events(t, store, "7")[:3])
	})
}

// A nil undo is recorded as done, with nothing to undo, and the steps before are undone.
func TestAStepWithoutAnUndoLeavesNothingToUndo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("mail", 1, refusal("no such address"))
		flight := w.step("flight", nil)
		mail := saga.NewStep("mail", func(ctx context.Context, _ trip) (int, error) { return 1, w.call(ctx, "mail", "") }, nil, nil)
		car := saga.NewAsk[trip, rented]("car", func(_ context.Context, in trip) (messagestore.StreamWrite, error) {
			return messagestore.To(messagestore.Category("car:command").Stream(in.To), messagestore.AnyVersion, rent{in.To}), nil
		}, nil, nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (int, error) {
			flight.Go(s, in)
			car.Go(s, in)
			mail.Go(s, in)
			return 0, s.Join()
		}, saga.Steps{flight, car, mail}, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})

		require.Equal(t, "mail: no such address", waitFor(t, s, "7").Reason)
		require.Contains(t, strings.Join(events(t, store, "7"), ", "), "Compensating, Undone mail, Undone car, Undone flight, Compensated")
		require.Equal(t, 1, w.keysOf("cancel flight"))
		require.Len(t, commands(t, store, "LIS"), 1)
	})
}

func TestAFunctionGoesOnBehindAStepThatIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book flight", 9, refusal("sold out"))
		flight, train := w.step("flight", nil), w.step("train", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (ticket, error) {
			out, err := flight.Do(s, in)
			if e, is := errors.AsType[*saga.StepError](err); is && e.Refused && e.Reason == "sold out" {
				return train.Do(s, in)
			}
			return out, err
		}, saga.Steps{flight, train}, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})

		require.Equal(t, ticket{"train to LIS"}, waitFor(t, s, "7").Out)
	})
}

func TestAnErrorThatAsksToParkSuspendsAndResumes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  error
		n      int
		config *saga.StepConfig
		calls  int
	}{
		"by its error":        {puzzle("the hotel does not know us"), 1, nil, 2},
		"by its policy":       {errDown, 3, &saga.StepConfig{Retry: saga.Retry{MaxAttempts: 3}, Suspend: true}, 4},
		"output is too large": {nil, 0, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				w.fails("book hotel", test.n, test.fault)
				large := test.fault == nil
				hotel := saga.NewStep("hotel", func(ctx context.Context, in trip) (ticket, error) {
					out := ticket{in.To}
					if large {
						out.Reference, large = strings.Repeat("x", 512<<10), false
						return out, nil
					}
					return out, w.call(ctx, "book hotel", "")
				}, nil, test.config)
				s := newSaga(t, store, hotel.Do, saga.Steps{hotel}, nil)
				defer running(t, s)()

				begin(t, s, "7", trip{"LIS"})
				status := waitFor(t, s, "7")
				require.Equal(t, saga.StateSuspended, status.State)
				require.Equal(t, "hotel", status.Step)
				require.Less(t, len(status.Reason), 600)

				_, err := s.Resume(t.Context(), "7", "they know us now")
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
				require.Equal(t, test.calls, w.calls["book hotel"])
			})
		})
	}
}

// rent is the command of an Ask, and rented the event that follows it.
type rent struct {
	City string `json:"city"`
}

func (rent) MessageType() string { return "Rent" }

type rented struct {
	Car string `json:"car"`
}

func (rented) MessageType() string { return "Rented" }

type giveBack struct {
	Car string `json:"car,omitempty"`
}

func (giveBack) MessageType() string { return "GiveBack" }

// rental is an Ask whose commands go to the stream of a city.
func rental(config *saga.StepConfig) *saga.Ask[trip, rented] {
	return saga.NewAsk("car",
		func(_ context.Context, in trip) (messagestore.StreamWrite, error) {
			return messagestore.To(messagestore.Category("car:command").Stream(in.To), messagestore.AnyVersion, rent{in.To}), nil
		},
		func(_ context.Context, in trip, out *rented) (messagestore.StreamWrite, error) {
			var back giveBack
			if out != nil {
				back.Car = out.Car
			}
			return messagestore.To(messagestore.Category("car:command").Stream(in.To), messagestore.AnyVersion, back), nil
		}, config)
}

// withCar is a saga of an Ask and a step.
func withCar(t require.TestingT, store saga.Store, w *world, config *saga.StepConfig) *saga.Saga[trip, itinerary] {
	car, hotel := rental(config), w.step("hotel", nil)
	return newSaga(t, store, func(s *saga.Run, in trip) (out itinerary, err error) {
		c, err := car.Do(s, in)
		if err != nil {
			return out, err
		}
		out.Car.Reference = c.Car
		out.Hotel, err = hotel.Do(s, in)
		return out, err
	}, saga.Steps{car, hotel}, nil)
}

func commands(t require.TestingT, store *messagestore.Store, city string) (all []string) {
	for m, err := range store.ReadStream(context.Background(), messagestore.Category("car:command").Stream(city), 0) {
		require.NoError(t, err)
		all = append(all, m.Type+string(m.Data))
	}
	return all
}

func write(t require.TestingT, store *messagestore.Store, writes ...messagestore.StreamWrite) {
	_, err := store.WriteStreams(context.Background(), writes...)
	require.NoError(t, err)
}

func TestAnAskWaitsForItsReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := withCar(t, store, w, nil)
		defer running(t, s)()

		begin(t, s, "7", trip{"LIS"})
		time.Sleep(5 * time.Minute)
		status, err := s.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, saga.StateRunning, status.State)
		require.Equal(t, []string{`Rent{"city":"LIS"}`}, commands(t, store, "LIS"))
		command := first(t, store, "car:command-LIS")
		require.Equal(t, messagestore.StreamName("booking:saga-7"), command.Metadata.CorrelationStream)
		require.Equal(t, "car", command.Metadata.Properties.Get("sagaStep"))

		write(t, store, s.Reply("7", "car", rented{"a red one"}))
		write(t, store, s.Reply("7", "car", rented{"a blue one"}))
		replied := time.Now()
		require.Equal(t, "a red one", waitFor(t, s, "7").Out.Car.Reference)
		require.Less(t, time.Since(replied), time.Second)

		write(t, store, s.Refuse("7", "car", "it broke down"))
		time.Sleep(20 * time.Minute)
		status = waitFor(t, s, "7")
		require.Equal(t, saga.StateCompleted, status.State, "what comes behind the end changes nothing")
		require.Equal(t, "a red one", status.Out.Car.Reference)
		require.Len(t, commands(t, store, "LIS"), 1)
		require.Equal(t, 1, w.calls["book hotel"])
	})
}

// A reply is taken whenever it comes: before the step began, while a runner is about to wait, or while none runs.
func TestAReplyThatComesEarlyIsThere(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "while no process runs"} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			s := withCar(t, store, w, nil)
			begin(t, s, "7", trip{"LIS"})
			if when == "before" {
				write(t, store, s.Reply("7", "car", rented{"a red one"}))
			} else {
				stop := running(t, s)
				time.Sleep(time.Minute)
				stop()
				write(t, store, s.Reply("7", "car", rented{"a red one"}))
			}
			s = withCar(t, store, w, nil)
			defer running(t, s)()

			require.Equal(t, "a red one", waitFor(t, s, "7").Out.Car.Reference, when)
			require.Len(t, commands(t, store, "LIS"), 1)
		})
	}
}

func TestAnAskThatIsRefusedOrNotAnsweredIsUndone(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			s := withCar(t, store, w, &saga.StepConfig{Timeout: time.Minute})
			defer running(t, s)()
			begin(t, s, "7", trip{"LIS"})
			reason := "car: no reply came in time"
			if refused {
				reason = "car: no cars"
				write(t, store, s.Refuse("7", "car", "no cars"))
			}

			status := waitFor(t, s, "7")

			require.Equal(t, saga.StateCompensated, status.State)
			require.Equal(t, reason, status.Reason)
			require.Equal(t, []string{`Rent{"city":"LIS"}`, `GiveBack{}`}, commands(t, store, "LIS"))

			write(t, store, s.Reply("7", "car", rented{"a late one"}))
			time.Sleep(time.Minute)
			require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
			require.Len(t, commands(t, store, "LIS"), 2)
		})
	}
}

// A reply behind the timeout changes nothing, also for a function that goes on without it.
func TestALateReplyChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		car, hotel := rental(&saga.StepConfig{Timeout: time.Minute}), w.step("hotel", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (string, error) {
			reason := "there is a car"
			if _, err := car.Do(s, in); errors.Is(err, saga.ErrWaiting) {
				return "", err
			} else if err != nil {
				reason = err.Error()
			}
			if err := s.Sleep("day", time.Hour); err != nil {
				return "", err
			}
			_, err := hotel.Do(s, in)
			return reason, err
		}, saga.Steps{car, hotel}, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		time.Sleep(2 * time.Minute)
		write(t, store, s.Reply("7", "car", rented{"a late one"}))

		require.Equal(t, "car: no reply came in time", waitFor(t, s, "7").Out)
	})
}

// A message from outside while a step waits for its next attempt does not have it come sooner.
func TestAnAttemptWaitsForItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book hotel", 1, errDown)
		w.fails("cancel hotel", 1, errDown)
		car, hotel := rental(nil), w.step("hotel", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (rented, error) {
			if _, err := hotel.Do(s, in); err != nil {
				return rented{}, err
			}
			return car.Do(s, in)
		}, saga.Steps{car, hotel}, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		time.Sleep(300 * time.Millisecond)
		require.Equal(t, "book hotel", w.did())
		write(t, store, s.Refuse("7", "car", "none"))
		time.Sleep(150 * time.Millisecond)
		require.Equal(t, "book hotel", w.did())

		for w.did() != "book hotel, book hotel, cancel hotel" {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		write(t, store, s.Reply("7", "car", rented{"one"}))
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, "book hotel, book hotel, cancel hotel", w.did())
		require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
	})
}

// A function that returns nil while one of its steps has not ended is not taken at its word.
func TestAFunctionDoesNotEndBeforeItsSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		w.fails("book hotel", 1, refusal("no room"))
		car, hotel := rental(nil), w.step("hotel", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (int, error) {
			car.Go(s, in)
			hotel.Go(s, in)
			if err := s.Join(); errors.Is(err, saga.ErrWaiting) {
				return 0, err
			}
			return 1, nil
		}, saga.Steps{car, hotel}, &saga.Config{Deadline: time.Minute})
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})

		status := waitFor(t, s, "7")
		require.Equal(t, "step not ended", status.Suspended)

		// A reply leaves a suspended saga to a person. Its deadline undoes it.
		write(t, store, s.Reply("7", "car", rented{"one"}))
		time.Sleep(time.Second)
		status = waitFor(t, s, "7")
		require.Equal(t, saga.StateSuspended, status.State)
		require.NotContains(t, w.did(), "cancel")
		time.Sleep(time.Minute)
		status = waitFor(t, s, "7")
		require.Equal(t, saga.StateCompensated, status.State)
		require.Equal(t, "the deadline is over", status.Reason)
		require.Equal(t, "book hotel, cancel hotel?", w.did())
	})
}

func TestAnAnswerMakesAReplyOfAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := withCar(t, store, w, nil)
		defer running(t, s)()
		mux := handler.New()
		handler.On(mux, func(ctx context.Context, m handler.Message[rent]) error {
			_, err := store.Write(ctx, messagestore.Category("car").Stream(m.Body.City), messagestore.AnyVersion, messagestore.Follow(m.Message, rented{"a red one"}))
			return err
		})
		cars := testkit.Must(consumer.New(store, "car:command", "cars", mux, &consumer.Config{Logger: silent, Start: consumer.FromStart()}))
		defer running(t, cars)()
		answers := handler.New()
		handler.Register(answers, saga.Answer(s, "car", func(_ context.Context, m handler.Message[rented]) (rented, error) {
			if m.Body.Car == "" {
				return rented{}, refusal("none")
			}
			return m.Body, nil
		}))
		reader := testkit.Must(consumer.New(store, "car", "answers", answers, &consumer.Config{Logger: silent, Start: consumer.FromStart(), Correlation: s.Category()}))
		defer running(t, reader)()

		begin(t, s, "7", trip{"LIS"})
		require.Equal(t, "a red one", waitFor(t, s, "7").Out.Car.Reference)

		// A refusal, an event of another step, and one of a saga that is not there.
		begin(t, s, "8", trip{"OPO"})
		synctest.Wait()
		none := messagestore.Envelope{Body: rented{}, Metadata: messagestore.Metadata{CorrelationStream: "booking:saga-8"}}
		other := messagestore.Envelope{Body: rented{"x"}, Metadata: messagestore.Metadata{CorrelationStream: "booking:saga-7", Properties: messagestore.Properties{"sagaStep": "plane"}}}
		nobody := messagestore.Envelope{Body: rented{"x"}, Metadata: messagestore.Metadata{CorrelationStream: "booking:saga-9"}}
		write(t, store, messagestore.To("car-1", messagestore.AnyVersion, other, nobody))
		write(t, store, messagestore.To("car-2", messagestore.AnyVersion, none))
		time.Sleep(time.Second)
		stats := reader.Stats()
		require.Equal(t, int64(1), stats.Skipped)
		require.Equal(t, int64(1), stats.Parked)
	})
}

func TestAValueIsComputedOnceAndASleepHoldsNoGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		hotel := w.step("hotel", nil)
		runs := 0
		make := func() *saga.Saga[trip, time.Time] {
			return newSaga(t, store, func(s *saga.Run, in trip) (time.Time, error) {
				runs++
				now, err := saga.Value(s, "now", time.Now)
				if err != nil {
					return now, err
				}
				if err := s.Sleep("day", 10*time.Minute); err != nil {
					return now, err
				}
				_, err = hotel.Do(s, in)
				return now, err
			}, saga.Steps{hotel}, nil)
		}
		s := make()
		stop := running(t, s)
		begin(t, s, "7", trip{"LIS"})
		began := time.Now()
		time.Sleep(time.Minute)
		stop() // and nothing runs until the day is over
		require.Equal(t, []string{"Started", "Valued now", "Waiting day"}, events(t, store, "7"))
		time.Sleep(11 * time.Minute)

		s = make()
		defer running(t, s)()
		status := waitFor(t, s, "7")

		require.Less(t, status.Out.Sub(began).Abs(), time.Second)
		require.Equal(t, 2, runs)
		require.Equal(t, "book hotel", w.did())
	})
}

func TestBehindAPivotThereIsNoWayBack(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"refused", "cancelled", "deadline"} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			flight, pay, mail := w.step("flight", nil), w.step("pay", &saga.StepConfig{Pivot: true}), w.step("mail", nil)
			s := newSaga(t, store, func(s *saga.Run, in trip) (itinerary, error) {
				for _, step := range []*saga.Step[trip, ticket]{flight, pay, mail} {
					if _, err := step.Do(s, in); err != nil {
						return itinerary{}, err
					}
				}
				return itinerary{}, nil
			}, saga.Steps{flight, pay, mail}, &saga.Config{Deadline: time.Minute})
			stop := running(t, s)
			defer stop()
			switch reason {
			case "refused":
				w.fails("book mail", 1, refusal("the mailbox is full"))
			default:
				w.fails("book mail", 4, errDown)
			}
			begin(t, s, "7", trip{"LIS"})
			time.Sleep(time.Second / 2)
			if reason == "cancelled" {
				_, err := s.Cancel(t.Context(), "7", "")
				require.NoError(t, err)
			}
			if reason == "refused" {
				status := waitFor(t, s, "7")
				require.Equal(t, saga.StateSuspended, status.State)
				require.Equal(t, []string{"failed", "mail", "mail: the mailbox is full"}, []string{status.Suspended, status.Step, status.Reason})
				_, err := s.Cancel(t.Context(), "7", "please")
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.Equal(t, saga.StateSuspended, waitFor(t, s, "7").State)
				_, err = s.Resume(t.Context(), "7", "it is emptied")
				require.NoError(t, err)
				time.Sleep(time.Minute)
			}
			if reason == "deadline" {
				time.Sleep(2 * time.Minute)
			}

			require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State, reason)
			require.NotContains(t, w.did(), "cancel")
			require.NotContains(t, events(t, store, "7"), "Compensating")
		})
	}
}

func TestACancelAndADeadlineUndo(t *testing.T) {
	t.Parallel()
	for _, deadline := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store, w := newStore(), newWorld()
			car, hotel := rental(nil), w.step("hotel", nil)
			s := newSaga(t, store, func(s *saga.Run, in trip) (out rented, err error) {
				if _, err := hotel.Do(s, in); err != nil {
					return out, err
				}
				return car.Do(s, in)
			}, saga.Steps{car, hotel}, &saga.Config{Deadline: time.Minute})
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			began := time.Now()
			reason := "the deadline is over"
			if !deadline {
				time.Sleep(time.Second)
				reason = "cancelled: the customer called"
				_, err := s.Cancel(t.Context(), "7", "the customer called")
				require.NoError(t, err)
			}
			status := waitFor(t, s, "7")

			require.Equal(t, saga.StateCompensated, status.State)
			require.Equal(t, reason, status.Reason)
			require.Equal(t, deadline, time.Since(began) >= time.Minute)
			require.Equal(t, "book hotel, cancel hotel", w.did())
			require.Equal(t, []string{`Rent{"city":"LIS"}`, `GiveBack{}`}, commands(t, store, "LIS"))
			status, err := s.Cancel(t.Context(), "7", "again")
			require.NoError(t, err)
			require.True(t, status.IsOver())
		})
	}
}

func TestASagaIsStartedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := travel(t, store, w, nil)
		defer running(t, s)()

		write(t, store, s.Start("7", trip{"LIS"}))
		for range 3 {
			status, err := s.Begin(t.Context(), "7", trip{"LIS"})
			require.NoError(t, err)
			require.Equal(t, "7", status.ID)
			waitFor(t, s, "7")
		}
		_, err := s.Begin(t.Context(), "7", trip{"OPO"})
		reused, is := errors.AsType[*reservation.KeyReusedError](err)
		require.True(t, is, err)
		require.Equal(t, "Started", reused.Winner.Type)
		_, err = store.WriteStreams(t.Context(), s.Start("7", trip{"LIS"}))
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.Equal(t, "book flight, book hotel, book car", w.did())
	})
}

// A function that was changed under a saga is found out before it does anything.
func TestAChangedFunctionIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]func(s *saga.Run, in trip, do func(string, trip) error) error{
		"another step first": func(_ *saga.Run, in trip, do func(string, trip) error) error { return do("hotel", in) },
		"another input": func(s *saga.Run, in trip, do func(string, trip) error) error {
			if err := do("flight", trip{"OPO"}); err != nil {
				return err
			}
			if err := s.Sleep("day", time.Minute); err != nil {
				return err
			}
			return do("taxi", in)
		},
		"returns at once": func(*saga.Run, trip, func(string, trip) error) error { return nil },
		"refuses at once": func(*saga.Run, trip, func(string, trip) error) error { return errDown },
		"sleeps first":    func(s *saga.Run, _ trip, _ func(string, trip) error) error { return s.Sleep("night", time.Hour) },
		"a step less": func(_ *saga.Run, in trip, do func(string, trip) error) error {
			return errors.Join(do("flight", in), do("taxi", in))
		},
		"a step as a value": func(s *saga.Run, in trip, do func(string, trip) error) error {
			_, err := saga.Value(s, "flight", func() string { return "" })
			return errors.Join(err, do("taxi", in))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				steps := map[string]*saga.Step[trip, ticket]{}
				all := saga.Steps{}
				for _, name := range []string{"flight", "hotel", "taxi"} {
					steps[name] = w.step(name, nil)
					all = append(all, steps[name])
				}
				old := func(s *saga.Run, in trip) (string, error) {
					if _, err := steps["flight"].Do(s, in); err != nil {
						return "", err
					}
					if err := s.Sleep("day", 2*time.Minute); err != nil {
						return "", err
					}
					_, err := steps["hotel"].Do(s, in)
					return "done", err
				}
				before := newSaga(t, store, old, all, nil)
				stop := running(t, before)
				begin(t, before, "7", trip{"LIS"})
				time.Sleep(time.Minute)
				stop()

				after := newSaga(t, store, func(s *saga.Run, in trip) (string, error) {
					err := changed(s, in, func(name string, in trip) error { _, err := steps[name].Do(s, in); return err })
					return "changed", err
				}, all, nil)
				stop = running(t, after)
				status := waitFor(t, after, "7")
				require.Equal(t, saga.StateSuspended, status.State)
				require.Equal(t, "diverged", status.Suspended, status.Reason)
				require.Equal(t, "book flight", w.did(), "nothing is done")
				require.NotContains(t, strings.Join(events(t, store, "7"), " "), "taxi")
				stop()

				// The function is put back, and the saga goes on.
				defer running(t, before)()
				_, err := before.Resume(t.Context(), "7", "the function is put back")
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.Equal(t, "done", waitFor(t, before, "7").Out)
				require.Equal(t, "book flight, book hotel", w.did())
			})
		})
	}
}

func TestASagaKeepsTheVersionItWasStartedWith(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		flight, hotel := w.step("flight", nil), w.step("hotel", nil)
		book1 := func(s *saga.Run, in trip) (ticket, error) {
			if err := s.Sleep("day", 11*time.Minute); err != nil {
				return ticket{}, err
			}
			return flight.Do(s, in)
		}
		book2 := func(s *saga.Run, in trip) (ticket, error) { return hotel.Do(s, in) }
		steps := saga.Steps{flight, hotel}
		one := newSaga(t, store, book1, steps, nil)
		stop := running(t, one)
		begin(t, one, "7", trip{"LIS"})
		begin(t, one, "8", trip{"LIS"})
		time.Sleep(time.Second)

		// A process of an earlier release meets a saga of a later one: it leaves it.
		two := newSaga(t, store, book2, steps, &saga.Config{Version: 2, Earlier: map[int]any{1: book1}})
		begin(t, two, "9", trip{"LIS"})
		time.Sleep(10 * time.Minute)
		require.Empty(t, w.did())
		require.NotContains(t, events(t, store, "9"), "Suspended")
		stop()

		stop = running(t, two)
		require.Equal(t, "hotel to LIS", waitFor(t, two, "9").Out.Reference)
		require.Equal(t, "flight to LIS", waitFor(t, two, "7").Out.Reference)
		require.Equal(t, "flight to LIS", waitFor(t, two, "8").Out.Reference)

		// A version that is not there any more suspends.
		begin(t, one, "10", trip{"LIS"})
		stop()
		three := newSaga(t, store, book2, steps, &saga.Config{Version: 3})
		defer running(t, three)()
		status := waitFor(t, three, "10")
		require.Equal(t, "no version", status.Suspended)
	})
}

func TestAStepWithoutADefinitionIsNotCalledUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := withCar(t, store, w, nil)
		stop := running(t, s)
		begin(t, s, "7", trip{"LIS"})
		time.Sleep(time.Second)
		stop()

		hotel := w.step("hotel", nil)
		without := newSaga(t, store, hotel.Do, saga.Steps{hotel}, nil)
		_, err := without.Cancel(t.Context(), "7", "")
		require.NoError(t, err)
		stop = running(t, without)
		status := waitFor(t, without, "7")
		require.Equal(t, []string{"step missing", "car", "car began, and is not among the saga's steps"}, []string{status.Suspended, status.Step, status.Reason})
		stop()

		s = withCar(t, store, w, nil)
		defer running(t, s)()
		_, err = s.Resume(t.Context(), "7", "it is defined again")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
		require.Len(t, commands(t, store, "LIS"), 2)
	})
}

// Each mistake of a function suspends its saga, and begins nothing behind it.
func TestAMistakeOfTheFunctionSuspends(t *testing.T) {
	t.Parallel()
	w := newWorld()
	flight, other := w.step("flight", nil), w.step("other", nil)
	var nested *saga.Run
	outer := saga.NewStep("outer", func(_ context.Context, in trip) (ticket, error) { return flight.Do(nested, in) }, nil, nil)
	unfit := saga.NewStep("unfit", func(context.Context, any) (string, error) { return "", nil }, nil, nil)
	steps := saga.Steps{flight, outer, unfit}
	for name, f := range map[string]func(s *saga.Run, in trip) error{
		"a step twice": func(s *saga.Run, in trip) error {
			_, _ = flight.Do(s, in)
			_, err := flight.Do(s, in)
			return err
		},
		"a step in a step":         func(s *saga.Run, in trip) error { nested = s; _, err := outer.Do(s, in); return err },
		"a step that is not among": func(s *saga.Run, in trip) error { _, err := other.Do(s, in); return err },
		"an input that is no JSON": func(s *saga.Run, _ trip) error { _, err := unfit.Do(s, make(chan int)); return err },
		"an input that is too large": func(s *saga.Run, _ trip) error {
			_, err := flight.Do(s, trip{strings.Repeat("x", 512<<10)})
			return err
		},
		"an input with U+0000": func(s *saga.Run, _ trip) error { _, err := flight.Do(s, trip{"\x00"}); return err },
		"a value that is no JSON": func(s *saga.Run, _ trip) error {
			_, err := saga.Value(s, "v", func() any { return make(chan int) })
			return err
		},
		"a value of no function":        func(s *saga.Run, _ trip) error { _, err := saga.Value[int](s, "v", nil); return err },
		"a name that is empty":          func(s *saga.Run, _ trip) error { return s.Sleep("", time.Hour) },
		"a sleep of no time":            func(s *saga.Run, _ trip) error { return s.Sleep("day", 0) },
		"a sleep of a century":          func(s *saga.Run, _ trip) error { return s.Sleep("day", 100*365*24*time.Hour) },
		"Go without Join":               func(s *saga.Run, in trip) error { flight.Go(s, in); return nil },
		"a panic":                       func(*saga.Run, trip) error { panic("\x00" + strings.Repeat("x", 1000)) },
		"an end of its goroutine":       func(*saga.Run, trip) error { exit(); return nil },
		"an error that asks to suspend": func(*saga.Run, trip) error { return puzzle("look") },
		"a mistake that it passes over": func(s *saga.Run, in trip) error { _, _ = other.Do(s, in); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				s := newSaga(t, store, func(s *saga.Run, in trip) (int, error) { return 1, f(s, in) }, steps, nil)
				defer running(t, s)()
				begin(t, s, "7", trip{"LIS"})

				status := waitFor(t, s, "7")

				require.Equal(t, saga.StateSuspended, status.State)
				require.Less(t, len(status.Reason), 600)
				_, err := s.Cancel(t.Context(), "7", "it is wrong")
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
			})
		})
	}
}

// A saga that has more messages than it may is suspended, and can still be undone.
func TestASagaThatIsTooLongSuspends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		car, hotel := rental(&saga.StepConfig{Timeout: 24 * time.Hour}), w.step("hotel", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (rented, error) {
			if _, err := hotel.Do(s, in); err != nil {
				return rented{}, err
			}
			return car.Do(s, in)
		}, saga.Steps{car, hotel}, nil)
		begin(t, s, "7", trip{"LIS"})
		for range 10 {
			var many []messagestore.Body
			for range 1000 {
				many = append(many, saga.FailedEvent{Step: "nothing"})
			}
			write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, many...))
		}
		defer running(t, s)()

		status := waitFor(t, s, "7")
		require.Equal(t, "too long", status.Suspended)
		require.Empty(t, w.did())
		_, err := s.Cancel(t.Context(), "7", "")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
	})
}

// A process of this release leaves a saga that has messages of a later one.
func TestATypeOfALaterReleaseIsLeftToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := travel(t, store, w, nil)
		begin(t, s, "7", trip{"LIS"})
		write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, messagestore.Raw{Type: "Suspended", Data: json.RawMessage("{}")}))
		begin(t, s, "8", trip{"LIS"})
		defer running(t, s)()

		require.Equal(t, saga.StateCompleted, waitFor(t, s, "8").State, "it holds up no other")
		time.Sleep(150 * time.Second)
		require.Equal(t, "book flight, book hotel, book car", w.did())
		require.Equal(t, []string{"Started", "Suspended"}, events(t, store, "7"))
	})
}

func TestAStreamThatHoldsNoSagaIsSkipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := travel(t, store, w, nil)
		write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, saga.ResumedEvent{}))
		write(t, store, messagestore.To("booking:saga-8", messagestore.AnyVersion, messagestore.Raw{Type: "Started", Data: json.RawMessage(`{"version":"x"}`)}))
		defer running(t, s)()
		begin(t, s, "9", trip{"LIS"})

		require.Equal(t, saga.StateCompleted, waitFor(t, s, "9").State)
		synctest.Wait()
		require.Equal(t, int64(2), s.Stats().Skipped)
		_, err := s.Status(t.Context(), "7")
		require.Error(t, err)
	})
}

func TestManySagasWaitWithoutGoroutines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := withCar(t, store, w, &saga.StepConfig{Timeout: time.Hour})
		defer running(t, s)()
		const sagas = 1000
		for i := range sagas {
			begin(t, s, fmt.Sprint(i), trip{"LIS"})
		}
		time.Sleep(time.Minute)
		require.Len(t, commands(t, store, "LIS"), sagas)
		require.Zero(t, w.calls["book hotel"])
		require.Zero(t, goroutines())
		for i := range sagas {
			write(t, store, s.Reply(fmt.Sprint(i), "car", rented{"a red one"}))
		}
		for i := range sagas {
			require.Equal(t, saga.StateCompleted, waitFor(t, s, fmt.Sprint(i)).State)
		}
	})
}

// goroutines counts the goroutines of this bubble that work on a saga.
func goroutines() int {
	all := make([]byte, 16<<20)
	stacks := strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n")
	bubble := regexp.MustCompile(`synctest bubble \d+\]`).FindString(stacks[0])
	n := 0
	for _, stack := range stacks {
		first, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(first, bubble) && strings.Contains(stack, "dibs/saga.(*life)") {
			n++
		}
	}
	return n
}
