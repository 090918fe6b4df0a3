// Package mutant holds bugs: places in the library that do the wrong thing if they are told
// to, so that it can be seen that the soak finds them. Without the build tag mutant, as in
// every release, there is nothing of them in the program.
//
// With it, a process has the one bug that DIBS_MUTANT names, and without a name none.
package mutant

// Variable is the one in the environment that names the bug.
const Variable = "DIBS_MUTANT"
