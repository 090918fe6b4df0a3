// Package sagas is the soak of sagas, timers and relays. Runners are killed, stopped past their
// leases and cut off from the server; the server is killed too. Customers begin sagas, reply,
// cancel, resume and resolve, set timers and post letters.
//
// Depending on its input, a saga has steps that fail now and then, steps in transactions that each
// write a row, asks that are answered at once, late, never, or with a refusal, a sleep, a pivot and
// a deadline. One saga gets the maximum number of signals, and is cancelled. A process records each
// call of a function before and after it, and the ids of the messages that it writes to a saga. The
// sink of the relay records the messages that it takes; it refuses some keys for a while.
//
// [promise.Check] compares the history with the queries of the folder promises, which cover timers
// and letters. Queries are not enough for the promises of sagas: whether a record may follow
// depends on everything before it in its stream, and whether it is late depends on the faults and
// lost turns since. So Go code folds each stream of the same history, and adds its findings to the
// same verdict; it does not depend on how sagas work.
package sagas
