package reservation

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// Initiate returns a handler that answers each command with the first message of another stream,
// which start names and makes. The stream's identifier is the command's key, so the sender chose
// it:
//
//	handler.Register(mux, reservation.Initiate(once, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
//		return transaction.Stream(m.Body.AccountID).With(m.Body.DepositID), Initiated{Amount: m.Body.Amount}
//	}))
//
// The message follows the command. A second command with the same content is a duplicate, and one
// with other content is a [*KeyReusedError], as for [Copy]. Only the commands are compared, and not
// the answers, so start may use the clock. If the stream began in another way, the error is a
// [*NoReservationError].
//
// If the started stream were in the category of the command, the same consumer would read it: then
// the error matches [messagestore.ErrInvalid].
func Initiate[T messagestore.Body](r *Reserver, start func(handler.Message[T]) (messagestore.StreamName, messagestore.Body)) handler.Handler[T] {
	err := missing("Initiate", r, false, "function", start == nil) // a mistake that the mux reports
	return handler.NewHandler(func(ctx context.Context, m handler.Message[T]) error {
		if err := r.serves(ctx, m.Message); err != nil {
			return err
		}
		stream, body := start(m)
		c, err := answerTo(ctx, m, stream, body)
		if err != nil {
			return fmt.Errorf("initiate: %w", err)
		}
		result, err := r.initial(ctx, c)
		if err != nil {
			return err
		}
		return result.Err()
	}, r.check, err)
}

func answerTo[T messagestore.Body](ctx context.Context, m handler.Message[T], stream messagestore.StreamName, body messagestore.Body) (claim, error) {
	if err := stream.Validate(); err != nil {
		return claim{}, err
	}
	if stream.Category() == m.Stream.Category() {
		return claim{}, messagestore.NewInvalidError("started stream", string(stream), "must not be in the category that is consumed: the consumer would take its messages for commands")
	}
	sum, err := digestOf(m)(m.Message)
	if err != nil {
		return claim{}, err
	}
	answer := messagestore.Follow(m.Message, body)
	if answer.ID == uuid.Nil {
		answer.ID = DeriveID(m.Message, string(stream))
	}
	local := messagestore.Properties{digestProperty: sum}
	for name, value := range answer.Metadata.Local {
		if name != digestProperty {
			local[name] = value
		}
	}
	by(ctx, local)
	answer.Metadata.Local = local
	return claim{source: m.Message, key: stream.ID(), stream: stream, body: answer, digest: sum}, nil
}
