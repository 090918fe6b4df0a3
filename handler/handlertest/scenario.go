package handlertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A Scenario is a test of handlers in three steps: given these events, when this command, then
// these events. Each step fails the test if it does not hold, and returns the scenario. Use it from
// one goroutine.
//
//	handlertest.New(t, handlers).
//		Given(accounts.Stream("123"), Deposited{Amount: 1000}).
//		When(commands.Stream("123"), Withdraw{ID: "w1", Amount: 300}).
//		Then(accounts.Stream("123"), Withdrawn{Amount: 300})
type Scenario struct {
	t     testing.TB
	store *messagestore.Store
	mux   *handler.Mux

	marks   marks                 // after the last message before When
	command *messagestore.Message // the last one
	err     error                 // of its handler, not expected yet
	asked   bool                  // a step has expected err
}

// New returns a scenario over an empty store in memory. The function makes the handlers, as the
// service does; its error, and their mistakes, fail the test. If a handler returns an error that no
// [Scenario.ThenError] expects, the test fails at its end.
//
// The store in memory has no SQL: see [Over] for handlers with a transaction.
func New(t testing.TB, handlers func(store *messagestore.Store) (*handler.Mux, error)) *Scenario {
	t.Helper()
	if handlers == nil {
		t.Fatalf("handlertest: the function that makes the handlers is nil")
	}
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		t.Fatalf("handlertest: %v", err)
	}
	mux, err := handlers(store)
	if err != nil {
		t.Fatalf("handlertest: the function that makes the handlers: %v", err)
	}
	return Over(t, store, mux)
}

// Over returns a scenario like [New], but over the test's own store. It is for handlers that use
// the store's database, by package inbox or by Transact. The handlers must use the same store: a
// reserver over another store fails the test at the first When, just as it stops a consumer. The
// test closes the store.
//
//	pool := postgrestest.Pool(t, nil)
//	driver, err := postgres.New(pool, nil)
//	...
//	plain, err := messagestore.New(driver, nil)
//	...
//	store, err := messagestore.Transactional[pgx.Tx](plain)
//	...
//	handlertest.Over(t, store.Store, handlers(store)).
//		When(commands.Stream("123"), Deposit{ID: "d1", Amount: 10}).
//		Then(accounts.Stream("123"), Deposited{Amount: 10})
//	// and then a look at the tables, through the pool
//
// The store may already have messages; the first When reads them all. No other writer may use it
// meanwhile: its messages would be compared too, and a transaction that it leaves open delays When.
// The driver must be able to list categories, as all drivers of Dibs can; with any other, When
// fails the test.
func Over(t testing.TB, store *messagestore.Store, handlers *handler.Mux) *Scenario {
	t.Helper()
	switch {
	case store == nil:
		t.Fatalf("handlertest: the store is nil")
	case handlers == nil:
		t.Fatalf("handlertest: the handlers are nil")
	}
	s := &Scenario{t: t, store: store, mux: handlers, marks: marks{}}
	if err := s.mux.Validate(); err != nil {
		t.Fatalf("handlers: %v", err)
	}
	t.Cleanup(func() {
		if s.err != nil && !s.asked {
			t.Errorf("the handler returned an error that no ThenError asks for: %v", s.err)
		}
	})
	return s
}

// Store returns the scenario's store, for example to load entities.
func (s *Scenario) Store() *messagestore.Store { return s.store }

// Given writes events to a stream.
func (s *Scenario) Given(stream messagestore.StreamName, events ...messagestore.Body) *Scenario {
	s.t.Helper()
	if _, err := s.store.Write(context.Background(), stream, messagestore.AnyVersion, events...); err != nil {
		s.t.Fatalf("given: %v", err)
	}
	return s
}

// When writes a command to a stream and lets the handlers handle it. Then they handle each message
// that they have written to the command's category, and each copy that reservation.Copy has made,
// until there are no more. After an error of handler.Park or handler.Skip it goes on with the next
// message, as a consumer does; any other error ends it, without a retry.
func (s *Scenario) When(stream messagestore.StreamName, command messagestore.Body) *Scenario {
	s.t.Helper()
	s.demand()
	for m := range s.since("when") {
		s.marks[m.Stream.Category()] = m.GlobalPosition + 1
	}
	if _, err := s.store.Write(context.Background(), stream, messagestore.AnyVersion, command); err != nil {
		s.t.Fatalf("when: %v", err)
	}
	m, err := s.store.Last(context.Background(), stream)
	if err != nil {
		s.t.Fatalf("when: %v", err)
	}
	s.command = m
	s.check()
	s.deliver()
	return s
}

// check makes the handlers' checks, as a consumer does when it starts, with a message of the store.
func (s *Scenario) check() {
	s.t.Helper()
	var all []error
	for _, check := range s.mux.Checks() {
		all = append(all, check(s.t.Context(), s.command))
	}
	if err := errors.Join(all...); err != nil {
		s.t.Fatalf("handlers: %v", err)
	}
}

// Redelivered lets the handlers handle the command of the last When once more, with all messages
// after it in its category, as a consumer does after a crash. Then still compares all messages
// since When, so if nothing was done twice, the same events are expected as before.
func (s *Scenario) Redelivered() *Scenario {
	s.t.Helper()
	s.needsCommand("redelivered")
	s.demand()
	s.deliver()
	return s
}

// Then compares the messages of a stream that were written since the last When began with the given
// ones, in their order: by type, and by data as JSON. Without events it expects no message.
func (s *Scenario) Then(stream messagestore.StreamName, events ...messagestore.Body) *Scenario {
	s.t.Helper()
	s.needsCommand("then")
	if err := stream.Validate(); err != nil {
		s.t.Fatalf("then: %v", err)
	}
	s.demand()
	var got, want []string
	var differ bool
	written := s.written(func(m *messagestore.Message) bool { return m.Stream == stream })
	for i, event := range events {
		m := Stored(s.t, event, nil)
		want = append(want, text(m))
		differ = differ || i >= len(written) || m.Type != written[i].Type || !exactjson.Equal(m.Data, written[i].Data)
	}
	for _, m := range written {
		got = append(got, text(m))
	}
	if !differ && len(written) == len(events) {
		return s
	}
	message := fmt.Sprintf("then: %s has not the expected events\nwant:%s\ngot:%s", stream, list(want), list(got))
	if others := s.written(func(m *messagestore.Message) bool { return m.Stream != stream && s.isEffect(m) }); len(others) > 0 {
		var elsewhere []string
		for _, m := range others {
			elsewhere = append(elsewhere, fmt.Sprintf("%s in %s", text(m), m.Stream))
		}
		message += "\nelsewhere:" + list(elsewhere)
	}
	s.t.Errorf("%s", message)
	return s
}

// ThenNothing requires that no message was written since the last When began, except in the
// category of its command, and reservations.
func (s *Scenario) ThenNothing() *Scenario {
	s.t.Helper()
	s.needsCommand("then")
	s.demand()
	var got []string
	for _, m := range s.written(s.isEffect) {
		got = append(got, fmt.Sprintf("%s in %s", text(m), m.Stream))
	}
	if len(got) > 0 {
		s.t.Errorf("then: expected no events\ngot:%s", list(got))
	}
	return s
}

// isEffect reports whether m is neither a command nor a reservation.
func (s *Scenario) isEffect(m *messagestore.Message) bool {
	return m.Stream.Category() != s.commands() && !s.reserves(m.Stream.Category())
}

// ThenError expects an error of the last command's handler that matches target. A nil target
// matches any error.
func (s *Scenario) ThenError(target error) *Scenario {
	s.t.Helper()
	s.needsCommand("then")
	switch {
	case s.err == nil:
		s.t.Errorf("then: expected an error of %s, and there is none", s.command)
	case target != nil && !errors.Is(s.err, target):
		s.t.Errorf("then: expected another error\nwant: %v\ngot:  %v", target, s.err)
	}
	s.asked = true
	return s
}

// ThenParked expects an error like [Scenario.ThenError], made by handler.Park.
func (s *Scenario) ThenParked(target error) *Scenario {
	s.t.Helper()
	return s.thenDisposed(calling.Park, "handler.Park", target)
}

// ThenRefused expects an error like [Scenario.ThenError], made by handler.Refuse.
func (s *Scenario) ThenRefused(target error) *Scenario {
	s.t.Helper()
	return s.thenDisposed(calling.Refuse, "handler.Refuse", target)
}

// ThenSkipped expects an error like [Scenario.ThenError], made by handler.Skip.
func (s *Scenario) ThenSkipped() *Scenario {
	s.t.Helper()
	return s.thenDisposed(calling.Skip, "handler.Skip", nil)
}

// ThenRetryAfter expects an error like [Scenario.ThenError], made by handler.RetryAfter with d. The
// command is not delivered again; call [Scenario.Redelivered] for that.
func (s *Scenario) ThenRetryAfter(d time.Duration, target error) *Scenario {
	s.t.Helper()
	s.thenDisposed(calling.Retry, "handler.RetryAfter", target)
	if found := calling.DispositionOf(s.err); found.Asks(calling.Retry) && found.After != d {
		s.t.Errorf("then: expected a retry after %v, and it is after %v", d, found.After)
	}
	return s
}

func (s *Scenario) thenDisposed(kind calling.Kind, name string, target error) *Scenario {
	s.t.Helper()
	s.ThenError(target)
	if s.err != nil && !calling.DispositionOf(s.err).Asks(kind) {
		s.t.Errorf("then: expected an error of %s\ngot:  %v", name, s.err)
	}
	return s
}

// demand fails the test if there is an unexpected error, before the next step hides it.
func (s *Scenario) demand() {
	s.t.Helper()
	if s.err != nil && !s.asked {
		s.asked = true // report it once
		s.t.Errorf("the handler returned an error that no ThenError asks for: %v", s.err)
	}
}

// needsCommand fails the test if there was no When before a step.
func (s *Scenario) needsCommand(step string) {
	s.t.Helper()
	if s.command == nil {
		s.t.Fatalf("%s: there is no command yet: call When first", step)
	}
}

// most bounds how many messages one command may cause in its category.
const most = 1000

// deliver lets the handlers handle all messages of the command's category, from the command on, and
// the copies of package reservation.
func (s *Scenario) deliver() {
	s.t.Helper()
	s.err, s.asked = nil, false
	delivered := 0
	next := marks{s.commands(): s.command.GlobalPosition}
	for again := true; again; {
		again = false
		for _, category := range append([]messagestore.Category{s.commands()}, s.reservations("when")...) {
			if _, known := next[category]; !known {
				next[category] = s.marks[category]
			}
			for m, err := range s.store.ReadCategory(context.Background(), category, next[category], messagestore.Filter{}) {
				if delivered++; delivered > most {
					s.t.Fatalf("when: %s has led to more than %d messages in %s: a handler writes to its own category, for ever", s.command, most, s.commands())
				}
				if err == nil && (category == s.commands() || awaitsDelivery(m)) {
					err = s.mux.Handle(s.t.Context(), m)
				}
				if err != nil {
					if s.err == nil {
						s.err = err
					} else {
						s.err = errors.Join(s.err, err)
					}
					if found := calling.DispositionOf(err); !found.Asks(calling.Park) && !found.Asks(calling.Skip) {
						return
					}
				}
				next[category], again = m.GlobalPosition+1, true
			}
		}
	}
}

// reservations returns the categories in which the keys of the commands are reserved.
func (s *Scenario) reservations(step string) (found []messagestore.Category) {
	s.t.Helper()
	categories, err := s.store.Categories(context.Background(), string(s.commands().WithType("reservation"))+"+")
	if err != nil {
		s.t.Fatalf("%s: %v", step, err)
	}
	for _, category := range categories {
		if s.reserves(category) {
			found = append(found, category)
		}
	}
	return found
}

// reserves reports whether the keys of the commands are reserved in category.
func (s *Scenario) reserves(category messagestore.Category) bool {
	name, is := strings.CutPrefix(string(category), string(s.commands().WithType("reservation"))+"+")
	return is && !strings.Contains(name, "+")
}

// awaitsDelivery reports whether m is a copy of reservation.Copy: its effect comes with its
// delivery.
func awaitsDelivery(m *messagestore.Message) bool {
	handled, is := m.Metadata.Local["reservedHandled"].(bool)
	return is && !handled
}

func (s *Scenario) commands() messagestore.Category { return s.command.Stream.Category() }

// marks has for each category the global position from which its messages are new: the global
// positions of two categories cannot be compared.
type marks map[messagestore.Category]messagestore.GlobalPosition

// written returns the messages that were written since the last When began.
func (s *Scenario) written(only func(*messagestore.Message) bool) (found []*messagestore.Message) {
	s.t.Helper()
	for m := range s.since("then") {
		if only(m) {
			found = append(found, m)
		}
	}
	return found
}

// since yields the messages of all categories from the marks on.
func (s *Scenario) since(step string) iter.Seq[*messagestore.Message] {
	return func(yield func(*messagestore.Message) bool) {
		s.t.Helper()
		categories, err := s.store.Categories(context.Background(), "")
		if err != nil {
			s.t.Fatalf("%s: %v", step, err)
		}
		for _, category := range categories {
			if category.Validate() != nil {
				continue // of another client: no handler of ours writes to it
			}
			for m, err := range s.store.ReadCategory(context.Background(), category, s.marks[category], messagestore.Filter{}) {
				if err != nil {
					s.t.Fatalf("%s: %v", step, err)
				}
				if !yield(m) {
					return
				}
			}
		}
	}
}

func text(m *messagestore.Message) string { return m.Type + " " + string(m.Data) }

func list(lines []string) string {
	if len(lines) == 0 {
		return " none"
	}
	return "\n\t" + strings.Join(lines, "\n\t")
}
