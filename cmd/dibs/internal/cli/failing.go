package cli

import (
	"fmt"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

// A failingLine is how a failing message is printed as JSON.
type failingLine struct {
	ID             string                      `json:"id"`
	Type           string                      `json:"type"`
	Stream         messagestore.StreamName     `json:"stream"`
	Position       messagestore.Version        `json:"position"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition"`
	Attempts       int                         `json:"attempts"`
	FirstFailedAt  string                      `json:"firstFailedAt"`
	Error          string                      `json:"error"`
}

// Failing lines are the failing messages of a consumer.
type failingLines struct {
	Failing     []failingLine `json:"failing,omitempty"`
	MoreFailing int           `json:"moreFailing,omitempty"`
}

func toFailingLines(s operate.Status) failingLines {
	l := failingLines{MoreFailing: s.MoreFailing}
	for _, f := range s.Failing {
		l.Failing = append(l.Failing, failingLine{
			ID: f.ID.String(), Type: f.Type, Stream: f.Stream, Position: f.Position, GlobalPosition: f.GlobalPosition,
			Attempts: f.Attempts, FirstFailedAt: timeText(f.FirstFailedAt), Error: f.Error,
		})
	}
	return l
}

// printFailing prints a line for each failing message of a consumer.
func (a *app) printFailing(s operate.Status, name cell) error {
	for _, f := range s.Failing {
		if err := a.out.row(cell{text: visible(string(s.Category))}, name, failingCell(f, f.Error)); err != nil {
			return err
		}
	}
	if s.MoreFailing == 0 {
		return nil
	}
	more := cell{text: fmt.Sprintf("and %s that fail", count(s.MoreFailing, "more message")), style: red}
	return a.out.row(cell{text: visible(string(s.Category))}, name, more)
}

// failingCell tells of a failing message, with the text of its error.
func failingCell(f operate.Failure, text string) cell {
	return cell{
		text: fmt.Sprintf("fails at %d, %s %s: attempt %d since %s: %s",
			f.GlobalPosition, visible(f.Type), placeOf(f.Stream, f.Position), f.Attempts, timeText(f.FirstFailedAt), visible(text)),
		style: red,
	}
}
