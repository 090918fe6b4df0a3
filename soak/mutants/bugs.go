package mutants

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
)

//go:embed bugs.txt
var text string

// parse reads bugs.txt.
func parse(text string) (all []*Mutant, err error) {
	var m *Mutant
	var e *plant.Edit
	for i, line := range strings.Split(text, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		if m == nil && word != "bug" && word != "" && word != "#" {
			return nil, fmt.Errorf("line %d: %q is of no bug", i+1, line)
		}
		switch word {
		case "", "#":
		case "bug":
			m = &Mutant{}
			m.Name, m.Says, _ = strings.Cut(rest, ": ")
			all = append(all, m)
		case "scene":
			if n := slices.IndexFunc(scenes, func(s *Scene) bool { return s.Name == rest }); n >= 0 {
				m.Scene = scenes[n]
			}
		case "breaks":
			for id := range strings.FieldsSeq(rest) {
				m.Breaks = append(m.Breaks, promise.Rule(id))
			}
		case "setting":
			m.Plant.Settings = append(m.Plant.Settings, rest)
		case "go":
			m.Plant.Go = append(m.Plant.Go, plant.Edit{In: rest})
			e = &m.Plant.Go[len(m.Plant.Go)-1]
		case "sql":
			m.Plant.SQL = append(m.Plant.SQL, plant.Edit{In: rest})
			e = &m.Plant.SQL[len(m.Plant.SQL)-1]
		case "-":
			e.Old = joined(e.Old, rest)
		case "+":
			e.New = joined(e.New, rest)
		default:
			return nil, fmt.Errorf("line %d: %q begins with no known word", i+1, line)
		}
	}
	return all, nil
}

func joined(text, line string) string {
	if text == "" {
		return line
	}
	return text + "\n" + line
}
