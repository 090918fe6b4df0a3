// Package measure runs cases: the same work done by several contenders, one after the
// other, round by round, in one run.
//
// A [Case] names its contenders and its goals. In each round each contender has one
// [Cell]: its Run function sets up its needs (a database of its own, see
// [Cell.Database]), calls [Cell.Callers] or [Cell.Once] exactly once, which measures, and
// then checks the work with [Cell.Check]. It closes everything that it opened before it
// returns, or hands it to [Cell.Cleanup].
//
// The rules that make figures comparable:
//
//   - The contenders of a case take turns, A B C, and the next round begins one further
//     on, B C A: a drift of the machine meets all of them.
//   - Each cell begins on tables in the same state: fresh ones, unless the case says
//     otherwise. Its first part warms up connections, plans and caches and does not count.
//   - Before the measured time there is a CHECKPOINT and a garbage collection.
//   - A figure is the median of the rounds. A ratio is the median of the rounds' ratios,
//     since the two cells of one round ran next to each other.
//   - The client's processor time is the time of this process (getrusage) and of the children
//     that report to it; the server's is the time of its whole process tree. The bench's own
//     bookkeeping, some 100 ns an operation, is in the client's.
package measure
