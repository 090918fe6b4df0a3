// Package crew has what the soaks of packages intents and queues share: processes that a nemesis kills, stops and cuts
// off, and that are replaced; the histories in which they write down their calls; and the figures and findings of a
// run. A soak that has a load and a checker of its own needs nothing else.
//
// A [Crew] is the side of the harness. A process of it is this program again, with its task in an environment variable:
// main calls [RunProcess] first. The process goes on until its standard input ends. Once something is written to that,
// there are no more faults, and the process dies at no failpoint.
package crew
