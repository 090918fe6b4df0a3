// Package queues is the soak of package queue: worker processes and processes that insert, which
// are killed, stopped past the ends of their sessions and cut off from the server, which is killed
// too, while an operator cancels, redrives, pauses and trims. The same goes over a file of SQLite,
// which another program locks now and then.
//
// Each process writes down what it asks the store for, before, and what it was told, after. The
// histories are of the calls of the store: what each take was given, under which session and
// version, and what it was told of each delivery that it ended. In the end the messages, the rows
// of the queue, its logs and counts, and the rows that handlers wrote in transactions with their
// completions, and callers with the items that they staged, are copied beside them. [promise.Check]
// holds all of it against the queries of the folder promises, which know nothing of how a queue
// works: schema.sql says what there is, and the first line of each other file what it looks at.
//
// Q4, Q6c and Q7 are what scenes of their own are about; in another the server's clock jumps, and
// no item may be given early by that, or late, once it is right.
package queues
