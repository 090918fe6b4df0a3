package mutants

import (
	"fmt"
	"slices"
)

// Some returns count of the bugs, and for the next turn the next ones; or all if count is 0.
func Some(count int, turn uint64) []*Mutant {
	all := All()
	if count <= 0 || count >= len(all) {
		return all
	}
	some := make([]*Mutant, count)
	first := turn % uint64(len(all)) * uint64(count)
	for i := range some {
		some[i] = all[(first+uint64(i))%uint64(len(all))]
	}
	return some
}

// Named returns the bugs with these names.
func Named(names ...string) ([]*Mutant, error) {
	all := All()
	var found []*Mutant
	for _, name := range names {
		i := slices.IndexFunc(all, func(m *Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}
		found = append(found, all[i])
	}
	return found, nil
}
