// Package crew has what the soaks of packages intents, queues and sagas share: processes that are
// killed and replaced, their server, and the nemesis that kills, stops and cuts off both; and the
// lines in which processes write down their calls, for the history of package promise. A soak that
// has a load and promises of its own needs nothing else.
//
// A [Crew] is the side of the harness. A process of it is this program again, with its task in an
// environment variable: main calls [RunProcess] first. The process goes on until its standard input
// ends. Once something is written to that, there are no more faults, and the process dies at no
// failpoint.
package crew
