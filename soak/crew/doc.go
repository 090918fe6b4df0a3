// Package crew is the common part of the soaks in packages intents, queues and sagas: processes
// that are killed and replaced, their server, the nemesis that kills, stops and cuts off both, and
// the lines in which processes record their calls, for the history of package promise. A new soak
// only adds a load and promises.
//
// A [Crew] is the side of the harness. Its processes are this program again, with a task in an
// environment variable: main calls [RunProcess] first. A process goes on until its standard input
// ends. When something is written to its input, the faults are over, and the process does not die
// at failpoints any longer.
package crew
