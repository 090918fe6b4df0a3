// Package sagas is the soak of sagas, timers and relays: runners, which are killed, stopped past their leases and cut off
// from the server, which is killed too, and customers, who begin sagas, reply, cancel, resume and resolve, set timers and
// post letters.
//
// A saga has steps that fail now and then, steps in transactions with a row each, asks that are answered at once, late,
// never, or with a refusal, a sleep, a pivot and a deadline, as its input says. One saga is sent as many signals as it takes, and cancelled. A process writes down each call of a
// function before and after it, and the ids of the messages that it writes to a saga. The sink of the relay writes down
// what it takes; it refuses some keys for a while. [Check] holds the histories against the streams of the sagas and the
// rows, folds these by itself, and knows nothing of how sagas work:
//
//   - [Ended]: a saga that was begun has one end, nothing by a runner is behind it, and its customer is told;
//   - [Story]: its steps are those of its input, and their attempts are in order;
//   - [Rows]: a step in a transaction has a row if it is recorded as done, another if it is recorded as undone, and no more;
//   - [Fenced]: no step begins after the end, or in a process after another went on with the saga;
//   - [Recorded]: each call of a function has a beginning of its own, and none comes after the end of its step;
//   - [Replies]: a step begins when those before it have ended, by a reply to the attempt that waits;
//   - [Reversed]: what began is undone, the last first, each once;
//   - [Heeded]: no step begins after a cancel, or behind the deadline, unless the saga is behind its pivot;
//   - [Punctual]: no sleep, pause, time-out and deadline ends early;
//   - [Woken]: after a reply, a cancel, a resume or a sleep a saga goes on, or a fault explains the time;
//   - [Rung], [Once], [Early]: a timer rings, once where no fault fell, and not before its time;
//   - [Arrived], [InOrder]: each letter arrives, each key in order and without a gap.
package sagas
