package natsbroker

import (
	"fmt"

	"github.com/dibs-go/dibs/internal/calling"
)

// A ForeignMessageError says that the last message of a subject is not from a relay of the same
// category and database. The message to send is dead, because the sink cannot tell whether the
// stream has it. Delete the foreign message from the stream, or change the topic, and retry it.
type ForeignMessageError struct {
	Subject  string
	Sequence uint64 // of the subject's last message, in its stream
	Reason   string
}

// Error names the subject and the sequence.
func (e *ForeignMessageError) Error() string {
	return fmt.Sprintf("the last message of subject %s, at sequence %d, is foreign: %s", e.Subject, e.Sequence, e.Reason)
}

// Unwrap returns a disposition that parks the message.
func (*ForeignMessageError) Unwrap() error { return calling.Parked }
