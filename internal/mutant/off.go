//go:build !mutant

package mutant

// Planted says whether the program was built with bugs.
const Planted = false

// On returns false.
func On(string) bool { return false }
