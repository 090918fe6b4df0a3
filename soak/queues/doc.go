// Package queues is the soak of package queue. Processes that work and processes that insert are
// killed, stopped past the ends of their sessions and cut off from the server; the server is killed
// too; and an operator cancels, redrives, pauses and trims. The same runs over a file of SQLite,
// which another program locks now and then.
//
// Each process records every call of the store, before it, and the answer, after it: what each take
// got, with session and version, and the result for each delivery that it ended. At the end the
// history also gets the messages, the rows of the queue, its logs and counts, the rows that
// handlers wrote in transactions with their completions, and the rows that callers wrote with the
// items that they staged. [promise.Check] compares everything with the queries of the folder
// promises, which do not depend on how a queue works: schema.sql describes the tables, and the
// first line of each other file says what it checks.
//
// Q4, Q6c and Q7 have their own scenes. In another scene the server's clock jumps, and no item may
// be delivered early because of that, or late after the clock is right.
package queues
