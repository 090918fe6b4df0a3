// Package history has the records that the processes of a soak write while it runs: of each call before it is
// made, and of its outcome. The checker reads it afterwards and holds it against the promises.
//
// # One file for each process
//
// A process has a name that no other process ever has, not even its successor, and a file of that
// name. [Create] refuses a file that exists. The file is opened with O_APPEND and each event is
// one line in one write(2): a kill -9 loses nothing that was written before, and tears at most the
// last line.
//
//	w, err := history.Create(dir, "writer-3.1")
//	...
//	op, err := w.Begin(&history.Event{Func: history.Write, Appends: appends})
//	written, err := store.Write(ctx, stream, expected, bodies...)
//	err = w.End(op, history.OK, &history.Event{Func: history.Write, Appends: answers})
//
// If Begin fails, do not make the call: it would not be in the history.
//
// # Four kinds
//
// An operation begins with an [Invoke], written before the call, and ends with one of three,
// written after it: [OK], [Fail] for a definite failure, which changed nothing, or [Info]
// for an unknown outcome. An operation that has no end is of unknown outcome too: its process
// was killed. Nothing is ever dropped.
//
// An end names the operation by its number and holds only the reply of the call: a reader joins the two.
//
// # One clock
//
// [Writer] dates each event by CLOCK_MONOTONIC, which all processes of a machine share and
// none sets. An invoke is dated before the call begins and an end after it is over, so that
// the call happened within; the events of one file are in the order of their times.
//
// # Lines
//
// A line is the time in nanoseconds, the kind, the function and the operation's number, and then its content,
// as name=value, in any order but for streams and ids: stream= begins the next append and id= the next message
// of it. Zero values are left out. In values, white space, control characters, % and the comma are written as
// % and two hex digits.
//
//	81234567890 invoke write 17 stream=account-5 expected=3 id=0192…,9001,6b5f…
//	81234671234 ok write 17 stream=account-5 version=4 global=1204
package history
