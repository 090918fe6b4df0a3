// Package account is an example of a component: it keeps accounts by handling
// commands, each once, however often it is sent.
//
// It shows the three ways in which a message that comes twice is made harmless,
// and when each is enough:
//
//   - Open and Close by state. The account is open already: nothing to do.
//   - Deposit by sequence. The events carry the global position of the command
//     that caused them, and an account remembers the last. A command that is
//     redelivered after a crash is seen to be old. This defeats redelivery
//     of one message, not a second message that asks for the same; the sender
//     must repeat its write with the same message id.
//   - Withdraw by reservation. Any number of messages may ask for the same
//     withdrawal, from any number of senders. Each tries to be the first message
//     of a stream named after the withdrawal's id, in one write with its event.
//
// All of them write with the version they read, so that two consumers that handle
// one account at once cannot both decide.
//
//	mux, err := account.Handlers(store, nil)
//	c, err := consumer.New(store, account.Commands, "accounts", mux, nil)
//	err := c.Run(ctx)
package account
