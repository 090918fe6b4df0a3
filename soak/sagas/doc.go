// Package sagas is the soak of sagas, timers and relays: runners, which are killed, stopped past
// their leases and cut off from the server, which is killed too, and customers, who begin sagas,
// reply, cancel, resume and resolve, set timers and post letters.
//
// A saga has steps that fail now and then, steps in transactions with a row each, asks that are
// answered at once, late, never, or with a refusal, a sleep, a pivot and a deadline, as its input
// says. One saga is sent as many signals as it takes, and cancelled. A process writes down each
// call of a function before and after it, and the ids of the messages that it writes to a saga. The
// sink of the relay writes down what it takes; it refuses some keys for a while.
//
// [promise.Check] holds the history against the queries of the folder promises, those of timers and
// letters. What is promised of sagas themselves is no query: whether a record may follow depends on
// all that came before it in its stream, and whether it came late on the faults and lost turns
// since. So Go folds each stream, of the same history, and gives its findings to the same verdict;
// it knows nothing of how sagas work.
package sagas
