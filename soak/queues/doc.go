// Package queues is the soak of package queue: worker processes and processes that insert, which are killed, stopped
// past the ends of their sessions and cut off from the server, which is killed too, while an operator cancels,
// redrives, pauses and trims; and a checker of what they did. The same goes over a file of SQLite, which another
// program locks now and then.
//
// Each process writes down what it asks the store for, before, and what it was told, after. The histories are of the
// calls of the store: what each take was given, under which session and version, and what it was told of each
// delivery that it ended. In the end the messages, the rows of the queue, its logs and counts, and the rows that
// handlers wrote in transactions with their completions, and callers with the items that they staged, are written down
// too. [Check] holds all of it together by these rules, and knows nothing of how a queue works:
//
//   - [Nothing]: an item is finished, or dead, or was cancelled or dropped, and what was inserted is there;
//   - [Twice]: an item is completed under one version, and its effect is there once;
//   - [Fenced]: a position and version is given once;
//   - [After]: nothing is given after its completion;
//   - [Order]: of a key, nothing is given before the item before it has ended;
//   - [Effects]: a row that is written with a completion is there if and only if that is accepted;
//   - [Late]: a completion whose delivery had ended otherwise is refused;
//   - [Met]: in the end no dead process has an item, and the end of a session is met in time;
//   - [Early]: nothing is given before its time, nor while the queue is paused;
//   - [Failures]: failures are counted, but ends of a session that had others out; and an item with the most is dead;
//   - [Lines]: deliveries minus items are the lines of the logs, and the counts of the head are those of the lines;
//   - [Trimmed]: nothing was removed whose item was open;
//   - [Staged]: an item that was staged is there once, with its content, if and only if the row is that was written in
//     its transaction;
//   - [Placed]: staged items come behind all whose insertion was answered before COMMIT, and those of a transaction in the
//     order of their calls;
//   - [Named]: of the items of a unique name, none is inserted while the one before it has the name, and none is left out
//     while it has not;
//   - [Knows]: the context of a handler ends before its item is given again;
//   - [Guilty]: beside items that kill their process, no other is dead for the ends of its sessions;
//   - [Reached]: behind thousands of items of a key, those of others are given.
//
// The last three are what scenes of their own are about; in another the server's clock jumps, and no item may be given
// early by that, or late, once it is right.
package queues
