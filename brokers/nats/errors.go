package natsbroker

import (
	"fmt"

	"github.com/dibs-go/dibs/internal/failure"
)

// A ForeignMessageError says that no relay of the same category and database has sent the last
// message of a subject. The message that was to be sent is dead: behind a message of another origin
// the sink cannot tell whether the stream has it. It is retried after that message was deleted from
// the stream, or the topic was changed.
type ForeignMessageError struct {
	Subject  string
	Sequence uint64 // of the last message, in its stream
	Reason   string
}

// Error names the subject and the sequence.
func (e *ForeignMessageError) Error() string {
	return fmt.Sprintf("the last message of subject %s, at sequence %d, is foreign: %s", e.Subject, e.Sequence, e.Reason)
}

// Unwrap has the message parked.
func (*ForeignMessageError) Unwrap() error { return failure.Parked }
