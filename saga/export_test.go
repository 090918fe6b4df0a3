package saga

import (
	"context"

	"github.com/dibs-go/dibs/messagestore"
)

// ErrFenced is the error of GoOn once another process has gone on.
var ErrFenced = errFenced

// GoOn goes on with the saga of m's stream, as the consumer has it.
func GoOn(ctx context.Context, of Answered, m *messagestore.Message) error {
	_, err := of.answered().goOn(ctx, m, true)
	return err
}
