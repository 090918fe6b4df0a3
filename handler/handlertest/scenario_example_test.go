package handlertest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/dibs-go/dibs/handler/handlertest"
)

// printer stands for the *testing.T of a test, and prints its failures.
type printer struct{ testing.TB }

func (printer) Helper()                      {}
func (printer) Context() context.Context     { return context.Background() }
func (printer) Cleanup(func())               {}
func (printer) Errorf(text string, a ...any) { fmt.Printf(text+"\n", a...) }

// Given these events, when this command, then these events. The handlers are those of the
// service.
func ExampleScenario() {
	t := printer{}

	handlertest.New(t, handlers).
		Given(book.Stream("123"), deposited{Amount: 1000}).
		When(commands.Stream("123"), withdraw{ID: "w1", Amount: 300}).
		Then(book.Stream("123"), withdrawn{Amount: 300}).
		Redelivered(). // as after a crash: nothing is added
		Then(book.Stream("123"), withdrawn{Amount: 300}).
		When(commands.Stream("123"), withdraw{ID: "w2", Amount: 800}).
		ThenError(errPoor)

	// A test that does not hold says so:
	handlertest.New(t, handlers).
		Given(book.Stream("123"), deposited{Amount: 1000}).
		When(commands.Stream("123"), withdraw{ID: "w1", Amount: 300}).
		Then(book.Stream("123"), withdrawn{Amount: 299})
	// Output:
	// then: account-123 has not the expected events
	// want:
	// 	Withdrawn {"amount":299}
	// got:
	// 	Withdrawn {"amount":300}
}
