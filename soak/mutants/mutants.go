// Package mutants has the bugs that are planted to test the soak, each with a scene that provokes
// it and the promises that it breaks: they are in bugs.txt.
package mutants

import (
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
)

// A Mutant is a bug.
type Mutant struct {
	Name   string
	Says   string // what is wrong
	Plant  plant.Mutant
	Scene  *Scene // that provokes it
	Breaks []promise.Rule
}

// Where says where the bug is.
func (m *Mutant) Where() string {
	if len(m.Plant.Settings) > 0 {
		return "settings"
	}
	var places []string
	for _, e := range slices.Concat(m.Plant.Go, m.Plant.SQL) {
		if !slices.Contains(places, e.In) {
			places = append(places, e.In)
		}
	}
	return strings.Join(places, ", ")
}

// All returns all bugs, always in the same order.
func All() []*Mutant { return testkit.Must(parse(text)) }
