package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

// A parked message is the content of a consumer's dead letter, or of its end.
type parked struct {
	Stream   messagestore.StreamName `json:"stream"`
	Position messagestore.Version    `json:"position"`
	Consumer string                  `json:"consumer"`
	Error    string                  `json:"error"`
	Reason   string                  `json:"reason"` // of the operator that had it parked; the handler's error, if there is one, is beside it

	// Of a letter that is closed.
	Attempts int    `json:"attempts"`
	Dropped  string `json:"dropped"` // an operator's reason
	Skipped  string `json:"skipped"` // the handler's reason
	Deleted  bool   `json:"deleted"`
}

// openText says why a message is parked.
func (p parked) openText() string {
	if p.Reason == "" || strings.HasPrefix(p.Error, parkedByOperator) {
		return fmt.Sprintf("by %s: %s", p.Consumer, p.Error)
	}
	return fmt.Sprintf("by %s: %s%s; its last error: %s", p.Consumer, parkedByOperator, p.Reason, p.Error)
}

// parkedByOperator begins the error of a message that had none of its own.
const parkedByOperator = "parked by an operator: "

// closedText says how a dead letter was closed.
func (p parked) closedText() string {
	switch {
	case p.Dropped != "":
		return "by an operator: " + p.Dropped
	case p.Deleted:
		return "its stream was deleted, and it was not delivered"
	case p.Skipped != "":
		return fmt.Sprintf("skipped at attempt %d: %s", p.Attempts, p.Skipped)
	}
	return fmt.Sprintf("handled at attempt %d", p.Attempts)
}

// deadLettersPart tells which messages of the story consumers parked.
type deadLettersPart struct{}

func (deadLettersPart) tell(ctx context.Context, e *explainer, s *story) error {
	var categories []messagestore.Category
	for _, m := range s.roots {
		if category := m.Stream.Category(); !slices.Contains(categories, category) {
			categories = append(categories, category)
		}
	}
	for _, category := range categories {
		letters := category.WithType("deadLetter")
		if letters.Validate() != nil {
			continue // so no consumer could have written there
		}
		var told error
		err := e.scan(ctx, letters, messagestore.Filter{Types: []string{"Parked", "Redriven"}}, func(m *messagestore.Message) {
			var p parked
			if json.Unmarshal(m.Data, &p) != nil || told != nil {
				return
			}
			if cause := m.Metadata; m.Type == "Redriven" {
				if !s.knows(cause.CausationStream, cause.CausationPosition) {
					return
				}
				role := redriven
				if p.Dropped != "" {
					role = dropped
				}
				told = s.tellAt(role, m, placeOf(cause.CausationStream, cause.CausationPosition),
					visible(fmt.Sprintf("of %s, %s", m.Stream.CardinalID(), p.closedText())))
				return
			}
			if !s.knows(p.Stream, p.Position) {
				return
			}
			// Its own name is long, and says nothing that these do not.
			told = s.tellAt(deadLetter, m, placeOf(p.Stream, p.Position), visible(p.openText()))
		})
		if err = errors.Join(err, told); err != nil {
			return err
		}
	}
	return nil
}
