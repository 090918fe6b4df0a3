// Package handler routes recorded messages to typed functions.
//
//	mux := handler.New()
//	handler.On(mux, accounts.deposit) // func(context.Context, handler.Message[Deposit]) error
//	handler.On(mux, accounts.withdraw)
//
// A [Mux] is what a consumer is given. The function's own signature is the
// registration: a type that nobody handles is a type that no function names.
//
// # Mistakes
//
// A mistake in the registration, such as one type registered twice, does not
// panic and does not wait for a message of that type. The mux keeps it; Validate
// returns it, and so does Handle for every message. A consumer asks Validate as
// it is made.
//
// # Failures
//
// A function that panics, a body that does not decode and an error that is
// returned come out of [Mux.Handle] as an error that names the message. What is
// done about it is the consumer's to decide.
//
//	handle Deposit account:command-123@0: insufficient funds
package handler
