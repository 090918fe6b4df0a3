package saga

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// ErrPaused is matched by the error of a step that has to wait: for a reply, for a time, or for its
// next attempt. The function returns it, or any other error, and is run again later. Until then each
// further step returns it too.
var ErrPaused = errors.New("the saga goes on later")

// errStopped is the error of a step in a run that has ended for another reason than a wait.
var errStopped = errors.New("the saga has stopped")

// errMoved says that the saga's stream was not at the version that was read.
var errMoved = errors.New("the saga has moved on")

// errFenced says that another run has written to the saga.
var errFenced = errors.New("another process has gone on with the saga")

// errNoSaga is of an id that no saga was started with. It matches [messagestore.ErrNotFound].
var errNoSaga error = noSagaError{}

type noSagaError struct{}

func (noSagaError) Error() string        { return "no saga was started with this id" }
func (noSagaError) Is(target error) bool { return target == messagestore.ErrNotFound }

// A StepError is the error of a step that has failed for good. It is the same in every run: the
// recorded one, and not the error of the step's function.
type StepError struct {
	Step    string
	Reason  string // the text of the error, shortened
	Refused bool   // the error was a refusal, by handler.Refuse; else the attempts were used up, or no reply came in time
}

// Error names the step.
func (e *StepError) Error() string { return e.Step + ": " + e.Reason }

// A parking is the error of a run that ends with the saga parked.
type parking struct{ event.Parked }

func (p *parking) Error() string { return "the saga is parked: " + p.Reason }

// park returns the error that ends a run with the saga parked.
func park(why, step string, reason error) error {
	return &parking{event.Parked{Why: why, Step: step, Reason: textOf(reason)}}
}

func invalid(field string, value any, rule string) error {
	return messagestore.NewInvalidError(field, value, rule)
}

// skipped returns the error that parks a saga because a function of its has returned handler.Skip: nothing of a saga is
// passed over, since what follows wants its output.
func skipped(step string, err error) error {
	return park(event.WhyInvalid, step, fmt.Errorf("handler.Skip is for a message, and a saga passes over nothing: return nil, or handler.Refuse: %w", err))
}

const maxText = 500

// textOf returns the text of an error, fit to be stored.
func textOf(err error) (s string) {
	defer func() {
		if recover() != nil {
			s = fmt.Sprintf("%T, whose text panics", err)
		}
	}()
	return shorten(err.Error())
}

func shorten(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// minBackoff is about the pause before the second attempt.
const minBackoff = time.Second

// askedAt returns when the next attempt is that a function has asked for by handler.RetryAfter.
func askedAt(asked *disposition.Error) time.Time { return time.Now().Add(min(asked.After, maxWait)) }

// retryAt returns when the next attempt is after a number of failures.
func (r Retry) retryAt(failures int) time.Time {
	return time.Now().Add(backoff.After(failures, min(minBackoff, r.MaxBackoff), r.MaxBackoff))
}
