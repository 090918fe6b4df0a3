//go:build mutant

package mutant

import (
	"os"
	"sync"
)

// Planted says whether the program was built with bugs.
const Planted = true

var planted = sync.OnceValue(func() string { return os.Getenv(Variable) })

// On reports whether the bug of that name is on.
func On(name string) bool { return name == planted() }
