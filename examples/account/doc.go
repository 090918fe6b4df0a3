// Package account is an example of a component: it keeps accounts by handling commands, each once,
// however often it is sent.
//
// It shows the ways in which a command that comes twice is made harmless, and when each is enough:
//
//   - Open by initiating its stream. The account's stream begins with the answer to the one command
//     that opens it.
//   - Deposit by a reservation inline. Each of the commands with one deposit's id tries to be the
//     first message of a stream named after that id, in one write with its event.
//   - Withdraw by a copy. The first command with the withdrawal's id is copied, by an initial
//     write, to a stream named after that id, and handled by a second consumer when the copy
//     arrives there. The handler may do anything. A copy that is redelivered after a crash is seen
//     to be old: the events carry the global position of the copy that caused them, and an account
//     remembers the last.
//   - Close by state. The account is closed already: nothing to do.
//
// All of them write with the version they read, so that two consumers that handle one account at
// once cannot both decide.
//
//	err := account.Serve(ctx, store, nil)
package account
